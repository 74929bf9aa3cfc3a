"""What a reader is told and what it returns, and the paths of its files."""
