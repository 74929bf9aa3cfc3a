"""Numbering distinct values along the leaves, against sorting all of them."""

from __future__ import annotations

import numpy as np
import pytest

from opendas.geography.frame import numbered
from opendas.geography.partitions import combine


def columns() -> dict[str, np.ndarray]:
    """Columns as steps meet them: flags, labels, wide keys, codes; in order, in runs, and at random."""
    rng = np.random.default_rng(5)
    runs = np.repeat(rng.integers(0, 40, 90), rng.integers(1, 9, 90))
    return {
        "flags": rng.random(50) < 0.3,
        "one flag": np.ones(5, dtype=bool),
        "labels": rng.integers(0, 30, 200),
        "sorted labels": np.sort(rng.integers(0, 30, 200)),
        "wide keys": rng.integers(0, 1 << 50, 30)[runs % 30],
        "negative": rng.integers(-5, 5, 100),
        "codes in runs": np.char.add(b"c", runs.astype("S3")),
        "codes at random": np.array([b"", b"b", b"a", b"ab"])[rng.integers(0, 4, 77)],
        "sorted codes": np.sort(runs.astype("S4")),
        "one row": np.array([b"x"]),
        "one large number": np.array([9_000]),
    }


@pytest.mark.parametrize("name", columns())
def test_values_are_numbered_in_order(name: str) -> None:
    column = columns()[name]
    values, label = numbered(column)
    expected, places = np.unique(column, return_inverse=True)
    assert values.tolist() == expected.tolist()
    assert label.dtype == np.int64
    assert label.tolist() == places.tolist()


def test_combinations_are_numbered_in_lexicographic_order() -> None:
    rng = np.random.default_rng(6)
    table = [
        rng.integers(0, 3, 300),
        np.array([b"", b"x", b"y"])[rng.integers(0, 3, 300)],
        rng.random(300) < 0.5,
    ]
    rows = list(zip(*(column.tolist() for column in table), strict=True))
    place = {row: k for k, row in enumerate(sorted(set(rows)))}
    assert combine(table).tolist() == [place[row] for row in rows]
