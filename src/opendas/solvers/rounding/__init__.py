"""Controlled rounding of one family (TopDown, equation 7.7)."""
