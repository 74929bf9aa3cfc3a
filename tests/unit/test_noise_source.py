"""Draws are a pure function of key and address, whatever the call, the order or the thread."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from support.noise import draw, packed

from opendas.custody.run_key import RunKey
from opendas.errors import PrivacyError
from opendas.sampling import noise as noise_module
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace
from opendas.sampling.noise import NoiseSource, fill_addresses, fill_pairs

KEY = RunKey.seeded(20).derive("noise", b"plan")
TABLE = SamplerTable.build(DiscreteGaussian(Fraction(21, 2)))
LAPLACE = SamplerTable.build(DiscreteLaplace(Fraction(3)))
GOLDEN_GAUSSIAN = [1, 1, -1, 1, -3, 1, -2, -5, -3, -1, 7, 5]
GOLDEN_LAPLACE = [1, 1, -1, 1, -3, 1, -2, -7, -3, -1, 11, 6]


def slow_draw(key: bytes, table: SamplerTable, level: int, unit: int, query: int, cell: int) -> int:
    """The definition, one draw at a time: pack 128 bits, encrypt, count the thresholds passed."""

    def word(refinement: int) -> int:
        block = b"".join(half.to_bytes(8, "little") for half in packed(level, unit, query, cell, refinement))
        encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)
        return int.from_bytes(encrypted[:8], "little")

    value, bits = word(0), 64
    for refinement in itertools.count(1):
        below = table.distribution.tail_floors(bits)
        # Thresholds of the distribution function, in order: P(X <= k) = P(X > -k - 1), and 1 - P(X > k).
        thresholds = [(-k - 1, floor) for k, floor in enumerate(below)][::-1]
        thresholds += [(k, (1 << bits) - 1 - floor) for k, floor in enumerate(below)]
        if all(value != threshold for _, threshold in thresholds):
            return next(k for k, threshold in thresholds if value < threshold)
        value, bits = value << 64 | word(refinement), bits + 64
    raise AssertionError


def test_a_draw_is_its_definition() -> None:
    source = NoiseSource(KEY)
    units, cells = [0, 3, 2**40 - 1], [0, 1, 7, 2**48 - 1]
    for table, level, query in ((TABLE, 0, 0), (LAPLACE, 255, 2**16 - 1)):
        drawn = draw(source, table, level, units, query, cells)
        slow = [[slow_draw(KEY, table, level, unit, query, cell) for cell in cells] for unit in units]
        assert drawn.tolist() == slow
        assert drawn.dtype == np.int64


def test_golden_draws() -> None:
    """Fixed for ever: a change here changes every release that is resumed or drawn again."""
    source = NoiseSource(bytes(range(32)))
    assert draw(source, TABLE, 1, 2, 3, np.arange(12)).tolist() == GOLDEN_GAUSSIAN
    assert draw(source, LAPLACE, 1, 2, 3, np.arange(12)).tolist() == GOLDEN_LAPLACE


def test_shapes_follow_units_and_cells() -> None:
    source = NoiseSource(KEY)
    cells = np.arange(5)
    assert draw(source, TABLE, 1, 4, 2, cells).shape == (5,)
    assert draw(source, TABLE, 1, [4], 2, cells).shape == (1, 5)
    assert draw(source, TABLE, 1, np.array([4, 5, 6]), 2, cells).shape == (3, 5)
    assert draw(source, TABLE, 1, 4, 2, 3).shape == ()
    assert draw(source, TABLE, 1, [], 2, cells).shape == (0, 5)
    assert draw(source, TABLE, 1, 4, 2, []).shape == (0,)
    assert source.draw_many(1, []) == []


def test_batches_and_chunks_do_not_matter() -> None:
    source = NoiseSource(KEY)
    units, cells = np.arange(7), np.arange(3_001)  # 21,007 draws: three chunks, cut inside a geounit
    whole = draw(source, TABLE, 2, units, 5, cells)
    single = np.stack([draw(source, TABLE, 2, int(unit), 5, cells) for unit in units])
    np.testing.assert_array_equal(whole, single)
    order = np.random.default_rng(1).permutation(len(cells))
    np.testing.assert_array_equal(draw(source, TABLE, 2, units[::-1], 5, cells[order]), whole[::-1][:, order])
    many = source.draw_many(2, [(LAPLACE, units, 1, [4]), (TABLE, units, 5, cells), (TABLE, 3, 5, cells[:9])])
    np.testing.assert_array_equal(many[0], draw(source, LAPLACE, 2, units, 1, [4]))
    np.testing.assert_array_equal(many[1], whole)
    np.testing.assert_array_equal(many[2], whole[3, :9])


def test_draws_of_pairs_are_those_of_the_grid() -> None:
    source = NoiseSource(KEY)
    units, cells = np.arange(40, 60), np.arange(1, 2_000, 2)  # 20,000 draws: three chunks
    grid = draw(source, TABLE, 2, units, 5, cells)
    order = np.random.default_rng(3).permutation(grid.size)
    unit, cell = np.repeat(units, len(cells))[order], np.tile(cells, len(units))[order]
    some, other, none = source.draw_pairs(
        2, [(TABLE, unit, 5, cell), (LAPLACE, [7, 9], 1, [3, 4]), (TABLE, [], 5, [])]
    )
    np.testing.assert_array_equal(some, grid.ravel()[order])
    np.testing.assert_array_equal(other, np.diag(draw(source, LAPLACE, 2, [7, 9], 1, [3, 4])))
    assert none.shape == (0,)
    with pytest.raises(PrivacyError, match="differ in number"):
        source.draw_pairs(2, [(TABLE, [1, 2], 5, [3])])
    for pair in (([-1], [3]), ([1], [-3])):
        with pytest.raises(PrivacyError, match="does not fit"):
            source.draw_pairs(2, [(TABLE, pair[0], 5, pair[1])])


def test_sums_of_draws_over_groups_are_those_of_the_draws() -> None:
    source = NoiseSource(KEY)
    units, cells = np.arange(40, 60), np.arange(1, 2_000, 2)  # 20,000 draws: three chunks
    group = np.random.default_rng(2).integers(0, 4, len(units))
    sums, other, same = np.ones((4, 2_000), np.int64), np.zeros((1, 5), np.int64), np.zeros((4, 9), np.int64)
    requests = [(TABLE, units, 5, cells, group, sums), (LAPLACE, units, 6, [8, 2], group, same)]
    source.add_sums(2, [*requests, (LAPLACE, [7], 1, [3, 4], np.zeros(1, int), other)])
    expected, elsewhere = np.ones_like(sums), np.zeros_like(same)
    for unit, to in zip(units, group, strict=True):  # every draw in the column of its cell
        expected[to, cells] += draw(source, TABLE, 2, unit, 5, cells)
        elsewhere[to, [8, 2]] += draw(source, LAPLACE, 2, unit, 6, [8, 2])
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(same, elsewhere)
    np.testing.assert_array_equal(other[0], [0, 0, 0, *draw(source, LAPLACE, 2, 7, 1, [3, 4])])


def test_sums_of_draws_need_a_place_for_every_draw() -> None:
    source = NoiseSource(KEY)
    sums = np.zeros((2, 3), np.int64)
    for group, cells in (([0], [0, 1, 2]), ([0, 2], [0, 1, 2]), ([0, -1], [0, 1, 2]), ([0, 1], [1, 3])):
        with pytest.raises(PrivacyError, match="Nothing was drawn"):
            source.add_sums(1, [(TABLE, [4, 5], 0, cells, np.array(group), sums)])
    with pytest.raises(PrivacyError, match="does not fit"):
        source.add_sums(1, [(TABLE, [4, -1], 0, [0, 1, 2], np.array([0, 1]), sums)])
    units, group = [4, 5], np.array([0, 1])
    with pytest.raises(PrivacyError, match="Nothing was drawn"):  # the second sums lack a row
        source.add_sums(1, [(TABLE, units, 0, [0], group, sums), (TABLE, units, 1, [0], group, sums[:1])])
    source.add_sums(1, [(TABLE, [], 0, [0, 1, 2], np.zeros(0, int), sums)])
    assert not sums.any()


def test_threads_share_a_source() -> None:
    source = NoiseSource(KEY)
    cells = np.arange(2_000)
    expected = [draw(NoiseSource(KEY), TABLE, 2, unit, 5, cells) for unit in range(32)]
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda unit: draw(source, TABLE, 2, unit, 5, cells), range(32)))
    np.testing.assert_array_equal(drawn, expected)


def _in_worker(key: bytes) -> list[int]:
    return draw(NoiseSource(key), TABLE, 2, 0, 5, np.arange(50)).tolist()


def test_worker_processes_rebuild_the_source_from_its_key() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_in_worker, (KEY,)) == _in_worker(KEY)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64])
def test_any_integer_type_addresses_the_same_draws(dtype: type) -> None:
    source = NoiseSource(KEY)
    expected = draw(source, TABLE, 2, 1, 5, np.arange(100))
    strided = np.arange(0, 200, dtype=np.int16)[::2] // 2
    np.testing.assert_array_equal(draw(source, TABLE, 2, dtype(1), 5, np.arange(100, dtype=dtype)), expected)
    np.testing.assert_array_equal(draw(source, TABLE, 2, 1, 5, strided), expected)


def test_every_field_of_the_address_and_the_key_matter() -> None:
    cells = np.arange(40)
    base = draw(NoiseSource(KEY), TABLE, 2, 1, 5, cells)
    others = [
        draw(NoiseSource(RunKey.seeded(20).derive("noise", b"other plan")), TABLE, 2, 1, 5, cells),
        draw(NoiseSource(RunKey.seeded(20).derive("other", b"plan")), TABLE, 2, 1, 5, cells),
        draw(NoiseSource(RunKey.seeded(21).derive("noise", b"plan")), TABLE, 2, 1, 5, cells),
        draw(NoiseSource(KEY), TABLE, 3, 1, 5, cells),
        draw(NoiseSource(KEY), TABLE, 2, 2, 5, cells),
        draw(NoiseSource(KEY), TABLE, 2, 1, 6, cells),
        draw(NoiseSource(KEY), TABLE, 2, 1, 5, cells + 40),
    ]
    assert all((base != other).any() for other in others)


def test_addresses_of_small_plans_are_distinct() -> None:
    """Enumerate (geolevel, geounit, query, cell) of two small plans, and the extreme fields."""
    for levels, units, queries, cells in ((3, 11, 4, 13), (2, 40, 3, 5)):
        blocks = [
            filled(level, query, np.arange(units), np.arange(cells))
            for level, query in itertools.product(range(levels), range(queries))
        ]
        assert len(set(itertools.chain(*blocks))) == levels * units * queries * cells
    levels, units, queries, cells = ((0, 1, 2**width - 1) for width in (8, 40, 16, 48))
    blocks = [filled(level, query, units, cells) for level, query in itertools.product(levels, queries)]
    assert len(set(itertools.chain(*blocks))) == 3**4


def test_address_layout() -> None:
    fields = 0xA1, 0xB1B2B3B4B5, 0xC1C2, 0xD1D2D3D4D5D6
    (row,) = filled(fields[0], fields[2], [fields[1]], [fields[3]])
    assert [f"{half:016x}" for half in row] == ["a1b1b2b3b4b5c1c2", "d1d2d3d4d5d60000"]
    assert row == packed(*fields)
    assert f"{packed(*fields, 0xE1E2)[1]:016x}" == "d1d2d3d4d5d6e1e2"


def filled(level: int, query: int, units: Sequence[int], cells: Sequence[int]) -> list[tuple[int, int]]:
    """The addresses of a grid as the kernels write them, whole and from every place; pairs give the same."""
    unit, cell = np.array(units, dtype=np.int64), np.array(cells, dtype=np.int64)
    blocks = np.zeros((len(unit) * len(cell), 2), dtype=np.uint64)
    fill_addresses(blocks, level, query, unit, cell, 0)
    part = np.zeros_like(blocks)
    for start in range(0, len(blocks), 7):
        fill_addresses(part[start : start + 5], level, query, unit, cell, start)
        both = np.repeat(unit, len(cell)), np.tile(cell, len(unit))
        fill_pairs(part[start + 5 : start + 7], level, query, *both, start + 5)
    assert np.array_equal(blocks, part)
    return [(high, low) for high, low in blocks.tolist()]


@pytest.mark.parametrize(
    ("level", "unit", "query", "cell"),
    [
        (256, 0, 0, 0),
        (-1, 0, 0, 0),
        (0, 2**40, 0, 0),
        (0, -1, 0, 0),
        (0, 0, 2**16, 0),
        (0, 0, -1, 0),
        (0, 0, 0, 2**48),
        (0, 0, 0, -1),
        (0, 0, 0, 2**63),
        (0, 0, 0, 2**64 - 1),
        (0, 1.5, 0, 0),
        (True, 0, 0, 0),
    ],
)
def test_overflow_is_refused(level: int, unit: int, query: int, cell: int) -> None:
    cells = np.array([0, cell])
    with pytest.raises(PrivacyError, match=r"indices have type|does not fit|single integer"):
        draw(NoiseSource(KEY), TABLE, level, unit, query, cells)


def test_undecided_words_read_the_next_refinement_of_the_same_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Force the first word of every address to 0: the draw must come from the words of refinement 1."""

    class Zeroed(noise_module._Scratch):
        def encrypt(self, count: int) -> None:
            super().encrypt(count)
            self.words[:count, 0] = 0

    expected = [int(table_value) for table_value in _refined_from_zero(KEY, 2, 1, 5, range(20))]
    monkeypatch.setattr(noise_module, "_Scratch", Zeroed)
    assert draw(NoiseSource(KEY), TABLE, 2, 1, 5, np.arange(20)).tolist() == expected
    assert min(expected) < -25  # far in the tail, where a first word 0 puts them


def _refined_from_zero(key: bytes, level: int, unit: int, query: int, cells: range) -> list[int]:
    blocks = np.array([packed(level, unit, query, cell, 1) for cell in cells], dtype=np.uint64)
    encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks.tobytes())
    words = np.frombuffer(encrypted, dtype="<u8").reshape(-1, 2)[:, 0].tolist()
    floors = TABLE.distribution.tail_floors(128)
    assert not set(words) & set(floors)
    return [-sum(floor > word for floor in floors) for word in words]


def test_sources_and_keys_stay_out_of_sight() -> None:
    source = NoiseSource(KEY)
    assert KEY.hex() not in repr(source)
    assert repr(KEY) not in repr(source)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(source)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), "0" * 32, None])
def test_a_noise_key_is_32_bytes(key: object) -> None:
    with pytest.raises(PrivacyError, match="32 bytes"):
        NoiseSource(key)  # type: ignore[arg-type]
