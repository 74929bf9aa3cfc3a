"""A run as objects, and what it has: its folder, its account, its machine, its facts."""
