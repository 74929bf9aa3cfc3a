from __future__ import annotations

import json
from fractions import Fraction

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from opendas.budget.allocation import Budget
from opendas.engines.measurement_source import FileSource, check_measurement_files
from opendas.engines.subtree import Part, PartLevel, UsedColumns
from opendas.errors import FormatError
from opendas.files.nmf import writing as writer_module
from opendas.files.nmf.reading import Answers, MeasurementFile, measurement_metadata
from opendas.files.nmf.writing import MeasurementWriter
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Shares, Spine
from opendas.measurement.family import UsedAnswers
from opendas.measurement.noisy import NoisyMeasurements, measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.sampling.noise import NoiseSource


def make_plan(example, mechanism="discrete-gaussian", shares=None):
    spine = standard_spine(example.frame)
    if shares is not None:
        spine = Spine(spine.levels, spine.leaf_order, shares)
    depth = len(spine.names)
    queries = {"total": Fraction(1, 4), "age": Fraction(1, 4), "detailed": Fraction(1, 2)}
    levels = dict.fromkeys(spine.names, Fraction(1, depth))
    return MeasurementPlan(
        example.product, spine, Budget(mechanism, "unbounded", Fraction(2), levels, {"*": queries})
    )


def random_answers(plan, level, seed=3):
    rng = np.random.default_rng(seed)
    g = len(plan.spine.levels[level])
    return {
        planned.query.name: Answers.full(
            rng.integers(-40, 40, size=(g, planned.query.size)), plan.distribution(level, planned).variance
        )
        for planned in plan.levels[level].queries
    }


def write(path, plan, level, answers, batch=None, stored="full"):
    codes = plan.spine.levels[level].geocodes
    step = batch or len(codes)
    with MeasurementWriter(path, measurement_metadata(plan, level, stored=stored)) as writer:
        for start in range(0, len(codes), step):
            stop = min(start + step, len(codes))
            piece = {query: a.slice(start, stop) for query, a in answers.items()}
            writer.write(codes[start:stop], piece)


@pytest.fixture
def small_groups(monkeypatch):
    """Two geounits a row group: 2 * (1 + 2 + 6) values."""
    monkeypatch.setattr(writer_module, "VALUES_PER_GROUP", 18)


@pytest.mark.usefixtures("small_groups")
def test_every_range_comes_back_as_written(wards, tmp_path):
    plan = make_plan(wards)
    answers = random_answers(plan, 3)
    write(tmp_path / "ward.parquet", plan, 3, answers)
    file = MeasurementFile(tmp_path / "ward.parquet")
    assert len(file) == 4
    assert file.geocodes.tolist() == plan.spine.leaf.geocodes.tolist()
    for start in range(5):
        for stop in range(start, 5):
            found = file.read(start, stop)
            for query, wanted in answers.items():
                assert np.array_equal(found[query].dense(), wanted.dense()[start:stop]) or start == stop
                assert np.array_equal(found[query].variance, wanted.variance[start:stop])


@pytest.mark.usefixtures("small_groups")
def test_batching_does_not_change_a_byte(wards, tmp_path):
    plan = make_plan(wards)
    answers = random_answers(plan, 3)
    for batch in (1, 2, 3, 4):
        write(tmp_path / f"{batch}.parquet", plan, 3, answers, batch)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert pq.ParquetFile(tmp_path / "1.parquet").num_row_groups == 2


def test_metadata_are_exact_and_complete(wards, tmp_path):
    plan = make_plan(wards)
    write(tmp_path / "a.parquet", plan, 3, random_answers(plan, 3))
    metadata = json.loads(pq.ParquetFile(tmp_path / "a.parquet").metadata.metadata[b"opendas"])
    assert metadata["order"] == ["total", "age", "detailed"]
    assert metadata["rho"] == "2"
    assert metadata["neighbours"] == "unbounded"
    # share 1/4 * 1/4 of rho 2, add or remove: sigma2 = 1 / (2 * 1/16 * 2)
    assert metadata["queries"]["total"]["sigma2"] == "4"
    assert metadata["queries"]["age"]["labels"] == [["under|18", '"18"+']]
    file = MeasurementFile(tmp_path / "a.parquet")
    assert file.parameter("detailed") == ("sigma2", Fraction(2))
    assert file.product.schema == wards.product.schema


