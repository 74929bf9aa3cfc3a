"""The DHC units product: the numbers that its sources print, and the production's own declarations."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dhc_tables import production_tables, ranges
from support.pl94_zip import write_csv

from opendas.budget.presets import preset
from opendas.errors import BudgetError, SchemaError
from opendas.geography.frame import LevelRule
from opendas.readers import ReaderSpec, make_reader
from opendas.runs.config.product_file import declare_product, load_product
from opendas.runs.context.run import load
from opendas.schema.declarations import StructuralZero
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.dhc_units import HOUSEHOLD_TYPES, HouseholdType, dhc_units, dhc_units_tenvacgq
from opendas.schema.product import Product

F = Fraction
PRODUCT = dhc_units()
UNITS = dhc_units_tenvacgq()
WORKLOAD = PRODUCT.workload


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return production_tables("dhch")


def test_cells_and_structural_zeros() -> None:
    assert PRODUCT.schema.shape == (2, 9, 2, 7, 4, 3, 522)
    assert PRODUCT.schema.size == 1_578_528
    assert PRODUCT.possible.sum() == 1_111_572
    assert (~PRODUCT.possible).sum() == 466_956
    assert UNITS.schema.size == 35
    assert UNITS.possible.all()


def test_household_types_by_size_and_couple() -> None:
    sizes = Counter(kind.size for kind in HOUSEHOLD_TYPES)
    assert sizes == {1: 2, 2: 18, 3: 54, 4: 106, 5: 114, 6: 114, 7: 114}
    assert Counter(kind.partner for kind in HOUSEHOLD_TYPES) == {
        "married": 172,
        "cohabiting": 220,
        "no_couple": 130,
    }
    assert sum(kind.multigenerational for kind in HOUSEHOLD_TYPES) == 195
    assert len({kind.label for kind in HOUSEHOLD_TYPES}) == 522


def test_the_products_are_known_by_name() -> None:
    found = load_product("dhc-units")
    assert found.schema == PRODUCT.schema
    assert found.companion is not None
    assert load_product("dhc-units-tenvacgq").schema == found.companion.schema == UNITS.schema


def test_household_types_equal_the_production(tables: dict[str, Any]) -> None:
    assert [flags(kind) for kind in HOUSEHOLD_TYPES] == [
        dict(zip(tables["hhtype_dhch"]["columns"], row, strict=True)) for row in tables["hhtype_dhch"]["rows"]
    ]


def flags(kind: HouseholdType) -> dict[str, int]:
    """The production's flags of a household type."""
    own, children = kind.own_children, kind.children
    found: dict[str, bool | int] = {
        "NO_SPOUSE_OR_PARTNER": kind.couple == "no_couple",
        "NOT_ALONE": kind.size > 1,
        "COHABITING_SAME_SEX": kind.couple == "cohabiting_same_sex",
        "COHABITING_OPPOSITE_SEX": kind.couple == "cohabiting_opposite_sex",
        "MARRIED_SAME_SEX": kind.couple == "married_same_sex",
        "MARRIED_OPPOSITE_SEX": kind.couple == "married_opposite_sex",
        "NO_RELATIVES": not kind.relatives,
        "WITH_RELATIVES": kind.relatives,
        "NO_OWN_CHILD_UNDER_18": own == "none",
        "OWN_CHILD_UNDER_18": own != "none",
        "OWN_CHILD_IN_BOTH_RANGES": own == "both",
        "OWN_CHILD_BETWEEN_6_AND_17": own == "6to17",
        "OWN_CHILD_UNDER_6_ONLY": own == "under6",
        "NO_CHILD_UNDER_18_EXCLUDING_HOUSEHOLDER_SPOUSE_PARTNER": children == "none",
        "CHILD_UNDER_18_EXCLUDING_HOUSEHOLDER_SPOUSE_PARTNER": children != "none",
        "CHILD_IN_BOTH_RANGES_EXCLUDING_HOUSEHOLDER_PARTNER": children == "both",
        "CHILD_BETWEEN_6_AND_17_EXCLUDING_HOUSEHOLDER_PARTNER": children == "6to17",
        "CHILD_UNDER_6_ONLY_EXCLUDING_HOUSEHOLDER_SPOUSE_PARTNER": children == "under6",
        "CHILD_UNDER_18": kind.minor,
        "MULTIG": kind.multigenerational,
        "SIZE": kind.size,
        "MARRIED": kind.partner == "married",
        "COHABITING": kind.partner == "cohabiting",
    }
    return {name: int(value) for name, value in found.items()}


