"""A local web page on which users try budgets. Draws nothing, spends nothing, reads no count."""
