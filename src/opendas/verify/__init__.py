"""Checks of ``opendas verify``, which read the release folder and nothing else."""
