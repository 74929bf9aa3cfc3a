"""Bypassing against a literal twin: nodes that point to nodes, Algorithm 3 word by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from support.random_land import random_frame
from support.seeds import seeds
from support.spine_shares import multiple

from opendas.errors import BudgetError, GeographyError
from opendas.geography.bypass import LARGEST_FAMILY, bypass_general, bypass_only_children
from opendas.geography.recipe import Recipe, SpineStep, build_spine
from opendas.geography.spine import Shares, Spine, SpineLevel

F = Fraction
ZERO = F(0)
SEEDS = seeds(25)


@dataclass
class Node:
    share: Fraction
    code: str
    children: list[Node] = field(default_factory=list)


def tree_of(spine: Spine, level_shares: Sequence[Fraction]) -> list[Node]:
    """Return the roots of the same tree as nodes."""
    above: list[Node] = []
    roots: list[Node] = []
    for number, level in enumerate(spine.levels):
        here = [
            Node(level_shares[number] * multiple(spine, number, i), code.decode())
            for i, code in enumerate(level.geocodes)
        ]
        for node, parent in zip(here, level.parent.tolist(), strict=True):
            (above[parent].children if number else roots).append(node)
        above = here
    return roots


def at_depth(roots: list[Node], depth: int) -> list[Node]:
    return roots if depth == 0 else [c for node in at_depth(roots, depth - 1) for c in node.children]


def flat(roots: list[Node], depth: int) -> list[list[tuple[int, Fraction]]]:
    """Return, level by level, each node's number of children and share."""
    return [[(len(node.children), node.share) for node in at_depth(roots, d)] for d in range(depth)]


def literal_only_children(roots: list[Node], level_shares: Sequence[Fraction]) -> None:
    for depth in reversed(range(len(level_shares) - 1)):
        for node in at_depth(roots, depth):
            if len(node.children) == 1 and level_shares[depth] > 0:
                node.share, node.children[0].share = node.share + node.children[0].share, F(0)


def literal_general(
    roots: list[Node], level_shares: Sequence[Fraction], top: int, largest_family: int
) -> None:
    """Put one node per child with both shares in place of a parent; the child keeps none."""
    for depth in reversed(range(len(level_shares) - 1)):
        if not level_shares[depth]:
            continue
        for siblings in [roots] if depth == 0 else [node.children for node in at_depth(roots, depth - 1)]:
            for node in list(siblings):
                c = len(node.children)
                allowed = (
                    node.share > 0 and 2 * min(child.share for child in node.children) >= (c - 1) * node.share
                )
                if not allowed:
                    continue
                if c == 1:
                    node.share, node.children[0].share = node.share + node.children[0].share, F(0)
                elif depth >= top and len(siblings) - 1 + c <= largest_family:
                    place = next(i for i, other in enumerate(siblings) if other is node)
                    siblings[place : place + 1] = [
                        Node(node.share + child.share, child.code, [child]) for child in node.children
                    ]
                    for child in node.children:
                        child.share = F(0)


def leaf_sums(roots: list[Node], above: Fraction = ZERO) -> list[Fraction]:
    out = []
    for node in roots:
        total = above + node.share
        out += leaf_sums(node.children, total) if node.children else [total]
    return out


def random_spine(seed: int, *, shared_codes: bool = False) -> tuple[Spine, list[Fraction]]:
    """A tree with one to three roots and many only children; level shares of small numbers, some zero."""
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(2, 7))
    levels, width = [], int(rng.integers(1, 4))
    parent = np.zeros(width, dtype=np.int64)
    for number in range(depth):
        prefix = "" if shared_codes else f"{number}-"
        codes = np.array([f"{prefix}{i:04d}" for i in range(width)], dtype="S8")
        levels.append(SpineLevel(f"level{number}", codes, parent))
        children = rng.choice([1, 1, 2, 3, 4], size=width)
        parent = np.repeat(np.arange(width), children)
        width = len(parent)
    weights = rng.integers(0, 5, depth)
    weights[int(rng.integers(depth))] += 1
    shares = [F(int(w), int(weights.sum())) for w in weights]
    order = np.arange(len(levels[-1]), dtype=np.int64)
    return Spine(tuple(levels), order, (None,) * depth), shares


