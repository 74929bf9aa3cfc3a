"""A release is estimated again from its own measurements: what differs from them is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.mini import mini_frame, mini_histogram, mini_product, write_mini

import opendas
from opendas.files.mdf.writing import MdfFiles
from opendas.report.certificate import issue, read_runs
from opendas.runs.finished_release import Release
from opendas.runs.run import load
from opendas.verify.check import Check
from opendas.version import __version__


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def released(folder: Path, run: str = "", **options: object) -> Path:
    """Run the miniature census and return a copy of its release, with nothing beside it."""
    opendas.release(load(write_mini(folder, run=run)), folder / "out", **options)
    shutil.copytree(folder / "out" / "release", folder / "copy")
    shutil.rmtree(folder / "out")
    return folder / "copy"


def failed(release: Path) -> list[Check]:
    return [check for check in Release(release).verify(rederive=True) if not check.ok]


BLOCKS = 'estimator = "block-by-block"\ndrop_invariants = ["total"]'


@pytest.mark.parametrize("measurements", ["used", "full"])
@pytest.mark.parametrize("run", ["", BLOCKS, "failsafe = true", 'estimator = "informed"'])
def test_a_copy_of_the_release_is_enough(tmp_path: Path, run: str, measurements: str) -> None:
    copy = released(tmp_path, run, measurements=measurements)
    wrong = failed(copy)
    if "informed" in run and measurements == "used":
        (only,) = wrong
        assert "opendas measure" in only.detail
    else:
        assert wrong == []


def test_true_microdata_in_place_of_the_released_are_found(tmp_path: Path) -> None:
    """The attack of the review: true records, and a certificate issued anew by the package itself."""
    copy = released(tmp_path)
    product, frame = mini_product(), mini_frame()
    for part in MdfFiles(copy / "mdf" / "mini", product, frame, mini_histogram(frame).take, "parquet"):
        part.write()
    records = mini_histogram(frame).total()
    facts = [type(run)(**{**as_fields(run), "records": records}) for run in read_runs(copy)]
    issue(copy, facts, version=__version__)
    assert all(check.ok for check in Release(copy).verify())
    (found,) = failed(copy)
    assert found.name == "mini: estimated again"
    assert "24 leaves differ" in found.detail


def as_fields(facts: object) -> dict[str, object]:
    return {name: getattr(facts, name) for name in type(facts).__slots__}
