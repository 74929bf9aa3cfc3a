"""``--engine spark`` on a real standalone Spark: the bytes and the refusals of the engine in one process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.households import World, configuration, random_world, write_world
from support.spark_cluster import Cluster, forms, holds, start_cluster

from opendas.custody.run_key import RunKey
from opendas.phsafe.config import Mode, Plan, read_config
from opendas.phsafe.measure import truncation_keys

pytestmark = pytest.mark.slow

SEED = 7
# Runs commands one after the other: the first with a session of its own, keeping what executors have on their
# disks when it is done; the others on a session that is there already.
DRIVER = """
import contextlib, io, json, shutil, sys
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.phsafe import spark_households as households

local, kept, answers, master = sys.argv[1:]
close = households.SparkHouseholds.close

def keep_and_close(self):
    shutil.copytree(local, kept)
    close(self)

def run(words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(cli, words)
    return [code, out.getvalue(), err.getvalue()]

first, *others = (json.loads(line) for line in sys.stdin)
households.SparkHouseholds.close = keep_and_close
told = [run([*first, "--master", master])]
households.SparkHouseholds.close = close

from pyspark.sql import SparkSession
session = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
told += [run(words) for words in others]
session.stop()
with open(answers, "w") as file:
    json.dump(told, file)
"""


@dataclass(frozen=True)
class Runs:
    """What the same commands said here and there."""

    folder: Path
    cluster: Cluster
    local: dict[str, tuple[int, str]]
    spark: dict[str, tuple[int, str]]
    kept: Path


def split(folder: Path, name: str, parts: int) -> None:
    """Turn a file into a folder of parts with a header each."""
    header, *rows = (folder / name).read_text().splitlines()
    (folder / name).unlink()
    (folder / name).mkdir()
    for part in range(parts):
        some = rows[part * len(rows) // parts : (part + 1) * len(rows) // parts]
        (folder / name / f"part-{part:05d}.csv").write_text("\n".join([header, *some]) + "\n")


def damaged() -> World:
    """A world with something wrong of every kind."""
    people, homes, places = random_world(5, 300)
    people[3]["RELSHIP"], people[9]["QAGE"], people[30]["CENRACE"] = "19", "130", "00"
    people[40]["MAFID"] = "899999998"
    homes[7]["HHT2"], homes[7]["HHT"] = "02", "1"
    homes[11]["MAFID"] = homes[12]["MAFID"]
    for home in homes[50:90]:
        home["HHRACE"] = "64"
    places[20]["MAFID"] = "899999999"
    return people, homes, places


def commands(folder: Path) -> dict[str, list[str]]:
    """Commands by name; OUT is added where there is one."""

    def words(name: str, *more: str) -> list[str]:
        return [str(folder / f"{name}.json"), str(folder / name), *more]

    return {
        "private": words("good", "OUT", "--seed", str(SEED)),
        "published-order": words("good", "OUT", "--seed", str(SEED), "--truncation", "tumult-0.12"),
        "exact": words("good", "OUT", "--mode", "non-private"),
        "damaged": words("damaged", "OUT", "--seed", str(SEED)),
        "short-rows": words("short", "--mode", "validate"),
        "headers": words("headers", "--mode", "validate"),
    }


def prepare(folder: Path) -> None:
    good = random_world(3, 400)
    for home in good[1][:40]:  # beyond every tau
        if home["HHT2"] not in ("00", "05", "09"):
            good[0].extend(
                {**person, "QAGE": "40", "RELSHIP": "34"}
                for person in list(good[0])
                if person["MAFID"] == home["MAFID"]
            )
    for name, world in (("good", good), ("damaged", damaged()), ("short", good), ("headers", good)):
        write_world(folder / name, world)
        document: dict[str, Any] = configuration(tau=3)
        (folder / f"{name}.json").write_text(json.dumps(document))
    rows = (folder / "short" / "persons.csv").read_text().splitlines()
    rows[4] = rows[4].rsplit(",", 1)[0]
    rows[90] += ",1"
    (folder / "short" / "persons.csv").write_text("\n".join(rows) + "\n")
    header = (folder / "headers" / "units.csv").read_text()
    (folder / "headers" / "units.csv").write_text(header.replace("RTYPE,MAFID", "MAFID,RTYPE", 1))
    (folder / "headers" / "geo.csv").unlink()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "cluster").mkdir()
    with start_cluster(folder / "cluster") as cluster:
        prepare(folder)
        asked = commands(folder)
        # Parts of a folder are read as one file; the private run must not see the difference.
        there = {name: list(words) for name, words in asked.items()}
        shutil.copytree(folder / "good", folder / "parts")
        split(folder / "parts", "persons.csv", 3)
        there["published-order"][1] = f"file://{folder / 'parts'}"
        lines = []
        for name, given in there.items():
            words = [str(folder / "there" / name) if word == "OUT" else word for word in given]
            lines.append(json.dumps(["phsafe", *words, "--engine", "spark"]))
        subprocess.run(
            [
                *(sys.executable, "-c", DRIVER, cluster.environment["SPARK_LOCAL_DIRS"]),
                *(folder / "kept", folder / "a", cluster.url),
            ],
            input="\n".join(lines),
            text=True,
            env=cluster.environment,
            check=True,
        )
        answers = json.loads((folder / "a").read_text())
        spark = {name: (code, err) for name, (code, _, err) in zip(there, answers, strict=True)}
        local = {}
        for name, given in asked.items():
            words = [str(folder / "here" / name) if word == "OUT" else word for word in given]
            done = subprocess.run(
                [sys.executable, "-m", "opendas", "phsafe", *words],
                capture_output=True,
                text=True,
                check=False,
            )
            local[name] = done.returncode, done.stderr
        yield Runs(folder, cluster, local, spark, folder / "kept")


def published(out: Path) -> dict[str, bytes]:
    """Every file that may leave the office."""
    files = [*out.glob("PH*/*.csv"), *out.glob("certificate.json")]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", ["private", "published-order", "exact"])
def test_the_output_is_the_same_byte_for_byte(runs: Runs, name: str) -> None:
    assert runs.spark[name][0] == 0, runs.spark[name][1]
    assert runs.local[name][0] == 0
    here, there = (published(runs.folder / where / name) for where in ("here", "there"))
    assert len(here) == 11 + (name != "exact")
    assert here == there


def findings(text: str) -> list[str]:
    return sorted(line.strip() for line in text.splitlines() if line.startswith("  ") and ".csv" in line)


@pytest.mark.parametrize("name", ["damaged", "headers"])
def test_what_is_refused_is_the_same_by_file_line_and_rule(runs: Runs, name: str) -> None:
    assert runs.local[name][0] == runs.spark[name][0] == 3
    assert findings(runs.spark[name][1]) == findings(runs.local[name][1])
    assert len(findings(runs.local[name][1])) > 1
    assert not (runs.folder / "there" / name).exists()


def test_rows_with_other_fields_are_refused_with_their_lines(runs: Runs) -> None:
    code, text = runs.spark["short-rows"]
    assert code == 3
    listed = findings(text)
    assert [line for line in listed if "fields, found" in line] == [
        "persons.csv, line 5: expected 6 fields, found 5",
        "persons.csv, line 91: expected 6 fields, found 7",
    ]


def test_keys_are_in_no_log_and_on_no_disk_of_the_executors(runs: Runs, tmp_path: Path) -> None:
    key = RunKey.seeded(SEED)
    plan = Plan(read_config(runs.folder / "good.json", Mode.PRIVATE))
    derived = truncation_keys(plan, key)
    assert len(derived) == 9
    wanted = [form for one in (key._secret, *derived.values()) for form in forms(one)]
    (tmp_path / "control").write_bytes(b"x" + derived["PH2"] + b"y")
    assert holds(tmp_path, wanted) == [tmp_path / "control"]
    looked_at = [path for path in (*runs.kept.rglob("*"), *runs.cluster.folder.rglob("*")) if path.is_file()]
    assert any("shuffle" in path.name for path in looked_at)
    assert any(path.parent.name.startswith("eventlog") or "events" in str(path) for path in looked_at)
    assert any(path.name == "stderr" for path in looked_at)
    assert holds(runs.kept, wanted) == holds(runs.cluster.folder, wanted) == []


def test_records_are_not_in_clear_on_the_disks_of_the_executors(runs: Runs) -> None:
    """A key of a unit stands in shuffle files as eight bytes of either order, unless they are encrypted."""
    first = 100_000_001
    keys = [(first + 7 * number) for number in range(400)]
    wanted = [key.to_bytes(8, order) for key in keys for order in ("big", "little")]
    assert holds(runs.kept, wanted) == []


def test_a_master_that_is_not_there_is_an_environment_failure(runs: Runs, tmp_path: Path) -> None:
    words = [str(runs.folder / "good.json"), str(runs.folder / "good"), str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "opendas", "phsafe", *words, "--engine", "spark", "--master", "nonsense://1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6
    assert "engine spark could not start" in done.stderr
    assert not (tmp_path / "out").exists()
