"""A local web page on which a budget is played with. Draws nothing, spends nothing, reads no count."""
