"""Tables that are too sparse for their budget are told before anything is spent, with plans that do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.runs.plan import SKIPPED
from opendas.runs.simulated.sparse import FEW, MANY, first_that_does, misplaced_at_top, sparse_warning
from opendas.runs.simulated.trial import Trial

SIZES = {"age": 9, "sex": 2, "kind": 20}


def stays(folder: Path, rho: str = "1", rows: int = 400, names: Sequence[str] = tuple(SIZES)) -> Path:
    """Write a table of 12 wards and 360 cells with its files; labels are as frequent as 1/rank.

    `names`: attributes that the run counts.
    """
    rng = np.random.default_rng(5)
    drawn = [
        rng.choice(n, rows, p=(weights := 1 / np.arange(1, n + 1)) / weights.sum()) for n in SIZES.values()
    ]
    lines = ["ward,age,sex,kind"]
    lines += [f"w{n % 12:02d},a{a},s{s},k{k}" for n, (a, s, k) in enumerate(zip(*drawn, strict=True))]
    (folder / "stays.csv").write_text("\n".join(lines) + "\n")
    (folder / "wards.csv").write_text("ward\n" + "".join(f"w{n:02d}\n" for n in range(12)))
    attributes = "".join(
        f"{name} = {[f'{name[0]}{i}' for i in range(n)]}\n" for name, n in SIZES.items() if name in names
    )
    groups = [query for query in ("age", "age * sex") if set(query.split(" * ")) <= set(names)]
    shares = 'age = "1/4", detailed = "1/2"' if "age" in names else 'detailed = "3/4"'
    (folder / "p.toml").write_text(
        '[product]\nname = "stays"\nprotected_unit = "stay"\nprovenance = "public"\n[attributes]\n'
        f"{attributes}[queries]\ngroups = {groups}\n"
    )
    (folder / "run.toml").write_text(
        '[run]\nproduct = "p.toml"\n[input]\nreader = "records"\npath = "stays.csv"\ngeocode = "ward"\n'
        '[geography]\nlevels = [{ name = "all", prefix = 0 }, { name = "ward" }]\nframe = "wards.csv"\n'
        f'provenance = "public"\n[budget]\nrho = "{rho}"\ngeolevels = {{ all = "1/2", ward = "1/2" }}\n'
        f'[budget.queries]\n"*" = {{ total = "1/4", {shares} }}\n'
    )
    return folder / "run.toml"


def test_a_sparse_table_is_told_and_what_is_proposed_is_usable(tmp_path: Path) -> None:
    run = od.load(stays(tmp_path, "1/5"))
    said = sparse_warning(run, 400)
    assert said is not None
    assert said.startswith("about 400 records in 360 cells at rho 1/5: ")
    share = int(re.search(r": (\d+) % of them", said)[1]) / 100  # type: ignore[index]
    assert share > MANY
    proposed = re.search(r"rho (\S+); attributes (.*) \(", said)
    assert proposed is not None
    loss, names = proposed.groups()
    (tmp_path / "more").mkdir()
    assert misplaced_at_top(od.load(stays(tmp_path / "more", loss)), 400) <= FEW  # type: ignore[operator]
    chosen = names.split(", ")
    assert set(chosen) < set(SIZES)
    (tmp_path / "fewer").mkdir()
    fewer = stays(tmp_path / "fewer", "1/5", names=chosen)
    assert misplaced_at_top(od.load(fewer), 400) <= FEW  # type: ignore[operator]
    od.release(od.load(fewer), out=tmp_path / "out", seed=1, workers=1)


def test_plans_are_tried_by_halves_and_the_first_that_does_is_named() -> None:
    """Of every number of plans, from each of which on the others do too; and only what was tried is named."""
    for number in range(18):
        for first in range(number + 1):
            tried: list[int] = []

            def does(plan: int, first: int = first, tried: list[int] = tried) -> bool:
                tried.append(plan)
                return plan >= first

            found = first_that_does(range(number), does)
            assert found == (first if first < number else None)
            assert len(tried) <= number.bit_length()
            assert found is None or found in tried


def test_of_the_top_alone_a_trial_says_what_the_whole_run_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = od.load(stays(tmp_path, "1/5"))
    for estimator in ("topdown", "informed", "block-by-block"):
        trial = Trial.of(run.with_(estimator=estimator), 400, at_top=True)
        assert trial is not None
        assert trial.misplaced_at_top() == pytest.approx(trial.tried(draws=1).usual[0].misplaced)
    monkeypatch.setattr("opendas.runs.plan.ONE_DRAW", 100)
    monkeypatch.setattr("opendas.runs.simulated.trial.ONE_DRAW", 100)
    found = od.plan(run, records=400).to_dict()
    assert found["other_not_tried"] == SKIPPED
    trial = Trial.of(run, 400)
    assert trial is not None
    assert found["usual"] == [asdict(row) for row in trial.tried(draws=1).usual]


def test_of_a_part_upper_levels_are_told_as_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial on ten wards of twelve has fewer records in all than the run: a larger share is misplaced."""
    arguments = ["plan", str(stays(tmp_path)), "--records", "400"]
    whole = CliRunner().invoke(cli, arguments).stdout
    monkeypatch.setattr("opendas.runs.plan.Trial", SimpleNamespace(of=partial(Trial.of, most=10)))
    part = CliRunner().invoke(cli, arguments).stdout
    assert "at 33 per ward: at most " in part
    assert [out.partition("misplaced:")[2].count("at most") for out in (whole, part)] == [0, 1]


