"""What runs on Spark's executors, without Spark: any blocks, batches and partitions give the local answer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from support.households import configuration, random_world, write_world

from opendas.arrays import Ints
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.books import create_book
from opendas.custody.ledger import Ledger
from opendas.custody.run_key import RunKey
from opendas.engines.spark import session
from opendas.engines.spark.partitions import Answer, VersionsDiffer, Work, pack
from opendas.errors import EnvironmentFailure, Finding, PrivacyError
from opendas.phsafe import spark_households
from opendas.phsafe.config import Config, Mode, Plan, parse_config
from opendas.phsafe.counting import count_tables, exact_cubes
from opendas.phsafe.inputs.findings import CSV_FILES, MOST_LINES, Source, list_lines
from opendas.phsafe.inputs.linking import bucket_digests, link
from opendas.phsafe.inputs.read_csv import KINDS, read_csv
from opendas.phsafe.inputs.records import Inputs
from opendas.phsafe.measure import truncation_keys
from opendas.phsafe.output import exact_declarations
from opendas.phsafe.run import HouseholdOptions, run_exact, run_private
from opendas.phsafe.spark_households import (
    Checked,
    CheckPart,
    Counted,
    CountPart,
    SparkHouseholds,
    add_counts,
    merge_findings,
    sum_answers,
)
from opendas.phsafe.spark_rows import ROW_SCHEMA, Block, ReadLines
from opendas.phsafe.truncation import Truncation
from opendas.phsafe.validate import validate

STATES = ["06", "44"]


def deal(folder: Path, seed: int, partitions: int) -> list[list[pa.RecordBatch]]:
    """Do what Spark does with the text of the three files: blocks, batches, one shuffle by bucket."""
    source = random.Random(seed)
    rows: list[pa.RecordBatch] = []
    for kind, file in enumerate(KINDS):
        lines = [line for line in (folder / file.name).read_text().split("\n") if line]
        cuts = sorted({0, *(source.randrange(len(lines)) for _ in range(3))})
        before: dict[Block, int] = {(17, cut): cut for cut in cuts}
        start = np.array([max(cut for cut in cuts if cut <= i) for i in range(len(lines))])
        text = pa.table({"value": lines, "file": np.full(len(lines), 17), "start": start})
        read = ReadLines(kind, before)
        rows += read(iter(text.to_batches(max_chunksize=source.randint(1, 50))))
    table = pa.Table.from_batches(rows, schema=ROW_SCHEMA)
    shuffled = table.take(source.sample(range(table.num_rows), table.num_rows))
    where = shuffled.column("bucket").to_numpy() % partitions
    return [shuffled.filter(pa.array(where == one)).to_batches(max_chunksize=20) for one in range(partitions)]


def configured() -> Config:
    return parse_config(json.dumps(configuration(tau=2)), Mode.PRIVATE)


def summed(answers: Iterable[Counted], inputs: Inputs) -> dict[str, Ints]:
    cubes, digests = add_counts(answers)
    assert digests == bucket_digests(inputs), "what was counted is not what was read"
    return cubes


@pytest.mark.parametrize(("seed", "partitions"), [(1, 1), (2, 3), (3, 50)])
@pytest.mark.parametrize("truncation", list(Truncation))
def test_parts_add_up_to_the_local_counts(
    tmp_path: Path, seed: int, partitions: int, truncation: Truncation
) -> None:
    folder = write_world(tmp_path, random_world(seed, 120))
    config = configured()
    inputs = read_csv(folder, STATES)
    linked = link(inputs, STATES)
    plan = Plan(config, truncation=truncation)
    keys = truncation_keys(plan, RunKey.seeded(seed))
    parts = deal(folder, seed, partitions)

    wanted = count_tables(plan, linked, keys)
    counter = CountPart(config, CSV_FILES, count=partial(count_tables, plan, keys=keys))
    counted = [counter(number, iter(part)) for number, part in enumerate(parts)]
    found = summed(counted, inputs)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    packed = pa.table({"answer": [pack(Answer(one)) for one in counted]})
    again = summed([sum_answers(0, iter(packed.to_batches()))], inputs)
    assert all(np.array_equal(again[name], wanted[name]) for name in wanted)

    tables = exact_declarations(config)
    exactly = CountPart(config, CSV_FILES, count=partial(exact_cubes, tables, states=len(STATES)))
    found = summed([exactly(0, iter(part)) for part in parts], inputs)
    wanted = exact_cubes(tables, linked, len(STATES))
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("seed", [4, 5])
def test_parts_find_and_digest_the_same(tmp_path: Path, seed: int) -> None:
    folder = write_world(tmp_path, random_world(seed, 150, any_codes=True))
    config = configured()
    inputs = read_csv(folder, STATES)
    wanted = validate(inputs, link(inputs, STATES), config)
    check = CheckPart(config, CSV_FILES)
    parts: list[Checked] = [check(0, iter(part)) for part in deal(folder, seed, 7)]
    names = [Source((file.name,)) for file in KINDS]

    def merged(which: str) -> list[str]:
        return sorted(map(str, merge_findings([getattr(part, which) for part in parts], names)))

    assert len(wanted.errors) > MOST_LINES
    assert any(finding.line is None for finding in wanted.errors)
    assert merged("errors") == sorted(map(str, wanted.errors))
    assert merged("warnings") == sorted(map(str, wanted.warnings))
    together = {bucket: digest for part in parts for bucket, digest in part.digests.items()}
    assert together == bucket_digests(inputs)


def test_rows_with_other_fields_keep_their_lines(tmp_path: Path) -> None:
    folder = write_world(tmp_path, random_world(6, 60))
    lines = (folder / "persons.csv").read_text().splitlines()
    lines[7], lines[21] = lines[7] + ",9", "3"
    (folder / "persons.csv").write_text("\n".join(lines) + "\n")
    check = CheckPart(configured(), CSV_FILES)
    found = [finding for part in deal(folder, 6, 5) for finding in check(0, iter(part)).broken]
    assert sorted(map(str, found)) == [
        "persons.csv, line 22: expected 6 fields, found 1",
        "persons.csv, line 8: expected 6 fields, found 7",
    ]


def test_rows_that_changed_since_they_were_checked_are_never_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost partition is read again: with other rows, the count is refused before any draw."""
    folder = write_world(tmp_path, random_world(4, 60))
    config = configured()
    plan = Plan(config)
    households = object.__new__(SparkHouseholds)
    households._data, households._tell, households._partitions = str(folder), None, 1
    households._digests = bucket_digests(read_csv(folder, STATES))
    households._config, households._files = config, CSV_FILES
    part = CountPart(
        config, CSV_FILES, count=partial(count_tables, plan, keys=truncation_keys(plan, RunKey.seeded(4)))
    )

    class Frame:
        def __init__(self, seed: int) -> None:
            (rows,) = deal(write_world(tmp_path / str(seed), random_world(seed, 60)), 1, 1)
            self.answers = [SimpleNamespace(number=0, answer=pack(Answer(part(0, iter(rows)))))]

        def collect(self) -> list[SimpleNamespace]:
            return self.answers

    for seed, same in ((4, True), (5, False)):
        (tmp_path / str(seed)).mkdir()
        monkeypatch.setattr(households, "_run", lambda _, seed=seed: Frame(seed))
        with nullcontext() if same else pytest.raises(PrivacyError, match="changed while it was counted"):
            households._count(part.count)


