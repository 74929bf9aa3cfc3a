"""From the published tables of a block to the histograms that they imply.

Axes: ``b`` blocks, ``c`` cells of a table; histogram columns are (votingage, hispanic, cenrace).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import DataError
from opendas.files.pl94_layout import RACE_CELLS
from opendas.readers.columns.findings import FindingLog
from opendas.readers.pl94.segments import Cells

__all__ = [
    "AGE_BY_HISPANIC",
    "NURSING",
    "apportion",
    "check_tables",
    "people",
    "place_people",
]

# Splits a block's people between households and group quarters, deterministically and in integers.
#
# The redistricting data of 2020 say how many people live in each type of group quarters of a block (table
# P5),
# but not their age, origin or race. The rule here, described in docs/formats/readers.md, invents nothing
# else: it is exact in every published figure, and it has no minors in nursing facilities.
#
# Axes: ``b`` blocks, ``c`` cells of people (age, origin, race), ``k`` types 1 to 7.


NURSING = 3
"""Type of nursing facilities, which house no minors."""


def apportion(number: Ints, people: Ints) -> Ints:
    """Choose people in proportion to how many there are of each kind, by largest remainders.

    Each cell first gives the whole part of ``number * people / sum(people)``; what is still missing comes,
    one each, from the cells with the largest remainders, the lower cell first among equals (Hamilton's
    method). No cell gives more than it has.

    Parameters
    ----------
    number : int64 (b,)
        How many to choose; at most the people there are.
    people : int64 (b, c)
        Products of the two stay below 2**63.

    Returns
    -------
    int64 (b, c)
        Rows sum to `number`.
    """
    total = np.maximum(people.sum(axis=1, keepdims=True), 1)
    whole, remainder = np.divmod(number[:, None] * people, total)
    missing = number - whole.sum(axis=1)
    order = np.argsort(-remainder, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(people.shape[1]), order.shape), axis=1)
    return np.asarray(whole + (rank < missing[:, None]), dtype=np.int64)


def place_people(people: Ints, quarters: Ints, minors: npt.NDArray[np.bool_]) -> Ints:
    """Split people by household and type of group quarters.

    Nursing facilities choose first, among adults; then the types 1, 2, 4, 5, 6, 7 in turn, each among
    everybody who is left. Who remains lives in households.

    Parameters
    ----------
    people : int64 (b, c)
    quarters : int64 (b, 7)
        People in group quarters of types 1 to 7; together no more than `people`, and of type 3 no more than
        the adults.
    minors : bool (c,)
        Cells of people under 18.

    Returns
    -------
    int64 (b, 8, c)
        Sums over the second axis are `people`; row sums over cells of types 1 to 7 are `quarters`.
    """
    placed = np.zeros((len(people), 8, people.shape[1]), dtype=np.int64)
    left = people.copy()
    for kind in (NURSING, *(k for k in range(1, 8) if k != NURSING)):
        eligible = np.where(minors, 0, left) if kind == NURSING else left
        placed[:, kind] = apportion(quarters[:, kind - 1], eligible)
        left = left - placed[:, kind]
    placed[:, 0] = left
    return placed


AGE_BY_HISPANIC = (
    "under 18, not Hispanic",
    "under 18, Hispanic",
    "18 and over, not Hispanic",
    "18 and over, Hispanic",
)
"""Order of the first two axes of :func:`people`, flattened."""


def people(tables: Mapping[str, Cells]) -> Ints:
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
    implied: Ints,
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
