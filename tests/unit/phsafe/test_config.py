"""config.json: what is read, and everything that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from support.each import each
from support.households import configuration

from opendas.errors import ConfigError
from opendas.phsafe.config import Config, Mode, parse_config
from opendas.phsafe.tables import TABLES


def parse(change: Callable[[dict[str, Any]], None], mode: Mode = Mode.PRIVATE) -> Config:
    document = configuration()
    change(document)
    return parse_config(json.dumps(document), mode)


def test_budgets_are_the_decimals_written() -> None:
    text = json.dumps(configuration()).replace('"usa_A-G": 0.5', '"usa_A-G": 0.1', 1)
    config = parse_config(text, Mode.PRIVATE)
    table, level, loss = config.measured[0]
    assert (table.name, level.name, loss) == ("PH1_num", "usa_A-G", Fraction(1, 10))
    assert len(config.measured) == 46


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", Fraction(1, 1000)), ("3", Fraction(3)), ("2.50", Fraction(5, 2))]
)
def test_numbers_in_every_form(text: str, value: Fraction) -> None:
    document = json.dumps(configuration()).replace('"state_*": 0.5', f'"state_*": {text}', 1)
    config = parse_config(document, Mode.PRIVATE)
    assert config.measured[5][2] == value


def test_infinity_and_zero() -> None:
    document = configuration(budget=float("inf"), without=("PH3",))
    config = parse_config(json.dumps(document), Mode.PRIVATE)
    assert config.is_infinite
    assert "PH3" not in config.budgets
    assert len(config.measured) == 40


def test_the_non_private_mode_needs_two_keys_only() -> None:
    config = parse_config('{"state_filter": ["72"], "reader": "csv"}', Mode.NON_PRIVATE)
    assert config.state_filter == ("72",)
    assert config.mechanism is None


def budget(table: str, level: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["privacy_budget"][table][level] = value

    return change


def put(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update({key: value})


def tau(value: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["tau"].update({"PH3": value})


@each(
    ("change", "words"),
    [
        (put("tau", None), "tau: expected an object"),
        (tau(0), "tau.PH3"),
        (tau(True), "tau.PH3: expected an integer from 1 to 999999, found true"),
        (tau(2.5), "tau.PH3"),
        (tau("6"), "tau.PH3"),
        (tau(-1), "tau.PH3"),
        (lambda d: d["tau"].update(PH1_denom=1), "tau.PH1_denom: is unknown"),
        (lambda d: d["tau"].pop("PH7"), "tau.PH7: is missing"),
        (budget("PH2", "usa_A-G", 0.1), "privacy_budget.PH2.usa_A-G: is unknown"),
        (budget("PH3", "usa_*", -0.1), "privacy_budget.PH3.usa_*: expected a number of at least 0"),
        (budget("PH3", "usa_*", 2e15), "expected a number up to 1e15, or Infinity, found"),
        (budget("PH3", "usa_*", True), "found true"),
        (budget("PH3", "usa_*", "0.1"), "expected a number"),
        (budget("PH3", "usa_*", float("nan")), "found NaN"),
        (budget("PH3", "usa_*", float("-inf")), "found -Infinity"),
        (lambda d: d["privacy_budget"].pop("PH6"), "privacy_budget.PH6: is missing"),
        (lambda d: d["privacy_budget"].update(PH5_num={}), "PH5_num: is unknown; did you mean"),
        (lambda d: d["privacy_budget"]["PH7"].pop("usa_*"), "privacy_budget.PH7.usa_*: is missing"),
        (put("state_filter", []), "state_filter"),
        (put("state_filter", ["72", "06"]), "Puerto Rico"),
        (put("state_filter", ["06", "06"]), "listed twice"),
        (put("state_filter", ["03"]), "no state has the code '03'"),
        (put("state_filter", [6]), "no state has the code 6"),
        (put("state_filter", "06"), "expected a list"),
        (put("reader", "parquet"), "reader: expected 'csv' or 'cef'"),
        (put("privacy_defn", "dp"), "privacy_defn"),
        (lambda d: d.pop("privacy_defn"), "privacy_defn: is missing"),
    ],
)
def test_what_is_refused(change: Callable[[dict[str, Any]], None], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(change)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_mistakes_come_together() -> None:
    def change(document: dict[str, Any]) -> None:
        document["tau"]["PH3"] = 0
        document["state_filter"] = ["99"]
        document["privacy_budget"]["PH9"] = {}
        del document["reader"]

    with pytest.raises(ConfigError) as caught:
        parse(change)
    for where in ("tau.PH3", "state_filter", "privacy_budget.PH9", "reader"):
        assert where in str(caught.value)


def test_a_key_given_twice() -> None:
    text = json.dumps(configuration())
    with pytest.raises(ConfigError, match="reader: is given twice"):
        parse_config(text[:-1] + ', "reader": "csv"}', Mode.PRIVATE)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": 01}'])
def test_text_that_is_no_configuration(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(text, Mode.PRIVATE)


def test_unknown_keys_are_passed_over_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    parse(put("note", "anything"))
    assert "'note'" in caplog.text


def test_an_agency_adds_a_table() -> None:
    from dataclasses import replace

    mine = replace(TABLES[0], name="AGENCY_1")
    document = configuration()
    document["privacy_budget"]["AGENCY_1"] = document["privacy_budget"]["PH1_num"]  # type: ignore[index]
    document["tau"]["AGENCY_1"] = 4  # type: ignore[index]
    config = parse_config(json.dumps(document), Mode.PRIVATE, (*TABLES, mine))
    assert config.tau["AGENCY_1"] == 4
    assert len(config.measured) == 52