def check_valid(spine: Spine, shares: Sequence[Fraction]) -> None:
    for number, level in enumerate(spine.levels):
        assert len(set(level.geocodes.tolist())) == len(level)
        if number:
            assert np.array_equal(np.unique(level.parent), np.arange(len(spine.levels[number - 1])))
    assert set(leaf_sums(tree_of(spine, shares))) == {F(1)}
    spine.check_paths(shares)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_children_give_their_share_to_their_parent(seed: int) -> None:
    spine, shares = random_spine(seed)
    roots = tree_of(spine, shares)
    literal_only_children(roots, shares)
    found = bypass_only_children(spine, shares)
    depth = len(shares)
    assert flat(tree_of(found, shares), depth) == flat(roots, depth)
    check_valid(found, shares)
    # Nothing but shares changes.
    for level, before in zip(found.levels, spine.levels, strict=True):
        assert np.array_equal(level.geocodes, before.geocodes)
        assert np.array_equal(level.parent, before.parent)
    assert bypass_only_children(found, shares).digest() == found.digest(), "one pass is enough"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shared_codes", [False, True])
def test_the_general_rule_is_algorithm_3(seed: int, shared_codes: bool) -> None:
    spine, shares = random_spine(seed, shared_codes=shared_codes)
    depth = len(shares)
    for top in range(1, depth):
        for largest_family in (2, 3, 5, LARGEST_FAMILY):
            roots = tree_of(spine, shares)
            literal_general(roots, shares, top, largest_family)
            found = bypass_general(spine, shares, top=top, largest_family=largest_family)
            assert flat(tree_of(found, shares), depth) == flat(roots, depth)
            check_valid(found, shares)
            assert found.leaf.geocodes.tolist() == spine.leaf.geocodes.tolist()
            for level, before in zip(found.levels[:top], spine.levels[:top], strict=True):
                assert np.array_equal(level.geocodes, before.geocodes), "geounits above top stay"
            again = bypass_general(found, shares, top=top, largest_family=largest_family)
            assert again.digest() == found.digest(), "one pass is enough"


@pytest.mark.parametrize("seed", seeds(20))
def test_the_general_rule_contains_the_gaussian_one(seed: int) -> None:
    spine, shares = random_spine(seed)
    alone = bypass_only_children(spine, shares)
    general = bypass_general(spine, shares, top=len(shares), largest_family=2)
    for number in range(len(shares)):
        assert alone.shares[number] == general.shares[number]


def family(child: Fraction, children: int) -> tuple[Spine, list[Fraction]]:
    """A root without budget, one parent and its children."""
    spine = Spine(
        (
            SpineLevel("root", np.array([b"r"]), np.zeros(1, dtype=np.int64)),
            SpineLevel("parent", np.array([b"p"]), np.zeros(1, dtype=np.int64)),
            SpineLevel(
                "child", np.array([f"c{i}".encode() for i in range(children)]), np.zeros(children, int)
            ),
        ),
        np.arange(children),
        (None, None, None),
    )
    return spine, [F(0), 1 - child, child]


@pytest.mark.parametrize("children", range(2, 7))
def test_the_threshold_of_theorem_2_is_met_with_equality(children: int) -> None:
    """2 gamma' = (c - 1) gamma is enough, and anything less is not."""
    child = F(children - 1, children + 1)
    at = bypass_general(*family(child, children))
    assert len(at.levels[1]) == children
    assert multiple(at, 1, 0) * (1 - child) == 1
    below = bypass_general(*family(child - F(1, 10**9), children))
    assert len(below.levels[1]) == 1
    assert below.shares == (None, None, None)


def test_equal_shares_allow_three_children_and_no_more() -> None:
    # The paper: with equal proportions accuracy improves for three children or fewer.
    for children in range(1, 7):
        found = bypass_general(*family(F(1, 2), children))
        assert (len(found.levels[1]) == children) == (children <= 3)


def test_the_largest_family_counts_siblings() -> None:
    # 149 siblings and 2 children: 151 children of one grandparent.
    def county(parents: int) -> Spine:
        levels = (
            SpineLevel("county", np.array([b"c"]), np.zeros(1, dtype=np.int64)),
            SpineLevel("tract", np.array([f"t{i}" for i in range(parents)], "S5"), np.zeros(parents, int)),
            SpineLevel(
                "group", np.array([f"g{i}" for i in range(parents + 1)], "S5"),
                np.array([0, 0, *range(1, parents)]),
            ),
            SpineLevel("block", np.array([f"b{i}" for i in range(2 * parents + 2)], "S5"),
                       np.repeat(np.arange(parents + 1), 2)),
        )  # fmt: skip
        return Spine(levels, np.arange(2 * parents + 2), (None,) * 4)

    shares = [F(1, 100), F(48, 100), F(50, 100), F(1, 100)]
    assert len(bypass_general(county(149), shares).levels[1]) == 150
    assert len(bypass_general(county(150), shares).levels[1]) == 150
    assert len(bypass_general(county(150), shares, largest_family=151).levels[1]) == 151


