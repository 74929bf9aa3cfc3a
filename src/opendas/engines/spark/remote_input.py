"""Input at Hadoop-compatible addresses: what is public and small is copied, and the data are listed.

Executors read the data where they are. Readers that only the driver has take copies of them, in a folder that
is removed when the run ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from opendas.engines.spark.hadoop import Hadoop
from opendas.errors import ConfigError
from opendas.files.atomic import make_folder
from opendas.readers.base import ReaderSpec
from opendas.readers.columns.csv_parquet import shown_name
from opendas.readers.paths import is_data
from opendas.readers.remote import RemoteInput

__all__ = ["copy_data", "copy_public", "list_data"]

_LARGEST: Final = 1 << 30
"""Bytes of a file that Spark hands over: it stands in an executor's memory several times."""

_PATTERN: Final = frozenset("{}[]*?\\")


def copy_public(hadoop: Hadoop, spec: ReaderSpec, cache: Path) -> ReaderSpec:
    """Copy the files of frame and units to this machine.

    Parameters
    ----------
    hadoop : Hadoop
    spec : ReaderSpec
    cache : Path
        Folder under ``confidential/``, which the caller removes when the run is finished.

    Raises
    ------
    ConfigError
        If one is not there.
    EnvironmentFailure
        If its file system cannot be reached.
    """
    remote = spec.remote
    if remote.frame is not None:
        spec = replace(spec, frame=_copied(hadoop, remote.frame, cache / "remote" / "frame"))
    if remote.units is not None and spec.units is not None:
        here = _copied(hadoop, remote.units, cache / "remote" / "units")
        spec = replace(spec, units=replace(spec.units, path=here))
    return replace(spec, remote=RemoteInput(remote.paths))


def list_data(hadoop: Hadoop, spec: ReaderSpec) -> tuple[ReaderSpec, tuple[str, ...]]:
    """Find the files of the data.

    Returns
    -------
    ReaderSpec
        Its paths are names, which nobody opens.
    tuple of str
        The address of each; empty where the data are files of this machine.

    Raises
    ------
    ConfigError
        If an address stands for no file, or for one that cannot be handed over.
    EnvironmentFailure
        If its file system cannot be reached.
    """
    sizes: dict[str, int] = {}
    for wanted in spec.remote.paths:
        found = _expanded(hadoop, wanted)
        if not found:
            raise ConfigError(f"[input] path: nothing found at {wanted}.")
        sizes |= found
    for address, size in sizes.items():
        if size > _LARGEST:
            raise ConfigError(
                f"[input] path: {address} has {size >> 20:,} MiB; from an address, files of at most "
                f"{_LARGEST >> 20:,} MiB are read. Write the data set in many files."
            )
        if not _PATTERN.isdisjoint(address):
            raise ConfigError(f"[input] path: {address}: Spark would take this name for a pattern.")
    if not sizes:
        return spec, ()
    addresses = tuple(sorted(sizes, key=PurePosixPath))
    return replace(spec, paths=tuple(map(Path, addresses)), remote=RemoteInput()), addresses


def copy_data(hadoop: Hadoop, spec: ReaderSpec, addresses: Sequence[str], cache: Path) -> ReaderSpec:
    """Copy the data to this machine, for a reader that executors do not have.

    Raises
    ------
    EnvironmentFailure
        If a file cannot be read, or not written here.
    """
    folder = cache / "remote" / "data"
    paths = [
        _copied(hadoop, address, folder / f"{number:06d}" / Path(shown_name(Path(address))).parent)
        for number, address in enumerate(addresses)
    ]
    return replace(spec, paths=tuple(paths))


def _expanded(hadoop: Hadoop, address: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, size in hadoop.matches(address):
        if size is not None:
            found[name] = size
            continue
        inside = hadoop.names(name)
        found |= {f"{name}/{file}": inside[file] for file in inside if is_data(PurePosixPath(file))}
    return found


def _copied(hadoop: Hadoop, address: str, folder: Path) -> Path:
    make_folder(folder)
    path = folder / PurePosixPath(address).name
    hadoop.copy_here(address, path)
    return path
