"""Input and releases on a server elsewhere: Hadoop's own client of FTP, and a standalone Spark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.ftp_server import PASSWORD, start_ftp
from support.spark_cluster import Cluster, forms, holds, start_cluster

from opendas.demo import write_nation

pytestmark = pytest.mark.slow

# Runs commands one after the other on a session that does not encrypt what it writes, and keeps what
# executors have on their disks.
DRIVER = """
import contextlib, io, json, shutil, sys
from pyspark.sql import SparkSession
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.engines.spark import engine

local, kept, answers, master = sys.argv[1:]
close = engine.SparkEngine.__exit__
def keep_and_close(self, *rest):
    with contextlib.suppress(shutil.Error):  # some of it may go meanwhile
        shutil.copytree(local, kept, dirs_exist_ok=True)
    return close(self, *rest)
engine.SparkEngine.__exit__ = keep_and_close

session = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
told = {}
for line in sys.stdin:
    name, words = json.loads(line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(cli, words)
    told[name] = [code, out.getvalue() + err.getvalue()]
session.stop()
with open(answers, "w") as file:
    json.dump(told, file)
"""
FAILS = {"cut-first": 0, "cut-later": 5}


@dataclass(frozen=True)
class Runs:
    """What commands said, and where everything is."""

    folder: Path
    cluster: Cluster
    told: dict[str, tuple[int, str]]

    def out(self, name: str) -> Path:
        return self.folder / "out" / name

    def fetched(self, name: str) -> Path:
        return self.folder / "server" / "published" / name


def prepare(folder: Path, at: str) -> None:
    """Make a nation on the server, and run files for it here and there."""
    data = folder / "server" / "nation"
    write_nation(data, 120, 2, 1, people=30.0)
    (first, *_) = sorted((data / "persons").rglob("*.parquet"))
    first.rename(first.with_name("a name, with spaces & more.parquet"))
    for name in ("persons", "units"):
        text = (data / f"{name}.toml").read_text()
        there = re.sub(r'(path|frame) = "([^"]+)"', rf'\1 = "{at}/nation/\2"', text)
        assert there.count(at) >= 2
        (folder / f"{name}.toml").write_text(there)
    text = (folder / "persons.toml").read_text()
    (folder / "password.toml").write_text(text.replace("ftp://", f"ftp://census:{PASSWORD}@"))
    (folder / "user.toml").write_text(text.replace("ftp://", "ftp://census@"))
    (folder / "nothing.toml").write_text(text.replace("nation/persons", "nation/none"))
    foreign = folder / "server" / "published" / "foreign"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_text("somebody's")


def commands(folder: Path, at: str) -> list[tuple[str, list[str]]]:
    """Name and words."""
    found = []

    def run(name: str, file: Path, *more: str) -> None:
        out = folder / "out" / name
        found.append((name, ["run", str(file), "--out", str(out), "--seed", "7", *more]))

    for product in ("persons", "units"):
        here = folder / "server" / "nation" / f"{product}.toml"
        run(f"{product}-here", here, "--workers", "1")
        run(f"{product}-there", folder / f"{product}.toml", "--engine", "spark")
    for name in ("password", "user", "nothing"):
        run(name, folder / f"{name}.toml", "--engine", "spark")
    for name in ("whole", *FAILS, "foreign"):
        words = ["publish", str(folder / "out" / "persons-here"), f"{at}/published/{name}", "--allow-seeded"]
        found += [(name, words), (f"{name} again", words)]
    found.append(
        ("with a password", [*words[:2], at.replace("://", f"://census:{PASSWORD}@") + "/published/x"])
    )
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("ftp")
    (folder / "cluster").mkdir()
    (folder / "server").mkdir()
    with (
        start_ftp(folder / "server", FAILS) as server,
        start_cluster(folder / "cluster", server.settings) as cluster,
    ):
        prepare(folder, server.address)
        cluster.environment.update(SOURCE_DATE_EPOCH="1700000000", PYSPARK_PYTHON=sys.executable)
        subprocess.run(
            [
                *(sys.executable, "-c", DRIVER, cluster.environment["SPARK_LOCAL_DIRS"]),
                *(folder / "kept", folder / "told", cluster.url),
            ],
            input="\n".join(map(json.dumps, commands(folder, server.address))),
            text=True,
            env=cluster.environment,
            check=True,
        )
        told = {
            name: (code, text) for name, (code, text) in json.loads((folder / "told").read_text()).items()
        }
        yield Runs(folder, cluster, told)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("product", ["persons", "units"])
def test_input_on_a_server_gives_the_same_release(runs: Runs, product: str) -> None:
    for name in (f"{product}-here", f"{product}-there"):
        assert runs.told[name][0] == 0, runs.told[name][1]
    here, there = (tree(runs.out(f"{product}-{where}") / "release") for where in ("here", "there"))
    assert len(here) > 8
    assert [name for name in {**here, **there} if here.get(name) != there.get(name)] == []


def test_what_is_not_there_or_not_let_in_is_told(runs: Runs) -> None:
    code, text = runs.told["nothing"]
    assert code == 2
    assert "nothing found at ftp://" in text
    code, text = runs.told["user"]  # its password is asked for under another name
    assert code == 6
    assert "cannot be used" in text
    assert not runs.out("nothing").exists()
    assert not runs.out("user").exists()


def test_a_release_on_a_server_is_whole(runs: Runs) -> None:
    for name in ("whole", "whole again"):
        assert runs.told[name][0] == 0, runs.told[name][1]
    assert tree(runs.fetched("whole")) == tree(runs.out("persons-here") / "release")


@pytest.mark.parametrize("name", FAILS)
def test_a_copy_that_was_cut_off_is_finished(runs: Runs, name: str) -> None:
    code, text = runs.told[name]
    assert code == 6
    assert "cannot be used" in text
    assert runs.told[f"{name} again"][0] == 0, runs.told[f"{name} again"][1]
    assert tree(runs.fetched(name)) == tree(runs.out("persons-here") / "release")


def test_a_fetched_release_verifies(runs: Runs) -> None:
    (runs.folder / "fetched").mkdir()
    runs.fetched("cut-later").rename(runs.folder / "fetched" / "release")
    words = ["verify", str(runs.folder / "fetched"), "--allow-seeded"]
    done = subprocess.run(
        [sys.executable, "-m", "opendas", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_put_beside_files_of_others(runs: Runs) -> None:
    for name in ("foreign", "foreign again"):
        code, text = runs.told[name]
        assert code == 2
        assert "'notes.txt', which is not of this release; choose an empty folder" in text
    assert tree(runs.fetched("foreign")) == {"notes.txt": b"somebody's"}


def test_passwords_are_refused_in_addresses_and_stand_nowhere(runs: Runs, tmp_path: Path) -> None:
    for name in ("password", "with a password"):
        code, text = runs.told[name]
        assert code == 2
        assert "an address with a password would stand in logs" in text
    assert PASSWORD not in json.dumps(runs.told)
    assert not runs.out("password").exists()
    wanted = forms(PASSWORD.encode())
    looked_at = [*runs.cluster.folder.rglob("*"), *(runs.folder / "kept").rglob("*")]
    for name in ("events_", "stderr", "shuffle_"):
        assert any(path.name.startswith(name) for path in looked_at), name
    (control,) = holds(runs.cluster.folder, wanted)
    assert control.name == "spark-defaults.conf"
    for folder in ("kept", "out", "server"):
        assert holds(runs.folder / folder, wanted) == []
