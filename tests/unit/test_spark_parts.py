"""What the Spark engine does with counts, answers and files, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import metadata
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest
from support.mini import from_dense, mini_frame, mini_histogram, mini_product, to_dense, write_mini

import opendas.engines.spark.counts as counting
import opendas.engines.spark.engine as engine
import opendas.engines.spark.session as executors
from opendas.custody.folders import atomic_file, remove_partials
from opendas.custody.input_tag import TagSum, tag_key, tag_of
from opendas.custody.run_key import RunKey
from opendas.engines.outputs import Solved
from opendas.engines.spark.counts import (
    COUNT_SCHEMA,
    Entries,
    LastCut,
    SplitAgain,
    TaskCounts,
    Unchanged,
    merge_entries,
    pack_entries,
    split,
    tag_table,
    unpack_entries,
)
from opendas.engines.spark.partitions import (
    Answer,
    EachPartition,
    _hash,
    pack,
    partition_values,
    read_marker,
    unpack,
    write_shared,
)
from opendas.engines.spark.reading import together
from opendas.engines.spark.session import _refuse_clear_text, prepare_executors, source_digest, write_package
from opendas.engines.truth import input_tag
from opendas.engines.work import KeyedSource
from opendas.errors import (
    ConfigError,
    DataError,
    EnvironmentFailure,
    Finding,
    InfeasibleFamily,
    OpendasError,
    PrivacyError,
    SolverFailure,
)
from opendas.readers.frame.units import broken_units, check_units, unit_rules
from opendas.readers.input.spec import FRAME_FROM_RECORDS
from opendas.readers.row_readers import RowReader
from opendas.runs.context.run import load
from opendas.runs.options import RunOptions
from opendas.runs.release import release
from opendas.schema.histogram import Histogram


def same(one: Histogram, other: Histogram) -> bool:
    return np.array_equal(to_dense(one), to_dense(other))


def test_the_hash_is_sparks() -> None:
    """Values of ``SELECT hash(0), hash(1), hash(2), hash(3)``."""
    found = _hash(np.arange(4, dtype=np.uint32)).view(np.int32).tolist()
    assert found == [933211791, -559580957, 1765031574, -1823081949]


@pytest.mark.parametrize("partitions", [1, 2, 3, 64, 65, 1000])
def test_every_partition_has_a_number_of_its_own(partitions: int) -> None:
    numbers = partition_values(partitions)
    hashed = _hash(numbers.astype(np.uint32)).view(np.int32).astype(np.int64)
    assert (hashed % partitions).tolist() == list(range(partitions))


def test_counts_come_back_whatever_they_were_cut_into() -> None:
    table = mini_histogram(mini_frame(3, 4, 5))
    starts = np.array([0, 7, 8, 30, 60])
    slot = partition_values(4)
    every = Entries.of(table)
    halves = [Entries(every.leaf[k::3], every.cell[k::3], every.count[k::3]) for k in range(3)]
    batches = [pack_entries(split(half, starts, slot)) for half in halves]
    rows = pa.Table.from_batches(batches)
    for task in range(4):
        of_task = rows.filter(pa.compute.equal(rows["task"], task))
        assert set(of_task["slot"].to_pylist()) <= {int(slot[task])}
        low, high = int(starts[task]), int(starts[task + 1])
        merged = merge_entries(iter(of_task.to_batches()), task, low, high, table.size)
        assert same(merged, table.slice(low, high))


def test_entries_of_two_files_add_up() -> None:
    one = Entries(np.array([4, 5]), np.array([1, 2]), np.array([10, 20]))
    batches = [pack_entries([(0, 3, one), (0, 3, one)]), pack_entries([(0, 3, one)])]
    merged = merge_entries(iter(batches), 3, 4, 6, 3)
    assert to_dense(merged).tolist() == [[0, 30, 0], [0, 0, 60]]
    with pytest.raises(AssertionError, match="partition of their own"):
        merge_entries(iter(batches), 2, 4, 6, 3)


def test_no_entry_is_no_count() -> None:
    assert to_dense(merge_entries(iter([]), 0, 5, 7, 3)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_counts_are_dealt_out_again() -> None:
    table = mini_histogram(mini_frame(3, 4, 5))
    before, after = np.array([0, 20, 60]), np.array([0, 5, 33, 60])
    batches = [pack_entries(split(Entries.of(table), before, partition_values(2)))]
    again = pa.Table.from_batches(list(SplitAgain(after)(iter(batches))), schema=COUNT_SCHEMA)
    for task in range(3):
        rows = again.filter(pa.compute.equal(again["task"], task)).to_batches()
        low, high = int(after[task]), int(after[task + 1])
        assert same(merge_entries(iter(rows), task, low, high, table.size), table.slice(low, high))
    assert len(list(unpack_entries(batches[0]))) == 2


def test_tags_of_tasks_add_up_to_that_of_the_input() -> None:
    frame = mini_frame(3, 4, 5)
    table, key = mini_histogram(frame), RunKey.seeded(3)
    order = np.random.default_rng(1).permutation(len(frame))
    on_spine = table.take(order)
    parts = [
        tag_table(tag_key(key), order[low:high], on_spine.slice(low, high))
        for low, high in ((0, 11), (11, 12), (12, 60))
    ]
    assert tag_of(key, sum(parts, TagSum()), (table.rows, table.size)) == input_tag(key, table)


def test_counts_that_changed_since_they_were_tagged_are_refused_before_anything_is_drawn() -> None:
    table, key = mini_histogram(mini_frame(3, 4, 5)), RunKey.seeded(3)
    order = np.arange(table.rows)
    secret = tag_key(key)
    whole = TaskCounts(np.array([0, table.rows]), table.size)
    check = Unchanged(whole, secret, order, {0: tag_table(secret, order, table)})

    def rows(some: Histogram) -> Iterator[pa.RecordBatch]:
        return iter([pack_entries([(0, 0, Entries.of(some))])])

    assert same(check(0, rows(table)), table)
    dense = to_dense(table)
    dense[7, 1] += 1
    with pytest.raises(PrivacyError, match="Nothing was drawn"):
        check(0, rows(from_dense(dense)))


def test_cuts_are_compared_by_what_they_are() -> None:
    one = LastCut(1, np.array([0, 5, 9]))
    assert one == LastCut(1, np.array([0, 5, 9]))
    assert one != LastCut(2, np.array([0, 5, 9]))
    assert one != LastCut(1, np.array([0, 4, 9]))
    assert len(one) == 2


@pytest.mark.parametrize(
    "error",
    [
        InfeasibleFamily("0101", "rounding", ["total@state"]),
        SolverFailure("0101", "least squares", 1e-3),
        DataError("wrong", [Finding("a.csv", 3, "age", "expected a number")]),
        EnvironmentFailure("disk full"),
        PrivacyError("changed"),
    ],
)
def test_errors_come_back_from_executors_as_they_were(error: OpendasError, tmp_path: Path) -> None:
    write_shared(tmp_path / "0.done", pack(Answer.of(error)))
    marker = read_marker(tmp_path / "0.done")
    assert marker is not None
    for answer in (unpack(pack(Answer.of(error))), marker):
        with pytest.raises(type(error)) as told:
            answer.get()
        assert str(told.value) == str(error)
        assert vars(told.value) == vars(error)


def test_a_marker_is_there_whole_or_not(tmp_path: Path) -> None:
    assert read_marker(tmp_path / "0.done") is None
    write_shared(tmp_path / "0.done", pack(Answer({"told": 3})))
    found = read_marker(tmp_path / "0.done")
    assert found is not None
    assert found.get() == {"told": 3}


@pytest.mark.parametrize("value", [None, 3, (1, "up"), Solved(3, 1, ({"a": 1},))])
def test_a_marker_holds_what_items_are_answered_with(value: object, tmp_path: Path) -> None:
    write_shared(tmp_path / "0.done", pack(Answer(value)))
    found = read_marker(tmp_path / "0.done")
    assert found is not None
    assert found.get() == value


def starts_of(level: int) -> np.ndarray:
    """First leaf of each geounit: 24 blocks in six towns in two regions."""
    return np.arange(0, 25, [24, 12, 4, 1][level])


SPINE: Any = SimpleNamespace(
    levels=[range(1), range(2), range(6), range(24)], leaf_starts=starts_of, leaf_order=np.arange(24)
)


def test_counts_that_changed_since_they_were_summed_up_are_refused_before_they_are_tagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver draws from the sums: noise of one tag is never added to sums of another input."""
    table, key = mini_histogram(mini_frame(2, 3, 4)), RunKey.seeded(3)
    held = {"now": table}

    def run(counts: counting.SparkCounts, work: Any) -> dict[int, Any]:
        return {task: work(task, iter([own(counts.cut, task)])) for task in range(len(counts.cut))}

    def own(cut: LastCut, task: int) -> pa.RecordBatch:
        low, high = cut.starts[task : task + 2]
        return pack_entries([(0, task, Entries.of(held["now"].slice(low, high), low))])

    monkeypatch.setattr(counting.SparkCounts, "run", run)
    counts = counting.SparkCounts(MagicMock(), LastCut(2, np.array([0, 4, 24])), SPINE, table.size, tmp_path)
    counts.sum_up({3: [mini_product().workload.group("total")]})
    assert counts.tag(key) == input_tag(key, table)
    dense = to_dense(table)
    dense[7, 1] += 1  # a person more
    held["now"] = from_dense(dense)
    with pytest.raises(PrivacyError, match="Nothing was drawn"):
        counts.tag(key)
    dense, cell = to_dense(table), int(to_dense(table)[6].argmax())
    dense[6:8, cell] += (-1, 1)  # or one who moved within a town: a declared total of blocks tells
    held["now"] = from_dense(dense)
    with pytest.raises(PrivacyError, match="Nothing was drawn"):
        counts.tag(key)


