"""Contradictions that public bounds and declared invariants show by themselves, before anything is drawn.

What is found here is found without spending: no noise has been drawn, and only values that will be published
anyway are looked at.

Axes: ``g`` geounits of a level, ``B`` bounds, ``n`` cells.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.constraints.table import ConstraintTable, InvariantAnswers, LevelConstraints
from opendas.errors import InfeasibleFamily
from opendas.geography.spine import Spine
from opendas.products.product import Product

__all__ = ["check_feasible"]


def check_feasible(product: Product, spine: Spine, table: ConstraintTable) -> None:
    """Refuse constraints that no table of non-negative counts can satisfy.

    Looked at per geounit: bounds that ask for records where no cell is possible, and invariant answers
    outside what the bounds of one query group leave. Contradictions across geounits show when their family
    is estimated.

    Parameters
    ----------
    product : Product
    spine : Spine
    table : ConstraintTable

    Raises
    ------
    InfeasibleFamily
        Naming the first geounit and the constraints.
    """
    queries = [product.workload.canonical(bound.query) for bound in product.bounds]
    cells = table.bound_cells & table.possible
    for level, constraints in zip(spine.levels, table.levels, strict=True):
        empty = np.flatnonzero(~np.any(cells, axis=1))
        found = np.argwhere(constraints.lower[:, empty] > 0)
        if len(found):
            name = table.bound_names[int(empty[found[0][1]])]
            _refuse(level.geocodes[found[0][0]], f"lower bound of {name}")
        for invariant in constraints.invariants:
            for query in dict.fromkeys(queries):
                chosen = np.array([name == query for name in queries])
                _check_invariant(level.geocodes, constraints, invariant, query, cells, chosen, table.possible)


def _check_invariant(
    geocodes: npt.NDArray[np.bytes_],
    constraints: LevelConstraints,
    invariant: InvariantAnswers,
    query: str,
    cells: npt.NDArray[np.bool_],
    chosen: npt.NDArray[np.bool_],
    possible: npt.NDArray[np.bool_],
) -> None:
    """Compare each row of an invariant with the bounds of one query group, which are disjoint."""
    for row in range(invariant.query.size):
        inside = (invariant.query.row_of_cell == row) & possible
        answers = invariant.answers[:, row]
        contained = chosen & ~(cells & ~inside).any(axis=1)
        least = constraints.lower[:, contained].sum(axis=1)
        if (below := np.flatnonzero(answers < least)).size:
            _refuse(geocodes[below[0]], f"invariant {invariant.name}", f"lower bounds of {query}")
        touching = chosen & (cells & inside).any(axis=1)
        if not (inside & ~cells[touching].any(axis=0)).any():
            most = constraints.upper[:, touching].sum(axis=1)
            if (above := np.flatnonzero(answers > most)).size:
                _refuse(geocodes[above[0]], f"invariant {invariant.name}", f"upper bounds of {query}")


def _refuse(geocode: np.bytes_, *constraints: str) -> None:
    raise InfeasibleFamily(bytes(geocode).decode(), "constraints", constraints)
