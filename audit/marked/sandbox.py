"""A place to run commands in, where everything they leave, delete or say is kept for a scan.

Folders: ``input`` (confidential, and planted), ``work`` (where commands run and write), ``tmp`` (TMPDIR),
``home``, ``attic`` (files that were removed or replaced, and what was seen of processes while they ran) and
``said`` (stdout and stderr of each command).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from audit.marked.marks import Mark
from audit.marked.scan import Found, scan_folder

__all__ = ["Done", "Sandbox"]

_DRIVER = Path(__file__).with_name("driver.py")
_NO_TRIAL = "opendas.runs.simulated.sparse:_NO_RISK:1000000000000"
"""The calls that a fault counts are the run's: none is made before it to see whether its table is sparse."""
_HOOKS = Path(__file__).with_name("hooks")
_ROOT = Path(__file__).parents[2]
_PAUSE_S = 0.02
_CONFIDENTIAL = "confidential"


@dataclass(frozen=True)
class Done:
    """What a command said.

    Parameters
    ----------
    code : int
        Exit status; minus the signal that ended it.
    out, err : str
    faulted : bool
        Whether the fault that was asked for struck.
    """

    code: int
    out: str
    err: str
    faulted: bool


@dataclass
class Sandbox:
    """A folder for commands on marked inputs.

    Parameters
    ----------
    folder : Path
        Is made.
    environment : dict
        Beside the least that a command needs. ``MARKED_SET`` changes numbers in modules, as
        ``module:name:number;...``.
    watched : tuple of Path
        Folders elsewhere whose files are copied as they come and go, for instance of a Spark cluster.
    confidential_answers : set of int
        Numbers of commands whose stdout is confidential, and says so (``evaluate``).
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    watched: tuple[Path, ...] = ()
    confidential_answers: set[int] = field(default_factory=set)
    commands: int = 0

    def __post_init__(self) -> None:
        for name in ("input", "work", "tmp", "home", "attic", "said"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def input(self) -> Path:
        """Where marked inputs are planted."""
        return self.folder / "input"

    @property
    def work(self) -> Path:
        """Where commands run and write."""
        return self.folder / "work"

    def run(
        self,
        *words: str | Path,
        fault: str = "",
        number: int = 0,
        stdin: str | None = None,
        confidential: bool = False,
        timeout: float = 600,
    ) -> Done:
        """Run ``opendas`` with the given words.

        Parameters
        ----------
        *words : str or Path
        fault : str
            ``module:name:call:kind``; see ``audit/marked/hooks/sitecustomize.py``.
        number : int
            A mark that the fault holds in a local variable and in the message of its error.
        confidential : bool
            Stdout is confidential.
        """
        return self.run_program(
            [sys.executable, "-m", "opendas", *map(str, words)],
            fault=fault,
            number=number,
            stdin=stdin,
            confidential=confidential,
            timeout=timeout,
        )

    def run_many(self, commands: Sequence[Sequence[str | Path]]) -> list[int]:
        """Run commands one after the other in one process, and return their exit codes."""
        answers = self.folder / "home" / "codes.json"
        lines = "".join(json.dumps([str(word) for word in words]) + "\n" for words in commands)
        self.run_program([sys.executable, str(_DRIVER), str(answers)], stdin=lines)
        codes: list[int] = json.loads(answers.read_text())
        return codes

    def run_program(
        self,
        program: Sequence[str],
        *,
        fault: str = "",
        number: int = 0,
        stdin: str | None = None,
        confidential: bool = False,
        timeout: float = 600,
    ) -> Done:
        """Run any program in the sandbox; see :meth:`run`."""
        attic = self.folder / "attic"
        before = set(attic.glob("fault-*"))
        self.commands += 1
        if confidential:
            self.confidential_answers.add(self.commands)
        said = [self.folder / "said" / f"{self.commands}.{end}" for end in ("out", "err")]
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(path.open("wb")) for path in said)
            process = subprocess.Popen(
                program,
                cwd=self.work,
                env=self._environment(fault, number),
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=_allow_core,
                start_new_session=True,
            )
            stack.enter_context(_Watch(self, process.pid))
            process.communicate(None if stdin is None else stdin.encode(), timeout=timeout)
        faulted = set(attic.glob("fault-*")) - before
        texts = [path.read_text(errors="replace") for path in said]
        return Done(process.returncode, *texts, bool(faulted))

    def _environment(self, fault: str, number: int) -> dict[str, str]:
        kept = {
            name: os.environ[name]
            for name in ("PATH", "LANG", "NUMBA_CACHE_DIR", "JAVA_HOME")
            if name in os.environ
        }
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(_HOOKS), str(_ROOT / "src")]),
            "TMPDIR": str(self.folder / "tmp"),
            "HOME": str(self.folder / "home"),
            "MARKED_ATTIC": str(self.folder / "attic"),
            "MARKED_FAULT": fault,
            "MARKED_NUMBER": str(3 * number),  # the environment is scanned too
            "PYTHONFAULTHANDLER": "1",
            "OPENDAS_DEBUG": "1",
            "SOURCE_DATE_EPOCH": "1700000000",
            **self.environment,
            "MARKED_SET": ";".join((_NO_TRIAL, self.environment.get("MARKED_SET", ""))),
        }

    def leaks(self, marks: Sequence[Mark]) -> tuple[list[Found], int]:
        """Scan everything but the input and what is under ``confidential/``.

        Returns
        -------
        found : list of Found
        scanned : int
            Number of files.
        """

        def skip(path: Path) -> bool:
            if path.parts[:1] == ("input",) or _CONFIDENTIAL in path.parts:
                return True
            return (
                path.parts[:1] == ("said",)
                and path.suffix == ".out"
                and (int(path.stem) in self.confidential_answers)
            )

        return scan_folder(self.folder, marks, skip=skip)


def _allow_core() -> None:
    """Let the process leave a core file, so that it has to keep itself from doing so."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


