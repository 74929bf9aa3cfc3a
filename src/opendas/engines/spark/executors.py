"""Executors made ready: the package, what it needs, and that they see the output."""

from __future__ import annotations

import hashlib
import logging
import pickle
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final

from opendas.errors import EnvironmentFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

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


def _probe(nonce: str, folder: str, needed: Sequence[str], *, rows: bool) -> Callable[[Any], Any]:
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
    found = _look(session, folder)
    _refuse_missing(found)
    _refuse_hidden(found, folder)
    shipped = any(each["digest"] != source_digest() for each in found)
    if shipped:
        from pyspark import SparkFiles

        # Whatever runs in this session later, on an executor that is started later, asks the driver for it.
        archive = Path(SparkFiles.getRootDirectory(), f"opendas-{source_digest()[:16]}.zip")
        write_package(archive)
        context.addPyFile(str(archive))
        _log.info("opendas was sent to the executors, which lack this version of it")
    if shipped or not all(each["cache"] for each in found):
        # Compiled code is kept beside the package, or else here: nobody guesses the name.
        compiled = str(Path(gettempdir()) / f"opendas-compiled-{token_hex(8)}")
        for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):  # the second for code in an archive
            context.environment.setdefault(name, compiled)
    hosts = sorted({str(each["host"]) for each in found})
    _log.info("Spark: %d tasks at a time on %s", max(1, context.defaultParallelism), ", ".join(hosts))
    return shipped


def _look(session: SparkSession, folder: Path) -> list[dict[str, Any]]:
    context = session.sparkContext
    nonce = token_hex(8)
    mark = folder / f".seen-{nonce}"
    mark.write_text(nonce)
    try:
        tasks = 2 * max(1, context.defaultParallelism)
        found = _asked(session, tasks, partial(_probe, nonce, str(folder.resolve()), _NEEDED))
        seen = any(True for _ in folder.glob(f".seen-{nonce}-*"))
    finally:
        for path in folder.glob(f".seen-{nonce}*"):
            path.unlink(missing_ok=True)
    for each in found:
        each["sees"] = each["sees"] and seen
    return found


def _asked(
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
            f"engine spark: executors on {', '.join(hosts)} do not see {folder}, or may not write there: "
            "let --out be a folder of a file system that driver and executors share (NFS, Lustre, EFS), "
            "under the same path and for the same user."
        )


def _refuse_missing(found: Sequence[dict[str, Any]]) -> None:
    for each in found:
        missing = [name for name, version in each["versions"].items() if version is None]
        if missing:
            raise EnvironmentFailure(
                f"engine spark: the Python of the executors on {each['host']} lacks {', '.join(missing)}; "
                "install opendas[spark] there, and let PYSPARK_PYTHON name that Python."
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