def test_recodes_equal_the_production(tables: dict[str, Any]) -> None:
    declared = {recode.name: recode for recode in PRODUCT.recodes}
    for name, recode in tables["recodes"].items():
        if recode.get("identity"):
            continue
        ((attribute, factor),) = recode.items()
        levels = PRODUCT.schema.attribute(attribute).levels
        ours = [{levels.index(level) for level in members} for _, members in declared.pop(name).groups]
        assert ours == [ranges(group["cells"]) for group in factor["groups"]], name
    assert not declared


def test_attributes_have_the_order_of_the_production(tables: dict[str, Any]) -> None:
    for ours, theirs in zip(
        (*PRODUCT.schema.attributes, *UNITS.schema.attributes),
        (*tables["attributes"], *tables["unit_schema"]["attributes"]),
        strict=True,
    ):
        assert (ours.name, len(ours)) == (theirs["name"], theirs["size"])


def test_structural_zeros_equal_the_production(tables: dict[str, Any]) -> None:
    impossible = np.zeros(PRODUCT.schema.shape, dtype=bool)
    for constraint in tables["constraints"]:
        if constraint["bound_source"] != "constant 0":
            continue
        (factors,) = (v for k, v in constraint["main"].items() if k.startswith("factors"))
        boxes = [
            sorted(ranges(factors[a.name][0])) if a.name in factors else range(len(a))
            for a in PRODUCT.schema.attributes
        ]
        impossible[np.ix_(*boxes)] = True
    assert np.array_equal(PRODUCT.possible, ~impossible.ravel())


def test_passes_equal_the_production(tables: dict[str, Any]) -> None:
    orders = tables["pass_orders_all_levels"]
    measured = tuple(q for q in preset("us2020-dhc-units").queries["us"] if q != "tenvacgq")
    for is_root, is_leaf in ((True, False), (False, False), (False, True)):
        at = {"is_root": is_root, "is_leaf": is_leaf}
        stages = [
            *UNITS.passes.for_geolevel("x", ("detailed",), **at),
            *PRODUCT.passes.for_geolevel("x", measured, **at),
        ]
        assert len(stages) == len(orders["L2QO"]) == len(orders["RQO"])
        for number, (squares, rounder) in enumerate(stages):
            workload = WORKLOAD if number else UNITS.workload
            for kind, ours in (("L2QO", squares), ("RQO", rounder)):
                theirs = [list(map(workload.canonical, q)) for q in orders[kind][str(number)].values()]
                assert [set(queries) for queries in ours] == [set(queries) for queries in theirs]
                assert kind == "L2QO" or [list(queries) for queries in ours] == theirs


def test_budgets_equal_the_production(tables: dict[str, Any]) -> None:
    for place in ("US", "PR"):
        strategy, found = tables["strategies"][place], preset(f"{place.lower()}2020-dhc-units")
        assert found.rho == F(strategy["rho_total"]) == F(15401, 2000)
        assert list(found.geolevels) == [level.lower() for level in strategy["levels_top_down"]]
        for level, queries in strategy["queries"].items():
            rho = found.rho * found.geolevels[level.lower()]
            ours = {query: rho * share for query, share in found.queries[level.lower()].items()}
            theirs = {WORKLOAD.canonical(query): F(loss) for query, loss in queries}
            assert ours == theirs | {q: F(loss) for q, loss in strategy["unit_queries"][level]}
        for query, stated in strategy["query_sizes"].items():
            if query != "tenvacgq":
                assert WORKLOAD.group(query).size == stated["answers"]
                assert WORKLOAD.canonical(query) in PRODUCT.query_names


