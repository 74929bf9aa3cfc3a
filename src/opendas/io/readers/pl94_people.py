"""From the published tables of a block to the histograms that they imply.

Axes: ``b`` blocks, ``c`` cells of a table; histogram columns are (votingage, hispanic, cenrace).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from opendas.errors import DataError
from opendas.io.readers.findings import FindingLog
from opendas.io.readers.pl94_layout import RACE_CELLS
from opendas.io.readers.pl94_segments import Cells

__all__ = ["AGE_BY_HISPANIC", "check_tables", "people"]

Counts = npt.NDArray[np.int64]

AGE_BY_HISPANIC = (
    "under 18, not Hispanic",
    "under 18, Hispanic",
    "18 and over, not Hispanic",
    "18 and over, Hispanic",
)
"""Order of the first two axes of :func:`people`, flattened."""


def people(tables: Mapping[str, Cells]) -> Counts:
    """Return the counts by age, Hispanic origin and race that tables P1 to P4 imply.

    P1 counts everybody, P2 who is not Hispanic, P3 and P4 the same for people of voting age.

    Returns
    -------
    int64 (b, 4, 63)
        Second axis as in ``AGE_BY_HISPANIC``. Negative where the tables contradict each other.
    """
    p1, p2, p3, p4 = (tables[name][:, RACE_CELLS[name]].astype(np.int64) for name in ("P1", "P2", "P3", "P4"))
    return np.stack([p2 - p4, p1 - p2 - p3 + p4, p4, p3 - p4], axis=1)


def check_tables(
    tables: Mapping[str, Cells],
    implied: Counts,
    where: str,
    lines: npt.NDArray[np.int64],
    log: FindingLog,
) -> None:
    """Record every block whose tables contradict themselves or each other.

    Parameters
    ----------
    tables : mapping of table name to integers (b, c)
    implied : int64 (b, 4, 63)
        From :func:`people`.
    where : str
        ``archive!member`` of the header.
    lines : int64 (b,)
        Line of each block's record in the header.
    log : FindingLog
    """

    def add(wrong: npt.NDArray[np.bool_], field: str, rule: str) -> None:
        log.add_where(DataError, where, wrong, field, rule, lines=lines)

    for name, cells in RACE_CELLS.items():
        table = tables[name]
        races = table[:, cells].sum(axis=1)
        hispanic = table[:, 1].astype(np.int64) if name in ("P2", "P4") else 0
        rule = f"the cells of table {name} of this block do not add up to its total"
        add(table[:, 0] != races + hispanic, name, rule)
    for index, group in enumerate(AGE_BY_HISPANIC):
        rule = f"tables P1 to P4 of this block contradict each other: fewer than none {group}"
        add(np.asarray((implied[:, index] < 0).any(axis=1)), "P1-P4", rule)
    units = tables["H1"].astype(np.int64)
    add(
        units[:, 0] != units[:, 1] + units[:, 2], "H1", "occupied and vacant units do not add up to the total"
    )
