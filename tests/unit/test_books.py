"""Books: terms, the filter against an obvious accountant, and how a book is found."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import stat
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opendas.custody.account import AccountFacts, account_of, book_answer, selection_of
from opendas.custody.book_terms import BookTerms, rho_within
from opendas.custody.books import add_loss, book_of, create_book, file_tags, known_books
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_entries import INFINITE, LedgerEntry, total_spent
from opendas.custody.ledger_lines import Finished, LedgerAct, LedgerLine, read_lines
from opendas.custody.protected_units import change_of_any, unit_id
from opendas.errors import ConfigError, EnvironmentFailure, PrivacyError
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.privacy.zcdp import epsilon_cks
from opendas.report.guarantee import account_text

DHC_UNIT = "housing unit or group quarters"
BOUNDED, UNBOUNDED = Neighbours.BOUNDED, Neighbours.UNBOUNDED
GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE


def act(number: int, unit: str = "patient", loss: object = 1, **changes: object) -> LedgerEntry:
    entry = LedgerEntry(
        run_id=f"run-{number}",
        product="patients",
        key_commitment=f"key-{number}",
        input_tag="tag",
        plan_digest="-",
        mechanism=GAUSSIAN,
        loss=loss,  # type: ignore[arg-type]
        relation=BOUNDED,
        protected_unit=unit,
        version="1",
    )
    return dataclasses.replace(entry, **changes)  # type: ignore[arg-type]


def terms(unit: str = "patient", rho: object = 3, relation: Neighbours = BOUNDED) -> BookTerms:
    return BookTerms.declare(unit, rho=rho, relation=relation, key_commitment="k", version="1")  # type: ignore[arg-type]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "patients.book"
    create_book(path, "patient", rho="3")
    return path


# Terms.


def test_a_new_book_holds_its_terms_and_its_key_is_for_the_owner(book: Path) -> None:
    (line,) = book.read_bytes().splitlines()
    record = json.loads(line)
    assert (record["kind"], record["unit"], record["limit"]) == ("book", "patient", {"rho": "3"})
    key = book.with_name("patients.book.key")
    assert stat.S_IMODE(book.stat().st_mode) == stat.S_IMODE(key.stat().st_mode) == 0o600
    assert book_of(book).key.commitment() == record["key_commitment"]
    assert key.read_text().splitlines()[-1] not in book.read_text(), "the book alone holds no key"
    with pytest.raises(ConfigError, match="new file"):
        create_book(book, "patient", rho="3")


@pytest.mark.parametrize(
    ("limit", "match"),
    [
        ({}, "a rho, or as an epsilon"),
        ({"rho": "1", "epsilon": "1", "delta": "1e-10"}, "a rho, or as an epsilon"),
        ({"epsilon": "1"}, "a rho, or as an epsilon"),
        ({"rho": "0"}, "positive"),
        ({"epsilon": "1", "delta": "2"}, "strictly between"),
        ({"epsilon": "0", "delta": "1e-10"}, "allows nothing"),
    ],
)
def test_a_limit_is_given_in_one_way(tmp_path: Path, limit: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        create_book(tmp_path / "b", "patient", **limit)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir()), "nothing half-made stays"


def test_a_unit_is_an_identifier(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'housing-unit'"):
        create_book(tmp_path / "b", "Housing unit", rho="3")
    assert unit_id("Housing unit") == unit_id("housing-unit") == "housing-unit"
    with pytest.raises(ConfigError):
        unit_id(" - ")


def test_a_limit_in_epsilon_is_the_largest_rho_within_it() -> None:
    for epsilon, delta in ((Fraction(10), Fraction(1, 10**10)), (Fraction(1, 2), Fraction(1, 10**6))):
        rho = rho_within(epsilon, delta)
        assert Fraction(epsilon_cks(rho, delta)) <= epsilon
        assert Fraction(epsilon_cks(rho + Fraction(1, 10**9), delta)) > epsilon


def test_a_limit_in_epsilon_is_shown_with_what_is_spent_of_it(tmp_path: Path) -> None:
    create_book(tmp_path / "b", "patient", epsilon="10", delta="1e-10")
    ledger = Ledger.beside(tmp_path / "b")
    ledger.intend(act(1, loss="1/2"))
    answer = book_answer(ledger.lines())
    assert answer["limit"]["epsilon"] == "10"
    assert answer["spent"] == {"rho": "1/2", "epsilon": str(epsilon_cks("1/2", "1e-10"))}


# The filter.


def test_an_act_past_the_limit_is_refused_and_leaves_no_line(book: Path) -> None:
    ledger = Ledger.beside(book)
    for number in range(3):
        ledger.intend(act(number))
    before = book.read_bytes()
    with pytest.raises(PrivacyError, match=r"3 of the limit 3 is spent, and 0 is left\. Nothing was drawn"):
        ledger.intend(act(3, loss="1/1000000"))
    assert book.read_bytes() == before
    ledger.intend(act(1))  # the resumption of an act is not charged again
    assert book.read_bytes() == before


def test_records_by_another_name_do_not_split_the_sum(book: Path) -> None:
    ledger = Ledger.beside(book)
    ledger.intend(act(1))
    with pytest.raises(PrivacyError, match='protected_unit = "patient"'):
        ledger.intend(act(2, "record"))
    ledger.intend(act(3, "Patient"))
    assert book_answer(ledger.lines())["spent"] == {"rho": "2"}


def test_without_a_book_the_sum_over_all_names_is_stated(tmp_path: Path) -> None:
    """Two runs on one table that call its rows by two names: two totals of 1, and now one of 2."""
    with Ledger.open(tmp_path / "ledger.jsonl") as ledger:
        ledger.intend(act(1, "record"))
        ledger.intend(act(2, "patient"))
        totals = {total.change: total.rho for total in total_spent(ledger.entries())}
    assert totals == {"one record": 1, "one patient": 1, "one record, whatever a run calls it": 2}
    assert change_of_any(["person", "housing-unit", "address"]) is None, "a census tells its records apart"


def test_seeded_noise_and_relations_without_a_loss_are_not_admitted(tmp_path: Path) -> None:
    create_book(tmp_path / "b", "patient", rho="3", relation="unbounded")
    ledger = Ledger.beside(tmp_path / "b")
    with pytest.raises(PrivacyError, match="no loss under that relation"):
        ledger.intend(act(1))
    ledger.intend(act(2, other_relations={UNBOUNDED: Fraction(1, 2)}))
    with pytest.raises(PrivacyError, match="seed"):
        ledger.intend(act(3, loss=INFINITE, other_relations={UNBOUNDED: INFINITE}))


def test_persons_units_and_household_tables_are_one_sum(tmp_path: Path) -> None:
    create_book(tmp_path / "b", "person", rho="10")
    ledger = Ledger.beside(tmp_path / "b")
    ledger.intend(act(1, "person", "5/2"))
    ledger.intend(act(2, "housing unit", "1/2"))
    ledger.intend(act(3, "address", "1", relation=UNBOUNDED, other_relations={BOUNDED: Fraction(2)}))
    answer = book_answer(ledger.lines())
    assert answer["spent"] == {"rho": "11/2"}, "5/2 + 2 times 1/2 + the bounded 2"
    totals = {(t["change"], t["neighbours"]): t["rho"] for t in answer["totals"]}
    assert totals["one person with the unit changes it induces", "bounded"] == "11/2"
    assert totals["one person", "bounded"] == "5/2"
    assert totals["one housing unit", "bounded"] == "1/2"
    with pytest.raises(PrivacyError, match="is left"):
        ledger.intend(act(4, "address", "1", relation=UNBOUNDED, other_relations={BOUNDED: Fraction(5)}))


def test_a_person_who_changes_two_households_pays_four_times(tmp_path: Path) -> None:
    create_book(tmp_path / "b", "person", rho="20")
    ledger = Ledger.beside(tmp_path / "b")
    ledger.intend(act(1, "person", "5/2"))
    ledger.intend(act(2, "housing unit", "1/2"))
    ledger.intend(act(3, DHC_UNIT, "1"))
    ledger.intend(act(4, DHC_UNIT, "1/4"))
    answer = book_answer(ledger.lines())
    totals = {t["change"]: t["rho"] for t in answer["totals"] if t["neighbours"] == "bounded"}
    assert answer["spent"]["rho"] == totals["one person with the unit changes it induces"] == "17/2"
    assert totals["one housing unit"] == "1/2"
    assert totals[f"one {DHC_UNIT}"] == "7/4", "its records change in both histograms, and in the unit file"


def test_a_unit_with_several_records_pays_for_them(book: Path) -> None:
    ledger = Ledger.beside(book)
    with pytest.raises(PrivacyError, match="rho = 9/2"):
        ledger.intend(act(1, loss="1/2", unit_factor=Fraction(9)))
    ledger.intend(act(2, loss="1/3", unit_factor=Fraction(9)))
    assert book_answer(ledger.lines())["left"] == {"rho": "0"}


def test_what_was_spent_elsewhere_is_entered(book: Path) -> None:
    add_loss(book_of(book), "5/2", "annual report")
    add_loss(book_of(book), "1/4", "annual report")
    with pytest.raises(PrivacyError, match="1/4 is left"):
        Ledger.beside(book).intend(act(1))
    with pytest.raises(ConfigError, match="words"):
        add_loss(book_of(book), "1/4", " ")
    assert [entry["product"] for entry in book_answer(Ledger.beside(book).lines())["acts"]] == [
        "annual report",
        "annual report",
    ]


_LOSSES = st.fractions(min_value=Fraction(1, 50), max_value=2, max_denominator=50)
_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["person", "housing unit", "address", "patient", DHC_UNIT]),
        st.sampled_from([GAUSSIAN, LAPLACE]),
        st.sampled_from([BOUNDED, UNBOUNDED]),
        _LOSSES,
        st.none() | _LOSSES,
        st.integers(1, 3),
    ),
    max_size=12,
)


@given(
    _ACTS, st.sampled_from(["person", "patient", "housing-unit"]), st.sampled_from(list(Neighbours)), _LOSSES
)
def test_the_filter_agrees_with_an_obvious_accountant(
    acts: list[tuple[str, Mechanism, Neighbours, Fraction, Fraction | None, int]],
    unit: str,
    relation: Neighbours,
    limit: Fraction,
) -> None:
    times = {
        "person": {"person": 1, "housing unit": 2, "address": 1, DHC_UNIT: 4},
        "patient": {"patient": 1},
        "housing-unit": {"housing unit": 1, "address": 1, DHC_UNIT: 1},
    }[unit]
    book, admitted, spent = terms(unit, limit, relation), [], Fraction(0)
    for number, (of, mechanism, under, loss, other, factor) in enumerate(acts):
        more = {} if other is None else {next(r for r in Neighbours if r is not under): other}
        entry = act(
            number,
            of,
            loss,
            mechanism=mechanism,
            relation=under,
            other_relations=more,
            unit_factor=Fraction(factor),
        )
        known = loss if under is relation else other
        cost = None
        if known is not None and of in times:
            each = times[of] * factor * known
            cost = each * each / 2 if mechanism is LAPLACE else each
        if cost is not None and spent + cost <= limit:
            book.admit(admitted, entry)
            admitted.append(entry)
            spent += cost
        else:
            with pytest.raises(PrivacyError):
                book.admit(admitted, entry)
    assert book.spent(admitted) == spent <= limit


def _spend(path: Path, first: int) -> None:
    for number in range(first, first + 15):
        try:
            Ledger.beside(path).intend(act(number, loss="1/4"))
        except PrivacyError:
            continue


def test_two_processes_at_once_do_not_pass_the_limit(book: Path) -> None:
    context = multiprocessing.get_context("spawn")
    racing = [context.Process(target=_spend, args=(book, first)) for first in (0, 100, 200)]
    for process in racing:
        process.start()
    for process in racing:
        process.join()
        assert process.exitcode == 0
    lines, _ = read_lines(book.read_bytes(), "book")
    assert len([line for line in lines if line.entry is not None]) == 12
    assert book_answer(lines)["left"] == {"rho": "0"}


# Damage.


def test_every_changed_byte_of_a_book_is_noticed(book: Path) -> None:
    Ledger.beside(book).intend(act(1))
    Ledger.beside(book).enter(LedgerAct("evaluate", "run-1", inputs=("t",)), again=True)
    whole = book.read_bytes()
    for position in range(0, len(whole) - 1, 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(PrivacyError, match="damaged"):
            read_lines(bytes(damaged), "book")


def test_terms_stand_in_the_first_line_only(book: Path) -> None:
    lines = Ledger.beside(book).lines()
    again = LedgerLine.following(lines, terms(rho=100))
    book.write_bytes(book.read_bytes() + again.data + b"\n")
    with pytest.raises(PrivacyError, match="first line"):
        book_of(book)


def test_a_lost_or_another_key_is_refused(book: Path, tmp_path: Path) -> None:
    key = book.with_name("patients.book.key")
    create_book(tmp_path / "other", "patient", rho="3")
    key.unlink()
    with pytest.raises(PrivacyError, match="no key"):
        book_of(book)
    (tmp_path / "other.key").rename(key)
    with pytest.raises(PrivacyError, match="not the key of"):
        book_of(book)


def test_a_plain_ledger_is_no_book(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.jsonl") as ledger:
        ledger.intend(act(1))
    with pytest.raises(ConfigError, match="opendas ledger create"):
        book_of(tmp_path / "ledger.jsonl")
    with pytest.raises(ConfigError, match="no such book"):
        book_of(tmp_path / "none")


def test_lines_of_the_first_format_are_read() -> None:
    entry = act(1)
    fewer = {k: v for k, v in entry.as_json().items() if k not in ("unit_factor", "exact", "inputs")}
    del fewer["frame_digest"]
    assert LedgerEntry.from_json(fewer) == entry


# Finding.


def test_a_book_is_noted_where_runs_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "office"))
    assert known_books() == ()
    made = create_book(tmp_path / "a.book", "patient", rho="3")
    assert [book.path for book in known_books()] == [tmp_path / "a.book"]
    assert stat.S_IMODE((tmp_path / "office").stat().st_mode) == 0o700
    inside = create_book(tmp_path / "office" / "b.book", "person", rho="3")
    assert {book.terms for book in known_books()} == {made.terms, inside.terms}
    (tmp_path / "a.book").rename(tmp_path / "moved")
    with pytest.raises(EnvironmentFailure, match="not where it was"):
        known_books()


def test_an_input_is_found_by_its_tag_under_the_key_of_the_book_alone(book: Path, tmp_path: Path) -> None:
    found, other = book_of(book), create_book(tmp_path / "other", "patient", rho="3")
    tags = file_tags(found.key, [b"d" * 32])
    assert not found.covers(tags)
    Ledger.beside(book).intend(act(1, inputs=tags))
    assert found.covers(tags)
    assert set(tags).isdisjoint(file_tags(other.key, [b"d" * 32]))
    assert not found.covers(file_tags(found.key, [b"e" * 32]))


# What a certificate says.


def lines_of(*said: BookTerms | LedgerEntry | LedgerAct | Finished) -> list[LedgerLine]:
    lines: list[LedgerLine] = []
    for each in said:
        lines.append(LedgerLine.following(lines, each))
    return lines


def test_what_holds_but_for_a_probability_is_stated_beside_the_sum() -> None:
    found = account_of(lines_of(terms(), act(1), act(2, delta="1e-10")), {"patients": "run-1"})
    assert (found.spent, found.delta) == (2, Fraction(1, 10**10))
    assert AccountFacts.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "delta = 1/10000000000" in account_text(found)


def test_the_account_counts_acts_and_readings() -> None:
    lines = lines_of(
        terms(), act(1), act(2), LedgerAct("evaluate", "run-1"), LedgerAct("destroy-key", "run-1")
    )
    facts = account_of(lines, {"patients": "run-2"}, lambda head: "blind" + head[:2])
    assert (facts.acts, dict(facts.places), facts.readings, facts.spent) == (2, {"patients": 2}, 1, 2)
    assert facts.head is not None
    assert facts.head.startswith("blind")
    assert AccountFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts
    own = account_of(lines[1:], {"patients": "run-2"})
    assert (own.book, own.head, own.spent) == (False, None, None)


EVALUATED = LedgerAct("evaluate", "run-1")
PUBLISHED = LedgerAct("publish", "run-1")


@pytest.mark.parametrize(
    ("said", "run", "possible"),
    [
        ((act(1),), 1, False),
        ((act(1), EVALUATED), 1, False),
        ((act(1), act(2)), 2, False),
        ((act(1), act(2), EVALUATED), 2, True),
        ((act(1), act(2), EVALUATED), 1, True),
        ((act(1), PUBLISHED, act(2), EVALUATED), 2, False),
        ((act(1), act(2, "housing unit"), EVALUATED), 1, False),
        ((act(1), act(2, delta="1e-10"), EVALUATED), 1, False),
        ((act(1), act(2, input_tag="-"), EVALUATED), 1, False),
        ((LedgerAct("tune"), act(1)), 1, True),
        ((act(1), act(2), LedgerAct("exact")), 2, True),
        ((act(1), act(2), LedgerAct("evaluate", "elsewhere")), 2, True),
        ((act(1), act(2), act(3, "housing unit"), LedgerAct("evaluate", "run-3")), 2, False),
        ((act(1), LedgerAct("tune")), 1, False),
        ((LedgerAct("allocate"), act(1)), 1, True),
    ],
)
def test_what_may_have_been_chosen_by_the_truth(
    said: tuple[LedgerEntry | LedgerAct, ...], run: int, possible: bool
) -> None:
    assert selection_of(lines_of(*said), [f"run-{run}"]).possible is possible


def test_a_release_that_the_account_does_not_hold_is_not_judged() -> None:
    with pytest.raises(PrivacyError, match="holds none of its runs"):
        selection_of(lines_of(terms(), act(1)), ["run-9"])
