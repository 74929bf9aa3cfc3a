"""Joint allocation over geolevels and query groups: exact shares, weights by name, public numbers only."""

from __future__ import annotations

import json
import shutil
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opendas
from opendas.allocation import CountHistogram, Level, allocate_total, power_rule, unknown_counts
from opendas.allocation.joint import Pair, allocate_queries, pair_weights
from opendas.allocation.level_counts import LevelCounts
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import BudgetError, ConfigError, DataError, PrivacyError
from opendas.runs.allocate import count_pairs, public_pairs, with_budget

GEOLEVELS = ("state", "tract", "block")
SIZES = {"total": 1, "age": 2, "detailed": 12}
NODES = {"state": 1, "tract": 20, "block": 900}


def pairs() -> list[Pair]:
    return [
        Pair(level, query, unknown_counts(f"{level}/{query}", NODES[level] * SIZES[query]))
        for level in GEOLEVELS
        for query in SIZES
    ]


def test_shares_sum_to_exactly_one_and_follow_the_numbers_of_counts() -> None:
    found = allocate_queries(pairs(), GEOLEVELS, "discrete-gaussian", source="public", total="1/100")
    budget = found.budget
    assert sum(budget.geolevels.values()) == 1
    assert list(budget.geolevels) == list(GEOLEVELS)
    expected = power_rule([pair.level.counts.nodes for pair in pairs()], "gaussian", 1.0)
    for pair, share in zip(pairs(), expected, strict=True):
        row = budget.queries[pair.geolevel]
        assert sum(row.values()) == 1
        # At rho 0.01 the discrete Gaussian has the variance of the continuous one.
        assert float(row[pair.query] * budget.geolevels[pair.geolevel]) == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "discrete-laplace"])
@pytest.mark.parametrize("neighbours", ["bounded", "unbounded"])
def test_it_is_program_6_with_a_level_for_each_pair(mechanism: str, neighbours: str) -> None:
    rng = np.random.default_rng(5)
    known = [
        Pair(p.geolevel, p.query, Level("", CountHistogram.of(rng.poisson(3, p.level.counts.nodes))))
        for p in pairs()
    ]
    weights = tuple(rng.uniform(0.1, 2, len(known)).tolist())
    found = allocate_queries(
        known, GEOLEVELS, mechanism, source="x", total=3, weights=weights, neighbours=neighbours
    )
    levels = [Level(p.name, p.level.counts) for p in known]
    assert found.optimum.budgets == allocate_total(levels, mechanism, 3, weights, neighbours).budgets
    assert found.objective == pytest.approx(found.optimum.objective, rel=1e-10)


def test_a_target_is_met_by_the_rounded_shares() -> None:
    found = allocate_queries(pairs(), GEOLEVELS, "discrete-gaussian", source="x", mse="54321")
    assert found.objective <= 54321
    assert found.objective == pytest.approx(54321, rel=1e-5)


def test_invariants_and_geolevels_without_pairs_get_nothing() -> None:
    some = [pair for pair in pairs() if pair.geolevel != "tract"]
    some[0] = Pair("state", "total", unknown_counts("n", 1, fixed=True))
    found = allocate_queries(some, GEOLEVELS, "discrete-gaussian", source="x", total=1)
    assert found.budget.geolevels["tract"] == 0
    assert "total" not in found.budget.queries["state"]
    assert found.to_dict()["levels"][0]["invariant"] is True
    assert found.to_dict()["levels"][0]["mse"] == 0.0


