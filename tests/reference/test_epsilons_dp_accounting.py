"""Conversions against those of a peer library, stored with the script that made them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from support.each import each

from opendas.privacy.zcdp import epsilon_cks

TABLE = list(
    csv.DictReader(Path(__file__).with_name("epsilons_dp_accounting.csv").read_text("ascii").splitlines())
)


@each("row", TABLE)
def test_epsilon_agrees_with_dp_accounting(row: dict[str, str]) -> None:
    peer, ours = float(row["epsilon"]), epsilon_cks(row["rho"], row["delta"])
    # The peer searches a list of orders, so it can only be above the optimum, apart from its rounding.
    assert ours <= peer * (1 + 1e-9) + 1e-15
    assert ours == pytest.approx(peer, rel=2e-6, abs=1e-15)
