"""Downloads official redistricting files from the Census Bureau's site."""

from __future__ import annotations

import logging
import socket
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from opendas.custody.folders import atomic_file
from opendas.errors import ConfigError, EnvironmentFailure, FormatError
from opendas.geography.states import State, find_state
from opendas.readers.pl94.segments import check_members

logger = logging.getLogger(__name__)

_ROOTS = {
    2010: "https://www2.census.gov/census_2010/01-Redistricting_File--PL_94-171",
    2020: "https://www2.census.gov/programs-surveys/decennial/2020/data/01-Redistricting_File--PL_94-171",
}
_ROLES = {2010: ("geo", "1", "2"), 2020: ("geo", "1", "2", "3")}
PL94_YEARS = tuple(_ROOTS)
"""Censuses whose redistricting files can be fetched and read."""

_TIMEOUT = 60.0
_CHUNK = 1 << 20


def pl94_url(state: State, year: int) -> str:
    """Return where the Bureau keeps a state's file."""
    if year not in _ROOTS:
        raise ConfigError(
            f"redistricting files of {year} cannot be fetched; those of "
            f"{' and '.join(map(str, PL94_YEARS))} can."
        )
    return f"{_ROOTS[year]}/{state.name.replace(' ', '_')}/{state.postal.lower()}{year}.pl.zip"


def fetch_pl94(state: str, year: int, to: Path) -> Path:
    """Download a state's official redistricting file.

    The file appears whole or not at all. One that is there already and whole is kept.
    """
    url = pl94_url(find_state(state), year)
    path = to / url.rsplit("/", 1)[1]
    if path.exists():
        check_members(path, _ROLES[year])
        logger.info("%s is there already", path)
        return path
    manual = f"Download {url} by other means and save it as {path}."
    logger.info("fetching %s", url)
    with atomic_file(path) as file:
        try:
            _download(url, file)
        except HTTPError as error:
            error.close()
            raise EnvironmentFailure(f"The Census Bureau's site answered {error.code}. {manual}") from None
        except (URLError, HTTPException, ConnectionError, socket.gaierror, TimeoutError):
            raise EnvironmentFailure(
                f"The Census Bureau's site could not be reached, or the connection broke off. {manual}"
            ) from None
        file.flush()
        try:
            check_members(Path(f"/dev/fd/{file.fileno()}"), _ROLES[year])  # it has no name to rely on yet
        except FormatError:
            raise FormatError(f"What {url} sent is not the official file; try again. {manual}") from None
    return path


def _download(url: str, file: BinaryIO) -> None:
    request = Request(url, headers={"User-Agent": "opendas"})
    with urlopen(request, timeout=_TIMEOUT) as answer:
        expected = answer.headers.get("Content-Length")
        received = 0
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            received += len(chunk)
    if expected is not None and received != int(expected):
        raise ConnectionError("the connection broke off")
