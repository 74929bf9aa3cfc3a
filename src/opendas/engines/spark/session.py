"""A Spark session: what it needs of the machine, and how ours is set up.

Imports of Spark stand inside functions: the package is an extra.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any, Final

from opendas.errors import EnvironmentFailure, OpendasError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)

_LEAST_JAVA: Final = 17
_ENCRYPTION: Final = "spark.io.encryption.enabled"
_PROTECTING: Final = (
    ("spark.authenticate",),
    ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled"),
    (_ENCRYPTION,),
)
"""What has to be on where machines talk to each other: one of each. Argument: docs/proofs/keys.md."""
_LOG_SETTINGS: Final = Path(__file__).absolute().with_name("log4j2.properties")
_OURS: Final = {
    # Counts and derived keys are on their way: nothing of them in clear on a disk.
    _ENCRYPTION: "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def java_program() -> str | None:
    """Return where Java is: under JAVA_HOME if that is set, as Spark itself looks for it, or on the path."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        return shutil.which("java")
    program = Path(home, "bin", "java")
    return str(program) if program.exists() else None


def check_environment() -> None:
    """Check that Spark can start."""
    if find_spec("pyspark") is None:
        raise EnvironmentFailure(
            "engine spark: the package pyspark is not installed. Install opendas[spark], or leave out "
            "--engine."
        )
    java = java_program()
    if java is None:
        raise EnvironmentFailure(
            "engine spark: no Java was found in JAVA_HOME, or on the path if that is not set. Install Java "
            "17 or later (Debian: default-jre-headless) or correct JAVA_HOME, or leave out --engine."
        )
    version = _java_version(java)
    if version is None or version < _LEAST_JAVA:
        found = "does not say its version" if version is None else f"is Java {version}"
        raise EnvironmentFailure(
            f"engine spark: {java} {found}. Set JAVA_HOME to the folder of Java {_LEAST_JAVA} or later."
        )


