"""Integer thresholds and the sampler table, against slow twins that share no arithmetic with them.

The twins are exact fractions (exp(x) by its all-positive series) for small laws, and the
standard library's decimal arithmetic for wide ones.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from support.each import each

from opendas.errors import PrivacyError
from opendas.sampling import interval_arithmetic as intervals_module
from opendas.sampling import inverse_cdf as tables_module
from opendas.sampling.interval_arithmetic import exp_neg
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace, Noise

SMALL = [
    DiscreteGaussian(Fraction(1, 1000)),
    DiscreteGaussian(Fraction(1, 100)),
    DiscreteGaussian(Fraction(1, 3)),
    DiscreteGaussian(Fraction(1)),
    DiscreteGaussian(Fraction(7, 3)),
    DiscreteGaussian(Fraction(10)),
    DiscreteLaplace(Fraction(1, 50)),
    DiscreteLaplace(Fraction(1, 2)),
    DiscreteLaplace(Fraction(1)),
    DiscreteLaplace(Fraction(7, 5)),
]
Bounds = tuple[Fraction, Fraction]


def exponent(law: Noise, k: int) -> Fraction:
    """-log of the weight of k, from the definition of the two laws."""
    if isinstance(law, DiscreteGaussian):
        return Fraction(k * k) / (2 * law.sigma2)
    assert isinstance(law, DiscreteLaplace)
    return abs(k) / law.scale


def twin_exp_neg(x: Fraction, bits: int) -> Bounds:
    """1 / exp(x), exp(x) between a partial sum of its series and the sum plus a geometric remainder."""
    total = term = Fraction(1)
    for n in itertools.count(1):
        term = term * x / n
        total += term
        if n > 2 * x and term * 2 < total / 2**bits:
            # Outward to multiples of a power of two, or sums of these fractions grow without bound.
            unit = 2 ** (bits + int(3 * x // 2) + 2)
            return Fraction(math.floor(unit / (total + 2 * term)), unit), Fraction(
                math.ceil(unit / total), unit
            )
    raise AssertionError


@lru_cache(maxsize=64)
def twin_tails(law: Noise, bits: int) -> list[Bounds]:
    """Bounds of P(X > k), k = 0, 1, ..., by summing weights until they are below 2**-(bits + 32)."""
    weights = []
    for k in itertools.count():
        weights.append(twin_exp_neg(exponent(law, k), bits + 48))
        if weights[-1][1] < Fraction(1, 2 ** (bits + 32)):
            break
    ratio = weights[-1][1] / weights[-2][0]
    rest = weights[-1][1] * ratio / (1 - ratio)
    lows = list(itertools.accumulate(reversed([low for low, _ in weights[1:]]), initial=Fraction(0)))[::-1]
    highs = list(itertools.accumulate(reversed([high for _, high in weights[1:]]), initial=rest))[::-1]
    norm_low, norm_high = 1 + 2 * lows[0], 1 + 2 * highs[0]
    return [(low / norm_high, high / norm_low) for low, high in zip(lows, highs, strict=True)]


def twin_value(law: Noise, value: int, bits: int) -> int | None:
    """Smallest k with U < P(X <= k) for all U in [value, value + 1) / 2**bits; None where they disagree."""
    tails = twin_tails(law, bits)
    floor, ceiling = Fraction(value, 2**bits), Fraction(value + 1, 2**bits)

    def cumulative(k: int) -> Bounds:
        low, high = tails[k] if k >= 0 else tails[-k - 1]
        return (1 - high, 1 - low) if k >= 0 else (low, high)

    for k in range(-len(tails) + 1, len(tails)):
        below = cumulative(k - 1) if k > -len(tails) + 1 else (Fraction(0), tails[-1][1])
        if below[1] <= floor and ceiling <= cumulative(k)[0]:
            return k
    return None


@each("x", [Fraction(0), Fraction(1, 3**40), Fraction(1, 7), Fraction(1), Fraction(355, 113), 40])
@each("precision", [1, 64, 300])
def test_exp_neg_encloses_the_exponential_within_two_units(x: Fraction, precision: int) -> None:
    low, high = exp_neg(Fraction(x), precision)
    true_low, true_high = twin_exp_neg(Fraction(x), precision + 20)
    assert low <= true_low * 2**precision
    assert true_high * 2**precision <= high + Fraction(1, 2**10)
    assert high - low <= 2


def test_exp_neg_of_large_and_negative_arguments() -> None:
    assert exp_neg(Fraction(10**9), 64) == (0, 1)
    with pytest.raises(ValueError, match="x >= 0"):
        exp_neg(Fraction(-1, 2), 64)


@each("law", SMALL)
@each("bits", [64, 128, 192])
def test_floors_equal_the_fraction_twin(law: Noise, bits: int) -> None:
    floors = law.tail_floors(bits)
    for k, (low, high) in enumerate(twin_tails(law, bits)[: len(floors)]):
        assert int(low * 2**bits) == int(high * 2**bits) == floors[k]
    assert floors[-1] == 0
    assert 0 not in floors[:-1]
    assert len(floors) <= law.tail_length(bits)


@pytest.mark.parametrize(
    "law", [DiscreteGaussian(Fraction(30_007, 3)), DiscreteLaplace(Fraction(250, 7))], ids=repr
)
def test_floors_of_wide_laws_equal_the_decimal_twin(law: Noise) -> None:
    with localcontext() as context:
        context.prec = 80
        weights = []
        for k in itertools.count():
            x = exponent(law, k)
            weights.append((-Decimal(x.numerator) / Decimal(x.denominator)).exp())
            if weights[-1] < Decimal(2) ** -160:
                break
        tails = list(itertools.accumulate(reversed(weights[1:]), initial=Decimal(0)))[::-1]
        norm = 1 + 2 * tails[0]
        for bits in (64, 128):
            floors = law.tail_floors(bits)
            assert floors == [int(tail / norm * 2**bits) for tail in tails[: len(floors)]]
            assert floors[-1] == 0


def test_undecided_floors_take_more_guard_bits_and_never_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    law = DiscreteGaussian(Fraction(500))
    expected = law.tail_floors(64)
    monkeypatch.setattr(intervals_module, "_FIRST_GUARD", 2)  # far too few: intervals are wider than a unit
    assert law.tail_floors(64) == expected
    assert DiscreteLaplace(Fraction(40)).tail_floors(64)[-1] == 0
    monkeypatch.setattr(intervals_module, "_LAST_GUARD", 2)
    with pytest.raises(PrivacyError, match="could not be decided"):
        law.tail_floors(64)


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_exp_neg_encloses_without_spare_bits_too(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 spare bits a forgotten remainder or rounding would not show; with none it does."""
    monkeypatch.setattr(intervals_module, "_SPARE_BITS", spare)
    generator = random.Random(8)
    for _ in range(400):
        x = Fraction(generator.randrange(1, 4000), generator.randrange(400, 4000))
        precision = generator.randrange(1, 40)
        low, high = exp_neg(x, precision)
        true_low, true_high = twin_exp_neg(x, precision + 40)
        assert low <= true_high * 2**precision
        assert true_low * 2**precision <= high


