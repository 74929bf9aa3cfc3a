"""From records to cells: entries that are counted in bounded memory."""
