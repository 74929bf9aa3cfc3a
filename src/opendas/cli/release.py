"""Commands on a release: ``verify``, ``tabulate``, ``replicates``, ``margin``, ``evaluate``, ``interval``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opendas.cli.options import (
    FILE,
    FOLDER,
    GIVEN_FILE,
    MEASURED,
    PATH,
    domain_option,
    json_option,
    ledger_option,
    listed,
    open_signing_key,
    out_argument,
    remember_out,
    seeded_option,
    sign_options,
    together,
)
from opendas.cli.output import Progress, echo_paths, emit_json, message, text_table

if TYPE_CHECKING:
    from opendas import PublishedMicrodata, Release

question_options = together(
    click.option(
        "--query", required=True, metavar="Q", help="Table (P1 ... H1) or query group, measured or not."
    ),
    click.option(
        "--blocks",
        type=FILE,
        help="Districts: block assignment or equivalency file, table with areas, list, shapes.",
    ),
    click.option("--geolevel", metavar="LEVEL|CATEGORY", help="Geolevel, or entity category such as place."),
    click.option(
        "--level",
        metavar="LEVEL",
        default="0.90",
        show_default=True,
        help="Level, strictly between 0 and 1.",
    ),
)


def _exact_question(blocks: Path | None, geolevel: str | None, level: str) -> Fraction:
    """Check what :func:`question_options` gave; return the level."""
    import opendas

    if (blocks is None) == (geolevel is None):
        raise click.UsageError("give either --blocks or --geolevel.")
    return opendas.exact_level(level)


@click.command("verify")
@out_argument
@click.option(
    "--config",
    metavar="CONFIG.json",
    type=PATH,
    help="Of a run of the published PHSafe program, whose output OUT is.",
)
@seeded_option
@domain_option
@click.option(
    "--rederive",
    is_flag=True,
    help="Also estimate again from the released measurements, and compare record for record.",
)
@click.option("--signed-by", metavar="KEY.pub", type=PATH, help="Public key whose signature must be there.")
@click.option(
    "--tied",
    metavar="EARLIER",
    type=FOLDER,
    help="The release that OUT is tied to: --rederive draws the replicates of a tied run with it.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes of --rederive. Default: two, if there are two cores.",
)
@json_option
def verify_command(out: Path, config: Path | None, as_json: bool, **options: Any) -> None:
    """Check a release from its own files: digests, budgets, microdata, constraints. Exit code 0 or 1.

    OUT is an output folder, or a copy of its release/. --rederive estimates the microdata again from the
    released measurements. Neither check needs the input or a key.

    The output of `opendas phsafe` is checked row by row: folders, columns, the grid of regions, groups and
    cells, variances, and losses under every bound. --config checks the output of the published PHSafe
    program, which has no certificate, against its configuration.

    Example: opendas verify out --rederive
    """
    import opendas
    from opendas.custody.signing_key import PublicKey
    from opendas.phsafe.verify import holds_household_tables, verify_output, verify_published

    signed_by, tied = options["signed_by"], options.pop("tied")
    if config is not None:
        if options["rederive"] or signed_by is not None:
            raise click.UsageError("--config goes with neither --rederive nor --signed-by.")
        checks = verify_published(out, config)
    elif holds_household_tables(out):
        options["signed_by"] = None if signed_by is None else PublicKey.load(signed_by)
        del options["allow_domain_from_records"]  # their labels are those of the published program
        checks = verify_output(out, **options)
    else:
        earlier = None if tied is None else opendas.Release(tied)
        with Progress() as progress:
            checks = opendas.Release(out).verify(**options, tied=earlier, progress=progress)
    good = all(check.ok for check in checks)
    if as_json:
        rows = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks]
        emit_json({"ok": good, "checks": rows})
    else:
        from opendas.report.views import plural

        for check in checks:
            click.echo(f"{'ok    ' if check.ok else 'FAILED'}  {check.name}: {check.detail}")
        click.echo(f"{plural('check', len(checks))}, {sum(not check.ok for check in checks)} failed")
    if not good:
        click.get_current_context().exit(1)


@click.command("tabulate")
@out_argument
@click.option(
    "--tables",
    required=True,
    multiple=True,
    metavar="P1,...,H1|QUERY,...",
    help="Tables, or query groups of any product. May be repeated.",
)
@click.option(
    "--geolevel",
    "geolevels",
    multiple=True,
    metavar="LEVEL|CATEGORY",
    help="Geolevel, or entity category such as place. May be repeated.",
)
@click.option(
    "--blocks", type=PATH, help="In place of a geolevel: a file of districts, as for opendas interval."
)
@click.option("--plans", is_flag=True, help="Each column of that file is a plan, or each file of a folder.")
@click.option(
    "--format",
    type=click.Choice(["parquet", "csv", "pl94"]),
    default="parquet",
    show_default=True,
    help="File format; pl94 is the legacy layout, without --geolevel of all summary levels.",
)
@click.option(
    "--intervals", metavar="LEVEL", help="Put estimate and interval beside each count, for instance 0.90."
)
@click.option(
    "--long", is_flag=True, help="One file: geocode, name, geolevel, variable, label, value, margin."
)
@click.option(
    "--allow-derived",
    is_flag=True,
    help="Also tables of what the input lacks, such as P5 of 2010, as the reader derived it.",
)
@click.option(
    "--to", type=FOLDER, help="Folder. Default: the release itself, whose certificate is then issued again."
)
@sign_options
def tabulate_command(
    out: Path,
    tables: tuple[str, ...],
    geolevels: tuple[str, ...],
    intervals: str | None,
    to: Path | None,
    sign: Path | None,
    sign_passphrase_file: Path | None,
    **options: Any,
) -> None:
    """Write tables of a release, each cell with its margin of error where one is known.

    Tables list every official area, including those where nobody can live. CSV files give each area's name,
    and an identifier with letters (1400000US...) that spreadsheets do not read as a number.

    Example: opendas tabulate out --tables P1,H1 --geolevel county,tract --long --format csv --to tables
    """
    import opendas

    exact = None if intervals is None else opendas.exact_level(intervals)
    names = listed(tables)
    if not names:
        raise click.UsageError("--tables names no table.")
    if sign is not None and to is not None:
        raise click.UsageError("--sign goes with tables in the release, without --to.")
    remember_out(out)
    sign_again = open_signing_key(sign, sign_passphrase_file)
    release = opendas.Release(out)
    written = opendas.tabulate(
        release,
        tables=names,
        geolevel=listed(geolevels),
        intervals=exact,
        to=to,
        **options,
    )
    sign_again(out)
    echo_paths(written)


microdata_options = together(
    click.option(
        "--run",
        "run_file",
        metavar="RUN.toml",
        type=PATH,
        help="OUT is a file or folder of MDF or PPMF, made by an algorithm like that of this run file.",
    ),
    click.option(
        "--to", type=FOLDER, help="Of published microdata: folder of the replicates. Default: beside OUT."
    ),
)


def _published(out: Path, run_file: Path | None, to: Path | None) -> Release | PublishedMicrodata:
    import opendas
    from opendas.files.storage.addresses import RemotePath, located

    beside = out.with_name(out.name + ".replicates").is_dir()
    if run_file is not None or to is not None or beside or isinstance(located(out), RemotePath):
        return opendas.PublishedMicrodata(out, run_file, to)
    return opendas.Release(out)


@click.command("replicates")
@out_argument
@click.option("--runs", type=click.IntRange(min=2), default=50, show_default=True, help="Replicates.")
@click.option("--product", help="One product. Default: all of the release.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of their noise.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes.")
@click.option("--resume", is_flag=True, help="Finish what an interrupted command began.")
@click.option(
    "--microdata",
    metavar="DIR",
    type=FOLDER,
    help="Also write the records of each replicate, and of the counts it started from, into DIR.",
)
@click.option(
    "--published",
    metavar="DIR",
    type=MEASURED,
    help="Draw none: OUT is a file or folder of MDF or PPMF, and its published replicates stand in DIR.",
)
@click.option(
    "--tied",
    metavar="EARLIER",
    type=FOLDER,
    help="The release that OUT is tied to: each replicate agrees with one of that release.",
)
@microdata_options
@json_option
def replicates_command(
    out: Path,
    published: Path | None,
    tied: Path | None,
    run_file: Path | None,
    to: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate the release from its own published counts; the spread is the error of what was published.

    Costs no budget: everything comes from the release. `opendas margin` reads the margin of any published
    figure from the replicates, which stand in release/replicates; the certificate is issued again.

    OUT may also be a file or folder of published microdata (MDF, PPMF), with --run to draw replicates or
    --published to read those of the Census Bureau; both are kept beside it. OUT and DIR may be remote
    addresses; give --to then, as for `opendas margin`.

    Example: opendas replicates out --runs 50
    """
    import opendas

    if published is not None:
        if run_file is not None or options["microdata"] is not None or tied is not None:
            raise click.UsageError("--published draws nothing: give neither --run, --tied nor --microdata.")
        drawn = {}
        with Progress() as progress:
            own = opendas.PublishedMicrodata(out, None, to)
            files = own.take_replicates(published, options["product"], progress)
    else:
        if run_file is None:
            remember_out(out)
        drawn = {name: options[name] for name in ("runs", "seed")}
        earlier = None if tied is None else opendas.Release(tied)
        with Progress() as progress:
            source = _published(out, run_file, to)
            files = opendas.replicates(source, tied=earlier, progress=progress, **options)
    if as_json:
        emit_json({**drawn, "files": files})
    else:
        echo_paths(files.values())


