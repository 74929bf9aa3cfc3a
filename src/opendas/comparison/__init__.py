"""What changed where: several counts of the same places beside each other, as a table and as a page."""
