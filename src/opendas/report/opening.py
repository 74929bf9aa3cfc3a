"""Write the summary at the top of the report; apart, because it serves readers of nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from markupsafe import Markup

from opendas.privacy.attacker import pure_power_bound, zcdp_power_bound
from opendas.report.facts import RunFacts
from opendas.report.pictures import POWER_LEVELS, WIDTH, closed, line, opened, rect, text
from opendas.report.views import invariant_words, loss_words, plural


def guess_bound(run: RunFacts) -> float | None:
    """Bound the chance of guessing right between two equally likely inputs that differ by one change.

    A guess whose false-positive rate lies between two levels is right with probability at most
    ``(1 + power at the upper level - lower level) / 2``.

    Returns between 0.5 and 1; None where the run states no loss or guarantees nothing.
    """
    if run.loss is None or not run.guaranteed:
        return None
    bound = pure_power_bound if run.pure else zcdp_power_bound
    powers = [min(1.0, bound(run.loss, level)) for level in POWER_LEVELS]
    return max(
        (1.0 + power - level) / 2.0 for power, level in zip([*powers, 1.0], [0.0, *POWER_LEVELS], strict=True)
    )


def _in_100(chance: float) -> int:
    """Return a chance in per cent, rounded up so that it stays an upper bound."""
    return math.ceil(100 * chance)


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _released(runs: Sequence[RunFacts]) -> str:
    estimated = [run for run in runs if run.estimated]
    said = []
    if estimated:
        units = _joined([plural(run.protected_unit, run.records) for run in estimated])
        places = _joined(list(dict.fromkeys(plural(*list(run.geounits.items())[-1]) for run in estimated)))
        said.append(f"{units}, as whole records in {places}; they add up at every level.")
    measured = [run for run in runs if not run.estimated]
    if measured:
        answers = _joined([f"{run.draws:,} of {run.product}" for run in measured])
        said.append(f"Noisy answers, from which no records were estimated yet: {answers}.")
    return " ".join(said)


def _exact(runs: Sequence[RunFacts]) -> str:
    named = [f"{invariant_words(name)} ({run.product})" for run in runs for name in run.invariants]
    if not named:
        return "No count."
    listed = "; ".join(named)
    return f"{listed[0].upper()}{listed[1:]}. What is exact is not protected."


def has_replicates(files: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a certificate lists replicates."""
    return any(str(file["path"]).startswith("replicates/") for file in files)


def _errors(runs: Sequence[RunFacts], files: Sequence[Mapping[str, Any]]) -> str:
    said = "Counts carry noise unless they follow from exact ones or from the public frame. "
    if has_replicates(files):
        return f"{said}This release holds replicates: opendas margin gives the error of each count."
    return f"{said}The command opendas replicates measures how far published counts err."


def _attacker(runs: Sequence[RunFacts]) -> str:
    bounds = [(run, guess_bound(run)) for run in runs]
    told = [f"{run.protected_unit} {_in_100(bound)} times in 100" for run, bound in bounds if bound]
    if not told:
        return "Nothing is guaranteed."
    return (
        "Someone who knows everything else, and decides between two possibilities that the exact facts leave "
        f"open for one record, is right at most so often: {'; '.join(told)}. "
        "A coin toss is right 50 times in 100."
    )


def opening(certificate: Mapping[str, Any], runs: Sequence[RunFacts], digest: str) -> list[tuple[str, str]]:
    """Return six headings with a sentence or two each, computed from the certificate.

    - `certificate`: content of ``certificate.json``.
    - `digest`: SHA-256 of ``certificate.json``.
    """
    losses = "; ".join(f"{loss_words(total)} for {total['change']}" for total in certificate["totals"])
    return [
        ("Released", _released(runs)),
        ("Exact", _exact(runs)),
        ("Not exact", _errors(runs, certificate["files"])),
        ("Protected", _attacker(runs)),
        ("Privacy loss", f"{losses}. Smaller is stronger."),
        (
            "To check",
            "opendas verify OUT compares every file with the certificate, and writes this page again. "
            f"The SHA-256 of the certificate begins with {digest[:16]}.",
        ),
    ]


def guess_picture(runs: Sequence[RunFacts]) -> Markup | str:
    """Draw how often the best guess about one record is right; empty if nothing is guaranteed."""
    rows = [(run, bound) for run in runs if (bound := guess_bound(run)) is not None]
    if not rows:
        return ""
    left, wide, height = 150.0, WIDTH - 290.0, 34 * len(rows)
    label = "; ".join(f"{run.product}: at most {_in_100(bound)} in 100" for run, bound in rows)
    parts = [opened(height + 24, f"How often the best guess about one record is right. {label}")]
    for number, (run, bound) in enumerate(rows):
        y = 34.0 * number + 4
        parts.append(text(left - 12, y + 17, run.product, "end"))
        parts.append(rect(left, y, wide, 24, "before"))
        parts.append(rect(left, y, wide * float(Fraction(_in_100(bound), 100)), 24, "tint tint1"))
        parts.append(text(left + wide + 10, y + 17, f"{_in_100(bound)} of 100 at most"))
    for share, name in ((0.5, "coin toss"), (1.0, "certainty")):
        parts.append(line(left + wide * share, 0, left + wide * share, height + 4, "grid"))
        parts.append(text(left + wide * share, height + 20, name, "middle", "muted"))
    return closed(parts)