@click.command("margin")
@out_argument
@question_options
@click.option(
    "--ratio",
    nargs=2,
    metavar="CELL CELL",
    help="The first cell divided by the second, for instance P0030001 P0010001.",
)
@click.option(
    "--sql",
    metavar="SQL|FILE.sql",
    help="What DuckDB makes of the counts: columns geocode and each cell of the table `counts`.",
)
@click.option(
    "--shortest",
    is_flag=True,
    help="One figure for each true count, with an interval: of published count and least-squares estimate, "
    "the one that is closer.",
)
@click.option(
    "--weights",
    metavar="FILE",
    type=FILE,
    help="Write the counts with replicate weights for survey software, to a file .csv or .parquet.",
)
@click.option(
    "--pooled",
    is_flag=True,
    help="Of blocks: wider where a cell's own replicates say too little, as of races.",
)
@click.option(
    "--tied",
    metavar="EARLIER",
    type=FOLDER,
    help="The release that OUT is tied to: --pooled takes the counts that its replicates started from, too.",
)
@microdata_options
@json_option
def margin_command(
    out: Path,
    query: str,
    geolevel: str | None,
    blocks: Path | None,
    level: str,
    ratio: tuple[str, str] | None,
    sql: str | None,
    shortest: bool,
    weights: Path | None,
    pooled: bool,
    tied: Path | None,
    run_file: Path | None,
    to: Path | None,
    as_json: bool,
) -> None:
    """Report published counts with margins, biases and standard errors, from the release's replicates.

    A ratio of cells, or an SQL query on them, is computed again from the counts of each replicate, so it has
    a margin too.

    Example: opendas margin out --query P2 --geolevel place --ratio P0020002 P0020001
    """
    import opendas

    exact = _exact_question(blocks, geolevel, level)
    if sum(given is not None for given in (ratio, sql, shortest or None, weights)) > 1:
        raise click.UsageError("give one of --ratio, --sql, --shortest and --weights.")
    release = _published(out, run_file, to)
    if pooled and (shortest or weights is not None or not isinstance(release, opendas.Release)):
        raise click.UsageError("--pooled goes with the margins of a release alone.")
    if tied is not None and not pooled:
        raise click.UsageError("--tied goes with --pooled: other margins need the replicates of OUT alone.")
    if weights is not None:
        if geolevel is None:
            raise click.UsageError("--weights goes with --geolevel.")
        click.echo(str(_write_frame(release.replicate_weights(query, geolevel=geolevel).to_arrow(), weights)))
        return
    if shortest:
        if not isinstance(release, opendas.Release):
            raise click.UsageError("--shortest takes a release, with its measurements.")
        found = release.shortest(query, geolevel=geolevel, blocks=blocks, level=exact).to_arrow().to_pylist()
        if as_json:
            emit_json({"level": float(exact), "rows": found})
        else:
            shown = [row | {"figure": f"{row['figure']:.1f}"} for row in found]
            click.echo(text_table(shown, ["geocode", "cell", "figure", "lower", "upper", "source"]))
        return
    of = ratio if sql is None else _text_of(sql)
    more: dict[str, Any] = {}
    if pooled:
        more = {"pooled": True, "tied": None if tied is None else opendas.Release(tied)}
    table = release.margin(query, geolevel=geolevel, blocks=blocks, level=exact, of=of, **more)
    rows = table.to_arrow().to_pylist()
    if as_json:
        emit_json({"level": float(exact), "rows": [_margin_row(row, None) for row in rows]})
        return
    click.echo(text_table([_margin_row(row, 1 if of is None else 4) for row in rows], list(_MARGIN_COLUMNS)))
    message(
        f"{float(100 * exact):.10g} % margins of the published counts, from replicates: the spread of the "
        "same run on the published counts. They say nothing of what the records themselves got wrong."
    )