def test_what_the_companion_gets_of_the_budget() -> None:
    found = preset("us2020-dhc-units")
    losses = [
        found.rho * found.geolevels[level] * found.queries[level]["tenvacgq"] for level in found.geolevels
    ]
    assert sum(losses) == F(8_833, 10_000), "as docs/dhc.md says"


def test_the_three_large_queries_are_a_chain_and_blocks_do_not_share_rows() -> None:
    """What the solvers of its stages build on."""
    tenure_and_type, by_type = PRODUCT.passes.earlier[0].rounder["*"][0]
    by_age, age_and_type, _ = PRODUCT.passes.least_squares["*"][0]
    chain = (tenure_and_type, by_type, by_age, "detailed")
    for coarse, fine in (*pairwise(chain), (tenure_and_type, age_and_type)):
        rows, finer = WORKLOAD.group(coarse).row_of_cell, WORKLOAD.group(fine).row_of_cell
        first = np.zeros(WORKLOAD.group(fine).size, dtype=np.int32)
        first[finer] = rows
        assert np.array_equal(first[finer], rows), (coarse, fine)
    assert WORKLOAD.group(tenure_and_type).size == 3 * 183 == 549


@pytest.mark.parametrize(
    ("household", "possible"),
    [
        ({"hhage": "65-74", "elderly": "65plus_none_75plus", "size": 1}, True),
        ({"hhage": "65-74", "elderly": "75plus", "size": 1}, False),
        ({"hhage": "15-24", "elderly": "none_60plus", "size": 1, "minor": True}, True),
        ({"hhage": "25-34", "elderly": "none_60plus", "size": 1, "minor": True}, False),
        ({"hhage": "55-59", "elderly": "60plus_none_65plus", "size": 2, "own_children": "6to17"}, False),
        ({"hhage": "55-59", "elderly": "60plus_none_65plus", "size": 3, "own_children": "6to17"}, True),
        # What the production leaves open: the second child is no own one.
        (
            {"hhage": "25-34", "elderly": "75plus", "size": 3, "own_children": "under6", "children": "both"},
            True,
        ),
        ({"hhage": "85+", "elderly": "65plus_none_75plus", "size": 5}, False),
        (
            {"sex": "female", "hhage": "60-64", "elderly": "75plus", "size": 4, "own_children": "under6"},
            False,
        ),
        ({"sex": "male", "hhage": "65-74", "elderly": "75plus", "size": 4, "own_children": "under6"}, True),
    ],
)
def test_households_that_the_edits_allow(household: dict[str, Any], possible: bool) -> None:
    rest = {"hisp": "hispanic", "race": "asian", "hhtenshort_3lev": "rented", "sex": "female"}
    levels = {**rest, **{name: household[name] for name in household.keys() & PRODUCT.schema.names}}
    wanted = {"couple": "no_couple", "own_children": "none", "multigenerational": False, **household}
    alike = [
        kind
        for kind in HOUSEHOLD_TYPES
        if all(getattr(kind, name) == wanted[name] for name in wanted if hasattr(kind, name))
        and (kind.minor or "minor" not in household)
    ]
    assert alike
    cells = [PRODUCT.schema.cell({**levels, "hhtype_dhch": kind.label}) for kind in alike]
    assert PRODUCT.possible[cells].any() == possible


