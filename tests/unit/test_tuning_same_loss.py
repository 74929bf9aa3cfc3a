"""Plans of the same loss on trials whose answer is known: errors that are functions of the losses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mini import mini_frame, mini_histogram, mini_product

from opendas.errors import ConfigError
from opendas.geography.partitions import standard_spine
from opendas.tuning import shares
from opendas.tuning.candidate import Candidate, Strategy
from opendas.tuning.improve import _areas
from opendas.tuning.populated import Populated
from opendas.tuning.same_loss import (
    FREE,
    KEPT,
    Comparison,
    Judged,
    Row,
    Rows,
    Space,
    best,
    blend,
    compare,
    front,
    search,
)
from opendas.tuning.shares import LEAST, UNIT, Wish, best_losses, exact_shares

FRAME = mini_frame(2, 2, 3)
PRODUCT = mini_product(invariant=False)
QUERIES = PRODUCT.query_names
LEVELS = ("region", "town", "block")
SPINE = standard_spine(FRAME)
START = Candidate(
    Strategy("start", {}),
    {
        level: {"total": Fraction(1, 3), "detailed": Fraction(1, 3), "kind": Fraction(1, 9)}
        for level in LEVELS
    },
)
ROWS = tuple(Row(level, query) for level in LEVELS for query in QUERIES)
BLOCK = frozenset(row for row in ROWS if row.geolevel == "block")


def tree() -> Populated:
    return Populated.of(mini_histogram(FRAME, mean=30.0), SPINE, PRODUCT, QUERIES, whole_tree=True)


def space() -> Space:
    return Space(START, tree(), np.ones((3, len(QUERIES))), 1)


@dataclass
class Expected:
    """Trials that err as least squares expects, times the noise of a seed, in thousandths of a count."""

    rows: Rows
    noise: float = 0.0
    penalty: float = 1.0  # what the rows of towns err more in every plan but the start
    where: Space = field(default_factory=space)
    made: int = 0

    def before(self, seed: int) -> tuple[int, ...]:
        return self.after(START, seed)

    def after(self, candidate: Candidate, seed: int) -> tuple[int, ...]:
        self.made += 1
        errors = self.where.tree.errors(self.where.array(candidate))
        if candidate is not START and candidate.key != START.key:
            errors[1] *= self.penalty
        rng = np.random.default_rng([seed, len(candidate.key)])
        factors = np.exp(self.noise * rng.normal(size=errors.shape))
        return tuple(np.rint(1000 * errors * factors).astype(int).ravel().tolist())

    def within(self, candidate: Candidate) -> float:
        return float(candidate.levels["block"])


def rows(held: frozenset[Row] = frozenset(ROWS)) -> Rows:
    return Rows(ROWS, (1,) * len(ROWS), BLOCK, held)


def found(trials: Expected) -> list[Judged]:
    return search(Comparison(trials, range(3)), space(), rounds=1, steps=1)


@pytest.fixture(scope="module")
def strict() -> tuple[Expected, list[Judged]]:
    """What is found where no error may grow; seeds have a little noise."""
    trials = Expected(rows(), noise=0.002)
    return trials, found(trials)


@pytest.fixture(scope="module")
def loose() -> list[Judged]:
    """What is found where only those of blocks may not."""
    return found(Expected(rows(BLOCK)))


def test_all_plans_have_exactly_the_loss_of_the_start_and_one_kind_keeps_its_geolevels(
    loose: list[Judged],
) -> None:
    assert [plan.name for plan in loose[:2]] == ["start", "geolevels kept, 1"]
    assert len({plan.candidate.key for plan in loose}) == len(loose) > 3
    for plan in loose:
        assert plan.candidate.total == START.total
        if plan.kind == KEPT:
            assert plan.candidate.levels == START.levels
    assert any(plan.candidate.levels != START.levels for plan in loose if plan.kind == FREE)


def test_blocks_gain_and_nothing_that_may_not_grow_does(
    strict: tuple[Expected, list[Judged]], loose: list[Judged]
) -> None:
    first = best(strict[1])[0]
    assert first.aim < -0.02
    assert not any(change.worse for change in first.changes)
    assert best(loose)[0].aim < first.aim - 0.05, "what may grow pays for more"
    assert max(change.part for change in best(loose)[0].changes) > 0.05


def test_no_plan_is_simulated_twice_and_the_same_seeds_find_the_same(
    strict: tuple[Expected, list[Judged]],
) -> None:
    trials, plans = strict
    assert trials.made == 2 * 3 * len(plans)
    again = found(Expected(rows(), noise=0.002))
    assert [(plan.name, plan.candidate.key, plan.aim) for plan in plans] == [
        (plan.name, plan.candidate.key, plan.aim) for plan in again
    ]


def test_a_plan_with_a_worse_row_is_refused_and_noise_is_not_taken_for_one() -> None:
    plans = found(Expected(rows(), penalty=1.2))
    assert [plan.name for plan in best(plans)] == ["start"]
    assert all("town" in {row.geolevel for row in plan.worse} for plan in plans[1:])
    halves = [plan for plan in plans if "geolevels kept, between" in plan.name]
    refused = next(plan for plan in plans if plan.name == "geolevels kept, 1")
    assert halves[0].candidate.key == blend(START, refused.candidate, Fraction(1, 2), "half").key
    assert halves[1].candidate.key == blend(START, refused.candidate, Fraction(1, 4), "half").key
    noisy = compare(
        Expected(rows(), noise=0.3), "start", KEPT, blend(START, START, Fraction(1), "x"), range(8)
    )
    assert not noisy.worse


def test_a_plan_that_changes_nothing_is_confirmed_nineteen_times_in_twenty() -> None:
    """Judged row by row it would mostly fail: there are many rows."""
    rng, counts = np.random.default_rng(3), (1000 + np.zeros(len(ROWS))).astype(int)

    class Chance(Expected):
        def before(self, seed: int) -> tuple[int, ...]:
            return tuple(counts + rng.integers(-200, 201, len(counts)))

        def after(self, candidate: Candidate, seed: int) -> tuple[int, ...]:
            return self.before(seed)

    trials, many = Chance(rows()), 400
    passed = {
        together: sum(
            not compare(trials, "same", KEPT, START, range(10), together=together).worse for _ in range(many)
        )
        for together in (True, False)
    }
    assert passed[True] >= 0.95 * many - 3 * (0.95 * 0.05 * many) ** 0.5
    assert passed[False] < 0.85 * many


def test_a_row_is_worse_beyond_noise_only() -> None:
    class Fixed(Expected):
        def after(self, candidate: Candidate, seed: int) -> tuple[int, ...]:
            size = len(ROWS) * [1000]
            size[0] += 100 if candidate is not START else 0  # always: worse
            size[1] += [900, -650, -100][seed] if candidate is not START else 0  # by chance
            size[2] += 5 if candidate is not START else 0  # always, but by less than is notable
            return tuple(size)

        before = Expected.before

    other = blend(START, START, Fraction(1, 2), "other")
    judged = compare(Fixed(rows()), "other", KEPT, other, range(3))
    assert judged.worse == (ROWS[0],)
    assert judged.worst == pytest.approx(0.1)
    assert [change.worse for change in judged.changes[:3]] == [True, False, False]
    assert not compare(Fixed(rows(frozenset(ROWS[1:]))), "other", KEPT, other, range(3)).worse


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda p: (float(p[0]), float(p[1])))))
def test_the_front_has_no_beaten_point_and_all_others_are_beaten(points: list[tuple[float, float]]) -> None:
    def beaten(one: tuple[float, float]) -> bool:
        return any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in points)

    chosen = front(points)
    assert {points[i] for i in chosen} == {point for point in points if not beaten(point)}
    assert len({points[i] for i in chosen}) == len(chosen)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=12).filter(lambda parts: sum(parts) > 0.01))
def test_shares_are_exact_and_close(parts: list[float]) -> None:
    exact = exact_shares(np.array(parts))
    assert sum(exact) == 1
    for share, part in zip(exact, parts, strict=True):
        assert abs(float(share) - part / sum(parts)) <= 1 / UNIT + 1e-12
    few = exact_shares(np.array(parts), LEAST)
    assert sum(few) == 1
    assert all(share == 0 or share >= Fraction(LEAST) for share in few)


def test_slopes_by_shares_are_those_of_small_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the optimiser is told, with floors, for both mechanisms and every kind of plan."""
    checked = 0

    def check(cost, z, arguments, method, **options):  # type: ignore[no-untyped-def]
        nonlocal checked
        z = z + np.random.default_rng(0).normal(0, 0.3, len(z))
        slopes = cost(z, *arguments)[1]
        for i in range(len(z)):
            step = 1e-5 * np.eye(len(z))[i]
            up, down = (cost(z + s, *arguments)[0] for s in (step, -step))
            assert slopes[i] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-4)
            checked += 1
        return SimpleNamespace(x=z)

    monkeypatch.setattr(shares, "minimize", check)
    monkeypatch.setattr(shares, "_OUTER", 2)  # the second time with multipliers
    rng, shape = np.random.default_rng(1), (3, len(QUERIES))
    for options, power in (
        ({"moves": False}, 1),
        ({"moves": True}, 1),
        ({"moves": True, "leaf_share": 0.4}, 2),
    ):
        some = [rng.normal(size=shape) for _ in range(2)]
        weight, floor, precision = (rng.uniform(*ends, shape) for ends in ((0, 1), (0, 0.1), (0.5, 2)))
        wish = Wish(weight, some[0], some[1], floor, precision, power)
        best_losses(space().tree, wish, rng.uniform(size=shape), **options)  # type: ignore[arg-type]
    assert checked == 2 * 3 * 21


