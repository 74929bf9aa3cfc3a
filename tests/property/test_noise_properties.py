"""Properties of intervals, thresholds, addresses, draws and keys that hold for all inputs."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.noise import draw, packed
from support.seeds import examples

from opendas.custody.run_key import RunKey
from opendas.sampling.interval_arithmetic import exp_neg, gaussian_weights
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace, Noise
from opendas.sampling.noise import NoiseSource, fill_addresses, fill_pairs

positive = st.fractions(min_value=Fraction(1, 10**6), max_value=Fraction(400), max_denominator=10**6)
laws = st.one_of(positive.map(DiscreteGaussian), positive.map(DiscreteLaplace))
narrow_laws = st.one_of(
    st.fractions(min_value=Fraction(1, 50), max_value=50, max_denominator=1000).map(DiscreteGaussian),
    st.fractions(min_value=Fraction(1, 50), max_value=5, max_denominator=1000).map(DiscreteLaplace),
)
words = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 40), st.integers(2**64 - 40, 2**64 - 1))


def decimal_exp_neg(x: Fraction) -> tuple[Decimal, Decimal]:
    """Bounds of exp(-x), x <= 2000, from 250-digit arithmetic with 50 digits to spare for the roundings."""
    with localcontext() as context:
        context.prec = 250
        value = (-Decimal(x.numerator) / Decimal(x.denominator)).exp()
        return value * (1 - Decimal(10) ** -200), value * (1 + Decimal(10) ** -200)


@given(x=st.fractions(min_value=0, max_value=2000, max_denominator=10**9), precision=st.integers(1, 500))
@settings(deadline=None)
def test_exp_neg_encloses(x: Fraction, precision: int) -> None:
    low, high = exp_neg(x, precision)
    with localcontext() as context:
        context.prec = 400
        true_low, true_high = decimal_exp_neg(x)
        assert low <= true_high * 2**precision
        assert true_low * 2**precision <= high
    assert 0 <= high - low <= 2


@given(sigma2=positive)
@settings(max_examples=examples(25), deadline=None)
def test_weights_enclose_and_fall(sigma2: Fraction) -> None:
    previous = 1 << 160
    for k, (low, high) in enumerate(gaussian_weights(sigma2, 160, 1 << 40), start=1):
        direct_low, direct_high = exp_neg(Fraction(k * k) / (2 * sigma2), 160)
        assert low <= direct_high
        assert direct_low <= high
        assert high <= previous
        previous = high


@given(law=laws)
@settings(max_examples=examples(25), deadline=None)
def test_more_bits_only_extend_the_floors(law: Noise) -> None:
    """Refinement is consistent: cutting 64 bits off the longer thresholds gives the shorter ones."""
    short, long = law.tail_floors(64), law.tail_floors(128)
    assert short == [floor >> 64 for floor in long[: len(short)]]
    assert all(floor >> 64 == 0 for floor in long[len(short) :])
    assert short == sorted(short, reverse=True)
    assert all(floor < 2**63 for floor in short)
    assert len(long) <= law.tail_length(128)


@given(law=narrow_laws, first=words, at=st.integers(-1, 100), second=words, third=words)
@settings(max_examples=examples(200), deadline=None)
def test_a_longer_word_never_changes_a_decided_draw(
    law: Noise, first: int, at: int, second: int, third: int
) -> None:
    """Sampling the first 64 bits, or the first 128, of one uniform number gives one answer."""
    table = SamplerTable.build(law)
    if 0 <= at < len(table.floors):
        first = int(table.floors[at])  # uniform words never tie
    pair, out = np.array([[first, 0]], dtype=np.uint64), np.zeros(1, dtype=np.int64)
    undecided = table.lookup(pair, out, np.zeros(1, dtype=np.int64))
    long = law.tail_floors(192)
    value = (first << 64 | second) << 64 | third
    half = min(value, 2**192 - 1 - value)
    if half in long:
        return
    magnitude = sum(floor > half for floor in long)
    expected = -magnitude if first < 2**63 else magnitude
    drawn = table.resolve(first, {1: second, 2: third}.__getitem__) if undecided else int(out[0])
    assert drawn == expected
    # Mirrored words give mirrored draws.
    mirrored = [2**64 - 1 - word for word in (first, second, third)]
    pair[0, 0] = mirrored[0]
    assert table.lookup(pair, out, np.zeros(1, dtype=np.int64)) == undecided
    drawn = table.resolve(mirrored[0], dict(enumerate(mirrored)).__getitem__) if undecided else int(out[0])
    assert drawn == -expected


@given(law=narrow_laws, confidence=st.fractions(0, Fraction(10**12 - 1, 10**12)))
@settings(max_examples=examples(60), deadline=None)
def test_a_margin_covers_and_one_less_does_not(law: Noise, confidence: Fraction) -> None:
    m = law.margin(confidence)
    bits = 256
    floors = [*law.tail_floors(bits), 0]
    # 1 - 2 P(X > m) >= confidence, and not so for m - 1; each floor is less than one unit below the tail.
    assert 1 - Fraction(2 * floors[m], 2**bits) >= confidence
    assert m == 0 or 1 - Fraction(2 * floors[m - 1] + 2, 2**bits) < confidence


fields = st.tuples(
    st.integers(0, 2**8 - 1),
    st.integers(0, 2**40 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**16 - 1),
)


@given(address=fields)
@settings(deadline=None)
def test_addresses_can_be_read_back(address: tuple[int, int, int, int, int]) -> None:
    """A layout that can be inverted is injective, and the kernels write it."""
    high, low = packed(*address)
    assert address == (high >> 56, high >> 16 & (2**40 - 1), high & (2**16 - 1), low >> 16, low & (2**16 - 1))
    level, unit, query, cell, refinement = address
    grid, pairs = np.zeros((1, 2), dtype=np.uint64), np.zeros((1, 2), dtype=np.uint64)
    where = np.array([unit]), np.array([cell])
    fill_addresses(grid, level, query, *where, 0)
    fill_pairs(pairs, level, query, *where, 0)
    assert grid.tolist() == pairs.tolist() == [[high, low - refinement]]


@given(
    cells=st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=60),
    units=st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=5),
    cut=st.integers(0, 60),
    law=narrow_laws,
)
@settings(max_examples=examples(60), deadline=None)
def test_a_draw_does_not_depend_on_its_batch(
    cells: list[int], units: list[int], cut: int, law: Noise
) -> None:
    source, table = NoiseSource(bytes(32)), SamplerTable.build(law)
    whole = draw(source, table, 1, units, 2, cells)
    parts = source.draw_many(1, [(table, units, 2, part) for part in (cells[cut:], cells[:cut])])
    np.testing.assert_array_equal(np.concatenate(parts[::-1], axis=1), whole)
    for i, unit in enumerate(units):
        assert draw(source, table, 1, unit, 2, cells[-1]) == whole[i, -1]


@given(
    one=st.lists(st.binary(max_size=6), max_size=4),
    other=st.lists(st.binary(max_size=6), max_size=4),
    seed=st.integers(),
)
@settings(deadline=None)
def test_different_fields_derive_different_keys(one: list[bytes], other: list[bytes], seed: int) -> None:
    key = RunKey.seeded(seed)
    assert (key.derive("p", *one) == key.derive("p", *other)) == (one == other)
