"""The public frame of leaves: declared lists, units per leaf, block assignment files."""