EDITS = """
[[structural_zeros]]
hhage = ["15-24..55-59"]
elderly = ["60plus_none_65plus..75plus"]
hhtype_dhch = [{alone}]
[[structural_zeros]]
hhage = ["60-64"]
elderly = ["none_60plus", "65plus_none_75plus..75plus"]
hhtype_dhch = [{alone}, {two_with_a_minor}]
[[structural_zeros]]
hhage = ["65-74"]
elderly = ["none_60plus..60plus_none_65plus", "75plus"]
hhtype_dhch = [{alone}, {two_with_a_minor}]
[[structural_zeros]]
hhage = ["75-84..85+"]
elderly = ["none_60plus..65plus_none_75plus"]
[[structural_zeros]]
hhage = ["65-74"]
elderly = ["none_60plus..60plus_none_65plus"]
[[structural_zeros]]
hhage = ["60-64"]
elderly = ["none_60plus"]
[[structural_zeros]]
hhage = ["25-34..85+"]
hhtype_dhch = ["size1_no_couple_minor_householder_or_partner"]
[[structural_zeros]]
hhage = ["15-24"]
elderly = ["75plus"]
DetailedCoupleTypeMultGenDetOwnChildSize = [{couple_with_own}]
[[structural_zeros]]
sex = ["male"]
hhage = ["75-84..85+"]
partner_type_detailed_own_child_status = [{own_under6}]
[[structural_zeros]]
sex = ["female"]
hhage = ["75-84..85+"]
partner_type_detailed_own_child_status = [{own_under6}, {own_6to17}]
[[structural_zeros]]
sex = ["female"]
hhage = ["60-64..85+"]
partner_type_detailed_own_child_status = [{own_under6}]
"""
"""The edits of households in the language of product files, as a user would declare them."""


def test_a_user_could_declare_the_product() -> None:
    partners = ("no_couple", "married", "cohabiting")
    couples = [f"{a}_{b}_sex" for a in partners[1:] for b in ("same", "opposite")]
    lists = {
        "alone": [
            *("size1_no_couple", "size1_no_couple_minor_householder_or_partner", "size3_no_couple_own_both"),
            *(f"size2_no_couple_own_{ages}" for ages in ("under6", "6to17")),
            *(
                f"size2_no_couple_children_{ages}{related}"
                for ages in ("under6", "6to17")
                for related in ("", "_relatives")
            ),
        ],
        "two_with_a_minor": [
            *(f"size2_{couple}_minor_householder_or_partner" for couple in couples),
            *(f"size2_no_couple_minor_householder_or_partner{related}" for related in ("", "_relatives")),
        ],
        "couple_with_own": [
            f"{size_and_own[0]}_{couple}_own_{size_and_own[1]}"
            for couple in couples
            for size_and_own in (
                ("size2", "none"),
                ("size3", "under6"),
                ("size3", "6to17"),
                ("size4", "both"),
            )
        ],
        "own_under6": [f"{partner}_own_{ages}" for partner in partners for ages in ("under6", "both")],
        "own_6to17": [f"{partner}_own_6to17" for partner in partners],
    }
    text = EDITS.format(**{name: ", ".join(map(json.dumps, found)) for name, found in lists.items()})
    declared = declare_product(
        {
            "product": {"name": "households", "provenance": "code-book"},
            "attributes": {a.name: list(a.levels) for a in PRODUCT.schema.attributes},
            "recodes": {
                r.name: {"attribute": r.attribute, "levels": {label: list(of) for label, of in r.groups}}
                for r in PRODUCT.recodes
            },
            **tomllib.loads(text),
        }
    )
    assert np.array_equal(declared.possible, PRODUCT.possible)


