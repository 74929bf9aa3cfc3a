"""A Spark session: what it needs of the machine, and how ours is set up.

Imports of Spark stand inside functions: the package is an extra.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from opendas.errors import EnvironmentFailure, OpendasError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_LEAST_JAVA: Final = 17
_ENCRYPTION: Final = "spark.io.encryption.enabled"
_NEEDED: Final = (
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
            "engine spark: the package pyspark is not installed; install opendas[spark], or leave out "
            "--engine."
        )
    java = java_program()
    if java is None:
        raise EnvironmentFailure(
            "engine spark: no Java was found; install Java 17 or later (Debian: default-jre-headless) or set "
            "JAVA_HOME, or leave out --engine."
        )
    version = _java_version(java)
    if version is None or version < _LEAST_JAVA:
        found = "does not say its version" if version is None else f"is Java {version}"
        raise EnvironmentFailure(
            f"engine spark: {java} {found}; set JAVA_HOME to a Java {_LEAST_JAVA} or later."
        )


@contextmanager
def open_session(master: str | None, *, name: str, threads: int) -> Iterator[SparkSession]:
    """Return a session of ours on a running Spark of the caller's, or on one started here and stopped after.

    `threads`: tasks at a time of a local one.

    Raises `EnvironmentFailure` if Spark cannot start, the master is not reached, or a cluster does not
    authenticate and encrypt.
    """
    check_environment()
    with _quiet():
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
            _log.warning("%s is off: records may stand in clear in the local folder of Spark", _ENCRYPTION)
        return
    missing = [" or ".join(names) for names in _NEEDED if lacks(*names)]
    if missing:
        raise EnvironmentFailure(
            f"engine spark: {', '.join(missing)} must be true on a cluster: exact counts and the keys that "
            "protect them go from machine to machine and to local disks. Set them where the cluster is "
            "configured (spark-defaults.conf; a standalone cluster wants spark.authenticate.secret, too)."
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
def _quiet() -> Iterator[None]:
    """Silence Spark's remarks about versions of pandas, which it asks for but does not use here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


_EXECUTORS: Final = {
    "No module named": (
        "the Python of the executors lacks opendas or a package it needs; install the same version there, "
        "and let PYSPARK_PYTHON name that Python"
    ),
    "PYTHON_VERSION_MISMATCH": (
        "the executors have another version of Python than this process; let PYSPARK_PYTHON name one of the "
        "same version"
    ),
    "VersionsDiffer": (
        "the executors have another version of opendas than this process; install the same everywhere"
    ),
}
"""What Spark says where executors differ from this process, and what to do about it."""


@contextmanager
def spark_failures(what: str = "could not finish") -> Iterator[None]:
    """Turn failures of Spark into ours. Its messages may quote data, so they stay in its own logs."""
    try:
        with _quiet():
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
