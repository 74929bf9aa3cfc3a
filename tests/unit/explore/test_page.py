"""Links and files bring the same state back, and damage is told; what buttons do with plans."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.errors import ConfigError
from opendas.explore.budget_page import BudgetPage, budget_state
from opendas.explore.household_page import HouseholdPage, household_state
from opendas.explore.households import value_field
from opendas.explore.page import State, read_link, state_document, write_link
from opendas.explore.subjects import stand_in

PAGE, HOUSEHOLDS = BudgetPage(), HouseholdPage()
START = budget_state(stand_in("state-units"))
field = st.text(max_size=60)


@settings(max_examples=examples(60))
@given(field, field, field, st.booleans())
def test_a_link_brings_any_state_back(total: str, delta: str, level: str, two: bool) -> None:
    plan = {**START.plans[0], "total": total, "delta": delta, "l3": level}
    state = replace(START, plans=(plan, START.plans[0]) if two else (plan,))
    link = write_link(state.to_document())
    assert set(link) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert PAGE.from_document(read_link(link)) == state
    kept = json.loads(json.dumps(state.to_document()))
    assert PAGE.from_document(state_document(kept)) == state


@settings(max_examples=examples(20))
@given(field, st.booleans())
def test_household_states_come_back(text: str, on: bool) -> None:
    plan = {
        **HOUSEHOLDS.started("targets").plans[0],
        value_field("PH2", "usa_*"): text,
        "tau.PH3": text,
        "on.1": "1" if on else "",
    }
    state = household_state(plan, plan)
    assert HOUSEHOLDS.from_document(read_link(write_link(state.to_document()))) == state


@pytest.mark.parametrize("version", [1, 3])
def test_a_state_of_another_version_is_refused(version: int) -> None:
    document = {**START.to_document(), "opendas-explore": version}
    with pytest.raises(ConfigError, match="Another version"):
        read_link(write_link(document))


@settings(max_examples=examples(150))
@given(st.data())
def test_a_damaged_link_is_an_error_and_nothing_else(data: st.DataObject) -> None:
    link = write_link(START.to_document())
    place = data.draw(st.integers(0, len(link) - 1))
    letter = data.draw(st.sampled_from("AZaz09-_=/%\u00e9"))
    broken = data.draw(
        st.sampled_from([link[:place], link[:place] + letter + link[place + 1 :], link + letter, letter])
    )
    bare = broken.rstrip("=")
    if len(bare) == len(link) and bare[:-1] == link[:-1]:
        return  # of the last letter some bits carry nothing
    with pytest.raises(ConfigError, match=r"is damaged|no state"):
        PAGE.from_document(read_link(broken))


def packed(document: object) -> str:
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(document).encode())).decode().rstrip("=")


@pytest.mark.parametrize(
    "change",
    [
        {"plans": []},
        {"plans": [{}]},
        {"plans": "x"},
        {"plans": [{**START.plans[0], "l0": 3}]},
        {"geolevels": None},
        {"geolevels": ["a"] * 2001},
        {"subject": 3},
        {"product": "x" * 300},
    ],
)
def test_a_state_of_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="damaged"):
        PAGE.from_document(read_link(packed(START.to_document() | change)))


@pytest.mark.parametrize("document", [[], 3, None, {}, {"opendas-explore": 99}])
def test_other_data_are_no_state(document: object) -> None:
    with pytest.raises(ConfigError):
        read_link(packed(document))


def test_a_link_that_unpacks_without_end_is_refused() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(b" " * 30_000_000, 9)).decode().rstrip("=")
    with pytest.raises(ConfigError, match="damaged"):
        read_link(bomb)


def test_an_unknown_action_changes_nothing() -> None:
    for action in (
        "",
        "move:",
        "move:a.l9",
        "move:a.q9.9",
        "move:a.l",
        "rescale:c.l",
        "rescale:a.qx",
        "x:y:z",
    ):
        assert PAGE.after_action(START, action) == START
    state = HOUSEHOLDS.started()
    for action in ("budget:c", "target:", "target:a.x", "both:a"):
        assert HOUSEHOLDS.after_action(state, action) == state


def test_plans_are_compared_swapped_and_left_out() -> None:
    two = PAGE.after_action(START, "compare")
    assert len(two.plans) == 2
    other = State(two.page, two.about, ({**two.plans[0], "total": "1"}, two.plans[1]))
    assert PAGE.after_action(other, "swap").plans == other.plans[::-1]
    assert PAGE.after_action(other, "single").plans == other.plans[:1]
