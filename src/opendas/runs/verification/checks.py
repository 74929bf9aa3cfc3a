"""All checks of a release, those that read a plan back and estimate again included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from opendas.files.release_folder import ReleaseFolder
from opendas.runs.verification.estimate import Progress, check_estimate_again, check_spine_again
from opendas.verify.check import Check, run_check
from opendas.verify.files import read_certificate
from opendas.verify.release import estimated, verify_release

__all__ = ["verify_again"]


def verify_again(
    release: Path,
    *,
    allow_seeded: bool = False,
    allow_domain_from_records: bool = False,
    rederive: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Check, ...]:
    """Check a release from its own files.

    Parameters
    ----------
    release : Path
        The folder ``release/``, or a copy of it.
    allow_seeded : bool
        Accept a run that is stamped NOT FOR RELEASE.
    allow_domain_from_records : bool
        Accept a run that is stamped DOMAIN FROM RECORDS.
    rederive : bool
        Estimate again from the measurements, and compare record for record.
    workers : int, optional
        Processes that estimate.
    progress : callable(stage, done, total), optional

    Returns
    -------
    tuple of Check
        In a fixed order; the release passes if all are ok.
    """
    checks = verify_release(
        release, allow_seeded=allow_seeded, allow_domain_from_records=allow_domain_from_records
    )
    if rederive and checks[0].ok:
        steps = _again(release, workers, progress)
        return (*checks, *(run_check(name, step) for name, step in steps))
    return checks


def _again(
    release: Path, workers: int | None, progress: Progress | None
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what is made again of each run."""
    folder = ReleaseFolder(release)
    for run in read_certificate(release)["runs"]:
        product = run["product"]
        if product not in folder:
            continue  # which a check before this one has said
        released = folder[product]
        yield f"{product}: spine made again", partial(check_spine_again, released)
        if estimated(run):
            yield (
                f"{product}: estimated again",
                partial(check_estimate_again, run, released, workers=workers, progress=progress),
            )