@pytest.mark.parametrize("law", SMALL, ids=repr)
def test_floors_are_right_or_undecided_at_any_guard(law: Noise) -> None:
    for bits in range(1, 65, 3):
        expected = law.tail_floors(bits)
        for guard in range(1, 40):
            with contextlib.suppress(intervals_module.TooCoarse):
                if isinstance(law, DiscreteGaussian):
                    assert intervals_module._gaussian_floors(law.sigma2, bits, guard) == expected
                else:
                    assert isinstance(law, DiscreteLaplace)
                    assert intervals_module._laplace_floors(law.scale, bits, guard) == expected


def boundary_words(table: SamplerTable) -> list[int]:
    """0, 2**64 - 1, and every threshold of the distribution function, each also -1 and +1."""
    thresholds = {int(floor) for floor in table.floors}
    thresholds |= {2**64 - 1 - floor for floor in thresholds}
    return sorted({word + step for word in thresholds for step in (-1, 0, 1) if 0 <= word + step < 2**64})


def looked_up(table: SamplerTable, words: list[int]) -> tuple[list[int], set[int]]:
    """Draws of the words, and the words left undecided."""
    pairs = np.zeros((len(words), 2), dtype=np.uint64)
    pairs[:, 0] = words
    out, ties = np.empty(len(words), dtype=np.int64), np.empty(len(words), dtype=np.int64)
    undecided = table.lookup(pairs, out, ties)
    return out.tolist(), {words[i] for i in ties[:undecided]}


