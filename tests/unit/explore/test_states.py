"""Links and files bring the same state back, and damage is told."""

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
from opendas.explore.budget_page import acted, start_state
from opendas.explore.household_page import HouseholdState, started
from opendas.explore.stand_ins import stand_in
from opendas.explore.states import BudgetState, read_link, state_document, write_link

START = start_state(stand_in("state-units"))
field = st.text(max_size=60)


@settings(max_examples=examples(60))
@given(field, field, st.lists(field, min_size=5, max_size=5), st.booleans())
def test_a_link_brings_any_state_back(total: str, delta: str, levels: list[str], two: bool) -> None:
    plan = replace(START.plans[0], total=total, delta=delta, levels=tuple(levels))
    state = replace(START, plans=(plan, START.plans[0]) if two else (plan,))
    link = write_link(state.to_document())
    assert set(link) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert BudgetState.of_document(read_link(link)) == state
    kept = json.loads(json.dumps(state.to_document()))
    assert BudgetState.of_document(state_document(kept)) == state


@given(field, st.booleans())
def test_household_states_come_back(text: str, on: bool) -> None:
    plan = started("targets").plans[0]
    values = {**plan.values, ("PH2", "usa_*"): text}
    plan = replace(plan, values=values, tau={**plan.tau, "PH3": text}, on=plan.on if on else frozenset())
    state = HouseholdState((plan, plan))
    assert HouseholdState.of_document(read_link(write_link(state.to_document()))) == state


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
    with pytest.raises(ConfigError, match=r"link is damaged|no state"):
        BudgetState.of_document(read_link(broken))


def packed(document: object) -> str:
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(document).encode())).decode().rstrip("=")


@pytest.mark.parametrize(
    "change",
    [
        {"plans": []},
        {"plans": [{}]},
        {"plans": "x"},
        {"geolevels": None},
        {"geolevels": ["a"] * 401},
        {"subject": 3},
        {"product": "x" * 300},
    ],
)
def test_a_state_of_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="damaged"):
        BudgetState.of_document(read_link(packed(START.to_document() | change)))


@pytest.mark.parametrize("document", [[], 3, None, {}, {"opendas-explore": 99}])
def test_other_data_are_no_state(document: object) -> None:
    with pytest.raises(ConfigError):
        read_link(packed(document))


def test_a_link_that_unpacks_without_end_is_refused() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(b" " * 30_000_000, 9)).decode().rstrip("=")
    with pytest.raises(ConfigError, match="damaged"):
        read_link(bomb)


@pytest.mark.parametrize(
    "action", ["", "move:", "move:a.l9", "move:a.q9.9", "rescale:c.l", "rescale:a.qx", "x:y:z"]
)
def test_an_unknown_action_changes_nothing(action: str) -> None:
    assert acted(START, action) == START


def test_plans_are_compared_swapped_and_left_out() -> None:
    two = acted(START, "compare")
    assert len(two.plans) == 2
    other = replace(two, plans=(replace(two.plans[0], total="1"), two.plans[1]))
    assert acted(other, "swap").plans == other.plans[::-1]
    assert acted(other, "single").plans == other.plans[:1]
