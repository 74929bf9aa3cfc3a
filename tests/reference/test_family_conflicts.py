"""Contradictions of one family against brute force over all tables of its children."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from support.seeds import seeds

from opendas.constraints.table import InvariantAnswers, JointTotal, LevelConstraints
from opendas.errors import InfeasibleFamily
from opendas.measurement.family import FamilyMeasurement
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.query_groups import Workload
from opendas.topdown.family import estimate_family, explained, family_conflict
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import Family

SCHEMA = Schema((Attribute("x", ("x0", "x1")), Attribute("y", ("y0", "y1"))))
GROUPS = Workload(SCHEMA)
TOP = 4
EVERY = np.array(list(itertools.product(range(TOP), repeat=4)))


def rules(possible: np.ndarray) -> LevelRules:
    """Bounds on x1 and y1, which cross."""
    cells = np.array([[False, False, True, True], [False, True, False, True]])
    return LevelRules("town", ("x=x1 by first", "y=y1 by second"), cells, possible, ((),), ())


def random_family(seed: int) -> tuple[Family, LevelRules]:
    """Two children of small counts, with or without a parent, an invariant or a common total."""
    rng = np.random.default_rng(seed)
    possible = np.array([True, True, True, rng.random() < 0.8])
    truth = rng.integers(0, 3, (2, 4)) * possible
    lower = rng.integers(0, 3, (2, 2)) * (rng.random((2, 2)) < 0.3)
    upper = np.maximum(lower, rng.integers(0, 5, (2, 2)))
    invariants = ()
    if rng.random() < 0.6:
        query = GROUPS.group(str(rng.choice(["total", "x", "y"])))
        answers = np.maximum(query.answers(truth) + rng.integers(-1, 2), 0)
        invariants = (InvariantAnswers(f"{query.name}@town", query, answers),)
    joint = None
    if not invariants:
        total = np.array([truth.sum() + rng.integers(-1, 2)])
        joint = JointTotal("total@town", np.zeros(2, np.int32), np.maximum(total, 0))
    parent = truth.sum(axis=0)
    support = np.flatnonzero(parent).astype(np.int32)
    return (
        Family(
            "R",
            support,
            parent[support],
            LevelConstraints(lower, upper, invariants, joint),
            np.arange(2, dtype=np.uint64),
            np.array([b"R1", b"R2"]),
        ),
        rules(possible),
    )


def some_table_exists(family: Family, rule: LevelRules) -> bool:
    """Look at every table of the first child; the second is what the parent leaves."""
    parent = np.zeros(4, np.int64)
    parent[family.support] = family.parent
    first = np.array(list(itertools.product(*(range(int(count) + 1) for count in parent))))
    tables = np.stack([first, parent - first], axis=1)
    held = family.constraints
    good = ~tables[:, :, ~rule.possible].any(axis=(1, 2))
    sums = tables @ rule.bound_cells.T.astype(np.int64)
    good &= ((sums >= held.lower) & (sums <= held.upper)).all(axis=(1, 2))
    for invariant in held.invariants:
        good &= (invariant.query.answers(tables) == invariant.answers).all(axis=(1, 2))
    if held.joint is not None:
        good &= tables.sum(axis=(1, 2)) == held.joint.totals[0]
    return bool(good.any())


@pytest.mark.parametrize("seed", seeds(80))
def test_a_conflict_is_told_where_no_table_exists(seed: int) -> None:
    family, rule = random_family(seed)
    found = family_conflict(family, rule)
    assert (found is None) == some_table_exists(family, rule)
    if found is not None:
        assert found.smallest


def test_both_happen() -> None:
    assert {some_table_exists(*random_family(seed)) for seed in range(80)} == {True, False}


@pytest.mark.parametrize("records", [20, 20_000_000, 1_000_000_000])
@pytest.mark.parametrize("cells", [1, 3])
def test_one_record_too_many_is_told_beside_any_number_of_others(records: int, cells: int) -> None:
    # From ten million on it was rounding to the solvers: no solution without a reason, or a traceback.
    parent = np.array([records, 7, 7])[:cells]
    total, detailed = GROUPS.group("total"), GROUPS.group("x * y")
    half = int(parent.sum()) // 2
    answers = np.array([[half], [int(parent.sum()) - half + 1]])
    bounds = np.zeros((2, 2), np.int64)
    held = LevelConstraints(bounds, bounds + 2 * records, (InvariantAnswers("total@town", total, answers),))
    family = Family("R", np.arange(cells, dtype=np.int32), parent, held, np.arange(2, dtype=np.uint64))
    passes = ((("x * y", detailed.row_of_cell),),)
    rule = replace(rules(np.ones(4, bool)), least_squares=(), rounder=passes)
    none = FamilyMeasurement((), np.ones(2))
    with pytest.raises(InfeasibleFamily, match="total@town") as caught:
        estimate_family(family, rule, none)
    assert caught.value.conflict is not None


def test_children_that_need_more_than_their_parent_has() -> None:
    """Two and two in a group of cells of which the parent has three."""
    family = Family(
        "R",
        np.array([0, 2], np.int32),
        np.array([9, 3]),
        LevelConstraints(np.array([[2, 0], [2, 0]]), np.full((2, 2), 99), ()),
        np.arange(2, dtype=np.uint64),
        np.array([b"R1", b"R2"]),
    )
    error = explained(family, rules(np.ones(4, bool)), InfeasibleFamily("R", "least squares"))
    assert error.constraints == (
        "parent R: estimate of x=x1 by first = 3",
        "town R1: lower bound of x=x1 by first >= 2",
        "town R2: lower bound of x=x1 by first >= 2",
    )
    assert "no smaller set does" in str(error)
    assert "at least 4 records, with room for at most 3" in str(error)
    assert error.step == "least squares"


def test_a_family_that_can_be_estimated_keeps_its_error() -> None:
    """What the solver says stands where no contradiction is proved."""
    family = Family(
        "R",
        np.array([0], np.int32),
        np.array([9]),
        LevelConstraints(np.zeros((2, 2), np.int64), np.full((2, 2), 99), ()),
        np.arange(2, dtype=np.uint64),
    )
    error = InfeasibleFamily("R", "rounding", ("held total",))
    assert explained(family, rules(np.ones(4, bool)), error) is error


def test_the_error_travels_between_processes() -> None:
    family, rule = next(
        made for made in (random_family(seed) for seed in range(80)) if not some_table_exists(*made)
    )
    error = explained(family, rule, InfeasibleFamily("R", "least squares"))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.family, again.constraints, again.conflict) == ("R", error.constraints, error.conflict)