def test_laplace_metadata_hold_the_scale(wards, tmp_path):
    plan = make_plan(wards, "discrete-laplace")
    write(tmp_path / "a.parquet", plan, 0, random_answers(plan, 0))
    assert MeasurementFile(tmp_path / "a.parquet").parameter("total") == ("scale", Fraction(8))


def test_other_libraries_read_the_rows(wards, tmp_path):
    plan = make_plan(wards)
    answers = random_answers(plan, 3)
    path = tmp_path / "a.parquet"
    write(path, plan, 3, answers)
    wanted = [
        ("ward", code.decode(), query, answers[query].dense()[i].tolist(), None)
        for i, code in enumerate(plan.spine.leaf.geocodes)
        for query in ("total", "age", "detailed")
    ]
    columns = ["geolevel", "geocode", "query", "values", "cells"]
    assert pl.read_parquet(path).select(columns).rows() == wanted
    with duckdb.connect() as connection:
        names = ", ".join(f'"{name}"' for name in columns)
        assert connection.execute(f"select {names} from read_parquet(?)", [str(path)]).fetchall() == wanted


def used_answers(used, variance):
    """Collect what was used of geounits from 0 on, as a run does task by task."""
    columns = UsedColumns.of(used)
    found = {}
    for query, each in variance.items():
        offsets, rows, values = columns.of_query(3, query, 0, len(each))
        found[query] = Answers(values, offsets, rows, each)
    return found


@pytest.mark.usefixtures("small_groups")
def test_partial_answers_come_back_with_their_rows(wards, tmp_path):
    plan = make_plan(wards)
    level = 3
    rng = np.random.default_rng(5)
    used = [
        UsedAnswers(level, 2, 2, "detailed", np.array([0, 4], np.int32), rng.integers(0, 9, (2, 2))),
        UsedAnswers(level, 0, 1, "detailed", np.array([1, 2, 5], np.int32), rng.integers(0, 9, (1, 3))),
        UsedAnswers(level, 0, 1, "total", np.array([0], np.int32), rng.integers(0, 9, (1, 1))),
    ]
    variance = {query: np.full(4, 3.0) for query in ("total", "age", "detailed")}
    answers = used_answers(used, variance)
    write(tmp_path / "a.parquet", plan, level, answers, stored="used")
    found = MeasurementFile(tmp_path / "a.parquet").read()
    assert found["detailed"].offsets.tolist() == [0, 3, 3, 5, 7]
    assert found["detailed"].cells.tolist() == [1, 2, 5, 0, 4, 0, 4]
    assert found["detailed"].values.tolist() == [*used[1].values.ravel(), *used[0].values.ravel()]
    assert found["age"].values.tolist() == []
    with pytest.raises(FormatError, match="only the answers that the estimate used"):
        found["detailed"].dense()


def test_full_and_partial_queries_may_stand_side_by_side(wards, tmp_path):
    plan = make_plan(wards)
    answers = random_answers(plan, 3)
    partial = Answers(np.array([7, 8]), np.array([0, 0, 1, 1, 2]), np.array([1, 0]), np.ones(4))
    write(tmp_path / "a.parquet", plan, 3, answers | {"age": partial}, stored="used")
    found = MeasurementFile(tmp_path / "a.parquet").read(1, 4)
    assert np.array_equal(found["detailed"].dense(), answers["detailed"].dense()[1:])
    assert found["age"].cells.tolist() == [1, 0]
    assert found["age"].values.tolist() == [7, 8]
    assert found["age"].offsets.tolist() == [0, 1, 1, 2]


def test_wrong_shapes_are_refused_and_nothing_stays(wards, tmp_path):
    plan = make_plan(wards)
    answers = random_answers(plan, 3)
    with pytest.raises(FormatError, match="full answers have 1 values"):
        write(tmp_path / "a.parquet", plan, 3, answers | {"total": answers["age"]})
    with pytest.raises(FormatError, match="expected total, age, detailed"):
        write(tmp_path / "a.parquet", plan, 3, {"total": answers["total"]})
    assert list(tmp_path.iterdir()) == []


