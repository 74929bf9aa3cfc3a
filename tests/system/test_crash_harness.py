"""The crash harness: its model of the disk bites, broken programs are noticed, the real one comes through."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from audit.crashes.__main__ import main
from audit.crashes.disk import SECTOR, baseline, outcome, torn
from audit.crashes.lives import Machine, live, surroundings
from audit.crashes.mutants import MUTANTS
from audit.crashes.recorder import Orders, operations
from audit.crashes.subjects import SUBJECTS, write_inputs
from audit.crashes.trials import Laboratory
from audit.crashes.ways import WAYS, Fate, Way, draw_fate
from opendas.custody.ledger_lines import read_lines
from opendas.errors import PrivacyError

VERSIONS = 4
LOSSES = (1.0, 0.5, 0.1)

# Writes one file in several versions, of several sectors each, and says when each was there.
WRITER = f"""
import sys
from pathlib import Path
from opendas.custody.folders import write_atomic
disk, said = Path(sys.argv[4]), Path(sys.argv[5])
for version in range({VERSIONS}):
    write_atomic(disk / "new" / "folder" / "file", bytes([65 + version]) * (700 + 300 * version))
    with said.open("a") as file:
        file.write("x")
"""

# Enters acts into a ledger, and says when each was there.
ACTS = """
import sys
from pathlib import Path
from opendas.custody.ledger_entries import INFINITE, LedgerEntry
from opendas.custody.ledger import Ledger
from opendas.privacy.relations import Mechanism, Neighbours
disk, said = Path(sys.argv[4]), Path(sys.argv[5])
with Ledger.open(disk / "ledger.jsonl") as ledger:
    for number in range(3):
        ledger.intend(LedgerEntry(
            run_id=f"{number:032x}", product="p" * 300, key_commitment=f"{number:064x}", input_tag="1" * 64,
            plan_digest="2" * 64, mechanism=Mechanism.DISCRETE_GAUSSIAN, loss=INFINITE,
            relation=Neighbours.BOUNDED, protected_unit="person", version="1", seeded=True,
        ))
        with said.open("a") as file:
            file.write("x")
