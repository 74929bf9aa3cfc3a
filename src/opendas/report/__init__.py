"""Certificate and report of a release, written from public facts only."""

from opendas.report.certificate import issue, read_runs, released_files
from opendas.report.facts import RunFacts

__all__ = [
    "RunFacts",
    "issue",
    "read_runs",
    "released_files",
]
