"""Budgets: exact shares per geolevel and query group, presets, and the resulting noise."""
