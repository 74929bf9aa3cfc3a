"""The DHC persons product: the numbers that its sources print, and the production's own declarations."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dhc_tables import production_tables, ranges
from support.each import each

from opendas.budget.noise import attribute_rho, within_rho
from opendas.budget.presets import preset
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.errors import ConfigError
from opendas.privacy.zcdp import Account
from opendas.runs.allocate import allocate_run
from opendas.runs.config.product_file import load_product
from opendas.runs.context.run import load
from opendas.runs.plan import make_plan
from opendas.schema.dhc_persons import PL94_CELL, dhc_persons
from opendas.schema.pl94 import pl94_persons

F = Fraction
PRODUCT = dhc_persons()
WORKLOAD = PRODUCT.workload


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return production_tables("dhcp")


def test_cells_and_structural_zeros() -> None:
    assert PRODUCT.schema.names == ("relgq", "sex", "age", "hispanic", "cenrace")
    assert PRODUCT.schema.shape == (42, 2, 116, 2, 63)
    assert PRODUCT.schema.size == 1_227_744
    assert PRODUCT.possible.sum() == 905_184
    assert (~PRODUCT.possible).sum() == 322_560
    pairs = PRODUCT.possible.reshape(PRODUCT.schema.shape)[:, 0, :, 0, 0]
    assert (pairs.size, int(pairs.sum())) == (4_872, 3_592)


@each(
    ("relgq", "possible", "impossible"),
    [
        ("householder_alone", (15, 115), (0, 14)),
        ("biological_child", (0, 89), (90,)),
        ("parent_in_law", (30,), (29,)),
        ("grandchild", (74,), (75,)),
        ("child_in_law", (15, 89), (14, 90)),
        ("foster_child", (20,), (21,)),
        ("sibling", (0, 115), ()),
        ("gq105_correctional_residential", (15,), (14,)),
        ("gq106_military_disciplinary", (17, 65), (16, 66)),
        ("gq203_juvenile_correctional", (0, 25), (26,)),
        ("gq301_nursing", (20,), (19,)),
        ("gq405_residential_school_disabled", (3, 30), (2, 31)),
        ("gq501_college", (16, 65), (15, 66)),
        ("gq602_military_ships", (17, 65), (16, 66)),
        ("gq802_adult_treatment", (16, 115), (15,)),
        ("gq900_maritime", (16, 75), (15, 76)),
        ("gq901_workers_quarters", (0, 115), ()),
    ],
)
def test_ages_that_the_edits_allow(
    relgq: str, possible: tuple[int, ...], impossible: tuple[int, ...]
) -> None:
    other = {"sex": "female", "hispanic": "hispanic", "cenrace": "white+black"}
    for ages, expected in ((possible, True), (impossible, False)):
        for age in ages:
            cell = PRODUCT.schema.cell({"relgq": relgq, "age": str(age), **other})
            assert PRODUCT.possible[cell] == expected, age


def test_query_names_are_canonical_and_have_the_rows_that_production_measures() -> None:
    assert all(WORKLOAD.canonical(name) == name for name in PRODUCT.query_names)
    budget = resolve_budget(
        BudgetSpec(preset="us2020-dhc-persons"), tuple(preset("us2020-dhc-persons").geolevels)
    )
    sizes = [WORKLOAD.group(name).size for name in budget.queries["block"]]
    assert sizes == [12, 6, 76, 4, 8, 60, 19, 252_000, 423_360, 1_227_744]
    assert set(budget.queries["block"]) <= set(PRODUCT.query_names)
    assert WORKLOAD.canonical("relgq * age_40_groups * hispanic * cenrace * sex") in budget.queries["us"]


def test_the_tie_has_the_cells_of_the_redistricting_persons_in_their_order() -> None:
    tie, persons = WORKLOAD.group(PL94_CELL), pl94_persons()
    assert tie.size == persons.schema.size
    assert tie.labels == tuple(attribute.levels for attribute in persons.schema.attributes)
    open_rows = np.zeros(tie.size, dtype=bool)
    open_rows[tie.row_of_cell[PRODUCT.possible]] = True
    assert np.array_equal(open_rows, persons.possible)


def test_the_three_large_queries_are_a_chain_inside_the_tie() -> None:
    chain = PRODUCT.passes.earlier[0].rounder["*"][0] + ("detailed",)
    for coarse, fine in zip((PL94_CELL, *chain), chain, strict=False):
        rows, finer = WORKLOAD.group(coarse).row_of_cell, WORKLOAD.group(fine).row_of_cell
        first = np.zeros(WORKLOAD.group(fine).size, dtype=np.int32)
        first[finer] = rows
        assert np.array_equal(first[finer], rows), (coarse, fine)


@pytest.mark.parametrize("name", ["us2020-dhc-persons", "pr2020-dhc-persons"])
def test_budgets_have_the_printed_losses(name: str) -> None:
    budget = resolve_budget(BudgetSpec(preset=name), tuple(preset(name).geolevels), WORKLOAD.canonical)
    assert budget.total == F(24811, 5000)
    assert round(Account(budget.total, budget.delta).epsilon("cks"), 2) == 25.42
    assert round(Account(budget.total, budget.delta).epsilon("bun-steinke"), 2) == 26.34
    assert budget.total * budget.share("block", "detailed") == F(11, 10_000)
    if name.startswith("us"):
        spent = [budget.total * share for share in budget.geolevels.values()]
        assert spent == [F(x, 10_000) for x in (949, 12_987, 4_960, 6_214, 6_214, 13_888, 4_300, 110)]
        told_apart = {
            query: [
                PRODUCT.schema.names[WORKLOAD.positions[factor]] for factor in WORKLOAD.group(query).factors
            ]
            for query in PRODUCT.query_names
        }
        losses = attribute_rho(budget, told_apart)
        printed = {"relgq": 3.8681, "age": 3.5147, "sex": 2.5529, "hispanic": 1.4588, "cenrace": 1.0941}
        assert {attribute: float(rho) for attribute, rho in losses.items()} == printed
        assert within_rho(budget)["tract_subset"] == F("0.441")


def test_the_product_is_known_by_name() -> None:
    assert load_product("dhc-persons").schema == PRODUCT.schema


@pytest.mark.slow
def test_a_plan_is_made_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    levels = dict(zip(preset("pr2020-dhc-persons").geolevels, (1, 2, 3, 4, 5, 6, 15), strict=True))
    listed = ", ".join(f'{{ name = "{name}", prefix = {prefix} }}' for name, prefix in levels.items())
    (tmp_path / "run.toml").write_text(
        '[run]\nproduct = "dhc-persons"\n[input]\nreader = "records"\npath = "people.csv"\n'
        f'[geography]\nframe = "frame.csv"\nlevels = [{listed}]\n'
        '[budget]\npreset = "pr2020-dhc-persons"\n'
    )
    (tmp_path / "frame.csv").write_text("geocode\n111111000000001\n111111000000002\n122222000000002\n")
    (tmp_path / "people.csv").write_text("nobody reads this")
    plan = make_plan(load(tmp_path / "run.toml", need_input=False))
    assert len(plan.rows) == 7 * 10
    assert {row.cells for row in plan.rows if row.query == "detailed"} == {PRODUCT.schema.size}
    assert sum((row.rho or 0 for row in plan.rows), F(0)) == F(24811, 5000)
    assert not plan.gains
    assert any("this product has 1,227,744" in warning for warning in plan.warnings)
    asked = {row.query for row in plan.expected}
    assert asked == {name for name in PRODUCT.query_names if PRODUCT.workload.group(name).size <= 100}
    assert all((row.mean_sd == 0) == ((row.name, row.query) == ("state", "total")) for row in plan.expected)
    assert all(row.mean_sd < 60 for row in plan.expected)
    document = plan.to_dict()["forecast"]
    assert document["seconds"] is None
    assert any("with a tie if it is estimated in stages" in line for line in document["assumptions"])


def write_run(folder: Path, more: str = "") -> Path:
    """Write a run file of a state of two blocks, and their frame."""
    (folder / "frame.csv").write_text("geocode\n11\n12\n")
    (folder / "run.toml").write_text(
        f'[run]\nproduct = "dhc-persons"\n{more}'
        '[input]\nreader = "records"\npath = "people.csv"\n'
        '[geography]\nframe = "frame.csv"\nprovenance = "public"\n'
        'levels = [{ name = "state", prefix = 1 }, { name = "block", prefix = 2 }]\n'
        '[budget]\nrho = "1"\ngeolevels = { state = "1/2", block = "1/2" }\n'
        '[budget.queries]\n"*" = { detailed = "1" }\n'
    )
    return folder / "run.toml"


def test_an_allocation_by_all_query_groups_together_is_refused_at_once(tmp_path: Path) -> None:
    run = load(write_run(tmp_path), need_input=False)
    with pytest.raises(ConfigError) as refused:
        allocate_run(run, after_least_squares=True)
    assert str(refused.value) == (
        "opendas allocate --after-least-squares works out errors of all query groups together, of at most "
        "65,536 cells; dhc-persons has 1,227,744. opendas plan --full and opendas explore give those of its "
        "small query groups one by one; opendas allocate without --after-least-squares allocates its budget."
    )
    assert sum(allocate_run(run).allocation.budget.geolevels.values()) == 1


@pytest.mark.parametrize("estimator", ["informed", "posterior"])
def test_estimators_of_the_whole_tree_are_refused_before_a_record_is_read(
    tmp_path: Path, estimator: str
) -> None:
    run = write_run(tmp_path, f'estimator = "{estimator}"\n')
    with pytest.raises(ConfigError) as refused:
        load(run, need_input=False)
    assert str(refused.value) == (
        f"[run] estimator {estimator}: structural zeros of dhc-persons couple 4,872 categories of relgq and "
        "age; least squares over the whole tree takes at most 1,000. Use estimator topdown, with a [tie] to "
        "a release of pl94-persons. For unbiased estimates of a table or query group, run with "
        "--measurements full and ask opendas interval."
    )


def test_budgets_equal_the_production(tables: dict[str, Any]) -> None:
    for place in ("US", "PR"):
        strategy, found = tables["strategies"][place], preset(f"{place.lower()}2020-dhc-persons")
        assert found.rho == F(strategy["rho_total"])
        assert list(found.geolevels) == [level.lower() for level in strategy["levels_top_down"]]
        for level, queries in strategy["queries"].items():
            rho = found.rho * found.geolevels[level.lower()]
            ours = {query: rho * share for query, share in found.queries[level.lower()].items()}
            assert ours == {WORKLOAD.canonical(query): F(loss) for query, loss in queries}
        for query, stated in strategy["query_sizes"].items():
            assert WORKLOAD.group(query).size == stated["answers"]


def test_recodes_equal_the_production(tables: dict[str, Any]) -> None:
    declared = {recode.name: recode for recode in PRODUCT.recodes}
    stated = {name: recode for name, recode in tables["recodes"].items() if not recode.get("identity")}
    for name, recode in stated.items():
        ((attribute, factor),) = recode.items()
        if not factor["partition"]:
            continue
        levels = PRODUCT.schema.attribute(attribute).levels
        ours = [{levels.index(level) for level in members} for _, members in declared.pop(name).groups]
        assert ours == [ranges(group["cells"]) for group in factor["groups"]], name
    assert not declared


def test_attributes_have_the_order_of_the_production(tables: dict[str, Any]) -> None:
    assert PRODUCT.schema.size == tables["cells"]
    for ours, theirs in zip(PRODUCT.schema.attributes, tables["attributes"], strict=True):
        assert (ours.name, len(ours)) == (theirs["name"], theirs["size"])
    races = [label.replace("nhopi", "nhpi").replace("-", "+") for label in tables["attributes"][4]["labels"]]
    assert list(PRODUCT.schema.attributes[4].levels) == races
    codes = [re.match(r"GQ (\d+)", label) for label in tables["attributes"][0]["labels"]]
    assert [code and code[1] for code in codes] == [
        level[2:5] if level.startswith("gq") else None for level in PRODUCT.schema.attributes[0].levels
    ]


def test_structural_zeros_equal_the_production(tables: dict[str, Any]) -> None:
    impossible = np.zeros(PRODUCT.schema.shape, dtype=bool)
    for constraint in tables["constraints"]:
        if constraint["bound_source"] == "constant 0" and constraint["in_production_config"]:
            (factors,) = (v for k, v in constraint["main"].items() if k.startswith("factors"))
            assert set(factors) == {"relgq", "age"}
            relgq, age = (sorted(ranges(factors[name][0])) for name in ("relgq", "age"))
            impossible[np.ix_(relgq, range(2), age, range(2), range(63))] = True
    assert np.array_equal(PRODUCT.possible, ~impossible.ravel())


def test_passes_equal_the_production(tables: dict[str, Any]) -> None:
    orders = tables["pass_orders_all_levels"]
    measured = tuple(preset("us2020-dhc-persons").queries["us"])
    for is_root, is_leaf in ((True, False), (False, False), (False, True)):
        stages = PRODUCT.passes.for_geolevel("x", measured, is_root=is_root, is_leaf=is_leaf)
        assert len(stages) == len(orders["L2QO"]) == len(orders["RQO"])
        for number, (squares, rounder) in enumerate(stages):
            for kind, ours in (("L2QO", squares), ("RQO", rounder)):
                theirs = [list(map(WORKLOAD.canonical, q)) for q in orders[kind][str(number)].values()]
                if kind == "L2QO":  # one query that it names is not measured, and has no effect
                    theirs = [[query for query in queries if query in measured] for queries in theirs]
                assert [set(queries) for queries in ours] == [set(queries) for queries in theirs]
                assert kind == "L2QO" or [list(queries) for queries in ours] == theirs
