"""The outline of a tree gives what the tree gives, geounit by geounit; an even tree is dealt out evenly."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mini import mini_frame, mini_product
from support.seeds import examples

from opendas.budget.allocation import Budget
from opendas.errors import GeographyError
from opendas.geography.bypass import bypass_general, bypass_only_children
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine
from opendas.gls.expected_error import ExpectedError
from opendas.gls.outline import Outline, covariances, even_outline, outline_of
from opendas.gls.variances import TreeLevel
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours

SHARES = (Fraction(1, 4), Fraction(1, 4), Fraction(1, 2))
QUERIES = {
    "region": {"total": Fraction(1, 4), "kind": Fraction(3, 4)},
    "town": {"kind * minor": Fraction(1, 2), "detailed": Fraction(1, 2)},
    "block": {"total": Fraction(1, 3), "detailed": Fraction(2, 3)},
}


def uneven_frame() -> Frame:
    codes = np.array(["000000", "000100", "000101", "010000", "010001", "010002", "010100"], dtype="S6")
    return Frame(codes, {"region": codes.astype("S2"), "town": codes.astype("S4")}, "block")


def plan_on(spine: Spine, mechanism: Mechanism, *, invariant: bool) -> MeasurementPlan:
    levels = dict(zip(("region", "town", "block"), SHARES, strict=True))
    budget = Budget(mechanism, Neighbours.BOUNDED, Fraction(2), levels, QUERIES)
    return MeasurementPlan(mini_product(invariant=invariant), spine, budget)


SPINES = {
    "standard": lambda frame: standard_spine(frame),
    "only children": lambda frame: bypass_only_children(standard_spine(frame), SHARES),
    "bypassed": lambda frame: bypass_general(standard_spine(frame), SHARES),
}


@pytest.mark.parametrize("frame", [mini_frame(), uneven_frame()], ids=["even", "uneven"])
@pytest.mark.parametrize("name", SPINES)
@pytest.mark.parametrize("invariant", [True, False])
def test_the_outline_gives_the_standard_errors_of_the_whole_tree(
    frame: Frame, name: str, invariant: bool
) -> None:
    expected = ExpectedError.build(
        plan_on(SPINES[name](frame), Mechanism.DISCRETE_GAUSSIAN, invariant=invariant)
    )
    outline = outline_of(expected.tree)
    found = covariances(outline, [level.information for level in expected.tree])
    for geolevel, place in zip(expected.spine.names, expected.place, strict=True):
        for query in ("total", "kind", "age", "kind * minor", "detailed"):
            rows = expected.rows(query)
            counts = outline.levels[place].geounits
            errors = np.sqrt(rows.variances(found[place]))
            weights = np.bincount(rows.of_row, minlength=len(rows))
            mean = float(counts @ errors @ weights) / (counts.sum() * len(rows.of_row))
            (whole,) = expected.summary(geolevel, [query])
            assert mean == pytest.approx(whole.mean_sd, rel=1e-9, abs=1e-12)
            assert float(errors.max()) == pytest.approx(whole.max_sd, rel=1e-9, abs=1e-12)


def as_tree(sizes: list[int]) -> list[TreeLevel]:
    """The even tree geounit by geounit: the first parents have one child more."""
    information = (
        ExpectedError.build(
            plan_on(standard_spine(mini_frame()), Mechanism.DISCRETE_GAUSSIAN, invariant=False)
        )
        .tree[0]
        .information
    )
    levels = [TreeLevel(np.zeros(sizes[0], dtype=np.int64), np.zeros(sizes[0], dtype=np.int64), information)]
    for above, size in pairwise(sizes):
        share, more = divmod(size, above)
        parent = np.repeat(np.arange(above), [share + 1] * more + [share] * (above - more))
        levels.append(TreeLevel(parent.astype(np.int64), np.zeros(size, dtype=np.int64), information))
    return levels


def described(outline: Outline) -> list[list[tuple[int, tuple[tuple[int, ...], ...]]]]:
    """Per level, how many geounits have subtrees of each shape; a shape is written out in full."""
    shapes: list[tuple[object, ...]] = [()] * len(outline.levels[-1].own)
    found = []
    for level in reversed(outline.levels):
        if level.children is not None:
            rows = np.asarray(level.children.todense(), dtype=int)
            shapes = [tuple(sorted((shapes[c], int(n)) for c, n in enumerate(row) if n)) for row in rows]
        counted: dict[object, int] = {}
        for kind, count in zip(level.subtree.tolist(), level.geounits.tolist(), strict=True):
            counted[shapes[kind]] = counted.get(shapes[kind], 0) + count
        found.append(sorted((count, shape) for shape, count in counted.items()))
    return found  # type: ignore[return-value]


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 25), min_size=1, max_size=5), st.integers(1, 4))
def test_an_even_tree_is_dealt_out_as_it_would_be_by_hand(growth: list[int], roots: int) -> None:
    sizes = [roots]
    for more in growth:
        sizes.append(sizes[-1] + more)
    outline = even_outline(sizes)
    assert [int(level.geounits.sum()) for level in outline.levels] == sizes
    assert described(outline) == described(outline_of(as_tree(sizes)))


@pytest.mark.parametrize("sizes", [[], [0, 3], [3, 2]])
def test_numbers_that_shrink_are_no_tree(sizes: list[int]) -> None:
    with pytest.raises(GeographyError):
        even_outline(sizes)
