"""Commands of a run: ``run``, ``measure``, ``estimate``, ``status``, ``forget-key`` and ``publish``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opendas.cli.options import (
    GIVEN_FILE,
    PATH,
    check_engine,
    domain_option,
    engine_options,
    given_passphrase,
    group_writable_option,
    json_option,
    key_options,
    mdf_format_option,
    open_signing_key,
    out_argument,
    out_option,
    remember_out,
    run_file_argument,
    seed_option,
    seeded_option,
    sign_options,
    strict_option,
)
from opendas.cli.output import Progress, duration, emit_json, message, telling_compilation
from opendas.custody.stamps import NOT_FOR_RELEASE, verify_command
from opendas.errors import PrivacyError
from opendas.runs.progress.clock import peak_rss_mb

if TYPE_CHECKING:
    from opendas.runs.context.run import Run


@click.command("run")
@run_file_argument
@out_option
@engine_options
@seed_option
@click.option(
    "--measurements",
    type=click.Choice(["auto", "used", "full"]),
    default="auto",
    show_default=True,
    help="Write the noisy measurements that estimation used, or all of them; auto: all where they are few.",
)
@mdf_format_option
@strict_option
@key_options
@sign_options
@json_option
def run_command(run_file: Path, out: Path | None, as_json: bool, **options: Any) -> None:
    """Measure, estimate and write a release into OUT.

    OUT/release may be published; OUT/confidential must not. The run spends its budget once; --resume after an
    interruption repeats the same noise. A complete run destroys its key. With --keep-key it keeps it, and
    opendas measure --resume can write the measurements that the estimate did not use.

    Example: opendas run run.toml --out out
    """
    import opendas

    started = time.monotonic()
    folder, product, *_ = _measured(opendas.release, run_file, out, options, "This release is stamped")
    _answer(folder, product, time.monotonic() - started, as_json)


@click.command("measure")
@run_file_argument
@out_option
@engine_options
@seed_option
@strict_option
@key_options
@sign_options
@json_option
def measure_command(run_file: Path, out: Path | None, as_json: bool, **options: Any) -> None:
    """Take all noisy measurements of a run and write them into OUT/release/measurements.

    When they are complete the key is destroyed, unless --keep-key is given: estimating needs none.

    Example: opendas measure run.toml --out out && opendas estimate run.toml --out out
    """
    import opendas

    folder, *products = _measured(opendas.measure, run_file, out, options, "These measurements are")
    written = {product: folder / "release" / "measurements" / product for product in products}
    if as_json:
        answer, *others = ({"product": product, "measurements": path} for product, path in written.items())
        emit_json({"out": folder, **answer, **({"companion": others[0]} if others else {})})
    else:
        for product, path in written.items():
            click.echo(f"{product}: measurements in {path}")
        click.echo(f"next: opendas estimate {run_file} --out {folder}")


def _measured(
    act: Callable[..., Any], run_file: Path, out: Path | None, options: dict[str, Any], result: str
) -> tuple[Path, str, *tuple[str, ...]]:
    """Carry out an act that reads the input; return its folder, its product, and that one's companion.

    - `act`: :func:`opendas.release` or :func:`opendas.measure`.
    - `options`: of the command line; what is no keyword of `act` is taken out.
    - `result`: begins the sentence that says what noise from a seed is not for.
    """
    import opendas

    check_engine(options["engine"], options["master"])
    folder = remember_out(out, run_file)
    run = opendas.load(run_file, strict=options.pop("strict"))
    product = run.product.name
    if options["seed"] is None:
        _ask_about_runs_beside(run, run_file, folder)
    file, ask = options.pop("key_passphrase_file"), options.pop("ask_passphrase")
    passphrase = given_passphrase(file, ask, folder, product)
    sign = open_signing_key(options.pop("sign"), options.pop("sign_passphrase_file"))
    with telling_compilation(), Progress() as progress:
        act(run, out=folder, passphrase=passphrase, progress=progress, expect=progress.announce, **options)
    sign(folder)
    products = (product,) if run.companion is None else (product, run.companion.product.name)
    for each in products:
        findings = findings_message(folder, each)
        if findings is not None:
            message(findings)
    if options["seed"] is not None:
        message(f"warning: noise from a seed protects nobody. {result} NOT FOR RELEASE.")
    return folder, *products


def _ask_about_runs_beside(run: Run, run_file: Path, out: Path) -> None:
    """Ask before a first run in `out` spends budget on files that a run in a folder beside it has read."""
    from opendas.runs.act import left_out, runs_beside

    product = run.product.name
    if (out / "state" / product / "run.json").is_file():
        return  # it is resumed, or refused
    found = runs_beside(out, product, run.input_files)
    if not found:
        return
    for folder, state in found.items():
        known = state.known
        loss = next((f", {name} {known[name]}" for name in ("rho", "epsilon") if known.get(name)), "")
        message(f"{folder} holds a run of {product} on the same files already{loss}.")
        rest = left_out(folder, state)
        if rest:
            message(rest)
    first = next(iter(found))
    message(
        "A second run spends budget on the same records again, and the losses add up. If that run was "
        "started with this run file, this finishes it or returns its result, and spends no budget again:\n"
        f"  opendas run {run_file} --out {first} --resume"
    )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message(f"Nobody can be asked here, without a terminal: the run in {out} starts and spends budget.")
    elif not click.confirm(f"Spend the budget again, in {out}?", err=True):
        raise PrivacyError("stopped, as you answered: no noise was drawn, and no budget was spent.")


@click.command("estimate")
@click.argument("paths", metavar="[RUN.toml | NMF...]", nargs=-1, type=PATH)
@click.option(
    "--from-nmf",
    metavar="NMF",
    multiple=True,
    type=PATH,
    help="A published noisy measurement file, a folder with State.parquet and so on; further ones follow.",
)
@click.option(
    "--frame",
    metavar="FILE",
    multiple=True,
    type=GIVEN_FILE,
    help="With --from-nmf: geography of the blocks, an official redistricting zip a state, or a table "
    "of blocks (CSV, Parquet).",
)
@click.option(
    "--totals",
    metavar="FILE",
    type=GIVEN_FILE,
    help="With --from-nmf: published table, or redistricting zip, with exact counts that NMF leaves out.",
)
@click.option("--state", metavar="STATE", help="With --from-nmf: read this state alone.")
@click.option(
    "--estimator",
    help="With --from-nmf: topdown, informed, posterior, or another package's. Default: topdown.",
)
@click.option(
    "--budget",
    metavar="PRESET|RUN.toml",
    multiple=True,
    help="With --from-nmf: the budget that it was measured with. Default: what its variances tell.",
)
@click.option(
    "--tie",
    metavar="RELEASE",
    type=PATH,
    help="With --from-nmf of the DHC: the redistricting release with which it agrees in every block.",
)
@out_option
@click.option("--to", type=PATH, help="The same as --out.")
@engine_options
@mdf_format_option
@click.option(
    "--ledger", type=PATH, help="The book that opendas measure was given, if it lies elsewhere now."
)
@sign_options
@group_writable_option
@json_option
def estimate_command(
    paths: tuple[Path, ...],
    from_nmf: tuple[Path, ...],
    out: Path | None,
    to: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Turn noisy measurements into consistent microdata. Spends no budget.

    The measurements are those that opendas measure wrote into OUT; or, with --from-nmf, published ones: files
    of the Census Bureau's layout, of persons, units or both, redistricting or DHC. Then no run file, key or
    confidential record is needed: hierarchy, budget and exact counts are what the files say.

    Example: opendas estimate run.toml --out out

    Example: opendas estimate --from-nmf US_Person_PL_PROD --state RI --frame ri2020.pl.zip --to out
    """
    import opendas

    check_engine(options["engine"], options["master"])
    published = {name: options.pop(name) for name in _WITH_PUBLISHED}
    run_file = None if from_nmf else _only_run_file(paths, published)
    if out is not None and to is not None:
        raise click.UsageError("--to is the same as --out; give one of them.")
    if run_file is None and out is None and to is None:
        raise click.UsageError("--from-nmf needs --to OUT.")
    folder = remember_out(out or to, run_file)
    started = time.monotonic()
    sign = open_signing_key(options.pop("sign"), options.pop("sign_passphrase_file"))
    with telling_compilation(), Progress() as progress:
        if run_file is not None:
            run = opendas.load(run_file, need_input=False)
            opendas.estimate(run, out=folder, progress=progress, **options)
            product = run.product.name
        else:
            given = {name: value for name, value in published.items() if value}
            files = (*from_nmf, *paths)
            release = opendas.estimate_published(files, folder, progress=progress, **given, **options)
            product = release.products[-1]
    sign(folder)
    _answer(folder, product, time.monotonic() - started, as_json)


