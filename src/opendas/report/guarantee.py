"""Write the guarantee of a release in words, and its limits.

The wording follows ``docs/proofs``: the pairs of inputs that the guarantee concerns, the cost of keyed noise
beyond the ideal mechanism, and what is not protected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from opendas.custody.account import AccountFacts
from opendas.custody.protected_units import unit_id
from opendas.custody.stamps import (
    CHOSEN_WITH_TRUTH,
    DEMONSTRATION_FRAME,
    DOMAIN_FROM_RECORDS,
    NOT_FOR_RELEASE,
    POPULATED_LEAVES,
    UNPROVEN_PART,
    KeyCustody,
)
from opendas.measurement.protected import Protection
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Neighbours
from opendas.privacy.zcdp import Account
from opendas.report.facts import RunFacts
from opendas.report.views import many, one
from opendas.schema.declarations import Distinct, EarlierAct, PublishedFile
from opendas.schema.provenance import Provenance

STAMP_MEANING = {
    NOT_FOR_RELEASE: (
        "The noise of this run can be computed by others, because it came from a seed, or the budget is "
        "infinite. The run is for tests and research and guarantees nothing. The losses shown are those of "
        "its plan, as they would be with a secret key."
    ),
    CHOSEN_WITH_TRUTH: (
        "This release may have been chosen among others, or planned, with the confidential data in sight. "
        "Such a choice tells about the data, and no loss stated here covers it: the losses are those of a "
        "release that was not chosen so."
    ),
    DEMONSTRATION_FRAME: (
        "The frame of this run, or its group quarters, was derived from confidential counts instead of a "
        "public list. What the frame shows of those counts is not covered by the guarantee. The run "
        "demonstrates the method; a release of confidential data needs a public frame file."
    ),
    DOMAIN_FROM_RECORDS: (
        "Labels, levels, leaves or units of this run were read from the confidential records instead of a "
        "code book or a public list. They are published exactly: a label or a leaf that one record alone has "
        "shows that this record is there. What they show is not covered by the guarantee."
    ),
    UNPROVEN_PART: (
        "A part of this run comes from another package, which names no argument that it keeps the guarantee. "
        "An estimator is given noisy answers and public information only, and whatever it makes of them has "
        "the guarantee. A mechanism is given true answers, and the guarantee holds if its answers cost what "
        "it states. A workload is given a number of levels: whatever partitions it returns, the loss is the "
        "stated one if they do not depend on the records. What their code does was not verified."
    ),
}

LEDGER_SCOPE = (
    "The totals cover the runs of this output folder only. Whatever else was published from the same data, "
    "by this program in another folder or by anyone else, adds to the loss and is not counted here."
)

_TIED_SCOPE = LEDGER_SCOPE.replace("folder only", "folder, and the releases that they are tied to")


def account_text(account: AccountFacts, *, tied: bool = False) -> str:
    """Describe the account in words; `tied` if the totals include earlier releases."""
    looked = "The account notes no reading of the confidential data without noise."
    if account.readings:
        times = f"{account.readings} time{'s' * (account.readings > 1)}"
        looked = (
            f"The account notes that the confidential data were read {times} without noise, to judge a "
            "release or to plan one. No loss stated here covers what was decided after such a reading."
        )
    if not account.book:
        return f"{_TIED_SCOPE if tied else LEDGER_SCOPE} The account is the folder's own. {looked}"
    places = ", ".join(f"{name} is act {place} of {account.acts}" for name, place in account.places.items())
    declared = (
        f" (declared as epsilon = {account.limit['epsilon']} at delta = {account.limit['delta']})"
        if "epsilon" in account.limit
        else ""
    )
    spent = "0" if account.spent is None else format_fraction(account.spent)
    delta = (
        f", and delta = {format_fraction(account.delta)}, the sum of the deltas of the acts that have one"
        if account.delta
        else ""
    )
    return (
        f"The data set has an account of its own, a book. In it, {places}. All its acts together, including "
        f"those that were never published, cost rho = {spent} for {account.change} ({account.relation} "
        f"neighbours){delta}. The limit of the book is rho = {account.limit['rho']}{declared}. {looked} "
        "What was published from the same data without the book is not counted here."
    )


def _change(run: RunFacts) -> str:
    if run.contribution is not None:
        if run.neighbours == "bounded":
            return f"replacing all records of one {run.protected_unit} by any others, or by none"
        return f"adding or removing all records of one {run.protected_unit}"
    if run.companion is not None and run.neighbours == "bounded":
        return f"one {run.protected_unit}, whose record here is replaced by another, appears or vanishes"
    record = "record" if run.protected_unit == "record" else f"{run.protected_unit} record"
    if run.neighbours == "bounded":
        return f"replacing one {record} by another"
    return f"adding or removing one {record}"


def _loss(run: RunFacts) -> str:
    exact = format_fraction(run.loss)
    if run.pure:
        return f"an epsilon-differentially private mechanism with epsilon = {exact} (delta = 0)"
    return f"a rho-zCDP mechanism with rho = {exact}"


def _conversion(run: RunFacts) -> list[str]:
    if run.pure:
        return []
    account = Account(run.loss, run.delta)
    return [
        "This implies (epsilon, delta)-differential privacy for every delta; at delta = "
        f"{float(run.delta):g}, epsilon is about {account.epsilon('cks'):.2f} by the conversion of Canonne, "
        f"Kamath and Steinke (2020), and about {account.epsilon('bun-steinke'):.2f} by the simpler one of "
        "Bun and Steinke (2016)."
    ]


KEY_MEANING = {
    KeyCustody.DESTROYED: (
        "The key of this run was destroyed when the release was complete. Copies that a backup or the "
        "storage keeps are beyond this program."
    ),
    KeyCustody.KEPT: (
        "The key of this run was kept, in clear, when the release was complete: it is to be protected like "
        "the input, and destroyed when no further measurements are wanted."
    ),
    KeyCustody.SEALED: (
        "The key of this run was kept, encrypted under a passphrase, when the release was complete: it is to "
        "be destroyed when no further measurements are wanted."
    ),
    KeyCustody.ELSEWHERE: (
        "The key of this run was fetched by a command and never stored with the run. Whether it still exists "
        "is known to those who keep it: it is to be protected like the input."
    ),
    KeyCustody.SEED: "The key of this run was made from a seed, and is no secret.",
    KeyCustody.NONE: "This program made no key: the noise was drawn by those who published the measurements.",
}
"""Sentence about the run key, by its custody."""


def computational_text(draws: int, key: str | None) -> str:
    """State the loss of keyed noise beyond ideal noise.

    - `draws`: number of draws under one run key.
    - `key`: custody of the key when the release was complete.
    """
    draws = max(draws, 1)
    power = math.ceil(2 * math.log2(draws) - 129)
    return (
        "The noise is exact, and drawn from a secret key through HKDF and AES-256. Against ideal noise "
        "this adds to delta at most (1 + exp(epsilon)) times the advantage that an adversary can have "
        f"against HKDF and AES-256, plus q^2 / 2^129 for q draws; here q = {draws:,}, so the last term is "
        f"below 2^{power}. The guarantee is therefore a computational one, and it depends on the key: "
        "anyone who holds the key and the measurements can compute the confidential answers."
        + ("" if key is None else f" {KEY_MEANING[KeyCustody(key)]}")
    )


_DISTINCT = {
    Distinct.LEAF: ", each in another leaf",
    Distinct.CELL: ", no two of one combination of levels",
    Distinct.RECORD: ", no two alike",
}


def _units(run: RunFacts) -> list[str]:
    """State whose loss it is if a unit has several records, and the loss of several units together."""
    found = []
    if run.companion is not None:
        found.append(
            f"This is one of two histograms of the same protected units: each {run.protected_unit} has a "
            f"record in {run.companion}, and one or none here. The loss stated is that of the record here; a "
            f"change of both also costs that of {run.companion}, and the totals add the two."
        )
    unit, bound = run.protected_unit, run.contribution
    if bound is not None and run.record_loss is not None:
        are = "are" if bound.at_most > 1 else "is"
        differing = "" if bound.distinct is None else _DISTINCT[bound.distinct]
        found.append(
            f"The loss is that of one {unit}, however many records it has: at most {bound.at_most} of them "
            f"{are} counted{differing}. The choice is made under a secret key, from the records of "
            "this unit alone, before anything is measured. Released counts and invariants are of the records "
            "counted, and are not corrected for the others. Records with the same identifier are taken to be "
            "of one unit, and records with different identifiers of different units. One record of a unit "
            f"loses at most {run.loss_words(run.record_loss)}."
        )
    if run.several:
        each = [f"{count} lose at most {run.loss_words(loss)}" for count, loss in run.several.items()]
        whose = "Several records may change together"
        if unit == "person":
            whose = "The persons of a household may change together"
        elif bound is not None:
            whose = "Several units may change together"
        growth = "number" if run.pure else "square of the number"
        found.append(f"{whose}; the loss grows with the {growth}: {', '.join(each)}.")
    return found


def _tied_sentences(run: RunFacts) -> list[str]:
    """State what an earlier release that the run agrees with adds to the loss."""
    if not run.tied:
        return []
    releases = [act for act in run.tied if act.product != "domain"]
    named = " and ".join(f"{act.product} (microdata {act.act[:16]})" for act in releases)
    text = (
        f"The counts agree with an earlier release, of {named}. To make them agree reads what is released "
        "there and no record: it is post-processing of both measurements, and loses nothing more. But that "
        "release is about the same data and has a loss of its own"
    )
    alike = [
        act
        for act in run.tied
        if (act.neighbours, act.mechanism) == (run.neighbours, run.mechanism)
        and unit_id(act.protected_unit) == unit_id(run.protected_unit)
    ]
    if any(act.loss is None for act in run.tied):
        return [
            f"{text}, which nothing bounds: its noise can be computed by others, or its budget is infinite."
        ]
    if len(alike) < len(run.tied) or any(act.delta for act in run.tied):
        text += ", which the totals add where both are losses of one change."
    else:
        parts = " + ".join(format_fraction(loss) for loss in [run.loss, *(_finite(act) for act in alike)])
        together = run.loss + sum(map(_finite, alike), Fraction(0))
        text += f": together they lose at most {run.loss_words(together)}, the sum of {parts}."
    return [
        f"{text} All other losses, margins and noise of this run that are stated here are those of its own "
        "measurements."
    ]


def _finite(act: EarlierAct) -> Fraction:
    return Fraction(0) if act.loss is None else act.loss


def _facts(run: RunFacts) -> tuple[str, ...]:
    return run.invariants if run.protection is None else run.protection.facts


def nothing_exact(run: RunFacts) -> bool:
    """Whether no statistic of the confidential data is published exactly."""
    read = run.domain is not None and bool(run.domain.from_records)
    return not (_facts(run) or DEMONSTRATION_FRAME in run.stamps or read)


def not_protected(run: RunFacts) -> str:
    """State what is published exactly, and hence not protected."""
    text = _invariants(run.invariants) if run.protection is None else _exact_facts(run.protection)
    if POPULATED_LEAVES in _facts(run):
        text += (
            " The frame was taken from the records: whether a leaf is populated is published and not "
            "protected."
        )
    if DEMONSTRATION_FRAME in run.stamps:
        text += (
            " The frame was derived from confidential counts: what it shows of them is published exactly and "
            "not protected."
        )
    text += _domain_words(run)
    if nothing_exact(run):
        text += " No statistic of the confidential data is published exactly."
    return text


def _domain_words(run: RunFacts) -> str:
    """State which parts of the domain were read from the records, and which were found privately."""
    if run.domain is None:
        return ""
    text = ""
    if run.domain.from_records:
        listed = ", ".join(run.domain.from_records)
        text += f" Read from the records, published exactly and not protected: {listed}."
    for found in run.domain.discoveries:
        listed = ", ".join(run.domain.parts(Provenance.PRIVATE))
        loss = found.loss(Neighbours(run.neighbours))
        text += (
            f" Found in the records by a private act of its own ({listed}): "
            f"rho = {format_fraction(loss)} and "
            f"delta = {float(found.delta):g} beside the loss of this run, and part of the totals. With "
            "probability delta at most, a label or leaf of one record alone is shown."
        )
    return text


def _exact_facts(found: Protection) -> str:
    if not found.facts:
        return "This run holds no invariant, and no bound fixes a count."
    return f"Not protected are what is published exactly ({', '.join(found.facts)}) and what follows from it."


def _left_protected(run: RunFacts) -> list[str]:
    """State the neighbours that the guarantee concerns: what the exact facts leave open about a record."""
    found = run.protection
    if found is None:
        return []
    said: dict[str, list[str]] = {}
    for kind, name, words in found.rows():
        if kind != "query group":
            said.setdefault(words, []).append(f"{kind} {name}")
    parts = " ".join(f"{words.capitalize()}: {', '.join(names)}." for words, names in said.items())
    text = f"What the exact facts leave of one record, with all others known: {parts} {found.alternatives}"
    if any(line.startswith("tie: ") and line.endswith(" a unit") for line in run.declared):
        text += (
            " These numbers also count places of a type of unit that a leaf does not have. The measurements "
            "do not exclude records there, but anyone who knows the frame can."
        )
    if found.loss and found.loss != run.loss:
        name = "epsilon" if run.pure else "rho"
        text += (
            f" Between inputs in U the loss is at most {name} = {format_fraction(found.loss)}: the part "
            "of the budget that is spent on exact facts neither protects nor reveals anything."
        )
    return [text]


def _invariants(invariants: Sequence[str]) -> str:
    if not invariants:
        return "This run holds no invariant."
    return (
        f"Not protected are the invariants ({', '.join(invariants)}) and what follows from them: where they "
        "count few records, that may be the state of one."
    )


def _published(run: RunFacts, source: PublishedFile) -> list[str]:
    """State who took published measurements, their loss, and what is not verified."""
    listed = f"{source.files} file{'s' * (source.files != 1)}"
    return [
        f"The measurements were taken and published by others, as {source.name} ({listed}; SHA-256 of "
        f"their list {source.sha256}). The loss that the variances state, {run.loss_words(run.loss)}, was "
        "spent by them. Nothing confidential was read here, no key was made and nothing was charged: "
        "everything in this release is computed from what was published, and this release adds no loss.",
        "What is said below of the measurements holds if they were taken as their file says: with noise of "
        "the stated variances, discrete Gaussian, drawn in secret. That is the word of those who published "
        "them; this program cannot check it.",
    ]


def _paragraphs(run: RunFacts) -> tuple[str, ...]:
    """Return the paragraphs of one run's guarantee."""
    opening = [f"{stamp}. {STAMP_MEANING[stamp]}" for stamp in run.stamps if stamp in STAMP_MEANING]
    if run.published is not None:
        opening += _published(run, run.published)
    if not run.guaranteed:
        opening.append(
            "With a secret key and a finite budget, the plan of this run would guarantee the following."
        )
    bounds = "keep within its bounds"
    if run.tied:
        bounds += " and those of the release that this one is tied to"
    shared = f" and {bounds}"
    sources = "the measurements"
    if run.invariants:
        comma = "," if run.tied else ""
        shared = f", {bounds}{comma} and have exactly the listed invariant values"
        sources += ", the invariants"
    if run.tied:
        sources += ", the microdata of that release"
    return (
        *opening,
        f"Let U be the inputs that pass validation, share the public frame{shared}. For any two inputs in U "
        f"that differ by {_change(run)}, the measurements are computationally indistinguishable from those "
        f"of {_loss(run)}. Everything else in the release is computed from {sources} and public information.",
        *_conversion(run),
        *_tied_sentences(run),
        *_units(run),
        not_protected(run),
        *_left_protected(run),
        *(
            [KEY_MEANING[KeyCustody.NONE]]
            if run.published is not None
            else [
                computational_text(run.draws, run.key),
                "The guarantee concerns the edited file, given that validation passed.",
            ]
        ),
        _TIED_SCOPE if run.tied else LEDGER_SCOPE,
    )


