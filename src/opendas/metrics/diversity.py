"""Race and ethnicity groups, the Blau index, and errors by its quintiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from opendas.metrics.errors import LevelErrors
from opendas.schema.attributes import Schema
from opendas.schema.product import Product

__all__ = [
    "GROUPS",
    "BlauRow",
    "blau_index",
    "blau_rows",
    "group_of_cell",
    "has_groups",
    "quintile_classes",
]

_ALONE = ("white", "black", "aian", "asian", "nhpi", "sor")

GROUPS = ("hispanic", *(f"not_hispanic * {race}" for race in _ALONE), "not_hispanic * two or more")
"""The eight race and ethnicity groups of the TopDown paper, section 9 (before Table 13)."""


def has_groups(product: Product) -> bool:
    """Whether the product has the attributes that the groups are made of."""
    levels = {attribute.name: attribute.levels for attribute in product.schema.attributes}
    return "hispanic" in levels.get("hispanic", ()) and set(_ALONE) <= set(levels.get("cenrace", ()))


def group_of_cell(schema: Schema) -> npt.NDArray[np.int64]:
    """Return the race and ethnicity group of each cell, int64 (n,), as an index into :data:`GROUPS`."""
    codes = dict(zip(schema.names, schema.codes(np.arange(schema.size)), strict=True))
    races = schema.attribute("cenrace").levels
    of_race = np.array([1 + _ALONE.index(race) if race in _ALONE else len(GROUPS) - 1 for race in races])
    hispanic = schema.attribute("hispanic").levels.index("hispanic")
    return np.where(codes["hispanic"] == hispanic, 0, of_race[codes["cenrace"]]).astype(np.int64)


def group_counts(
    table: csr_array, schema: Schema, keep: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.int64]:
    """Sum a (g, n) table into the eight groups, int64 (g, 8), over the cells where `keep` is true."""
    group = group_of_cell(schema)
    ones = np.ones(len(group), dtype=np.int64) if keep is None else keep.astype(np.int64)
    projection = csr_array((ones, group, np.arange(len(group) + 1)), shape=(len(group), len(GROUPS)))
    return np.asarray((table @ projection).toarray(), dtype=np.int64)


def blau_index(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Heterogeneity of each row of counts: one minus the sum of squared shares; 0 for an empty row.

    Parameters
    ----------
    counts : int64 (g, k)

    Returns
    -------
    float64 (g,)
        Between 0 (all alike) and ``1 - 1/k``.

    Examples
    --------
    >>> blau_index(np.array([[5, 5], [7, 0], [0, 0]])).tolist()
    [0.5, 0.0, 0.0]
    """
    totals = counts.sum(axis=1)
    squares = (counts.astype(np.float64) ** 2).sum(axis=1)
    return np.asarray(
        1.0 - np.where(totals == 0, 1.0, squares / np.maximum(totals.astype(np.float64), 1.0) ** 2)
    )


def quintile_classes(index: npt.NDArray[np.float64]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Split geounits into quintiles; quintiles whose borders coincide are one class.

    Parameters
    ----------
    index : float64 (g,)

    Returns
    -------
    tuple of str
        Labels of the classes, for instance ``("1 and 2", "3", "4", "5")`` as in the paper's Table 13.
    int64 (g,)
        Class of each geounit. A geounit on a border belongs to the lower class.
    """
    edges = np.quantile(index, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), method="inverted_cdf")
    unique = np.unique(edges)
    class_of_unit = np.searchsorted(unique[1:-1], index, side="left").astype(np.int64)
    class_of_quintile = np.maximum(np.searchsorted(unique, edges[1:]) - 1, 0)
    classes = range(max(len(unique) - 1, 1))
    return tuple(_label(np.flatnonzero(class_of_quintile == c) + 1) for c in classes), class_of_unit


def _label(numbers: npt.NDArray[np.intp]) -> str:
    names = [str(number) for number in numbers]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


@dataclass(frozen=True, slots=True)
class BlauRow:
    """Signed error of the total in one class of geounits by their Blau index.

    Parameters
    ----------
    geolevel : str
    quintile : str
        ``"1"`` (most alike) to ``"5"``, or several that cannot be told apart.
    geounits : int
    mean_signed_error : float or None
    """

    geolevel: str
    quintile: str
    geounits: int
    mean_signed_error: float | None

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "geolevel": self.geolevel,
            "quintile": self.quintile,
            "geounits": self.geounits,
            "mean_signed_error": self.mean_signed_error,
        }


def blau_rows(levels: Iterable[LevelErrors], product: Product) -> tuple[BlauRow, ...]:
    """Signed error of the total by quintile of the true Blau index.

    Notes
    -----
    TopDown paper, section 9, Table 13.
    """
    rows: list[BlauRow] = []
    for level in levels:
        labels, class_of_unit = quintile_classes(blau_index(group_counts(level.truth, product.schema)))
        for number, label in enumerate(labels):
            errors = level.total_error[class_of_unit == number]
            mean = int(errors.sum()) / len(errors) if len(errors) else None
            rows.append(BlauRow(level.units.geolevel, label, len(errors), mean))
    return tuple(rows)
