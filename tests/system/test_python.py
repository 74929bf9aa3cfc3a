"""The Python surface: frames of three libraries in and out, and the examples as they stand."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.mini import PRODUCT_TOML, RUN_TOML, write_mini

import opendas as od
from opendas.errors import ConfigError

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def run_text() -> str:
    text = RUN_TOML.format(run="", loss='rho = "2"', more="")
    return text.replace('path = "counts.csv"\n', "").replace('frame = "frame.csv"\n', "")


def tables(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    write_mini(folder)
    as_text = {"geocode": pl.String}
    return (
        pl.read_csv(folder / "counts.csv", schema_overrides=as_text),
        pl.read_csv(folder / "frame.csv", schema_overrides=as_text),
    )


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    return frame.to_pandas()


def to_categorical(frame: pl.DataFrame) -> pd.DataFrame:
    found = frame.to_pandas()
    return found.astype({name: "category" for name in ("kind", "age") if name in found})


@pytest.mark.parametrize("convert", [to_pandas, to_categorical, pl.DataFrame.to_arrow, lambda f: f])
def test_a_run_on_frames_in_memory_equals_the_run_on_files(tmp_path: Path, convert) -> None:
    counts, frame = tables(tmp_path)
    product = tomllib.loads(PRODUCT_TOML)
    memory = od.define(run_text(), product=product, input=convert(counts), frame=convert(frame))
    files = od.load(tmp_path / "run.toml")
    of_memory, of_files = (od.plan(run).to_dict() for run in (memory, files))
    for said in (of_memory, of_files):  # times are measured twice
        del said["forecast"]["seconds"], said["forecast"]["steps"], said["other_estimator"]["times"]
    assert of_memory == of_files
    one = od.release(memory, tmp_path / "memory", seed=3).mdf().to_arrow()
    two = od.release(files, tmp_path / "files", seed=3).mdf().to_arrow()
    assert one.equals(two)


def test_what_comes_out_is_the_same_in_every_library(tmp_path: Path) -> None:
    run = od.load(write_mini(tmp_path))
    release = od.release(run, tmp_path / "out", measurements="full")
    assert all(check.ok for check in release.verify())
    mdf = release.mdf()
    arrow = mdf.to_arrow()
    assert isinstance(arrow, pa.Table)
    assert mdf.to_polars().height == len(mdf.to_pandas()) == arrow.num_rows == release.estimate().total()
    assert mdf.to_polars_lazy().collect().equals(mdf.to_polars())
    assert pa.table(mdf).equals(arrow)
    kinds = release.table("kind", geolevel="town").to_pandas()
    assert kinds[["home", "school", "prison"]].to_numpy().sum() == arrow.num_rows
    measured = release.measurements("block", "detailed").to_polars()
    assert measured["values"].list.len().unique().to_list() == [9]
    errors = od.evaluate(release, truth=run)
    assert {row["geolevel"] for row in errors.rows} == {"region", "town", "block"}
    assert od.plan(run).table()["moe90"].min() >= 1


def test_accounts_and_wrong_tables() -> None:
    assert round(od.account(rho="293764/114921", delta="1e-10").epsilon("cks"), 2) == 17.14
    with pytest.raises(ConfigError, match="Arrow stream"):
        od.define(run_text(), product=tomllib.loads(PRODUCT_TOML), input=7, frame=7)


def test_the_public_names_are_these() -> None:
    assert sorted(od.__all__) == [
        "NoisyFile",
        "PublishedMicrodata",
        "Release",
        "Run",
        "__version__",
        "account",
        "add_to_ledger",
        "advise",
        "allocate",
        "allocate_run",
        "compare",
        "create_ledger",
        "curves",
        "define",
        "describe_measurements",
        "describe_spine",
        "discrete_gaussian",
        "discrete_laplace",
        "estimate",
        "estimate_published",
        "evaluate",
        "exact_level",
        "experiment",
        "export_measurements",
        "export_microdata",
        "export_tidy",
        "forget_key",
        "improve",
        "ledger",
        "load",
        "measure",
        "plan",
        "publish_to",
        "release",
        "replicates",
        "sample_discrete_gaussian",
        "sample_discrete_laplace",
        "status",
        "swap",
        "tabulate",
        "tune",
        "write_comparison",
    ]
    for name in od.__all__:
        assert getattr(od, name) is not None


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert "verified: True" in capsys.readouterr().out
