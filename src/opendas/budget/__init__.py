"""Budgets: exact shares per geolevel and query group, presets, and the resulting noise."""

from opendas.budget.allocation import Budget
from opendas.budget.plan import NoiseRow, attribute_rho, invariant_shares, plan_rows, within_rho
from opendas.budget.presets import Preset, preset, preset_names
from opendas.budget.resolve import BudgetSpec, resolve_budget

__all__ = [
    "Budget",
    "BudgetSpec",
    "NoiseRow",
    "Preset",
    "attribute_rho",
    "invariant_shares",
    "plan_rows",
    "preset",
    "preset_names",
    "resolve_budget",
    "within_rho",
]
