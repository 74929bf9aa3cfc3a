"""A trial: a run is started, dies, is resumed, perhaps dies again, and is finished; then it is looked at."""

from __future__ import annotations

import random
import shutil
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from audit.crashes.checks import after_death, at_the_end, beside, stage, tree
from audit.crashes.lives import Life, Machine, live, small_disk, surroundings
from audit.crashes.nursery import Nursery
from audit.crashes.recorder import operations
from audit.crashes.subjects import BOOK, KEY, SUBJECTS, Subject
from audit.crashes.ways import WAYS, Way, draw_fate
from opendas.report.certificate import ISSUED_FILES

__all__ = ["Death", "Laboratory", "Trial"]

MOST_DEATHS = 6
AGAIN = 0.6
"""Chance that a resumed life dies too, where nothing else is asked for."""


@dataclass(frozen=True, slots=True)
class Death:
    """One death.

    Parameters
    ----------
    way, stage : str
    code : int
        Exit status of the process.
    step : int
        Which of the subject's commands.
    """

    way: str
    stage: str
    code: int
    step: int


@dataclass(slots=True)
class Trial:
    """What became of one run.

    Parameters
    ----------
    number : int
    seed : int
    subject, way : str
    deaths : list of Death
    problems : list of str
        Empty where the run came to the same bytes as an undisturbed one and the ledger holds each act once.
    """

    number: int
    seed: int
    subject: str
    way: str
    deaths: list[Death] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reference:
    """An undisturbed run: its release after each step, what else it leaves, and what a step takes."""

    releases: tuple[dict[str, str], ...]
    names: frozenset[str]
    seconds: tuple[float, ...]
    operations: tuple[int, ...]
    size: int

    def versions(self, name: str) -> set[str]:
        """Return the digests that a file of the release has in the course of the run."""
        return {release[name] for release in self.releases if name in release}


