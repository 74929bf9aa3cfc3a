"""What keeping promises costs a run: processor seconds of its parts, beside those of the whole run.

    OMP_NUM_THREADS=1 python benchmarks/trust.py rhode-island PATH/ri2010.pl.zip
    OMP_NUM_THREADS=1 python benchmarks/trust.py scale --blocks 25000 250000
    ... --before CHECKOUT    also whole runs of another version, in turn with those of this one

Counted are: the protection map and its check, losses over what the map leaves possible and within official
areas, the account of the data set, the destruction of the key, folders entered by descriptor, what the pages
say of all this, and loading the modules that there are for nothing else. What stood before in a simpler form
(losses without a map, files written whole) is counted in full, so the figures are upper limits. Each run is a
process of its own with one worker; times are those of the thread that does the part, so that other processes
of a busy machine disturb share and whole alike.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import machinery
from pathlib import Path
from typing import Any

from whole_runs import RUN_FILE

PARTS = {
    "protection map": (
        "opendas.measurement.protection:ProtectionMap.of",
        "opendas.measurement.protection:ProtectionMap.check",
        "opendas.runs.context.facts:protection_of",
    ),
    "losses": ("opendas.runs.context.facts:attribute_losses", "opendas.runs.context.facts:within_losses"),
    "official areas": ("opendas.runs.context.facts:official_losses",),
    "account, key": (
        "opendas.runs.act:Act.find_account",
        "opendas.runs.context.facts:account_facts",
        "opendas.runs.context.workspace:Workspace.destroy_key",
    ),
    "folders": (
        "opendas.custody.folders:Folder.enter",
        "opendas.custody.folders:Folder.new",
        "opendas.custody.folders:_judged",
        "opendas.custody.folders:_names",
    ),
    "pages": (
        "opendas.report.pdf:_protection",
        "opendas.report.pdf:_official",
        "opendas.report.html:views.official_head",
        "opendas.report.html:views.official_rows",
        "opendas.report.html:views.official_sentences",
    ),
}
"""Functions as their callers look them up."""

LOADED = re.compile(
    r"opendas\.(measurement\.(protect\w+|replacements|official)|custody\.(books|book_terms|folders|account)"
    r"|runs\.account|schema\.provenance|report\.signature)"
)
"""Modules that a run would not load without these parts."""

spent: Counter[str] = Counter()
busy: list[str] = []


def timed(part: str, function: Any) -> Any:
    """Count the time of the outermost call of a part."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if busy:
            return function(*arguments, **named)
        busy.append(part)
        start = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[part] += time.thread_time() - start
            busy.clear()

    return call


def count_loading() -> None:
    """Count the time of :data:`LOADED`, without what they load in turn."""
    execute, inside = machinery.SourceFileLoader.exec_module, [0.0]

    def call(self: Any, module: Any) -> None:
        inside.append(0.0)
        start = time.thread_time()
        try:
            execute(self, module)
        finally:
            own = time.thread_time() - start
            if LOADED.fullmatch(module.__name__):
                spent["loading"] += own - inside[-1]
            inside.pop()
            inside[-1] += own

    machinery.SourceFileLoader.exec_module = call  # type: ignore[method-assign]


def one_run(run_file: str, out: str) -> None:
    """Run in this process, and print the seconds of its parts and of all of it."""
    count_loading()
    from opendas.cli.main import main

    for part, functions in PARTS.items():
        for place in functions:
            module, _, path = place.partition(":")
            *owners, name = path.split(".")
            owner = functools.reduce(getattr, owners, importlib.import_module(module))
            found = owner.__dict__[name]
            is_class = isinstance(found, classmethod)
            made = timed(part, found.__func__ if is_class else found)
            setattr(owner, name, classmethod(made) if is_class else made)
    sys.argv[1:] = ["run", run_file, "--out", out, "--workers", "1"]
    try:
        main()  # as the command does, which sets the process up
    except SystemExit as end:
        if end.code:
            raise
    print("\n" + json.dumps({**spent, "whole": time.process_time()}))


def seconds(run_file: Path, source: Path | None = None) -> dict[str, float]:
    """Run in a process of its own: the parts of a run, or the whole of it with another version."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = ["-m", "opendas", "run", str(run_file), "--out", f"{scratch}/out", "--workers", "1"]
        inside = [__file__, "one", str(run_file), "--out", f"{scratch}/out"]
        # An installed package has its bytecode; compiling it in every process would count its lines.
        environment = {**os.environ, "OPENDAS_BOOKS": f"{scratch}/books", "PYTHONDONTWRITEBYTECODE": ""}
        if source is not None:
            environment["PYTHONPATH"] = str(source / "src")
        before = sum(os.times()[2:4])
        told = subprocess.run(
            [sys.executable, *(inside if source is None else plain)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        process = sum(os.times()[2:4]) - before
    parts = json.loads(told.stdout.splitlines()[-1]) if source is None else {}
    return {**parts, "process": process}


def compare(name: str, run_file: Path, count: int, before: Path | None) -> None:
    """Print a row: medians of the parts, their share of the whole, and the other version's process."""
    ours, theirs = [], []
    for number in range(-1, count):
        found = seconds(run_file)
        other = None if before is None else seconds(run_file, before)
        if number >= 0:
            ours.append(found)
            theirs += [other] if other else []
    parts = {part: statistics.median(run.get(part, 0.0) for run in ours) for part in ("loading", *PARTS)}
    whole = statistics.median(run["process"] for run in ours)
    share = statistics.median(sum(run.get(part, 0.0) for part in parts) / run["process"] for run in ours)
    told = ", ".join(f"{part} {1e3 * value:.0f}" for part, value in parts.items())
    print(f"{name}: {whole:.2f} s of processor time, {share:.2%} of it for trust (ms: {told})", flush=True)
    if theirs:
        other = statistics.median(run["process"] for run in theirs)
        print(f"  with {before}: {other:.2f} s", flush=True)


def made(blocks: int, scratch: Path) -> Path:
    """Write a synthetic state."""
    from opendas.demo import write_demo

    return Path(write_demo(scratch, blocks)[0])


def main() -> None:
    """Run the benchmark asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rhode-island", "scale", "one"])
    parser.add_argument("path", nargs="?", type=Path, help="official 2010 zip of Rhode Island; a run file")
    parser.add_argument("--blocks", nargs="+", type=int, default=[25_000, 250_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--before", type=Path, help="a checkout of another version")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.what == "one":
        one_run(str(given.path), given.out)
        return
    with tempfile.TemporaryDirectory() as scratch:
        if given.what == "rhode-island":
            run_file = Path(scratch) / "run.toml"
            text = RUN_FILE.format(layout="persons", path=given.path.resolve(), estimator="topdown")
            run_file.write_text(text)
            compare("Rhode Island 2010, persons", run_file, given.runs, given.before)
        else:
            for blocks in given.blocks:
                run_file = made(blocks, Path(scratch) / str(blocks))
                compare(f"synthetic state, {blocks:,} blocks, persons", run_file, given.runs, given.before)


if __name__ == "__main__":
    main()