_WITH_PUBLISHED = ("frame", "totals", "state", "estimator", "budget", "tie")


def _only_run_file(paths: tuple[Path, ...], published: Mapping[str, Any]) -> Path:
    """Return the run file; options of published files do not go with it."""
    if len(paths) != 1:
        raise click.UsageError("give one RUN.toml, or published files with --from-nmf.")
    if any(published.values()):
        *names, last = (f"--{name}" for name in _WITH_PUBLISHED)
        raise click.UsageError(f"{', '.join(names)} and {last} go with --from-nmf.")
    return paths[0]


def _answer(folder: Path, product: str, seconds: float, as_json: bool) -> None:
    answer = run_answer(folder, product, seconds)
    if as_json:
        emit_json(answer)
    else:
        click.echo(next_steps(answer))


_WATCH_SECONDS = 2.0


@click.command("status")
@out_argument
@click.option("--watch", is_flag=True, help="Refresh every two seconds until no run is active.")
@json_option
def status_command(out: Path, watch: bool, as_json: bool) -> None:
    """Show the runs in OUT: progress, time left, and privacy loss spent.

    Reads only, so it can be used while a run is active in OUT.

    Example: opendas status out --watch
    """
    import opendas

    rows = opendas.status(out)
    while True:
        _show_status(out, rows, as_json, again=watch)
        if not watch or not any(row.get("state") == "running" for row in rows):
            break
        time.sleep(_WATCH_SECONDS)
        rows = opendas.status(out)
    problems = [row["problem"] for row in rows if row.get("problem")]
    if problems:
        raise PrivacyError("\n  ".join(problems))


