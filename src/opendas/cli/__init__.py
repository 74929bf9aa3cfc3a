"""The command line: thin over the library, data on stdout, messages on stderr."""
