"""Write the report of a release and the account of a plan, each as one self-contained page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from opendas.custody.folders import write_atomic
from opendas.custody.stamps import verify_command
from opendas.measurement.account import PlanAccount
from opendas.privacy.attacker import pure_power_bound, zcdp_power_bound
from opendas.privacy.zcdp import Account
from opendas.report import views
from opendas.report.facts import RunFacts
from opendas.report.guarantee import STAMP_MEANING, guarantees, limits, not_protected, nothing_exact
from opendas.report.pictures import (
    POWER_LEVELS,
    WIDTH,
    Curve,
    closed,
    curve_svg,
    distances_svg,
    levels_svg,
    line,
    margin_bars,
    opened,
    power_svg,
    pyramid_svg,
    rect,
    share_bar,
    text,
)
from opendas.report.views import invariant_words, loss_words, many, plural
from opendas.schema.attributes import listed
from opendas.version import __version__


def guess_bound(run: RunFacts) -> float | None:
    """Bound the chance of guessing right between two equally likely inputs that differ by one change.

    A guess whose false-positive rate lies between two levels is right with probability at most
    ``(1 + power at the upper level - lower level) / 2``.

    Returns between 0.5 and 1; None where the run guarantees nothing.
    """
    if not run.guaranteed:
        return None
    bound = pure_power_bound if run.pure else zcdp_power_bound
    powers = [min(1.0, bound(run.loss, level)) for level in POWER_LEVELS]
    return max(
        (1.0 + power - level) / 2.0 for power, level in zip([*powers, 1.0], [0.0, *POWER_LEVELS], strict=True)
    )


def _in_100(chance: float) -> int:
    """Return a chance in per cent, rounded up so that it stays an upper bound."""
    return math.ceil(100 * chance)


def _records(run: RunFacts) -> str:
    if run.contribution is None:
        return plural(run.protected_unit, run.records)
    return f"{plural('record', run.records)} of {many(run.protected_unit)}"


def _released(runs: Sequence[RunFacts]) -> str:
    estimated = [run for run in runs if run.estimated]
    said = []
    if estimated:
        units = listed([_records(run) for run in estimated])
        places = listed(list(dict.fromkeys(plural(*list(run.geounits.items())[-1]) for run in estimated)))
        said.append(f"{units}, as whole records in {places}; they add up at every level.")
    measured = [run for run in runs if not run.estimated]
    if measured:
        answers = listed([f"{run.draws:,} of {run.product}" for run in measured])
        said.append(f"Noisy answers, from which no records have been estimated: {answers}.")
    return " ".join(said)


def _exact(runs: Sequence[RunFacts]) -> str:
    named = [f"{invariant_words(name)} ({run.product})" for run in runs for name in run.invariants]
    if not named:
        return " ".join(not_protected(run) for run in runs if not nothing_exact(run)) or "No count."
    said = "; ".join(named)
    return f"{said[0].upper()}{said[1:]}. What is exact is not protected."


def has_replicates(files: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a certificate lists replicates."""
    return any(str(file["path"]).startswith("replicates/") for file in files)


def _errors(runs: Sequence[RunFacts], files: Sequence[Mapping[str, Any]]) -> str:
    if not any(run.estimated for run in runs):
        return "Answers carry noise, whose size this page states."
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
        f"open for one record, is right at most this often: {'; '.join(told)}. "
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
            f"{verify_command('OUT', certificate['stamps'])} compares every file with the certificate, and "
            "this page with one that it generates from the certificate. "
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


_FALSE_ALARMS = (0.001, 0.01, 0.05)
_TABLE_EXPONENTS = (5, 6, 8, 10, 12, 15)


def templates(package: str, *, keep_trailing_newline: bool = False) -> Environment:
    """Load the templates of a package, with autoescape and the filters that all pages share."""
    environment = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=keep_trailing_newline,
        undefined=StrictUndefined,
    )
    environment.filters.update(
        words=views.words, query_words=views.query_words, percent=views.percent, decimal=views.decimal
    )
    environment.globals["version"] = __version__
    return environment


def _environment() -> Environment:
    """Return the templates of the report's pages."""
    environment = templates("opendas.report", keep_trailing_newline=True)
    environment.filters.update(
        invariant_words=views.invariant_words,
        kind_words=views.kind_words,
        loss_words=views.loss_words,
        exact_words=views.exact_words,
        runs_words=views.runs_words,
        plural=views.plural,
        many=views.many,
        one=views.one,
    )
    return environment


def _power(run: RunFacts) -> tuple[list[tuple[str, str]], str]:
    """Bound the power of any test: rows at several false-positive rates, and a curve."""
    if run.pure or not run.guaranteed:
        return [], ""
    few, all_levels = (
        [min(1.0, zcdp_power_bound(run.loss, level)) for level in at] for at in (_FALSE_ALARMS, POWER_LEVELS)
    )
    rows = [
        (f"{alpha * 100:g} %", f"{power * 100:.1f} %")
        for alpha, power in zip(_FALSE_ALARMS, few, strict=True)
    ]
    return rows, power_svg(POWER_LEVELS, {"at most": all_levels})


