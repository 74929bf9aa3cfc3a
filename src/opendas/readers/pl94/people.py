"""From the published tables of a block to the histograms that they imply, and to where people live.

The redistricting data of 2010 have no table of group quarters. Blocks with people but no occupied unit become
one group-quarters facility of type 7; everybody else lives in a household.

Those of 2020 say how many people live in each type of group quarters of a block (table P5), but not their
age, origin or race. Every type with someone in it becomes one facility; its people are chosen by a rule,
described in docs/formats/readers.md, that is deterministic, in integers, and invents nothing else: it is
exact in every published figure, and has no minors in nursing facilities.

Axes: ``b`` blocks, ``c`` cells of a table, or of people (votingage, hispanic, cenrace); ``k`` types 1 to 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Ints
from opendas.errors import DataError
from opendas.files.pl94_layout import P5_TYPES, RACE_CELLS
from opendas.geography.frame import GQ_COLUMNS
from opendas.readers.columns.findings import FindingLog
from opendas.readers.pl94.header import Header
from opendas.readers.pl94.segments import Cells
from opendas.schema.pl94 import HHGQ_LEVELS

Entries = tuple[Ints, npt.NDArray[np.int32], Ints]
"""(block, cell, count) triples, one array each."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Blocks:
    """Block records of one state. Confidential."""

    header: Header
    rows: Ints  # (b,): positions of the blocks among the header's records
    tables: dict[str, Cells]  # table name -> (b, cells)


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

    Returns (b, 4, 63): second axis as in ``AGE_BY_HISPANIC``. Negative where the tables contradict each
    other.
    """
    p1, p2, p3, p4 = (tables[name][:, RACE_CELLS[name]].astype(np.int64) for name in ("P1", "P2", "P3", "P4"))
    return np.stack([p2 - p4, p1 - p2 - p3 + p4, p4, p3 - p4], axis=1)


def check_tables(
    tables: Mapping[str, Cells],
    implied: Ints,
    where: str,
    lines: Ints,
    log: FindingLog,
) -> None:
    """Record every block whose tables contradict themselves or each other.

    - `tables`, table name -> (b, c).
    - `implied` (b, 4, 63): from :func:`people`.
    - `lines` (b,): line of each block's record in the header.
    """

    def add(wrong: Bools, field: str, rule: str) -> None:
        log.add_where(DataError, where, wrong, field, rule, lines=lines)

    for name, cells in RACE_CELLS.items():
        table = tables[name]
        races = table[:, cells].sum(axis=1)
        hispanic = table[:, 1].astype(np.int64) if name in ("P2", "P4") else 0
        rule = f"the cells of table {name} of this block do not add up to its total"
        add(table[:, 0] != races + hispanic, name, rule)
    for index, group in enumerate(AGE_BY_HISPANIC):
        rule = (
            "tables P1 to P4 of this block contradict each other: they imply a negative number of people "
            f"{group}"
        )
        add(np.asarray((implied[:, index] < 0).any(axis=1)), "P1-P4", rule)
    units = tables["H1"].astype(np.int64)
    wrong = units[:, 0] != units[:, 1] + units[:, 2]
    add(wrong, "H1", "occupied and vacant units do not add up to the total")


NURSING = 3
"""Type of nursing facilities, which house no minors."""


def apportion(number: Ints, people: Ints) -> Ints:
    """Choose people in proportion to how many there are of each kind, by largest remainders.

    Each cell first gives the whole part of ``number * people / sum(people)``; what is still missing comes,
    one each, from the cells with the largest remainders, the lower cell first among equals (Hamilton's
    method). No cell gives more than it has.

    - `number` (b,): how many to choose; at most the people there are.
    - `people` (b, c): products of the two stay below 2**63.
    - Returns (b, c): rows sum to `number`.
    """
    total = np.maximum(people.sum(axis=1, keepdims=True), 1)
    whole, remainder = np.divmod(number[:, None] * people, total)
    missing = number - whole.sum(axis=1)
    order = np.argsort(-remainder, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(people.shape[1]), order.shape), axis=1)
    return np.asarray(whole + (rank < missing[:, None]), dtype=np.int64)


def place_people(people: Ints, quarters: Ints, minors: Bools) -> Ints:
    """Split people by household and type of group quarters.

    Nursing facilities choose first, among adults; then the types 1, 2, 4, 5, 6, 7 in turn, each among
    everybody who is left. Who remains lives in households.

    - `people` (b, c).
    - `quarters` (b, 7): people in group quarters of types 1 to 7; together no more than `people`, and of type
      3 no more than the adults.
    - `minors` (c,): cells of people under 18.
    - Returns (b, 8, c): sums over the second axis are `people`; row sums over cells of types 1 to 7 are
      `quarters`.
    """
    placed = np.zeros((len(people), 8, people.shape[1]), dtype=np.int64)
    left = people.copy()
    for kind in (NURSING, *(k for k in range(1, 8) if k != NURSING)):
        eligible = np.where(minors, 0, left) if kind == NURSING else left
        placed[:, kind] = apportion(quarters[:, kind - 1], eligible)
        left = left - placed[:, kind]
    placed[:, 0] = left
    return placed


_MAX_PEOPLE = 1 << 31  # so that products of two counts fit 64 bits


def _group_quarters_only(blocks: Blocks) -> Bools:
    """Return bool (b,): people, but no occupied unit."""
    return np.asarray((blocks.tables["P1"][:, 0] > 0) & (blocks.tables["H1"][:, 1] == 0))


def facilities_2010(blocks: Blocks) -> Ints:
    """Return int64 (b, 7): one facility of type 7 where people live but no unit is occupied."""
    facilities = np.zeros((len(blocks.rows), len(GQ_COLUMNS)), dtype=np.int64)
    facilities[:, -1] = _group_quarters_only(blocks)
    return facilities


def entries_2010(blocks: Blocks, part: slice, implied: Ints, log: FindingLog) -> Entries:
    """Return the entries of a slice of the blocks: everybody in a household, or in the facility."""
    flat = implied.reshape(len(implied), -1)
    hhgq = np.where(_group_quarters_only(blocks)[part], len(HHGQ_LEVELS) - 1, 0)
    rows, columns = np.nonzero(flat)
    cells = hhgq[rows] * flat.shape[1] + columns
    return rows.astype(np.int64), cells.astype(np.int32), flat[rows, columns]


def _quarters(blocks: Blocks) -> Ints:
    """Return int64 (b, 7): people in group quarters of types 1 to 7."""
    return blocks.tables["P5"][:, np.array(P5_TYPES) - 1].astype(np.int64)


def facilities_2020(blocks: Blocks) -> Ints:
    """Return int64 (b, 7): one facility of each type that houses someone."""
    return (_quarters(blocks) > 0).astype(np.int64)


def entries_2020(blocks: Blocks, part: slice, implied: Ints, log: FindingLog) -> Entries:
    """Return the entries of a slice of the blocks, group quarters filled by :func:`place_people`."""
    quarters = _quarters(blocks)[part]
    flat = implied.reshape(len(implied), -1)
    if not _check_p5(blocks, part, implied, quarters, log):
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing.astype(np.int32), nothing
    minors = np.repeat([True, True, False, False], implied.shape[2])
    with_quarters = np.asarray(quarters.any(axis=1))
    rows, cells = np.nonzero(np.where(with_quarters[:, None], 0, flat))
    mixed = np.flatnonzero(with_quarters)
    placed = place_people(flat[mixed], quarters[mixed], minors)
    placed = placed.reshape(len(mixed), placed.shape[1] * placed.shape[2])
    more_rows, more_cells = np.nonzero(placed)
    return (
        np.concatenate([rows, mixed[more_rows]]).astype(np.int64),
        np.concatenate([cells, more_cells]).astype(np.int32),
        np.concatenate([flat[rows, cells], placed[more_rows, more_cells]]),
    )


def _check_p5(blocks: Blocks, part: slice, implied: Ints, quarters: Ints, log: FindingLog) -> bool:
    """Record every block whose table P5 contradicts itself or the others; return whether there is none."""
    lines = blocks.header.lines[blocks.rows[part]]
    p5 = blocks.tables["P5"][part]
    housing = blocks.tables["H1"][part, 0]
    everybody = blocks.tables["P1"][part, 0].astype(np.int64)
    adults = implied[:, 2:].sum(axis=(1, 2))
    inside = quarters.sum(axis=1)
    before = len(log)

    def add(wrong: Bools, rule: str) -> None:
        log.add_where(DataError, blocks.header.where, wrong, "P5", rule, lines=lines)

    subtotals = (p5[:, 1] == p5[:, 2:6].sum(axis=1)) & (p5[:, 6] == p5[:, 7:].sum(axis=1))
    add(~subtotals | (p5[:, 0] != inside), "the cells of table P5 of this block do not add up to its totals")
    add(inside > everybody, "table P5 of this block counts more people in group quarters than live there")
    rule = "table P5 of this block counts more people in nursing facilities than adults live there"
    add(quarters[:, NURSING - 1] > adults, rule)
    add((inside < everybody) & (housing == 0), "people live in households here, but there is no housing unit")
    add(everybody >= _MAX_PEOPLE, f"expected fewer than {_MAX_PEOPLE} people in a block")
    return len(log) == before