def _show_status(out: Path, rows: Sequence[Mapping[str, Any]], as_json: bool, *, again: bool) -> None:
    # A script that reads JSON is not handed an answer without content beside an error.
    if all(row.get("phase") == "damaged" for row in rows):
        return
    if as_json:
        emit_json({"out": out, "runs": rows})
        return
    if again and sys.stdout.isatty():
        click.clear()
    click.echo("\n".join(line for row in rows for line in _status_lines(row)))


def _status_lines(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said about a run."""
    if row.get("state") == "finished":
        yield f"{row['product']}: {row['phase']}"
    else:
        yield f"{row['product']}: {row.get('state') or 'unknown'}, phase {row['phase']}"
    for said in (_stage(row), _work(row), _times(row), _what_was_spent(row)):
        if said:
            yield f"  {said}"
    for name in ("error", "advice"):
        if row.get(name):
            yield f"  {row[name]}"


def _stage(row: Mapping[str, Any]) -> str:
    if row.get("stage") is None or row.get("state") == "finished":
        return ""
    done, total = row.get("done") or 0, row.get("total") or 0
    text = str(row["stage"])
    if total > 1:
        text += f": {done:,} of {total:,} ({100 * done // total} %)"
    if row.get("rate"):
        text += f", {row['rate']:,.3g} a second"
    if row.get("stage_left") is not None:
        text += f", {duration(row['stage_left'])} left"
    return text


def _work(row: Mapping[str, Any]) -> str:
    parts = []
    if row.get("state") != "finished" and row.get("workers") is not None:
        parts.append(f"{row['workers']} worker{'s' * (row['workers'] != 1)} ({row.get('engine')})")
    if row.get("memory_mb") is not None:
        parts.append(f"{row['memory_mb']:,.0f} MB of memory in all")
    if row.get("peak_rss_mb") is not None:
        parts.append(f"largest process {row['peak_rss_mb']:,.0f} MB")
    return ", ".join(parts)


def _times(row: Mapping[str, Any]) -> str:
    if row.get("started") is None:
        return ""
    text = f"since {_moment(row['started'])}"
    if row.get("attempts", 1) > 1:
        text += f", attempt {row['attempts']}"
    if row.get("elapsed") is not None:
        text += f", {duration(row['elapsed'])}"
    if row.get("updated") is not None:
        text += f"; last event {row.get('last_event')} at {_moment(row['updated'])}"
    return text


def _moment(timestamp: str) -> str:
    return timestamp.replace("T", " ").partition(".")[0].removesuffix("Z") + " UTC"


def _what_was_spent(row: Mapping[str, Any]) -> str:
    parts = [f"{name} {row[name]} spent" for name in ("rho", "epsilon") if row.get(name) is not None]
    if row.get("seeded"):
        parts.append("noise from a seed")
    if "key" in row:
        parts.append("key stored here" if row["key"] else "no key stored here")
    if row.get("tasks_finished"):
        parts.append(f"{row['tasks_finished']} tasks kept")
    if row.get("version") is not None:
        parts.append(f"version {row['version']}")
    return ", ".join(parts)


@click.command("forget-key")
@out_argument
@click.option(
    "--ledger",
    metavar="BOOK",
    type=PATH,
    help="The book that the runs in OUT are in, if it lies elsewhere now.",
)
def forget_key_command(out: Path, ledger: Path | None) -> None:
    """Destroy the run keys in OUT.

    Anyone who holds the key and the measurements can recover the confidential data, at any later time.
    Afterwards an unfinished run cannot be resumed, and no further measurement can be drawn.

    Example: opendas forget-key out
    """
    import opendas

    gone = opendas.forget_key(out, ledger=ledger)
    if gone:
        click.echo(f"destroyed the key of {', '.join(gone)}")
        message("Copies in a backup, or in snapshots of the file system, are not destroyed.")
    else:
        click.echo(f"{out} holds no run key")


@click.command("publish")
@out_argument
@click.argument("address", metavar="ADDRESS")
@seeded_option
@domain_option
@click.option("--allow-key", is_flag=True, help="Publish although OUT holds a key in clear.")
@click.option(
    "--chosen-with-truth",
    is_flag=True,
    help="State that the release may have been chosen with the data in sight; stamps its certificate.",
)
@click.option(
    "--rederive/--no-rederive",
    default=True,
    show_default=True,
    help="Estimate the release again from its measurements, and compare record for record.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes that estimate again.")
@json_option
def publish_command(out: Path, address: str, workers: int | None, as_json: bool, **stated: bool) -> None:
    """Verify OUT and copy its release to ADDRESS, a folder such as s3://bucket/path.

    First estimates the release again from its own measurements (verify --rederive), and refuses it if it
    differs.

    Copies OUT/release and nothing else. Every file is read back before it gets its name; certificate.json is
    the last. The same command finishes an interrupted copy, and refuses a folder that holds anything else. It
    also refuses a release beside an unencrypted key: anyone who has both has the confidential data.

    Refuses a release that may have been chosen by looking at the confidential data: one of several that were
    compared with them (opendas evaluate), or one whose plan was made from them.

    Example: opendas publish out s3://statistics/releases/2030
    """
    import opendas

    with Progress() as progress:
        done = opendas.publish_to(out, address, workers=workers, progress=progress, **stated)
    if as_json:
        emit_json(asdict(done))
        return
    words = "re-derived from its measurements" if done.rederived else "not re-derived"
    click.echo(
        f"{done.address}: {done.files} files of the release, {done.copied} of them copied now; {words}, "
        f"{'signed' if done.signed else 'unsigned'}"
    )


def run_answer(out: Path, product: str, seconds: float) -> dict[str, Any]:
    """Return the answer of a finished run, from its entry in the certificate where there is one.

    Where its product has a companion, the answer holds that one's too.

    Raises `FormatError` if the certificate is damaged.
    """
    from opendas.runs.finished_release import Release

    runs: Sequence[Mapping[str, Any]] = ()
    if (out / "release" / "certificate.json").is_file():
        runs = Release(out).certificate["runs"]
    entry: Mapping[str, Any] = next((run for run in reversed(runs) if run["product"] == product), {})
    names = ("records", "rho", "epsilon", "families", "fallbacks", "stamps", "key")
    answer: dict[str, Any] = {
        "out": str(out),
        "product": product,
        **{name: entry.get(name) for name in names},
    }
    if entry.get("companion") is not None:
        answer["companion"] = run_answer(out, entry["companion"], seconds)
    return answer | {"seconds": round(seconds, 3), "peak_rss_mb": round(peak_rss_mb(), 1)}


def findings_message(out: Path, product: str) -> str | None:
    """Say where what was found in the input is listed; None where there is nothing."""
    path = out / "confidential" / "findings" / f"{product}.txt"
    if not path.is_file():
        return None
    count = len(path.read_bytes().splitlines())
    return (
        f"warning: {count:,} finding{'s' if count > 1 else ''} about the input, listed in {path} "
        "(confidential). --strict makes contradictions with public counts an error."
    )


_KEY_IN_WORDS = {
    "destroyed": "destroyed (a run with --keep-key keeps it, to draw the rest of its measurements later)",
    "kept": "kept in clear; opendas forget-key destroys it",
}


def next_steps(answer: Mapping[str, Any]) -> str:
    """Return the answer in words, with what to do next."""
    out = answer["out"]
    both = (answer["companion"], answer) if "companion" in answer else (answer,)
    return "\n".join(
        [
            *map(_released, both),
            f"in {duration(answer['seconds'])}, with {answer['peak_rss_mb']:,.0f} MB at most in one process.",
            "",
            f"  report       {out}/release/report.html",
            f"  certificate  {out}/release/certificate.json",
            f"  check it     {verify_command(out, _stamps(both))}",
            f"  publish      {_what_to_publish(both)}",
            f"  key          {_KEY_IN_WORDS.get(str(answer['key']), answer['key'] or 'not stated')}",
        ]
    )


def _stamps(answers: Sequence[Mapping[str, Any]]) -> set[str]:
    return {stamp for answer in answers for stamp in answer["stamps"] or ()}


def _what_to_publish(answers: Sequence[Mapping[str, Any]]) -> str:
    out = answers[0]["out"]
    stamps = _stamps(answers)
    if NOT_FOR_RELEASE in stamps:
        return f"nothing: the release is stamped {NOT_FOR_RELEASE}"
    first = "read in the report what the stamps mean; then " if stamps else ""
    return f"{first}{out}/release only, never {out}/confidential"


def _released(answer: Mapping[str, Any]) -> str:
    from opendas.report.views import plural

    loss = f"rho {answer['rho']}" if answer["rho"] is not None else f"epsilon {answer['epsilon']}"
    stamps = f" [{', '.join(map(str, answer['stamps']))}]" if answer["stamps"] else ""
    known = isinstance(answer["records"], int)
    records = plural("record", answer["records"]) if known else "an unknown number of records"
    return f"{answer['product']}: {records} released under {loss}{stamps}"
