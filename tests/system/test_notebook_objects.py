"""How objects show themselves: short in a console, as a table in a notebook, and in pandas."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.mini import write_mini

import opendas as od
from opendas.tables.frames import html_table


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[od.Run, od.Release]:
    folder = tmp_path_factory.mktemp("made")
    run = od.load(write_mini(folder))
    return run, od.release(run, folder / "out", measurements="full", seed=1)


def test_reprs_are_short_and_tables_are_tables(made: tuple[od.Run, od.Release]) -> None:
    run, release = made
    table = release.mdf("mini")
    shown = (run, od.plan(run), release, table, od.describe_spine(run), od.allocate_run(run))
    said = (od.account(run), od.NoisyFile(release.path), od.compare(release, release), *od.advise(run))
    said += (od.account(rho=1), od.discrete_gaussian(3), od.evaluate(release, truth=run, save=False))
    said += (run.product, run.budget, run.plan, run.spine, run.frame, run.read())
    for each in (*shown, *said, run.resolved, run.protection):
        assert len(repr(each)) < 300
        assert "object at 0x" not in repr(each)
    assert repr(od.account(run)).startswith("PlanAccount(mini: rho 2, epsilon ")
    for each in shown:
        page = each._repr_html_()
        assert page.startswith("<table>")
        assert page.count("<tr>") <= 1 + max(10, len(od.plan(run).rows))
    assert "region > town > block" in repr(run)
    assert "confidential" in repr(said[-7])  # an evaluation
    assert "confidential" in repr(said[-1])  # the input


def test_nothing_is_opened_to_show_a_run(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    run = od.load(path)
    for file in tmp_path.iterdir():
        file.unlink()
    assert "mini" in repr(run) + run._repr_html_()


def test_frames_take_a_table(made: tuple[od.Run, od.Release]) -> None:
    table = made[1].mdf("mini")
    assert len(table) > 20
    pd.testing.assert_frame_equal(pd.DataFrame(table), table.to_pandas(), check_dtype=False)
    assert pl.DataFrame(table).equals(table.to_polars())
    assert pa.table(table).equals(table.to_arrow())


def test_what_is_shown_is_escaped() -> None:
    page = html_table("<b>", ("a&b",), [("<script>",), (1.23456789,), (None,)])
    assert "<script>" not in page
    assert "<b>" not in page
    assert "1.23457" in page
