"""From what is typed to a budget: messages at fields, sums, rescaling, shares that give way."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.budget.presets import preset, preset_names
from opendas.explore.drafts import Draft, draft_of, moved, read_draft, rescaled
from opendas.explore.problems import Problems, read_number
from opendas.explore.stand_ins import STAND_INS, StandIn, stand_in

SUBJECT = stand_in("state-persons")
START = draft_of(SUBJECT.start(), SUBJECT)


def problems_of(draft: Draft, subject: StandIn = SUBJECT) -> dict[str, str]:
    problems = Problems()
    budget, _ = read_draft(draft, "a", subject, problems)
    assert (budget is None) == bool(problems)
    return problems.by_field


@pytest.mark.parametrize("key", STAND_INS)
def test_every_preset_comes_back_exactly(key: str) -> None:
    subject = stand_in(key)
    assert subject.presets()
    for name in subject.presets():
        budget = subject.preset(name)
        problems = Problems()
        found, sums = read_draft(draft_of(budget, subject), "a", subject, problems)
        assert not problems
        assert found == budget
        assert {total.value for group, total in sums.items()} <= {1, 0}
    assert {preset(name).product for name in subject.presets()} == {subject.product.name}
    assert set(subject.presets()) <= set(preset_names())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/8", "1/8"),
        (" 12.5 % ", "1/8"),
        (".5", "1/2"),
        ("1e-10", "1/10000000000"),
        ("0", "0"),
        ("\u22121", None),
    ],
)
def test_numbers_as_people_type_them(text: str, value: str | None) -> None:
    found = read_number(text, "a.x", Problems())
    assert found == (None if value is None else Fraction(value))


@settings(max_examples=examples(50))
@given(st.text(max_size=200))
def test_anything_may_be_typed(text: str) -> None:
    for draft in (
        replace(START, total=text),
        replace(START, delta=text),
        replace(START, mechanism=text),
        replace(START, neighbours=text),
        replace(START, levels=(text, *START.levels[1:])),
    ):
        for name, message in problems_of(draft).items():
            assert name.startswith("a.")
            assert message
            assert len(message) < 400


def test_a_level_without_budget_may_keep_its_queries() -> None:
    others = sum(Fraction(text) for text in START.levels[1:])
    levels = ("0", *(str(Fraction(text) / others) for text in START.levels[1:]))
    assert problems_of(replace(START, levels=levels)) == {}
    spoiled = (("junk", *START.queries[0][1:]), *START.queries[1:])
    assert problems_of(replace(START, levels=levels, queries=spoiled)) == {}


def test_noise_too_wide_to_draw_is_said_at_its_share() -> None:
    row = list(START.queries[1])
    row[0], row[1] = "1e-14", str(1 - sum(Fraction(t) for t in row[2:] if t) - Fraction("1e-14"))
    queries = (START.queries[0], tuple(row), *START.queries[2:])
    assert list(problems_of(replace(START, queries=queries))) == ["a.q1.0"]


shares = st.lists(st.fractions(0, 3, max_denominator=5000), min_size=5, max_size=5)


@settings(max_examples=examples(40))
@given(shares)
def test_rescaled_shares_sum_to_one_in_the_same_proportions(given_shares: list[Fraction]) -> None:
    draft = replace(START, levels=tuple(str(share) for share in given_shares))
    found = [Fraction(text) for text in rescaled(draft, "l").levels]
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
    found = [Fraction(text) for text in moved(replace(START, levels=tuple(texts)), "l", place).levels]
    assert sum(found) == 1
    assert all(share >= 0 for share in found)
    assert abs(found[place] - Fraction(moved_to, 1000)) <= Fraction(1, 1_000_000)


def test_moving_again_and_again_keeps_fractions_short() -> None:
    draft = START
    for step in range(60):
        levels = list(draft.levels)
        levels[step % 5] = str(Fraction(1 + 7 * step % 400, 1000))
        draft = moved(replace(draft, levels=tuple(levels)), "l", step % 5)
        assert max(len(text) for text in draft.levels) <= 60
    assert problems_of(draft) == {}


def test_what_cannot_be_scaled_stays() -> None:
    assert rescaled(replace(START, levels=("0",) * 5), "l").levels == ("0",) * 5
    assert rescaled(replace(START, levels=("junk", "1", "1", "1", "1")), "l").levels[0] == "junk"
    assert moved(replace(START, levels=("2", "0", "0", "0", "0")), "l", 0).levels[0] == "2"
    assert (
        moved(replace(START, levels=("1/2", "0", "0", "0", "0")), "l", 0).levels == ("0.5",) + ("0.125",) * 4
    )


def test_empty_query_fields_stay_empty() -> None:
    row = START.queries[1]
    assert "" in draft_of(stand_in("us-units").start(), stand_in("us-units")).queries[0] or all(row)
    doubled = (tuple(str(2 * Fraction(t)) if t else "" for t in row), *START.queries[1:])
    found = rescaled(
        replace(START, queries=(START.queries[0], *doubled[:1], *START.queries[2:])), "q1"
    ).queries[1]
    assert [bool(text) for text in found] == [bool(text) for text in row]
