"""What an estimate must obey: invariants, bounds from public units, structural zeros."""
