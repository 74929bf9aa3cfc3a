"""Commands to begin with: list, doctor, demo, make-nation, make-census, fetch and explore."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import click

from opendas.cli.failures import EXIT_ENVIRONMENT
from opendas.cli.options import FOLDER, PATH, json_option, read_records_option, to_option
from opendas.cli.output import Progress, duration, emit_json, message, telling_compilation
from opendas.cli.runs import run_answer
from opendas.errors import CheckFailed, ConfigError, EnvironmentFailure

_PRODUCTS = {
    "pl94-persons": "2020 redistricting data, persons: 8 x 2 x 2 x 63 = 2,016 cells",
    "pl94-units": "2020 redistricting data, housing units: vacant or occupied",
    "dhc-persons": "2020 DHC, persons: 42 x 2 x 116 x 2 x 63 = 1,227,744 cells",
    "dhc-units": "2020 DHC, households and units: 1,578,528 cells, and dhc-units-tenvacgq beside them",
    "dhc-units-tenvacgq": "2020 DHC, its second histogram: tenure, vacancy, group quarters; 35 cells",
    "FILE.toml": "a product of your own; `opendas init table DATA.csv` writes one to start from",
}
_READERS = {
    "pl94-2010": "official 2010 P.L. 94-171 zip, as downloaded",
    "pl94-2020": "official 2020 P.L. 94-171 zip, as downloaded",
    "ppmf": "privacy-protected microdata files of the Census Bureau",
    "mdf": "microdata of the production layout, ours included",
    "cef": "person and unit records of a census, with the GRF-C",
    "records": "one record a row, CSV or Parquet, any hierarchy",
    "histogram": "counts in long form, CSV or Parquet, any hierarchy",
}
_SPINES = {
    "standard": "the official hierarchy",
    "optimized": "block groups made of blocks in the same off-spine entities; only children bypassed",
    "aian": "the same, with every level from the state down divided into AIAN areas and the rest",
    "dhc": "that of the DHC: AIAN parts, prims (places, subdivisions), tracts cut along them",
}
_ENGINES = {
    "local": "processes on this machine",
    "spark": "executors of a Spark cluster (opendas[spark], Java 17); the same release",
}
_ESTIMATORS = {
    "topdown": "the TopDown Algorithm: from the root down, families solved jointly",
    "informed": "the same, each family estimated from all that was measured below it",
    "posterior": "informed, and below it blocks by a posterior mean, given their block group",
    "block-by-block": "each leaf on its own (TopDown paper, Appendix A)",
}

_WORKLOADS = {
    "prefixes": "the first level and the rest, the first two and the rest, and so on",
    "dyadic": "halves of the levels, quarters, and so on down to ranges of two",
}
_MECHANISMS = {
    "discrete-gaussian": "discrete Gaussian noise under zCDP",
    "discrete-laplace": "discrete Laplace noise under pure differential privacy",
}


def _all_choices() -> dict[str, dict[str, str]]:
    from opendas.budget.presets import preset, preset_names
    from opendas.parts import ESTIMATORS, MECHANISMS, WORKLOADS, names_of_parts

    def with_others(own: dict[str, str], group: str) -> dict[str, str]:
        return own | dict.fromkeys(names_of_parts(group, own), "of another package")

    return {
        "products": _PRODUCTS,
        "presets": {name: preset(name).description for name in preset_names()},
        "readers": _READERS,
        "spines": _SPINES,
        "engines": _ENGINES,
        "estimators": with_others(_ESTIMATORS, ESTIMATORS),
        "mechanisms": with_others(_MECHANISMS, MECHANISMS),
        "workloads": with_others(_WORKLOADS, WORKLOADS),
    }


@click.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List products, presets, readers, spines, engines, estimators, mechanisms and workloads.

    Example: opendas list
    """
    known = _all_choices()
    if as_json:
        emit_json(known)
        return
    width = max(len(name) for entries in known.values() for name in entries)
    for kind, entries in known.items():
        click.echo(kind)
        for name, line in entries.items():
            click.echo(f"  {name.ljust(width)}  {line}")


