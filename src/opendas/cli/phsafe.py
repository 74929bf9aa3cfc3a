"""Commands of household tables: ``phsafe``, ``phsafe-post`` and ``phsafe-accuracy``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opendas.cli.options import (
    PATH,
    check_engine,
    given_passphrase,
    json_option,
    key_options,
    open_signing_key,
    out_argument,
    remember_out,
    resume_option,
    seed_option,
    sign_options,
    together,
)
from opendas.cli.output import Progress, emit_json, message, text_table
from opendas.errors import DataError, Finding

if TYPE_CHECKING:
    from opendas.phsafe.accuracy import AccuracyRow

_FURTHER = re.compile(r"\(([0-9]+) further lines\)$")
_DETAIL = re.compile(r" \((?:its unit: .*|[0-9]+ further lines)\)$")


bound_options = together(
    click.option(
        "--truncation",
        type=click.Choice(["keyed", "tumult-0.12"]),
        default="keyed",
        show_default=True,
        help="Who is kept of a household above tau: by a secret key, or in the published program's order.",
    ),
    click.option(
        "--sensitivity",
        type=click.Choice(["paper", "tight"]),
        default="paper",
        show_default=True,
        help="The bound that noise is made for: the published 2 tau + 2, or the tight one.",
    ),
)


@click.command("phsafe")
@click.argument("config", metavar="CONFIG.json", type=PATH)
@click.argument("data", metavar="DATA")
@click.argument("out", metavar="[OUT]", type=PATH, required=False)
@click.option(
    "--mode",
    type=click.Choice(["private", "non-private", "validate"]),
    default="private",
    show_default=True,
    help="Private tables, exact counts for the owner's eyes, or a check of configuration and data only.",
)
@bound_options
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Where it counts: in this process, or on Spark, with the same result.",
)
@click.option("--master", metavar="URL", help="Spark master (engine spark). Default: a local one.")
@seed_option
@resume_option
@key_options
@sign_options
@json_option
def phsafe_command(
    config: Path, data: str, out: Path | None, mode: str, as_json: bool, **options: Any
) -> None:
    """Count persons in their households, with truncation and exact noise, into OUT.

    CONFIG.json and the files in DATA are those of the published program, and so are the folders in OUT.
    OUT/certificate.json says what they cost.

    Example: opendas phsafe config.json data out
    """
    from opendas.phsafe.folder import PRODUCT
    from opendas.phsafe.run import HouseholdOptions, run_exact, run_private, validate_input

    check_engine(options["engine"], options["master"])
    _check_usage(mode, out, options)
    file, ask = options.pop("key_passphrase_file"), options.pop("ask_passphrase")
    options["passphrase"] = None if out is None else given_passphrase(file, ask, out, PRODUCT)
    sign = open_signing_key(options.pop("sign"), options.pop("sign_passphrase_file"))
    refused: Sequence[Finding] = ()
    inconsistent: list[Finding] = []
    with Progress() as progress:
        chosen = HouseholdOptions(**options, progress=progress, warn=inconsistent.extend)
        if out is None:
            answer = _validated(lambda: validate_input(config, data, chosen), as_json=as_json)
        elif mode == "private":
            answer = run_private(config, data, remember_out(out), chosen)
        else:
            answer, refused = run_exact(config, data, remember_out(out), chosen)
    if out is not None:
        sign(out)
    _warn(mode, refused, inconsistent, seeded=options["seed"] is not None)
    if as_json:
        if mode == "validate":
            warnings = [asdict(finding) for finding in inconsistent]
            answer |= {"confidential": True, "errors": [], "warnings": warnings}
        emit_json(answer)
    else:
        click.echo(_phsafe_text(answer))


def _validated(validation: Callable[[], dict[str, Any]], *, as_json: bool) -> dict[str, Any]:
    """Validate; a JSON answer lists what is wrong on stdout too."""
    try:
        return validation()
    except DataError as error:
        if as_json:
            errors = [asdict(finding) for finding in error.findings]
            emit_json({"mode": "validate", "ok": False, "confidential": True, "errors": errors})
        raise


def _check_usage(mode: str, out: Path | None, options: Mapping[str, Any]) -> None:
    if mode == "validate" and out is not None:
        raise click.UsageError("--mode validate writes nothing; leave out OUT.")
    if mode != "validate" and out is None:
        raise click.UsageError(f"--mode {mode} needs OUT, the folder to write into.")
    if mode == "private":
        return
    for name in (
        "seed",
        "resume",
        "ledger",
        "key_command",
        "key_passphrase_file",
        "ask_passphrase",
        "keep_key",
        "sign",
        "group_writable",
    ):
        if options[name] not in (None, False):
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --mode private.")


def _warn(mode: str, refused: Sequence[Finding], inconsistent: Sequence[Finding], *, seeded: bool) -> None:
    """Say on stderr what a reader of the output has to know."""
    if seeded:
        message("warning: noise from a seed protects nobody. These tables are stamped NOT FOR RELEASE.")
    if mode == "non-private":
        message(
            "warning: these are exact counts, without any protection. They are as confidential as the input."
        )
    _show_findings("a private run refuses this input", refused)
    _show_findings("records contradict each other, and are counted as they are", inconsistent)
    if refused or inconsistent:
        message("These lines speak about single records: they are as confidential as the input.")


def _show_findings(what: str, findings: Sequence[Finding]) -> None:
    """Show the first line of each kind, and how many more there are."""
    if not findings:
        return
    kinds: dict[tuple[str, str | None, str], Finding] = {}
    more: Counter[tuple[str, str | None, str]] = Counter()
    for finding in findings:
        kind = (finding.file, finding.field, _DETAIL.sub("", finding.rule))
        counted = _FURTHER.search(finding.rule)
        if kind in kinds:
            more[kind] += int(counted[1]) if counted else 1
        else:
            kinds[kind] = finding
    shown = [
        f"{finding}; {more[kind]} more {'line' if more[kind] == 1 else 'lines'} like it"
        if more[kind]
        else str(finding)
        for kind, finding in kinds.items()
    ]
    message("\n  ".join([f"warning: {what}:", *shown]))


def _phsafe_text(answer: Mapping[str, Any]) -> str:
    if answer["mode"] == "validate":
        return f"configuration and data are valid for the states {', '.join(answer['states'])}"
    lines = [f"{len(answer['tables'])} tables in {answer['out']}"]
    if answer["mode"] == "private":
        name = "rho" if answer["rho"] is not None else "epsilon"
        losses = answer[name]
        one, two = (_loss(losses[relation]) for relation in ("unbounded", "bounded"))
        lines.append(f"{name} spent, by the {answer['sensitivity']} bound: {one} (one address), {two} (two)")
        lines += answer["stamps"]
        lines.append(f"certificate: {Path(answer['out']) / 'certificate.json'}")
    return "\n".join(lines)


def _loss(exact: str | None) -> str:
    return "without bound" if exact is None else f"{exact} = {float(Fraction(exact)):.6g}"


@click.command("phsafe-post")
@out_argument
@click.option(
    "--published",
    is_flag=True,
    help="Fit every table by itself with continuous normal noise, as the Bureau's published step does.",
)
@click.option(
    "--most",
    type=float,
    default=10.0,
    show_default=True,
    help="Largest average household or family: the persons a household is truncated to.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Threads; same files with any.",
)
@json_option
def phsafe_post_command(out: Path, published: bool, most: float, workers: int, as_json: bool) -> None:
    """Estimate the tables of a PHSafe output from its noisy counts.

    Counts become whole numbers, 0 or more; average household and family sizes lie within their bounds; both
    have 90 % credible intervals. Tables that share numbers (PH4 with PH5, PH7 with PH8) share one posterior.
    Written to OUT/PHx/estimates in the layout of the published step. Nothing but the noisy counts is read,
    so that no budget is spent.

    Example: opendas phsafe-post out
    """
    from opendas.phsafe.posterior.files import Model
    from opendas.phsafe.posterior.post_processing import post_process

    model = Model.PUBLISHED if published else Model.JOINT
    result = post_process(out, model=model, most=most, workers=workers)
    for note in result.notes:
        message(f"note: {note}")
    failed = [check for check in result.checks if not check.ok]
    if as_json:
        emit_json(
            {
                "ok": result.ok,
                "model": str(model),
                "rows": result.rows,
                "files": result.files,
                "notes": result.notes,
                "checks": [
                    {"file": c.file, "name": c.name, "ok": c.ok, "rows": c.rows, "failures": c.failures}
                    for c in result.checks
                ],
            }
        )
    else:
        for name in result.files:
            click.echo(f"{out}/{name}")
        for check in failed:
            message(f"FAILED  {check.file}: {check.name}: not in {check.failures:,} of {check.rows:,} rows")
        message(f"{result.rows:,} rows in {len(result.files)} files, {len(result.checks)} checks")
    if failed:
        click.get_current_context().exit(1)


_CONFIDENTIAL = (
    "CONFIDENTIAL: these figures compare with exact counts, and the tables behind them are charged to no "
    "ledger. Use data that need no protection, and do not publish them."
)


@click.command("phsafe-accuracy")
@click.argument("config", metavar="CONFIG.json", type=PATH)
@click.argument("data", metavar="DATA", type=PATH)
@click.option(
    "--trials", type=click.IntRange(min=1), default=10, show_default=True, help="Number of private runs."
)
@click.option("--out", type=PATH, help="Folder for the report in the published layout.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the first trial."
)
@bound_options
@json_option
def phsafe_accuracy_command(
    config: Path, data: Path, trials: int, out: Path | None, as_json: bool, **options: Any
) -> None:
    """Measure the error of the tables that CONFIG.json gives, on data that need no protection.

    Makes the private tables several times in memory and compares them with the exact ones: 90th percentiles
    of the error beside the margins expected, and what truncation leaves out apart from the noise.

    Example: opendas phsafe-accuracy config.json testdata --trials 100
    """
    from opendas.phsafe.accuracy import run_accuracy, write_report
    from opendas.phsafe.run import HouseholdOptions

    message(_CONFIDENTIAL)
    with Progress() as progress:
        rows = run_accuracy(config, data, trials, HouseholdOptions(**options, progress=progress))
    if out is not None:
        message(f"written: {write_report(out, rows)}")
    if as_json:
        emit_json({"confidential": True, "trials": trials, "rows": [row.to_dict() for row in rows]})
    else:
        click.echo(text_table(_summary(rows)))


def _summary(rows: Sequence[AccuracyRow]) -> list[dict[str, Any]]:
    """Show groups and cells with the same noise as one row, with the mean of their figures."""
    alike: dict[tuple[Any, ...], list[AccuracyRow]] = {}
    for row in rows:
        family = row.iteration if row.iteration == "*" else "A-G" if row.iteration in "ABCDEFG" else "H,I"
        level = f"{row.region_type.lower()}_{family}"
        alike.setdefault((row.table, level, row.expected_moe, row.exact_moe), []).append(row)
    return [
        {
            "table": table,
            "level": level,
            "errors": sum(row.count for row in part),
            "expected": expected,
            "exact": exact,
            "noise (mean p90)": sum(row.noise_moe for row in part) / len(part),
            "error (mean p90)": sum(row.experimental_moe for row in part) / len(part),
            "truncation bias": sum(row.truncation_bias for row in part) / len(part),
        }
        for (table, level, expected, exact), part in alike.items()
    ]
