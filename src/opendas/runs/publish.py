"""A finished release at a Hadoop-compatible address: whole or visibly not, and never over something else.

Files go up one after the other under a temporary name, are read back, and get their name if their digest is
right. The certificate comes last: where it stands, the release is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opendas.errors import ConfigError, EnvironmentFailure
from opendas.files.atomic import PARTIAL_SUFFIX, sha256_file
from opendas.report.certificate import CERTIFICATE, ISSUED_FILES, released_files

__all__ = ["Published", "RemoteFiles", "publish_release"]


class RemoteFiles(Protocol):
    """What is asked of the file system; :class:`opendas.engines.spark.hadoop.Hadoop`."""

    def names(self, folder: str) -> dict[str, int]:
        """Return the files in and below a folder, by their path in it, with their sizes."""
        ...

    def copy_there(self, path: Path, address: str) -> None:
        """Copy a file of this machine to an address; a file that is there is replaced."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same folder."""
        ...

    def remove(self, address: str) -> None:
        """Remove a file."""
        ...

    def sha256(self, address: str) -> str:
        """Return the SHA-256 digest of a file, read back from where it is."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """What was done.

    Parameters
    ----------
    address : str
    files : int
        Of the release, all of them there with the right digest.
    copied : int
        Those that were not there before.
    """

    address: str
    files: int
    copied: int


def publish_release(system: RemoteFiles, release: Path, address: str) -> Published:
    """Copy a release, verified before, to an address; what is there already is compared.

    Parameters
    ----------
    system : RemoteFiles
    release : Path
        The folder ``release/``.
    address : str
        A folder, which is made; empty, or with a part of the same release.

    Raises
    ------
    ConfigError
        If something else is there; nothing is written then.
    EnvironmentFailure
        If the file system refuses, or gives back other bytes than it was given.
    """
    address = address.rstrip("/")
    wanted = _digests(release)
    missing = _missing(system, address, wanted)
    for name in missing:
        goal, partial = f"{address}/{name}", f"{address}/{_partial(name)}"
        system.copy_there(release / name, partial)
        if system.sha256(partial) != wanted[name]:
            raise EnvironmentFailure(
                f"{goal}: the file system gave back other bytes than it was given. {CERTIFICATE} is not "
                "there, so that nobody takes the rest for a release. Try again."
            )
        system.rename(partial, goal)
    for name in system.names(address).keys() - wanted.keys():
        system.remove(f"{address}/{name}")  # temporary ones: nothing else was there
    return Published(address, len(wanted), len(missing))


def _digests(release: Path) -> dict[str, str]:
    """Return the digest of every file by its name, the certificate last."""
    found = {file.path: file.sha256 for file in released_files(release)}
    for name in reversed(ISSUED_FILES):
        if (release / name).is_file():
            found[name] = sha256_file(release / name)
    return found


def _missing(system: RemoteFiles, address: str, wanted: dict[str, str]) -> list[str]:
    """Return which files are not there yet; what is there must be ours."""
    there = system.names(address)
    strangers = there.keys() - wanted.keys() - {_partial(name) for name in wanted}
    if strangers:
        raise ConfigError(
            f"{address} holds {min(strangers)!r}, which is not of this release; choose an empty folder."
        )
    for name in there.keys() & wanted.keys():
        if system.sha256(f"{address}/{name}") != wanted[name]:
            raise ConfigError(f"{address} holds another {name!r} than this release; choose an empty folder.")
    return [name for name in wanted if name not in there]


def _partial(name: str) -> str:
    """Return a name that readers of data sets pass over; with a dot first, FTP servers may not list it."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/_{last}{PARTIAL_SUFFIX}".lstrip("/")
