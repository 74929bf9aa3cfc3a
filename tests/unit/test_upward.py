"""What is known at a cut, as plain arrays: the same to the last bit, in parts, in files and in between."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from support.random_tree import every, made

from opendas.engines.upward import BelowPart, kept_at_a_cut
from opendas.gls.upward import UpwardMessages, up_statistics, up_sweep

PARENTS = [[0], [0, 0, 0, 0], [0, 0, 1, 2, 2, 3], [0, 0, 1, 1, 2, 3, 4, 4, 5, 5, 5]]
OPTIONS = [{}, {"thin": True}, {"exact": ("total", 2)}, {"exact": ("total", 3)}, {"joint": 1}]


def same(one: UpwardMessages, other: UpwardMessages, start: int = 0) -> None:
    """Compare geounits with those of a longer run that begin at `start`."""
    here = slice(start, start + len(one))
    assert (one.level, one.first, one.last - one.first) == (other.level, other.first + start, len(one))
    mine, theirs = (
        (known.finite, known.infinite or ())
        for known in (one.precision.expanded(), other.precision.expanded())
    )
    for part, whole in zip(mine, theirs, strict=True):
        for a, b in zip(part, whole, strict=True):
            assert np.array_equal(a, b[here])
    for a, b in ((one.linear, other.linear), (one.exact_linear, other.exact_linear)):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert np.array_equal(a, b[here])
    assert np.array_equal(one.weights, other.weights[here])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("product", ["zeros", "zeros in the middle", "unequal recode"])
def test_what_is_kept_at_a_cut_loses_nothing(product: str, options: dict[str, object]) -> None:
    tree = made(product, PARENTS, 7, bypass=0.3, **options)
    model = tree.model
    statistics = up_sweep(model, tree.full).statistics
    for known in statistics[:-1]:
        part = BelowPart.of(known)
        same(part.within(model.domain), known)
        buffer = BytesIO()
        np.savez(buffer, **part.arrays())
        buffer.seek(0)
        with np.load(buffer, allow_pickle=False) as arrays:
            same(BelowPart.from_arrays(dict(arrays)).within(model.domain), known)
        for start in range(len(known)):
            for stop in range(start + 1, len(known) + 1):
                same(part.slice(start, stop).within(model.domain), known, start)
        pieces = [part.slice(i, i + 1) for i in range(len(known))]
        same(BelowPart.joined(pieces).within(model.domain), known)
        assert np.array_equal(BelowPart.joined(pieces).slice(0, len(known)).linear.values, part.linear.values)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_pass_goes_on_from_a_cut(options: dict[str, object]) -> None:
    """From what is kept of one level, everything above comes to the same bytes."""
    tree = made("zeros", PARENTS, 3, bypass=0.3, **options)
    model = tree.model
    statistics = up_sweep(model, tree.full).statistics
    for cut in (1, 2):
        kept = BelowPart.of(statistics[cut]).within(model.domain)
        above = {level: bounds for level, bounds in every(model).items() if level <= cut}
        for one, other in zip(up_statistics(model, above, tree.full, kept), statistics, strict=False):
            same(one, other)
        at_and_below = {level: bounds for level, bounds in every(model).items() if level >= cut}
        found = up_statistics(model, at_and_below, tree.full)
        same(found[0], statistics[cut])


def test_zeros_are_not_kept() -> None:
    tree = made("zeros", PARENTS, 3)
    model = tree.model
    known = up_sweep(model, tree.full).statistics[2]
    part = BelowPart.of(known)
    assert known.linear is not None
    allowed = model.levels[2].allowed(0, len(known))
    assert not part.linear.rows[~allowed].any()
    assert part.linear.values.size < known.linear.size
    kept, whole = part.precision.values, known.precision.stacks.finite
    assert sum(values.size for values in kept) < sum(stack.size for stack in whole)
    assert kept_at_a_cut(model) > 1000
