"""``opendas tune`` on a miniature census: a plan comes out that a run takes and that meets the targets."""

from __future__ import annotations

import json
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.mini import mini_frame, mini_histogram, write_mini

import opendas as od
from opendas.cli.main import cli
from opendas.errors import ConfigError

TARGETS = """\
[[targets]]
geolevel = "town"
measure = "absolute-error"
query = "total"
within = "12"
share = "0.8"

[[targets]]
geolevel = "block"
measure = "mean-absolute-error"
query = "kind"
at_most = "5"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frame = mini_frame(2, 3, 3)
    write_mini(tmp_path / "data", frame=frame, histogram=mini_histogram(frame, mean=30.0))
    (tmp_path / "targets.toml").write_text(TARGETS)
    return tmp_path


def call(folder: Path, *options: str):
    arguments = ["tune", str(folder / "data" / "run.toml"), "--targets", str(folder / "targets.toml")]
    return CliRunner().invoke(cli, [*arguments, *options], obj={})


@pytest.mark.parametrize(
    ("method", "estimator"), [("search", "topdown"), ("search", "informed"), ("level-by-level", "topdown")]
)
def test_a_plan_that_meets_its_targets_in_independent_runs(folder: Path, method: str, estimator: str) -> None:
    run_file = folder / "data" / "run.toml"
    run_file.write_text(run_file.read_text().replace("[run]\n", f'[run]\nestimator = "{estimator}"\n'))
    (folder / "plans").mkdir()
    plan = folder / "plans" / "plan.toml"
    options = ["--runs", "2", "--confirm", "4", "--tolerance", "1", "--levels-only"]
    source = ["--source", "synthetic data"]
    result = call(folder, *source, "--method", method, *options, "--to", str(plan), "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert all(confirmation["met"] for confirmation in answer["confirmations"])
    assert answer["path"][-1]["stage"] == "confirmation"
    document = tomllib.loads(plan.read_text())
    assert document["budget"]["source"] == "synthetic data"
    assert sum(map(Fraction, document["budget"]["geolevels"].values())) == 1
    run = od.load(plan)
    assert str(run.budget.total) == answer["rho"]
    assert run.resolved.estimator == estimator
    release = od.release(run, folder / "out", seed=1)
    assert all(check.ok for check in release.verify(allow_seeded=True))


def test_the_same_noise_whatever_the_plan(folder: Path) -> None:
    """A memory from one process is taken by another: runs are functions of allocation and seed."""
    options = [
        "--source",
        "made",
        "--runs",
        "1",
        "--confirm",
        "0",
        "--tolerance",
        "1",
        "--levels-only",
        "--json",
    ]
    memory = folder / "runs.jsonl"
    first = json.loads(call(folder, *options, "--memory", str(memory)).stdout)
    again = json.loads(call(folder, *options, "--memory", str(memory)).stdout)
    alone = json.loads(call(folder, *options).stdout)
    assert (first["rho"], first["path"]) == (again["rho"], again["path"]) == (alone["rho"], alone["path"])
    assert again["runs_made"] == 0 < first["runs_made"]


WRONG = {
    "no source": (["--source", " "], 2, "which public data"),
    "no such file": (["--source", "x", "--targets", "none.toml"], 2, "no such file of targets"),
    "tolerance": (["--source", "x", "--tolerance", "0"], 2, "tolerance"),
    "too few runs": (["--source", "x", "--most-runs", "3"], 5, "--most-runs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(folder: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    from opendas.cli.failures import guarded

    options, code, text = WRONG[case]
    arguments = [
        "tune",
        str(folder / "data" / "run.toml"),
        "--targets",
        str(folder / "targets.toml"),
        *options,
    ]
    assert guarded(cli, arguments) == code
    assert text in capsys.readouterr().err


def test_targets_that_speak_of_no_area_are_refused(folder: Path) -> None:
    (folder / "targets.toml").write_text(TARGETS.split("\n\n")[0] + "\npopulation = [1000000]\n")
    result = call(folder, "--source", "synthetic data", "--to", str(folder / "plan.toml"))
    assert isinstance(result.exception, ConfigError)
    assert "no area has a population in their range" in str(result.exception)
    assert not (folder / "plan.toml").exists()
