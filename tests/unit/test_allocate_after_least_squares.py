"""A run's budget by the variances of least squares: from Python and from the command line."""

from __future__ import annotations

import json
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
from support.mini import write_mini

import opendas as od
from opendas.cli.main import main
from opendas.errors import ConfigError
from opendas.gls.expected_error import ExpectedError

CAPTURE = pytest.CaptureFixture[str]


def call(capsys: CAPTURE, *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    said = capsys.readouterr()
    return end.value.code or 0, said.out, said.err


def objective(run: od.Run, weights: dict[str, float] | None = None) -> float:
    """Sum of the variances of all answers of the measured query groups."""
    expected = ExpectedError.build(run.plan)
    return sum(
        (weights or {}).get(level, 1.0) * float(expected.geounits(level, query).sum())
        for level in run.plan.spine.names
        for query in ("total", "kind * minor", "detailed")
    )


def test_the_allocation_is_better_than_the_run_file_and_a_run_takes_it(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    run = od.load(path)
    found = od.allocate_run(run, after_least_squares=True)
    found.write(path, tmp_path / "allocated.toml")
    better = od.load(tmp_path / "allocated.toml")
    assert better.plan.budget.total == run.plan.budget.total
    answer = found.to_dict()
    assert answer["objective"] == pytest.approx(objective(better), rel=1e-5)
    assert answer["objective"] < objective(run)
    assert answer["objective"] < answer["uniform"]["objective"]
    assert answer["gap"] < 1e-6
    assert od.plan(better).to_dict()["source"] == answer["source"]
    assert "no count was used" in answer["source"]
    fixed = [row for row in answer["levels"] if row["invariant"]]
    assert [(row["geolevel"], row["query"], row["share"]) for row in fixed] == [("region", "total", 0.0)]


def test_weights_multiply_sums_over_answers(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    found = od.allocate_run(od.load(path), weights={"town": 40.0}, total="3/2", after_least_squares=True)
    found.write(path, tmp_path / "allocated.toml")
    better = od.load(tmp_path / "allocated.toml")
    assert better.plan.budget.total == Fraction(3, 2)
    assert found.to_dict()["objective"] == pytest.approx(objective(better, {"town": 40.0}), rel=1e-5)


def test_the_command_prints_a_budget(tmp_path: Path, capsys: CAPTURE) -> None:
    path = str(write_mini(tmp_path))
    code, out, err = call(capsys, "allocate", path, "--after-least-squares")
    assert code == 0
    assert "even shares have" in err
    assert sum(map(Fraction, tomllib.loads(out)["budget"]["geolevels"].values())) == 1
    code, out, _ = call(capsys, "allocate", path, "--after-least-squares", "--json", "--weights", "block=2")
    assert json.loads(out)["gap"] < 1e-6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"run": 'mechanism = "discrete-laplace"\nneighbours = "bounded"', "loss": 'epsilon = "2"'},
            "not convex",
        ),
        ({"run": 'estimator = "block-by-block"\ndrop_invariants = ["total"]'}, "block-by-block"),
    ],
)
def test_runs_that_have_no_such_allocation(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        od.allocate_run(od.load(write_mini(tmp_path, **changes)), after_least_squares=True)


def test_a_spine_with_bypassing_is_refused(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    path.write_text(path.read_text().replace("[geography]", '[geography]\nspine = [{ step = "bypass" }]'))
    with pytest.raises(ConfigError, match="bypasses parents"):
        od.allocate_run(od.load(path), after_least_squares=True)


def test_options_that_do_not_go_together(tmp_path: Path, capsys: CAPTURE) -> None:
    path = str(write_mini(tmp_path))
    for more in (("--mse", "10"), ("--source", "x"), ("--prior", path), ("--stand-in", path)):
        code, _, err = call(capsys, "allocate", path, "--after-least-squares", *more)
        assert code == 2
        assert "uses no counts" in err
    counts = tmp_path / "counts.json"
    counts.write_text('{"levels": [{"name": "a", "nodes": 3}]}')
    code, _, err = call(
        capsys, "allocate", str(counts), "--mechanism", "laplace", "--total", "1", "--after-least-squares"
    )
    assert code == 2
    with pytest.raises(ConfigError, match="only total and weights"):
        od.allocate_run(od.load(path), mse=10, after_least_squares=True)


@pytest.mark.parametrize("total", ["1e1000", "1e-1000"])
def test_a_total_beyond_all_use_is_refused(tmp_path: Path, capsys: CAPTURE, total: str) -> None:
    path = str(write_mini(tmp_path))
    for options in ((), ("--after-least-squares",)):
        code, out, err = call(capsys, "allocate", path, "--total", total, *options)
        assert (code, out) == (2, "")
        assert "from 1e-12 to 1e+15" in err
