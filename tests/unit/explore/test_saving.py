"""What is saved is a run file: everything but the budget stays, and the budget is exact."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from support.data import shared_data
from support.mini import write_mini

import opendas
import opendas.runs.config.released
from opendas.budget.allocation import Budget
from opendas.errors import ConfigError
from opendas.explore.run_file import run_file
from opendas.explore.session import Session
from opendas.explore.subjects import STAND_INS, RunSubject, stand_in
from opendas.privacy.relations import Mechanism, Neighbours

RUN = '[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2020"\npath = "x"\n[budget]\n'


def chosen(subject: RunSubject) -> Budget:
    """Another budget than that of the file: a third to each geolevel, sevenths to the query groups."""
    queries = {"total": Fraction(2, 7), "kind": Fraction(5, 7)}
    return replace(
        subject.start(),
        total=Fraction(22, 7),
        delta=Fraction(1, 10**6),
        geolevels=dict.fromkeys(subject.levels, Fraction(1, 3)),
        queries=dict.fromkeys(subject.levels, queries),
    )


def test_the_saved_file_is_planned_as_it_was_chosen(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    path.write_text(path.read_text().replace("[run]", "# why we do this\n[run]   # here it begins"))
    subject = RunSubject(opendas.load(path))
    budget = chosen(subject)
    (tmp_path / "saved.toml").write_text(run_file(subject, budget))
    text = (tmp_path / "saved.toml").read_text()
    assert "# why we do this\n[run]   # here it begins" in text
    again = opendas.load(tmp_path / "saved.toml")
    assert again.budget == budget
    assert again.plan.digest() == subject.with_budget(budget).plan.digest()


def test_another_mechanism_and_relation_are_written_too(tmp_path: Path) -> None:
    path = write_mini(tmp_path, run='drop_invariants = ["total"]\nneighbours = "bounded" # one replaced')
    subject = RunSubject(opendas.load(path))
    budget = replace(chosen(subject), mechanism=Mechanism.DISCRETE_LAPLACE, neighbours=Neighbours.UNBOUNDED)
    text = run_file(subject, budget)
    assert 'neighbours = "unbounded" # one replaced' in text
    (tmp_path / "saved.toml").write_text(text)
    assert opendas.load(tmp_path / "saved.toml").budget == budget


HARD = {
    "an inline table": lambda text: _inline(text),
    "a budget in the middle": lambda text: text + '\n[passes]\nslack = "0.01"\n',
    "lists of lists": lambda text: (
        text + '\n[passes]\nleast_squares = { "*" = [\n  ["total"],\n  ["rest"]\n] }\n'
    ),
}


def _inline(text: str) -> str:
    """The same run file with its budget as one inline table at the top."""
    document = tomllib.loads(text)
    head, _, rest = text.partition("[budget]")
    after = rest.partition("\n[budget.queries]")[2].partition("\n[")
    inline = opendas.runs.config.released.toml_value(document["budget"])
    return f"budget = {inline}\n{head}" + (f"[{after[2]}" if after[2] else "")


@pytest.mark.parametrize("name", HARD)
def test_run_files_of_every_form_keep_what_they_say(tmp_path: Path, name: str) -> None:
    path = write_mini(tmp_path)
    path.write_text(HARD[name](path.read_text()))
    subject = RunSubject(opendas.load(path))
    budget = chosen(subject)
    given, saved = tomllib.loads(path.read_text()), tomllib.loads(run_file(subject, budget))
    defaults = {"mechanism": "discrete-gaussian", "neighbours": "bounded"}
    for document in (given, saved):
        document.pop("budget")
        document["run"] = {**defaults, **document["run"]}
    assert saved == given
    (tmp_path / "saved.toml").write_text(run_file(subject, budget))
    assert opendas.load(tmp_path / "saved.toml").budget == budget


def test_a_source_of_shares_is_carried_on(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    path.write_text(path.read_text().replace("[budget]", '[budget]\nsource = "last year\'s public counts"'))
    subject = RunSubject(opendas.load(path))
    assert (
        tomllib.loads(run_file(subject, chosen(subject)))["budget"]["source"] == "last year's public counts"
    )


def test_a_template_is_a_run_file_but_for_what_only_its_reader_knows(tmp_path: Path) -> None:
    source = shared_data("pl94_2010_ri") / "ri2010.pl.zip"
    subject = stand_in("state-persons")
    text = run_file(subject, subject.start())
    text = text.replace("CHANGE-ME.pl.zip", str(source)).replace("pl94-2020", "pl94-2010")
    (tmp_path / "run.toml").write_text(text)
    assert opendas.load(tmp_path / "run.toml").budget == subject.start()


@pytest.mark.parametrize("key", STAND_INS)
def test_templates_can_be_opened_again(key: str) -> None:
    subject = stand_in(key)
    state = Session(subject).open_text(run_file(subject, subject.start()))
    assert state.plans[0]["total"] == str(subject.start().total)
    other = stand_in(key.replace("persons", "x").replace("units", "persons").replace("x", "units"))
    with pytest.raises(ConfigError, match="this page explores"):
        Session(other).open_text(run_file(subject, subject.start()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Paste a link"),
        ("{", "not JSON"),
        ("[1]", "run file"),
        ("x = ", "TOML"),
        ("http://127.0.0.1:1/budget?s=", "damaged"),
        ("http://127.0.0.1:1/budget?s=abc", "damaged"),
        ("x" * 300_000, "too long"),
        (
            '[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2020"\npath = "x"\n[budget]\nrho = "0"',
            "rho",
        ),
        (
            '[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2020"\npath = "x"\n[budget]\n'
            'rho = "1"\ngeolevels = { us = "1" }',
            "has no share for",
        ),
    ],
)
def test_what_cannot_be_opened_says_why(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Session().open_text(text)
