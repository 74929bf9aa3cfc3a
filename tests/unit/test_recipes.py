"""Spine recipes of run files: what they refuse, what named spines mean, the spine of the DHC, budgets."""

from __future__ import annotations

import itertools
import json
import tomllib
from fractions import Fraction
from math import isqrt
from pathlib import Path

import pytest
from support.random_land import random_frame, write_land

from opendas.budget.presets import preset
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import BudgetError, ConfigError
from opendas.geography.frame import Frame
from opendas.geography.recipe import NAMED_SPINES, SpineStep, recipe_levels, stand_ins
from opendas.geography.spine import Spine
from opendas.runs.config.released import released_toml
from opendas.runs.context.run import Run, load
from opendas.runs.plan import make_plan

F = Fraction
Capture = pytest.CaptureFixture[str]
LEVELS = ("us", "state", "county", "tract", "block_group", "block")
EVEN = (
    "geolevels = { us = '1/10', state = '1/10', county = '1/5', tract = '1/5', "
    "block_group = '1/5', block = '1/5' }"
)


def land(folder: Path, spine: str, *, more: str = "", root: str = "us", seed: int = 3, **options: str) -> Run:
    return load(write_land(folder, random_frame(seed, root=root), geography=spine, more=more, **options))


# What is refused --------------------------------------------------------------------------------------------

