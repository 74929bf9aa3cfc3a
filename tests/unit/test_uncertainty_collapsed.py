"""A tree of which only the sizes are known is dealt out evenly."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.errors import GeographyError
from opendas.gls.collapsed import CollapsedTree


def as_tree(sizes: list[int]) -> CollapsedTree:
    """The even tree geounit by geounit: the first parents have one child more."""
    parents = [np.zeros(sizes[0], dtype=np.int64)]
    for above, size in pairwise(sizes):
        share, more = divmod(size, above)
        parents.append(np.repeat(np.arange(above), [share + 1] * more + [share] * (above - more)))
    return CollapsedTree.of(parents)


def described(tree: CollapsedTree) -> list[list[tuple[int, tuple[tuple[int, ...], ...]]]]:
    """Per level, how many geounits have subtrees of each shape; a shape is written out in full."""
    shapes: list[tuple[object, ...]] = [()] * len(tree.levels[-1].own)
    found = []
    for level in reversed(tree.levels):
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
    tree = CollapsedTree.even(sizes)
    assert [int(level.geounits.sum()) for level in tree.levels] == sizes
    assert described(tree) == described(as_tree(sizes))


@pytest.mark.parametrize("sizes", [[], [0, 3], [3, 2]])
def test_numbers_that_shrink_are_no_tree(sizes: list[int]) -> None:
    with pytest.raises(GeographyError):
        CollapsedTree.even(sizes)
