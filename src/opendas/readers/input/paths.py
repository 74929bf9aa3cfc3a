"""Input paths of a run file: files, folders, globs and lists of them."""

from __future__ import annotations

import errno
import glob
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from opendas.errors import ConfigError
from opendas.files.storage.remote import RemoteAddress

_SUFFIXES = (".zip", ".parquet", ".pq", ".csv", ".csv.gz", ".txt", ".txt.gz", ".psv", ".psv.gz")


def expand_paths(
    path: str | Path | Sequence[str | Path], base: Path, key: str = "[input] path"
) -> tuple[Path, ...]:
    """Return the existing files that `path` stands for, sorted, each once.

    Parameters
    ----------
    path : str, Path or sequence of them
        Files, folders (searched with their subfolders for data files; names that begin with a dot or an
        underscore are skipped, as partitioned data sets want it) or glob patterns.
    base : Path
        Folder that relative paths start from: the run file's.
    key : str
        The key of the run file, for messages.

    Raises
    ------
    ConfigError
        If a path, folder or pattern stands for no file, or for a pipe or a device.
    """
    wanted = [path] if isinstance(path, str | Path) else list(path)
    if not wanted:
        raise ConfigError(f"{key} names no file.")
    files: list[Path] = []
    for one in wanted:
        if isinstance(one, str) and RemoteAddress.of(one):
            raise ConfigError(
                f"{key}: {one} is an address, which is read as [input] path, as the frame of the reader "
                "records or histogram, or as one file of units; other files must be on this machine."
            )
        found = _expand(base / expanded(one))
        for file in found:
            if file.exists() and not file.is_file():
                raise ConfigError(
                    f"{key}: {file} is no regular file (perhaps a pipe or a device), and input is read more "
                    "than once. Save it as a file."
                )
        if not found:
            raise ConfigError(
                f"{key}: nothing found at {base / expanded(one)}. A folder must hold files that end in "
                f"{', '.join(_SUFFIXES[:4])} or the like."
            )
        files += found
    return tuple(sorted(dict.fromkeys(files)))


def expanded(path: str | Path) -> Path:
    """Return a path with the folder of a user in place of ``~`` or ``~NAME`` at its beginning."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: the home folder that ~ stands for is not known.") from error


def is_data(file: PurePath) -> bool:
    """Return whether a file of a data set, by its path within it, holds data."""
    return file.name.lower().endswith(_SUFFIXES) and not any(part[0] in "._" for part in file.parts)


def is_file(path: Path) -> bool:
    """Return whether a file is there; none has a name that is longer than names can be."""
    return _answered(path.is_file)


def is_folder(path: Path) -> bool:
    """Return whether a folder is there, as :func:`is_file`."""
    return _answered(path.is_dir)


def _answered(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def _expand(path: Path) -> list[Path]:
    if is_file(path):
        return [path]
    if is_folder(path):
        return [file for file in path.rglob("*") if is_data(file.relative_to(path)) and file.is_file()]
    matches = (Path(match) for match in glob.glob(str(path), recursive=True))
    return [file for match in matches for file in (_expand(match) if match.is_dir() else [match])]
