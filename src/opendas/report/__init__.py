"""Certificate and report of a release, written from public facts only."""