@click.command("doctor")
@json_option
def doctor_command(as_json: bool) -> None:
    """Check cores, memory, disk, Python, packages, permissions and compiler cache. Exit code 0 or 6.

    Example: opendas doctor
    """
    from opendas.runs.context.machine import examine

    findings = examine()
    ready = all(finding.level != "problem" for finding in findings)
    if as_json:
        rows = [
            {"name": f.name, "level": f.level, "detail": f.detail, "advice": f.advice or None}
            for f in findings
        ]
        emit_json({"ready": ready, "checks": rows})
    else:
        for finding in findings:
            click.echo(f"{finding.level:<8} {finding.name}: {finding.detail}")
            if finding.advice:
                click.echo(f"{'':<8}   -> {finding.advice}")
        click.echo("This machine is ready." if ready else "This machine is not ready: see above.")
    if not ready:
        click.get_current_context().exit(EXIT_ENVIRONMENT)


_DEMO_FOLDER = "demo-out"


@click.command("demo")
@click.option(
    "--out",
    type=FOLDER,
    help=f"Folder, new or empty. Default: {_DEMO_FOLDER}, or the first free {_DEMO_FOLDER}-2, -3 ...",
)
@click.option(
    "--blocks", type=click.IntRange(min=50), default=3000, show_default=True, help="Size of the state."
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes.")
def demo_command(out: Path | None, blocks: int, workers: int | None) -> None:
    """Generate a small synthetic state, release its persons and housing units, and verify the release.

    It contains no real data.

    Example: opendas demo
    """
    import opendas
    from opendas.demo import write_demo
    from opendas.report.views import plural

    folder = _free_folder(out)
    release_folder = folder / "out"
    click.get_current_context().obj["out"] = release_folder
    started = time.monotonic()
    message(f"generating a synthetic state of {blocks:,} blocks in {folder / 'input'} ...")
    run_files = write_demo(folder / "input", blocks)
    answers = []
    for run_file in run_files:
        begun = time.monotonic()
        message(f"releasing {run_file.name} ...")
        run = opendas.load(run_file)
        with telling_compilation(), Progress() as progress:
            opendas.release(run, out=release_folder, workers=workers, progress=progress)
        answers.append(run_answer(release_folder, run.product.name, time.monotonic() - begun))
    message("verifying the release from its own files ...")
    checks = opendas.Release(release_folder).verify()
    failed = [check for check in checks if not check.ok]
    if failed:
        raise CheckFailed(f"the release does not verify: {failed[0].name}: {failed[0].detail}")
    for answer in answers:
        click.echo(
            f"{answer['product']}: {plural('record', answer['records'])} released, rho {answer['rho']}"
        )
    click.echo(f"verified: {len(checks)} checks passed; {duration(time.monotonic() - started)} in all")
    click.echo(_next_steps(folder, run_files[0]))


def _free_folder(out: Path | None) -> Path:
    if out is not None:
        if out.exists() and any(out.iterdir()):
            raise ConfigError(f"{out} is not empty; give a new folder with --out.")
        return out
    number = 1
    while True:
        folder = Path(_DEMO_FOLDER if number == 1 else f"{_DEMO_FOLDER}-{number}")
        if not folder.exists():
            return folder
        number += 1


def _next_steps(folder: Path, run_file: Path) -> str:
    out = folder / "out"
    activate = Path(sys.prefix, "bin", "activate")
    first = f"  . {activate}\n" if shutil.which("opendas") is None and activate.is_file() else ""
    return f"""
The report is {out}/release/report.html: open it in a browser.

Next, try
{first}\
  opendas tabulate {out} --tables P1,H1 --geolevel tract --format csv --to {folder}/tables
  opendas replicates {out} --runs 20       then opendas margin {out} --query P1 --geolevel tract
  opendas evaluate {out} --truth {run_file}
  opendas plan {run_file}
  opendas init table YOUR-DATA.csv          your own data (docs/own-csv.md)
  opendas init pl94 --state ri --year 2010  a real state"""


@click.command("make-nation")
@click.option("--to", "folder", type=FOLDER, required=True, help="Folder, new or empty.")
@click.option(
    "--blocks",
    type=click.IntRange(min=100),
    required=True,
    help="Size, empty blocks included; the real nation has 8,130,000.",
)
@click.option("--seed", type=click.IntRange(min=0), default=2020, show_default=True, help="Random seed.")
@click.option(
    "--states",
    type=click.IntRange(min=1),
    help="Number of states. Default: one for every thousand blocks, at most 51.",
)
@click.option(
    "--people",
    type=click.FloatRange(min=1.0, max=1000.0),
    default=41.0,
    show_default=True,
    help="Average number of people in a block.",
)
@click.option(
    "--only",
    "only",
    metavar="SS",
    multiple=True,
    help="Write this state only, one of the codes 01, 02 ...; may be given several times.",
)
def make_nation_command(
    folder: Path, blocks: int, seed: int, states: int | None, people: float, only: tuple[str, ...]
) -> None:
    """Generate a synthetic nation, county by county, with run files for persons and units.

    It contains no real data. The same numbers give the same files, state by state.

    Example: opendas make-nation --to nation --blocks 100000
    """
    from opendas.demo import write_nation

    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; give a new folder with --to.")
    started = time.monotonic()
    with Progress() as progress:
        made = write_nation(folder, blocks, seed, states, people=people, only=only or None, progress=progress)
    message(f"made in {duration(time.monotonic() - started)}")
    click.echo(
        f"{made.people:,} people and {made.housing_units:,} housing units in {made.blocks:,} blocks, "
        f"{made.leaves:,} of them with homes: {made.states} states, {made.counties:,} counties, "
        f"{made.tracts:,} tracts, {made.block_groups:,} block groups"
    )
    click.echo(f"\nNext, try\n  opendas plan {made.runs[0]}\n  opendas run {made.runs[0]} --out {folder}-out")


@click.command("make-census")
@click.argument("path", metavar="ZIP", type=PATH)
@click.option(
    "--pums",
    type=PATH,
    multiple=True,
    help="Person file of the ACS (zip, CSV or Parquet) to draw households from; may be given several times. "
    "Default: invented households.",
)
@click.option("--to", "folder", type=FOLDER, required=True, help="Folder, new or empty.")
@click.option("--seed", type=click.IntRange(min=0), default=2020, show_default=True, help="Random seed.")
def make_census_command(path: Path, pums: tuple[Path, ...], folder: Path, seed: int) -> None:
    """Generate synthetic persons and housing units, with run files for each census product.

    ZIP is a state's official redistricting file of 2010 or 2020. The people and housing units of each block
    are kept exactly. Occupied units are kept, too, except in blocks where the file has fewer people in
    households than occupied units, or such people and no occupied unit. Relationship, sex and age are
    simulated: no record describes, or estimates, a real person.

    Example: opendas make-census ri2010.pl.zip --to made-ri
    """
    from opendas.demo import make_census

    started = time.monotonic()
    made = make_census(path, folder, pums=pums, seed=seed)
    message(f"made in {duration(time.monotonic() - started)}")
    click.echo(
        f"{made.people:,} people, {made.households:,} households and {made.housing_units:,} housing units in "
        f"{made.blocks:,} blocks"
    )
    if made.adjusted:
        message(
            f"in {made.adjusted:,} blocks the number of households differs from the file's occupied units: "
            "the file has fewer people in households than occupied units there, or such people and no "
            "occupied unit"
        )
    click.echo("\nNext, try\n" + "\n".join(f"  opendas plan {run}" for run in made.runs))


@click.group("fetch")
def fetch_command() -> None:
    """Download official input files."""


@fetch_command.command("pl94")
@click.argument("state")
@click.argument("year", type=int)
@to_option
def fetch_pl94_file(state: str, year: int, to: Path) -> None:
    """Download the redistricting file of STATE (two letters) for YEAR (2010 or 2020).

    Example: opendas fetch pl94 ri 2010
    """
    from opendas.readers.pl94.fetch import fetch_pl94

    message(f"fetching the official file of {state} for {year} from the Census Bureau ...")
    click.echo(str(fetch_pl94(state, year, to)))


@click.command("explore")
@click.argument("file", metavar="[FILE]", type=PATH, required=False)
@click.option(
    "--save",
    type=PATH,
    help="File that the page may write a plan to; of a table, folder of its files (default: this one).",
)
@click.option("--port", type=click.IntRange(min=0, max=65535), default=0, help="Port. Default: any free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@read_records_option
def explore_command(
    file: Path | None, save: Path | None, port: int, no_browser: bool, read_records: bool
) -> None:
    """Change a budget in the browser, and see its privacy loss and expected error at once.

    FILE is a run file, a PHSafe config.json, or a state that the page has kept. Without it, published numbers
    of geounits are used. No confidential record is opened; where the frame comes from the records,
    --read-records opens them.

    If FILE is a CSV or Parquet table, the page reads it, asks what each column is, and writes the files of
    `opendas init table`.

    Example: opendas explore run.toml
    """
    try:
        from opendas.explore.app import serve
        from opendas.explore.session import make_session
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio", "h11"):
            raise
        raise EnvironmentFailure("opendas explore needs pip install 'opendas[explore]'.") from None
    serve(make_session(file, save, read_records=read_records), port=port, browser=not no_browser, say=message)
