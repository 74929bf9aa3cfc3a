"""``opendas swap``: what it keeps and moves, against a slow twin; and that it says it protects nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pl94_zip import some_blocks, write_zip

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.comparison.swapping import Households, Swap, _at_risk, swap_households
from opendas.demo.census import make_census
from opendas.errors import ConfigError

CELLS = 8


def made_people(seed: int, many: int = 60) -> tuple[Households, np.ndarray, dict[str, np.ndarray]]:
    """Return made households over 12 leaves in 6 tracts of 2 counties, and some persons in none."""
    rng = np.random.default_rng(seed)
    home = np.sort(rng.integers(0, 12, many))
    sizes = rng.integers(1, 4, many)
    household = np.concatenate([np.repeat(np.arange(many), sizes), np.full(5, -1)])
    leaf = np.concatenate([np.repeat(home, sizes), rng.integers(0, 12, 5)])
    cell = rng.integers(0, CELLS, len(leaf))
    leaves = np.arange(12)
    places = {"within": leaves // 6, "across": leaves // 2, "risk": leaves}
    return Households(leaf, cell, household, home), cell % 2, places


def composition(people: Households, kind: np.ndarray) -> list[tuple[int, int]]:
    pairs = list(zip(people.household.tolist(), kind.tolist(), strict=True))
    return [(pairs.count((number, 0)), pairs.count((number, 1))) for number in range(len(people.home))]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_leaves_keep_their_households_by_composition_and_partners_are_apart(seed: int, rate: float) -> None:
    people, kind, places = made_people(seed)
    rng = np.random.default_rng(seed)
    home, found = swap_households(people, kind, places, CELLS, Swap(rate=rate), rng)
    kinds = composition(people, kind)
    before = Counter(zip(people.home.tolist(), kinds, strict=True))
    assert Counter(zip(home.tolist(), kinds, strict=True)) == before
    moved = np.flatnonzero(home != people.home)
    assert len(moved) == found.moved <= rate * len(home)
    assert found.unmatched == int(rate * len(home) / 2) - found.moved // 2
    for name, same in (("within", True), ("across", False)):
        alike = places[name][home[moved]] == places[name][people.home[moved]]
        assert bool((alike == same).all())
    risky = _at_risk(people, places["risk"], CELLS)
    assert (found.at_risk, found.moved_at_risk) == (int(risky.sum()), int(risky[moved].sum()))


def test_who_is_unlike_the_neighbours_is_who_a_slow_count_finds() -> None:
    people, _, places = made_people(3)
    found = _at_risk(people, places["risk"], CELLS)
    members = [set(people.cell[people.household == number].tolist()) for number in range(len(people.home))]
    for number, own in enumerate(members):
        neighbours = (k for k in range(len(members)) if k != number and people.home[k] == people.home[number])
        others = set().union(*(members[k] for k in neighbours))
        assert found[number] == bool(own - others)


def test_targeting_moves_those_who_stand_out() -> None:
    people, kind, places = made_people(5, many=70)
    shares = []
    for targeting in (1.0, 100.0):
        runs = [
            swap_households(
                people, kind, places, CELLS, Swap(rate=0.2, targeting=targeting), np.random.default_rng(seed)
            )[1]
            for seed in range(20)
        ]
        shares.append(sum(run.moved_at_risk for run in runs) / sum(run.moved for run in runs))
    assert shares[1] > 1.5 * shares[0]


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swap")
    blocks = some_blocks("44")
    blocks[1].people = {(1, 0, 0): 4, (1, 1, 5): 5, (0, 0, 7): 2, (1, 1, 62): 1}
    blocks[5].people, blocks[5].occupied = {(1, 0, 0): 20, (0, 1, 3): 9}, 12
    make_census(write_zip(folder / "fb2020.pl.zip", blocks, 2020), folder / "made")
    return folder


def test_swapped_counts_are_compared_and_say_that_they_protect_nothing(
    census: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, to = census / "made" / "run-pl94-persons.toml", tmp_path / "swapped"
    arguments = ["swap", str(run), "--to", str(to), "--rate", "1", "--across", "block", "--within", "state"]
    assert guarded(cli, [*arguments, "--seed", "7", "--json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["moved"] > 0
    assert "no formal guarantee" in captured.err
    assert to.stat().st_mode & 0o777 == 0o700
    said = json.loads((to / "swapping.json").read_text())
    assert said["stamps"] == ["NO FORMAL GUARANTEE"]
    assert said["parameters"]["rate"] == 1
    assert "seed" not in json.dumps(said)
    comparison = od.compare(to, census / "fb2020.pl.zip", tables=["P2", "P4"])
    rows = comparison.table.to_arrow().to_pylist()
    assert {row["difference"] for row in rows if row["variable"] in ("P0020001", "P0040001")} == {0}
    assert any(row["difference"] for row in rows)
    assert comparison.summary["sources"][0]["stamps"] == ["NO FORMAL GUARANTEE"]
    assert comparison.summary["sources"][0]["kind"] == "swapped microdata"
    _, page = od.write_comparison(comparison, tmp_path / "changed")
    assert "<strong>NO FORMAL GUARANTEE</strong>" in page.read_text()
    with pytest.raises(ConfigError, match="no finished release"):
        od.Release(to)


def test_a_seed_repeats_and_a_rate_of_nothing_moves_nobody(census: Path, tmp_path: Path) -> None:
    run = od.load(census / "made" / "run-pl94-persons.toml")
    for name, seed, rate in (("a", 3, 1.0), ("b", 3, 1.0), ("c", 3, 0.0)):
        od.swap(run, tmp_path / name, seed=seed, rate=rate, across="block", within="state")
    same = od.compare(tmp_path / "a", tmp_path / "b", tables=["detailed"]).table.to_arrow()
    assert {row["difference"] for row in same.to_pylist()} == {0}
    still = od.compare(tmp_path / "c", census / "fb2020.pl.zip").table.to_arrow()
    assert {row["difference"] for row in still.to_pylist()} == {0}


def test_the_reading_is_in_the_book_of_the_data(
    census: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "books"))
    run = od.load(census / "made" / "run-pl94-persons.toml")
    book = tmp_path / "account.jsonl"
    od.create_ledger(book, "person", rho=3)
    od.swap(run, tmp_path / "swapped", ledger=book)
    assert [act["act"] for act in od.ledger(book)["acts"]][-1] == "exact"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--rate", "2"], "between 0 and 1"),
        (["--targeting", "0"], "above 0"),
        (["--match", "size"], "size"),
        (["--within", "parish"], "no geolevel 'parish'"),
        (["--household", "home"], "home"),
    ],
)
def test_what_cannot_be_swapped_is_refused(
    census: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    run, to = census / "made" / "run-pl94-persons.toml", tmp_path / "swapped"
    assert guarded(cli, ["swap", str(run), "--to", str(to), *more]) in (2, 3)
    assert said in capsys.readouterr().err
    assert not to.exists()


def test_persons_in_no_household_stay(tmp_path: Path) -> None:
    leaves = {"44001000100": 2, "44003000101": 1}
    rows = [f"{leaf},18plus,0" for leaf, many in leaves.items() for _ in range(many)]
    (tmp_path / "t.csv").write_text("\n".join(["block,votingage,household", *rows]) + "\n")
    (tmp_path / "leaves.csv").write_text("\n".join(["block", *leaves]) + "\n")
    (tmp_path / "p.toml").write_text(
        '[product]\nname = "p"\nprotected_unit = "person"\nprovenance = "public"\n'
        '[attributes]\nvotingage = ["17under", "18plus"]\n[queries]\ngroups = []\n'
    )
    (tmp_path / "run.toml").write_text(
        '[run]\nproduct = "p.toml"\n[input]\nreader = "records"\npath = "t.csv"\ngeocode = "block"\n'
        '[geography]\nlevels = [{ name = "county", prefix = 5 }, { name = "tract", prefix = 10 }, '
        '{ name = "block" }]\nframe = "leaves.csv"\nprovenance = "public"\n'
        '[budget]\nrho = "1"\ngeolevels = { county = "1/3", tract = "1/3", block = "1/3" }\n'
        '[budget.queries]\n"*" = { detailed = "1" }\n'
    )
    found = od.swap(od.load(tmp_path / "run.toml"), tmp_path / "swapped", seed=1)
    assert (found.households, found.moved) == (0, 0)
    beside = od.compare(tmp_path / "swapped", tmp_path / "swapped", tables=["total"], geolevels=["block"])
    assert {row["geocode"]: row["value_1"] for row in beside.table.to_arrow().to_pylist()} == leaves


def test_only_records_with_households_are_swapped(census: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(
        '[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2020"\n'
        f'path = "{census / "fb2020.pl.zip"}"\n[budget]\npreset = "pr2020-persons"\n'
    )
    with pytest.raises(ConfigError, match="swapping reads one record a person"):
        od.swap(od.load(run), tmp_path / "swapped")
