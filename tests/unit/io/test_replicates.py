"""Files of replicates, and the margins made of them, against obvious twins."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.mini import mini_frame, mini_histogram, to_dense

from opendas.errors import ConfigError, FormatError
from opendas.files.replicate_files import (
    About,
    ReplicateFile,
    counts_digest,
    difference,
    replicate_sink,
    write_replicate,
)
from opendas.schema.histogram import Histogram
from opendas.tables.replicate_margins import spread_of
from opendas.tables.shortest import shortest_of

FRAME = mini_frame()
ABOUT = About("mini", 3, 7, "ab" * 32, "cd" * 32)


def counts(seed: int) -> Histogram:
    return mini_histogram(FRAME, seed)


def write(path: Path, replicates: list[Histogram], about: About = ABOUT) -> None:
    with replicate_sink(path, about) as sink:
        for number, one in enumerate(replicates, start=1):
            write_replicate(sink, number, FRAME, one)


def test_differences_are_those_of_dense_tables() -> None:
    for seed in range(5):
        one, other = counts(seed), counts(seed + 50)
        assert np.array_equal(to_dense(difference(one, other)), to_dense(one) - to_dense(other))
        assert len(difference(one, one).cells) == 0


def test_replicates_are_read_as_they_were_written_one_without_differences_included(tmp_path: Path) -> None:
    base = counts(0)
    written = [difference(counts(1), base), difference(base, base), difference(counts(2), base)]
    write(tmp_path / "mini.parquet", written)
    file = ReplicateFile(tmp_path / "mini.parquet")
    assert file.about == ABOUT
    for number, one in enumerate(written, start=1):
        assert np.array_equal(to_dense(file.differences(number, FRAME, base.size)), to_dense(one))


def test_replicates_of_other_leaves_or_cells_are_refused(tmp_path: Path) -> None:
    base = counts(0)
    write(tmp_path / "mini.parquet", [difference(counts(1), base)])
    file = ReplicateFile(tmp_path / "mini.parquet")
    with pytest.raises(FormatError, match="other leaves or cells"):
        file.differences(1, mini_frame(regions=1), base.size)
    with pytest.raises(FormatError, match="other leaves or cells"):
        file.differences(1, FRAME, base.size - 6)
    (tmp_path / "no.parquet").write_bytes(b"no file of ours")
    with pytest.raises(FormatError):
        ReplicateFile(tmp_path / "no.parquet")


def test_the_digest_is_of_all_counts() -> None:
    base = counts(0)
    dense = to_dense(base)
    digests = {counts_digest(base), counts_digest(counts(1))}
    for leaf, cell in ((0, 0), (3, 1), (len(dense) - 1, dense.shape[1] - 1)):
        changed = dense.copy()
        changed[leaf, cell] += 1
        rows, cells = np.nonzero(changed)
        digests.add(
            counts_digest(Histogram.from_entries(rows, cells, changed[rows, cells], shape=dense.shape))
        )
    assert len(digests) == 5


@pytest.mark.parametrize("level", [Fraction(1, 2), Fraction(9, 10), Fraction(95, 100)])
def test_margins_are_order_statistics_of_all_errors_zeros_included(level: Fraction) -> None:
    rng = np.random.default_rng(3)
    for runs in (20, 21, 50):
        errors = rng.integers(-3, 4, (runs, 6, 5)) * (rng.random((runs, 6, 5)) < rng.random((6, 5)))
        errors[:, 0, 0] = 0
        found = spread_of(iter(errors.astype(float)), runs, level)
        rank = math.ceil(level * (runs + 1))
        assert np.array_equal(found.margin, np.sort(np.abs(errors), axis=0)[rank - 1])
        assert np.allclose(found.bias, errors.mean(axis=0))
        assert np.allclose(found.standard_error, errors.std(axis=0, ddof=1))


def test_margins_hold_at_the_level_where_errors_are_exchangeable() -> None:
    rng = np.random.default_rng(5)
    runs, figures = 20, 20_000
    errors = np.rint(rng.normal(0.0, 4.0, (runs + 1, figures, 1)))
    found = spread_of(iter(errors[:runs]), runs, Fraction(9, 10))
    held = float(np.mean(np.abs(errors[runs]) <= found.margin))
    assert 0.9 <= held <= 0.94  # ties hold too


def test_too_few_replicates_for_a_level_are_refused_with_the_number_that_does() -> None:
    zeros = [np.zeros((2, 2))] * 8
    with pytest.raises(ConfigError, match="at least 9 replicates, and there are 8"):
        spread_of(iter(zeros), 8, Fraction(9, 10))
    assert not spread_of(iter([*zeros, zeros[0]]), 9, Fraction(9, 10)).margin.any()


def test_of_published_count_and_estimate_the_shorter_on_average_is_taken_for_each_cell() -> None:
    rng = np.random.default_rng(7)
    areas, cells = 6, ("near", "far")
    geocode = pa.array([f"{area}" for area in range(areas) for _ in cells])
    cell = pa.array(list(cells) * areas)
    count, estimate = rng.integers(0, 30, (areas, 2)).astype(float), rng.normal(15, 3, (areas, 2))
    margin = np.stack([rng.integers(1, 3, areas), rng.integers(10, 90, areas)], axis=1).astype(float)
    lower, upper = estimate - 8.0, estimate + 8.0
    margins = pa.table({"geocode": geocode, "cell": cell, "count": count.ravel(), "margin": margin.ravel()})
    intervals = pa.table(
        {
            "geocode": geocode,
            "cell": cell,
            "estimate": estimate.ravel(),
            "lower": lower.ravel(),
            "upper": upper.ravel(),
        }
    )
    rows = shortest_of(margins, intervals).to_pylist()
    for place, row in enumerate(rows):
        area, which = divmod(place, 2)
        if which == 0:
            wide = math.ceil(1.25 * margin[area, 0])
            assert row["source"] == "published"
            assert (row["figure"], row["upper"]) == (count[area, 0], count[area, 0] + wide)
            assert row["lower"] == max(0.0, count[area, 0] - wide)
        else:
            assert row["source"] == "least squares"
            assert (row["figure"], row["lower"]) == (estimate[area, 1], lower[area, 1])
    with pytest.raises(FormatError, match="different areas"):
        shortest_of(margins.slice(1), intervals.slice(0, 2 * areas - 1))