@pytest.mark.parametrize("rule", [bypass_only_children, bypass_general])
def test_a_chain_gives_everything_to_its_top(rule: object) -> None:
    zero = np.zeros(1, dtype=np.int64)
    spine = Spine(
        tuple(SpineLevel(f"l{i}", np.array([f"{i}".encode()]), zero) for i in range(5)), zero, (None,) * 5
    )
    shares = [F(1, 5)] * 5
    found = rule(spine, shares)  # type: ignore[operator]
    assert [multiple(found, i, 0) * shares[i] for i in range(5)] == [1, 0, 0, 0, 0]
    # A level without budget has no query groups: what is below stays there.
    shares = [F(0), F(1, 2), F(0), F(1, 4), F(1, 4)]
    found = rule(spine, shares)  # type: ignore[operator]
    assert [multiple(found, i, 0) * shares[i] for i in range(5)] == [0, F(1, 2), 0, F(1, 2), 0]


@pytest.mark.parametrize("rule", [bypass_only_children, bypass_general])
@pytest.mark.parametrize("shares", [[F(1, 2), F(1, 2), F(1, 2)], [F(1, 4)] * 3])
def test_shares_that_do_not_sum_to_one_are_refused(rule: object, shares: list[Fraction]) -> None:
    spine, _ = family(F(1, 2), 3)
    with pytest.raises(BudgetError, match=r"path to leaf c0 sum to (3/2|3/4), not to 1"):
        rule(spine, shares)  # type: ignore[operator]


def test_a_root_is_never_replaced() -> None:
    with pytest.raises(BudgetError, match="a root cannot be replaced"):
        bypass_general(*family(F(1, 2), 3), top=0)


@pytest.mark.parametrize("seed", seeds(15))
def test_divided_states(seed: int) -> None:
    frame = random_frame(seed, root="us" if seed % 2 else "state")
    spine = build_spine(frame, Recipe((SpineStep("aian"), SpineStep("block_groups"))), lambda made: made)
    shares = [F(1, len(spine.levels))] * len(spine.levels)
    place = spine.index("state")
    for found in (bypass_only_children(spine, shares), bypass_general(spine, shares, top=place + 1)):
        check_valid(found, shares)
        level = found.levels[place]
        assert level.whole is not None
        assert spine.levels[place].whole is not None
        assert np.array_equal(level.whole, spine.levels[place].whole)
        assert np.array_equal(level.geocodes, spine.levels[place].geocodes)
    # Without an invariant above, parts may be replaced: then no total is theirs together.
    found = bypass_general(spine, shares, top=1)
    check_valid(found, shares)
    roots = tree_of(spine, shares)
    literal_general(roots, shares, 1, LARGEST_FAMILY)
    assert flat(tree_of(found, shares), len(shares)) == flat(roots, len(shares))
    level = found.levels[place]
    assert (level.whole is None) == (len(level) > len(spine.levels[place]))


def test_parts_with_two_parents_are_no_spine() -> None:
    zero, two = np.zeros(2, dtype=np.int64), np.arange(2)
    upper = SpineLevel("us", np.array([b"1", b"2"]), zero)
    lower = SpineLevel("state", np.array([b"001", b"101"]), two, official=False, whole=zero)
    with pytest.raises(GeographyError, match="two parents"):
        Spine((upper, lower), two, (None, None))
    with pytest.raises(GeographyError, match="side by side"):
        SpineLevel(
            "state", np.array([b"001", b"102", b"101"]), zero, official=False, whole=np.array([0, 1, 0])
        )


def test_shares_of_one_are_no_shares() -> None:
    which = np.zeros(3, dtype=np.int64)
    assert Shares.of([F(1), F(2)], which) is None
    found = Shares.of([F(3), F(0), F(3), F(7)], np.array([0, 1, 2]))
    assert found == Shares((F(0), F(3)), np.array([1, 0, 1]))
    for multiples in ((F(1), F(1)), (F(2), F(1)), (F(-1), F(1))):
        with pytest.raises(BudgetError, match="distinct, ascending"):
            Shares(multiples, which)
    with pytest.raises(BudgetError, match="no multiple"):
        Shares((F(1),), np.array([0, 1]))