def test_exact_tables_on_executors_are_entered_into_the_book_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rows, or as parts of a file, they are found; the rows of another data set are not."""
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "books"))
    book = create_book(tmp_path / "book", "address", rho=10**6).path
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configuration(tau=2)))
    folders = {seed: write_world(tmp_path / str(seed), random_world(seed, 60)) for seed in (4, 5)}
    rows = {seed: deal(folder, seed, 1)[0] for seed, folder in folders.items()}
    run_private(path, folders[4], tmp_path / "out", HouseholdOptions(ledger=book))

    @contextmanager
    def on_executors(data: Path, config: Config, *_: object) -> Iterator[SparkHouseholds]:
        households = object.__new__(SparkHouseholds)
        households._data, households._tell, households._partitions = str(data), None, 1
        households._config, households._files, households._digests = config, CSV_FILES, None
        households._sources = [CSV_FILES.persons, CSV_FILES.units, CSV_FILES.places]

        def run(part: Work) -> SimpleNamespace:
            answer = SimpleNamespace(number=0, answer=pack(Answer(part(0, iter(rows[seed])))))
            return SimpleNamespace(collect=lambda: [answer])

        monkeypatch.setattr(SparkHouseholds, "_run", lambda _, part: run(part))
        yield households

    monkeypatch.setattr(spark_households, "open_on_spark", on_executors)
    for number, (seed, parted) in enumerate(((4, False), (5, False), (4, True))):
        before = Ledger.beside(book).lines()
        if parted:
            lines = (folders[seed] / "persons.csv").read_bytes()
            (folders[seed] / "persons.csv").unlink()
            (folders[seed] / "persons.csv").mkdir()
            (folders[seed] / "persons.csv" / "part-0.csv").write_bytes(lines)
        run_exact(path, folders[seed], tmp_path / f"exact{number}", HouseholdOptions(engine="spark"))
        assert len(Ledger.beside(book).lines()) == len(before) + (seed == 4)


def test_another_version_on_the_executors_is_refused() -> None:
    with pytest.raises(VersionsDiffer):
        list(ReadLines(0, {}, version="0.0")(iter(())))


def test_keys_are_not_shown() -> None:
    config = configured()
    part = CountPart(config, CSV_FILES, count=partial(count_tables, Plan(config), keys={"PH2": b"k" * 32}))
    assert "kkk" not in repr(part)


def test_findings_of_parts_are_those_of_the_whole() -> None:
    source = Source(("a/part-0", "a/part-1"), (100,))
    numbers = np.random.Generator(np.random.Philox(1)).permutation(np.arange(2, 180))
    whole = list_lines(source, numbers, "QAGE", "expected 0 to 115")
    parts = [list_lines(source, some, "QAGE", "expected 0 to 115") for some in np.array_split(numbers, 3)]
    assert merge_findings(parts, [source]) == whole
    assert len(whole) == MOST_LINES + 1


def test_findings_of_one_rule_at_several_units_are_one_rule() -> None:
    parts = [[Finding("a", line, "F", f"rule (its unit: b, line {line})")] for line in range(2, 2 + 30)]
    merged = merge_findings(parts, [Source(("a",))])
    assert merged[MOST_LINES] == Finding("a", None, "F", "rule (10 further lines)")
    assert merged[0] == parts[0][0]


@pytest.mark.parametrize(
    ("missing", "said"),
    [("pyspark", r"opendas\[spark\]"), ("java", "no Java"), ("version", "is Java 8. Set JAVA_HOME")],
)
def test_what_is_missing_is_said_before_anything_starts(
    missing: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda _: None if missing == "pyspark" else object())
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setattr(session, "java_program", lambda: None if missing == "java" else str(old))
    with pytest.raises(EnvironmentFailure, match=said):
        session.check_environment()
    folder = write_world(tmp_path / "data", random_world(1, 20))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(configuration()))
    out = tmp_path / "out"
    assert guarded(cli, ["phsafe", str(config), str(folder), str(out), "--engine", "spark"]) == 6
    assert "engine spark" in capsys.readouterr().err
    assert not out.exists()


def test_a_master_needs_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(cli, ["phsafe", "a.json", "b", "c", "--master", "local"]) == 2
    assert "--master goes with --engine spark" in capsys.readouterr().err


def test_java_home_decides_where_java_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert session.java_program() is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    assert session.java_program() == str(tmp_path / "bin" / "java")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ModuleNotFoundError: No module named 'opendas'", "lacks opendas"),
        ("opendas.engines.spark.partitions.VersionsDiffer", "another version"),
        ("value 41", r"could not finish \(ValueError\)"),
    ],
)
def test_messages_of_spark_stay_in_its_logs(text: str, said: str) -> None:
    with pytest.raises(EnvironmentFailure, match=said) as caught, session.spark_failures():
        raise ValueError(text)
    assert "41" not in str(caught.value)
