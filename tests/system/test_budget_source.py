"""Where an allocation came from: from the run file to the plan and the certificate."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from support.mini import write_mini

import opendas as od
from opendas.cli.main import main

WORDS = "numbers of blocks in the frame; no count was used"
SOURCE = f'rho = "2"\nsource = "{WORDS}"'


def test_the_source_reaches_plan_and_certificate_and_changes_no_noise(tmp_path: Path) -> None:
    plain, told = (
        od.load(write_mini(tmp_path / "plain")),
        od.load(write_mini(tmp_path / "told", loss=SOURCE)),
    )
    assert od.plan(plain).to_dict()["source"] is None
    assert od.plan(told).to_dict()["source"] == WORDS
    assert told.plan.digest() == plain.plan.digest()
    release = od.release(told, tmp_path / "out")
    assert all(check.ok for check in release.verify())
    folder = tmp_path / "out" / "release"
    (run,) = json.loads((folder / "certificate.json").read_text())["runs"]
    assert run["budget"]["source"] == WORDS
    assert tomllib.loads((folder / "run" / "mini.toml").read_text())["budget"]["source"] == WORDS
    assert WORDS in (folder / "report.html").read_text()


def test_the_plan_says_it_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plan", str(write_mini(tmp_path, loss=SOURCE)), "--full"])
    assert not end.value.code
    assert f"budget shares: {WORDS}" in capsys.readouterr().out
