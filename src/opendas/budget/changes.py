"""Changes that touch records of more than one product of a census."""

from __future__ import annotations

from opendas.custody.ledger_entries import Change

__all__ = ["ADDRESS", "CENSUS_CHANGES", "HOUSING_UNIT", "PERSON"]

PERSON = "person"
HOUSING_UNIT = "housing unit"
ADDRESS = "address"
"""Protected unit of the household tables: the persons and the unit row of one address."""

# A replaced person record may empty one unit and fill another: two unit records flip, in opposite directions,
# which costs twice the loss of one (docs/proofs/composition.md, section 5).
CENSUS_CHANGES = (
    Change(
        "one person with the unit changes it induces",
        {PERSON: 1, HOUSING_UNIT: 2, ADDRESS: 1},
    ),
)