"""


def dies(machine: Machine, script: str, at: int, mutant: str = "") -> tuple[int, list[Path]]:
    """Let a script lose its power at a file operation.

    Return what it had said by then, and disks that may be left.
    """
    shutil.rmtree(machine.folder, ignore_errors=True)
    machine.disk.mkdir(parents=True)
    (machine.folder / "tmp").mkdir()
    journal, said = machine.folder / "journal", machine.folder / "acknowledged"
    before = baseline(machine.disk, journal)
    orders = Orders(str(machine.disk), str(journal), durable=True, at=at, act="cut", share=0.5, mutant=mutant)
    command = [sys.executable, "-c", script, "a", "b", "c", str(machine.disk), str(said)]
    done = subprocess.run(
        command, env=surroundings(machine, orders), capture_output=True, start_new_session=True, check=False
    )
    assert done.returncode in (0, -9), done.stderr
    left = []
    for loss in LOSSES:
        for draw in range(6):
            target = machine.folder / f"left-{loss}-{draw}"
            outcome(machine.disk, before, journal, random.Random(f"{at} {draw}"), loss, target)
            left.append(target)
    return len(said.read_text()) if said.exists() else 0, left


def whole(left: Path, acknowledged: int) -> bool:
    """Whether the file is absent or whole, and no older than what was acknowledged."""
    path = left / "new/folder/file"
    versions = [bytes([65 + version]) * (700 + 300 * version) for version in range(VERSIONS)]
    if not path.exists():
        return acknowledged == 0
    return path.read_bytes() in versions[max(acknowledged - 1, 0) :]


def kept(left: Path, acknowledged: int) -> bool:
    """Whether the ledger can be read and holds what was acknowledged."""
    path = left / "ledger.jsonl"
    if not path.exists():
        return acknowledged == 0
    try:
        return len(read_lines(path.read_bytes(), path.name)[0]) >= acknowledged
    except PrivacyError:
        return False


AT = (3, 7, 11, 15, 10**6)


def test_atomic_files_survive_a_power_cut(tmp_path: Path) -> None:
    for at in AT:
        acknowledged, left = dies(Machine(tmp_path / "box"), WRITER, at)
        assert all(whole(disk, acknowledged) for disk in left), at
    assert acknowledged == VERSIONS


@pytest.mark.parametrize("mutant", ["no flush", "no folder flush", "in place"])
def test_a_broken_atomic_writer_is_caught(tmp_path: Path, mutant: str) -> None:
    caught = []
    for at in (5, 10**6):
        acknowledged, left = dies(Machine(tmp_path / "box"), WRITER, at, mutant)
        caught += [not whole(disk, acknowledged) for disk in left]
    assert any(caught)


def test_the_ledger_survives_a_power_cut(tmp_path: Path) -> None:
    for at in range(3, 16, 3):
        acknowledged, left = dies(Machine(tmp_path / "box"), ACTS, at)
        assert all(kept(disk, acknowledged) for disk in left), at


@pytest.mark.parametrize("mutant", ["no flush", "newline at once"])
def test_a_broken_ledger_is_caught(tmp_path: Path, mutant: str) -> None:
    caught = []
    for at in (5, 7, 9, 11):
        acknowledged, left = dies(Machine(tmp_path / "box"), ACTS, at, mutant)
        caught += [not kept(disk, acknowledged) for disk in left]
    assert any(caught)


def test_what_is_torn_keeps_what_was_durable() -> None:
    rng = random.Random(5)
    old, new = b"a" * 1000, b"a" * 1000 + b"b" * 3000
    found = [torn(old, new, rng, 0.3) for _ in range(200)]
    assert all(each[:1000] == old for each in found)
    assert all(set(each[1000:]) <= {0, ord("b")} for each in found)
    assert {old, new} <= set(found)
    assert any(0 in each for each in found)
    assert torn(old, new, rng, 1.0) == old
    changed = torn(b"a" * (3 * SECTOR), b"b" * (3 * SECTOR), random.Random(3), 0.4)
    assert set(changed) <= {ord("a"), ord("b")}


def test_a_fate_is_a_function_of_the_seed() -> None:
    way = WAYS[1]
    fates = [draw_fate(random.Random("1 2"), SUBJECTS[0], way, 100) for _ in range(2)]
    assert fates[0] == fates[1]
    assert 1 <= fates[0].at <= 100
    with pytest.raises(ValueError, match="no worker"):
        draw_fate(random.Random(0), SUBJECTS[0], WAYS[3], 100)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crashes") / "inputs"
    write_inputs(folder, 300, SMALL)
    return folder


SMALL = tuple(subject for subject in SUBJECTS if subject.name.startswith("table"))

SEEDED = replace(SMALL[0], key="seed")


@pytest.fixture(scope="module")
def laboratory(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with Laboratory(
        tmp_path_factory.mktemp("trials"), inputs, subjects=SMALL, forks=True, again=0.2
    ) as found:
        yield found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_death_is_survived(laboratory: Laboratory, way: Way) -> None:
    trial = laboratory.trial(WAYS.index(way), seed=6)
    assert trial.problems == [], trial
    assert trial.way.startswith(way.name) or way.when == "space"
    assert trial.deaths or way.when != "operation" or way.who == "worker", trial


@pytest.mark.parametrize(
    ("mutant", "expected"),
    [
        ("draws again", "differs from an undisturbed run's"),
        ("no ledger", "before the ledger held the act"),
        ("late ledger", "before the ledger held the act"),
        ("charges again", "the ledger holds 2 lines of LedgerEntry"),
    ],
)
def test_a_broken_run_is_caught(
    inputs: Path, tmp_path: Path, laboratory: Laboratory, mutant: str, expected: str
) -> None:
    way = next(way for way in WAYS if way.name == "kill -9, at a file operation")
    with Laboratory(tmp_path, inputs, mutant=mutant, subjects=[SEEDED], ways=[way], again=0.0) as broken:
        broken.adopt(laboratory)
        found: list[str] = []
        for number in range(5):
            found += broken.trial(number, seed=3).problems
            if any(expected in problem for problem in found):
                return
    pytest.fail(f"not noticed: {found}")


def test_operations_are_counted_alike(inputs: Path, tmp_path: Path, laboratory: Laboratory) -> None:
    machine = Machine(tmp_path)
    machine.disk.mkdir()
    shutil.copytree(inputs, machine.inputs)
    command = SMALL[0].command(0, machine.inputs, machine.disk, resume=False)
    life = live(command, machine, Fate(), journal=tmp_path / "counted", nursery=laboratory.nursery())
    assert life.code == 0, life.said
    # Not quite the same number: progress is written as time goes by.
    assert operations(tmp_path / "counted") == pytest.approx(
        laboratory.reference(SMALL[0]).operations[0], rel=0.1
    )


@pytest.mark.slow
def test_a_tied_dhc_run_survives_kills(tmp_path: Path) -> None:
    subjects = [subject for subject in SUBJECTS if subject.name == "DHC persons, tied, two workers"]
    ways = [way for way in WAYS if (way.act, way.when, way.moved) == ("kill", "operation", False)]
    write_inputs(tmp_path / "inputs", 200, subjects)
    with Laboratory(
        tmp_path / "trials", tmp_path / "inputs", subjects=subjects, ways=ways, forks=True, again=0.4
    ) as dhc:
        trials = [dhc.trial(number, seed=17) for number in range(len(ways))]
    assert [trial.problems for trial in trials] == [[]] * len(ways)
    assert sum(len(trial.deaths) for trial in trials) >= len(ways)


@pytest.mark.slow
def test_the_command_reports(tmp_path: Path) -> None:
    out = tmp_path / "found"
    words = ["--times", "1", "--blocks", "200", "--forks", "--subject", "table, all", "--out", str(out)]
    assert main([*words, "--scratch", str(tmp_path / "scratch")]) == 0
    assert "same bytes" in (out / "crashes.md").read_text()


def test_every_mutant_is_used_here() -> None:
    assert set(MUTANTS) == {
        *("draws again", "no ledger", "late ledger", "charges again"),
        *("no flush", "no folder flush", "in place", "newline at once"),
    }