def _files(folder: Path) -> Iterator[Path]:
    """Yield files below a folder, confidential ones left out; what goes away meanwhile is passed over."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != _CONFIDENTIAL]
        yield from (Path(place, name) for name in names)


class _Watch:
    """Notes command lines and environments of processes, and copies temporary files, as they run."""

    def __init__(self, sandbox: Sandbox, session: int) -> None:
        self._sandbox = sandbox
        self._session = session
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._seen: set[bytes] = set()
        self._copied: dict[Path, tuple[int, int]] = {}
        self._shared = set(Path("/dev/shm").glob("*"))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            self._note_processes()
            self._copy_files()

    def _note_processes(self) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                # After the name, which may hold anything: state, parent, group, session.
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == self._session:
                    for name in ("cmdline", "environ"):
                        self._seen.add((folder / name).read_bytes())
        if self._seen:
            (self._sandbox.folder / "attic" / f"processes-{self._session}").write_bytes(
                b"\n".join(sorted(self._seen))
            )

    def _copy_files(self) -> None:
        """Copy what stands in TMPDIR, in shared memory and in the folder of work, whenever it has changed."""
        places = [
            *_files(self._sandbox.folder / "tmp"),
            *set(Path("/dev/shm").glob("*")) - self._shared,
            *_files(self._sandbox.work),
            *(path for folder in self._sandbox.watched for path in _files(folder)),
        ]
        for path in places:
            with contextlib.suppress(OSError):
                status = path.stat()
                state = (status.st_mtime_ns, status.st_size)
                if not path.is_file() or self._copied.get(path) == state:
                    continue
                self._copied[path] = state
                copy = (
                    self._sandbox.folder / "attic" / f"seen-{self._session}-{len(self._copied)}-{path.name}"
                )
                copy.write_bytes(path.read_bytes())
