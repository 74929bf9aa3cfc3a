"""Census Edited Files: persons, units and blocks."""
