"""Controlled rounding of a family: integers that keep the parent, the constraints, and the queries close.

The estimate x (C, n) of the children becomes floor(x) + y with y in {0, 1}, as in equation (7.7) of Abowd
et al. (2022), *The 2020 Census Disclosure Avoidance System TopDown Algorithm*. In each pass the L1 distance
of the pass's queries from their fractional targets is minimised, interpolated linearly between integers,
with the answers of earlier passes held. Where all rows form a laminar family this is a convex min-cost flow
and is solved exactly in integers (``docs/proofs/rounding.md``). Ties are broken by a public hash of child
and cell, so the result is a function of its arguments alone and not of the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from opendas.errors import EstimationError, InfeasibleFamily
from opendas.optimize import rounding_kernels as kernels
from opendas.optimize.laminar import check_laminar, stack_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["UNBOUNDED", "RoundingNames", "RoundingResult", "round_family"]

UNBOUNDED = np.iinfo(np.int64).max // 4
"""Upper bound of a group that has none."""


@dataclass(frozen=True, slots=True)
class RoundingResult:
    """A rounded family.

    Parameters
    ----------
    values : int64 array, (C, n), read-only
        Rounded estimate.
    objective : tuple of float
        For each pass, the sum over children and rows of |Q(x - values)| in counts, with x as snapped.
    method : str
        ``"flow"`` or ``"milp"``.
    """

    values: NDArray[np.int64]
    objective: tuple[float, ...]
    method: str

    def __post_init__(self) -> None:
        self.values.flags.writeable = False


@dataclass(frozen=True, slots=True)
class RoundingNames:
    """Names for error messages.

    Parameters
    ----------
    family : str
        Geocode of the parent.
    passes : tuple of tuple of str
        Query group of each row map.
    groups : tuple of str
        Constraint of each group.
    """

    family: str = "?"
    passes: tuple[tuple[str, ...], ...] = ()
    groups: tuple[str, ...] = ()


_NO_NAMES = RoundingNames()


def round_family(
    x: NDArray[np.float64],
    parent: NDArray[np.int64] | None,
    mask: NDArray[np.bool_],
    passes: Sequence[Sequence[NDArray[np.int32]]],
    groups: NDArray[np.bool_] | None,
    lower: NDArray[np.int64] | None,
    upper: NDArray[np.int64] | None,
    tie_keys: NDArray[np.uint64],
    *,
    cell_keys: NDArray[np.uint64] | None = None,
    names: RoundingNames = _NO_NAMES,
    milp: bool = False,
) -> RoundingResult:
    """Round the least-squares estimate of a family to integers.

    Parameters
    ----------
    x : float64 array, (C, n), >= 0
        Estimate in counts: C children, n cells. Values within 1e-6 of an integer become it; the rest is
        rounded to
        multiples of 2**-20, and what a column then lacks to its parent is spread over its fractional cells.
    parent : int64 array, (n,), or None
        Counts of the parent, which the children add up to. None for a root, whose total an equality group
        fixes.
    mask : bool array, (C, n)
        Cells that may be non-zero.
    passes : sequence of sequences of int32 array, (n,)
        For each pass its row maps: the row of each cell, -1 for none. A map named twice counts double.
    groups : bool array, (K, n), or None
        Cells of each constraint row.
    lower, upper : int64 array, (C, K), or None
        Bounds of each constraint row in each child, :data:`UNBOUNDED` for no upper bound.
    tie_keys : uint64 array, (C,)
        Public key of each child.
    cell_keys : uint64 array, (n,), optional
        Public key of each cell, its position by default.
    names : RoundingNames, optional
        Names for error messages.
    milp : bool, default False
        Where rows cross, solve a mixed-integer program instead of refusing.

    Returns
    -------
    RoundingResult
        The rounded values, the objective of each pass, and the method.

    Raises
    ------
    ConfigError
        If rows cross and ``milp`` is false.
    InfeasibleFamily
        If no rounding satisfies the groups; the error names those violated by the nearest one.
    EstimationError
        If the problem does not fit 64-bit integers.
    ValueError
        If shapes disagree, or the estimate is negative, outside its mask, or does not add up to the parent.

    Notes
    -----
    Abowd et al. (2022), equation (7.7). With ``h(c, S) = mix(mix(tie_keys[c]) ^ sum_{j in S}
    mix(cell_keys[j]))``
    shifted right by 24 bits (sums modulo 2**64, ``mix`` the output function of splitmix64 on key +
    increment), ties
    of the last pass are broken by the least sum of h(c, {j}) y[c, j] over cells, ties of earlier passes by
    the
    least sum of h(c, S) (Q y)[c, S] over the distinct rows S of the pass.
    """
    x, total, mask, groups, lower, upper, child_key, cell_key = _arguments(
        x, parent, mask, groups, lower, upper, tie_keys, cell_keys
    )
    n = x.shape[1]
    maps = [rows for one in passes for rows in one]
    rows = stack_rows(maps, groups, n)
    map_pass = np.repeat(np.arange(len(passes)), [len(one) for one in passes])
    status, where, values, quanta = kernels.round_passes(
        x, total, parent is not None, mask, rows.maps, map_pass, len(passes), rows.groups, lower, upper,
        child_key, cell_key,
    )  # fmt: skip
    if status == kernels.COLUMN_OFF:
        raise ValueError(f"family {names.family}: the estimate does not add up to the parent")
    if status == kernels.TOO_LARGE:
        raise EstimationError(
            f"family {names.family}: rounding it as one flow problem does not fit 64-bit integers. "
            "Split the family by a spine with smaller fan-out."
        )
    if status == kernels.CROSSING:
        held = rows._replace(maps=rows.maps[map_pass <= where])
        check_laminar(held, [name for one in names.passes for name in one], names.groups)
    _verify(values, parent, mask, groups, lower, upper, names, len(passes))
    return RoundingResult(values, tuple(float(q) / kernels.ONE for q in quanta), "flow")


def _arguments(
    x: NDArray[np.float64],
    parent: NDArray[np.int64] | None,
    mask: NDArray[np.bool_],
    groups: NDArray[np.bool_] | None,
    lower: NDArray[np.int64] | None,
    upper: NDArray[np.int64] | None,
    tie_keys: NDArray[np.uint64],
    cell_keys: NDArray[np.uint64] | None,
) -> tuple[NDArray[Any], ...]:
    """Check shapes and ranges; return contiguous arrays of the types the compiled code expects."""
    x = np.ascontiguousarray(x, dtype=np.float64)
    if x.ndim != 2 or mask.shape != x.shape:
        raise ValueError(f"estimate and mask must be one (C, n) shape, not {x.shape} and {mask.shape}")
    children, n = x.shape
    mask = np.ascontiguousarray(mask, dtype=np.bool_)
    k = 0 if groups is None else len(groups)
    groups = np.zeros((0, n), np.bool_) if groups is None else np.ascontiguousarray(groups, dtype=np.bool_)
    lower = (
        np.zeros((children, k), np.int64) if lower is None else np.ascontiguousarray(lower, dtype=np.int64)
    )
    if upper is None:
        upper = np.full((children, k), UNBOUNDED, np.int64)
    upper = np.minimum(upper, UNBOUNDED, dtype=np.int64)
    total = np.zeros(n, np.int64) if parent is None else np.ascontiguousarray(parent, dtype=np.int64)
    child_key = np.ascontiguousarray(tie_keys, dtype=np.uint64)
    cell_key = (
        np.arange(n, dtype=np.uint64) if cell_keys is None else np.ascontiguousarray(cell_keys, np.uint64)
    )
    shapes = (groups.shape, lower.shape, upper.shape, total.shape, child_key.shape, cell_key.shape)
    if shapes != ((k, n), (children, k), (children, k), (n,), (children,), (n,)):
        raise ValueError(f"groups, bounds, parent or keys do not fit an estimate of shape {x.shape}")
    if not np.all(x >= -kernels.SNAP) or np.any(x >= 2.0**40):
        raise ValueError("the estimate must be finite, non-negative and below 2**40")
    if np.any(x[~mask] > kernels.SNAP):
        raise ValueError("the estimate is positive in a cell that must be zero")
    return np.maximum(x, 0.0), total, mask, groups, lower, upper, child_key, cell_key


def _verify(
    values: NDArray[np.int64],
    parent: NDArray[np.int64] | None,
    mask: NDArray[np.bool_],
    groups: NDArray[np.bool_],
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    names: RoundingNames,
    step: int,
) -> None:
    """Check the rounded table against every constraint, in integers."""
    sums = values @ groups.T.astype(np.int64)
    bad = np.flatnonzero(((sums < lower) | (sums > upper)).any(axis=0))
    if len(bad):
        found = [names.groups[g] if g < len(names.groups) else f"group {g}" for g in bad]
        raise InfeasibleFamily(names.family, f"rounding, pass {step} of {step}", found)
    if (
        np.any(values[~mask])
        or np.any(values < 0)
        or (parent is not None and np.any(values.sum(axis=0) != parent))
    ):
        raise EstimationError(
            f"family {names.family}: the rounded table breaks its own constraints (a defect)"
        )
