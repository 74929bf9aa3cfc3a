"""Workloads beyond one partition: prefixes, trees of ranges, overlapping ranges, with weights; end to end."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.accounted_plans import accountant, release_of
from support.plugins import install, see

import opendas as od
from opendas.custody.stamps import UNPROVEN_PART
from opendas.errors import ConfigError
from opendas.parts import WORKLOADS
from opendas.runs.config.product_file import declare_product
from opendas.schema.workloads import OWN_WORKLOADS, Dyadic, Prefixes

F = Fraction
AGES = [str(age) for age in range(8)]
PRODUCT = {
    "product": {"name": "ages", "protected_unit": "person", "provenance": "code-book"},
    "attributes": {"age": AGES, "sex": ["f", "m"]},
    "workloads": {"age_prefix": {"attribute": "age", "kind": "prefixes"}},
    "queries": {"groups": ["age"]},
}
RUN = """
[run]
product = "ages"
[input]
reader = "histogram"
geocode = "place"
[geography]
levels = [{ name = "country", prefix = 0 }, { name = "region", prefix = 2 }, { name = "site" }]
provenance = "public"
[budget]
rho = "1"
geolevels = { country = "1/4", region = "1/4", site = "1/2" }
[budget.queries]
"*" = { age_prefix = "3/4", detailed = "1/4" }
"""


def define(product: dict = PRODUCT, run: str = RUN, *, places: int = 12, mean: float = 20.0) -> od.Run:
    rng = np.random.default_rng(1)
    codes = [f"r{i // 4}p{i:02d}" for i in range(places)]
    rows = [(c, age, sex, int(rng.poisson(mean))) for c in codes for age in AGES for sex in "fm"]
    table = pl.DataFrame(rows, schema=["place", "age", "sex", "count"], orient="row")
    return od.define(run, input=table, frame=pl.DataFrame({"place": codes}), product=product)


def with_workload(**section: object) -> dict:
    return {**PRODUCT, "workloads": {"age_prefix": {"attribute": "age", **section}}}


def test_prefixes_run_to_a_release_that_verifies(tmp_path: Path) -> None:
    run = define()
    assert run.product.query_names == ("total", "age", *(f"age_prefix {i}" for i in range(1, 8)), "detailed")
    assert sum(run.budget.query_shares("site").values()) == 1
    assert run.budget.query_shares("site")["age_prefix 3"] == F(3, 4) / 7
    release = od.release(run, tmp_path / "out", measurements="full")
    assert [check for check in release.verify(rederive=True) if not check.ok] == []
    answers = release.measurements("site", "age_prefix 3").to_arrow()
    assert len(answers) == 12
    intervals = release.intervals("age_prefix 3", geolevel="region").to_pandas()
    assert set(intervals["cell"]) == {"0..2", "3..7"}


def test_prefixes_measured_are_prefixes_better_known() -> None:
    """At the same loss, counts of prefixes err less than when they are sums of measured cells."""
    found = od.experiment(
        define(mean=200.0),
        rhos=["1/10"],
        seeds=8,
        plans={"prefixes": None, "cells": {"queries": {"*": {"detailed": "1"}}}},
        source="synthetic",
        workers=1,
    )
    middle = found[found["query"].eq("age_prefix 4") & found.metric.eq("mean_abs_error")]
    by = middle[middle.geolevel.eq("country")].groupby("plan")["value"].mean()
    assert by["prefixes"] < by["cells"]


@pytest.mark.parametrize("neighbours", ["bounded", "unbounded"])
@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "prefixes"},
        {"kind": "dyadic"},
        {"kind": "prefixes", "by": ["sex"]},
        {"ranges": [["0..3"], ["2..5"], ["1", "7"]], "weights": ["2", "1/2", "1"]},
    ],
)
def test_the_worst_pair_of_neighbours_costs_exactly_rho(workload: dict, neighbours: str) -> None:
    """Every pair, by an accountant that knows no formula."""
    text = RUN.replace("[run]\n", f'[run]\nneighbours = "{neighbours}"\n')
    run = define(with_workload(**workload), text, places=3)
    release = replace(release_of(run.plan), cells=run.product.schema.size)  # type: ignore[type-var]
    assert accountant.worst_rho(release, neighbours) == run.budget.total == 1


def test_what_the_kinds_measure() -> None:
    assert [rows.tolist() for rows in Prefixes().partitions(3)] == [[0, 1, 1], [0, 0, 1]]
    assert [rows.tolist() for rows in Dyadic().partitions(4)] == [[0, 0, 1, 1]]
    assert [rows.tolist() for rows in Dyadic().partitions(5)] == [[0, 0, 0, 0, 1], [0, 0, 1, 1, 2]]
    for levels in range(2, 40):
        for kind in OWN_WORKLOADS.values():
            for rows in kind.partitions(levels):
                assert len(rows) == levels
                assert sorted(set(rows.tolist())) == list(range(max(rows) + 1))
                assert (np.diff(rows) >= 0).all()  # ranges of neighbouring levels
    assert all(Prefixes().partitions(1) == [] for _ in "1")


def test_weights_share_out_exactly() -> None:
    product = with_workload(ranges=[["0..3"], ["2..5"]], weights=["2", "1"])
    shares = define(product).budget.query_shares("region")
    assert shares == {"age_prefix 1": F(1, 2), "age_prefix 2": F(1, 4), "detailed": F(1, 4)}


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({}, "either a kind"),
        ({"kind": "prefixes", "ranges": [["0"]]}, "either a kind"),
        ({"kind": "suffixes"}, "did you mean prefixes?"),
        ({"ranges": [["9"]]}, "not a level"),
        ({"ranges": [["0..2"]], "weights": [1, 1]}, "expected 1 positive"),
        ({"ranges": [["0..2"]], "weights": ["0"]}, "expected 1 positive"),
        ({"ranges": [["0..2"]], "weights": [0.5]}, "binary floating-point"),
        ({"kind": "prefixes", "by": ["size"]}, "size"),
        ({"kind": "prefixes", "attribute": "agee"}, "did you mean age"),
    ],
)
def test_what_is_no_workload_is_refused(workload: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        declare_product(with_workload(**workload))


def test_names_that_are_taken_and_shares_given_twice() -> None:
    taken = {**PRODUCT, "workloads": {"sex": {"attribute": "age", "kind": "prefixes"}}}
    with pytest.raises(ConfigError, match="is already an attribute"):
        declare_product(taken)
    twice = RUN.replace("detailed =", '"age_prefix 2" = "1/8", detailed =').replace('"1/4" }\n', '"1/8" }\n')
    with pytest.raises(ConfigError, match="twice"):
        define(run=twice)


THIRDS = """
import numpy as np


