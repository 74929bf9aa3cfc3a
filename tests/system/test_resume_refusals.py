"""What ``--resume`` answers when it is asked for something else than what stands in the folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.households import configuration, random_world, write_world
from support.mini import mini_frame, mini_histogram, write_mini

from opendas.cli.failures import guarded
from opendas.cli.main import cli

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def command(*words: str | Path) -> int:
    return guarded(cli, [str(word) for word in words])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def another_input(run: Path) -> None:
    """A file of another name and content."""
    write_mini(run.parent / "elsewhere", histogram=mini_histogram(mini_frame(), seed=9))
    (run.parent / "elsewhere" / "counts.csv").rename(run.parent / "p2.csv")
    run.write_text(run.read_text().replace("counts.csv", "p2.csv"))


def changed_input(run: Path) -> None:
    """The same name, another content."""
    write_mini(run.parent, histogram=mini_histogram(mini_frame(), seed=9))
    os.utime(run.parent / "counts.csv", (1, 1))


def another_rho(run: Path) -> None:
    run.write_text(run.read_text().replace('rho = "2"', 'rho = "1"'))


def another_query(run: Path) -> None:
    shares = 'total = "1/4", "kind * minor" = "1/4"'
    run.write_text(run.read_text().replace(shares, 'total = "1/8", "kind * minor" = "3/8"'))


CHANGES: dict[str, Callable[[Path], None]] = {
    "input": another_input,
    "content": changed_input,
    "rho": another_rho,
    "plan": another_query,
}


@pytest.mark.parametrize("key", ["there", "destroyed"])
@pytest.mark.parametrize("act", ["measure", "run", "both"])
def test_another_input_plan_or_loss_is_not_taken_for_the_one_that_stands(
    act: str, key: str, tmp_path: Path, capsys: Capture
) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    first = "run" if act == "run" else "measure"
    assert command(first, run, "--out", out) == 0
    if act == "both":
        assert command("estimate", run, "--out", out) == 0
    if key == "destroyed":
        assert command("forget-key", out) == 0
    text, counts = run.read_text(), tmp_path / "counts.csv"
    same, when = counts.read_bytes(), counts.stat()
    before = tree(out / "release")
    for name, change in CHANGES.items():
        change(run)
        capsys.readouterr()
        assert command(first, run, "--out", out, "--resume") == 4, name
        assert "charged in full" in capsys.readouterr().err
        assert tree(out / "release") == before
        run.write_text(text)
        counts.write_bytes(same)
        os.utime(counts, ns=(when.st_atime_ns, when.st_mtime_ns))
    assert command(first, run, "--out", out, "--resume") == 0, "the same is returned"


def test_another_seed_is_not_taken_for_the_one_that_stands(tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("measure", run, "--out", out, "--seed", "1") == 0
    assert command("measure", run, "--out", out, "--seed", "1", "--resume") == 0
    for other in (("--seed", "2"), ()):
        assert command("measure", run, "--out", out, "--resume", *other) == 4


def test_an_estimate_by_other_rules_is_not_taken_for_the_one_that_stands(tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("measure", run, "--out", out) == 0
    text = run.read_text()
    slack = text + '[passes]\nslack = "0.01"\n'
    run.write_text(slack)
    assert command("estimate", run, "--out", out) == 0, "one measurement, estimated by other rules"
    assert command("estimate", run, "--out", out, "--resume") == 0
    for other, code in ((text, 4), (text.replace('rho = "2"', 'rho = "1"'), 4), (slack, 0)):
        run.write_text(other)
        assert command("estimate", run, "--out", out, "--resume") == code


@pytest.mark.parametrize("key", ["there", "destroyed"])
def test_households_of_another_input_or_budget_are_refused(key: str, tmp_path: Path) -> None:
    data = write_world(tmp_path / "data", random_world(3, 60))
    other = write_world(tmp_path / "other", random_world(4, 60))
    config, out = tmp_path / "config.json", tmp_path / "out"
    config.write_text(json.dumps(configuration(tau=3)))
    assert command("phsafe", config, data, out) == 0
    if key == "destroyed":
        assert command("forget-key", out) == 0
    assert command("phsafe", config, data, out, "--resume") == 0
    assert command("phsafe", config, other, out, "--resume") == 4
    config.write_text(json.dumps(configuration(tau=4)))
    assert command("phsafe", config, data, out, "--resume") == 4