class Laboratory:
    """Does trials in a scratch folder.

    Parameters
    ----------
    folder : Path
        New.
    inputs : Path
        From :func:`audit.crashes.subjects.write_inputs`.
    mutant : str
        Breaks the program in every disturbed life; see :mod:`audit.crashes.mutants`.
    subjects, ways : sequences
        To choose from.
    forks : bool
        Lives are forked off a process that has the program loaded; see :mod:`audit.crashes.nursery`.
    again : float
        Chance that a resumed life dies too.
    """

    def __init__(
        self,
        folder: Path,
        inputs: Path,
        *,
        mutant: str = "",
        subjects: Sequence[Subject] = SUBJECTS,
        ways: Sequence[Way] = WAYS,
        forks: bool = False,
        again: float = AGAIN,
    ) -> None:
        self._folder = folder
        self._inputs = inputs
        self._mutant = mutant
        self._subjects = tuple(subjects)
        two = any(subject.workers > 1 for subject in subjects)
        self._ways = tuple(way for way in ways if two or way.who != "worker")
        self._references: dict[tuple[str, str], Reference] = {}
        self._lock = threading.Lock()
        self._forks = forks
        self.again = again
        self._own = threading.local()
        self._nurseries: list[Nursery] = []

    def trial(self, number: int, seed: int) -> Trial:
        """Do one trial; what is random in it is a function of the seed and its number."""
        rng = random.Random(f"{seed} {number}")
        way = self._ways[number % len(self._ways)]
        fitting = [s for s in self._subjects if way.who != "worker" or s.workers > 1]
        subject = rng.choice(fitting)
        trial = Trial(number, seed, subject.name, way.name)
        folder = self._folder / f"trial-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        with ExitStack() as stack:
            try:
                _Course(self, trial, subject, rng, self._machine(folder / "here"), stack).run(way)
            except Exception as error:
                trial.problems.append(f"the harness failed: {type(error).__name__}: {error}")
        if not trial.problems:
            shutil.rmtree(folder, ignore_errors=True)
        return trial

    def nursery(self) -> Nursery | None:
        """Return the nursery of this thread."""
        if not self._forks:
            return None
        if not hasattr(self._own, "nursery"):
            place = Machine(self._folder)
            self._own.nursery = Nursery(surroundings(place, None), self._inputs)
            self._nurseries.append(self._own.nursery)
        return cast(Nursery, self._own.nursery)

    def adopt(self, other: Laboratory) -> None:
        """Use another laboratory's nursery in this thread; the other one closes it."""
        self._forks = True
        self._own.nursery = other.nursery()

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(self, *_: object) -> None:
        for nursery in self._nurseries:
            nursery.close()

    @property
    def mutant(self) -> str:
        """The mutant under test."""
        return self._mutant

    def _machine(self, folder: Path, umask: int = 0o022) -> Machine:
        machine = Machine(folder, umask)
        machine.disk.mkdir(parents=True)
        shutil.copytree(self._inputs, machine.inputs)
        bring_book(machine)
        return machine

    def elsewhere(self, machine: Machine, rng: random.Random) -> Machine:
        """Copy a machine's disk to another one, and give up the first."""
        name = "".join(rng.choices("abcdefgh", k=8))
        other = self._machine(
            machine.folder.with_name(f"{name} elsewhere"), rng.choice((0o077, 0o027, 0o002))
        )
        shutil.copytree(machine.disk, other.disk, dirs_exist_ok=True)
        shutil.rmtree(machine.folder)
        return other

    def reference(self, subject: Subject, key: str = KEY) -> Reference:
        """Return an undisturbed run under a key, made when it is first asked for."""
        with self._lock:
            name = (subject.name, key)
            if name not in self._references:
                self._references[name] = self._undisturbed(subject, key, len(self._references))
            return self._references[name]

    def _undisturbed(self, subject: Subject, key: str, number: int) -> Reference:
        folder = self._folder / f"reference-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        machine = self._machine(folder)
        given = replace(subject, key="command") if subject.key == "own" else subject
        releases, seconds, counts = [], [], []
        for step in range(len(subject.steps)):
            command = given.command(step, machine.inputs, machine.disk, resume=False, key=key)
            journal = machine.folder / "counted"
            life = live(command, machine, journal=journal, nursery=self.nursery())
            if life.code != 0:
                raise RuntimeError(
                    f"{subject.name}: undisturbed, it ends with {life.code}: {life.said[-500:]}"
                )
            releases.append(tree(machine.disk / "out" / "release"))
            seconds.append(life.seconds)
            counts.append(operations(journal))
        if problems := self.verify(subject, machine):
            raise RuntimeError(f"{subject.name}: undisturbed, {problems[0]}")
        out = machine.disk / "out"
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        found = Reference(tuple(releases), frozenset(beside(out)), tuple(seconds), tuple(counts), size)
        shutil.rmtree(machine.folder)
        return found

    def verify(self, subject: Subject, machine: Machine) -> list[str]:
        """Return what ``opendas verify`` says against a machine's release."""
        program = subject.command(0, machine.inputs, machine.disk, resume=False)[:3]
        more = ["--allow-seeded"] if subject.key == "seed" else []
        checked = live(
            [*program, "verify", str(machine.disk / "out"), *more], machine, nursery=self.nursery()
        )
        return (
            [] if checked.code == 0 else [f"opendas verify ends with {checked.code}: {checked.said[-300:]}"]
        )


def bring_book(machine: Machine) -> None:
    """Put a copy of the book, and of its key, on a machine's disk."""
    for book in machine.inputs.glob(f"{BOOK}*"):
        shutil.copy2(book, machine.disk)