BAD = {
    "entities that the input lacks": (
        'spine = "optimized"\nentities = ["sldu"]',
        ["needs the areas 'sldu', which the input does not have; it has cousub, place", "block_assignment"],
    ),
    "areas that the input lacks": (
        'spine = [{ step = "aian", areas = "sldl" }]',
        ["step aian needs the areas 'sldl'", "block_assignment"],
    ),
    "entities that nobody knows": (
        'spine = [{ step = "block_groups", entities = ["plase"] }]',
        ["step block_groups names unknown entities 'plase'", "did you mean place?"],
    ),
    "no entities": ('spine = "optimized"\nentities = []', ["empty list of entities", "production rule"]),
    "no entities in a step": (
        'spine = [{ step = "block_groups", entities = [] }]',
        ["field geography.spine.0.entities: expected a list with at least 1 entry"],
    ),
    "codes that match no block": (
        'spine = [{ step = "aian", codes = ["0123", "7000-7999"] }]',
        ["no leaf of the input lies in the codes 0123, 7000-7999 of 'aianhh'"],
    ),
    "no codes": (
        'spine = [{ step = "aian", codes = [] }]', ["0.codes: expected a list with at least 1 entry"],
    ),
    "codes that are no range": (
        'spine = [{ step = "aian", codes = ["4799-0001"] }]',
        ["'4799-0001' is no range of codes", '"0001-4799"'],
    ),
    "a cutoff of zero": (
        'spine = [{ step = "block_groups", fanout_cutoff = 0 }]',
        ["line 10, field geography.spine.0.fanout_cutoff", "greater than or equal to 1"],
    ),
    "a cutoff of zero for tract groups": (
        'spine = [{ step = "tract_groups", fanout_cutoff = 0 }]',
        ["geography.spine.0.fanout_cutoff", "greater than or equal to 1"],
    ),
    "a family of one": ('spine = [{ step = "bypass", largest_family = 1 }]', ["greater than or equal to 2"]),
    "a name that is taken": (
        'spine = [{ step = "group", level = "tract", name = "county", entities = ["place"] }]',
        ["step 1 (group): the name 'county' is taken", "another with name"],
    ),
    "a name made twice": (
        'spine = [{ step = "group", level = "tract", name = "x" }, '
        '{ step = "group", level = "tract", name = "x" }]',
        ["step 2 (group): the name 'x' is taken"],
    ),
    "the name of a level that was renamed": (
        'spine = [{ step = "split", level = "tract", name = "x" }, '
        '{ step = "split", level = "county", name = "tract" }]',
        ["step 2 (split): the name 'tract' is taken"],
    ),
    "the name of an entity category": (
        'spine = [{ step = "block_groups", name = "place" }]',
        ["the name 'place' is taken"],
    ),
    "a word with a meaning": (
        'spine = [{ step = "group", level = "tract", name = "leaf" }]', ["the name 'leaf' is taken"],
    ),
    "block groups elsewhere": (
        'spine = [{ step = "block_groups", name = "tract" }]', ["'tract' is not the level above the leaves"],
    ),
    "no level": ('spine = [{ step = "group", name = "x" }]', ["the step group needs level"]),
    "no name": ('spine = [{ step = "intersect", level = "tract" }]', ["the step intersect needs name"]),
    "a level that is not there": (
        'spine = [{ step = "split", level = "zone" }]',
        ["step 1 (split): there is no level 'zone' at that step", "us, state, county"],
    ),
    "a level that is made later": (
        'spine = [{ step = "split", level = "zone" }, { step = "group", level = "tract", name = "zone" }]',
        ["step 1 (split): there is no level 'zone' at that step"],
    ),
    "something above the root": (
        'spine = [{ step = "intersect", level = "us", name = "x", entities = ["place"] }]',
        ["'us' is the topmost level"],
    ),
    "leaves divided": (
        'spine = [{ step = "split", level = "block", entities = ["place"] }]', ["leaves are not divided"],
    ),
    "parts at the leaves": ('spine = [{ step = "aian", level = "block" }]', ["leaves are not divided"]),
    "parts of parts": ('spine = [{ step = "aian" }, { step = "aian" }]', ["divided into parts only once"]),
    "parts of something made": (
        'spine = [{ step = "split", level = "state", entities = ["place"] }, { step = "aian" }]',
        ["the step aian comes before the steps that make or divide 'state'"],
    ),
    "bypass before the end": (
        'spine = [{ step = "bypass" }, { step = "block_groups" }]', ["step 1 (bypass): bypass comes last"],
    ),
    "bypass twice": ('spine = [{ step = "bypass" }, { step = "bypass" }]', ["bypass comes last"]),
    "an unknown spine": ('spine = "optimised"', ["did you mean optimized?"]),
    "an unknown step": (
        'spine = [{ step = "block_group" }]', ["found 'block_group'", "did you mean block_groups?"],
    ),
    "no step": ("spine = [{ fanout_cutoff = 1 }]", ["geography.spine.0.step: required key is missing"]),
    "an unknown key": (
        'spine = [{ step = "block_groups", fanout_cutof = 1 }]',
        ["geography.spine.0.fanout_cutof: unknown key", "did you mean fanout_cutoff?"],
    ),
    "a key of another step": (
        'spine = [{ step = "bypass", fanout_cutoff = 1 }]',
        ["step bypass has no key fanout_cutoff", "largest_family"],
    ),
    "an unknown method": (
        'spine = [{ step = "tract_groups", method = "best" }]', ["did you mean best_first?"],
    ),
    "an invariant where geounits are regrouped": (
        'spine = [{ step = "split", level = "state", entities = ["place"] }]',
        ["total@state holds at geolevel 'state', whose", "not the official ones", 'drop_invariants'],
    ),
    "an invariant below what is regrouped": (
        'spine = [{ step = "split", level = "us", entities = ["place"] }]', ["invariant total@state"],
    ),
    "an invariant on parts that were torn apart": (
        'spine = [{ step = "aian" }, { step = "split", level = "us", entities = ["aianhh"] }]',
        ["invariant total@state", 'drop_invariants = ["total"]'],
    ),
    "an invariant of a level that is gone": (
        'spine = [{ step = "split", level = "state", name = "land" }]',
        ["holds at geolevel 'state', which this spine does not have"],
    ),
    "a level without a share": (
        'spine = [{ step = "tract_groups" }]',
        ["Preset us2020-persons has no share for tract_group", "give geolevels shares"],
    ),
}  # fmt: skip


