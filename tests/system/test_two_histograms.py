"""A product with a companion: one run, two histograms, one release; and what is refused."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.mini import to_dense
from support.two_histograms import write_two_histograms

import opendas
from opendas.cli.main import main
from opendas.files.release_folder import ReleaseFolder
from opendas.files.replicate_files import ReplicateFile
from opendas.runs import prepare
from opendas.runs import release as runs

FIRST, SECOND = "small-units", "small-households"
LEVELS = ("region", "town", "block")


def command(*words: object) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all that it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0), printed.getvalue()


def released(out: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of units (leaves, 4) and of households (leaves, 12)."""
    folder = ReleaseFolder(out)
    return to_dense(folder[FIRST].estimate), to_dense(folder[SECOND].estimate)


def on_frame(world: Path) -> np.ndarray:
    """Return the public counts of homes and dormitories, (2, leaves)."""
    return np.loadtxt(world / "frame.csv", delimiter=",", skiprows=1, dtype=np.int64)[:, 1:].T


def certified(out: Path) -> dict[str, Any]:
    """Return the certificate."""
    return json.loads((out / "release/certificate.json").read_bytes())


def files_of(out: Path) -> dict[str, bytes]:
    """Return every file under ``release/``."""
    folder = out / "release"
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair run once, tied to nothing."""
    folder = tmp_path_factory.mktemp("pair")
    write_two_histograms(folder)
    code, text = command("run", folder / "run.toml", "--out", folder / "out", "--seed", 1)
    assert code == 0, text
    assert text.index(f"{FIRST}: ") < text.index(f"{SECOND}: ")
    return folder


def test_both_agree_in_every_leaf_and_pass_every_check(world: Path) -> None:
    units, households = released(world / "out")
    by_tenure = households.reshape(-1, 2, 6).sum(axis=2)
    assert np.array_equal(by_tenure, units[:, :2])
    homes, dormitories = on_frame(world)
    assert np.array_equal(units[:, :3].sum(axis=1), homes)
    assert np.array_equal(units[:, 3], dormitories)
    assert not households.reshape(-1, 2, 3, 2)[:, :, 2, 1].any()
    code, text = command("verify", world / "out", "--allow-seeded", "--rederive")
    assert code == 0, text
    assert f"{SECOND}: estimated again" in text


def test_replicates_of_both_agree_too(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(world / "out", out)
    code, text = command("replicates", out, "--runs", 8, "--workers", 1)
    assert code == 0, text
    folder = ReleaseFolder(out)
    changed = 0
    for number in range(1, 9):
        units, households = (
            to_dense(
                ReplicateFile(out / f"release/replicates/{name}.parquet").differences(
                    number, folder[name].frame, folder[name].estimate.size
                )
            )
            for name in (FIRST, SECOND)
        )
        assert np.array_equal(households.reshape(-1, 2, 6).sum(axis=2), units[:, :2])
        assert not units.sum(axis=1).any()  # homes and dormitories are public
        changed += int((units != 0).sum())
    assert changed > 0
    code, text = command("verify", out, "--allow-seeded", "--rederive", "--workers", 1)
    assert code == 0, text
    assert f"{SECOND}: replicates drawn again" in text
    assert "not drawn again" not in text


def test_the_number_of_households_is_no_part_of_a_forecast(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours share the number of units, and not that of households: it is confidential."""
    told: dict[str, int | None] = {}
    genuine = prepare.forecast_run

    def noting(plan: Any, *more: Any, records: int | None, **named: Any) -> Any:
        told[plan.product.name] = records
        return genuine(plan, *more, records=records, **named)

    monkeypatch.setattr(prepare, "forecast_run", noting)
    code, text = command("run", world / "run.toml", "--out", tmp_path / "out", "--seed", 1)
    assert code == 0, text
    assert told[FIRST] is not None
    assert told[SECOND] is None


