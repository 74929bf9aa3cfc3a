"""Exact privacy arithmetic: fractions, neighbour relations, zCDP accounting and attacker bounds."""

from opendas.privacy.attacker import gaussian_power, loss_tail, posterior, zcdp_power_bound
from opendas.privacy.exact import canonical_json, format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours, noise_distribution
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
    "Account",
    "CurvePoint",
    "Mechanism",
    "Neighbours",
    "PureAccount",
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
    "zcdp_power_bound",
]