def test_recipes_that_are_refused(tmp_path: Path, capsys: Capture) -> None:
    for command in ["spine", "plan"]:
        for name in BAD:
            geography, wanted = BAD[name]
            more = "" if "share" in name else f"[budget]\n{_shares_for(name, geography)}"
            path = write_land(tmp_path, random_frame(3, root="us"), geography=geography, more=more)
            assert guarded(cli, [command, str(path)]) == 2
            said = capsys.readouterr()
            assert said.out == ""
            for text in wanted:
                assert text in said.err, said.err
            assert "internal error" not in said.err
            assert "\n" not in said.err.strip()
            assert " or give" not in said.err.replace("; or give", "")


def _shares_for(name: str, geography: str) -> str:
    """Return shares that fit, so that nothing but the recipe is wrong."""
    if "gone" in name:
        return EVEN.replace("state", "land")
    return EVEN


SHARES = {
    "a level without a share": (
        EVEN, ["[budget] geolevels has no share for tract_group", "tract_group, tract"],
    ),
    "a sum that is not one": (
        EVEN.replace("}", ", tract_group = '1/10' }"), ["sum to 11/10"],
    ),
    "a level that is not there": (
        EVEN.replace("block = '1/5'", "block = '1/10', tract_groups = '1/10'"),
        ["has shares for tract_groups, which this run does not have and has no share for tract_group"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARES)
def test_shares_that_do_not_fit_the_recipe(name: str, tmp_path: Path, capsys: Capture) -> None:
    shares, wanted = SHARES[name]
    path = write_land(
        tmp_path,
        random_frame(3, root="us"),
        geography='spine = [{ step = "tract_groups" }, { step = "bypass" }]',
        more=f"[budget]\n{shares}",
    )
    for command in ("plan", "spine"):
        assert guarded(cli, [command, str(path)]) == 2
        said = capsys.readouterr().err
        for text in wanted:
            assert text in said, said
    with pytest.raises(BudgetError):
        load(path).budget  # noqa: B018  # resolved when it is asked for


def test_the_default_aian_ranges_may_match_nothing(tmp_path: Path, capsys: Capture) -> None:
    frame = random_frame(5, root="us")
    assert not (frame.codes("aianhh") != b"").any()
    path = write_land(tmp_path, frame, geography='spine = "aian"')
    assert guarded(cli, ["spine", str(path), "--json"]) == 0
    levels = {level["geolevel"]: level for level in json.loads(capsys.readouterr().out)["levels"]}
    assert levels["state"]["geounits"] == len(set(frame.codes("state").tolist()))
    assert guarded(cli, ["plan", str(path)]) == 0


def test_dropped_invariants_free_the_state(tmp_path: Path) -> None:
    spine = 'spine = [{ step = "split", level = "state", entities = ["place"] }]'
    run = land(tmp_path, spine, run='drop_invariants = ["total"]')
    assert len(run.plan.spine.levels[1]) > len(set(run.frame.codes("state").tolist()))


# What recipes mean ------------------------------------------------------------------------------------------

WRITTEN_OUT = {
    "standard": "spine = []",
    "optimized": 'spine = [{ step = "block_groups" }, { step = "bypass" }]',
    "aian": 'spine = [{ step = "aian" }, { step = "block_groups" }, { step = "bypass" }]',
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("kind", ["persons", "units"])
def test_named_spines_are_their_recipes(name: str, kind: str, tmp_path: Path) -> None:
    named = land(tmp_path / "named", f'spine = "{name}"', kind=kind)
    written = land(tmp_path / "written", WRITTEN_OUT[name], kind=kind)
    defaults = WRITTEN_OUT[name].replace(
        '"block_groups"', '"block_groups", fanout_cutoff = 12, off_by_one = false, name = "block_group"'
    )
    spelt = land(tmp_path / "spelt", defaults, kind=kind)
    assert named.plan.digest() == written.plan.digest() == spelt.plan.digest()
    assert named.resolved.recipe == written.resolved.recipe
    assert {*WRITTEN_OUT, "dhc"} == set(NAMED_SPINES)  # that has other geolevels: see test_spines.py


def test_units_and_people_have_other_block_groups_by_the_production_rule(tmp_path: Path) -> None:
    # Kinds of group quarters keep blocks of people apart, and not those of units.
    frame = random_frame(2)
    spine = 'spine = [{ step = "block_groups" }]'
    people, units = (
        load(write_land(tmp_path / kind, frame, kind=kind, geography=spine)).spine
        for kind in ("persons", "units")
    )
    assert len(people.levels[-2]) > len(units.levels[-2])


def test_steps_take_the_entities_of_the_section_unless_they_have_their_own(tmp_path: Path) -> None:
    frame = random_frame(2)
    found = {
        key: load(write_land(tmp_path / key, frame, geography=text)).spine.digest()
        for key, text in {
            "section": 'spine = [{ step = "block_groups" }]\nentities = ["sduni"]',
            "step": 'spine = [{ step = "block_groups", entities = ["sduni"] }]',
            "both": 'spine = [{ step = "block_groups", entities = ["sduni"] }]\nentities = ["place"]',
            "other": 'spine = [{ step = "block_groups" }]\nentities = ["place"]',
        }.items()
    }
    assert found["section"] == found["step"] == found["both"]
    assert found["other"] != found["both"]


@pytest.mark.parametrize(
    "text",
    [
        *WRITTEN_OUT.values(),
        'spine = "aian"\nentities = ["place", "sduni"]',
        *(BAD[k][0] for k in ("no name",)),
    ],
)
def test_the_released_run_file_says_the_same_recipe(text: str, tmp_path: Path) -> None:
    if "intersect" in text:
        text = (
            'spine = [{ step = "aian", codes = ["0001-4799", "2415"], areas = "aianhh" }, '
            '{ step = "intersect", level = "tract", name = "prim", entities = ["place"] }, '
            '{ step = "block_groups", fanout_cutoff = 3, off_by_one = true }, '
            '{ step = "bypass", largest_family = 9 }]'
        )
        more = "[budget]\n" + EVEN.replace("tract = '1/5'", "tract = '1/10', prim = '1/10'")
    else:
        more = ""
    run = land(tmp_path / "first", text, more=more)
    geography = tomllib.loads(released_toml(run.resolved, run.budget))["geography"]
    entities = f"\nentities = {json.dumps(geography['entities'])}" if "entities" in geography else ""
    spine = geography["spine"]
    written = json.dumps(spine) if isinstance(spine, str) else _inline(spine)
    again = land(tmp_path / "again", f"spine = {written}{entities}", more=more)
    assert again.resolved.recipe == run.resolved.recipe
    assert again.plan.digest() == run.plan.digest()


def _inline(steps: list[dict[str, object]]) -> str:
    return "[" + ", ".join(
        "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in step.items()) + " }"
        for step in steps
    ) + "]"  # fmt: skip


def test_levels_are_known_before_any_data_are_read() -> None:
    steps = (
        SpineStep("aian"),
        SpineStep("intersect", level="tract", name="prim"),
        SpineStep("split", level="tract", name="tract_subset"),
        SpineStep("group", level="tract_subset", name="tract_subset_group"),
        SpineStep("block_groups"),
        SpineStep("bypass"),
    )
    wanted = ("us", "state", "county", "prim", "tract_subset_group", "tract_subset", "block_group", "block")
    assert recipe_levels(LEVELS, steps) == wanted
    assert stand_ins(LEVELS, steps) == dict.fromkeys(("prim", "tract_subset_group", "tract_subset"), "tract")
    assert stand_ins(LEVELS, (SpineStep("tract_groups"), SpineStep("block_groups", name="obg"))) == {
        "tract_group": "tract", "obg": "block",
    }  # fmt: skip
    assert stand_ins(LEVELS, NAMED_SPINES["aian"]) == {}
    with pytest.raises(ConfigError, match="the name 'block_group' is taken"):
        recipe_levels(LEVELS, (SpineStep("group", level="tract", name="block_group"),))
    with pytest.raises(ConfigError, match="no level can stand above it"):
        recipe_levels(("block",), (SpineStep("tract_groups"),))


# The DHC's spine: section 6 of the paper --------------------------------------------------------------------

DHC = """spine = [
    { step = "aian" },
    { step = "intersect", level = "tract", name = "prim", entities = ["place"] },
    { step = "split", level = "tract", name = "tract_subset", entities = ["aianhh"] },
    { step = "group", level = "tract_subset", name = "tract_subset_group", entities = ["aianhh"], \
fanout_cutoff = 1 },
    { step = "block_groups", entities = ["sduni", "block_group"], fanout_cutoff = 2 },
    { step = "bypass" },
]"""
DHC_SHARES = """[budget]
geolevels = { us = '1/8', state = '1/8', county = '1/8', prim = '1/8', tract_subset_group = '1/8', \
tract_subset = '1/8', block_group = '1/8', block = '1/8' }"""


def groups_of(spine: Spine, level: str) -> list[list[str]]:
    codes = [code.decode() for code in spine.leaf.geocodes]
    starts = spine.leaf_starts(spine.index(level)).tolist()
    return [codes[a:b] for a, b in itertools.pairwise(starts)]


def columns(frame: Frame, category: str) -> dict[str, str]:
    pairs = zip(frame.geocodes.tolist(), frame.codes(category).tolist(), strict=True)
    return {code.decode(): area.decode() for code, area in pairs}


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 6])
def test_the_spine_of_the_dhc(seed: int, tmp_path: Path) -> None:
    run = load(write_land(tmp_path, random_frame(seed, root="us"), geography=DHC, more=DHC_SHARES))
    spine, frame = run.spine, run.frame
    assert spine.names == (
        "us", "state", "county", "prim", "tract_subset_group", "tract_subset", "block_group", "block"
    )  # fmt: skip
    place, aian, school = (columns(frame, name) for name in ("place", "aianhh", "sduni"))
    branch = {
        code: area != "" and not "8000" <= area <= "8999" and area < "9500" for code, area in aian.items()
    }
    key = {
        "state": {b: (branch[b], b[:2]) for b in place},
        "county": {b: (branch[b], b[:5]) for b in place},
        "prim": {b: (branch[b], b[:5], place[b]) for b in place},
        "tract_subset": {b: (branch[b], b[:11], place[b], aian[b]) for b in place},
    }
    for level, of_block in key.items():
        found = groups_of(spine, level)
        assert all(len({of_block[b] for b in leaves}) == 1 for leaves in found), level
        assert len(found) == len(set(of_block.values())), level
    # Tract subset groups: whole tract subsets of one prim, alike in AIAN area, of bounded number.
    subset, prim = key["tract_subset"], key["prim"]
    for leaves in groups_of(spine, "tract_subset_group"):
        assert len({prim[b] for b in leaves}) == 1
        assert len({aian[b] for b in leaves}) == 1
        inside = {subset[b] for b in leaves}
        assert {b for b in place if subset[b] in inside} == set(leaves)
        of_prim = len({subset[b] for b in place if prim[b] == prim[leaves[0]]})
        assert len(inside) <= isqrt(of_prim) + 1
    # Block groups: blocks of one tract subset, school district and official block group, of bounded number.
    for leaves in groups_of(spine, "block_group"):
        assert len({(subset[b], school[b], b[:12]) for b in leaves}) == 1
        assert len(leaves) <= isqrt(sum(s == subset[leaves[0]] for s in subset.values())) + 2
    run.spine.check_paths([run.budget.geolevels[name] for name in spine.names])
    assert (
        run.plan.levels[spine.index("prim")].measured == run.plan.levels[spine.index("tract_subset")].measured
    )