@pytest.mark.parametrize("law", SMALL, ids=repr)
def test_boundary_words_are_decided_only_off_the_thresholds(law: Noise) -> None:
    table = SamplerTable.build(law)
    words = boundary_words(table)
    drawn, undecided = looked_up(table, words)
    assert {0, 2**64 - 1} <= undecided
    for word, value in zip(words, drawn, strict=True):
        expected = twin_value(law, word, 64)
        assert (word in undecided) == (expected is None)
        assert word in undecided or value == expected


@pytest.mark.parametrize("law", SMALL, ids=repr)
def test_undecided_words_resolve_as_the_twin_does_with_the_longer_word(law: Noise) -> None:
    table = SamplerTable.build(law)
    _, undecided = looked_up(table, boundary_words(table))
    generator = random.Random(5)
    seen = set()
    for first in sorted(undecided):
        for second in (1, 2**64 - 2, generator.getrandbits(64), generator.getrandbits(64)):
            expected = twin_value(law, first << 64 | second, 128)
            if expected is not None:
                assert table.resolve(first, {1: second}.__getitem__) == expected
                seen.add(expected)
    assert (
        len(seen) >= 2 * len(law.tail_floors(64)) - 1
    )  # both sides of every threshold but the last, at least


@pytest.mark.parametrize("law", [DiscreteGaussian(Fraction(1)), DiscreteLaplace(Fraction(1))], ids=repr)
def test_ties_of_128_bits_go_on_to_192(law: Noise) -> None:
    table = SamplerTable.build(law)
    for floor in {*law.tail_floors(128)[:4], 0}:
        for third in (1, 2**63, 2**64 - 2):
            for mirrored in (False, True):
                value = floor << 64 | third
                value = 2**192 - 1 - value if mirrored else value
                first, *rest = (value >> shift & (2**64 - 1) for shift in (128, 64, 0))
                more = dict(enumerate(rest, start=1))
                assert table.resolve(first, more.__getitem__) == twin_value(law, value, 192)


def test_words_that_hold_several_tail_thresholds_are_refined() -> None:
    """For wide laws many thresholds share a 64-bit word near 0; 128 bits tell them apart."""
    law = DiscreteGaussian(Fraction(10**5))
    table = SamplerTable.build(law)
    repeated = sorted({int(floor) for floor in table.floors if (table.floors == floor).sum() > 1})
    assert repeated
    _, undecided = looked_up(table, [*repeated, *(2**64 - 1 - word for word in repeated)])
    assert len(undecided) == 2 * len(repeated)
    longer = law.tail_floors(128)
    for word in repeated:
        for second in (1, 2**32, 2**63, 2**64 - 2):
            expected = sum(floor > (word << 64 | second) for floor in longer)
            assert table.resolve(word, {1: second}.__getitem__) == -expected
            assert table.resolve(2**64 - 1 - word, {1: 2**64 - 1 - second}.__getitem__) == expected


