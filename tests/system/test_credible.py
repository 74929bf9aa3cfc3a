"""Credible intervals of a release by the posterior: drawn again from its files, and what they are of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.mini import write_mini

import opendas
from opendas.cli.main import cli
from opendas.errors import ConfigError, FormatError
from opendas.runs.context.run import load
from opendas.runs.finished_release import Release


def released(folder: Path, estimator: str = "posterior", measurements: Any = "full") -> Release:
    """A release with nothing of the run beside it."""
    run = load(write_mini(folder, run=f'estimator = "{estimator}"'))
    opendas.release(run, folder / "out", seed=3, measurements=measurements)
    shutil.copytree(folder / "out" / "release", folder / "copy")
    shutil.rmtree(folder / "out")
    return Release(folder / "copy")


def columns(table: Any, *names: str) -> list[np.ndarray]:
    arrow = table.to_arrow()
    return [arrow[name].to_numpy(zero_copy_only=False) for name in names]


def test_intervals_of_leaves_and_of_their_parents(tmp_path: Path) -> None:
    release = released(tmp_path)
    leaf, above = release.frame().leaf, list(release.frame().levels)[-1]
    code, mean, lower, upper = columns(
        release.credible("total", geolevel=leaf, workers=1), "geocode", "estimate", "lower", "upper"
    )
    assert len(code) == len(release.frame())
    assert ((lower <= mean) & (mean <= upper)).all()
    assert (upper > lower).any()
    # Draws keep the parent: its mean is what is published, and its variance that of least squares alone.
    credible = release.credible("total", geolevel=above, workers=1)
    count, mean, variance = columns(credible, "count", "estimate", "variance")
    assert np.allclose(mean, count)
    (least_squares,) = columns(release.intervals("total", geolevel=above), "variance")
    assert np.allclose(variance, least_squares, rtol=0.05)


def test_a_drawn_area_has_what_its_leaves_have(tmp_path: Path) -> None:
    release = released(tmp_path)
    leaf = release.frame().leaf
    code, mean = columns(release.credible("detailed", geolevel=leaf, workers=1), "geocode", "estimate")
    some = [bytes(one).decode() for one in release.frame().geocodes[1:4]]
    here = np.isin(code, some)
    (area,) = columns(release.credible("detailed", blocks=some, workers=1), "estimate")
    assert area.sum() == pytest.approx(mean[here].sum(), abs=1e-6)


def test_what_cannot_be_drawn_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(FormatError, match="least squares needs all of them"):
        released(tmp_path / "a", measurements="used").credible("total", geolevel="block")
    other = released(tmp_path / "b", "informed")
    with pytest.raises(ConfigError, match="estimator posterior"):
        other.credible("total", geolevel=other.frame().leaf)


def test_the_command_prints_them(tmp_path: Path) -> None:
    release = released(tmp_path)
    leaf = release.frame().leaf
    words = ["interval", str(release.path), "--query", "total", "--geolevel", leaf, "--posterior"]
    done = CliRunner().invoke(cli, words, obj={})
    assert done.exit_code == 0, done.output
    assert "credible intervals" in done.output
    assert CliRunner().invoke(cli, [*words, "--selected"], obj={}).exit_code == 2