# Budgets ----------------------------------------------------------------------------------------------------


def test_levels_that_a_recipe_adds_borrow_query_groups(tmp_path: Path) -> None:
    run = land(tmp_path, DHC, more=DHC_SHARES)
    assert run.resolved.budget.preset == "us2020-persons"
    base = preset("us2020-persons")
    for level in ("prim", "tract_subset_group", "tract_subset"):
        assert dict(run.budget.query_shares(level)) == dict(run.budget.queries[level])
        canonical = run.product.workload.canonical
        assert run.budget.queries[level] == {canonical(q): s for q, s in base.queries["tract"].items()}
    own = DHC_SHARES + "\n[budget.queries]\n'*' = { total = '1/3', detailed = '2/3' }"
    run = land(tmp_path / "own", DHC, more=own)
    assert dict(run.budget.query_shares("prim")) == {"total": F(1, 3), "detailed": F(2, 3)}


@pytest.mark.parametrize("name", ["us2020-persons", "us2020-units"])
@pytest.mark.parametrize("spine", ["aian", "optimized", "standard"])
def test_a_national_budget_normalised_to_one_state_is_rescaled_exactly(
    name: str, spine: str, tmp_path: Path
) -> None:
    # Footnote 8 of the paper: the shares of Puerto Rico's runs were normalised to the same global budget.
    text = f'spine = "{spine}"'
    more = f'[budget]\npreset = "{name}"\n'
    kind = name.removeprefix("us2020-")
    with pytest.raises(BudgetError, match="has shares for us, which this run does not have"):
        land(tmp_path, text, more=more, root="state", kind=kind).plan  # noqa: B018
    run = land(tmp_path, text, more=more + "normalise = true", root="state", kind=kind)
    base = preset(name)
    left = 1 - base.geolevels["us"]
    assert left < 1
    assert run.budget.geolevels == {k: v / left for k, v in base.geolevels.items() if k != "us"}
    assert sum(run.budget.geolevels.values()) == 1
    assert run.budget.total == base.rho
    assert "us" not in run.budget.queries
    run.plan  # noqa: B018
    run.spine.check_paths(list(run.budget.geolevels.values()))


