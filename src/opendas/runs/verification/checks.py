"""Checks of a release that read its plan back and make certificate, pages and estimate again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from opendas.custody.signing_key import PublicKey
from opendas.files.release_folder import ReleaseFolder
from opendas.files.replicate_files import REPLICATES
from opendas.report.certificate import read_runs
from opendas.report.signature import check_signature
from opendas.runs.verification.certificate import DECLARED, check_certificate_again, check_pages
from opendas.verify.check import Check, run_check
from opendas.verify.files import read_certificate
from opendas.verify.release import estimated

Progress = Callable[[str, int, int], None]


Step = tuple[str, Callable[[], str]]
"""Name of a check, and the check."""


def checks_again(
    release: Path,
    signed_by: PublicKey | None,
    tied: Path | None,
    workers: int | None,
    progress: Progress | None,
    *,
    rederive: bool,
) -> Iterator[Check]:
    """Check what is made again of a release, in a fixed order; arguments as of ``Release.verify``.

    `tied`: ``release/`` that this one is tied to.
    """
    steps = itertools.chain(
        [("signature", lambda: check_signature(release, signed_by))],
        _made_again(release),
        _estimated_again(release, tied, workers, progress) if rederive else (),
    )
    for name, step in steps:
        yield run_check(name, step)
    yield Check("declared", True, "; ".join(f"{name}: {what}" for name, what in DECLARED.items()))


def _made_again(release: Path) -> Iterator[Step]:
    """Yield what is made again of the certificate."""

    def certificate() -> str:
        found = read_certificate(release)
        return check_certificate_again(release, found, read_runs(release), ReleaseFolder(release))

    yield "certificate made again", certificate
    yield "pages", lambda: check_pages(release, read_certificate(release), read_runs(release))


def _estimated_again(
    release: Path, tied: Path | None, workers: int | None, progress: Progress | None
) -> Iterator[Step]:
    """Yield what is made again of each run."""
    # Imported here: only who estimates again waits for engines.
    from opendas.runs.verification.estimate import (
        check_estimate_again,
        check_replicates_again,
        check_spine_again,
    )

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
        if (release / REPLICATES / f"{product}.parquet").exists():
            step = partial(check_replicates_again, released, tied=tied, workers=workers, progress=progress)
            yield f"{product}: replicates drawn again", step
