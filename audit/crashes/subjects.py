"""What is run: made inputs, and commands that differ in estimator, workers, phases, keys and ledgers."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opendas.demo import write_demo
from opendas.demo.census import margins_of, write_census
from opendas.demo.households import synthetic_households
from opendas.runs.context.run import load

__all__ = ["BOOK", "KEY", "SUBJECTS", "Subject", "write_inputs"]

BOOK = "shared.book"
"""Account of a data set, made with the inputs: each machine has a copy, and of its key."""

KEY = "5a" * 32
"""Key of the runs whose key is handed in."""

TABLE = """\
[product]
name = "patients"
protected_unit = "patient"
provenance = "code-book"
[attributes]
age = ["young", "adult", "old"]
cause = ["injury", "heart", "lung", "other"]
[queries]
groups = ["age", "cause"]
[[invariants]]
query = "total"
geolevel = "region"
[[bounds]]
query = "age"
cell = "old"
column = "beds"
"""

RUN = """\
[run]
product = "product.toml"
[input]
reader = "histogram"
path = "patients.csv"
geocode = "geocode"
count = "count"
units = { path = "wards.csv", geocode = "geocode", provenance = "public" }
[geography]
frame = "wards.csv"
provenance = "public"
levels = [
    { name = "region", prefix = 2 }, { name = "town", prefix = 4 },
    { name = "hospital", prefix = 6 }, { name = "ward", prefix = 8 }
]
[budget]
rho = "2"
geolevels = { region = "1/8", town = "1/8", hospital = "1/4", ward = "1/2" }
[budget.queries]
"*" = { total = "1/4", age = "1/4", detailed = "1/2" }
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """One kind of run.

    Parameters
    ----------
    name : str
    steps : tuple of tuple of str
        Commands, each with its run file's name second.
    key : str
        ``seed``; ``command``: always :data:`KEY`, from a key command; ``own``: drawn by the run itself.
    products : int
        Privacy acts of the whole.
    shared : bool
        The ledger is a book, outside of the output folder.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]
    key: str = "seed"
    products: int = 1
    shared: bool = False

    @property
    def workers(self) -> int:
        """Worker processes at most."""
        return 2 if any("2" in step for step in self.steps) else 1

    def ledger(self, disk: Path) -> Path:
        """Return the ledger of a run on `disk`."""
        return disk / BOOK if self.shared else disk / "out" / "ledger.jsonl"

    def command(self, number: int, inputs: Path, disk: Path, *, resume: bool, key: str = KEY) -> list[str]:
        """Return the command of a step."""
        name, run_file, *more = self.steps[number]
        words = [
            sys.executable,
            "-m",
            "opendas",
            name,
            str(inputs / run_file),
            "--out",
            str(disk / "out"),
            *more,
        ]
        if name != "estimate":
            if self.key == "seed":
                words += ["--seed", "11"]
            elif self.key == "command" or key != KEY:
                words += ["--key-command", f"/bin/echo {key}"]
            else:
                words += ["--keep-key"]  # to make the undisturbed run with it afterwards
        if self.shared:
            words += ["--ledger", str(self.ledger(disk))]
        return words + (["--resume"] if resume else [])


_TWO = ("--workers", "2")
_ONE = ("--workers", "1")

SUBJECTS = (
    Subject("persons, topdown, one worker", (("run", "persons.toml", *_ONE),)),
    Subject("persons, topdown, two workers", (("run", "persons.toml", *_TWO),), key="command"),
    Subject("persons, informed, one worker", (("run", "informed.toml", *_ONE),), key="command"),
    Subject("persons, informed, two workers", (("run", "informed.toml", *_TWO),)),
    Subject(
        "persons, informed, measured first",
        (("measure", "informed.toml"), ("estimate", "informed.toml", *_TWO)),
        key="command",
    ),
    Subject("table, all measurements", (("run", "table.toml", *_ONE, "--measurements", "full"),), key="own"),
    Subject(
        "table, measured first", (("measure", "table.toml"), ("estimate", "table.toml", *_ONE)), key="own"
    ),
    Subject("table, shared ledger", (("run", "table.toml", *_TWO),), key="own", shared=True),
    Subject(
        "table, measured first, shared ledger",
        (("measure", "table.toml"), ("estimate", "table.toml")),
        key="own",
        shared=True,
    ),
    Subject(
        "persons, then units", (("run", "persons.toml", *_ONE), ("run", "units.toml", *_ONE)), products=2
    ),
    Subject("DHC persons, tied, one worker", (("run", "census/run-dhc-persons.toml", *_ONE),), key="command"),
    Subject(
        "DHC persons, tied, two workers", (("run", "census/run-dhc-persons.toml", *_TWO),), key="command"
    ),
)


def write_inputs(folder: Path, blocks: int, subjects: Sequence[Subject] = SUBJECTS) -> None:
    """Write the inputs of subjects."""
    write_demo(folder, blocks)
    text = (folder / "persons.toml").read_text(encoding="utf-8")
    informed = text.replace("[run]\n", '[run]\nestimator = "informed"\n', 1)
    (folder / "informed.toml").write_text(informed, encoding="utf-8")
    _write_table(folder, wards=max(blocks // 2, 200))
    with tempfile.TemporaryDirectory() as books:  # noted nowhere else: each machine has copies of its own
        _opendas(books, "ledger", "create", folder / BOOK, "--limit-rho", 4, "--unit", "patient")
        if any(step[1].startswith("census/") for subject in subjects for step in subject.steps):
            _write_census(folder / "census", min(blocks, 300), books)


def _opendas(books: str, *words: object) -> None:
    command = [sys.executable, "-m", "opendas", *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, "OPENDAS_BOOKS": books}, capture_output=True)


def _write_census(folder: Path, blocks: int, books: str) -> None:
    """Make a synthetic census of a small state, and the redistricting release that its DHC is tied to."""
    runs = write_demo(folder / "margins", blocks)
    margins = margins_of(*(load(run).reader.read() for run in runs))
    write_census(folder, margins, synthetic_households(), f"made state of {blocks} blocks", seed=11)
    with (folder / "run-dhc-persons.toml").open("a", encoding="utf-8") as file:
        file.write('[tie]\nrelease = "pl94"\n')
    key = ("--key-command", f"/bin/echo {KEY[::-1]}")
    _opendas(books, "run", folder / "run-pl94-persons.toml", "--out", folder / "pl94", *key)


def _write_table(folder: Path, wards: int) -> None:
    rng = np.random.default_rng(wards)
    codes = [f"{i % 4:02d}{i % 20:02d}{i % 100:02d}{i // 100:02d}" for i in range(wards)]
    codes = sorted(set(codes))
    with (
        (folder / "wards.csv").open("w", newline="", encoding="utf-8") as wards_file,
        (folder / "patients.csv").open("w", newline="", encoding="utf-8") as patients_file,
    ):
        public, secret = csv.writer(wards_file), csv.writer(patients_file)
        public.writerow(["geocode", "beds"])
        secret.writerow(["geocode", "age", "cause", "count"])
        for code in codes:
            old = rng.poisson(1.0, 4)
            public.writerow([code, int(old.sum() + rng.integers(0, 3))])
            for age, counts in zip(("young", "adult", "old"), (*rng.poisson(2.0, (2, 4)), old), strict=True):
                for cause, count in zip(("injury", "heart", "lung", "other"), counts.tolist(), strict=True):
                    if count:
                        secret.writerow([code, age, cause, count])
    (folder / "product.toml").write_text(TABLE, encoding="utf-8")
    (folder / "table.toml").write_text(RUN, encoding="utf-8")