class Thirds:
    name = "thirds"

    def partitions(self, levels):
        return [np.arange(levels) * 3 // levels]


class Nothing(Thirds):
    name = "none"

    def partitions(self, levels):
        return None


class Gaps(Thirds):
    name = "gaps"

    def partitions(self, levels):
        return [np.arange(levels) * 2]
"""


PROVEN = THIRDS.replace('    name = "thirds"', '    name = "thirds"\n    proof = "Doe (2030)"')


def test_a_kind_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        WORKLOADS: {
            "thirds": "dummy_workload:Thirds",
            "gaps": "dummy_workload:Gaps",
            "none": "dummy_workload:Nothing",
        }
    }
    see(monkeypatch, install(tmp_path / "site", "dummy-workload", "1", {"dummy_workload": THIRDS}, points))
    with monkeypatch.context() as patch:
        run = define(with_workload(kind="thirds"))
        release = od.release(run, tmp_path / "out", measurements="full")
        patch.setattr("opendas.parts.entry_points", lambda group: ())
        # What it returned stands in the release: nobody needs the package to check it.
        assert [check for check in release.verify(rederive=True) if not check.ok] == []
    path = tmp_path / "out" / "release" / "certificate.json"
    certificate = json.loads(path.read_text())
    part = {"kind": WORKLOADS, "name": "thirds", "package": "dummy-workload", "version": "1", "proof": ""}
    assert certificate["runs"][0]["parts"] == [part]
    assert UNPROVEN_PART in certificate["runs"][0]["stamps"]
    assert "thirds of the package dummy-workload 1" in (path.parent / "report.html").read_text()
    del certificate["runs"][0]["parts"]
    path.write_text(json.dumps(certificate, indent=1, sort_keys=True))
    assert any("workloads of other packages" in check.detail for check in release.verify() if not check.ok)
    with pytest.raises(ConfigError, match="without a gap"):
        define(with_workload(kind="gaps"))
    with pytest.raises(ConfigError, match="'none' failed with TypeError for 8 levels"):
        define(with_workload(kind="none"))
    see(
        monkeypatch,
        install(
            tmp_path / "proven",
            "dummy-workload",
            "1",
            {"proven_workload": PROVEN},
            {WORKLOADS: {"thirds": "proven_workload:Thirds"}},
        ),
    )
    run = define(with_workload(kind="thirds"))
    assert run.product.parts[0].proof == "Doe (2030)"
    assert UNPROVEN_PART not in od.release(run, tmp_path / "proven-out").certificate["runs"][0]["stamps"]


def test_ours_are_declared_as_those_of_others_are() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("pyproject.toml is not beside the tests")
    points = tomllib.loads(project.read_text())["project"]["entry-points"][WORKLOADS]
    assert points == {
        name: f"{type(part).__module__}:{type(part).__name__}" for name, part in OWN_WORKLOADS.items()
    }