def test_weights_apply_by_geolevel_query_group_and_pair() -> None:
    weights = pair_weights(pairs(), {"block": 2, "total": 3, "tract/age": 5, "*/detailed": 0})
    assert weights == (3, 1, 0, 3, 5, 0, 6, 2, 0)
    with pytest.raises(BudgetError, match="neither a geolevel nor a query group"):
        pair_weights(pairs(), {"blok": 1})
    clash = [Pair("age", "age", unknown_counts("n", 3)), Pair("age", "total", unknown_counts("n", 3))]
    with pytest.raises(BudgetError, match="write age/"):
        pair_weights(clash, {"age": 2})
    assert pair_weights(clash, {"*/age": 2}) == (2, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mechanism": "gaussian"}, "use discrete-gaussian"),
        ({"mse": 3}, "not both"),
        ({"total": None}, "not both"),
        ({"source": " "}, "say where the counts come from"),
        ({"geolevels": ("state", "tract")}, "'block' is not a geolevel"),
        ({"pairs": [*pairs(), pairs()[0]]}, "appears twice"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {
        "pairs": pairs(),
        "geolevels": GEOLEVELS,
        "mechanism": "discrete-gaussian",
        "source": "x",
        "total": 1,
        **change,
    }
    with pytest.raises(ConfigError, match=said):
        allocate_queries(given.pop("pairs"), given.pop("geolevels"), given.pop("mechanism"), **given)


# Runs.


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from opendas.demo import write_demo

    folder = tmp_path_factory.mktemp("demo")
    write_demo(folder, blocks=80)
    return folder


def test_a_run_is_allocated_by_its_public_frame(demo: Path) -> None:
    run = opendas.load(demo / "persons.toml")
    found = opendas.allocate_run(run)
    spine = run.spine
    for pair in public_pairs(run):
        geounits = len(spine.levels[spine.index(pair.geolevel)])
        assert pair.level.counts.nodes == geounits * run.product.workload.group(pair.query).size
        assert not pair.level.known
    assert "public node counts" in found.allocation.source
    assert found.allocation.budget.total == run.budget.total


def test_on_a_bypassed_spine_only_what_is_measured_counts(demo: Path) -> None:
    text = (demo / "persons.toml").read_text(encoding="utf-8")
    other = demo / "bypassed.toml"
    other.write_text(text.replace('spine = "standard"', 'spine = [{ step = "bypass" }]'), encoding="utf-8")
    run = opendas.load(other)
    measured = {}
    for level, shares in zip(run.spine.levels, run.spine.shares, strict=True):
        positive = (
            np.ones(len(level), bool) if shares is None else np.array(shares.multiples)[shares.which] > 0
        )
        measured[level.name] = int(positive.sum())
    assert measured != {level.name: len(level) for level in run.spine.levels}
    for pair in public_pairs(run):
        size = run.product.workload.group(pair.query).size
        assert pair.level.counts.nodes == max(1, measured[pair.geolevel]) * size


def test_the_records_are_not_read(demo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(demo, folder)
    first = opendas.allocate_run(opendas.load(folder / "persons.toml")).toml()
    (folder / "persons.parquet").write_bytes(b"nothing that could be read")
    assert opendas.allocate_run(opendas.load(folder / "persons.toml")).toml() == first


def test_the_answer_is_a_budget_that_plan_takes(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = demo / "allocated.toml"
    arguments = ["allocate", str(demo / "persons.toml"), "--weights", "total=10,block=2", "--to", str(to)]
    assert guarded(cli, arguments) == 0
    section = capsys.readouterr().out
    assert section in to.read_text()
    run = opendas.load(to)
    expected = opendas.allocate_run(
        opendas.load(demo / "persons.toml"), weights={"total": 10, "block": 2}
    ).allocation.budget
    assert run.budget.digest() == expected.digest()
    assert opendas.plan(run).rows
    assert "preset" not in to.read_text()


def test_an_allocated_run_carries_its_source_to_the_certificate(demo: Path, tmp_path: Path) -> None:
    to = demo / "released.toml"
    found = opendas.allocate_run(opendas.load(demo / "persons.toml"), weights={"total": 100})
    found.write(demo / "persons.toml", to)
    opendas.release(opendas.load(to), out=tmp_path / "out", seed=1, workers=1)
    certificate = (tmp_path / "out" / "release" / "certificate.json").read_text(encoding="utf-8")
    assert found.allocation.source in certificate
    assert found.allocation.source in (tmp_path / "out/release/run/pl94-persons.toml").read_text("utf-8")


def test_a_target_for_a_run(demo: Path) -> None:
    found = opendas.allocate_run(opendas.load(demo / "persons.toml"), mse=10**6)
    assert found.allocation.objective <= 10**6
    assert found.allocation.budget.total < opendas.load(demo / "persons.toml").budget.total * 100


def test_counts_of_a_stand_in_need_a_source(demo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(demo, other)
    run, stand_in = opendas.load(demo / "persons.toml"), opendas.load(other / "persons.toml")
    with pytest.raises(ConfigError, match="say where these counts come from"):
        opendas.allocate_run(run, stand_in=stand_in)
    found = opendas.allocate_run(run, stand_in=stand_in, source="a synthetic state")
    assert 'source = "a synthetic state"' in found.toml()
    assert all(pair.level.known for pair in found.allocation.pairs)
    with pytest.raises(PrivacyError, match="the input of the run itself"):
        opendas.allocate_run(run, stand_in=run, source="mine")
    with pytest.raises(ConfigError, match="no counts were given"):
        opendas.allocate_run(run, source="a synthetic state")


def test_priors_and_stand_ins_on_the_command_line(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, prior = tmp_path / "other", tmp_path / "prior.json"
    shutil.copytree(demo, other)
    prior.write_text(json.dumps({"levels": [{"name": "block/total", "values": [0, 30], "mult": [1, 2]}]}))
    file, source = str(demo / "persons.toml"), ["--source", "a synthetic state"]
    for options, code, said in (
        (["--stand-in", str(other / "persons.toml"), *source], 0, 'source = "a synthetic state"'),
        (["--prior", str(prior), *source], 0, 'source = "a synthetic state"'),
        (["--prior", str(prior)], 2, "say where these counts come from"),
        (["--prior", str(prior), "--stand-in", str(other / "persons.toml"), *source], 2, "not both"),
        (["--stand-in", file, *source], 4, "the input of the run itself"),
        (["--prior", str(tmp_path / "no.json"), *source], 2, "no such file"),
    ):
        assert guarded(cli, ["allocate", file, *options]) == code
        captured = capsys.readouterr()
        assert said in (captured.err if code else captured.out)


def test_counts_are_those_of_the_query_groups(demo: Path) -> None:
    run = opendas.load(demo / "persons.toml")
    histogram, spine = run.read().histogram.take(run.spine.leaf_order), run.spine
    for pair in count_pairs(run):
        if pair.query not in ("total", "hispanic * cenrace"):
            continue
        starts = spine.leaf_starts(spine.index(pair.geolevel))
        group = run.product.workload.group(pair.query)
        whole = histogram.aggregate(starts)
        dense = np.stack([group.answers(whole.dense(row)) for row in range(whole.rows)])
        values, mult = np.unique(dense, return_counts=True)
        np.testing.assert_array_equal(pair.level.counts.values, values)
        np.testing.assert_array_equal(pair.level.counts.mult, mult)


def test_counts_of_another_geography_count_for_as_many_nodes_as_there_are(demo: Path) -> None:
    run = opendas.load(demo / "persons.toml")
    name = public_pairs(run)[-1].name
    prior = LevelCounts((Level(name, CountHistogram(np.array([0, 7]), np.array([2, 1]))),), "elsewhere")
    found = opendas.allocate_run(run, prior=prior).allocation
    (pair,) = [pair for pair in found.pairs if pair.name == name]
    nodes = public_pairs(run)[-1].level.counts.nodes
    assert pair.level.counts.nodes == nodes
    np.testing.assert_allclose(pair.level.counts.mult, [nodes * 2 / 3, nodes / 3], atol=1)
    assert found.source == "elsewhere"
    wrong = LevelCounts((unknown_counts("block/nothing", 3),), "elsewhere")
    with pytest.raises(DataError, match="geolevel/query"):
        opendas.allocate_run(run, prior=wrong)


def test_the_answer_in_json_is_the_section_of_the_run_file(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["allocate", str(demo / "persons.toml"), "--weights", "*/hhgq=0", "--json"]
    assert guarded(cli, arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    section = tomllib.loads(answer["toml"])["budget"]
    assert Fraction(section["rho"]) == Fraction(answer["rho"])
    assert section["source"] == answer["source"]
    for name, shares in (("geolevels", answer["geolevels"]), *answer["queries"].items()):
        written = section["geolevels"] if name == "geolevels" else section["queries"][name]
        assert {key: Fraction(share) for key, share in written.items()} == {
            key: Fraction(share) for key, share in shares.items()
        }
        assert sum(map(Fraction, shares.values())) == 1
    rows = {(row["geolevel"], row["query"]): row for row in answer["levels"]}
    assert rows["block", "hhgq"]["unbounded"] is True
    assert rows["block", "hhgq"]["mse"] is None
    assert "hhgq" not in answer["queries"]["block"]
    assert guarded(cli, arguments[:-1]) == 0
    said = capsys.readouterr().err
    assert "block/hhgq gets nothing: its error is unbounded." in said
    assert "before clamping" in said


def test_only_the_budget_of_a_run_file_is_replaced() -> None:
    text = (
        '[run]\nproduct = "p"\n\n[budget]  # rho = what the law allows\nrho = "1"\n# words\n'
        '[budget.queries]\n"*" = { total = "1" }\n'
        '[passes]\nx = { "*" = [\n  ["total"],\n  ["rest"]\n] }\n'
    )
    found = with_budget(text, '[budget]\nrho = "2"\n')
    passes = '[passes]\nx = { "*" = [\n  ["total"],\n  ["rest"]\n] }\n'
    assert found == f'[run]\nproduct = "p"\n\n{passes}\n[budget]\nrho = "2"\n'


def test_options_that_do_not_go_with_a_run_are_refused(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(demo / "persons.toml")
    for options, said in (
        (["--mechanism", "laplace"], "--mechanism does not go with"),
        (["--to", file], "is the run file itself"),
        (["--to", str(tmp_path / "x.toml")], "beside it"),
        (["--total", "1", "--mse", "2"], "not both"),
        (["--weights", "1,2"], "NAME=NUMBER"),
        (["--weights", "nowhere=2"], "neither a geolevel nor a query group"),
        (["--source", "x"], "no counts were given"),
    ):
        assert guarded(cli, ["allocate", file, *options]) == 2
        assert said in capsys.readouterr().err


def test_exact_numbers_survive_the_text(demo: Path) -> None:
    found = opendas.allocate_run(opendas.load(demo / "persons.toml"), total="1/3")
    assert 'rho = "1/3"' in found.toml()
    assert found.allocation.budget.total == Fraction(1, 3)


@pytest.mark.parametrize("source", ["two\nlines", "\x1b[31m", "\udcff", "x" * 301])
def test_a_source_that_no_run_file_can_hold_is_refused(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    prior = tmp_path / "prior.json"
    prior.write_text('{"levels": [{"name": "block/total", "values": [3], "mult": [5]}]}', encoding="utf-8")
    options = ["--prior", str(prior), "--source", source]
    assert guarded(cli, ["allocate", str(demo / "persons.toml"), *options]) == 2
    assert "source: expected one line" in capsys.readouterr().err


def test_a_stand_in_of_another_product_is_refused(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--stand-in", str(demo / "units.toml"), "--source", "made"]
    assert guarded(cli, ["allocate", str(demo / "persons.toml"), *options]) == 2
    assert "pl94-units, whose attributes" in capsys.readouterr().err


def test_a_stand_in_is_known_under_another_name(demo: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(demo, target_is_directory=True)
    run = opendas.load(demo / "persons.toml")
    with pytest.raises(PrivacyError):
        opendas.allocate_run(run, stand_in=opendas.load(tmp_path / "elsewhere" / "persons.toml"), source="x")


def test_a_file_that_exists_is_not_overwritten(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = demo / "mine.toml"
    to.write_text("by hand", encoding="utf-8")
    assert guarded(cli, ["allocate", str(demo / "persons.toml"), "--to", str(to)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert to.read_text(encoding="utf-8") == "by hand"


def test_a_wrong_weight_is_named(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(cli, ["allocate", str(demo / "persons.toml"), "--weights", "block=-1"]) == 2
    assert "that of 'block' is -1" in capsys.readouterr().err
