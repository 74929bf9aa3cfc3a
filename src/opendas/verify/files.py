"""The release is what its certificate lists, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opendas.errors import CheckFailed
from opendas.files.atomic import sha256_file
from opendas.verify.check import require, some

__all__ = ["ISSUED_FILES", "check_digests", "check_issued", "check_listing", "read_certificate"]

FORMAT = "opendas certificate 1"
ISSUED_FILES = ("certificate.json", "certificate.pdf", "report.html")
"""Issued together, and not listed in the certificate."""

_KEYS = ("format", "version", "commit", "issued", "runs", "totals", "files")


def read_certificate(release: Path) -> dict[str, Any]:
    """Read ``certificate.json``.

    Raises
    ------
    CheckFailed
        If it is missing, no JSON, or of another format.
    """
    path = release / "certificate.json"
    require(path.is_file(), "certificate.json is missing.")

    def refuse(text: str) -> float:
        raise ValueError(text)

    try:
        certificate = json.loads(path.read_bytes(), parse_constant=refuse)
    except ValueError as error:
        raise CheckFailed("certificate.json is no strict JSON.") from error
    require(isinstance(certificate, dict) and certificate.get("format") == FORMAT, f"expected {FORMAT!r}.")
    missing = [key for key in _KEYS if key not in certificate]
    require(not missing, f"certificate.json lacks {some(missing)}.")
    require(
        isinstance(certificate["runs"], list) and bool(certificate["runs"]), "the certificate has no run."
    )
    products = [run["product"] for run in certificate["runs"]]
    require(len(set(products)) == len(products), "the certificate lists a product twice.")
    found: dict[str, Any] = certificate
    return found


def _found(release: Path) -> list[str]:
    names = (
        p.relative_to(release).as_posix() for p in release.rglob("*") if not p.is_dir() or p.is_symlink()
    )
    return sorted(name for name in names if name not in ISSUED_FILES)


def check_listing(release: Path, listed: Sequence[Mapping[str, Any]]) -> str:
    """Every file is listed, every listed file is there, and none is a link."""
    names = [str(entry["path"]) for entry in listed]
    found = _found(release)
    require(len(set(names)) == len(names), "the certificate lists a file twice.")
    unlisted = sorted(set(found) - set(names))
    require(not unlisted, f"not listed in the certificate: {some(unlisted)}.")
    missing = sorted(set(names) - set(found))
    require(not missing, f"listed in the certificate but missing: {some(missing)}.")
    links = [name for name in (*found, *ISSUED_FILES) if (release / name).is_symlink()]
    require(not links, f"links are no part of a release: {some(links)}.")
    return f"{len(found)} files, all listed"


def check_digests(release: Path, listed: Sequence[Mapping[str, Any]]) -> str:
    """Size and SHA-256 of every listed file are as in the certificate."""
    wrong = []
    size = 0
    for entry in listed:
        path = release / str(entry["path"])
        size += int(entry["bytes"])
        if (
            not path.is_file()
            or path.stat().st_size != entry["bytes"]
            or sha256_file(path) != entry["sha256"]
        ):
            wrong.append(str(entry["path"]))
    require(not wrong, f"other content than certified: {some(wrong)}.")
    return f"{size} bytes"


def check_issued(release: Path) -> str:
    """Certificate and report for people are there, and the report quotes the digest of this certificate."""
    missing = [name for name in ISSUED_FILES if not (release / name).is_file()]
    require(not missing, f"missing: {some(missing)}.")
    digest = sha256_file(release / "certificate.json")
    report = (release / "report.html").read_bytes()
    require(digest.encode() in report, "report.html was issued with another certificate.json.")
    return f"certificate {digest[:16]}"