def test_a_wish_is_reached_as_far_as_ceilings_let() -> None:
    where, shape = space(), (3, len(QUERIES))
    errors = where.tree.errors(where.losses)
    weight = np.zeros(shape)
    weight[2] = 1 / len(QUERIES)
    floor = np.zeros(shape)
    floor[1, 0] = 0.2  # a loss that totals of towns keep

    def after(ceiling: np.ndarray, **options: object) -> np.ndarray:
        wish = Wish(weight, ceiling, np.zeros(shape), floor, np.ones(shape), 1)
        losses = best_losses(where.tree, wish, where.losses, **options)  # type: ignore[arg-type]
        assert losses.sum() == pytest.approx(where.losses.sum())
        assert losses[1, 0] >= 0.2 - 1e-9
        if not options["moves"]:
            assert losses.sum(axis=1) == pytest.approx(where.losses.sum(axis=1))
        return where.tree.errors(losses) / errors

    ceiling = np.log(errors)
    none = np.full(shape, np.inf)
    ends = [
        after(given, moves=moves)[2].mean()
        for given, moves in ((ceiling, False), (none, False), (ceiling, True), (none, True))
    ]
    assert after(ceiling, moves=True).max() < 1.03
    assert ends[3] < ends[1] < 1
    assert ends[3] < ends[2] < 0.99
    gains = [after(none, moves=True, leaf_share=share)[2].mean() for share in (0.35, 0.5, 0.8)]
    assert all(more < less for less, more in pairwise(gains))


def test_areas_that_the_frame_lacks_are_named_whatever_their_letters() -> None:
    frame = replace(FRAME, entities={"place": np.where(np.arange(len(FRAME)) < 3, b"01", b"")})
    assert len(_areas(frame, "place:01")) == 1
    with pytest.raises(ConfigError, match="no place 02, é"):
        _areas(frame, "place:01,02,é")
