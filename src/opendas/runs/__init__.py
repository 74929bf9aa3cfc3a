"""Runs: from a run file to a finished release, one step a module."""
