"""``opendas phsafe``: tables of persons joined to their households, in the published program's formats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import given_passphrase, json_option, key_options, remember_out, seed_option
from opendas.cli.output import emit_json, message
from opendas.cli.progress import Progress
from opendas.errors import DataError, Finding

__all__ = ["command"]

_PATH: click.Path = click.Path(path_type=Path)
_FURTHER = re.compile(r"\(([0-9]+) further lines\)$")
_DETAIL = re.compile(r" \((?:its unit: .*|[0-9]+ further lines)\)$")


@click.command("phsafe")
@click.argument("config", metavar="CONFIG.json", type=_PATH)
@click.argument("data", metavar="DATA")
@click.argument("out", metavar="[OUT]", type=_PATH, required=False)
@click.option(
    "--mode",
    type=click.Choice(["private", "non-private", "validate"]),
    default="private",
    show_default=True,
    help="Private tables, exact counts for the owner's eyes, or a check of configuration and data only.",
)
@click.option(
    "--truncation",
    type=click.Choice(["keyed", "tumult-0.12"]),
    default="keyed",
    show_default=True,
    help="Who is kept of a household above tau: by a secret key, or in the published program's order.",
)
@click.option(
    "--sensitivity",
    type=click.Choice(["paper", "tight"]),
    default="paper",
    show_default=True,
    help="The bound that noise is made for: the published 2 tau + 2, or the tight one.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Where it counts: in this process, or on Spark, with the same result.",
)
@click.option(
    "--master",
    metavar="URL",
    default=None,
    help="Spark master (engine spark). Default: a local one.",
)
@seed_option
@click.option(
    "--resume",
    is_flag=True,
    help="Finish an interrupted run, with the same noise; no budget is spent again.",
)
@key_options
@json_option
def command(
    config: Path,
    data: str,
    out: Path | None,
    mode: str,
    truncation: str,
    sensitivity: str,
    engine: str,
    master: str | None,
    seed: int | None,
    resume: bool,
    ledger: Path | None,
    key_command: str | None,
    key_passphrase_file: Path | None,
    ask_passphrase: bool,
    as_json: bool,
) -> None:
    """Count persons in their households, with truncation and exact noise, into OUT.

    CONFIG.json and the files in DATA are those of the published program, and so are the folders in OUT.
    OUT/certificate.json says what they cost.

    Example: opendas phsafe config.json data out
    """
    from opendas.phsafe.folder import PRODUCT
    from opendas.phsafe.run import HouseholdOptions, run_exact, run_private, validate_input
    from opendas.phsafe.sensitivity import Sensitivity
    from opendas.phsafe.truncation import Truncation

    if master is not None and engine != "spark":
        raise click.UsageError("--master goes with --engine spark.")
    private_only = {
        "--seed": seed is not None,
        "--resume": resume,
        "--ledger": ledger is not None,
        "--key-command": key_command is not None,
        "--key-passphrase-file": key_passphrase_file is not None,
        "--ask-passphrase": ask_passphrase,
    }
    _check_usage(mode, out, [name for name, given in private_only.items() if given])
    passphrase = None if out is None else given_passphrase(key_passphrase_file, ask_passphrase, out, PRODUCT)
    refused: Sequence[Finding] = ()
    odd: list[Finding] = []
    with Progress() as progress:
        options = HouseholdOptions(
            sensitivity=Sensitivity(sensitivity),
            truncation=Truncation(truncation),
            seed=seed,
            resume=resume,
            ledger=ledger,
            key_command=key_command,
            passphrase=passphrase,
            progress=progress,
            warn=odd.extend,
            engine=engine,
            master=master,
        )
        if out is None:
            answer = _validated(lambda: validate_input(config, data, options), as_json=as_json)
        elif mode == "private":
            answer = run_private(config, data, remember_out(out), options)
        else:
            answer, refused = run_exact(config, data, remember_out(out), options)
    _tell(mode, refused, odd, seeded=seed is not None)
    if as_json:
        if mode == "validate":
            answer |= {"confidential": True, "errors": [], "warnings": [asdict(finding) for finding in odd]}
        emit_json(answer)
    else:
        click.echo(_text(answer))


def _validated(validation: Callable[[], dict[str, Any]], *, as_json: bool) -> dict[str, Any]:
    """Validate; a JSON answer lists what is wrong on stdout too."""
    try:
        return validation()
    except DataError as error:
        if as_json:
            errors = [asdict(finding) for finding in error.findings]
            emit_json({"mode": "validate", "ok": False, "confidential": True, "errors": errors})
        raise


def _check_usage(mode: str, out: Path | None, private_only: Sequence[str]) -> None:
    if mode == "validate" and out is not None:
        raise click.UsageError("--mode validate writes nothing; leave out OUT.")
    if mode != "validate" and out is None:
        raise click.UsageError(f"--mode {mode} needs OUT, the folder to write into.")
    if mode != "private" and private_only:
        raise click.UsageError(f"{private_only[0]} goes with --mode private.")


def _tell(mode: str, refused: Sequence[Finding], odd: Sequence[Finding], *, seeded: bool) -> None:
    """Say on stderr what a reader of the output has to know."""
    if seeded:
        message("warning: noise from a seed protects nobody. These tables are stamped NOT FOR RELEASE.")
    if mode == "non-private":
        message(
            "warning: these are exact counts, without any protection. They are as confidential as the input."
        )
    _list("a private run refuses this input", refused)
    _list("records contradict each other, and are counted as they are", odd)
    if refused or odd:
        message("These lines speak about single records: they are as confidential as the input.")


def _list(what: str, findings: Sequence[Finding]) -> None:
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


def _text(answer: Mapping[str, Any]) -> str:
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