def _spine_view(run: RunFacts) -> dict[str, Any] | None:
    """Return the rows and pictures of the spine; None if the certificate does not describe it."""
    spine = run.spine
    if spine is None:
        return None
    return {
        "sentence": views.spine_sentence(spine),
        "levels": views.level_rows(spine.levels),
        "levels_picture": levels_svg(spine.levels),
        "regrouped": any(not level.official for level in spine.levels),
        "entities": views.entity_rows(spine.entities),
        "distances_picture": distances_svg(spine.entities) if spine.entities else "",
    }


def _curve_picture(run: RunFacts) -> str:
    """Draw epsilon against delta by both conversions, and mark the delta of the run."""
    curves = []
    for style, formula in (("line0", "bun-steinke"), ("line1", "cks")):
        points = {round(-math.log10(p.delta)): p for p in views.curve(run)}
        epsilons = {k: p.cks if formula == "cks" else p.bun_steinke for k, p in points.items()}
        mark = (-math.log10(run.delta), Account(run.loss, run.delta).epsilon(formula))
        curves.append(Curve(formula, style, epsilons, (mark,)))
    return curve_svg(curves, numbers=True)


def _run_view(run: RunFacts, guarantee: Sequence[str]) -> dict[str, Any]:
    margins = views.total_margins(run)
    points = views.curve(run)
    deltas = {Fraction(1, 10**exponent) for exponent in _TABLE_EXPONENTS}
    matrix = views.share_matrix(run)
    power, power_picture = _power(run)
    return {
        "facts": run,
        "record": run.to_dict(),
        "levels": list(run.geolevel_shares),
        "matrix": matrix,
        "noise": [(views.query_words(row.query), *map(views.margin_words, row.noise)) for row in matrix],
        "margins": margins,
        "margin_bars": margin_bars(margins) if any(entry.margin is not None for entry in margins) else "",
        "share_bar": share_bar(run.geolevel_shares),
        "curve": _curve_picture(run) if points else "",
        "points": [
            (f"{float(p.delta):g}", f"{p.cks:.2f}", f"{p.bun_steinke:.2f}")
            for p in points
            if p.delta in deltas
        ],
        "partial": views.partial_losses(run),
        "protected": [] if run.protection is None else views.protected_rows(run.protection),
        "official_head": views.official_head(run),
        "official": views.official_rows(run),
        "official_words": views.official_sentences(run),
        "power": power,
        "power_picture": power_picture,
        "exact": "No statistic is published exactly." if nothing_exact(run) else not_protected(run),
        "guarantee": guarantee,
        "spine": _spine_view(run),
        "pyramids": [(one, pyramid_svg(one)) for one in run.pyramids],
    }


def report_html(certificate: Mapping[str, Any], runs: Sequence[RunFacts], digest: str) -> bytes:
    """Return the report of a release as HTML.

    - `certificate`: content of ``certificate.json``.
    - `digest`: SHA-256 of ``certificate.json``.
    - Returns: UTF-8; equal content gives equal bytes.
    """
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            certificate=certificate,
            runs=[_run_view(run, texts) for run, texts in zip(runs, guarantees(runs), strict=True)],
            opening=opening(certificate, runs, digest),
            guess_picture=guess_picture(runs),
            totals=certificate["totals"],
            scope=certificate["scope"],
            verify_command=verify_command("OUT", certificate["stamps"]),
            stamps=[(stamp, STAMP_MEANING.get(stamp, "")) for stamp in certificate["stamps"]],
            limits=limits(runs),
            groups=views.file_groups(certificate["files"]),
            interval_tables=[
                file["path"]
                for file in certificate["files"]
                if file["path"].startswith("tables/") and "_intervals." in file["path"]
            ],
            replicated=has_replicates(certificate["files"]),
            digest=digest,
            level_head=views.LEVEL_HEAD,
            entity_head=views.ENTITY_HEAD,
            protected_head=views.PROTECTED_HEAD,
        )
    )
    return page.encode()


_DELTAS = ("1e-3", "1e-5", "1e-6", "1e-8", "1e-10", "1e-12", "1e-15")


def account_page(account: PlanAccount, answer: Mapping[str, Any]) -> bytes:
    """Return the account of a plan as HTML.

    - `answer`: ``account.as_json(exact=True)`` with ``attacker``, as the command answers it.
    - Returns: UTF-8; equal accounts give equal bytes.
    """
    name, attacker = "epsilon" if account.pure else "rho", account.attacker()
    series = {
        f"by {name} alone": [account.power_bound(level) for level in POWER_LEVELS],
        "by the noise": [attacker.power(level) for level in POWER_LEVELS],
    }
    page = (
        _environment()
        .get_template("account.html.j2")
        .render(
            answer=answer,
            loss_name=name,
            loss=str(account.loss),
            curve=account.curve(_DELTAS, exact=True),
            formulas=[name for name in answer["epsilon"] if not name.startswith("exact")],
            power=power_svg(POWER_LEVELS, series),
        )
    )
    return page.encode()


def write_account_page(path: Path, account: PlanAccount, answer: Mapping[str, Any]) -> None:
    """Write the account page to a file."""
    write_atomic(path, account_page(account, answer))
