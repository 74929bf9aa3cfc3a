"""Which records of a unit are counted: by brute force, whatever the order, the batches and the memory."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv
from support.each import each
from support.units import KEYS, Row, counted, counted_slowly, key, may_join, table, unit_run

from opendas.errors import ConfigError, DataError, PrivacyError
from opendas.readers import make_reader
from opendas.readers.columns.identifiers import seems_identifier
from opendas.readers.counting import contributions
from opendas.readers.row_readers import RowReader
from opendas.runs.plan import make_plan
from opendas.sampling.ordering import keyed_labels, keyed_texts
from opendas.schema.declarations import ContributionBound, Distinct

DISTINCT = (None, *Distinct)


def made(seed: int, rows: int = 60, units: int = 9) -> list[Row]:
    rng = random.Random(seed)
    return [(f"u{rng.randrange(units)}", rng.randrange(4), rng.randrange(6)) for _ in range(rows)]


@each("distinct", DISTINCT)
@each("at_most", [1, 2, 3, 7])
def test_what_is_counted_is_what_brute_force_counts(at_most: int, distinct: Distinct | None) -> None:
    bound = ContributionBound("who", at_most, distinct)
    for seed in range(12):
        rows = made(seed, rows=10 * (seed + 1))
        assert counted(rows, bound) == counted_slowly(rows, bound)


@pytest.mark.parametrize("distinct", DISTINCT)
def test_every_unit_has_as_many_records_as_it_may(distinct: Distinct | None) -> None:
    bound = ContributionBound("who", 3, distinct)
    rows = made(1, rows=200)
    for unit in {unit for unit, _, _ in rows}:
        mine = [row for row in rows if row[0] == unit]
        kept = list(counted(mine, bound).elements())
        assert len(kept) <= 3
        assert not Counter(kept) - Counter((leaf, cell) for _, leaf, cell in mine)
        assert all(may_join(kept[:n], record, distinct) for n, record in enumerate(kept))
        if len(kept) < 3:  # then no other could be taken
            assert all(
                not may_join(kept, record, distinct)
                for record in (Counter((leaf, cell) for _, leaf, cell in mine) - Counter(kept)).elements()
            )


@pytest.mark.parametrize("distinct", DISTINCT)
def test_neither_order_nor_batches_nor_memory_matter(tmp_path: Path, distinct: Distinct | None) -> None:
    bound = ContributionBound("who", 2, distinct)
    rows = made(2, rows=300, units=60)
    expected = counted(rows, bound)
    for seed in range(5):
        shuffled = rows[:]
        random.Random(seed).shuffle(shuffled)
        assert counted(shuffled, bound, batch=1 + 13 * seed) == expected
        assert counted(shuffled, bound, cache=tmp_path, limit=10 + 30 * seed, batch=20) == expected
    assert list(tmp_path.iterdir()) == [], "what was put on disk is gone"


def test_records_of_a_unit_that_is_too_large_for_memory_are_chosen_like_others(tmp_path: Path) -> None:
    bound = ContributionBound("who", 3)
    rows = [("giant", n % 4, n % 6) for n in range(200)] + made(3)
    assert counted(rows, bound, cache=tmp_path, limit=16) == counted_slowly(rows, bound)


def test_other_units_change_nothing_for_any_key() -> None:
    """Assumption N1: what is counted of a unit is a function of its own records and of the key."""
    bound = ContributionBound("who", 2)
    mine: list[Row] = [("u", 0, 0), ("u", 0, 0), ("u", 1, 2), ("u", 3, 5)]
    for number in range(8):
        alone = counted(mine, bound, key(number))
        for seed in range(4):
            others = [(f"v{unit}", leaf, cell) for unit, leaf, cell in made(seed)]
            both = counted(others[:20] + mine + others[20:], bound, key(number))
            assert both - counted(others, bound, key(number)) == alone


def test_one_record_more_or_less_changes_at_most_one_other() -> None:
    bound = ContributionBound("who", 3)
    for seed in range(40):
        rows = made(seed, rows=8, units=1)
        fewer = counted(rows[1:], bound, key(seed))
        all_of_them = counted(rows, bound, key(seed))
        assert (fewer - all_of_them).total() <= 1
        assert (all_of_them - fewer).total() <= 1


def test_which_records_are_counted_depends_on_the_key_and_none_is_preferred() -> None:
    bound = ContributionBound("who", 1)
    rows: list[Row] = [("u", leaf, 0) for leaf in range(4)]
    found = Counter(next(iter(counted(rows, bound, key(number))))[0] for number in range(2000))
    # 500 each, standard deviation 19.4
    assert all(abs(found[leaf] - 500) < 100 for leaf in range(4))
    for order in permutations(rows):
        assert counted(list(order), bound, key(3)) == counted(rows, bound, key(3))


def test_identifiers_of_all_lengths_are_told_apart_and_do_not_depend_on_their_neighbours() -> None:
    texts = [
        b"",
        b"a",
        b"b",
        b"a" * 7,
        b"a" * 8,
        b"a" * 9,
        b"a" * 16,
        b"a" * 23,
        b"a" * 24,
        b"a" * 25,
        b"\x01",
    ]
    texts += [bytes([n]) * n for n in range(1, 60)]
    texts = list(dict.fromkeys(texts))
    together = keyed_texts(KEYS.units, np.array(texts))
    alone = [keyed_texts(KEYS.units, np.array([text]))[0].tolist() for text in texts]
    assert together.tolist() == alone
    assert len({tuple(words) for words in alone}) == len(texts)
    other = keyed_texts(KEYS.records, np.array(texts))
    assert not np.any(other == together)


def test_labels_are_the_first_half_of_what_they_were() -> None:
    """The order of household tables, whose certificates may not change."""
    words = np.arange(35, dtype=np.int64).reshape(5, 7)
    assert keyed_labels(b"\1" * 32, words).tolist() == GOLDEN_LABELS


GOLDEN_LABELS = [
    *(8883111130266614400, 7183708152507040279, 5599584485658641270),
    *(5832519710113931721, 15767429426565933297),
]


# Reading.


def read_counts(rows: list[Row], **section: object) -> tuple[dict[tuple[int, int], int], tuple[object, ...]]:
    run = unit_run(rows, unit_id="who", at_most=2, **section)
    data = make_reader(replace(run.resolved.reader, selection=KEYS)).read()
    found = {}
    for leaf in range(data.histogram.rows):
        dense = data.histogram.dense(leaf)
        found |= {(leaf, int(cell)): int(dense[cell]) for cell in np.flatnonzero(dense)}
    return found, data.findings


def test_the_reader_counts_at_most_so_many_records_and_says_how_many_it_left_out() -> None:
    rows = made(5)
    found, findings = read_counts(rows)
    assert found == dict(counted_slowly(rows, ContributionBound("who", 2)))
    (finding,) = (each for each in findings if each.field == "who")  # type: ignore[attr-defined]
    assert "at_most = 2" in str(finding)
    assert not any(unit in str(finding) for unit in {unit for unit, _, _ in rows})


def test_without_a_key_nothing_is_read() -> None:
    run = unit_run(made(5), unit_id="who", at_most=2)
    run.reader.frame()
    with pytest.raises(PrivacyError, match="chosen under a key"):
        run.reader.read()


def test_a_comparison_with_the_truth_counts_every_record() -> None:
    rows = made(6)
    assert unit_run(rows, unit_id="who", at_most=1).read().histogram.total() == len(rows)


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (["a", "", "b", " c", "d "], (2, 4, 5)),
        (["a", None, "b", "c", "d"], (2,)),
        ([1, None, 3, 4, 5], (2,)),
        ([1.0, 2.5, 3.0, 4.0, float("nan")], (2, 5)),
    ],
)
def test_records_of_nobody_are_refused_by_line(
    tmp_path: Path, values: list[object], lines: tuple[int, ...]
) -> None:
    rows = table([("u", n % 4, n) for n in range(5)]).set_column(0, "who", pa.array(values))
    pq.write_table(rows, tmp_path / "rows.parquet")
    run = unit_run(unit_id="who", at_most=2)
    spec = replace(run.resolved.reader, selection=KEYS, paths=(tmp_path / "rows.parquet",))
    with pytest.raises(DataError) as error:
        make_reader(spec).read()
    assert [finding.line for finding in error.value.findings] == list(lines)
    assert {finding.field for finding in error.value.findings} == {"who"}
    assert "identifier" in error.value.findings[0].rule


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint32(), pa.string(), pa.large_string(), pa.float64()])
def test_an_identifier_is_the_same_in_every_type_of_column(tmp_path: Path, kind: pa.DataType) -> None:
    rows = [(str(n // 5), n % 4, n % 6) for n in range(40)]
    whole = table(rows)
    column = pa.array([int(unit) for unit, _, _ in rows]).cast(kind)
    pq.write_table(whole.set_column(0, "who", column), tmp_path / "rows.parquet")
    run = unit_run(unit_id="who", at_most=2)
    spec = replace(run.resolved.reader, selection=KEYS, paths=(tmp_path / "rows.parquet",))
    data = make_reader(spec).read()
    assert data.histogram.total() == 16
    whole_run = unit_run(rows, unit_id="who", at_most=2)
    expected = make_reader(replace(whole_run.resolved.reader, selection=KEYS)).read()
    for name in ("indptr", "cells", "counts"):
        assert np.array_equal(getattr(data.histogram, name), getattr(expected.histogram, name))


def test_the_records_of_a_unit_may_stand_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributions, "IN_MEMORY", 8)
    rows = made(7)
    for number in range(3):
        write_csv(table(rows[number::3]), tmp_path / f"{number}.csv")
    spec = unit_run(unit_id="who", at_most=2).resolved.reader
    paths = tuple(tmp_path / f"{number}.csv" for number in range(3))
    read = make_reader(replace(spec, selection=KEYS, paths=paths)).read(tmp_path / "cache")
    assert read.histogram.total() == counted_slowly(rows, ContributionBound("who", 2)).total()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"at_most": 2}, "at_most: needs unit_id"),
        ({"distinct": "leaf"}, "distinct: needs unit_id"),
        ({"unit": "patient"}, "unit: needs unit_id"),
        ({"unit_id": "who"}, "unit_id: needs at_most"),
        ({"unit_id": "who", "at_most": 0}, "at_most"),
        ({"unit_id": "who", "at_most": True}, "at_most"),
        ({"unit_id": "who", "at_most": 2, "distinct": "place"}, "distinct"),
        ({"unit_id": "who", "at_most": 2, "reader": "histogram"}, "reader records only"),
    ],
)
def test_what_does_not_fit_together_is_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        unit_run(**section)


def test_a_unit_is_what_is_protected() -> None:
    assert unit_run().product.protected_unit == "record"
    assert unit_run(unit_id="who", at_most=2).product.protected_unit == "who"
    assert (
        unit_run(unit_id="who", unit="member of staff", at_most=2).product.protected_unit == "member of staff"
    )


# Columns that say whose a record is, and are not used.


def test_an_identifier_that_is_not_used_is_found_where_units_have_several_rows(tmp_path: Path) -> None:
    rows = table(made(8, rows=300, units=100))
    whole = rows.append_column("patient_id", rows.column("who"))
    for name, several in (("patient_id", True), ("ward_of_patient", False)):
        pq.write_table(whole.rename_columns(["who", "ward", "age", "kind", name]), tmp_path / "rows.parquet")
        spec = replace(unit_run().resolved.reader, paths=(tmp_path / "rows.parquet",))
        findings = [each for each in make_reader(spec).read().findings if each.file != "frame"]
        assert [finding.field for finding in findings] == ([name] if several else [])
        assert make_reader(spec).frame() is not None
    # a plan says so where it may open the records, and opens none otherwise
    run = unit_run()
    for opened in (True, False):
        spec = replace(run.resolved.reader, paths=(tmp_path / "with.parquet",), plan_from_records=opened)
        pq.write_table(whole.rename_columns(["who", "ward", "age", "kind", "patient_id"]), spec.paths[0])
        if not opened:
            spec.paths[0].unlink()
        warnings = make_plan(run.changed(reader=spec)).warnings
        assert any("patient_id" in warning for warning in warnings) is opened
    # on Spark, whose executors read the rows, the driver looks
    pq.write_table(whole, tmp_path / "rows.parquet")
    reader = make_reader(replace(unit_run().resolved.reader, paths=(tmp_path / "rows.parquet",)))
    assert isinstance(reader, RowReader)
    rows_of_spark = reader.file_rows()
    assert rows_of_spark is not None
    assert [finding.field for finding in rows_of_spark.data.findings] == ["patient_id"]


@pytest.mark.parametrize("rows", [[("u", 0, 0)] * 400, [(f"u{n}", 0, 0) for n in range(400)]])
def test_classes_and_rows_of_somebody_else_each_are_no_finding(tmp_path: Path, rows: list[Row]) -> None:
    whole = table(rows)
    pq.write_table(whole.append_column("patient", whole.column("who")), tmp_path / "rows.parquet")
    spec = replace(unit_run().resolved.reader, paths=(tmp_path / "rows.parquet",))
    assert make_reader(spec).read().findings == ()


@pytest.mark.parametrize(
    ("name", "seems"),
    [
        *((name, True) for name in ("patient", "PERSON_ID", "studentNumber", "mafid", "ID", "Household no")),
        *(
            (name, False)
            for name in ("ward_id", "age", "patients", "individuals_seen", "covid", "number", "")
        ),
    ],
)
def test_names_that_seem_to_be_identifiers(name: str, seems: bool) -> None:
    assert seems_identifier(name) is seems


def test_a_unit_that_spark_would_see_in_parts_is_read_by_the_driver(tmp_path: Path) -> None:
    pq.write_table(table(made(9)), tmp_path / "rows.parquet")
    spec = replace(
        unit_run(unit_id="who", at_most=2).resolved.reader,
        paths=(tmp_path / "rows.parquet",),
        selection=KEYS,
    )
    reader = make_reader(spec)
    assert isinstance(reader, RowReader)
    assert reader.file_rows() is None
    without = make_reader(spec.counting_everything())
    assert isinstance(without, RowReader)
    assert without.file_rows() is not None


def test_a_domain_that_was_found_at_the_loss_of_one_row_is_not_taken_for_units() -> None:
    found = {"act": "00112233445566778899aabbccddeeff", "rho": "1/20", "delta": "1e-11"}
    private = {"provenance": "private", "discovery": found}
    assert unit_run(geography=private).resolved.domain.discoveries
    with pytest.raises(PrivacyError, match="one who may have several"):
        unit_run(geography=private, unit_id="who", at_most=1)
