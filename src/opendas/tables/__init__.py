"""Published tables, made from a release folder alone."""
