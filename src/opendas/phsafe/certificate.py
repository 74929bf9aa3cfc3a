"""Write the certificate of the household tables: the tables, their noise and their loss under every bound.

Nothing here is confidential. Losses are exact fractions, derived separately for each relation and bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from opendas.custody.account import AccountFacts
from opendas.custody.folders import sha256_file, write_atomic
from opendas.custody.ledger_entries import INFINITE, Loss, loss_text
from opendas.custody.stamps import NOT_FOR_RELEASE, KeyCustody
from opendas.phsafe.config import Plan
from opendas.phsafe.folder import PRODUCT
from opendas.phsafe.inputs.levels import regions
from opendas.phsafe.margins import NINETY, margin
from opendas.phsafe.tables import DERIVED, Derived, find_table
from opendas.phsafe.tables.sensitivity import LevelNoise, Sensitivity, total_loss
from opendas.phsafe.truncation import Truncation
from opendas.privacy.relations import Neighbours
from opendas.report.certificate import CERTIFICATE, SIGNATURE, ReleasedFile, certificate_bytes
from opendas.report.facts import loss_json
from opendas.report.guarantee import STAMP_MEANING, account_text, computational_text
from opendas.runs.context.account import account_facts
from opendas.sampling.laws import Noise
from opendas.sampling.sums import margin_of_sum
from opendas.version import __version__, commit, issue_date

FORMAT = "opendas phsafe certificate 2"
DELTA = Fraction(1, 10**10)
"""Delta at which epsilon is quoted."""

_BY_SIZE = (Neighbours.UNBOUNDED, Neighbours.BOUNDED)

_ASSUMPTION = (
    "Assumption N1: neighbouring inputs differ in the persons and the unit row of one address (unbounded), "
    "or of two addresses (bounded); geography and the list of regions are public; each counted row has one "
    "cell at each level; who is kept of a household depends on that household and a fixed key. Not protected "
    "is what is public: where an address lies, and whether it is group quarters."
)
_SELECTION = {
    Truncation.KEYED: (
        "Who is kept of a household above tau is decided by a keyed order, which nobody without the key can "
        "predict."
    ),
    Truncation.TUMULT: (
        "Who is kept of a household above tau is decided by the public order of the published program, which "
        "anyone who knows a household's records can compute."
    ),
}
_GIVEN = "The guarantee concerns the edited file, given that validation passed."
_NOTHING_EXACT = "No statistic of the confidential data is published exactly."


def run_stamps(plan: Plan, *, seeded: bool) -> tuple[str, ...]:
    """Return the stamps of a run; noise from a seed or an infinite budget is not for release."""
    return (NOT_FOR_RELEASE,) if seeded or plan.config.is_infinite else ()


def household_certificate(
    plan: Plan,
    files: Iterable[ReleasedFile],
    derived: Iterable[Derived] = DERIVED,
    account: AccountFacts | None = None,
    *,
    seeded: bool,
    key: str,
    version: str,
    commit: str,
    issued: str,
) -> dict[str, Any]:
    """Build the content of ``certificate.json``.

    - `account`: by default, an account of this run only.
    - `key`: custody of the run key when the tables were complete.
    """
    stamps = run_stamps(plan, seeded=seeded)
    account = account or AccountFacts(False, 1, {PRODUCT: 1}, 0)
    config = plan.config
    run = {
        "product": PRODUCT,
        "stamps": list(stamps),
        "mechanism": plan.mechanism.value,
        "privacy_definition": "zcdp" if plan.mechanism.is_zcdp else "puredp",
        "state_filter": list(config.state_filter),
        "sensitivity": plan.sensitivity.value,
        "truncation": plan.truncation.value,
        "protected_unit": "the persons and the unit row of one address",
        "plan_digest": plan.digest(),
        "key": key,
        "noise": [_noise_row(plan, noise) for noise in plan.noise],
        "derived": [_derived_row(plan, one) for one in derived if one.source in config.budgets],
        "guarantee": "\n\n".join(_guarantee(plan, stamps, key)),
    }
    return {
        "format": FORMAT,
        "version": version,
        "commit": commit,
        "issued": issued,
        "stamps": list(stamps),
        "runs": [run],
        "totals": _totals(plan),
        "account": account.to_dict(),
        "scope": account_text(account),
        "files": [file.to_dict() for file in files],
    }


def issue_certificate(
    out: Path, plan: Plan, derived: Iterable[Derived], facts: Mapping[str, Any], custody: KeyCustody
) -> dict[str, Any]:
    """Write ``certificate.json`` for the tables of an output folder, and return its content.

    `facts`: ``tables``, the files relative to `out`, and ``seeded``.
    """
    files = [
        ReleasedFile(name, (out / name).stat().st_size, sha256_file(out / name)) for name in facts["tables"]
    ]
    certificate = household_certificate(
        plan,
        files,
        derived,
        account_facts(out),
        seeded=facts["seeded"],
        key=custody.value,
        version=__version__,
        commit=commit(),
        issued=issue_date(),
    )
    (out / SIGNATURE).unlink(missing_ok=True)  # it signs an earlier certificate
    write_atomic(out / CERTIFICATE, certificate_bytes(certificate))
    return certificate


def _noise_row(plan: Plan, noise: LevelNoise) -> dict[str, Any]:
    law, answers = noise.law, noise.answers
    table = find_table(noise.table, plan.config.tables)
    assert table is not None
    used = answers.l2_squared if plan.mechanism.is_zcdp else answers.l1
    return {
        **noise.as_json(),
        ("sensitivity_squared" if plan.mechanism.is_zcdp else "sensitivity"): used(
            plan.sensitivity, Neighbours.UNBOUNDED
        ),
        "variance": 0.0 if law is None else law.variance,
        "moe90": 0 if law is None else margin(law),
        "totals_moe90": _margins(table.shell, law),
    }


def _derived_row(plan: Plan, derived: Derived) -> dict[str, Any]:
    laws = {noise.level: noise.law for noise in plan.noise if noise.table == derived.source}
    return {
        "table": derived.name,
        "from": derived.source,
        "cells": {str(code): list(parts) for code, parts in derived.cells.items()},
        "moe90": {level: _margins(derived.cells, law) for level, law in laws.items()},
    }


def _margins(cells: Mapping[int, tuple[int, ...]], law: Noise | None) -> dict[str, int]:
    """Return the margins of sums of cells with independent noise; none without noise."""
    sums = {} if law is None else {code: [law] * len(parts) for code, parts in cells.items()}
    return {str(code): margin_of_sum(laws, NINETY) for code, laws in sums.items()}


def _totals(plan: Plan) -> list[dict[str, Any]]:
    """Sum losses over tables and levels, for each bound and relation, in all and for each table."""
    names = list(plan.config.budgets)
    return [
        {
            "sensitivity": bound.value,
            "neighbours": relation.value,
            "charged": bound is plan.sensitivity,
            **_loss(plan, total_loss(plan.noise, bound, relation)),
            "tables": {name: loss_text(total_loss(plan.noise, bound, relation, name)) for name in names},
        }
        for bound in Sensitivity
        for relation in Neighbours
    ]


def _loss(plan: Plan, loss: Loss) -> Mapping[str, Any]:
    return loss_json(None if isinstance(loss, str) else loss, DELTA, pure=not plan.mechanism.is_zcdp)


def _guarantee(plan: Plan, stamps: Sequence[str], key: str) -> list[str]:
    one, two = (f"{plan.mechanism.loss_name} = {loss_text(plan.loss(relation))}" for relation in _BY_SIZE)
    texts = [f"{stamp}. {STAMP_MEANING[stamp]}" for stamp in stamps]
    if key == KeyCustody.SEED:
        texts.append("With a secret key, the plan of this run would guarantee the following.")
    texts.append(
        "For inputs that differ in one address, the tables are computationally indistinguishable from those "
        f"of a mechanism with {one}; for inputs that differ in two addresses, as when one person moves "
        f"between them, with {two}. Both losses were derived directly, from the {plan.sensitivity.value} "
        "bound on the effect of such a change on the counts."
    )
    if plan.sensitivity is Sensitivity.PAPER:
        one, two = (loss_text(total_loss(plan.noise, Sensitivity.TIGHT, relation)) for relation in _BY_SIZE)
        texts.append(f"By the tight bound the same tables cost {one} for one address and {two} for two.")
    texts += [_ASSUMPTION, _SELECTION[plan.truncation], computational_text(_draws(plan), key), _GIVEN]
    return texts if plan.config.is_infinite else [*texts, _NOTHING_EXACT]


def _draws(plan: Plan) -> int:
    """Count the noisy answers: regions times groups times cells, over tables and levels."""
    states = plan.config.state_filter
    return sum(
        len(regions(level.geography, states)) * len(level.iteration.codes) * len(table.cells)
        for table, level, loss in plan.config.measured
        if loss != INFINITE
    )
