"""Exact, keyed, addressable noise: laws, sampler tables, keys and sources."""