def test_variances_below_0_011_live_in_refinement() -> None:
    law = DiscreteGaussian(Fraction(1, 100))
    table = SamplerTable.build(law)
    assert table.floors.tolist() == [0]
    drawn, undecided = looked_up(table, [0, 1, 2**63, 2**64 - 2, 2**64 - 1])
    assert drawn[1:4] == [0, 0, 0]
    assert undecided == {0, 2**64 - 1}
    # P(X > 0) is about exp(-50): after a first word 0 the draw is not 0 with probability 2**64 exp(-50).
    share = Fraction(law.tail_floors(128)[0], 2**64)
    assert float(share) == pytest.approx(2**64 * np.exp(-50), rel=1e-12)
    edge = law.tail_floors(128)[0]
    assert [table.resolve(0, {1: word}.__getitem__) for word in (edge - 1, edge + 1)] == [-1, 0]
    assert [table.resolve(2**64 - 1, {1: 2**64 - 1 - word}.__getitem__) for word in (edge - 1, edge + 1)] == [
        1,
        0,
    ]


def test_running_out_of_refinements_is_an_error() -> None:
    table = SamplerTable.build(DiscreteGaussian(Fraction(3)))
    asked: list[int] = []

    def always_zero(refinement: int) -> int:
        asked.append(refinement)
        return 0

    with pytest.raises(PrivacyError, match="undecided after 3 refinements"):
        table.resolve(0, always_zero, last=3)
    assert asked == [1, 2, 3]
    assert tables_module.LAST_REFINEMENT == 2**16 - 1


@pytest.mark.parametrize(
    "law", [*SMALL, DiscreteGaussian(Fraction(10**5)), DiscreteLaplace(Fraction(200))], ids=repr
)
def test_the_guide_agrees_with_counting_thresholds(law: Noise) -> None:
    table = SamplerTable.build(law)
    words = np.random.default_rng(3).integers(0, 2**64, 5_000, dtype=np.uint64)
    # Words near 0 as well, where most thresholds of a wide law are.
    words = np.concatenate([words, words >> np.uint64(30), ~(words >> np.uint64(45))]).tolist()
    drawn, undecided = looked_up(table, words)
    ascending = np.sort(table.floors.astype(np.uint64))
    for word, value in zip(words, drawn, strict=True):
        half = min(word, 2**64 - 1 - word)
        magnitude = len(ascending) - int(np.searchsorted(ascending, np.uint64(half), side="right"))
        assert word in undecided or value == (-magnitude if word < 2**63 else magnitude)


@pytest.mark.parametrize("make", [lambda: DiscreteGaussian(10**11), lambda: DiscreteLaplace(10**5)])
def test_laws_too_wide_for_a_table_are_refused_at_once(make: Callable[[], Noise]) -> None:
    with pytest.raises(PrivacyError, match=r"too wide for an exact table: .*4\.9e10"):
        SamplerTable.build(make())


def test_a_variance_of_1e9_has_a_table() -> None:
    table = SamplerTable.build(DiscreteGaussian(Fraction(10**9)))
    assert table.nbytes < 50e6
    words = np.random.default_rng(4).integers(0, 2**64, 20_000, dtype=np.uint64).tolist()
    drawn, undecided = looked_up(table, words)
    assert not undecided
    assert np.std(drawn) == pytest.approx(10**4.5, rel=0.03)  # six standard errors of a standard deviation


def test_tables_are_shared_by_equal_laws_read_only_and_bounded_in_bytes() -> None:
    table = SamplerTable.build(DiscreteGaussian(Fraction(5)))
    assert SamplerTable.build(DiscreteGaussian(Fraction(10, 2))) is table
    assert SamplerTable.build(DiscreteLaplace(Fraction(5))) is not table
    with pytest.raises(ValueError, match="read-only"):
        table.floors[0] = 1
    cache = tables_module._Cache(limit=3 * table.nbytes)
    kept = [cache.get(DiscreteGaussian(Fraction(n))) for n in (5, 6, 7, 8)]
    assert cache.get(DiscreteGaussian(Fraction(8))) is kept[3]
    assert cache.get(DiscreteGaussian(Fraction(5))) is not kept[0]  # least recently used: dropped and rebuilt
