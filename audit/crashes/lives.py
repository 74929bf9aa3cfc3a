"""One life: a command from its start to its end or its death, and what is done to its disk afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.crashes.disk import baseline, power_cut
from audit.crashes.nursery import Forked, Nursery
from audit.crashes.recorder import VARIABLE, Orders
from audit.crashes.ways import Fate

__all__ = ["LONGEST", "Life", "Machine", "live", "small_disk", "surroundings"]

LONGEST = 400.0
"""Seconds after which a life is taken to hang."""

FIXED = {"SOURCE_DATE_EPOCH": "1700000000"}
Process = subprocess.Popen[bytes] | Forked

_ROOT = Path(__file__).resolve().parents[2]
_SITE = Path(__file__).resolve().parent / "site"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a life happens.

    Parameters
    ----------
    folder : Path
        The machine's part of the harness's scratch space.
    umask : int
    """

    folder: Path
    umask: int = 0o022

    @property
    def disk(self) -> Path:
        """The disk with the output folder."""
        return self.folder / "disk"

    @property
    def inputs(self) -> Path:
        """The folder of inputs and run files."""
        return self.folder / "inputs"


@dataclass(frozen=True, slots=True)
class Life:
    """How a life ended.

    Parameters
    ----------
    code : int
        Exit status; negative: the signal.
    said : str
        What it wrote to standard error.
    struck : bool
        Whether death came before the end.
    seconds : float
    """

    code: int
    said: str
    struck: bool
    seconds: float


def surroundings(machine: Machine, orders: Orders | None) -> dict[str, str]:
    """Return the environment of a life. Without git on the PATH the certificate records no commit."""
    temporary = machine.folder / "tmp"
    temporary.mkdir(exist_ok=True)
    paths = [str(_SITE), str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLE)}
    return {
        **kept,
        **FIXED,
        "PATH": "/nowhere",
        "TMPDIR": str(temporary),
        "OPENDAS_BOOKS": str(temporary / "books"),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OMP_NUM_THREADS": "1",
        **({} if orders is None else {VARIABLE: orders.text()}),
    }


def live(
    command: Sequence[str],
    machine: Machine,
    fate: Fate = Fate(),  # noqa: B008 - frozen
    *,
    usual: float = 0.0,
    rng: random.Random | None = None,
    mutant: str = "",
    journal: Path | None = None,
    nursery: Nursery | None = None,
) -> Life:
    """Run a command until it ends or dies, and leave the disk as its death leaves it.

    Parameters
    ----------
    usual : float
        Seconds of an undisturbed life.
    rng : random.Random, optional
        Draws what a power cut leaves.
    journal : Path, optional
        Where an undisturbed life is counted.
    nursery : Nursery, optional
        Forks the life off; else a new Python is started.
    """
    way = fate.way
    kept = journal if journal is not None else machine.folder / "journal"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    cut = way is not None and way.act == "cut"
    before = baseline(machine.disk, kept) if cut else None
    at_operation = way is not None and way.when == "operation"
    orders = Orders(
        str(machine.disk),
        str(kept),
        durable=cut,
        who="worker" if way is not None and way.who == "worker" else "main",
        at=fate.at if at_operation else 0,
        act="kill" if way is None else way.act,
        share=fate.share,
        mutant=mutant,
    )
    quiet = way is None and not mutant and journal is None
    started = time.monotonic()
    said = machine.folder / "said"
    environment = surroundings(machine, None if quiet else orders)
    process = _start(command, machine, environment, said, nursery)
    try:
        if way is not None and way.when == "moment":
            _strike(process, way.act, way.who, fate.moment * usual)
        code = process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        code = 124
    orphans = way is not None and way.act == "kill" and way.who == "main"
    if code == 124 or not orphans:
        # After a kill of the main process alone its workers live on, while the run is resumed.
        _end_group(process)
    text = said.read_text(encoding="utf-8", errors="replace")
    struck = code != 0
    if cut and rng is not None and before is not None:
        struck = True
        power_cut(machine.disk, before, kept, rng, fate.loss)
    return Life(code, text, struck, time.monotonic() - started)


def _start(
    command: Sequence[str], machine: Machine, environment: dict[str, str], said: Path, nursery: Nursery | None
) -> Process:
    if nursery is not None:
        return nursery.start(command[3:], environment, machine.folder, machine.umask, said)
    with said.open("w", encoding="utf-8") as file:
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=environment,
            cwd=machine.folder,
            umask=machine.umask,
            start_new_session=True,
        )


def _end_group(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _strike(process: Process, act: str, who: str, delay: float) -> None:
    """Wait, then deliver death."""
    until = time.monotonic() + delay
    while process.poll() is None and time.monotonic() < until:
        time.sleep(min(0.002, max(until - time.monotonic(), 0.0)))
    number = signal.SIGKILL if act in ("kill", "cut") else getattr(signal, act)
    if who == "worker":
        while process.poll() is None:
            if found := workers(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random.Random(delay).choice(found), number)
                return
            time.sleep(0.01)
        return
    with contextlib.suppress(ProcessLookupError):
        if who == "all":
            os.killpg(process.pid, number)
        elif process.poll() is None:
            process.send_signal(number)


def workers(session: int) -> list[int]:
    """Return the worker processes of a run."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == session:
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            words = (folder / "cmdline").read_bytes()
            if int(fields[3]) == session and b"loky" in words and b"resource_tracker" not in words:
                found.append(int(folder.name))
    return sorted(found)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a file system in memory at `folder`; yield whether that is possible here."""
    done = False
    if sys.platform == "linux" and os.geteuid() == 0:
        words = ["mount", "-t", "tmpfs", "-o", "size=64m", "crash-harness", str(folder)]
        try:
            done = subprocess.run(words, capture_output=True, check=False).returncode == 0
        except OSError:
            done = False
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
