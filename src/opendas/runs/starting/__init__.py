"""Files to start from: what `opendas init` guesses, finds privately, and writes."""
