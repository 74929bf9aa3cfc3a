"""What verification needs of a run, from ``release/`` alone: its plan read back, its estimate made again."""