def noisy_source(example, plan):
    levels = measured_levels(plan)
    tables = {}
    for number in range(len(plan.spine.levels)):
        tables[number] = example.estimate.aggregate(plan.spine.leaf_starts(number))
    return levels, NoisyMeasurements(levels, tables, dict.fromkeys(tables, 0), NoiseSource(bytes(range(32))))


SHARES = (
    None,
    None,
    Shares.of([Fraction(2), Fraction(1), Fraction(1)], np.arange(3)),
    Shares.of([Fraction(0), Fraction(1), Fraction(1), Fraction(1)], np.arange(4)),
)


@pytest.mark.parametrize("shares", [None, SHARES])
def test_answers_from_files_equal_those_taken_on_the_spot(wards, tmp_path, shares):
    """The spine has the ward below A1 without budget, its parent with twice its share."""
    plan = make_plan(wards, shares=shares)
    levels, noisy = noisy_source(wards, plan)
    spine = plan.spine
    for number, level in enumerate(spine.levels):
        full = noisy.full(number, 0, len(level))
        keep = levels[number].budgets(0, len(level)) >= 0
        which = levels[number].which
        metadata = measurement_metadata(plan, number, stored="full")
        with MeasurementWriter(tmp_path / f"{level.name}.parquet", metadata) as writer:
            answers = {}
            for query, values in zip(levels[number].queries, full, strict=True):
                each = np.array([noise.variance for noise in query.noise])
                variance = each[which[keep]] if which is not None else each[0]
                answers[query.name] = Answers.full(values[keep], variance)
            writer.write(level.geocodes[keep], answers)
    check_measurement_files(levels, spine, tmp_path)
    part = Part(
        tuple(PartLevel(n, 0, level.geocodes, None, None) for n, level in enumerate(spine.levels)), None
    )
    source = FileSource(levels, tmp_path).open(part, None)
    support = np.array([1, 2, 5], dtype=np.int32)
    for number, level in enumerate(spine.levels):
        for first in range(len(level)):
            for children in range(1, len(level) - first + 1):
                wanted = noisy.family(number, first, children, support)
                found = source.family(number, first, children, support)
                assert np.array_equal(found.precision, wanted.precision)
                for a, b in zip(found.queries, wanted.queries, strict=True):
                    assert (a.name, a.variance) == (b.name, b.variance)
                    assert np.array_equal(a.rows, b.rows)
                    assert np.array_equal(a.compact, b.compact)
                    assert np.array_equal(a.values, b.values)
                every = source.full(number, first, children)
                for a, b in zip(every, noisy.full(number, first, children), strict=True):
                    assert a.dtype == b.dtype
                    assert np.array_equal(a, b)


def test_estimating_needs_answers_that_are_there(wards, tmp_path):
    plan = make_plan(wards)
    levels = measured_levels(plan)
    variance = {query: np.full(4, 3.0) for query in ("total", "age", "detailed")}
    write(tmp_path / "ward.parquet", plan, 3, used_answers([], variance), stored="used")
    part = Part((PartLevel(3, 0, plan.spine.leaf.geocodes, None, None),), None)
    source = FileSource(levels, tmp_path).open(part, None)
    with pytest.raises(FormatError, match="not in the measurement files"):
        source.family(3, 0, 2, np.array([1], dtype=np.int32))
    with pytest.raises(FormatError, match="not in the measurement files"):
        source.full(3, 0, 2)


def test_files_of_another_plan_are_refused(wards, tmp_path):
    plan = make_plan(wards)
    for number, level in enumerate(plan.spine.levels):
        write(tmp_path / f"{level.name}.parquet", plan, number, random_answers(plan, number))
    levels = measured_levels(plan)
    check_measurement_files(levels, plan.spine, tmp_path)
    (tmp_path / "region.parquet").write_bytes((tmp_path / "district.parquet").read_bytes())
    with pytest.raises(FormatError, match="region"):
        check_measurement_files(levels, plan.spine, tmp_path)