def test_what_is_foretold_is_what_happens(tmp_path: Path) -> None:
    """Records that are spread as the trial takes them to be: the share it says is that of a release."""
    path = stays(tmp_path, "1/10")
    trial = Trial.of(od.load(path), 400)
    assert trial is not None
    foretold, tried = trial.tried(draws=6).usual[0].misplaced, trial.tried(draws=6).rows
    shares, margins = [], []
    for seed in range(4):
        release = od.release(od.load(path), out=tmp_path / str(seed), seed=seed, workers=1)
        rows = od.evaluate(release, truth=od.load(path), save=False).rows
        (error,) = [r["mean_abs_error"] for r in rows if (r["geolevel"], r["query"]) == ("all", "detailed")]
        shares.append(error / (2 * 400))
        margins += [r["mean_abs_error"] for r in rows if (r["geolevel"], r["query"]) == ("ward", "age * sex")]
    assert foretold == pytest.approx(np.mean(shares), abs=0.12)
    # Of a margin that is not measured, too: the noise of its 18 cells alone would say several times as much.
    (margin,) = [row.mean_abs_error for row in tried if (row.geolevel, row.query) == ("ward", "age * sex")]
    assert margin == pytest.approx(np.mean(margins), rel=0.25)
    gains = od.plan(od.load(path)).gains
    (alone,) = [row.topdown for row in gains if (row.geolevel, row.query) == ("ward", "age * sex")]
    assert 18 * alone * (2 / np.pi) ** 0.5 > 5 * margin


def test_what_is_dense_enough_is_not_spoken_of(tmp_path: Path) -> None:
    run = od.load(stays(tmp_path, "10"))
    assert sparse_warning(run, 40_000) is None
    assert sparse_warning(run, 4_000_000) is None  # without a trial


def test_plan_and_run_say_it_before_anything_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stays(tmp_path, "1/50")
    result = CliRunner().invoke(cli, ["plan", str(path), "--records", "400"], obj={})
    assert result.exit_code == 0, result.output
    assert "warning: about 400 records in 360 cells" in result.stderr
    assert len(result.stdout.strip().split("\n")) <= 6
    assert guarded(cli, ["run", str(path), "--out", str(tmp_path / "out"), "--seed", "1"]) == 0
    said = capsys.readouterr().err
    assert said.index("about 400 records in 360 cells") < said.index("estimating")


def test_the_number_of_records_is_told_to_two_digits(tmp_path: Path) -> None:
    said = sparse_warning(od.load(stays(tmp_path, "1/50")), 412)
    assert said is not None
    assert "412" not in said


def test_usual_errors_are_exact_where_totals_are(tmp_path: Path) -> None:
    path = stays(tmp_path)
    product = tmp_path / "p.toml"
    product.write_text(product.read_text() + '[[invariants]]\nquery = "total"\ngeolevel = "ward"\n')
    trial = Trial.of(od.load(path))
    assert trial is not None
    usual = trial.tried(draws=1).usual
    assert [(row.geolevel, row.within) for row in usual] == [("all", 0), ("ward", 0)]
    assert all(row.misplaced > 0 for row in usual)
    result = CliRunner().invoke(cli, ["plan", str(path)], obj={})
    assert "off by at most 0 in ward, 0 in all" in result.stdout
    assert "in a wrong cell, at 45 per ward (assumed; --records states their number): " in result.stdout
    stated = str(7 * usual[-1].geounits)
    result = CliRunner().invoke(cli, ["plan", str(path), "--records", stated], obj={})
    assert "in a wrong cell, at 7 per ward: " in result.stdout
