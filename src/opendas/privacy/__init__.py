"""Exact privacy arithmetic: fractions, neighbour relations, zCDP accounting and attacker bounds."""
