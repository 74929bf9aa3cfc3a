"""PH8_num: persons in households by tenure, the numerator of the average household size by tenure.

Derived from PH7 when private. The published non-private mode sums FINAL_POP over households instead.
"""

from __future__ import annotations

from dataclasses import replace

from opendas.phsafe.tables.declaration import Derived
from opendas.phsafe.tables.ph8_denom import TABLE as HOUSEHOLDS

__all__ = ["DERIVED"]

DERIVED = Derived(
    "PH8_num",
    "PH7",
    {2: (2, 3), 3: (4,)},
    truth=replace(HOUSEHOLDS, name="PH8_num", weight="final_pop"),
)