def test_a_bypassed_geounit_with_an_invariant_is_kept_under_pure_privacy(tmp_path: Path) -> None:
    more = f"[budget]\nepsilon = '3'\n{EVEN}\n[budget.queries]\n'*' = {{ total = '1/2', detailed = '1/2' }}"
    text = 'spine = [{ step = "aian" }, { step = "bypass" }]'
    for drop in ("", '\ndrop_invariants = ["total"]'):
        run = land(tmp_path / f"d{len(drop)}", text, more=more, run='mechanism = "discrete-laplace"' + drop)
        plain = land(
            tmp_path / f"p{len(drop)}",
            'spine = [{ step = "aian" }]',
            more=more,
            run='mechanism = "discrete-laplace"',
        )
        kept = [len(level) for level in run.spine.levels[:2]] == [
            len(level) for level in plain.spine.levels[:2]
        ]
        assert kept == (drop == "")
        assert len(run.spine.levels[2]) > len(plain.spine.levels[2]), "counties are replaced"
        run.plan  # noqa: B018


def test_the_plan_warns_of_what_is_measured_in_vain_and_of_nothing_else(tmp_path: Path) -> None:
    # What parts of a state hold is not invariant, and a bypassed child asks nothing.
    def warnings(spine: str) -> str:
        return "\n".join(
            make_plan(land(tmp_path / str(len(spine)), spine, more="[budget]\n" + EVEN)).warnings
        )

    assert "measures 'total' at geolevel 'state'" in warnings('spine = "standard"')
    assert "measures 'total' at geolevel 'state'" not in warnings('spine = "aian"')
    every = 'spine = [{ step = "split", level = "block_group", entities = ["block"] }'
    assert "every geounit of 'block_group' has one child" in warnings(every + "]")
    assert "has one child" not in warnings(every + ', { step = "bypass" }]')