def guarantee_text(run: RunFacts) -> str:
    """Return the guarantee of one run, with blank lines between paragraphs."""
    return "\n\n".join(_paragraphs(run))


def guarantees(runs: Sequence[RunFacts]) -> list[list[str]]:
    """Return the paragraphs of every run, without those that stamps or earlier runs already state."""
    stamped = tuple(f"{stamp}. " for stamp in STAMP_MEANING)
    said: set[str] = set()
    found = []
    for run in runs:
        texts = [text for text in _paragraphs(run) if text not in said and not text.startswith(stamped)]
        said.update(texts)
        found.append(texts)
    return found


def limits(runs: Sequence[RunFacts]) -> tuple[str, ...]:
    """Return the limits of these runs' guarantee, one text per point."""
    units = list(dict.fromkeys(run.protected_unit for run in runs))
    together = ", such as those of a household," if "person" in units else ""
    found = [
        "It does not say that nothing can be learned about anybody. What holds for many can be learned from "
        f"a private release, and then be applied to {' or '.join(map(one, units))}."
    ]
    if any(run.invariants for run in runs):
        found.append("It does not protect the invariants, nor what follows from them.")
    return (
        *found,
        f"It concerns a change of one {' or '.join(units)}. Records that are tied to each other{together} "
        "are protected less together than each alone. The guarantee of each run says by how much.",
        "It says nothing about errors that were in the data before OpenDAS read them, such as "
        f"{' or '.join(map(many, units))} missed or counted twice.",
        _TIED_SCOPE if any(run.tied for run in runs) else LEDGER_SCOPE,
    )