@contextmanager
def open_session(master: str | None, *, name: str, threads: int) -> Iterator[SparkSession]:
    """Return a session of ours on a running Spark of the caller's, or on one started here and stopped after.

    `threads`: tasks at a time of a local one.

    Raises `EnvironmentFailure` if Spark cannot start, the master is not reached, or a cluster does not
    authenticate and encrypt.
    """
    check_environment()
    with _without_pandas_warnings():
        from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession() if master is None else None
    if running is not None:
        _refuse_clear_text(running)
        yield running.newSession()
        return
    chosen = master or f"local[{threads}]"
    local = _is_local(chosen)
    _set_environment(local=local)
    builder = SparkSession.builder.master(chosen).appName(name)
    with TemporaryDirectory(prefix="opendas-spark-") as scratch:  # 0700, as mkdtemp makes it
        settings = {**_OURS, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
        if local:  # on a cluster, executors keep their files where the cluster says
            settings |= {**_LOOPBACK, "spark.local.dir": scratch}
        for setting, value in settings.items():
            builder = builder.config(setting, value)
        with spark_failures("could not start"):
            session = builder.getOrCreate()
        try:
            _refuse_clear_text(session)
            yield session
        finally:
            session.stop()


def _is_local(master: str) -> bool:
    """Return whether executors are threads of the driver's own machine."""
    return master == "local" or master.startswith("local[")


def _refuse_clear_text(session: SparkSession) -> None:
    """Refuse a cluster on which counts and keys would cross the network, or reach a disk, in clear."""
    settings = session.sparkContext.getConf()

    def lacks(*names: str) -> bool:
        return not any((settings.get(name) or "").lower() == "true" for name in names)

    if _is_local(session.sparkContext.master):
        if lacks(_ENCRYPTION):
            _log.warning(
                "%s is off: Spark may write records to its local folder without encryption", _ENCRYPTION
            )
        return
    missing = [" or ".join(names) for names in _PROTECTING if lacks(*names)]
    if missing:
        raise EnvironmentFailure(
            f"engine spark: {', '.join(missing)} must be true on a cluster, because exact counts and the "
            "keys that protect them go from machine to machine and to local disks. Set them where the "
            "cluster is configured (spark-defaults.conf). A standalone cluster also needs "
            "spark.authenticate.secret."
        )


def _java_version(program: str) -> int | None:
    """Return the feature release of a Java, None if it does not say."""
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?([0-9]+)', said.stderr)
    return int(found[1]) if found is not None else None


def _set_environment(*, local: bool) -> None:
    """Let executors on this machine use this Python; elsewhere, unless the caller chose another."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if local:
            os.environ[name] = sys.executable
        else:
            os.environ.setdefault(name, sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@contextmanager
def _without_pandas_warnings() -> Iterator[None]:
    """Silence Spark's remarks about versions of pandas, which it asks for but does not use here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


_EXECUTORS: Final = {
    "No module named": (
        "the Python of the executors lacks opendas or a package that it needs. Install the same version "
        "there, and set PYSPARK_PYTHON to that Python"
    ),
    "PYTHON_VERSION_MISMATCH": (
        "the executors have another version of Python than this process. Set PYSPARK_PYTHON to a Python of "
        "the same version"
    ),
    "VersionsDiffer": (
        "the executors have another version of opendas than this process. Install the same version everywhere"
    ),
}
"""What Spark says where executors differ from this process, and what to do about it."""


@contextmanager
def spark_failures(what: str = "could not finish") -> Iterator[None]:
    """Turn failures of Spark into ours. Its messages may quote data, so they stay in its own logs."""
    try:
        with _without_pandas_warnings():
            yield
    except (OpendasError, KeyboardInterrupt):
        raise
    except Exception as error:
        text = str(error)
        for mark, rule in _EXECUTORS.items():
            if mark in text:
                raise EnvironmentFailure(f"engine spark: {rule}.") from None
        raise EnvironmentFailure(
            f"engine spark {what} ({type(error).__name__}); see the logs of Spark."
        ) from None


# Executors made ready: the package, what it needs, and that they see the output.


_NEEDED: Final = ("cryptography", "numba", "numpy", "pandas", "pyarrow", "scipy", "threadpoolctl")
"""Distributions that the work of executors imports."""

_ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PACKAGE: Final = Path(__file__).parents[2]


def source_digest(folder: Path = _PACKAGE) -> str:
    """Return the SHA-256 of the package's source files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def write_package(path: Path, folder: Path = _PACKAGE) -> None:
    """Write the package as an archive that Python imports from."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path("opendas") / file.relative_to(folder))


def _executor_probe(nonce: str, folder: str, needed: Sequence[str], *, rows: bool) -> Callable[[Any], Any]:
    """Return a function that looks at an executor. It is sent as a whole: opendas may be missing there.

    With `rows` it answers with batches of rows, as the work of a run does.
    """

    def look(numbers: Any) -> Any:
        import hashlib
        import os
        import platform
        import time
        from importlib import metadata, util
        from pathlib import Path

        for _ in numbers:
            pass
        time.sleep(0.2)  # so that one executor does not do all of it
        found: dict[str, Any] = {"host": platform.node(), "versions": {}}
        for name in needed:
            try:
                found["versions"][name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found["versions"][name] = None
        spec = util.find_spec("opendas")
        found["digest"] = None
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            package = Path(spec.origin).parent
            digest = hashlib.sha256()
            for path in sorted(package.rglob("*.py")):
                inside = path.relative_to(package).as_posix().encode()
                digest.update(inside + b"\0" + path.read_bytes() + b"\0")
            found["digest"] = digest.hexdigest()
            kept = [package, Path.home()]
            found["cache"] = any(os.access(place, os.W_OK) for place in kept)
        else:
            found["cache"] = os.access(Path.home(), os.W_OK)
        try:
            found["sees"] = (Path(folder) / f".seen-{nonce}").read_text() == nonce
            (Path(folder) / f".seen-{nonce}-{platform.node()}-{os.getpid()}").write_text(nonce)
        except OSError:
            found["sees"] = False
        if not rows:
            yield found
            return
        import pickle

        import pyarrow

        yield pyarrow.RecordBatch.from_pydict({"found": [pickle.dumps(found)]})

    return look


def prepare_executors(session: SparkSession, folder: Path) -> bool:
    """Look at the executors, send them the package if they lack this one, and set their environment.

    - `folder`: a folder of the output, into which all of them must be able to write.
    - Returns: whether the package was sent.

    Raises `EnvironmentFailure` naming what is missing, and on which machine.
    """
    context = session.sparkContext
    for name in _ONE_THREAD:
        context.environment.setdefault(name, "1")
    found = _probe_executors(session, folder)
    _refuse_missing(found)
    _refuse_hidden(found, folder)
    shipped = any(each["digest"] != source_digest() for each in found)
    if shipped:
        from pyspark import SparkFiles

        # Whatever runs in this session later, on an executor that is started later, asks the driver for it.
        archive = Path(SparkFiles.getRootDirectory(), f"opendas-{source_digest()[:16]}.zip")
        write_package(archive)
        context.addPyFile(str(archive))
        _log.info("opendas was sent to the executors, because at least one lacks this version of it")
    if shipped or not all(each["cache"] for each in found):
        # Compiled code is kept beside the package, or else here: nobody guesses the name.
        compiled = str(Path(gettempdir()) / f"opendas-compiled-{token_hex(8)}")
        for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):  # the second for code in an archive
            context.environment.setdefault(name, compiled)
    hosts = sorted({str(each["host"]) for each in found})
    _log.info("Spark: %d tasks at a time on %s", max(1, context.defaultParallelism), ", ".join(hosts))
    return shipped


def _probe_executors(session: SparkSession, folder: Path) -> list[dict[str, Any]]:
    context = session.sparkContext
    nonce = token_hex(8)
    mark = folder / f".seen-{nonce}"
    mark.write_text(nonce)
    try:
        tasks = 2 * max(1, context.defaultParallelism)
        found = _probed(session, tasks, partial(_executor_probe, nonce, str(folder.resolve()), _NEEDED))
        seen = any(True for _ in folder.glob(f".seen-{nonce}-*"))
    finally:
        for path in folder.glob(f".seen-{nonce}*"):
            path.unlink(missing_ok=True)
    for each in found:
        each["sees"] = each["sees"] and seen
    return found


def _probed(
    session: SparkSession, tasks: int, probe: Callable[..., Callable[[Any], Any]]
) -> list[dict[str, Any]]:
    """Ask in the way of the run's own work, so that the processes started for it are those of the run.

    It needs packages, so where it fails, it is asked again with nothing but Python.
    """
    try:
        numbers = session.range(0, tasks, 1, tasks).mapInArrow(probe(rows=True), "found binary")
        return [pickle.loads(bytes(row.found)) for row in numbers.collect()]
    except Exception:
        plain = session.sparkContext.parallelize(range(tasks), tasks).mapPartitions(probe(rows=False))
        found: list[dict[str, Any]] = plain.collect()
        return found


def _refuse_hidden(found: Sequence[dict[str, Any]], folder: Path) -> None:
    hosts = sorted({str(each["host"]) for each in found if not each["sees"]})
    if hosts:
        raise EnvironmentFailure(
            f"engine spark: executors on {', '.join(hosts)} do not see {folder}, or may not write there. "
            "Choose an --out on a file system that driver and executors share (NFS, Lustre, EFS), with the "
            "same path and the same user on all machines."
        )


def _refuse_missing(found: Sequence[dict[str, Any]]) -> None:
    for each in found:
        missing = [name for name, version in each["versions"].items() if version is None]
        if missing:
            raise EnvironmentFailure(
                f"engine spark: the Python of the executors on {each['host']} lacks {', '.join(missing)}. "
                "Install opendas[spark] there, and set PYSPARK_PYTHON to that Python."
            )
    other = sorted(
        {
            f"{name} {version} instead of {metadata.version(name)}"
            for each in found
            for name, version in each["versions"].items()
            if version != metadata.version(name)
        }
    )
    if other:
        _log.warning(
            "executors have %s: the last bits of a solution may differ from those of this machine",
            ", ".join(other),
        )
