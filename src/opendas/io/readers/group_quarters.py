"""Splits a block's people between households and group quarters, deterministically and in integers.

The redistricting data of 2020 say how many people live in each type of group quarters of a block (table P5),
but not their age, origin or race. The rule here, described in docs/formats/readers.md, invents nothing
else: it is exact in every published figure, and it has no minors in nursing facilities.

Axes: ``b`` blocks, ``c`` cells of people (age, origin, race), ``k`` types 1 to 7.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["NURSING", "apportion", "place_people"]

Counts = npt.NDArray[np.int64]

NURSING = 3
"""Type of nursing facilities, which house no minors."""


def apportion(number: Counts, people: Counts) -> Counts:
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


def place_people(people: Counts, quarters: Counts, minors: npt.NDArray[np.bool_]) -> Counts:
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
