"""R reads what is written for it: replicate weights with ``survey``, and the long table. Needs both."""

from __future__ import annotations

import csv
import math
import re
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from support.pl94_zip import some_blocks, write_zip

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "margins.md"
RUNS = 12


def run_r(script: str, folder: Path) -> None:
    """Run a script in a folder; an error of R is one of the test."""
    done = subprocess.run(
        ["Rscript", "--vanilla", "-e", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> od.Release:
    """Two counties of a small state whose code begins with 0, with replicates; skips the test without R."""
    if shutil.which("Rscript") is None:
        pytest.skip("needs Rscript, which is not on this machine")
    if subprocess.run(["Rscript", "-e", "library(survey)"], capture_output=True, check=False).returncode:
        pytest.skip("needs R's package survey")
    folder = tmp_path_factory.mktemp("r")
    path = write_zip(folder / "ca2020.pl.zip", some_blocks("06"), 2020)
    (folder / "run.toml").write_text(
        f'[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2020"\npath = "{path}"\n'
        '[budget]\npreset = "pr2020-persons"\nrho = "1/2"\n'
    )
    made = od.release(od.load(folder / "run.toml"), folder / "out", seed=1)
    od.replicates(made, runs=RUNS, workers=1)
    return made


def lines_of_the_page(number: int) -> str:
    """Return a block of R on the page of margins: its lines as they stand there."""
    blocks = re.findall(r"(?:^    .*\n|^\n)+", PAGE.read_text().split("## In R")[1], re.MULTILINE)
    return [dedent(block) for block in blocks if "<-" in block][number]


def root_mean_square(row: dict[str, float]) -> float:
    """Return what R calls the standard error: bias and spread of the replicates together."""
    return math.sqrt(row["bias"] ** 2 + row["standard_error"] ** 2 * (RUNS - 1) / RUNS)


def share_of_hispanic(counts: pa.Table) -> dict[str, object]:
    hispanic, others = (counts.column(name).to_numpy() for name in ("hispanic", "not_hispanic"))
    return {"county": counts.column("geocode"), "share": hispanic / (hispanic + others)}


def test_survey_finds_the_errors_that_margins_are_made_of(release: od.Release, tmp_path: Path) -> None:
    weights = ["margin", str(release.path), "--query", "hispanic * cenrace", "--geolevel", "tract"]
    assert guarded(cli, [*weights, "--weights", str(tmp_path / "counts.csv")]) == 0
    totals = "totals <- svyby(~hispanic, ~geocode, design, svytotal)"
    write = "; ".join(f'write.csv({name}, "{name}.csv", row.names = FALSE)' for name in ("shares", "totals"))
    run_r(f"{lines_of_the_page(0)}\n{totals}\n{write}", tmp_path)

    found = {}
    for name in ("shares", "totals"):
        with (tmp_path / f"{name}.csv").open() as file:
            found[name] = {code: [float(cell) for cell in rest] for code, *rest in list(csv.reader(file))[1:]}
    ours = release.margin("hispanic", geolevel="county", of=share_of_hispanic).to_arrow().to_pylist()
    assert {row["geocode"] for row in ours} == set(found["shares"]) == {"06001", "06003"}
    for row in ours:
        _, share, _, error = found["shares"][row["geocode"]]
        assert share == pytest.approx(row["count"])
        assert error == pytest.approx(root_mean_square(row)) != 0
    counts = release.margin("hispanic", geolevel="tract").to_arrow().to_pylist()
    for row in counts:
        at = ("hispanic", "not_hispanic").index(row["cell"])
        here = found["totals"].get(row["geocode"])
        if here is None:  # 0 in every replicate, too: there is no row of it
            assert row["count"] == row["margin"] == 0
            continue
        assert here[at] == row["count"]
        assert here[2 + at] == pytest.approx(root_mean_square(row)) != 0
    assert set(found["totals"]) <= {row["geocode"] for row in counts}


def test_the_long_table_becomes_a_frame_as_tidycensus_gives_it(release: od.Release, tmp_path: Path) -> None:
    long = ["tabulate", str(release.path), "--tables", "P1", "--geolevel", "county,tract", "--long"]
    assert guarded(cli, [*long, "--format", "csv", "--to", str(tmp_path)]) == 0
    check = "stopifnot(is.character(frame$GEOID), is.numeric(frame$estimate), is.numeric(frame$moe))"
    run_r(f'{lines_of_the_page(1)}\n{check}\nwrite.csv(frame, "frame.csv", row.names = FALSE)', tmp_path)
    with (tmp_path / "frame.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["GEOID", "NAME", "variable", "estimate", "moe"]
    table = release.table(["P1"], geolevel=["county", "tract"], long=True).to_arrow().to_pylist()
    assert [
        (row["GEOID"], row["NAME"], row["variable"], int(row["estimate"]), int(row["moe"])) for row in rows
    ] == [(row["geocode"], row["name"], row["variable"], row["value"], row["margin"]) for row in table]
    assert all(row["GEOID"].startswith("06") for row in rows)
