"""Errors of an estimate: hand-computed cases, and a slow twin that loops over dense tables."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from opendas.errors import DataError
from opendas.geography.frame import Frame, official_codes
from opendas.metrics.errors import (
    BLOCK_BINS,
    COUNTY_BINS,
    QUANTILES,
    level_errors,
    levels_of,
    population_bins,
    quantiles,
    query_rows,
)
from opendas.metrics.evaluate import evaluate
from opendas.metrics.race_groups import (
    FIVE_POINTS,
    GROUPS,
    Criterion,
    CriterionBin,
    blau_index,
    group_of_cell,
    has_groups,
    largest_group_holds,
    population_interval,
    quintile_classes,
)
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import PassPlan, Product

BLOCKS = np.array(
    [
        b"440010301001000",
        b"440010301001001",
        b"440010301002000",
        b"440030201001000",
        b"440030202001000",
        b"440030202001001",
    ]
)


def census_frame(blocks: np.ndarray = BLOCKS) -> Frame:
    return Frame(
        blocks,
        official_codes(blocks, "state"),
        "block",
        entities={
            "place": np.array([b"4400001", b"4400001", b"", b"4400002", b"4400003", b""][: len(blocks)]),
            "aianhh": np.array([b"2415", b"", b"", b"", b"7000", b""][: len(blocks)]),
            "vtd": np.full(len(blocks), b"", dtype="S1"),
        },
        names={"place": {"4400001": "Bristol town", "4400002": "Warwick city", "4400003": "Valley CDP"}},
    )


def small_product() -> Product:
    schema = Schema((Attribute("age", ("young", "old")), Attribute("group", ("a", "b", "c"))))
    return Product(
        name="small",
        schema=schema,
        recodes=(Recode("broad", "group", (("a", ("a",)), ("bc", ("b", "c")))),),
        query_names=("total", "age", "age * broad", "detailed"),
        invariants=(),
        bounds=(),
        structural_zeros=(),
        protected_unit="person",
        layout="small",
        passes=PassPlan({}, {}),
    )


def histogram(dense: np.ndarray) -> Histogram:
    rows, cells = np.nonzero(dense)
    return Histogram.from_entries(rows, cells, dense[rows, cells], shape=dense.shape)


def random_pair(product: Product, leaves: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    shape = (leaves, product.schema.size)
    truth = generator.poisson(0.7, shape) * generator.integers(0, 2, shape)
    estimate = np.maximum(truth + generator.integers(-1, 2, shape), 0)
    return truth.astype(np.int64), estimate.astype(np.int64)


def slow_row(
    product: Product, codes: np.ndarray, query: str, truth: np.ndarray, estimate: np.ndarray
) -> tuple[int, float, float, dict[str, int]]:
    """Tables 9 and 10 by their definition, in plain loops."""
    group = product.workload.group(query)
    units = sorted({code for code in codes.tolist() if code})
    absolute, signed, answers = 0, 0, []
    for unit in units:
        error = [0] * group.size
        for leaf, code in enumerate(codes.tolist()):
            if code == unit:
                for cell in range(product.schema.size):
                    row = group.row_of_cell[cell]
                    error[row] += int(estimate[leaf, cell]) - int(truth[leaf, cell])
        absolute += sum(abs(e) for e in error)
        signed += sum(error)
        answers += error
    answers.sort()
    found = {}
    for p in QUANTILES:
        reach = [v for i, v in enumerate(answers) if (i + 1) / len(answers) >= float(p) - 1e-12]
        found[p] = reach[0]
    return len(units), absolute / len(units), signed / len(units), found


@pytest.mark.parametrize("seed", range(4))
def test_errors_agree_with_the_definition(seed: int) -> None:
    product, frame = small_product(), census_frame()
    truth, estimate = random_pair(product, len(frame), seed)
    every = levels_of(frame, entities=True)
    rows = query_rows(level_errors(histogram(truth), histogram(estimate), frame, every), product)
    levels = ("state", "county", "tract", "block_group", "block", "place", "aianhh")
    assert [(row.geolevel, row.query) for row in rows] == [
        (g, q) for g in levels for q in product.query_names
    ]
    for row in rows:
        expected = slow_row(product, frame.codes(row.geolevel), row.query, truth, estimate)
        errors = row.errors
        assert (
            errors.geounits,
            errors.mean_abs_error,
            errors.mean_signed_error,
            errors.quantiles,
        ) == expected


def test_errors_by_hand() -> None:
    product = small_product()
    frame = census_frame(BLOCKS[:3])
    truth = np.zeros((3, 6), dtype=np.int64)
    estimate = truth.copy()
    truth[0] = [5, 0, 0, 2, 0, 0]
    estimate[0] = [3, 1, 0, 2, 0, 0]  # two lost, one gained: 3 absolute, -1 signed
    truth[1] = [0, 0, 4, 0, 0, 0]
    estimate[1] = [0, 0, 0, 0, 0, 5]  # 9 absolute in the detailed query, +1 signed
    levels = level_errors(histogram(truth), histogram(estimate), frame, levels_of(frame))
    rows = {(row.geolevel, row.query): row.errors for row in query_rows(levels, product)}
    assert rows["block", "total"].mean_abs_error == 2 / 3
    assert rows["block", "total"].mean_signed_error == 0
    assert rows["block", "detailed"].mean_abs_error == 12 / 3
    assert rows["block", "age"].mean_abs_error == (1 + 9) / 3
    assert rows["block", "age * broad"].mean_abs_error == (3 + 9) / 3
    assert rows["block", "total"].quantiles == {
        "0.005": -1,
        "0.025": -1,
        "0.25": -1,
        "0.5": 0,
        "0.75": 1,
        "0.975": 1,
        "0.995": 1,
    }
    # Both blocks lie in one block group, where the errors of the total cancel.
    assert rows["block_group", "total"].mean_abs_error == 0
    assert rows["block_group", "age"].mean_abs_error == (5 + 5) / 2
    assert rows["state", "detailed"].geounits == 1


def test_no_error_at_equality() -> None:
    product, frame = pl94_persons(), census_frame()
    truth, _ = random_pair(product, len(frame), 1)
    found = evaluate(histogram(truth), histogram(truth), frame, product, entities=True)
    for row in (*found.errors, *found.by_population):
        if row.errors.geounits:
            assert row.errors.mean_abs_error == 0
            assert row.errors.mean_signed_error == 0
            assert set(row.errors.quantiles.values()) == {0}
    assert all(row.mean_signed_error in (0, None) for row in found.by_blau_quintile)
    assert all(entry.within == entry.geounits for row in found.redistricting for entry in row.bins)
    assert all(row.mean_abs_error in (0, None) for row in found.figures)


def test_foreign_histograms_are_refused() -> None:
    product, frame = small_product(), census_frame()
    truth, _ = random_pair(product, len(frame), 1)
    with pytest.raises(DataError, match="6 leaves"):
        level_errors(histogram(truth), histogram(truth[:5]), frame, ["block"])
    with pytest.raises(DataError, match="must be of the same product"):
        level_errors(histogram(truth), histogram(truth[:, :4]), frame, ["block"])


@pytest.mark.parametrize("values", [[0], [-3], [4], [-5, -2, 0, 0, 0, 1, 9], list(range(-20, 21)), [1] * 39])
def test_quantiles_invert_the_empirical_distribution(values: list[int]) -> None:
    nonzero = np.array(sorted(v for v in values if v), dtype=np.int64)
    for p, found in quantiles(nonzero, len(values)).items():
        assert found == np.quantile(np.array(values), float(p), method="inverted_cdf")


def test_population_classes_are_those_of_the_paper() -> None:
    counties = [0, 1000, 1001, 9999, 10_000, 99_999, 100_000, 999_999, 1_000_000]
    assert COUNTY_BINS.of(np.array(counties)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert BLOCK_BINS.of(np.array([0, 1, 9, 10, 99, 100, 999, 1000])).tolist() == [0, 1, 1, 2, 2, 3, 3, 4]
    for geolevel in ("county", "block", "tract"):
        bins = population_bins(geolevel)
        assert len(bins.labels) == len(bins.upper) + 1


def test_classes_of_population_add_up_to_all_geounits() -> None:
    product, frame = small_product(), census_frame()
    truth, estimate = random_pair(product, len(frame), 3)
    found = evaluate(histogram(truth), histogram(estimate), frame, product)
    for row in found.errors:
        classes = [
            other.errors
            for other in found.by_population
            if (other.geolevel, other.query) == (row.geolevel, row.query)
        ]
        assert sum(errors.geounits for errors in classes) == row.errors.geounits
        absolute = sum(errors.mean_abs_error * errors.geounits for errors in classes if errors.geounits)
        assert math.isclose(absolute, row.errors.mean_abs_error * row.errors.geounits, abs_tol=1e-9)


def test_blau_index_by_hand() -> None:
    counts = np.array([[10, 0, 0], [5, 5, 0], [1, 1, 2], [0, 0, 0]])
    assert blau_index(counts).tolist() == [0.0, 0.5, 1 - (1 + 1 + 4) / 16, 0.0]


def test_quintiles_merge_where_they_cannot_be_told_apart() -> None:
    labels, classes = quintile_classes(np.arange(10.0))
    assert labels == ("1", "2", "3", "4", "5")
    assert np.bincount(classes).tolist() == [2, 2, 2, 2, 2]
    labels, classes = quintile_classes(np.array([0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]))
    assert labels == ("1 and 2", "3", "4", "5")
    assert np.bincount(classes).tolist() == [4, 2, 2, 2]
    labels, classes = quintile_classes(np.zeros(7))
    assert labels == ("1, 2, 3, 4 and 5",)
    assert set(classes.tolist()) == {0}


def test_race_and_ethnicity_groups_cover_every_cell() -> None:
    schema = pl94_persons().schema
    group = group_of_cell(schema)
    assert np.bincount(group).tolist() == [8 * 2 * 63, *([8 * 2] * 6), 8 * 2 * 57]
    cell = schema.cell(
        {"hhgq": "household", "votingage": "18plus", "hispanic": "not_hispanic", "cenrace": "white+black"}
    )
    assert GROUPS[group[cell]] == "not_hispanic * two or more"
    assert has_groups(pl94_persons())
    assert not has_groups(pl94_units())


def test_five_points_are_inclusive_and_follow_the_largest_group_of_the_truth() -> None:
    truth = np.array([[60, 40], [60, 40], [0, 0], [1, 0], [50, 50], [30, 70]])
    estimate = np.array([[55, 45], [54, 46], [5, 5], [0, 0], [55, 45], [76, 24]])
    held, counted = largest_group_holds(truth, estimate, FIVE_POINTS)
    assert np.where(counted, held, -1).tolist() == [1, 0, -1, 0, 1, 0]


def test_smallest_passing_interval_needs_all_above_to_pass() -> None:
    bins = (
        CriterionBin("0 to 49", 20, 20),
        CriterionBin("50 to 99", 20, 18),
        CriterionBin("100 to 149", 0, 0),
        CriterionBin("150 to 199", 20, 19),
        CriterionBin("200 to 249", 5, 5),
    )
    target = CriterionBin("500+", 0, 0)
    assert Criterion("place", "total", bins, target).smallest_passing == "150 to 199"
    assert Criterion("place", "total", bins[:2], target).smallest_passing is None
    assert [population_interval(i) for i in (0, 9, 19, 20)] == [
        "0 to 49",
        "450 to 499",
        "950 to 999",
        "1,000+",
    ]


def test_criterion_counts_areas_by_their_true_population() -> None:
    product, frame = pl94_persons(), census_frame()
    cell = {"hhgq": "household", "votingage": "under18", "hispanic": "not_hispanic", "cenrace": "white"}
    white = product.schema.cell(cell)
    black = product.schema.cell({**cell, "cenrace": "black"})
    truth = np.zeros((6, product.schema.size), dtype=np.int64)
    estimate = truth.copy()
    truth[0, [white, black]] = 600, 400
    estimate[0, [white, black]] = 530, 470
    truth[3, [white, black]] = 90, 10
    estimate[3, [white, black]] = 88, 12
    found = evaluate(histogram(truth), histogram(estimate), frame, product)
    block = next(row for row in found.redistricting if (row.geolevel, row.base) == ("block", "total"))
    shown = {entry.population: (entry.geounits, entry.within) for entry in block.bins if entry.geounits}
    assert shown == {"100 to 149": (1, 1), "1,000+": (1, 0)}
    assert (block.target.geounits, block.target.within) == (1, 0)
    assert block.smallest_passing is None
    # Nobody is of voting age, so there is no share to compare.
    adults = next(row for row in found.redistricting if (row.geolevel, row.base) == ("block", "18plus"))
    assert all(entry.geounits == 0 for entry in adults.bins)


def test_figures_choose_their_universe() -> None:
    product, frame = pl94_persons(), census_frame()
    truth = np.zeros((6, product.schema.size), dtype=np.int64)
    estimate = truth.copy()
    adult = {"hhgq": "household", "votingage": "18plus", "hispanic": "hispanic", "cenrace": "asian"}
    cell = product.schema.cell(adult)
    truth[:, cell] = [2000, 10, 10, 300, 40, 50]
    estimate[:, cell] = [2003, 10, 10, 301, 47, 50]
    found = {
        (row.figure, row.statistic): row
        for row in evaluate(histogram(truth), histogram(estimate), frame, product).figures
    }
    assert (found["2", "total"].geounits, found["2", "total"].mean_abs_error) == (1, 8)
    assert (found["3", "total"].geounits, found["3", "total"].mean_abs_error) == (1, 3)
    assert (found["4", "total"].geounits, found["4", "total"].mean_abs_error) == (2, 2)
    assert found["4", "total"].universe == "incorporated places"
    tracts = len(frame.grouping("tract"))
    row = found["5", "hispanic * asian alone"]
    assert (row.geounits, row.mean_abs_error) == (tracts, 11 / tracts)
    assert found["5", "not_hispanic * asian alone"].mean_abs_error == 0


def test_answer_is_strict_json_marked_confidential() -> None:
    product, frame = pl94_persons(), census_frame()
    truth, estimate = random_pair(product, len(frame), 2)
    answer = evaluate(histogram(truth), histogram(estimate), frame, product).to_dict()
    assert answer["confidential"] is True
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    row = answer["rows"][0]
    keys = {"geolevel", "query", "geounits", "mean_abs_error", "mean_signed_error", "quantiles"}
    assert set(row) == keys
    assert tuple(row["quantiles"]) == QUANTILES


def test_a_product_without_race_has_errors_only() -> None:
    product, frame = pl94_units(), census_frame()
    truth, estimate = random_pair(product, len(frame), 5)
    found = evaluate(histogram(truth), histogram(estimate), frame, product)
    assert {row.query for row in found.errors} == {"total", "detailed"}
    assert found.by_blau_quintile == ()
    assert found.redistricting == ()
    assert {row.figure for row in found.figures} == {"2", "3", "4"}
