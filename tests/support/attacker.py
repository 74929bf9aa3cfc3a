"""What someone does to a release who has the package, all the time, and no key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opendas.custody.folders import sha256_file
from opendas.report.certificate import certificate_bytes, read_runs, released_files
from opendas.report.html import report_html
from opendas.report.pdf import certificate_pdf


def certificate_of(release: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((release / "certificate.json").read_text())
    return found


def reissue(release: Path, certificate: dict[str, Any] | None = None) -> None:
    """Make the certificate list what is there now, and the pages say what it says."""
    certificate = certificate or certificate_of(release)
    certificate["files"] = [file.to_dict() for file in released_files(release)]
    (release / "certificate.json").write_bytes(certificate_bytes(certificate))
    runs, digest = read_runs(release), sha256_file(release / "certificate.json")
    (release / "certificate.pdf").write_bytes(certificate_pdf(certificate, runs, digest))
    (release / "report.html").write_bytes(report_html(certificate, runs, digest))


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    metadata = pq.read_schema(path).metadata or {}
    store(path, change(pq.ParquetFile(path).read()), metadata)


def store(path: Path, table: pa.Table, metadata: dict[bytes, bytes]) -> None:
    """Write a table as the package does: without the schema of Arrow, and with metadata beside it."""
    with pq.ParquetWriter(path, table.schema.remove_metadata(), store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(dict(metadata.items()))


def put(table: pa.Table, name: str, values: Any) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, table.field(at), pa.array(values, type=table.field(at).type))
