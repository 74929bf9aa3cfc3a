"""Opens the official redistricting zip files and finds their members."""

from __future__ import annotations

import contextlib
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opendas.errors import EnvironmentFailure, Finding, FormatError
from opendas.io.readers.unpacking import unpacked

__all__ = ["Member", "check_members", "read_members"]

_GEO = re.compile(r"(?:^|/)([a-z]{2})geo\d{4}[^/]*\.pl$", re.IGNORECASE)
_SEGMENT = re.compile(r"(?:^|/)([a-z]{2})0000(\d)\d{4}[^/]*\.pl$", re.IGNORECASE)


_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, LookupError,
    RuntimeError, ValueError, OverflowError,
)  # fmt: skip
"""What the zip library raises on damaged archives; encryption is a RuntimeError."""


@dataclass(frozen=True, slots=True, repr=False)
class Member:
    """One file of an archive.

    Parameters
    ----------
    where : str
        ``archive!member``, as findings name it.
    data : bytes
    """

    where: str
    data: bytes


def _role(name: str) -> str | None:
    if _GEO.search(name):
        return "geo"
    match = _SEGMENT.search(name)
    return match.group(2) if match else None


def read_members(path: Path, roles: Iterable[str]) -> dict[str, Member]:
    """Read the geographic header and the data segments of an official zip file.

    Parameters
    ----------
    path : Path
    roles : iterable of str
        ``"geo"`` and the segment numbers wanted: ``"1"``, ``"2"``, ``"3"``.

    Returns
    -------
    dict of role to Member

    Raises
    ------
    FormatError
        If the file is no zip, is damaged, or lacks a member or holds one twice.
    EnvironmentFailure
        If the file cannot be opened.
    """
    with _opened(path) as archive:
        found = _select(path, archive.namelist(), tuple(roles))
        return {
            role: Member(f"{path.name}!{name}", _extract(archive, path, name)) for role, name in found.items()
        }


def check_members(path: Path, roles: Iterable[str]) -> None:
    """Check that a zip file is whole and holds the members wanted; see :func:`read_members`."""
    with _opened(path) as archive:
        for name in _select(path, archive.namelist(), tuple(roles)).values():
            _extract(archive, path, name)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        stream = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise EnvironmentFailure(f"{path}: {error.strerror or 'cannot be read'}.") from None
    with stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                yield archive
        except _DAMAGED:
            raise FormatError(
                "The redistricting file cannot be unpacked.",
                [Finding(path.name, None, None, "expected the official zip file, whole; download it again")],
            ) from None


def _extract(archive: zipfile.ZipFile, path: Path, name: str) -> bytes:
    try:
        data = unpacked(archive, name)
    except _DAMAGED:
        raise FormatError(
            "The redistricting file cannot be unpacked.",
            [Finding(f"{path.name}!{name}", None, None, "this member is damaged or encrypted, or no text")],
        ) from None
    if not data.strip():
        raise FormatError(
            "The redistricting file holds an empty member.",
            [Finding(f"{path.name}!{name}", None, None, "expected records, found an empty file")],
        )
    return data


def _select(path: Path, names: Iterable[str], roles: tuple[str, ...]) -> dict[str, str]:
    by_role: dict[str, list[str]] = {}
    for name in names:
        role = _role(name)
        if role is not None:
            by_role.setdefault(role, []).append(name)
    findings = []
    for role in roles:
        what = (
            "geographic header (..geo20??.pl)"
            if role == "geo"
            else f"data segment {role} (..0000{role}20??.pl)"
        )
        count = len(by_role.get(role, []))
        if count != 1:
            rule = f"expected one {what}, found {count or 'none'}"
            findings.append(Finding(path.name, None, None, rule))
    if findings:
        raise FormatError("The archive is not an official redistricting file of one state.", findings)
    return {role: by_role[role][0] for role in roles}
