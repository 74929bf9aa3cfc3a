"""``opendas tune --same-loss`` on a miniature census: a better plan of exactly the same loss, for a run."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.mini import mini_frame, write_mini

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import EstimationError
from opendas.measurement.loss import within_losses
from opendas.privacy.zcdp import epsilon_cks
from opendas.tuning.same_loss import KEPT, Comparison, Judged, Space, front

QUICK = ["--runs", "2", "--confirm", "3", "--rounds", "1", "--steps", "1"]
FREE = ["--may-worsen", "region", "--may-worsen", "town"]


def write(folder: Path) -> Path:
    return write_mini(folder, frame=mini_frame(2, 3, 6), run='estimator = "informed"', loss='rho = "1/2"')


def call(run: Path, *options: str):
    return CliRunner().invoke(cli, ["tune", str(run), "--same-loss", *QUICK, *options], obj={})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A plan with its files, in the folder of a run, and the answer."""
    run = write(tmp_path_factory.mktemp("tune"))
    options = [*FREE, "--memory", str(run.parent / "runs.jsonl"), "--to", str(run.parent / "plan.toml")]
    found = call(run, *options, "--json")
    assert found.exit_code == 0, (found.stderr, found.exception)
    return run, json.loads(found.stdout)


def test_the_plan_has_exactly_the_loss_of_the_run_and_lowers_its_errors(made: tuple[Path, dict]) -> None:
    run, answer = made
    before, after = od.load(run).budget, od.load(run.parent / "plan.toml").budget
    assert after.total == before.total == Fraction(1, 2) == Fraction(answer["rho"])
    assert sum(after.geolevels.values()) == 1
    assert all(sum(shares.values()) == 1 for shares in after.queries.values())
    assert after.queries != before.queries
    assert answer["improved"] < 0
    aims = [row for row in answer["rows"] if row["geolevel"] == "block"]
    assert answer["improved"] == pytest.approx(sum(r["after"] / r["before"] - 1 for r in aims) / len(aims))
    assert not any(row["verdict"] == "worse" for row in aims)
    assert all(Path(run.parent / name).is_file() for name in ("plan.csv", "plan.svg"))


def test_its_files_hold_every_plan_both_fronts_and_the_price(made: tuple[Path, dict]) -> None:
    run, answer = made
    lines = list(csv.DictReader(io.StringIO((run.parent / "plan.csv").read_text())))
    assert [line["plan"] for line in lines] == [plan["plan"] for plan in answer["plans"]]
    assert sum(line["chosen"] == "True" for line in lines) == 1
    for line in lines:
        assert sum(Fraction(part.rpartition("=")[2]) for part in line["shares"].split()) == 1
    allowed = [plan for plan in answer["plans"] if not plan["worse"]]
    for name, plans, cost in (
        ("front_of_errors", answer["plans"], "worst"),
        ("front_of_loss", allowed, "epsilon_within"),
    ):
        points = [(plan["improved"], plan[cost]) for plan in plans]
        assert [plan[name] for plan in plans] == [i in front(points) for i in range(len(points))]
    plan = od.load(run.parent / "plan.toml")
    loss = within_losses(plan.plan, plan.protection)["town"]
    (chosen,) = (each for each in answer["plans"] if each["chosen"])
    assert chosen["epsilon_within"] == pytest.approx(epsilon_cks(loss, plan.budget.delta))
    picture = ElementTree.parse(run.parent / "plan.svg").getroot()
    circles = [each for each in picture.iter() if each.tag.endswith("circle")]
    assert len(circles) == 2 + 2 * len(lines) + 2  # the key, both panels, and a ring in each


def test_the_same_again_from_its_memory_and_without(made: tuple[Path, dict]) -> None:
    """Plans are functions of the run file, the wishes and the seeds; what is finished is not run again."""
    run, first = made
    again = call(run, *FREE, "--memory", str(run.parent / "runs.jsonl"), "--json")
    assert json.loads(again.stdout) == first | {"runs_made": 0}
    assert first["runs_made"] > 0


def test_the_plan_is_that_of_a_run(made: tuple[Path, dict]) -> None:
    run, _ = made
    release = od.release(od.load(run.parent / "plan.toml"), run.parent / "out", seed=1)
    assert all(check.ok for check in release.verify(allow_seeded=True))
    text = (run.parent / "plan.toml").read_text()
    assert 'source = "opendas tune --same-loss, by runs on synthetic counts' in text
    assert 'path = "counts.csv"' in text, "the input is still that of the run"


def test_trades_are_named_and_stand_in_data_can_judge(tmp_path: Path) -> None:
    run = write(tmp_path)
    found = call(run, *FREE, "--source", "a synthetic census", "--against", "topdown")
    assert found.exit_code == 0, (found.stderr, found.exception)
    *_, last = found.stdout.splitlines()
    worse = [line for line in found.stdout.splitlines() if line.endswith("  worse")]
    traded = [line for line in found.stdout.splitlines() if line.startswith("traded: ")]
    assert len(worse) == len(traded)
    assert f" {len(worse)} worse, " in found.stdout
    assert last.startswith("traded: ") or not worse


WRONG = {
    "no plan": (["--improve", "town/total"], 5, "--may-worsen"),
    "geolevel": (["--improve", "twon"], 2, "did you mean town?"),
    "query": (["--may-worsen", "town/sex"], 2, "sex"),
    "area": (["--area", "place"], 2, "no areas of 'place'"),
    "targets": (["--tolerance", "0.5"], 2, "--tolerance goes with --targets"),
    "runs": (["--runs", "1"], 2, "at least 2"),
}


def test_a_plan_beside_which_no_other_is_expected_to_do_better_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_the_start(comparison: Comparison, space: Space, **_: int) -> list[Judged]:
        return [comparison.judge("start", KEPT, space.start)]

    monkeypatch.setattr("opendas.tuning.improve.search", only_the_start)
    with pytest.raises(EstimationError, match="no plan of the same loss is expected to do better"):
        od.improve(od.load(write(tmp_path)), runs=2, confirm=2)


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path)
    for name, (options, code, text) in WRONG.items():
        arguments = ["tune", str(run), "--same-loss", *QUICK, *options]
        assert guarded(cli, arguments) == code, name
        assert text in capsys.readouterr().err, name
    assert guarded(cli, ["tune", str(run)]) == 2
    assert "--same-loss" in capsys.readouterr().err
    (tmp_path / "plan.svg").touch()
    assert guarded(cli, ["tune", str(run), "--same-loss", "--to", str(tmp_path / "plan.toml")]) == 2
    assert "plan.svg exists already" in capsys.readouterr().err
