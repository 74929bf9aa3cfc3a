"""Targets: what they count, against loops over areas, and files that are wrong."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mini import from_dense, mini_frame, mini_histogram, mini_product, to_dense

from opendas.errors import ConfigError
from opendas.metrics.errors import level_errors
from opendas.tuning.targets import Tally, Target, load_targets

FRAME = mini_frame(3, 4, 5)
TRUTH = mini_histogram(FRAME, mean=20.0)
PRODUCT = mini_product()
LEVELS = ("region", "town", "block")
seeds = st.integers(0, 10_000)


def estimate(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(-3, 4, (len(FRAME), PRODUCT.schema.size))
    return np.maximum(to_dense(TRUTH) + noise, 0)


def towns(table: np.ndarray) -> np.ndarray:
    codes = FRAME.codes("town")
    return np.stack([table[codes == code].sum(axis=0) for code in np.unique(codes)])


@given(seeds, st.fractions(0, 30), st.sampled_from([(0, None), (60, None), (40, 90)]))
def test_counts_are_those_of_a_loop(seed: int, within: Fraction, population: tuple[int, int | None]) -> None:
    dense = estimate(seed)
    (level,) = level_errors(TRUTH, from_dense(dense), FRAME, ["town"])
    least, most = population
    group = PRODUCT.workload.group("kind")
    for measure in ("absolute-error", "relative-error", "mean-absolute-error", "largest-group"):
        units = held = total_error = 0
        for t, e in zip(group.answers(towns(to_dense(TRUTH))), group.answers(towns(dense)), strict=True):
            people = int(t.sum())
            if people < least or (most is not None and people > most):
                continue
            error = int(abs(e - t).sum())
            if measure == "largest-group":
                if people == 0:
                    continue
                k = int(t.argmax())
                moved = abs(Fraction(int(e[k]), int(e.sum())) - Fraction(int(t[k]), people)) if e.sum() else 2
                good = moved <= within / 100
            else:
                good = error <= within * (Fraction(people, 100) if measure == "relative-error" else 1)
            units += 1
            held += good
            total_error += error
        target = Target("town", measure, "kind", "total", within, Fraction(9, 10), least, most)
        found = target.tally(level, PRODUCT)
        if measure == "mean-absolute-error":
            assert found == Tally(units, 0, total_error)
            assert target.passes(found) == (units == 0 or Fraction(total_error, units) <= within)
        else:
            assert found == Tally(units, held)
            assert target.passes(found) == (units == 0 or Fraction(held, units) >= Fraction(9, 10))


def test_shares_of_great_counts_are_compared_exactly() -> None:
    """One person in a hundred million decides; products of counts leave 64 bits."""
    big = 10**17
    truth = np.zeros((len(FRAME), 9), dtype=np.int64)
    truth[0, :2] = big, big
    for extra, held in ((0, 1), (1, 0)):
        moved = truth.copy()
        moved[0, :2] += big // 10 + extra, -(big // 10) - extra
        (level,) = level_errors(from_dense(truth), from_dense(moved), FRAME, ["region"])
        target = Target("region", "largest-group", "age", "total", Fraction(5), Fraction(1), 1)
        assert target.tally(level, PRODUCT) == Tally(1, held)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=5), st.data())
def test_a_target_is_lost_only_if_nothing_can_save_it(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    target = Target("town", "absolute-error", "total", "total", Fraction(1), Fraction(9, 10))
    mean = Target("town", "mean-absolute-error", "total", "total", Fraction(3), Fraction(1))
    tally = sum((Tally(units, min(held, units), held) for units, held in runs), Tally())
    left = data.draw(st.integers(0, 50))
    assert target.lost(tally, left) == (not target.passes(tally + Tally(left, left)))
    assert mean.lost(tally, left) == (not mean.passes(tally + Tally(left)))


GOOD = """\
[[targets]]
geolevel = "town"
measure = "absolute-error"
query = "minor * kind"
within = "2.5"
population = [10, 500]

[[targets]]
geolevel = "block"
measure = "mean-absolute-error"
at_most = 3
"""


def test_a_file_of_targets(tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(GOOD)
    one, two = load_targets(path, PRODUCT, LEVELS)
    assert one == Target(
        "town", "absolute-error", "kind * minor", "total", Fraction(5, 2), Fraction(19, 20), 10, 500
    )
    assert (two.query, two.within) == ("total", 3)
    assert "10 to 500 records" in str(one)
    assert "at most 3" in str(two)


WRONG = {
    'geolevel = "town"': ('geolevel = "place"', "no 'place'"),
    'query = "minor * kind"': ('query = "income"', "income"),
    'within = "2.5"': ("within = 2.5", "quotes"),
    "population = [10, 500]": ("population = [500, 10]", "least, most"),
    "at_most = 3": ("within = 3", "needs at_most"),
    'measure = "mean-absolute-error"': ('measure = "mean"', "expected one of"),
    "at_most = 3\n": ("at_most = 3\ncolour = 1\n", "unknown key"),
    'measure = "absolute-error"\nquery = "minor * kind"': (
        'measure = "largest-group"',
        "name the query group",
    ),
}


@pytest.mark.parametrize("old", WRONG)
def test_wrong_files_name_the_field(tmp_path: Path, old: str) -> None:
    new, rule = WRONG[old]
    path = tmp_path / "targets.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=r"targets\.toml") as error:
        load_targets(path, PRODUCT, LEVELS)
    assert rule in str(error.value)


def test_a_wrong_field_is_the_only_thing_said_to_be_wrong(tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(GOOD.replace('within = "2.5"', "within = 2.5"))
    with pytest.raises(ConfigError) as error:
        load_targets(path, PRODUCT, LEVELS)
    assert "problems" not in str(error.value)
    path.write_text("targets = []\n")
    with pytest.raises(ConfigError, match="at least one"):
        load_targets(path, PRODUCT, LEVELS)
