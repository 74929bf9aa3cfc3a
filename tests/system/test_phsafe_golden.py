"""The published program's own end-to-end cases, cell for cell."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from support.data import shared_data

from opendas.phsafe.config import Mode, read_config
from opendas.phsafe.inputs.linking import link
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.output import PART_FILE, exact_tables
from opendas.phsafe.run import HouseholdOptions, run_private
from opendas.phsafe.tables import OUTPUTS
from opendas.phsafe.truncation import Truncation


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(), delimiter="|"))


def as_set(rows: list[dict[str, str]]) -> list[tuple[tuple[str, str], ...]]:
    return sorted(tuple(sorted(row.items())) for row in rows)


def expected(case: str, name: str) -> str:
    return (shared_data("phsafe_e2e") / case / "expected_outputs" / f"{name}.csv").read_text()


@pytest.mark.parametrize("name", OUTPUTS)
def test_non_private_mode_agrees_cell_for_cell(name: str) -> None:
    folder = shared_data("phsafe_e2e") / "test1"
    config = read_config(folder / "config.json", Mode.NON_PRIVATE)
    inputs = read_csv(folder, config.state_filter)
    tables = {t.name: t for t in exact_tables(config, link(inputs, config.state_filter))}
    text = tables[name].text(config.state_filter)
    wanted = expected("test1", name)
    assert text.splitlines()[0] == wanted.splitlines()[0]
    assert as_set(rows_of(text)) == as_set(rows_of(wanted))


@pytest.mark.parametrize("truncation", list(Truncation))
def test_private_mode_without_noise_agrees_cell_for_cell(truncation: Truncation, tmp_path: Path) -> None:
    folder, out = shared_data("phsafe_e2e") / "test2", tmp_path / "out"
    answer = run_private(folder / "config.json", folder, out, HouseholdOptions(truncation=truncation))
    assert answer["tables"] == [f"{name}/{PART_FILE}" for name in OUTPUTS]
    for name in OUTPUTS:
        text = (out / name / PART_FILE).read_text()
        wanted = expected("test2", name)
        assert set(text.splitlines()[0].split("|")) == set(wanted.splitlines()[0].split("|"))
        assert text.splitlines()[0].endswith("|COUNT|NOISE_DISTRIBUTION|VARIANCE")
        assert as_set(rows_of(text)) == as_set(rows_of(wanted)), name