def test_the_budget_is_shared_out_exactly_and_the_totals_add_it_up(world: Path) -> None:
    certificate = certified(world / "out")
    first, second = certificate["runs"]
    assert (first["product"], second["product"]) == (FIRST, SECOND)
    assert (first["rho"], second["rho"]) == ("1", "2")
    assert set(first["budget"]["queries"]["block"]) == {"detailed"}
    assert set(second["budget"]["queries"]["block"]) == {"tenure * size", "detailed"}
    run = opendas.load(world / "run.toml")
    assert run.companion is not None
    for level in LEVELS:
        whole = Fraction(3) * Fraction(run.budget.geolevels[level])
        parts = (run.companion.budget, run.budget)
        assert sum(part.total * part.geolevels[level] for part in parts) == whole


def test_a_run_with_a_secret_key_has_one_sum_for_one_unit(world: Path, tmp_path: Path) -> None:
    opendas.release(opendas.load(world / "run.toml"), tmp_path / "out")
    totals = {(each["change"], each["neighbours"]): each for each in certified(tmp_path / "out")["totals"]}
    one = totals["one housing unit or group quarters", "bounded"]
    assert (one["rho"], one["runs"], one["uncovered"]) == ("3", 2, 0)
    # a person can change two units in any way: four times the loss of one
    person = totals["one person with the unit changes it induces", "bounded"]
    assert (person["rho"], person["runs"]) == ("12", 2)
    assert not [key for key in totals if key[1] == "unbounded"]
    assert not list((tmp_path / "out/confidential/keys").glob("*"))
    code, text = command("verify", tmp_path / "out")
    assert code == 0, text


def test_the_same_release_in_one_go_and_measured_first(world: Path) -> None:
    out = world / "steps"
    for words in (("measure", "--seed", 1), ("estimate",)):
        code, text = command(words[0], world / "run.toml", "--out", out, *words[1:])
        assert code == 0, text
        if words[0] == "measure":
            assert not (out / f"release/measurements/{SECOND}/tie.parquet").exists()
            code, text = command("verify", out, "--allow-seeded")
            assert code == 0, text
    code, text = command("verify", out, "--allow-seeded", "--rederive")
    assert code == 0, text
    at_once, in_steps = files_of(world / "out"), files_of(out)
    assert at_once.keys() == in_steps.keys()
    assert [name for name in at_once if at_once[name] != in_steps[name]] == []


