"""Write the certificate of an output folder: its runs, their losses and the digest of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from opendas.custody.account import AccountFacts
from opendas.custody.folders import PARTIAL_SUFFIX, sha256_file, write_atomic
from opendas.custody.ledger_entries import INFINITE, LedgerEntry, Loss, Spent, total_spent
from opendas.custody.protected_units import CENSUS_CHANGES, unit_id
from opendas.errors import ConfigError, FormatError
from opendas.files.release_folder import digest_of_files
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.report.facts import RunFacts, loss_json
from opendas.report.guarantee import account_text, guarantee_text
from opendas.version import issue_date

FORMAT = "opendas certificate 2"
CERTIFICATE = "certificate.json"
ISSUED_FILES = (CERTIFICATE, "certificate.pdf", "report.html")
"""Files written together; the certificate does not list them."""

SIGNATURE = "certificate.sig"
"""Signature of the issued files; see :mod:`opendas.report.signature`."""


@dataclass(frozen=True, slots=True)
class ReleasedFile:
    """One file of a release."""

    path: str  # relative to ``release/``, with forward slashes
    bytes: int
    sha256: str

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return {"path": self.path, "bytes": self.bytes, "sha256": self.sha256}


def released_files(release: Path) -> tuple[ReleasedFile, ...]:
    """List the files of a release by path, without those issued with the certificate."""
    found = []
    for path in release.rglob("*"):
        name = path.relative_to(release).as_posix()
        if path.is_file() and name not in (*ISSUED_FILES, SIGNATURE) and not name.endswith(PARTIAL_SUFFIX):
            found.append(ReleasedFile(name, path.stat().st_size, sha256_file(path)))
    return tuple(sorted(found, key=lambda file: file.path))


_entry = partial(LedgerEntry, key_commitment="-", input_tag="-", version="-")
"""Builds a ledger entry with a dash for what only the ledger knows."""


def _run_entry(run: RunFacts, number: int) -> LedgerEntry:
    return _entry(
        run_id=str(number),
        product=run.product,
        plan_digest=run.plan_digest,
        mechanism=Mechanism(run.mechanism),
        loss=run.loss if run.guaranteed else INFINITE,
        relation=Neighbours(run.neighbours),
        protected_unit=run.protected_unit,
        seeded=not run.guaranteed,
    )


def _discoveries(runs: Sequence[RunFacts]) -> list[LedgerEntry]:
    """Build an entry for each private discovery of a domain, once for each unit and neighbour relation."""
    found = {}
    for run in runs:
        for act in () if run.domain is None else run.domain.discoveries:
            found[act.act, unit_id(run.protected_unit), run.neighbours] = _entry(
                run_id=act.act,
                product="domain",
                plan_digest="-",
                mechanism=Mechanism.DISCRETE_GAUSSIAN,
                loss=act.loss(Neighbours(run.neighbours)),
                relation=Neighbours(run.neighbours),
                protected_unit=run.protected_unit,
                delta=act.delta,
            )
    return list(found.values())


def _earlier(runs: Sequence[RunFacts], files: Iterable[ReleasedFile]) -> list[LedgerEntry]:
    """Build an entry for each earlier release that a run is tied to, unless this folder holds it."""
    microdata: dict[str, dict[str, str]] = {}
    for file in files:
        microdata.setdefault("/".join(file.path.split("/")[:2]), {})[file.path] = file.sha256
    here = {digest_of_files(listed) for listed in microdata.values()}
    here |= {act.act for run in runs if run.domain is not None for act in run.domain.discoveries}
    acts = {act.act: act for run in runs for act in run.tied if act.act not in here}
    return [
        _entry(
            run_id=act.act,
            product=act.product,
            plan_digest="-",
            mechanism=act.mechanism,
            loss=INFINITE if act.loss is None else act.loss,
            relation=act.neighbours,
            protected_unit=act.protected_unit,
            seeded=act.loss is None,
            delta=act.delta,
        )
        for act in acts.values()
    ]


def _finite(loss: Loss | None) -> Fraction | None:
    return loss if isinstance(loss, Fraction) else None


def _total(spent: Spent, runs: Sequence[RunFacts], delta: Fraction, tied: int) -> dict[str, object]:
    pure = spent.epsilon is not None
    loss = _finite(spent.epsilon if pure else spent.rho)
    records = {f"one {run.protected_unit}" for run in runs if run.protected_unit != "record"}
    several = [run for run in runs if run.contribution is not None or run.companion is not None]
    records -= {f"one {run.protected_unit}" for run in several}
    total = {
        "change": f"{spent.change} record" if spent.change in records else spent.change,
        "neighbours": spent.relation.value,
        "runs": spent.acts - spent.approximate,
        "uncovered": spent.uncovered,
        **({"tied": tied} if tied else {}),
        **loss_json(loss, delta, pure=pure),
    }
    if spent.approximate:
        # delta-approximate rho-zCDP is (epsilon, delta + delta')-DP where rho-zCDP is (epsilon, delta')-DP.
        whole = delta + spent.delta
        total |= {"discoveries": spent.approximate, "discovery_delta": format_fraction(spent.delta)}
        total |= {"delta": float(whole), "delta_exact": format_fraction(whole)}
    return total


def totals(runs: Sequence[RunFacts], files: Iterable[ReleasedFile] = ()) -> list[dict[str, object]]:
    """Sum the losses of the runs exactly, separately for each change and neighbour relation.

    - `files`: files of the release. A run tied to another run in the same release counts that run once.
    - Returns: totals for one person record, one housing unit record, and one person with the unit changes it
      induces (persons once, units twice), where a run touches them. ``uncovered`` counts runs on the same
      records whose loss under this relation was not derived: losses under different relations are never
      added. A run that is not for release makes a total unbounded. Private discoveries of a domain are
      included: ``discoveries`` counts them, and ``delta`` adds their deltas (``discovery_delta``, exact) to
      that of the conversion. Earlier releases that runs are tied to are included once each; ``tied`` counts
      them.

    Notes
    -----
    Bun and Steinke (2016), section 8: composition and conversion of approximate zCDP.
    """
    if not runs:
        return []
    delta = min(run.delta for run in runs)
    entries = [_run_entry(run, number) for number, run in enumerate(runs)] + _discoveries(runs)
    earlier = _earlier(runs, files)
    own = {
        (spent.relation, spent.change): spent.acts - spent.approximate
        for spent in total_spent(entries, CENSUS_CHANGES)
    }
    return [
        _total(
            spent,
            runs,
            delta,
            spent.acts - spent.approximate - own.get((spent.relation, spent.change), 0),
        )
        for spent in total_spent(entries + earlier, CENSUS_CHANGES)
    ]


def build_certificate(
    runs: Sequence[RunFacts],
    files: Iterable[ReleasedFile],
    account: AccountFacts | None = None,
    *,
    version: str,
    commit: str,
    issued: str,
) -> dict[str, Any]:
    """Build the content of ``certificate.json``.

    - `runs`: in the order in which they ran.
    - `account`: by default, an account of these runs only.
    - `version`, `commit`: of the program; ``"unknown"`` if the commit is not known.
    - `issued`: date, YYYY-MM-DD.
    - Returns: JSON values only.
    """
    own = [run.product for run in runs if run.published is None]
    places = {product: number for number, product in enumerate(own, start=1)}
    account = account or AccountFacts(False, len(own), places, 0)
    files = tuple(files)
    return {
        "format": FORMAT,
        "version": version,
        "commit": commit,
        "issued": issued,
        "stamps": list(dict.fromkeys(stamp for run in runs for stamp in run.stamps)),
        "runs": [{**run.to_dict(), "guarantee": guarantee_text(run)} for run in runs],
        "totals": totals(runs, files),
        "account": account.to_dict(),
        "scope": account_text(account, tied=any(run.tied for run in runs)),
        "files": [file.to_dict() for file in files],
    }


def certificate_bytes(certificate: Mapping[str, Any]) -> bytes:
    """Return a certificate as strict JSON with sorted keys; equal content gives equal bytes."""
    text = json.dumps(certificate, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False)
    return (text + "\n").encode()


def read_runs(release: Path) -> tuple[RunFacts, ...]:
    """Read the runs of an issued certificate; empty if there is no certificate."""
    path = release / CERTIFICATE
    if not path.exists():
        return ()
    try:
        certificate = json.loads(path.read_bytes())
        if certificate["format"] != FORMAT:
            raise FormatError(
                f"{CERTIFICATE} does not have the format {FORMAT!r}. Another version of OpenDAS may have "
                "written it."
            )
        return tuple(RunFacts.from_dict(record) for record in certificate["runs"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{CERTIFICATE} is damaged. Restore it from a copy of the release.") from error


def read_account(release: Path) -> AccountFacts | None:
    """Read the account section of an issued certificate; None if there is no certificate."""
    path = release / CERTIFICATE
    account = json.loads(path.read_bytes()).get("account") if path.exists() else None
    return None if account is None else AccountFacts.from_dict(account)


def load_pages() -> None:
    """Import the slow page layout and templates before a certificate is issued."""
    from opendas.report import html, pdf

    del html, pdf


def issue(
    release: Path,
    runs: Iterable[RunFacts] = (),
    account: AccountFacts | None = None,
    *,
    version: str,
    commit: str = "unknown",
) -> dict[str, Any]:
    """Write ``certificate.json``, ``certificate.pdf`` and ``report.html`` for a release as it stands.

    - `release`: the folder ``release/`` of an output folder.
    - `runs`: new runs, listed after those of an earlier certificate; a run replaces the earlier one of its
      product. Empty after ``tabulate``, which only adds files.
    - `account`: by default, that of the earlier certificate.

    Raises `FormatError` if an earlier certificate is damaged; `ConfigError` if there is no run to certify;
    `EnvironmentFailure` if a file cannot be written.
    """
    by_product = {run.product: run for run in read_runs(release)}
    by_product.update({run.product: run for run in runs})
    if not by_product:
        raise ConfigError("this release has no run to certify. Run, measure or estimate a product first.")
    facts = tuple(by_product.values())
    certificate = build_certificate(
        facts,
        released_files(release),
        account or read_account(release),
        version=version,
        commit=commit,
        issued=issue_date(),
    )
    data = certificate_bytes(certificate)
    digest = hashlib.sha256(data).hexdigest()
    # Imported here: see load_pages.
    from opendas.report.html import report_html
    from opendas.report.pdf import certificate_pdf

    (release / SIGNATURE).unlink(missing_ok=True)  # it signs the earlier certificate
    # The JSON comes last: until it is replaced, the earlier certificate describes the release.
    write_atomic(release / "certificate.pdf", certificate_pdf(certificate, facts, digest))
    write_atomic(release / "report.html", report_html(certificate, facts, digest))
    write_atomic(release / CERTIFICATE, data)
    return certificate