def at_the_bound(product: Product, zero: StructuralZero, name: str, seed: int) -> list[list[str]]:
    """A record that an edit rules out, and the nearest that differs in one attribute and is possible.

    Neither where other edits rule out all of them.
    """
    schema, axis = product.schema, product.schema.names.index(name)
    cells = np.random.default_rng(seed).choice(np.flatnonzero(schema.box(zero.levels)), 40)
    for ruled_out in np.array(schema.codes(cells)).T:
        others = np.repeat(ruled_out[:, None], schema.shape[axis], axis=1)
        others[axis] = np.arange(schema.shape[axis])
        possible = np.flatnonzero(product.possible[schema.cells(tuple(others))])
        if len(possible):
            nearest = others[:, possible[np.abs(possible - ruled_out[axis]).argmin()]]
            return [
                [attribute.levels[code] for attribute, code in zip(schema.attributes, codes, strict=True)]
                for codes in (ruled_out, nearest)
            ]
    return []


@pytest.mark.parametrize("product", [PRODUCT, dhc_persons()], ids=lambda product: str(product.name))
def test_every_edit_is_held_up_to_its_bound_and_names_lines_not_values(
    product: Product, tmp_path: Path
) -> None:
    frame = write_csv(tmp_path / "frame.csv", [["geocode"], ["a01"]])
    levels = (LevelRule("region", 1), LevelRule("ward", 3))
    for number, zero in enumerate(product.structural_zeros):
        rows = [row for name in zero.levels for row in at_the_bound(product, zero, name, number)]
        assert rows, zero
        lines = [["geocode", *product.schema.names], *(["a01", *row] for row in rows)]
        path = write_csv(tmp_path / "records.csv", lines)
        alone = replace(product, companion=None)  # whose column would have to be there too
        reader = make_reader(ReaderSpec("records", (path,), alone, levels=levels, frame=frame))
        with pytest.raises(SchemaError, match="structural zero") as caught:
            reader.read()
        assert [finding.line for finding in caught.value.findings] == list(range(2, len(lines) + 1, 2))
        assert not any(level in str(caught.value) for level in rows[0] if len(level) > 4)


def write_run(folder: Path, levels: Iterable[str], budget: str) -> Path:
    listed = ", ".join(f'{{ name = "{name}", prefix = {n} }}' for n, name in enumerate(levels, 1))
    path = folder / "run.toml"
    path.write_text(
        '[run]\nproduct = "dhc-units"\n[input]\nreader = "records"\npath = "units.csv"\n'
        f'[geography]\nframe = "frame.csv"\nlevels = [{listed}]\n[budget]\n{budget}\n'
    )
    return path


@pytest.mark.parametrize("place", ["us", "pr"])
def test_the_budget_is_divided_between_product_and_companion(place: str, tmp_path: Path) -> None:
    """Nine query groups are the households', one the companion's, each with the loss that is printed."""
    found = preset(f"{place}2020-dhc-units")
    run = load(write_run(tmp_path, found.geolevels, f'preset = "{found.name}"'), need_input=False)
    assert run.companion is not None
    budgets = run.budget, run.companion.budget
    losses = [
        {
            (level, query): budget.total * budget.share(level, query)
            for level, shares in budget.queries.items()
            for query in shares
        }
        for budget in budgets
    ]
    printed = {
        (level, query): found.rho * found.geolevels[level] * share
        for level, shares in found.queries.items()
        for query, share in shares.items()
    }
    units = {(level, "detailed"): printed.pop((level, "tenvacgq")) for level in found.geolevels}
    assert losses == [printed, units]
    assert sum(budget.total for budget in budgets) == F(15401, 2000)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ('hisp = "1"', "gives nothing to dhc-units-tenvacgq: what it gives to query groups of tenvacgq"),
        ('tenvacgq = "1"', "gives nothing to dhc-units: "),
        ('hisp = "1/2", tenvacgq = "1/4", " tenvacgq" = "1/4"', "'tenvacgq' appears twice"),
    ],
)
def test_budgets_that_cannot_be_divided(shares: str, message: str, tmp_path: Path) -> None:
    queries = f'rho = "1"\ngeolevels = {{ state = "1" }}\n[budget.queries]\nstate = {{ {shares} }}'
    with pytest.raises(BudgetError, match=message):
        load(write_run(tmp_path, ["state"], queries), need_input=False)
