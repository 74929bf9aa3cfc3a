"""Finding the least budget that meets accuracy targets, on public stand-in data."""
