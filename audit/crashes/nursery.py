"""A process that has the program loaded and forks lives off: several times as many deaths an hour.

A forked life is a process of its own, in a session of its own, from the program's ``main`` on; what it
leaves out is the start of Python, the imports and the loading of compiled kernels. Worker processes start
as ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Forked", "Nursery"]


class Forked:
    """A forked life, with as much of :class:`subprocess.Popen` as is needed."""

    def __init__(self, pid: int, answers: Any) -> None:
        self.pid = pid
        self._answers = answers
        self._code: int | None = None

    def _listen(self, timeout: float) -> None:
        if self._code is None and select.select([self._answers], [], [], timeout)[0]:
            self._code = int(json.loads(self._answers.readline())["code"])

    def poll(self) -> int | None:
        """Return the exit status, or None while it lives."""
        self._listen(0.0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end."""
        until = time.monotonic() + (1e9 if timeout is None else timeout)
        while self._code is None:
            left = until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("forked life", timeout or 0.0)
            self._listen(min(left, 1.0))
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal while it lives."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Nursery:
    """Starts lives, one at a time.

    Parameters
    ----------
    environment : mapping
    inputs : Path
        From :func:`audit.crashes.subjects.write_inputs`; run once to load what a run loads late.
    """

    def __init__(self, environment: Mapping[str, str], inputs: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "audit.crashes.nursery", str(inputs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            cwd=Path(__file__).resolve().parents[2],
            text=True,
            bufsize=1,
        )

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, umask: int, said: Path
    ) -> Forked:
        """Start a life; `arguments` are those of the program."""
        order = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
            "umask": umask,
            "said": str(said),
        }
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a nursery is talked to through pipes")
        self._process.stdin.write(json.dumps(order) + "\n")
        pid = json.loads(self._process.stdout.readline())["pid"]
        return Forked(pid, self._process.stdout)

    def close(self) -> None:
        """End the nursery."""
        self._process.kill()
        self._process.communicate()


def _become(order: Mapping[str, Any]) -> None:
    """Live, in the forked process; never returns."""
    os.setsid()
    os.chdir(order["folder"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None
    nothing = os.open(os.devnull, os.O_RDWR)
    said = os.open(order["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(said, 2)
    os.close(nothing)
    os.close(said)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "OPENDAS_CRASH" in os.environ:
        from audit.crashes.recorder import start

        start(os.environ["OPENDAS_CRASH"])
    from opendas.cli.main import main

    main(order["arguments"])


def _load(inputs: Path) -> None:
    """Run what lives will run, in this process, to have it loaded."""
    from opendas.cli.failures import guarded
    from opendas.cli.main import cli

    kept = os.dup(1), os.dup(2)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("table", "persons", "informed"):
            out = str(Path(folder) / name)
            run = ["run", str(inputs / f"{name}.toml"), "--out", out, "--seed", "1", "--workers", "1"]
            if guarded(cli, run) or guarded(cli, ["verify", out, "--allow-seeded"]):
                sys.exit(f"the nursery cannot run {name}")
    os.dup2(kept[0], 1)
    os.dup2(kept[1], 2)


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load(Path(sys.argv[1]))
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        sys.stdout.write(json.dumps({"pid": pid}) + "\n")
        sys.stdout.flush()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(json.dumps({"code": code}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
