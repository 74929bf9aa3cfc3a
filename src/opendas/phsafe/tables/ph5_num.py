"""PH5_num: persons in families by age, the numerator of the average family size: PH4 under another name."""

from __future__ import annotations

from opendas.phsafe.tables.declaration import Derived

__all__ = ["DERIVED"]

DERIVED = Derived("PH5_num", "PH4", {2: (2,), 3: (3,)})
