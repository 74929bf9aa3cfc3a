"""The layout of the published files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opendas.phsafe.inputs.levels import LEVELS
from opendas.phsafe.output import PART_FILE, STAGING, Block, OutputTable, derive, lay_out, write_tables
from opendas.phsafe.tables import DERIVED, find_table

USA_RACE, USA_ORIGIN, USA_ALL, STATE_RACE, STATE_ORIGIN, STATE_ALL = LEVELS


def table(name: str = "PH7", noise: str | None = "Discrete Gaussian") -> OutputTable:
    blocks = (
        Block(USA_ALL, np.array([[[5, -2, 7]]]), noise, 12.5),
        Block(STATE_ORIGIN, np.arange(12).reshape(2, 2, 3), noise, 0.0),
    )
    return OutputTable(name, True, (2, 3, 4), blocks)


def test_rows_in_order_with_count_before_noise() -> None:
    assert table().text(["06", "44"]).splitlines()[:5] == [
        "REGION_ID|REGION_TYPE|ITERATION_CODE|PH7_DATA_CELL|COUNT|NOISE_DISTRIBUTION|VARIANCE",
        "1|USA|*|2|5|Discrete Gaussian|12.5",
        "1|USA|*|3|-2|Discrete Gaussian|12.5",
        "1|USA|*|4|7|Discrete Gaussian|12.5",
        "06|STATE|H|2|0|Discrete Gaussian|0",
    ]


def test_exact_tables_have_totals_and_no_zeros() -> None:
    declared = find_table("PH7")
    assert declared is not None
    cube = np.zeros((1, 8, 3, 3), np.int64)
    cube[0, -1, -1] = [5, 0, 7]  # in no group of race or origin
    (exact,) = lay_out({"PH7": declared}, {"PH7": cube})
    assert exact.text(["06"]).splitlines() == [
        "REGION_ID|REGION_TYPE|ITERATION_CODE|PH7_DATA_CELL|COUNT",
        *(f"{region}|*|{cell}" for region in ("1|USA", "06|STATE") for cell in ("1|12", "2|5", "4|7")),
    ]


def test_counts_and_variances_of_derived_tables_add_up() -> None:
    (tenure,) = (one for one in DERIVED if one.name == "PH8_num")
    assert derive(tenure, table()).text(["06", "44"]).splitlines()[:3] == [
        "REGION_ID|REGION_TYPE|ITERATION_CODE|PH8_NUM_DATA_CELL|COUNT|NOISE_DISTRIBUTION|VARIANCE",
        "1|USA|*|2|3|Discrete Gaussian|25.0",
        "1|USA|*|3|7|Discrete Gaussian|12.5",
    ]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    write_tables(tmp_path, [table()], ["06", "44"])
    before = (tmp_path / "PH7" / PART_FILE).read_bytes()
    broken = OutputTable("PH8_num", True, (2,), (Block(USA_ALL, np.zeros((1, 1, 3), np.int64)),))
    with pytest.raises(ValueError, match="zip"):
        write_tables(tmp_path, [table(noise=None), broken], ["06", "44"])
    assert (tmp_path / "PH7" / PART_FILE).read_bytes() == before
    assert not (tmp_path / STAGING).exists()
    assert not (tmp_path / "PH8_num").exists()
