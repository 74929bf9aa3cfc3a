"""Exact privacy arithmetic: fractions, relations, zero-concentrated accounting and the ledger."""

from opendas.privacy.entries import INFINITE, Change, LedgerEntry, Loss, Spent, total_spent
from opendas.privacy.exact import canonical_json, format_fraction, parse_fraction
from opendas.privacy.ledger import Ledger
from opendas.privacy.relations import Mechanism, Neighbours, noise_distribution
from opendas.privacy.tradeoff import gaussian_power, loss_tail, posterior, zcdp_power_bound
from opendas.privacy.zcdp import (
    Account,
    CurvePoint,
    PureAccount,
    delta_of,
    epsilon_bun_steinke,
    epsilon_cks,
    epsilon_curve,
)

__all__ = [
    "INFINITE",
    "Account",
    "Change",
    "CurvePoint",
    "Ledger",
    "LedgerEntry",
    "Loss",
    "Mechanism",
    "Neighbours",
    "PureAccount",
    "Spent",
    "canonical_json",
    "delta_of",
    "epsilon_bun_steinke",
    "epsilon_cks",
    "epsilon_curve",
    "format_fraction",
    "gaussian_power",
    "loss_tail",
    "noise_distribution",
    "parse_fraction",
    "posterior",
    "total_spent",
    "zcdp_power_bound",
]