def test_sums_of_an_executor_that_was_given_up_are_not_those_of_another_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = mini_histogram(mini_frame(2, 3, 4))
    works: list[Any] = []

    def run(counts: counting.SparkCounts, work: Any) -> dict[int, Any]:
        works.append(partial(work, 0, iter([own(counts.cut, 0)])))
        return {task: work(task, iter([own(counts.cut, task)])) for task in range(len(counts.cut))}

    def own(cut: LastCut, task: int) -> pa.RecordBatch:
        low, high = cut.starts[task : task + 2]
        return pack_entries([(0, task, Entries.of(table.slice(low, high), low))])

    monkeypatch.setattr(counting.SparkCounts, "run", run)
    counts = counting.SparkCounts(MagicMock(), LastCut(2, np.array([0, 4, 24])), SPINE, table.size, tmp_path)
    monkeypatch.setattr(counting, "cache_by", MagicMock())
    counts.sum_up({})
    counts.cut_again(LastCut(2, np.array([0, 20, 24])))
    works[0]()
    assert same(counts.at(2), table.aggregate(starts_of(2)))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o700}


def test_noise_of_an_executor_that_was_given_up_is_not_that_of_another_geolevel(tmp_path: Path) -> None:
    """Here every geolevel is drawn in pieces of the same size."""
    given_up: list[tuple[int, Path]] = []

    def run(work: Any) -> None:
        for level, folder in [(work.level, work.folder), *given_up]:  # they go on
            for task in range(2):
                buffer = BytesIO()
                np.savez(buffer, np.full((1, 3), level))
                write_shared(engine._drawn_path(folder, task, 0), buffer.getvalue())
        given_up.append((work.level, work.folder))

    cut = LastCut(1, np.array([0, 12, 24]))
    counts: Any = SimpleNamespace(cut=cut, spine=SPINE, run=run, unchanged=None)
    source: Any = SimpleNamespace(key=bytes(32), levels=())
    for level in (2, 3):
        drawn = engine.draw_on_executors(source, counts, tmp_path / "full", level, 24)
        assert [int(values[0, 0]) for _, _, (values,) in drawn] == [level, level]
    assert not (tmp_path / "full").exists()


