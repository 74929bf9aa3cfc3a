"""Why a family has no solution: the smallest set of constraints that its parent and its children cannot keep.

The parent's counts are estimates by then, so that whatever is named here may be published.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.constraints.conflicts import Atoms, Gathering, invariant_name
from opendas.constraints.table import JointTotal
from opendas.errors import ConstraintConflict, HeldConstraint, InfeasibleFamily
from opendas.topdown.model import Family, LevelRules

__all__ = ["explained", "family_conflict"]

WIDEST = 60_000
"""Children times groups of cells of a family that is taken apart."""


def explained(family: Family, rules: LevelRules, error: InfeasibleFamily) -> InfeasibleFamily:
    """Return the error with the smallest contradiction of the family and its values, where one is proved."""
    conflict = family_conflict(family, rules)
    return error if conflict is None else InfeasibleFamily(error.family, error.step, (), conflict)


def family_conflict(family: Family, rules: LevelRules) -> ConstraintConflict | None:
    """Return the smallest set of constraints of a family that no counts keep, or None.

    Parameters
    ----------
    family : Family
    rules : LevelRules

    Returns
    -------
    ConstraintConflict or None
        None also for a family of more than :data:`WIDEST` children times groups of cells.
    """
    held = family.constraints
    maps = [*rules.bound_cells, rules.possible, *(one.query.row_of_cell for one in held.invariants)]
    atoms = Atoms.of(maps, len(rules.possible))
    children, a = len(family.tie_keys), len(atoms)
    if children * a > WIDEST:
        return None
    gathered = Gathering(children * a)
    sets = [
        (name, np.flatnonzero(inside))
        for name, inside in zip(rules.bound_names, atoms.sets(rules.bound_cells), strict=True)
    ]
    bounds = len(sets)
    for invariant in held.invariants:
        rows = atoms.rows(invariant.query)
        sets += [
            (
                invariant_name(invariant.name, invariant.query, row).removeprefix("invariant "),
                rows.indices[rows.indptr[row] : rows.indptr[row + 1]],
            )
            for row in range(invariant.query.size)
        ]
    if family.parent is not None:
        _add_parent(gathered, family, atoms, sets)
    for child in range(children):
        where = _where(family, rules.geolevel, [child])
        answers = np.concatenate([one.answers[child] for one in held.invariants] or [np.zeros(0, np.int64)])
        for (name, inside), value in zip(sets[bounds:], answers.tolist(), strict=True):
            gathered.add(HeldConstraint(where, f"invariant {name}", "=", value), child * a + inside)
        for k, (name, inside) in enumerate(sets[:bounds]):
            low, high = int(held.lower[child, k]), int(held.upper[child, k])
            if low > 0:
                gathered.add(HeldConstraint(where, f"lower bound of {name}", ">=", low), child * a + inside)
            gathered.add(HeldConstraint(where, f"upper bound of {name}", "<=", high), child * a + inside)
    if held.joint is not None:
        _add_joint(gathered, family, held.joint, rules.geolevel, a)
    impossible = np.flatnonzero(~rules.possible[atoms.first])
    if len(impossible):
        columns = (np.arange(children)[:, None] * a + impossible).ravel()
        gathered.add(HeldConstraint("", "structural zeros", "=", 0), columns)
    return gathered.conflict()


def _where(family: Family, geolevel: str, children: list[int]) -> str:
    """Return some children in words: by geocode where it is known, else by place in the family."""
    shown = children[:3]
    if family.geocodes is None:
        names = ", ".join(f"child {child + 1}" for child in shown)
    else:
        codes = (bytes(family.geocodes[child]).decode("utf-8", "replace") for child in shown)
        names = f"{geolevel} {', '.join(codes)}"
    more = f" and {len(children) - len(shown)} more" if len(children) > len(shown) else ""
    return f"{names}{more}{' together' if len(children) > 1 else ''}"


def _add_parent(
    gathered: Gathering, family: Family, atoms: Atoms, sets: list[tuple[str, npt.NDArray[np.int64]]]
) -> None:
    """Add the parent's counts: in all, in each set that is constrained, and in each group of cells."""
    counts = np.zeros(len(atoms), dtype=np.int64)
    if family.parent is not None:
        np.add.at(counts, atoms.of_cell[family.support], family.parent)
    where = f"parent {family.label}"
    steps = np.arange(len(family.tie_keys))[:, None] * len(atoms)
    known: set[bytes] = set()
    every = np.arange(len(atoms))
    singles = [
        (
            "estimate of cells in " + (" and ".join(n for n, s in sets if atom in s) or "no set") + " only",
            [atom],
        )
        for atom in every.tolist()
    ]
    named = [("estimate in all", every), *((f"estimate of {name}", inside) for name, inside in sets)]
    for name, inside in [*named, *singles]:
        chosen = np.sort(np.asarray(inside, dtype=np.int64))
        if chosen.tobytes() not in known:
            known.add(chosen.tobytes())
            held = HeldConstraint(where, name, "=", int(counts[chosen].sum()))
            gathered.add(held, (steps + chosen).ravel())


def _add_joint(gathered: Gathering, family: Family, joint: JointTotal, geolevel: str, atoms: int) -> None:
    """Add totals that several children hold together."""
    for s, total in enumerate(joint.totals.tolist()):
        parts = np.flatnonzero(joint.group == s)
        where = _where(family, geolevel, parts.tolist())
        columns = (parts[:, None] * atoms + np.arange(atoms)).ravel()
        gathered.add(HeldConstraint(where, f"invariant {joint.name}", "=", total), columns)
