"""Truncation in counts, and rows without a cell."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.households import configuration, random_world, write_world

from opendas.phsafe.config import Mode, parse_config
from opendas.phsafe.counting import count_cube, counted_rows, truncated
from opendas.phsafe.inputs.linking import Linked, link
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.tables import TABLES
from opendas.phsafe.truncation import Truncation
from opendas.phsafe.validate import check_cells

STATES = ["06", "44"]


@pytest.fixture
def linked(tmp_path: Path) -> Linked:
    return link(read_csv(write_world(tmp_path, random_world(2, 120)), STATES), STATES)


@pytest.mark.parametrize("tau", [1, 3, 50])
@pytest.mark.parametrize("mode", list(Truncation))
def test_each_household_counts_at_most_tau_persons(mode: Truncation, tau: int, linked: Linked) -> None:
    for table in TABLES:
        if not table.has_tau:
            continue
        rows = counted_rows(table, linked)
        kept = truncated(rows, tau, mode, b"k" * 32)
        before = Counter(rows.person("mafid").tolist())
        after = Counter(kept.person("mafid").tolist())
        assert after == {mafid: min(tau, size) for mafid, size in before.items()}
        cube = count_cube(table, kept, linked.state, len(STATES))
        assert cube.sum() == sum(after.values())
    assert tau == 50 or max(before.values(), default=0) >= 0


def test_who_is_kept_depends_on_the_key(linked: Linked) -> None:
    rows = counted_rows(TABLES[0], linked)
    first, second, again = (
        truncated(rows, 2, Truncation.KEYED, key * 32).person_rows for key in (b"a", b"b", b"a")
    )
    assert first is not None
    assert second is not None
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)  # type: ignore[arg-type]


def strange(tmp_path: Path, **changes: str) -> Linked:
    """A world with one vacant unit made into one of two persons, with some codes changed."""
    world = random_world(2, 30)
    unit = next(u for u in world[1] if u["RTYPE"] == "2" and u["HHT"] != "0")
    person = next(p for p in world[0] if p["MAFID"] == unit["MAFID"])
    for name, value in changes.items():
        (unit if name in unit and name != "RTYPE" else person)[name] = value
    return link(read_csv(write_world(tmp_path, world), STATES), STATES)


@pytest.mark.parametrize(
    ("changes", "tables"),
    [
        ({"TEN": "0"}, {"PH7", "PH8_denom"}),
        ({"HHT2": "01", "CPLT": "5"}, {"PH2"}),
        ({"HHRACE": "00"}, {"PH1_num", "PH1_denom", "PH4", "PH5_denom", "PH7", "PH8_denom"}),
        ({"HHT2": "02", "CPLT": "1", "RELSHIP": "25", "QAGE": "5"}, {"PH3", "PH6"}),
        ({"RELSHIP": "37", "QAGE": "5"}, {"PH3"}),
        ({"RELSHIP": "36", "QAGE": "5"}, set()),
    ],
)
def test_counted_rows_without_a_cell_are_found(
    changes: dict[str, str], tables: set[str], tmp_path: Path
) -> None:
    config = parse_config(json.dumps(configuration()), Mode.VALIDATE)
    linked = strange(tmp_path, **changes)
    findings = check_cells(linked, config)
    named = {str(finding).split("counted by ")[1].split(",")[0] for finding in findings}
    # A unit that is no family is in no table of families; the filter decides, not the check.
    assert named <= tables
    assert named >= tables - {"PH4", "PH5_denom"}
    if tables:
        without = parse_config(json.dumps(configuration(without=tuple(tables))), Mode.VALIDATE)
        assert check_cells(linked, without) == []


def test_a_race_outside_the_groups_matters_only_where_groups_are_asked(tmp_path: Path) -> None:
    linked = strange(tmp_path, HHRACE="00")
    document = configuration()
    for levels in document["privacy_budget"].values():  # type: ignore[attr-defined]
        for level in levels:
            if "A-G" in level:
                levels[level] = 0
    assert check_cells(linked, parse_config(json.dumps(document), Mode.VALIDATE)) == []


def test_findings_do_not_depend_on_truncation_and_name_lines(tmp_path: Path) -> None:
    linked = strange(tmp_path, TEN="0")
    found = [
        check_cells(linked, parse_config(json.dumps(configuration(tau=tau)), Mode.VALIDATE))
        for tau in (1, 50)
    ]
    assert found[0] == found[1]
    assert all(finding.line is not None and finding.line > 1 for finding in found[0])