def _text_of(sql: str) -> str:
    """Return SQL that is given, or that stands in a file."""
    if not sql.endswith(".sql"):
        return sql
    try:
        return Path(sql).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--sql {sql}: no file of text.") from error


def _write_frame(table: Any, path: Path) -> Path:
    """Write an Arrow table, in the format that the name of the file ends with."""
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    from opendas.custody.folders import atomic_file

    if path.suffix not in (".csv", ".parquet"):
        raise click.UsageError(f"{path.name}: a name ends with .csv or .parquet.")
    with atomic_file(path) as file:
        if path.suffix == ".csv":
            pacsv.write_csv(table, file)
        else:
            pq.write_table(table, file)
    return path


_MARGIN_COLUMNS = ("geocode", "cell", "count", "margin", "bias", "standard_error")


def _margin_row(row: dict[str, Any], digits: int | None) -> dict[str, Any]:
    """Return a row with whole numbers as integers, and others rounded for the eye."""
    known = {name: row[name] for name in _MARGIN_COLUMNS[2:] if row[name] is not None}
    shown = row | {
        name: int(known[name]) for name in ("count", "margin") if known.get(name, 0.5).is_integer()
    }
    if digits is not None:
        shown |= {name: f"{x:.{digits}f}" for name, x in known.items() if isinstance(shown[name], float)}
    return shown


