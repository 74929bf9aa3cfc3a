"""A key file without a state beside it: replaced if nothing was drawn with it, refused if something was."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from opendas.custody.ledger_entries import INFINITE, LedgerEntry
from opendas.custody.run_key import RunKey
from opendas.errors import PrivacyError
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.runs.context.workspace import Workspace


def entry(product: str, key: RunKey) -> LedgerEntry:
    return LedgerEntry(
        run_id=product,
        product=product,
        key_commitment=key.commitment(),
        input_tag="0" * 64,
        plan_digest="0" * 64,
        mechanism=Mechanism.DISCRETE_GAUSSIAN,
        loss=INFINITE if key.is_seeded else Fraction(1),
        relation=Neighbours.BOUNDED,
        protected_unit="person",
        version="0",
        seeded=key.is_seeded,
    )


@pytest.mark.parametrize("seed", [None, 5])
def test_a_key_that_was_never_used_is_replaced(tmp_path: Path, seed: int | None) -> None:
    """As after a kill between key and state, beside another product's run, perhaps of the same seed."""
    with Workspace(tmp_path / "out") as space:
        space.ledger.intend(entry("persons", space.new_key("persons", seed, None)))
        left = space.new_key("units", seed, None)
        again = space.new_key("units", seed, None)
        assert (again.commitment() == left.commitment()) == (seed is not None)
        assert RunKey.load(space.key_path("units")).commitment() == again.commitment()


def test_a_key_that_was_used_is_not(tmp_path: Path) -> None:
    with Workspace(tmp_path / "out") as space:
        key = space.new_key("persons", None, None)
        space.ledger.intend(entry("persons", key))
        with pytest.raises(PrivacyError, match="was used before"):
            space.new_key("persons", None, None)
        assert RunKey.load(space.key_path("persons")).commitment() == key.commitment()
