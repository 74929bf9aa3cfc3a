"""Files at Hadoop-compatible addresses, through the file systems that Spark's own Java has.

Only names and sizes come to Python; bytes go from file to file within Java.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opendas.errors import ConfigError, EnvironmentFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Hadoop"]

_PIECE = 1 << 20


class Hadoop:
    """The file systems that a Spark session reaches, with its settings and credentials.

    Parameters
    ----------
    session : SparkSession
    """

    def __init__(self, session: SparkSession) -> None:
        self._java: Any = session._jvm
        self._settings: Any = session._jsparkSession.sessionState().newHadoopConf()

    def matches(self, address: str) -> list[tuple[str, int | None]]:
        """Return what an address, or a pattern of addresses, stands for.

        Returns
        -------
        list of (str, int or None)
            Address, and size; None for a folder. Empty where there is nothing.

        Raises
        ------
        EnvironmentFailure
            If the file system cannot be reached or refuses.
        """
        with _told(address):
            system, path = self._at(address)
            return [
                (status.getPath().toString(), None if status.isDirectory() else int(status.getLen()))
                for status in system.globStatus(path) or ()
            ]

    def names(self, folder: str) -> dict[str, int]:
        """Return the files in and below a folder, by their path in it, with their sizes.

        There are none if it is not there.

        Raises
        ------
        EnvironmentFailure
            If the file system cannot be reached or refuses.
        """
        with _told(folder):
            system, path = self._at(folder)
            if not system.exists(path):
                return {}
            top = system.getFileStatus(path)
            if not top.isDirectory():
                raise ConfigError(f"{folder} is a file, not a folder.")
            start = len(top.getPath().toString().rstrip("/")) + 1
            found = {}
            below = system.listFiles(path, True)
            while below.hasNext():
                file = below.next()
                found[file.getPath().toString()[start:]] = int(file.getLen())
            return found

    def copy_here(self, address: str, path: Path) -> None:
        """Copy a file to this machine.

        Raises
        ------
        EnvironmentFailure
            If it cannot be read, or not written here.
        """
        with _told(address):
            system, there = self._at(address)
            if not system.exists(there) or system.getFileStatus(there).isDirectory():
                raise ConfigError(f"{address}: no such file.")
            here = self._here(path)
            system.copyToLocalFile(False, there, here, True)

    def copy_there(self, path: Path, address: str) -> None:
        """Copy a file of this machine to an address; a file that is there is replaced.

        Raises
        ------
        EnvironmentFailure
            If it cannot be written.
        """
        with _told(address):
            system, there = self._at(address)
            here = self._here(path)
            system.copyFromLocalFile(False, True, here, there)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same folder.

        Raises
        ------
        EnvironmentFailure
            If the file system refuses.
        """
        with _told(new):
            system, before = self._at(old)
            if not system.rename(before, self._at(new)[1]):
                raise EnvironmentFailure(f"{new} could not be given its name.")

    def remove(self, address: str) -> None:
        """Remove a file.

        Raises
        ------
        EnvironmentFailure
            If the file system refuses.
        """
        with _told(address):
            system, path = self._at(address)
            system.delete(path, False)

    def sha256(self, address: str) -> str:
        """Return the SHA-256 digest of a file, read back from where it is.

        Raises
        ------
        EnvironmentFailure
            If it cannot be read.
        """
        with _told(address):
            system, path = self._at(address)
            digest = self._java.java.security.MessageDigest.getInstance("SHA-256")
            stream = self._java.java.security.DigestInputStream(system.open(path), digest)
            nowhere = self._java.java.io.OutputStream.nullOutputStream()
            self._java.org.apache.hadoop.io.IOUtils.copyBytes(stream, nowhere, _PIECE, True)
            return bytes(digest.digest()).hex()

    def _here(self, path: Path) -> Any:
        """Return a path of this machine; Java takes the text as it is, without escapes."""
        return self._java.org.apache.hadoop.fs.Path(f"file://{path.absolute()}")

    def _at(self, address: str) -> tuple[Any, Any]:
        path = self._java.org.apache.hadoop.fs.Path(address)
        return path.getFileSystem(self._settings), path


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Turn failures of Java into ours: the kind of it, since the text may say more than is ours to tell."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        kind = error.java_exception.getClass().getSimpleName()
        raise EnvironmentFailure(
            f"{address} cannot be used ({kind}). Its file system must be one that Spark reaches: check the "
            "address, HADOOP_CONF_DIR or settings spark.hadoop.*, credentials, permissions and free space."
        ) from None
    except Py4JError:
        raise EnvironmentFailure(f"{address} cannot be used: Spark's Java does not answer.") from None
