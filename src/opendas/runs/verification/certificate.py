"""The certificate made again from plan and files, apart from other checks: by the code that a run uses.

What can be computed is, and compared whole; the rest is the signer's word, and :data:`DECLARED` says what
that is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from opendas.custody.account import AccountFacts
from opendas.custody.folders import sha256_file
from opendas.custody.stamps import DEMONSTRATION_FRAME, POPULATED_LEAVES, UNPROVEN_PART
from opendas.errors import FormatError
from opendas.files.mdf.unit_types import UnitTypes
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.measurement.protection import ProtectionMap
from opendas.parts import ESTIMATORS
from opendas.readers.input.spec import FRAME_FROM_RECORDS
from opendas.report.certificate import CERTIFICATE, ReleasedFile, build_certificate, certificate_bytes
from opendas.report.facts import RunFacts
from opendas.runs.context.facts import measured_facts
from opendas.runs.context.run import Run, released_run
from opendas.topdown.model import OWN_ESTIMATORS
from opendas.verify.check import differing, first_few, require
from opendas.version import __version__

TAKEN = ("records", "families", "fallbacks", "failsafe", "parts", "pyramids", "moved")
"""Facts that other checks count or compare: records in the microdata, all and by sex and age; families and
parts of other packages where the estimate is made again."""

DECLARED = {
    "version, commit, issued": "which program wrote the release, and when",
    "stamps": "that noise without a stamp came from no seed, and a frame without one from a public list",
    "noise": (
        "that it was drawn from the stated laws with a secret key, for the data of this office, or as the "
        "publisher of the measurements says; and answers that depend on no record"
    ),
    "key": "what became of it",
    "exact values": "that invariants and public counts are what they are said to be",
    "parts": "that the packages named did the work, and that what they call their argument is one",
    "provenance": "that labels, levels, frame and units come from where it says",
    "account": "what else was done with these data: acts, readings, a book's head, limit and sum",
    "tables": "that every table that was made is in the release",
}
"""What nobody can compute from a release: part of the certificate to what it would say about the world."""


def facts_again(certified: RunFacts, released: ReleasedProduct) -> RunFacts:
    """Return what a run says of itself, from its release.

    `certified`: of which what is not computed here is taken.
    """
    run = released_run(released)
    held = {invariant.name for invariant in run.product.invariants}
    declared = [name for name in certified.invariants if name not in held]
    _check_words(run, certified, declared)
    domain = run.resolved.domain
    protection = ProtectionMap.of(run.plan, run.frame, released.constraint_table)
    facts = measured_facts(run, protection, certified.stamps, declared, domain, certified.measurements)
    facts = replace(facts, key=certified.key)
    if not released.mdf.is_dir():
        return facts
    taken = {name: getattr(certified, name) for name in TAKEN}
    return replace(facts, estimator=run.resolved.estimator, **taken)


def _check_words(run: Run, certified: RunFacts, declared: Sequence[str]) -> None:
    """The stamps and words that reader and estimator of the run always bring are there."""
    reader, parts = run.resolved.reader, certified.parts
    named = {part.name for part in parts if part.kind == ESTIMATORS and part.package}
    outside = {run.resolved.estimator} if certified.estimated else set()
    require(
        named == outside - set(OWN_ESTIMATORS),
        "the estimators of other packages that the certificate names are not those of the plan.",
    )
    measuring = run.measuring_parts
    require(
        {part for part in parts if part.kind != ESTIMATORS} == set(measuring)
        and len(parts) == len(named) + len(measuring),
        "the mechanisms or workloads of other packages that the certificate names are not the plan's.",
    )
    require(
        all(part.proof for part in parts) or UNPROVEN_PART in certified.stamps,
        f"a part names no argument for the guarantee: the stamp {UNPROVEN_PART} is missing.",
    )
    tied = () if run.product.tied is None else run.product.tied.stamps
    require(
        set(tied) <= set(certified.stamps),
        f"the release that this one is tied to is stamped {first_few(tied)}: the same stamp is missing here.",
    )
    has_types = certified.estimated and UnitTypes.of(run.product, run.frame) is not None
    require(
        (certified.moved is not None) == has_types,
        "the certificate does not say how many records got another type of unit."
        if has_types
        else "the certificate says how many records got another type of unit, and this run changes no types.",
    )
    derived = reader.reader.startswith("pl94-")
    require(
        not derived or DEMONSTRATION_FRAME in certified.stamps,
        f"the reader {reader.reader} derives the frame: the stamp {DEMONSTRATION_FRAME} is missing.",
    )
    require(
        reader.frame != FRAME_FROM_RECORDS or POPULATED_LEAVES in declared,
        f"the frame was taken from the records: {POPULATED_LEAVES} are missing among what is exact.",
    )


def check_certificate_again(
    release: Path, certificate: Mapping[str, Any], runs: Sequence[RunFacts], folder: ReleaseFolder
) -> str:
    """Every entry that plan and files determine is what they give, and the file has no other form."""
    _check_making(certificate)
    facts = [facts_again(run, folder[run.product]) for run in runs]
    again = build_certificate(
        facts,
        sorted((ReleasedFile(**entry) for entry in certificate["files"]), key=lambda file: file.path),
        AccountFacts.from_dict(certificate["account"]),
        version=certificate["version"],
        commit=certificate["commit"],
        issued=certificate["issued"],
    )
    wrong = list(differing(dict(certificate), json.loads(certificate_bytes(again))))
    require(not wrong, f"not what plan and files give: {first_few(wrong)}.")
    same = certificate_bytes(certificate) == (release / CERTIFICATE).read_bytes()
    require(same, f"{CERTIFICATE} is not written as this program writes it.")
    return f"{sum(len(run.to_dict()) for run in runs)} entries, as plan and files give them"


def _check_making(certificate: Mapping[str, Any]) -> None:
    """Date and commit cannot be checked, only that they are a date and a commit."""
    try:
        dated = date.fromisoformat(certificate["issued"]).isoformat() == certificate["issued"]
    except (TypeError, ValueError):
        dated = False
    require(dated, "issued is not a date.")
    commit = certificate["commit"]
    known = re.fullmatch("unknown|[0-9a-f]{40}", str(commit)) is not None
    require(known, "commit is not the name of a commit.")


def check_pages(release: Path, certificate: Mapping[str, Any], runs: Sequence[RunFacts]) -> str:
    """Report and PDF are what this version makes of the certificate, byte for byte."""
    if certificate["version"] != __version__:
        return (
            f"not made again: version {certificate['version']} issued them, and this is {__version__}. "
            "Only a signature covers them"
        )
    # Imported here: page layout takes a while to load.
    from opendas.report.html import report_html
    from opendas.report.pdf import certificate_pdf

    digest = sha256_file(release / CERTIFICATE)
    made = {
        "certificate.pdf": certificate_pdf(certificate, runs, digest),
        "report.html": report_html(certificate, runs, digest),
    }
    wrong = [name for name, data in made.items() if _bytes(release / name) != data]
    require(not wrong, f"not the pages of this certificate: {first_few(wrong)}.")
    return "report and PDF, made again: the same bytes"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path.name} cannot be read.") from error
