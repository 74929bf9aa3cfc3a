"""From what is typed to a budget: messages at fields, sums, rescaling, shares that are rescaled; margins."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.budget.presets import preset, preset_names
from opendas.explore.budget import budget_fields, read_budget
from opendas.explore.fields import Problems, move_share, read_number, rescale_shares
from opendas.explore.subjects import STAND_INS, stand_in

SUBJECT = stand_in("state-persons")
START = budget_fields(SUBJECT.start(), SUBJECT)
LEVELS = [START[f"l{i}"] for i in range(5)]


def with_levels(texts: list[str]) -> dict[str, str]:
    return {**START, **{f"l{i}": text for i, text in enumerate(texts)}}


def problems_of(plan: Mapping[str, str]) -> dict[str, str]:
    problems = Problems()
    budget, _ = read_budget(plan, "a", SUBJECT, problems)
    assert (budget is None) == bool(problems)
    return problems.by_field


@pytest.mark.parametrize("key", STAND_INS)
def test_every_preset_comes_back_exactly(key: str) -> None:
    subject = stand_in(key)
    assert subject.presets
    for budget in subject.presets.values():
        problems = Problems()
        found, sums = read_budget(budget_fields(budget, subject), "a", subject, problems)
        assert not problems
        assert found == budget
        assert set(sums.values()) <= {1, 0}
    assert {preset(name).product for name in subject.presets} == {subject.product.name}
    assert set(subject.presets) <= set(preset_names())


def test_numbers_as_people_type_them() -> None:
    typed = {
        "1/8": "1/8",
        " 12.5 % ": "1/8",
        ".5": "1/2",
        "1e-10": "1/10000000000",
        "0": "0",
        "\u22121": None,
    }
    for text, value in typed.items():
        found = read_number(text, "a.x", Problems())
        assert found == (None if value is None else Fraction(value)), text


@settings(max_examples=examples(50))
@given(st.text(max_size=200))
def test_anything_may_be_typed(text: str) -> None:
    for name in ("total", "delta", "mechanism", "neighbours", "l0"):
        for field, message in problems_of({**START, name: text}).items():
            assert field.startswith("a.")
            assert message
            assert len(message) < 400


def test_a_level_without_budget_may_keep_its_queries() -> None:
    others = sum(Fraction(text) for text in LEVELS[1:])
    plan = with_levels(["0", *(str(Fraction(text) / others) for text in LEVELS[1:])])
    assert problems_of(plan) == {}
    assert problems_of({**plan, "q0.0": "junk"}) == {}


def test_noise_too_wide_to_draw_is_said_at_its_share() -> None:
    rest = 1 - sum(Fraction(START[f"q1.{j}"] or 0) for j in range(2, len(SUBJECT.queries)))
    plan = {**START, "q1.0": "1e-14", "q1.1": str(rest - Fraction("1e-14"))}
    assert list(problems_of(plan)) == ["a.q1.0"]


shares = st.lists(st.fractions(0, 3, max_denominator=5000), min_size=5, max_size=5)


@settings(max_examples=examples(40))
@given(shares)
def test_rescaled_shares_sum_to_one_in_the_same_proportions(given_shares: list[Fraction]) -> None:
    found = [Fraction(text) for text in rescale_shares([str(share) for share in given_shares])]
    total = sum(given_shares)
    if total == 0:
        assert found == given_shares
    else:
        assert sum(found) == 1
        for share, before in zip(found, given_shares, strict=True):
            assert abs(share - before / total) <= Fraction(1, 1_000_000)


@settings(max_examples=examples(40))
@given(shares, st.integers(0, 4), st.integers(0, 1000))
def test_the_others_give_way_in_proportion(given_shares: list[Fraction], place: int, moved_to: int) -> None:
    texts = [str(share) for share in given_shares]
    texts[place] = str(Fraction(moved_to, 1000))
    found = [Fraction(text) for text in move_share(texts, place)]
    assert sum(found) == 1
    assert all(share >= 0 for share in found)
    assert abs(found[place] - Fraction(moved_to, 1000)) <= Fraction(1, 1_000_000)


def test_moving_again_and_again_keeps_fractions_short() -> None:
    texts = list(LEVELS)
    for step in range(60):
        texts[step % 5] = str(Fraction(1 + 7 * step % 400, 1000))
        texts = list(move_share(texts, step % 5))
        assert max(len(text) for text in texts) <= 60
    assert problems_of(with_levels(texts)) == {}


def test_what_cannot_be_scaled_stays() -> None:
    assert rescale_shares(["0"] * 5) == ["0"] * 5
    assert rescale_shares(["junk", "1", "1", "1", "1"])[0] == "junk"
    assert move_share(["2", "0", "0", "0", "0"], 0)[0] == "2"
    assert list(move_share(["1/2", "0", "0", "0", "0"], 0)) == ["0.5"] + ["0.125"] * 4


def test_empty_query_fields_stay_empty() -> None:
    units = stand_in("us-units")
    assert "" in budget_fields(units.start(), units).values()
    assert list(rescale_shares(["2", "", "2"])) == ["0.5", "", "0.5"]
