"""Run files and product files: parsed once, into typed and frozen values."""
