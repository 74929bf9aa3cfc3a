"""Private discovery against enumeration: what one record alone can do to what is shown.

Tables are tiny, and the law of the output is written out from the definition: a value that some record has is
shown if its count plus noise exceeds the threshold, each by itself. Noise of the discrete Gaussian comes from
its defining sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from support.seeds import examples

from opendas.errors import ConfigError, PrivacyError
from opendas.measurement.discovery import DiscoveryPlan, discover
from opendas.sampling.interval_arithmetic import gaussian_weights
from opendas.schema.provenance import Discovery

_BITS = 400

Record = tuple[str, ...]
Shown = tuple[frozenset[str], ...]


def plan_of(histograms: int, rho: Fraction | str, delta: Fraction | str) -> DiscoveryPlan:
    act = Discovery("00" * 16, Fraction(rho), Fraction(delta))
    return DiscoveryPlan(act, tuple(f"column {k}" for k in range(histograms)))


def at_least(sigma2: Fraction, least: int) -> tuple[Fraction, Fraction]:
    """Bounds of P(noise >= least), from the weights that define the law."""
    weights = list(gaussian_weights(sigma2, _BITS, 1))
    one = 1 << _BITS
    low = one + 2 * sum(w for w, _ in weights)
    high = one + 2 * sum(w for _, w in weights) + 4  # weights left out are below a unit, and fall fast
    if least <= 0:
        above = at_least(sigma2, 1 - least)
        return 1 - above[1], 1 - above[0]
    tail = weights[least - 1 :]
    return (
        Fraction(sum(w for w, _ in tail), high),
        Fraction(sum(w for _, w in tail) + 2, low),
    )


def counts_of(table: Sequence[Record], column: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in table:
        found[record[column]] = found.get(record[column], 0) + 1
    return dict(sorted(found.items()))


def neighbours(table: Sequence[Record], records: Sequence[Record]) -> Iterator[list[Record]]:
    """Every table with one record replaced."""
    for place, new in itertools.product(range(len(table)), records):
        if new != table[place]:
            yield [*table[:place], new, *table[place + 1 :]]


def chances(table: Sequence[Record], plan: DiscoveryPlan) -> list[dict[str, float]]:
    """The probability that each value of each column is shown."""
    return [
        {
            value: float(at_least(plan.sigma2, plan.threshold + 1 - count)[0])
            for value, count in counts_of(table, column).items()
        }
        for column in range(len(plan.histograms))
    ]


def law(table: Sequence[Record], plan: DiscoveryPlan) -> dict[Shown, float]:
    """The probability of every output: any set of values in every column, independently."""
    columns = []
    for shown in chances(table, plan):
        each: dict[frozenset[str], float] = {}
        for keep in itertools.product((False, True), repeat=len(shown)):
            values = frozenset(itertools.compress(shown, keep))
            each[values] = math.prod(p if k else 1 - p for p, k in zip(shown.values(), keep, strict=True))
        columns.append(each)
    return {
        tuple(sets): math.prod(columns[k][values] for k, values in enumerate(sets))
        for sets in itertools.product(*columns)
    }


@each("histograms", [1, 3, 7])
@each("rho", ["1/20", "1", "9"])
@each("delta", ["1/5", "1e-3", "1e-11"])
def test_the_threshold_is_the_least_that_keeps_a_lone_value_below_delta(
    histograms: int, rho: str, delta: str
) -> None:
    plan = plan_of(histograms, rho, delta)
    assert plan.sigma2 == histograms / Fraction(rho)
    assert histograms * at_least(plan.sigma2, plan.threshold)[1] <= Fraction(delta)
    if plan.threshold > 1:
        assert histograms * at_least(plan.sigma2, plan.threshold - 1)[0] > Fraction(delta)


ALPHABET = [(a, b) for a in ("x", "y") for b in ("u", "v")]
TABLES = st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=4)


@settings(max_examples=examples(25), deadline=None)
@given(TABLES, st.sampled_from(["1/2", "2", "8"]), st.sampled_from(["1/4", "1/50", "1e-6"]))
def test_no_pair_of_tables_loses_more_than_rho_but_for_delta(
    table: list[Record], rho: str, delta: str
) -> None:
    """Brute force over every neighbour: the events of the proof have probability 1 - delta, and given them
    the Renyi divergence of every order is at most rho times the order."""
    plan = plan_of(2, rho, delta)
    for other in neighbours(table, ALPHABET):
        conditional = []
        for one, two in ((table, other), (other, table)):
            lone = [set(counts_of(one, c)) - set(counts_of(two, c)) for c in range(2)]
            given_event = {
                out: p
                for out, p in law(one, plan).items()
                if not any(values & alone for values, alone in zip(out, lone, strict=True))
            }
            kept = sum(given_event.values())
            assert 1 - kept <= float(Fraction(delta)) + 1e-12
            conditional.append({out: p / kept for out, p in given_event.items()})
        for p, q in (conditional, conditional[::-1]):
            assert p.keys() == q.keys()
            for order in (1.5, 2.0, 5.0, 20.0):
                moment = math.fsum(
                    math.exp(order * math.log(p[out]) + (1 - order) * math.log(q[out]))
                    for out in p
                    if p[out] > 0
                )
                assert math.log(moment) / (order - 1) <= float(Fraction(rho)) * order + 1e-9


@settings(max_examples=examples(20), deadline=None)
@given(TABLES, st.sampled_from(["1/2", "2"]))
def test_adding_a_record_costs_half_of_rho(table: list[Record], rho: str) -> None:
    plan = plan_of(2, rho, "1/50")
    for new in ALPHABET:
        more = [*table, new]
        for column in range(2):
            before, after = counts_of(table, column), counts_of(more, column)
            changed = sum((after[v] - before[v]) ** 2 for v in before)
            assert changed <= 1
        assert Fraction(2) / (2 * plan.sigma2) == Fraction(rho) / 2


def test_what_is_drawn_follows_the_law() -> None:
    """Many keys: a lone value is shown as often as delta says, a common one as often as its count says."""
    plan = plan_of(2, "2", "1/4")
    counts = [np.array([1, 2, 4]), np.array([1, 3])]
    draws = 20_000
    shown = [np.zeros(3), np.zeros(2)]
    for number in range(draws):
        for histogram, passed in zip(shown, discover(counts, plan, number.to_bytes(32, "big")), strict=True):
            histogram[passed.bins] += 1
    for histogram, counted in zip(shown, counts, strict=True):
        for times, count in zip(histogram, counted.tolist(), strict=True):
            p = float(at_least(plan.sigma2, plan.threshold + 1 - count)[0])
            assert abs(times / draws - p) < 5 * math.sqrt(p * (1 - p) / draws) + 1e-9
    assert shown[0][0] / draws + shown[1][0] / draws <= 0.25 + 0.02


def test_a_value_of_many_records_is_found_as_often_as_it_says() -> None:
    plan = plan_of(4, "1/4", "1e-11")
    assert at_least(plan.sigma2, plan.threshold + 1 - plan.found_from())[0] >= Fraction(9, 10)


def test_the_same_key_and_plan_show_the_same() -> None:
    plan = plan_of(1, "1", "1e-3")
    counts = [np.arange(1, 40)]
    first, again = (discover(counts, plan, bytes(range(32)))[0] for _ in range(2))
    assert first.bins.tolist() == again.bins.tolist()
    assert first.noisy.tolist() == again.noisy.tolist()
    assert (first.noisy > plan.threshold).all()


def test_what_breaks_the_argument_is_refused() -> None:
    plan = plan_of(1, "1", "1e-3")
    with pytest.raises(PrivacyError, match="be a candidate"):
        discover([np.array([3, 0])], plan, bytes(32))
    with pytest.raises(PrivacyError, match="not those of its plan"):
        discover([np.array([3]), np.array([3])], plan, bytes(32))
    for rho, delta in (("0", "1e-3"), ("1", "0"), ("1", "1")):
        with pytest.raises(ConfigError):
            plan_of(1, rho, delta)
    with pytest.raises(ConfigError):
        plan_of(0, "1", "1e-3")
    assert plan_of(2, "1", "1e-3").digest() != plan_of(2, "1", "1e-4").digest()
