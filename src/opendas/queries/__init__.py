"""Query groups: partitions of the cells, built as Kronecker products of recodes."""
