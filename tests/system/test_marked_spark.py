"""Marked records on a real Spark: not in event logs, logs, shuffle files, nor elsewhere at its executors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import marked_worlds as worlds
from support.spark_cluster import Cluster, start_cluster

sys.path.insert(0, str(Path(__file__).parents[2]))

from audit.marked.marks import key_mark, number_mark, text_mark
from audit.marked.sandbox import Sandbox
from audit.marked.scan import scan_folder
from opendas.custody.input_tag import tag_key
from opendas.custody.run_key import RunKey
from opendas.phsafe.config import Mode, Plan, read_config
from opendas.phsafe.measure import truncation_keys
from opendas.runs.context.workspace import read_state

pytestmark = pytest.mark.slow

RECORDS = [
    number_mark("a count", worlds.COUNT),
    number_mark("a number", worlds.NUMBER),
    text_mark("a text", worlds.TEXT),
]

CLEAR = f"""
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.config("spark.ui.enabled", "false")
    .config("spark.io.encryption.enabled", "false").getOrCreate()
)
people = [(n % 7, {worlds.COUNT}, "{worlds.TEXT}") for n in range(500)]
rows = session.createDataFrame(people, "a long, b long, c string")
rows.repartition(3, "a").collect()
session.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


def sandbox_on(cluster: Cluster, folder: Path) -> Sandbox:
    names = [name for name in cluster.environment if name.startswith(("SPARK", "JAVA", "PYSPARK"))]
    environment = {name: cluster.environment[name] for name in names}
    return Sandbox(folder, {**environment, "PYSPARK_PYTHON": sys.executable}, (cluster.folder,))


def test_the_search_finds_records_that_spark_writes_in_clear(cluster: Cluster, tmp_path: Path) -> None:
    """Without encryption records stand in shuffle files, compressed: what the next test relies on."""
    sandbox = sandbox_on(cluster, tmp_path / "box")
    (sandbox.input / "clear.py").write_text(CLEAR.replace("builder.", f"builder.master('{cluster.url}').", 1))
    program = [sys.executable, str(sandbox.input / "clear.py")]
    done = sandbox.run_program(program)
    assert done.code == 0, done.err
    found, _ = sandbox.leaks(RECORDS)
    shuffled = {one.mark for one in found if "shuffle" in one.where}
    assert shuffled == {"a count", "a text"}


def test_a_run_on_spark_shows_no_record_and_no_key(cluster: Cluster, tmp_path: Path) -> None:
    sandbox = sandbox_on(cluster, tmp_path / "box")
    run = worlds.histogram_csv(sandbox.input)
    out = sandbox.work / "out"
    done = sandbox.run("run", run, "--out", out, "--keep-key", "--engine", "spark", "--master", cluster.url)
    assert done.code == 0, done.err
    key = RunKey.load(out / "confidential" / "keys" / "mini.key")
    state = read_state(out / "state" / "mini" / "run.json")
    noise = key.derive("noise/mini", bytes.fromhex(state.plan_digest), bytes.fromhex(state.input_tag))
    keys = [key_mark("run key", key._secret), key_mark("noise key", noise), key_mark("tag key", tag_key(key))]
    assert scan_folder(out / "confidential" / "keys", keys)[0]
    assert_clean(sandbox, cluster, [*RECORDS, *keys])


def test_households_on_spark_show_no_record_and_no_key(cluster: Cluster, tmp_path: Path) -> None:
    sandbox = sandbox_on(cluster, tmp_path / "box")
    config, data = worlds.households(sandbox.input)
    words = ["phsafe", config, data, "out", "--keep-key", "--engine", "spark", "--master", cluster.url]
    done = sandbox.run(*words)
    assert done.code == 0, done.err
    key = RunKey.load(sandbox.work / "out" / "confidential" / "keys" / "phsafe.key")
    derived = truncation_keys(Plan(read_config(config, Mode.PRIVATE)), key)
    keys = [key_mark(name, one) for name, one in [("run key", key._secret), *derived.items()]]
    assert_clean(sandbox, cluster, [*RECORDS, *keys])


def assert_clean(sandbox: Sandbox, cluster: Cluster, marks: list) -> None:
    """Nothing in the sandbox, nor in what is left of the cluster, which wrote what a cluster writes."""
    found, scanned = sandbox.leaks(marks)
    assert found == []
    left = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert any("events" in str(path) for path in left), "event logs are on"
    assert any(path.name == "stderr" for path in left), "executors keep logs"
    copied = [path.name for path in (sandbox.folder / "attic").iterdir()]
    assert any("shuffle" in name for name in copied), "shuffle files were seen while they were there"
    # The control wrote its records into the logs of no executor and no event.
    kept = [one for one in scan_folder(cluster.folder, marks)[0] if "shuffle" not in one.where]
    assert kept == []
    assert scanned > 50
