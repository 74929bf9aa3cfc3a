"""Fuzzing: malformed files for every reader, from a coverage-guided fuzzer and from property tests."""
