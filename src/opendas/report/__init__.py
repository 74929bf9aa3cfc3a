"""Certificate and report of a release. Nothing confidential can arrive here."""

from opendas.report.certificate import build_certificate, issue, read_runs, released_files
from opendas.report.facts import NoiseRow, RunFacts
from opendas.report.guarantee import DEMONSTRATION_FRAME, NOT_FOR_RELEASE, POPULATED_LEAVES

__all__ = [
    "DEMONSTRATION_FRAME",
    "NOT_FOR_RELEASE",
    "POPULATED_LEAVES",
    "NoiseRow",
    "RunFacts",
    "build_certificate",
    "issue",
    "read_runs",
    "released_files",
]
