"""Check that a release holds exactly the files its certificate lists, and nothing about a machine."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opendas.custody.folders import sha256_file
from opendas.errors import CheckFailed
from opendas.files.geography_files import (
    CONSTRAINT_SCHEMA,
    LEAF_COUNTS_SCHEMA,
    SPINE_SCHEMA,
    constraint_metadata,
    frame_metadata,
    frame_schema,
    prior_metadata,
    spine_metadata,
    tie_metadata,
    write_constraints,
    write_frame,
    write_spine,
)
from opendas.files.mdf.layout import mdf_layout, mdf_parts
from opendas.files.mdf.reading import mdf_files
from opendas.files.mdf.writing import mdf_schema
from opendas.files.nmf.writing import MEASUREMENT_SCHEMA
from opendas.files.official_areas import (
    official_areas_metadata,
    official_areas_schema,
    write_official_areas,
)
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.files.replicate_files import REPLICATE_SCHEMA, REPLICATES
from opendas.files.storage.parquet import has_columns, open_parquet, read_metadata
from opendas.report.certificate import FORMAT, ISSUED_FILES, SIGNATURE
from opendas.report.views import plural
from opendas.schema.declarations import PUBLISHED_LIST, PublishedFile
from opendas.verify.budget import certified_plan
from opendas.verify.check import first_few, require

_KEYS = ("format", "version", "commit", "issued", "runs", "totals", "files")


def read_certificate(release: Path, form: str = FORMAT, keys: Sequence[str] = _KEYS) -> dict[str, Any]:
    """Read ``certificate.json``, which has a format, these keys, and runs of different products."""
    path = release / "certificate.json"
    require(path.is_file(), "certificate.json is missing.")

    def refuse(text: str) -> float:
        raise ValueError(text)

    try:
        certificate = json.loads(path.read_bytes(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CheckFailed("certificate.json is not strict JSON.") from error
    require(
        isinstance(certificate, dict) and certificate.get("format") == form,
        f"certificate.json does not have the format {form!r}.",
    )
    missing = [key for key in keys if key not in certificate]
    require(not missing, f"certificate.json has no {first_few(missing)}.")
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
    return sorted(name for name in names if name not in (*ISSUED_FILES, SIGNATURE))


def check_listing(release: Path, listed: Sequence[Mapping[str, Any]]) -> str:
    """Check that every file is listed, that every listed file exists, and that none is a link."""
    names = [str(entry["path"]) for entry in listed]
    found = _found(release)
    require(len(set(names)) == len(names), "the certificate lists a file twice.")
    check_found(found, names)
    links = [name for name in (*found, *ISSUED_FILES, SIGNATURE) if (release / name).is_symlink()]
    require(not links, f"a release must not contain links: {first_few(links)}.")
    return f"{plural('file', len(found))}, all listed"


def check_found(found: Sequence[str], listed: Sequence[str]) -> None:
    """Check that the files found are those that the certificate lists."""
    unlisted, missing = sorted(set(found) - set(listed)), sorted(set(listed) - set(found))
    require(not unlisted, f"not listed in the certificate: {first_few(unlisted)}.")
    require(not missing, f"listed in the certificate but missing: {first_few(missing)}.")


def _known_files(run: Mapping[str, Any], released: ReleasedProduct) -> dict[str, Any]:
    """Return the Arrow schema of each file of a run; None for text files."""
    name = released.name
    measured = [level.geolevel for level in certified_plan(run, released).levels if level.queries]
    files: dict[str, Any] = {
        f"run/{name}.toml": None,
        f"geography/{name}.parquet": frame_schema(released.frame),
        f"measurements/{name}/spine.parquet": SPINE_SCHEMA,
        f"measurements/{name}/constraints.parquet": CONSTRAINT_SCHEMA,
        **{f"measurements/{name}/{level}.parquet": MEASUREMENT_SCHEMA for level in measured},
    }
    if run.get("published"):
        files[f"measurements/{name}/{PUBLISHED_LIST}"] = None
    if released.product.tied is not None:
        files[f"measurements/{name}/tie.parquet"] = LEAF_COUNTS_SCHEMA
    if released.product.prior is not None:
        files[f"measurements/{name}/prior.parquet"] = LEAF_COUNTS_SCHEMA
    if released.official is not None:
        files[f"geography/official/{name}.parquet"] = official_areas_schema(released.official.census)
    replicates = f"{REPLICATES}/{name}.parquet"
    if (released.release / replicates).exists():
        files[replicates] = REPLICATE_SCHEMA
    if released.mdf.is_dir():
        (suffix,) = {path.suffix for path in mdf_files(released.mdf)}
        schema = mdf_schema(mdf_layout(released.product, released.frame)) if suffix == ".parquet" else None
        folder = f"mdf/{released.product.layout}"
        parts = mdf_parts(released.product, released.frame)
        files |= {f"{folder}/{part.name}{suffix}": schema for part in parts}
    return files


def _known_metadata(released: ReleasedProduct) -> dict[str, Any]:
    """Return the expected metadata of public files; another check covers measurements."""
    product, spine = released.product, released.spine
    folder = f"measurements/{released.name}"
    tied = {} if product.tied is None else {f"{folder}/tie.parquet": tie_metadata(product)}
    prior = {} if product.prior is None else {f"{folder}/prior.parquet": prior_metadata(product)}
    official = released.official
    listed = {} if official is None else official_areas_metadata(official.census)
    return {
        **tied,
        **prior,
        **({f"geography/official/{released.name}.parquet": listed} if listed else {}),
        f"geography/{released.name}.parquet": frame_metadata(released.frame, product),
        f"{folder}/spine.parquet": spine_metadata(spine),
        f"{folder}/constraints.parquet": constraint_metadata(product, spine),
    }


def _rewritten(released: ReleasedProduct) -> Iterator[str]:
    """Yield public files that differ from what is written again from their parsed content."""
    product, spine, name = released.product, released.spine, released.name
    with tempfile.TemporaryDirectory(prefix="opendas-") as folder:
        geography, measurements = Path(folder, "geography"), Path(folder, "measurements", name)
        geography.mkdir()
        measurements.mkdir(parents=True)
        write_frame(geography / f"{name}.parquet", released.frame, product)
        if released.official is not None:
            write_official_areas(geography / "official" / f"{name}.parquet", released.official)
        write_spine(measurements / "spine.parquet", spine)
        write_constraints(measurements / "constraints.parquet", product, spine, released.constraint_table)
        for path in sorted(Path(folder).rglob("*.parquet")):
            file = path.relative_to(folder).as_posix()
            if not _same_rows(path, released.release / file):
                yield file


def _lacking_leaves(released: ReleasedProduct) -> Iterator[str]:
    """Yield the file of official areas if leaves are missing from it."""
    official, frame = released.official, released.frame
    if official is not None and not np.isin(frame.geocodes, official.geocodes(frame.leaf)).all():
        yield f"geography/official/{released.name}.parquet"


def _same_rows(one: Path, other: Path) -> bool:
    files = [open_parquet(path) for path in (one, other)]
    groups = {file.metadata.num_row_groups for file in files}
    return len(groups) == 1 and all(
        files[0].read_row_group(number).equals(files[1].read_row_group(number)) for number in range(*groups)
    )


def check_published(run: Mapping[str, Any], released: ReleasedProduct) -> str:
    """Check the list of published files against the certificate; the files themselves are not here."""
    source = PublishedFile.from_dict(run["published"])
    path = released.measurements / PUBLISHED_LIST
    require(
        sha256_file(path) == source.sha256 and path.read_bytes().count(b"\n") == source.files,
        f"{PUBLISHED_LIST} is not the certified list of published files.",
    )
    return (
        f"{plural('file', source.files)} of {source.name} named by digest (sha256sum -c {PUBLISHED_LIST}, in "
        "that folder); that these measurements are from there was not checked here"
    )


def check_columns(certificate: Mapping[str, Any], folder: ReleaseFolder) -> str:
    """Check that every file except tables is one that a run writes, with exactly its columns."""
    known: dict[str, Any] = {}
    for run in certificate["runs"]:
        known |= _known_files(run, folder[run["product"]])
    found = {str(entry["path"]) for entry in certificate["files"]}
    found = {name for name in found if not name.startswith("tables/")}
    require(found <= set(known), f"files that no run writes: {first_few(sorted(found - set(known)))}.")
    require(found >= set(known), f"missing: {first_few(sorted(set(known) - found))}.")
    wrong = [
        name
        for name, schema in known.items()
        if schema is not None and not has_columns(folder.path / name, schema)
    ]
    for run in certificate["runs"]:
        said = _known_metadata(folder[run["product"]])
        wrong += [name for name, value in said.items() if read_metadata(folder.path / name) != value]
    require(not wrong, f"columns, types or metadata differ from what a run writes: {first_few(wrong)}.")
    for run in certificate["runs"]:
        wrong += _rewritten(folder[run["product"]])
        wrong += _lacking_leaves(folder[run["product"]])
    require(not wrong, f"rows differ from what a run writes: {first_few(wrong)}.")
    return f"{plural('file', len(known))}, with the columns of their kind"


def check_digests(release: Path, listed: Sequence[Mapping[str, Any]]) -> str:
    """Check the size and SHA-256 of every listed file against the certificate."""
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
    require(not wrong, f"content differs from the certificate: {first_few(wrong)}.")
    return plural("byte", size)


def check_issued(release: Path) -> str:
    """Check that the PDF and the report exist, and that the report quotes the digest of this certificate."""
    missing = [name for name in ISSUED_FILES if not (release / name).is_file()]
    require(not missing, f"missing: {first_few(missing)}.")
    digest = sha256_file(release / "certificate.json")
    report = (release / "report.html").read_bytes()
    require(digest.encode() in report, "report.html was issued with another certificate.json.")
    return f"certificate {digest[:16]}"


_PATH = re.compile(
    rb"(?<![A-Za-z0-9+/=.])/(?:home|Users|root|tmp|private|var|opt|mnt|srv|work|workspace|data)/[\w.-]{2,}"
    rb"|(?<![A-Za-z0-9])[A-Z]:\\\\?[\w.-]+\\"
)
_CLOCK = re.compile(rb"(?:19|20)\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d")
_STREAM = re.compile(rb"\bstream\r?\n.*?endstream", re.DOTALL)
_TEXT = (".json", ".html", ".toml", ".csv", ".txt")


def machine_names() -> tuple[str, ...]:
    """Return the names of this host and user, unless they are ordinary words."""
    names = {socket.gethostname(), socket.gethostname().split(".")[0]}
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    telling = re.compile(r"[0-9._-]")
    return tuple(sorted(n for n in names if len(n) >= 8 or (len(n) >= 5 and telling.search(n))))


def _readable(suffix: str, data: bytes) -> bytes:
    """Return the uncompressed part of a file; compressed bytes can look like a path by chance."""
    if suffix == ".pdf":
        return _STREAM.sub(b"", data)
    if suffix == ".parquet" and data[-4:] == b"PAR1":
        return data[-8 - int.from_bytes(data[-8:-4], "little") :]
    return data


def check_machine(release: Path, names: Iterable[str]) -> str:
    """Check that no file holds an absolute path, a host or user name, or (text files) a clock reading.

    Searches uncompressed bytes: text, Parquet metadata and the structure of PDF files.
    """
    words = [re.compile(rb"(?<![A-Za-z0-9])" + re.escape(n.encode()) + rb"(?![A-Za-z0-9])") for n in names]
    found = []
    for path in sorted(release.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        where = path.relative_to(release).as_posix()
        if _PATH.search(_readable(path.suffix, data)):
            found.append(f"{where} (a path)")
        if any(word.search(data) for word in words):
            found.append(f"{where} (a host or user name)")
        if path.suffix in _TEXT and _CLOCK.search(data):
            found.append(f"{where} (a time of day)")
    require(not found, f"a path, name or time of this machine stands in {first_few(found)}.")
    return "no path, host, user or time of day"