class _Course:
    """The course of one trial."""

    def __init__(
        self,
        laboratory: Laboratory,
        trial: Trial,
        subject: Subject,
        rng: random.Random,
        machine: Machine,
        stack: ExitStack,
    ) -> None:
        self._laboratory = laboratory
        self._trial = trial
        self._subject = subject
        self._rng = rng
        self._machine = machine
        self._stack = stack
        self._usual = laboratory.reference(subject)
        self._seen: list[dict[str, str]] = []
        self._over = False

    @property
    def _out(self) -> Path:
        return self._machine.disk / "out"

    @property
    def _ledger(self) -> Path:
        return self._subject.ledger(self._machine.disk)

    def run(self, way: Way) -> None:
        """Start, die, resume, die again, and look at what came out."""
        if way.when == "space" and not self._stack.enter_context(small_disk(self._machine.disk)):
            way = next(w for w in WAYS if w.act == "full" and w.when == "operation")
            self._trial.way = f"{way.name} (no small file system can be mounted here)"
        bring_book(self._machine)  # onto what was mounted
        first = self._rng.randrange(len(self._subject.steps))
        deaths = 0
        for step in range(len(self._subject.steps)):
            resume = False
            while True:
                again = (
                    deaths < MOST_DEATHS and not self._over and self._rng.random() < self._laboratory.again
                )
                dies = (step == first and deaths == 0) or (deaths > 0 and again)
                life = self._life(step, way if dies else None, resume)
                deaths += dies and life.struck
                resume = True
                if dies and life.struck:
                    continue
                if life.code != 0:
                    said = life.said.strip().splitlines()[-1:] or [""]
                    self._trial.problems.append(f"not resumable: status {life.code}: {said[0]}")
                    return
                if not dies or deaths == 0:
                    break
        self._look()

    def _life(self, step: int, way: Way | None, resume: bool) -> Life:
        fate = draw_fate(self._rng, self._subject, way, self._usual.operations[step])
        if way is not None and way.who == "worker" and way.when == "operation":
            fate = replace(fate, at=self._rng.randint(1, max(fate.at // 4, 4)))
        ballast = self._machine.disk / "ballast"
        if fate.way is not None and fate.way.when == "space":
            _fill(ballast, int(fate.space * self._usual.size))
        life = live(
            self._subject.command(step, self._machine.inputs, self._machine.disk, resume=resume),
            self._machine,
            fate,
            usual=self._usual.seconds[step] * (0.6 if resume else 1.0),
            rng=self._rng,
            mutant=self._laboratory.mutant,
            nursery=self._laboratory.nursery(),
        )
        ballast.unlink(missing_ok=True)
        if way is None:
            return life
        if life.struck:
            reached = stage(self._out, self._ledger)
            self._trial.deaths.append(Death(way.name, reached, life.code, step))
            self._over = reached == "after the end"
        self._trial.problems += _last_words(way, life)
        problems, seen = after_death(self._out, self._ledger)
        self._trial.problems += problems
        self._seen.append(seen)
        if way.moved and life.struck:
            self._machine = self._laboratory.elsewhere(self._machine, self._rng)
        return life

    def _look(self) -> None:
        subject, trial = self._subject, self._trial
        key = self._key() if subject.key == "own" else KEY
        usual = self._laboratory.reference(subject, key)
        wanted = dict(usual.releases[-1])
        if subject.key == "own":  # what is issued says where the key is: there another place than here
            wanted = {name: digest for name, digest in wanted.items() if name not in ISSUED_FILES}
        trial.problems += at_the_end(
            self._out,
            self._ledger,
            wanted,
            set(usual.names),
            subject.products,
            destroyed=subject.key == "seed",
        )
        for seen in self._seen:
            for name, digest in seen.items():
                issued = subject.key == "own" and name in ISSUED_FILES
                if not issued and digest not in usual.versions(name):
                    trial.problems.append(f"after a death: release/{name} is of no undisturbed run")
        if trial.problems:  # a release with the bytes of one that is verified is verified
            trial.problems += self._laboratory.verify(subject, self._machine)

    def _key(self) -> str:
        """Return the key that the run drew; it is the harness's own and protects made data."""
        (path,) = (self._out / "confidential" / "keys").glob("*.key")
        return path.read_text(encoding="ascii").split("\n")[2]


def _fill(ballast: Path, free: int) -> None:
    """Leave `free` bytes on a small disk."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * (1 << 20)):
                pass
        except OSError:
            pass
        file.truncate(max(file.tell() - free, 0))


def _last_words(way: Way, life: Life) -> list[str]:
    """Check exit status and message of a death."""
    expected = {
        "kill": {-signal.SIGKILL} if way.who != "worker" else {6},
        "cut": {-signal.SIGKILL},
        "full": {6},
        # The signal's own status: Python had not begun with the program, or was done with it.
        "SIGINT": {130, -signal.SIGINT},
        "SIGTERM": {130, -signal.SIGTERM},
    }[way.act]
    problems = []
    if life.code not in expected | {0}:
        problems.append(f"{way.name}: status {life.code}, expected {sorted(expected)}: {life.said[-300:]!r}")
    if "Traceback" in life.said or "internal error" in life.said:
        problems.append(f"{way.name}: {life.said[-600:]!r}")
    return problems