@click.command("evaluate")
@out_argument
@click.option(
    "--truth", required=True, metavar="RUN.toml", type=PATH, help="The run file that names the input."
)
@click.option("--entities", is_flag=True, help="Also for entity categories: places, districts, ...")
@click.option(
    "--blocks",
    metavar="PLAN",
    type=PATH,
    help="Also the districts of a drawn plan: a file as for opendas interval.",
)
@ledger_option
@json_option
def evaluate_command(
    out: Path, truth: Path, entities: bool, blocks: Path | None, ledger: Path | None, as_json: bool
) -> None:
    """Measure the error of a release against the confidential table.

    The figures are confidential, also on stdout; plots and tables go to OUT/confidential/evaluation. The
    account records that the truth was read, and `opendas publish` refuses a release that may have been chosen
    among several in this way. For a product with a companion, both histograms are compared.

    Example: opendas evaluate out --truth run.toml
    """
    import opendas

    remember_out(out)
    run, release = opendas.load(truth), opendas.Release(out)
    both = (run,) if run.companion is None else (run, run.companion)
    found: list[dict[str, Any]] = [
        opendas.evaluate(release, truth=each, entities=entities, blocks=blocks, ledger=ledger).to_dict()
        for each in both
    ]
    message("These figures compare with the confidential data: they are confidential. Do not publish them.")
    if as_json:
        emit_json({**found[0], **({"companion": found[1]} if found[1:] else {})})
        return
    columns = ["geolevel", "query", "geounits", "mean_abs_error", "mean_signed_error"]
    for each, errors in zip(both, found, strict=True):
        if len(both) > 1:
            click.echo(f"\n{each.product.name}")
        click.echo(text_table(errors["rows"], columns))


_SHORT_SECONDS = 3.0

COVER = "They cover the noise, and nothing else: not what the records themselves got wrong."
CREDIBLE = (
    "If the prior is right they are, on average over counts, as often as they say; for counts of a kind that "
    "is rare among the neighbours, less often. What the records themselves got wrong is not in them."
)
_INTERVAL_COLUMNS = ("geocode", "cell", "count", "estimate", "sd", "lower", "upper")