def test_attempts_may_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    code = (
        "import sys; from pathlib import Path; from opendas.engines.spark.partitions import write_shared\n"
        "data = sys.stdin.buffer.read()\n"
        "for _ in range(20): write_shared(Path(sys.argv[1]), data)"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "x.part")], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    threads = [threading.Thread(target=other.communicate, args=(data,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.returncode for other in others] == [0, 0]
    assert (tmp_path / "x.part").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["x.part"]


def test_attempts_do_not_take_each_others_files_away(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"

    def attempt() -> ExitStack:
        open_one = ExitStack()
        open_one.enter_context(atomic_file(path)).write(b"the same")
        return open_one

    one, other = attempt(), attempt()
    assert len(list(tmp_path.iterdir())) == 2
    one.close()
    assert path.read_bytes() == b"the same"
    remove_partials(tmp_path)  # the other was killed, as far as the driver knows
    with pytest.raises(EnvironmentFailure):
        other.close()
    assert path.read_bytes() == b"the same"
    assert [file.name for file in tmp_path.iterdir()] == ["part.parquet"]


def test_a_folder_that_is_not_there_is_made_and_one_that_cannot_be_is_told(tmp_path: Path) -> None:
    write_shared(tmp_path / "new" / "x.part", b"x")
    for gone in ("gone/new", "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(EnvironmentFailure, match="Every executor"):
            write_shared(tmp_path / gone / "x.part", b"x")
    assert not (tmp_path / "gone").exists()


def test_small_files_are_read_together_and_the_largest_begins() -> None:
    sizes = [5, 900_000_000, 7, *[3] * 200]
    groups = together(sizes, 2)
    assert sorted(number for group in groups for number in group) == list(range(len(sizes)))
    assert groups[0] == [1]
    assert len(groups) == 900_000_000 >> 26
    assert max(map(len, groups)) - min(map(len, groups[1:])) <= 1
    assert together([4, 9], 16) == [[1], [0]]
    assert len(together([1] * 50, 2)) == 8


def test_the_package_runs_from_its_archive(tmp_path: Path) -> None:
    """What executors without the package get: the same source, and compiled code can be kept."""
    archive = tmp_path / "opendas.zip"
    write_package(archive)
    code = (
        "import sys; sys.path.insert(0, './opendas.zip')\n"  # Spark's executors have it so
        "import json, opendas, numpy as np, opendas.engines.spark.reading\n"
        "from opendas.measurement.kernels import sum_rows\n"
        "one, two = np.array([0, 2]), np.array([[10, 20]])\n"
        "cells, row = np.array([0, 2], np.int32), np.array([0, 1, 1], np.int32)\n"
        "sum_rows(one, cells, np.array([3, 4]), 0, row, np.array([0, 1], np.int32), two)\n"
        "print(json.dumps([opendas.__file__, two.tolist()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "compiled")},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    where, sums = json.loads(done.stdout.splitlines()[-1])
    assert where.startswith("./opendas.zip")
    assert sums == [[13, 24]]
    assert any((tmp_path / "compiled").rglob("*.nbi"))


class Session:
    """What :func:`prepare_executors` asks of a session, and of its context."""

    defaultParallelism = 2  # noqa: N815

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.sent: list[str] = []
        self.sparkContext = self

    def addPyFile(self, path: str) -> None:
        self.sent.append(path)


def test_the_package_stays_where_executors_that_start_later_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pytest.importorskip("pyspark").SparkFiles
    monkeypatch.setattr(files, "getRootDirectory", lambda: str(tmp_path))
    found = {"host": "one", "digest": None, "cache": True, "sees": True}
    versions = {name: metadata.version(name) for name in executors._NEEDED}
    monkeypatch.setattr(executors, "_probe_executors", lambda *_: [{**found, "versions": versions}])
    session = Session()
    assert prepare_executors(session, tmp_path)  # type: ignore[arg-type]
    (archive,) = map(Path, session.sent)
    assert archive.parent == tmp_path
    assert archive.is_file()
    monkeypatch.setattr(
        executors, "_probe_executors", lambda *_: [{**found, "versions": {**versions, "numba": None}}]
    )
    session = Session()
    with pytest.raises(EnvironmentFailure, match="on one lacks numba"):
        prepare_executors(session, tmp_path)  # type: ignore[arg-type]
    hidden = {**found, "versions": versions, "host": "two", "sees": False}
    monkeypatch.setattr(executors, "_probe_executors", lambda *_: [{**found, "versions": versions}, hidden])
    with pytest.raises(EnvironmentFailure, match=r"executors on two do not see .*--out"):
        prepare_executors(session, tmp_path)  # type: ignore[arg-type]
    assert session.sent == []


ENCRYPTED = dict.fromkeys(
    ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"), "true"
)


def session_of(master: str, settings: dict[str, str]) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: settings))


def test_a_cluster_that_does_not_authenticate_and_encrypt_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for master in ("spark://h:7077", "yarn", "k8s://h", "local-cluster[2,1,1024]"):
        _refuse_clear_text(session_of(master, ENCRYPTED))
        tls = {**ENCRYPTED, "spark.network.crypto.enabled": "false", "spark.ssl.rpc.enabled": "True"}
        _refuse_clear_text(session_of(master, tls))
        for name in ENCRYPTED:
            for value in (None, "false"):
                settings = {key: text for key, text in ENCRYPTED.items() if key != name}
                settings |= {} if value is None else {name: value}
                with pytest.raises(EnvironmentFailure, match=name):
                    _refuse_clear_text(session_of(master, settings))
    assert not caplog.records
    for master in ("local", "local[4]"):
        _refuse_clear_text(session_of(master, {}))
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_work_does_not_show_its_key() -> None:
    whole = TaskCounts(np.array([0, 5]), 3)
    for work in (Unchanged(whole, b"kkkk", np.arange(5), {}), KeyedSource((), b"kkkk")):
        assert "kkkk" not in repr(work) + repr(EachPartition(work))  # type: ignore[arg-type]


def test_the_digest_of_the_source_changes_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    before = source_digest(tmp_path)
    (tmp_path / "a.py").write_text("x = 2")
    assert source_digest(tmp_path) != before
    assert source_digest() == source_digest()


def test_units_are_checked_piece_by_piece_as_at_once() -> None:
    frame, product = mini_frame(3, 4, 5), mini_product()
    dense = np.zeros((60, 9), dtype=np.int64)
    dense[:, 3:6] = 1  # people in schools where there is none
    table = from_dense(dense)
    whole = check_units(frame, table, product, None, "counts.csv")
    assert whole
    wrong = [
        broken_units(product, None, {n: c[low:high] for n, c in frame.units.items()}, table.slice(low, high))
        for low, high in ((0, 30), (30, 60))
    ]
    at_once = broken_units(product, None, frame.units, table)
    for rule, expected in enumerate(at_once):
        assert np.array_equal(np.concatenate([part[rule] for part in wrong]), expected)
    assert [rule[0] for rule in unit_rules(product, None, tuple(frame.units))] == [
        bound.column for bound in product.bounds
    ]


def test_the_engine_is_one_that_there_is() -> None:
    with pytest.raises(ConfigError, match="'local' or 'spark'"):
        RunOptions(engine="cluster")
    with pytest.raises(ConfigError, match="goes with the engine spark"):
        RunOptions(master="spark://host:7077")


def test_a_run_without_subtrees_is_refused_before_spark_starts(tmp_path: Path) -> None:
    path = write_mini(tmp_path, run='estimator = "block-by-block"')
    with pytest.raises(ConfigError, match="block-by-block"):
        release(load(path), tmp_path / "out", RunOptions(engine="spark"))
    assert not (tmp_path / "out").exists()


def test_rows_that_others_may_count_are_those_of_files_with_a_public_frame(tmp_path: Path) -> None:
    run = load(write_mini(tmp_path))
    reader = run.reader
    assert isinstance(reader, RowReader)
    found = reader.file_rows()
    assert found is not None
    assert np.array_equal(found.data.frame.geocodes, run.frame.geocodes)
    assert found.data.histogram.total() == 0
    taken = replace(run.resolved.reader, frame=FRAME_FROM_RECORDS)
    assert RowReader(taken).file_rows() is None
