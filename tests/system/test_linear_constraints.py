"""A release under linear constraints with coefficients, from the product file to `verify`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.attacker import rewrite

import opendas as od
from opendas.errors import ConfigError, InfeasibleFamily

SEVEN = {"name": "seven each", "query": "kind", "coefficients": {"person": 1, "household": -7}}
PRODUCT = {
    "product": {"name": "homes", "protected_unit": "record", "provenance": "code-book"},
    "attributes": {"kind": ["person", "household"], "group": ["a", "b", "c"]},
    "queries": {"groups": ["kind", "group"]},
    "constraints": [SEVEN],
}
RUN = """
[run]
product = "homes"
neighbours = "bounded"
estimator = "{estimator}"
[input]
reader = "histogram"
geocode = "place"
[geography]
levels = [{{ name = "country", prefix = 0 }}, {{ name = "region", prefix = 2 }}, {{ name = "site" }}]
provenance = "public"
[budget]
rho = "1/4"
geolevels = {{ country = "1/4", region = "1/4", site = "1/2" }}
[budget.queries]
"*" = {{ kind = "1/2", group = "1/4", detailed = "1/4" }}
"""
CODES = [f"r{i // 4}p{i:02d}" for i in range(12)]


def define(*more: dict, estimator: str = "topdown", households: int = 2, **bound: object) -> od.Run:
    """Every place is full: seven people to each household, so that noise alone breaks the constraint."""
    rows = []
    for place in CODES:
        for number, group in enumerate("abc"):
            rows.append((place, "household", group, households if number == 0 else 0))
            rows.append((place, "person", group, households * (3 if number == 0 else 2)))
    table = pl.DataFrame(rows, schema=["place", "kind", "group", "count"], orient="row")
    product = {**PRODUCT, "constraints": [{**SEVEN, **bound}, *more]}
    frame = pl.DataFrame({"place": CODES, "flats": [3] * len(CODES)})
    return od.define(RUN.format(estimator=estimator), input=table, frame=frame, product=product)


def people_and_households(release: od.Release) -> np.ndarray:
    """Return the released counts of each place, int64 (places, 2)."""
    records = pl.read_parquet(release.path / "release" / "mdf" / "homes" / "*.parquet").cast(pl.String)
    counts = {row[:2]: row[2] for row in records.group_by(records.columns[0], "kind").len().iter_rows()}
    return np.array([[counts.get((code, kind), 0) for kind in ("person", "household")] for code in CODES])


@pytest.mark.parametrize("estimator", ["topdown", "informed", "block-by-block"])
def test_a_full_census_stays_within_its_bound_and_verifies(tmp_path: Path, estimator: str) -> None:
    release = od.release(define(estimator=estimator), tmp_path / "out", measurements="full")
    counts = people_and_households(release)
    assert (counts @ np.array([1, -7]) <= 0).all()
    assert [check for check in release.verify(rederive=True) if not check.ok] == []
    declared = release.certificate["runs"][0]["declared"]
    assert any("seven each: -7 'household' +1 'person' of kind at most 0 a leaf" in one for one in declared)
    free = od.release(define(estimator=estimator, at_most=999), tmp_path / "free")
    assert (people_and_households(free) @ np.array([1, -7]) > 0).any()


def test_verify_recounts_it_from_the_microdata(tmp_path: Path) -> None:
    release = od.release(define(), tmp_path / "out")
    path = next((tmp_path / "out/release/mdf/homes").glob("*.parquet"))

    def without_households(table):
        return table.filter(pl.from_arrow(table)["kind"].to_numpy() != "household")

    rewrite(path, without_households)
    failed = [check for check in release.verify() if not check.ok]
    assert any("seven each does not hold in" in check.detail for check in failed)


def test_units_of_the_frame_say_how_much(tmp_path: Path) -> None:
    at_most_flats = {
        "name": "a household to a flat",
        "query": "kind",
        "coefficients": {"household": 1},
        "at_most": 1,
        "column": "flats",
    }
    release = od.release(define(at_most_flats), tmp_path / "out")
    counts = people_and_households(release)
    assert (counts[:, 1] <= 3).all()
    assert [check for check in release.verify() if not check.ok] == []


def test_what_no_input_keeps_is_refused_before_any_budget_is_spent(tmp_path: Path) -> None:
    more = {"name": "some household", "query": "kind", "coefficients": {"household": -1}, "at_most": -4}
    few = {"name": "few", "query": "kind", "coefficients": {"household": 1}, "at_most": 1, "column": "flats"}
    with pytest.raises(InfeasibleFamily, match="before anything is drawn") as error:
        od.release(define(more, few), tmp_path / "out")
    assert "linear constraint some household <= -4" in str(error.value)
    assert "linear constraint few <= 3" in str(error.value)
    assert not (tmp_path / "out" / "release").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"coefficients": {"people": 1}}, "no cell 'people'"),
        ({"coefficients": {"person": 0}}, "every coefficient is 0"),
        ({"coefficients": {"person": 0.5}}, "coefficients"),
        ({"query": "kinds"}, "kinds"),
        ({"column": "hu"}, "hu"),
        ({"at_least": 3}, "at_least"),
    ],
)
def test_what_it_says_where_a_constraint_is_not_one(tmp_path: Path, change: dict, said: str) -> None:
    with pytest.raises((ConfigError, od.errors.DataError), match=said):
        od.release(define(**change), tmp_path / "out")


def test_the_posterior_does_not_take_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="linear constraint seven each"):
        define(estimator="posterior")
