"""A real standalone Spark on loopback: a master and two workers, processes of their own."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from opendas.engines.spark.session import java_program

_PATIENCE_S = 120.0

ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "known to master, workers and drivers",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
"""What a cluster must have for counts and keys."""


@dataclass(frozen=True)
class Cluster:
    """Where it is, and the environment of programs that use it."""

    url: str
    folder: Path
    environment: dict[str, str]
    workers: tuple[int, ...] = ()

    def executors(self) -> list[int]:
        """Return the processes of executors, whichever worker started them."""
        return [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if _parent(path) in self.workers and b"CoarseGrainedExecutorBackend" in _command(path)
        ]

    def pythons(self, executor: int) -> list[int]:
        """Return the Python processes that do an executor's tasks, and the one that starts them."""
        return [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if b"pyspark.daemon" in _command(path)
            and executor in (_parent(path), _parent(Path("/proc", str(_parent(path)))))
        ]


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return 0


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def require_spark() -> Path:
    """Return the folder of the pyspark package, or skip."""
    if java_program() is None:
        pytest.skip("needs Java, which is not installed")
    try:
        import pyspark
    except ImportError:
        pytest.skip("needs the package pyspark, which is not installed")
    return Path(pyspark.__file__).parent


def hiding() -> tuple[str, ...]:
    """Return the words that give a command an empty folder in place of one: both follow."""
    unshare = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    return (*unshare, "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"')


def can_hide() -> bool:
    """Return whether folders can be hidden from a command."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return subprocess.run([*hiding(), folder, "true"], capture_output=True).returncode == 0
        except FileNotFoundError:
            return False


@contextmanager
def start_cluster(
    folder: Path,
    more: Mapping[str, str] = ENCRYPTED,
    hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1"),
    hidden: Path | None = None,
) -> Iterator[Cluster]:
    """Start a master and two workers on ephemeral ports, with more settings; stop them at the end.

    Workers of two addresses are two machines for Spark: it speculates on another machine only. Where this
    system lets us, each worker and its executors have an empty folder of their own in place of one.
    """
    home = require_spark()
    settings = folder / "conf"
    for name in (settings, folder / "events", folder / "local"):
        name.mkdir()
    (settings / "spark-defaults.conf").write_text(
        "spark.executor.memory 512m\n"
        "spark.eventLog.enabled true\n"
        "spark.eventLog.compress false\n"
        f"spark.eventLog.dir file://{folder / 'events'}\n"
        + "".join(f"{name} {value}\n" for name, value in more.items())
    )
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_CONF_DIR": str(settings),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with ExitStack() as stack:

        def start(
            name: str, program: str, host: str, *arguments: str, before: Sequence[str] = ()
        ) -> tuple[Path, int]:
            log = folder / f"{name}.log"
            file = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [
                    *before,
                    *(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}"),
                    *("--host", host, "--port", "0", "--webui-port", "0", *arguments),
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, "SPARK_LOCAL_IP": host},
            )
            stack.callback(_stop, process)
            return log, process.pid

        log, _ = start("master", "master.Master", "127.0.0.1")
        url = _wait(log, r"Starting Spark master at (spark://\S+)")
        workers = []
        for number, host in enumerate(hosts, start=1):
            log, process = start(
                f"worker-{number}",
                "worker.Worker",
                host,
                *("--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work-{number}")),
                url,
                before=(*hiding(), str(hidden)) if hidden is not None and can_hide() else (),
            )
            _wait(log, r"(Successfully registered) with master")
            workers.append(process)
        yield Cluster(url, folder, environment, tuple(workers))


def _wait(log: Path, pattern: str) -> str:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"{log.name} did not say {pattern!r}:\n{log.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def forms(key: bytes) -> list[bytes]:
    """How a key may stand in a file."""
    return [key, key[::-1], key.hex().encode(), base64.b64encode(key), repr(key).encode()]


def holds(folder: Path, wanted: list[bytes]) -> list[Path]:
    """Return the files that hold one of some strings."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(form in path.read_bytes() for form in wanted)
    ]