@click.command("interval")
@click.argument("paths", metavar="OUT|NMF...", nargs=-1, required=True, type=MEASURED)
@question_options
@click.option(
    "--skip-unknown", is_flag=True, help="Leave out blocks that neither release nor official list has."
)
@click.option(
    "--selected",
    is_flag=True,
    help="Only counts whose interval excludes zero, in wider ones that hold for counts so chosen.",
)
@click.option(
    "--totals",
    metavar="FILE",
    type=GIVEN_FILE,
    help="Published table, or redistricting zip: people of states and housing units of blocks, both exact.",
)
@click.option("--state", metavar="STATE", help="Of an NMF of all states, read this one.")
@click.option(
    "--posterior",
    is_flag=True,
    help="Credible intervals of a release by the estimator posterior, which is drawn again.",
)
@click.option(
    "--std-dev",
    is_flag=True,
    help="Answer as the Bureau's files of estimates: geocode|query|estimate|std_dev|query_description.",
)
@json_option
def interval_command(
    paths: tuple[Path, ...],
    query: str,
    blocks: Path | None,
    geolevel: str | None,
    level: str,
    skip_unknown: bool,
    selected: bool,
    totals: Path | None,
    state: str | None,
    posterior: bool,
    std_dev: bool,
    as_json: bool,
) -> None:
    """Estimate true counts, with variances and intervals, in official areas or in a set of blocks.

    OUT is an output folder; NMF a published noisy measurement file, of the Census Bureau's layout (a folder
    with State.parquet, County.parquet and so on) or the folder release/measurements/PRODUCT. Several files of
    that layout are one set of measurements of one census: redistricting and DHC, persons and units. Nothing
    confidential is read. An interval covers the noise, and nothing else.

    Example: opendas interval out --query votingage --blocks district.csv
    """
    import opendas

    exact = _exact_question(blocks, geolevel, level)
    if std_dev and as_json:
        raise click.UsageError("give either --std-dev or --json.")
    if posterior and (len(paths) > 1 or selected or totals is not None or state is not None):
        raise click.UsageError(
            "--posterior goes with one release, and without --selected, --totals, --state."
        )
    with Progress() as shown:
        noisy = opendas.NoisyFile(
            paths[0], state=state, others=paths[1:], totals=totals, progress=_if_long(shown)
        )
        if posterior:
            release = opendas.Release(paths[0])
            table = release.credible(
                query, geolevel=geolevel, blocks=blocks, level=exact, skip_unknown=skip_unknown
            )
        elif geolevel is not None:
            table = noisy.intervals(query, geolevel=geolevel, level=exact, selected=selected)
        else:
            table = noisy.interval(
                query, blocks=blocks, level=exact, skip_unknown=skip_unknown, selected=selected
            )
    rows = [_whole_ends(row) for row in table.to_arrow().to_pylist()]
    if as_json:
        emit_json({"level": float(exact), "rows": rows})
        return
    if std_dev:
        click.echo("\n".join(_estimate_lines(rows, noisy.labels(query))))
        return
    click.echo(text_table([_interval_row(row) for row in rows], _INTERVAL_COLUMNS))
    kind, means = ("credible intervals for", CREDIBLE) if posterior else ("intervals for", COVER)
    message(
        f"{float(100 * exact):.10g} % {kind} the true count. {means}"
        + (
            f" On average at most {float(100 * (1 - exact)):.10g} % of those shown miss it."
            if selected
            else ""
        )
    )


def _if_long(shown: Progress) -> Callable[[str, int, int], None]:
    """Return what reports progress from the third second on: most files are read before."""
    started = time.monotonic()

    def report(stage: str, done: int, total: int) -> None:
        if time.monotonic() - started > _SHORT_SECONDS:
            shown(stage, done, total)

    return report


