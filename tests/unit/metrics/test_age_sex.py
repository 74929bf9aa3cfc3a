"""Errors of age and sex against the same by loops over people."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
from support.seeds import seeds

from opendas.geography.frame import Frame, official_codes
from opendas.metrics.age_sex import median_age
from opendas.metrics.evaluate import Evaluation, evaluate
from opendas.metrics.output import evaluation_files
from opendas.metrics.plots import evaluation_plots
from opendas.schema.ages import has_ages
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons
from opendas.schema.product import PassPlan, Product

AGES = 101
BLOCKS = np.array([b"440010301001000", b"440010301001001", b"440030201001000", b"440030202001000"])


def product(ages: int = AGES, sexes: tuple[str, ...] = ("male", "female")) -> Product:
    schema = Schema(
        (
            Attribute("kind", ("household", "other")),
            Attribute("sex", sexes),
            Attribute("age", tuple(map(str, range(ages)))),
        )
    )
    return Product("ages", schema, (), ("total", "detailed"), (), (), (), "person", "ages", PassPlan({}, {}))


def counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Truth and estimate, int64 (leaves, kinds, sexes, ages); the last block has nobody in either."""
    rng = np.random.default_rng(seed)
    truth = rng.poisson(0.3, (len(BLOCKS), 2, 2, AGES))
    estimate = np.maximum(truth + rng.integers(-1, 2, truth.shape), 0)
    truth[-1] = estimate[-1] = 0
    return truth, estimate


def sparse(dense: np.ndarray) -> Histogram:
    flat = dense.reshape(len(BLOCKS), -1)
    row, cell = np.nonzero(flat)
    return Histogram.from_entries(row, cell, flat[row, cell], shape=flat.shape)


def evaluation(truth: np.ndarray, estimate: np.ndarray) -> Evaluation:
    frame = Frame(BLOCKS, official_codes(BLOCKS, "state"), "block")
    return evaluate(sparse(truth), sparse(estimate), frame, product())


def by_hand(truth: np.ndarray, estimate: np.ndarray) -> dict[str, list[tuple[float, float]]]:
    """True and released answers of each measure, geounit by geounit; arrays are (g, kinds, sexes, ages)."""
    found: dict[str, list[tuple[float, float]]] = {}

    def note(measure: str, *pair: float) -> None:
        found.setdefault(measure, []).append((pair[0], pair[1]))

    for t, e in zip(truth.sum(axis=1), estimate.sum(axis=1), strict=True):
        for sex in (0, 1):
            for age in range(AGES):
                note("single years by sex", t[sex, age], e[sex, age])
            for low in range(0, 86, 5):
                high = low + 5 if low < 85 else AGES
                note("five-year groups by sex", t[sex, low:high].sum(), e[sex, low:high].sum())
        note("under 5", t[:, :5].sum(), e[:, :5].sum())
        note("under 18", t[:, :18].sum(), e[:, :18].sum())
        note("18 to 64", t[:, 18:65].sum(), e[:, 18:65].sum())
        note("65 and over", t[:, 65:].sum(), e[:, 65:].sum())
        note("85 and over", t[:, 85:].sum(), e[:, 85:].sum())
        note("female", t[1].sum(), e[1].sum())
        if t.sum() and e.sum():
            medians = []
            for side in (t, e):
                left, age = side.sum() / 2, 0
                while left > side[:, age].sum():
                    left -= side[:, age].sum()
                    age += 1
                medians.append(age + left / side[:, age].sum())
            note("median age", *medians)
            shares = []
            for side in (t, e):
                groups = [
                    side[s, a : a + 5 if a < 85 else AGES].sum() for s in (0, 1) for a in range(0, 86, 5)
                ]
                shares.append([100 * g / side.sum() for g in groups])
            note("index of dissimilarity", 0.0, sum(abs(a - b) for a, b in zip(*shares, strict=True)) / 2)
    return found


@pytest.mark.parametrize("seed", seeds(3))
def test_measures_are_those_of_loops_over_people(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opendas.metrics.age_sex._AT_ONCE", 2)  # blocks are measured in several parts
    truth, estimate = counts(seed)
    rows = {(row.geolevel, row.measure): row for row in evaluation(truth, estimate).by_age_and_sex}
    counties = (
        [truth[:2].sum(axis=0), truth[2:].sum(axis=0)],
        [estimate[:2].sum(axis=0), estimate[2:].sum(axis=0)],
    )
    for geolevel, pair in (("block", (truth, estimate)), ("county", tuple(map(np.array, counties)))):
        for measure, answers in by_hand(*pair).items():
            row = rows[geolevel, measure]
            errors = [e - t for t, e in answers]
            assert row.counts == len(answers)
            assert row.mean_abs_error == pytest.approx(statistics.fmean(map(abs, errors)))
            assert row.mean_signed_error == pytest.approx(statistics.fmean(errors))
            if measure in ("median age", "index of dissimilarity"):
                assert row.mean_abs_percent_error is None
                continue
            percents = [100 * (e - t) / t for t, e in answers if t]
            assert row.mean_abs_percent_error == pytest.approx(statistics.fmean(map(abs, percents)))
            assert row.mean_percent_error == pytest.approx(statistics.fmean(percents))


def test_the_order_of_attributes_does_not_matter() -> None:
    truth, estimate = counts(0)
    turned = product()
    kind, sex, age = turned.schema.attributes
    turned = replace(turned, schema=Schema((age, kind, sex)))
    frame = Frame(BLOCKS, official_codes(BLOCKS, "state"), "block")
    pair = (sparse(dense.transpose(0, 3, 1, 2)) for dense in (truth, estimate))
    assert evaluate(*pair, frame, turned).by_age_and_sex == evaluation(truth, estimate).by_age_and_sex


def test_nobody_has_no_median_and_no_mean() -> None:
    nobody = np.zeros((len(BLOCKS), 2, 2, AGES), dtype=np.int64)
    rows = {row.measure: row for row in evaluation(nobody, nobody).by_age_and_sex if row.geolevel == "state"}
    assert rows["under 5"].mean_abs_error == 0.0
    assert rows["under 5"].mean_abs_percent_error is None
    assert rows["median age"].counts == 0
    assert rows["median age"].mean_abs_error is None
    assert np.isnan(median_age(np.zeros((1, 3)))).all()


def test_files_and_pyramids_hold_the_counts() -> None:
    truth, estimate = counts(1)
    found = evaluation(truth, estimate)
    state = next(pyramid for pyramid in found.pyramids if pyramid.geolevel == "state")
    assert state.groups[0] == "0-4"
    assert state.groups[-1] == "85+"
    assert state.truth.sum() == truth.sum()
    assert state.estimate[1, -1] == estimate[:, :, 1, 85:].sum()
    files = evaluation_files(found)
    assert json.loads(files["evaluation.json"])["pyramids"][0]["groups"] == list(state.groups)
    assert files["by_age_and_sex.csv"].decode().splitlines()[0].startswith("# CONFIDENTIAL")
    assert {"pyramid_state.png", "pyramid_block.png"} <= set(evaluation_plots(found))


def test_products_without_single_years_or_two_sexes_have_none() -> None:
    assert has_ages(product().schema)
    assert not has_ages(product(ages=80).schema)
    assert not has_ages(product(sexes=("male", "female", "unknown")).schema)
    assert not has_ages(pl94_persons().schema)
