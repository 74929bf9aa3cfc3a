"""``run.with_`` and ``od.experiment``: a tidy frame of errors, from simulations in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.mini import to_dense, write_mini

import opendas as od
from opendas.errors import BudgetError, ConfigError, EstimationError, PrivacyError
from opendas.runs.context.account import check_choice
from opendas.runs.simulated.experiment import METRICS
from opendas.runs.simulated.simulation import Simulation
from opendas.topdown.family import TopDown

KEYS = ["rho", "plan", "estimator", "seed", "geolevel", "query", "metric"]
DETAILED = {
    "queries": {"*": {"detailed": "1"}},
    "geolevels": {"region": "1/4", "town": "1/4", "block": "1/2"},
}


class Thrifty:
    """An estimator that knows no arithmetic: it says of every cell that it holds three records."""

    name = "thrifty"

    def fit(self, data):
        return np.full(data.usable.shape, 3.0)


class Same(TopDown):
    name = "same"


class Wrong:
    name = "wrong"

    def __init__(self, answer):
        self.answer = answer

    def fit(self, data):
        return self.answer(data.usable.shape)


class Meddling:
    """Tries to change what it is given."""

    name = "meddling"

    def fit(self, data):
        data.answers[0].values[:] = 0
        return np.zeros(data.usable.shape)


@pytest.fixture
def run(tmp_path: Path) -> od.Run:
    return od.load(write_mini(tmp_path / "data"))


def test_one_row_for_each_thing_that_is_asked(
    run: od.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    found = od.experiment(
        run,
        rhos=["1/2", 8],
        seeds=3,
        estimators=["topdown", "informed", Thrifty()],
        plans={"run": None, "detailed only": DETAILED},
        workers=1,
    )
    assert list(tmp_path.joinpath("work").iterdir()) == []
    levels, queries = ["region", "town", "block"], list(run.product.query_names)
    assert len(found) == 2 * 2 * 3 * 3 * len(levels) * len(queries) * len(METRICS)
    assert not found.duplicated(KEYS).any()
    assert list(found["rho_exact"].unique()) == ["1/2", "8"]
    assert set(found["estimator"]) == {"topdown", "informed", "thrifty"}
    assert found["confidential"].all()
    mean = found[found.metric.eq("mean_abs_error") & found["query"].eq("detailed")]
    by = mean.groupby(["estimator", "rho"])["value"].mean()
    assert by["topdown", 8.0] < 0.7 * by["topdown", 0.5]
    assert by["topdown", 8.0] < by["thrifty", 8.0]
    total = found[found.geolevel.eq("region") & found["query"].eq("total")]
    assert (total["value"] == 0).all()  # an invariant, which no estimator can break


def test_it_agrees_with_arithmetic_on_dense_arrays(run: od.Run) -> None:
    found = od.experiment(run, seeds=[5], workers=1).set_index(["geolevel", "query", "metric"])["value"]
    data = run.read()
    truth = to_dense(data.histogram)
    estimate = to_dense(
        Simulation.of(run.on_frame(data.frame), data.histogram).estimate(5, "experiment/mini")
    )
    for level in ("region", "town", "block"):
        codes = data.frame.grouping(level).of_leaf
        sums = np.zeros((codes.max() + 1, truth.shape[1]), dtype=np.int64)
        np.add.at(sums, codes, estimate - truth)
        for query in run.product.query_names:
            rows = run.product.workload.group(query).row_of_cell
            errors = np.zeros((len(sums), rows.max() + 1), dtype=np.int64)
            np.add.at(errors.T, rows, sums.T)
            assert found[level, query, "mean_abs_error"] == pytest.approx(np.abs(errors).sum() / len(errors))
            root = np.sqrt(np.mean(errors.astype(float) ** 2))
            assert found[level, query, "root_mean_squared_error"] == pytest.approx(root)
            lowest = np.quantile(errors, 0.025, method="inverted_cdf")
            assert found[level, query, "q0.025"] == lowest


def test_two_processes_and_one_give_the_same_frame(run: od.Run) -> None:
    given = {"rhos": [1, 2], "seeds": 2, "estimators": ["topdown", Thrifty()]}
    pd.testing.assert_frame_equal(
        od.experiment(run, workers=1, **given), od.experiment(run, workers=2, **given)
    )


def test_seeds_may_be_numbers_of_numpy(run: od.Run, tmp_path: Path) -> None:
    plain = od.experiment(run, seeds=2, workers=1)
    for seeds in (np.arange(2), np.int64(2)):
        pd.testing.assert_frame_equal(
            od.experiment(run, seeds=seeds, workers=1, state=tmp_path / f"{np.ndim(seeds)}.jsonl"), plain
        )


def test_an_estimator_of_ones_own_is_ours_where_it_does_the_same(run: od.Run) -> None:
    found = od.experiment(run, seeds=2, estimators=["topdown", Same()], workers=1)
    values = {name: rows["value"].to_list() for name, rows in found.groupby("estimator", sort=False)}
    assert values["topdown"] == values["same"]


def test_a_stopped_experiment_goes_on(run: od.Run, tmp_path: Path) -> None:
    whole = od.experiment(run, rhos=[1, 2], seeds=3, workers=1)
    state = tmp_path / "state.jsonl"

    def stop(stage: str, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        od.experiment(run, rhos=[1, 2], seeds=3, workers=1, state=state, progress=stop)
    assert state.stat().st_mode & 0o777 == 0o600
    state.write_text(state.read_text() + '{"run": "torn')  # as a crash may leave it
    told: list[int] = []
    again = od.experiment(
        run, rhos=[1, 2], seeds=3, workers=1, state=state, progress=lambda _, done, total: told.append(done)
    )
    assert told == [5, 6]
    pd.testing.assert_frame_equal(again, whole)
    more = od.experiment(run, rhos=[2], seeds=4, workers=1, state=state)
    assert set(more["seed"]) == {0, 1, 2, 3}
    with pytest.raises(ConfigError, match="something else"):
        od.experiment(run, rhos=[1], seeds=1, state=state, entities=True)
    state.write_text("no state\n")
    with pytest.raises(ConfigError, match="not a file of finished runs"):
        od.experiment(run, rhos=[1], seeds=1, state=state)


def test_own_estimators_are_simulated_again(run: od.Run, tmp_path: Path) -> None:
    """A state knows a name, and not what a class of that name does."""
    state = tmp_path / "state.jsonl"
    first = od.experiment(run, seeds=1, estimators=[Thrifty()], workers=1, state=state)
    other = dataclasses.make_dataclass("Other", [], namespace={"name": "thrifty", "fit": TopDown.fit})()
    second = od.experiment(run, seeds=1, estimators=[other], workers=1, state=state)
    assert first["value"].to_list() != second["value"].to_list()


@pytest.mark.parametrize(
    "answer",
    [
        lambda shape: np.zeros((1, 1)),
        lambda shape: np.full(shape, np.nan),
        lambda shape: np.full(shape, 1j),
        lambda shape: [["text"] * shape[1]] * shape[0],
        lambda shape: None,
    ],
)
def test_an_answer_that_is_none_names_estimator_and_family(run: od.Run, answer) -> None:
    with pytest.raises(EstimationError, match="estimator wrong answers"):
        od.experiment(run, seeds=1, estimators=[Wrong(answer)], workers=1)


def test_huge_and_negative_answers_are_rounded_into_the_constraints(run: od.Run) -> None:
    for value in (1e300, -1e300):
        answer = Wrong(lambda shape, value=value: np.full(shape, value))
        found = od.experiment(run, seeds=1, estimators=[answer], workers=1)
        held = found[found.geolevel.eq("region") & found["query"].eq("total")]
        assert (held["value"] == 0).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"plans": [None, DETAILED]}, "shares need a name"),
        ({"plans": "us2020-persons"}, r"plans: give a list, \['us2020-persons'\]"),
        ({"rhos": "1/2"}, "losses: give a list"),
        ({"estimators": "topdown"}, "estimators: give a list"),
        ({"estimators": [Thrifty]}, r"Thrifty is a class. Give an object: Thrifty\(\)"),
        ({"seeds": 0}, "seeds: give 1 or more"),
    ],
)
def test_what_would_be_misunderstood_is_refused(run: od.Run, given: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        od.experiment(run, workers=1, **{"seeds": 1, **given})


def test_an_estimator_cannot_change_what_was_measured(run: od.Run) -> None:
    with pytest.raises(ValueError, match="read-only"):
        od.experiment(run, seeds=1, estimators=[Meddling()], workers=1)


def test_with_is_what_the_run_file_would_say(tmp_path: Path) -> None:
    path = write_mini(tmp_path / "a")
    run = od.load(path)
    other = path.with_name("other.toml")
    text = path.read_text()
    loss = next(line for line in text.splitlines() if line.startswith("rho"))
    other.write_text(
        text.replace(loss, 'rho = "7/3"').replace("[run]\n", '[run]\nestimator = "informed"\n', 1)
    )
    written, changed = od.load(other), run.with_(rho="7/3", estimator="informed")
    assert changed.plan.digest() == written.plan.digest()
    assert changed.estimation_digest() == written.estimation_digest() != run.estimation_digest()
    again = changed.with_(plan=DETAILED)
    assert again.resolved.estimator == "informed"
    assert again.budget.total == changed.budget.total
    assert dict(again.budget.query_shares("block")) == {"detailed": 1}
    assert run.budget.total != changed.budget.total  # the run itself is as it was


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"rho": 0.5}, ConfigError, "binary floating-point"),
        ({"epsilon": "1"}, BudgetError, "epsilon"),
        ({"estimator": "guess"}, ConfigError, "posterior; found 'guess'"),
        ({"estimator": "block-by-block"}, ConfigError, "drop_invariants"),
        ({"estimator": object()}, ConfigError, "estimator"),
        ({"plan": {"rho": "1", "milp": True}}, ConfigError, "milp"),
        ({"plan": {"geolevels": {"region": "1/2"}, "queries": DETAILED["queries"]}}, BudgetError, "share"),
    ],
)
def test_what_no_run_file_could_say_is_refused(run: od.Run, change, error, said: str) -> None:
    with pytest.raises(error, match=said):
        run.with_(**change)


def test_a_release_is_not_changed(run: od.Run, tmp_path: Path) -> None:
    from opendas.files.release_folder import ReleasedProduct
    from opendas.runs.context.run import released_run

    release = od.release(run, tmp_path / "out", seed=1)
    with pytest.raises(ConfigError, match="load its run file"):
        released_run(ReleasedProduct(release.folder, "mini")).with_(rho=1)
    with pytest.raises(ConfigError, match="no release"):
        od.release(run.with_(estimator=Thrifty()), tmp_path / "other", seed=1)


def test_experiments_are_entered_into_the_book_and_count_as_choosing(run: od.Run, tmp_path: Path) -> None:
    book = tmp_path / "data.book"
    od.create_ledger(book, "record", rho=20)
    od.experiment(run, seeds=1, workers=1, ledger=book)
    assert [act["act"] for act in od.ledger(book)["acts"]] == ["experiment"]
    found = od.experiment(run, seeds=1, workers=1, source="synthetic: tests/support/mini.py")
    assert not found["confidential"].any()
    assert [act["act"] for act in od.ledger(book)["acts"]] == ["experiment"] * 2  # the book knows the data
    release = od.release(run, tmp_path / "out", ledger=book)
    with pytest.raises(PrivacyError, match="not published"):
        check_choice(release.path, allowed=False)


def test_what_cannot_be_varied(run: od.Run) -> None:
    with pytest.raises(ConfigError, match="twice"):
        od.experiment(run, rhos=[1, "2/2"], seeds=1)
    with pytest.raises(ConfigError, match="give rhos"):
        od.experiment(run, epsilons=[1], seeds=1)


# Curves -----------------------------------------------------------------------------------------------------

VARIED = ["plan", "estimator", "epsilon_exact", "seed", "value"]


def frame_of(*rows: tuple[object, ...]) -> pd.DataFrame:
    given = {"geolevel": "block", "query": "total", "metric": "mean_abs_error", "geounits": 24}
    return pd.DataFrame(rows, columns=VARIED).assign(**given, confidential=True)


def test_curves_are_means_over_seeds_by_rising_loss() -> None:
    found = od.curves(
        frame_of(
            ("run", "topdown", "10", 0, 1.0),
            ("run", "topdown", "10", 1, 4.0),
            ("run", "topdown", "10", 2, 4.0),
            ("even", "informed", "1/3", 0, 7.0),
            ("run", "topdown", "2", 0, 8.0),
            ("run", "topdown", "2", 1, 9.0),
        )
    )
    assert list(found) == [
        *("plan", "estimator", "geolevel", "query", "metric", "epsilon_exact", "loss"),
        *("geounits", "seeds", "mean", "standard_error", "confidential"),
    ]
    assert found["plan"].tolist() == ["run", "run", "even"]
    assert found["epsilon_exact"].tolist() == ["2", "10", "1/3"]
    assert found["loss"].tolist() == [2.0, 10.0, 1 / 3]
    assert found["geounits"].tolist() == [24] * 3
    assert found["seeds"].tolist() == [2, 3, 1]
    assert found["mean"].tolist() == [8.5, 3.0, 7.0]
    assert found["standard_error"].tolist()[:2] == [0.5, 1.0]  # sqrt(3) / sqrt(3)
    assert np.isnan(found["standard_error"][2])
    assert found["confidential"].all()


def test_curves_of_an_experiment(run: od.Run) -> None:
    errors = od.experiment(
        run, rhos=[2, "1/2"], seeds=2, workers=1, source="synthetic: tests/support/mini.py"
    )
    found = od.curves(errors)
    assert len(found) == len(errors) / 2
    assert found["rho_exact"].tolist() == ["1/2", "2"] * (len(found) // 2)
    assert found["geolevel"].unique().tolist() == errors["geolevel"].unique().tolist()
    assert not found["confidential"].any()
    assert found.attrs == errors.attrs


@pytest.mark.parametrize(
    ("errors", "rule"),
    [
        (frame_of(("run", "topdown", "1", 0, 1.0)).drop(columns=["seed", "value"]), "no seed, value. Give"),
        (
            pd.DataFrame({"plan": []}),
            "no estimator, geolevel, query, metric, rho_exact or epsilon_exact, seed",
        ),
        ([1], "no plan, estimator"),
        (frame_of(*[("run", "topdown", "1", 0, 1.0)] * 2), "twice"),
    ],
)
def test_curves_are_of_the_frame_of_one_experiment(errors: object, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        od.curves(errors)