def test_spark_makes_the_same_release(world: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    # the driver of Spark lives in a process of its own
    words = ("run", world / "run.toml", "--out", tmp_path / "out", "--seed", 1, "--engine", "spark")
    done = subprocess.run(
        [sys.executable, "-m", "opendas", *map(str, words), "--workers", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    local, spark = files_of(world / "out"), files_of(tmp_path / "out")
    assert local.keys() == spark.keys()
    dated = {"certificate.json", "certificate.pdf", "report.html"}  # the day of their issue
    assert {name for name in local if local[name] != spark[name]} <= dated


class Death(Exception):
    """The process ended here."""


@pytest.mark.parametrize("step", range(8))
def test_a_run_that_died_anywhere_is_finished_with_the_same_bytes(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Death before each of the steps of both acts: planning, charging, estimating, writing."""
    calls = 0
    names = ("charge_run", "_measured", "_estimate", "_write")

    def dying(real: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step + 1:
                raise Death
            return real(*args, **kwargs)

        return counted

    for name in names:
        monkeypatch.setattr(runs, name, dying(getattr(runs, name)))
    run, out = opendas.load(world / "run.toml"), tmp_path / "out"
    with pytest.raises(Death):
        opendas.release(run, out, seed=1)
    assert calls == step + 1
    assert (out / f"state/{FIRST}/run.json").exists() == (step > 0)
    assert (out / f"state/{SECOND}/run.json").exists() == (step > 4)
    calls = 100
    opendas.release(run, out, seed=1, resume=True)
    assert files_of(out) == files_of(world / "out")
    acts = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    assert len([act for act in acts if act.get("entry", {}).get("product") or act.get("product")]) >= 2


def test_what_is_wrong_with_households_is_found_before_the_companion_is_charged(
    world: Path, tmp_path: Path
) -> None:
    text = (world / "records.csv").read_text()
    row = next(line for line in text.splitlines() if line.endswith("old"))
    for name, bad in (("wrong", row.replace("old", "ancient")), ("half", row.removesuffix("old"))):
        folder = tmp_path / name
        shutil.copytree(world, folder, ignore=shutil.ignore_patterns("out", "steps"))
        (folder / "records.csv").write_text(text.replace(row, bad, 1))
        code, said = command("run", folder / "run.toml", "--out", folder / "new", "--seed", 1)
        assert code == 3, said
        assert "records.csv" in said
        assert "age" in said
        assert "ancient" not in said
        assert not (folder / "new").exists()


def test_a_run_is_not_repeated(world: Path) -> None:
    before = files_of(world / "out")
    code, text = command("run", world / "run.toml", "--out", world / "out", "--seed", 1)
    assert code == 2
    assert f"holds a run of {FIRST} already" in " ".join(text.split())
    code, text = command("run", world / "run.toml", "--out", world / "out", "--seed", 1, "--resume")
    assert code == 0, text
    assert files_of(world / "out") == before


@pytest.mark.parametrize("place", [f"measurements/{SECOND}/tie.parquet", f"mdf/{SECOND}", f"mdf/{FIRST}"])
def test_what_no_longer_agrees_is_found(world: Path, tmp_path: Path, place: str) -> None:
    shutil.copytree(world / "out", tmp_path / "out")
    path = tmp_path / "out/release" / place
    if path.is_dir():
        path = max(path.glob("*.parquet"), key=lambda each: pq.read_table(each).num_rows)
        table = pq.read_table(path).slice(1)
    else:
        table = pq.read_table(path)
        counts = [list(row) for row in table.column("count").to_pylist()]
        next(row for row in counts if row)[0] += 1
        table = table.set_column(2, table.schema.field(2), [counts])
    pq.write_table(table, path)
    code, text = command("verify", tmp_path / "out", "--allow-seeded")
    assert code == 1
    assert f"FAILED  {SECOND}: tie" in text, text


def test_the_companion_agrees_with_an_earlier_release_and_the_frame(world: Path, tmp_path: Path) -> None:
    code, text = command("run", world / "earlier.toml", "--out", world / "earlier", "--seed", 5)
    assert code == 0, text
    tied = world / "tied.toml"
    tied.write_text((world / "run.toml").read_text() + f'[tie]\nrelease = "{world / "earlier"}"\n')
    code, text = command("run", tied, "--out", tmp_path / "out", "--seed", 1)
    assert code == 0, text
    units, households = released(tmp_path / "out")
    folder = ReleaseFolder(world / "earlier")
    occupied = to_dense(folder["occupied"].estimate)
    assert np.array_equal(units[:, 2], occupied[:, 0])
    assert np.array_equal(units[:, :2].sum(axis=1), occupied[:, 1])
    assert np.array_equal(households.sum(axis=1), occupied[:, 1])
    assert np.array_equal(units[:, 3], on_frame(world)[1])
    assert not np.array_equal(units, released(world / "out")[0])
    code, text = command("verify", tmp_path / "out", "--allow-seeded", "--rederive")
    assert code == 0, text
    first, _ = certified(tmp_path / "out")["runs"]
    assert [line for line in first["declared"] if "dormitories" in line] == [
        "tie: dormitory as dormitories of the frame"
    ]


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        (
            "units.toml",
            ('rows = { vacant = ["empty"], ', "rows = { "),
            "neither rows nor columns name 'vacant'",
        ),
        ("units.toml", ('"dormitories"', '"barracks"'), "needs the units barracks"),
        ("units.toml", ('["empty"]', '["lived-in"]'), "is named twice"),
        ("households.toml", ('product = "small-units"', 'product = "other"'), "needs a [tie] with product"),
        ("households.toml", ("renter = [", "tenant = ["), "no row 'tenant'"),
        ("units.toml", ("group quarters", "facility"), "both need the same one"),
        ("run.toml", ("[input]", 'estimator = "informed"\n[input]'), "Use estimator topdown"),
        ("run.toml", ("status =", "state ="), "'state'"),
        ("run.toml", ('status = "1/3", ', 'age = "1/3", '), "gives nothing to"),
        ("run.toml", ("[geography]", 'unit_id = "age"\nat_most = 2\n[geography]'), "one row per unit"),
    ],
)
def test_a_pair_that_does_not_fit_together_is_refused(
    world: Path, tmp_path: Path, file: str, change: tuple[str, str], expected: str
) -> None:
    folder = tmp_path / "pair"
    shutil.copytree(world, folder, ignore=shutil.ignore_patterns("out", "steps"))
    if file == "units.toml":
        code, text = command("run", folder / "earlier.toml", "--out", folder / "earlier", "--seed", 5)
        with (folder / "run.toml").open("a") as out:
            out.write('[tie]\nrelease = "earlier"\n')
    text = (folder / file).read_text()
    assert change[0] in text
    (folder / file).write_text(text.replace(*change))
    code, said = command("run", folder / "run.toml", "--out", folder / "new", "--seed", 1)
    assert code in (2, 3), said
    assert expected in " ".join(said.split()), said
    assert not (folder / "new").exists()


def test_plan_shows_both_and_their_sum(world: Path) -> None:
    code, text = command("plan", world / "run.toml", "--json")
    assert code == 0, text
    plan = json.loads(text)
    assert (plan["rho"], plan["companion"]["rho"], plan["together"]["rho"]) == ("2", "1", "3")
    assert {row["query"] for row in plan["companion"]["rows"]} == {"detailed"}
    code, text = command("plan", "--full", world / "run.toml")
    assert code == 0, text
    assert f"{FIRST} and {SECOND} together: rho 3" in text


def test_the_account_speaks_of_both_and_adds_them_up(world: Path) -> None:
    code, text = command("account", world / "run.toml", "--json")
    assert code == 0, text
    found = json.loads(text)
    assert (found["rho"], found["companion"]["rho"], found["together"]["rho"]) == ("2", "1", "3")
    assert found["together"]["epsilon"]["cks"] == opendas.account(rho=3).epsilon("cks")
    code, text = command("account", world / "run.toml")
    assert code == 0, text
    unit = "housing unit or group quarters"
    assert f"{FIRST} and {SECOND} together: rho 3 for one {unit}" in text


def test_both_are_compared_with_the_truth(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world, tmp_path / "pair")
    run, out = tmp_path / "pair/run.toml", tmp_path / "pair/out"
    code, text = command("evaluate", out, "--truth", run, "--json")
    assert code == 0, text
    answer = json.loads(text[text.index("{") :])
    queries = [{row["query"] for row in errors["rows"]} for errors in (answer, answer["companion"])]
    assert "tenure * size" in queries[0]
    assert "occupancy" in queries[1]
    truth = to_dense(opendas.load(run).companion.read().histogram)  # type: ignore[union-attr]
    error = np.abs(released(out)[0] - truth).sum() / len(truth)
    (detailed,) = (
        row for row in answer["companion"]["rows"] if (row["geolevel"], row["query"]) == ("block", "detailed")
    )
    assert detailed["mean_abs_error"] == pytest.approx(error)
    code, text = command("evaluate", out, "--truth", run)
    assert text.index(SECOND) < text.index(FIRST)


def test_commands_that_move_one_budget_refuse_two(world: Path, tmp_path: Path) -> None:
    run, targets = world / "run.toml", tmp_path / "targets.toml"
    targets.write_text("")
    code, text = command("allocate", run)
    assert (code, FIRST in text, "opendas explore" in text) == (2, True, True), text
    with pytest.raises(opendas.errors.ConfigError, match="tied to a release of small-units"):
        opendas.tune(opendas.load(run), targets, source="made data")