def _estimate_lines(rows: list[dict[str, Any]], labels: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a file of estimates as the Bureau publishes them; unknown ones are empty fields."""
    yield "geocode|query|estimate|std_dev|query_description"
    for row in rows:
        known = row["estimate"] is not None
        numbers = (repr(row["estimate"]), repr(row["variance"] ** 0.5)) if known else ("", "")
        yield "|".join((row["geocode"], row["cell"], *numbers, labels[row["cell"]]))


def _whole_ends(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with whole ends as integers, without a count where none is published."""
    for name in ("lower", "upper", "count"):
        value = row[name]
        if value is not None and value == int(value):
            row[name] = int(value)
    if row["count"] is None:
        del row["count"]
    row["unbounded"] = row["upper"] is None or row["lower"] is None
    return row


def _interval_row(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row.get(name) for name in _INTERVAL_COLUMNS}
    shown["sd"] = None if row["variance"] is None else round(row["variance"] ** 0.5, 2)
    if row["estimate"] is not None:
        shown["estimate"] = f"{row['estimate']:.1f}"
    return shown


@click.command("nmf")
@click.argument("path", metavar="NMF", type=MEASURED)
@click.option("--state", metavar="STATE", help="Of an NMF of all states, look at this one.")
@json_option
def nmf_command(path: Path, state: str | None, as_json: bool) -> None:
    """Say what is in a noisy measurement file, what is missing, and what can be asked of it.

    NMF is a folder with State.parquet, County.parquet and so on, as the Census Bureau publishes them, or the
    folder release/measurements/PRODUCT. No noisy answer is read. Exit code 1 if variances contradict a
    budget.

    Example: opendas nmf census-2020-pl94-nmf/US_Person_PL_PROD --state RI
    """
    import opendas

    with Progress() as shown:
        found = opendas.describe_measurements(path, state, _if_long(shown))
    if as_json:
        emit_json(found)
    else:
        for line in _summary_lines(found):
            click.echo(line)
    if found["contradictions"]:
        click.get_current_context().exit(1)


def _summary_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a summary in words."""
    layout = "the Census Bureau's layout" if found["layout"] == "census-bureau" else "the layout of OpenDAS"
    states = f", states {', '.join(found['states'])}" if found["states"] else ""
    yield f"Noisy measurements of {found['product']} in {layout}{states}."
    if found["rho"] is not None:
        known = f", the budget of {' and '.join(found['budget_of'])}" if found["budget_of"] else ""
        yield f"Rho on the way from the top to a leaf: {found['rho']:.6g}{known}."
    yield ""
    rows = [
        {
            "geolevel": level["geolevel"],
            "geounits": level["geounits"],
            "query": query["query"],
            "rows": query["rows"],
            "asked": query["geounits"],
            "variance": None if query["variance"] is None else float(f"{query['variance']:.4g}"),
        }
        for level in found["levels"]
        for query in level["queries"]
    ]
    yield text_table(rows)
    yield ""
    exact = {level["geolevel"]: level["exact"] for level in found["levels"] if level["exact"]}
    yield "Exact:" if exact else "Nothing is exact in it."
    for geolevel, names in exact.items():
        yield f"  {geolevel}: {', '.join(names)}"
    yield "Missing:" if found["missing"] else "Nothing is missing."
    for missing in found["missing"]:
        yield f"  {missing}"
    for unlike in found["unlike_parts"]:
        yield f"Unlike columns: {unlike}."
    for contradiction in found["contradictions"]:
        yield f"CONTRADICTION: {contradiction}."
    attributes = ", ".join(f"{name} ({levels})" for name, levels in found["attributes"].items())
    yield f"Tables to ask: {', '.join(found['tables']) or 'none'}."
    yield f"Query groups: any product of {attributes} and of recodes {', '.join(found['recodes']) or 'none'}."


@click.command("export")
@out_argument
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["nmf", "ppmf", "pl94", "long"]),
    required=True,
    help="nmf: noisy measurements in the Census Bureau's public layout; ppmf: microdata, a CSV a state; "
    "pl94: the legacy file of a state; long: noisy measurements as tables without lists.",
)
@click.option("--product", help="One product. Default: all that have the format.")
@click.option("--state", metavar="STATE", help="With long, of an NMF of all states: this one.")
@click.option("--to", type=FOLDER, required=True, help="Folder.")
def export_command(out: Path, file_format: str, product: str | None, state: str | None, to: Path) -> None:
    """Write a release as other programs expect it.

    With --format long OUT may be a noisy measurement file in the Census Bureau's layout, too.

    Example: opendas export out --format nmf --to published
    """
    import opendas

    left_out: tuple[str, ...] = ()
    if file_format == "long":
        paths, left_out = opendas.export_tidy(out, to, product=product, state=state)
    elif state is not None:
        raise click.UsageError("--state goes with --format long.")
    elif file_format == "pl94":
        if product is not None:
            raise click.UsageError("--format pl94 is made of persons and units; leave out --product.")
        paths = opendas.tabulate(opendas.Release(out), ["P1"], format="pl94", to=to)
    else:
        export = opendas.export_measurements if file_format == "nmf" else opendas.export_microdata
        paths = export(out, to, product=product)
    echo_paths(paths)
    if left_out:
        message(f"Left out, with too many cells for a table: {', '.join(left_out)}.")
