"""A finished run destroys its key: when, what says so, and what a death in between leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.households import configuration, random_world, write_world
from support.mini import write_mini

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody import passphrase as sealing
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_lines import LedgerAct, read_lines
from opendas.phsafe import run as household_run
from opendas.runs import release as runs_release
from opendas.runs.context import workspace
from opendas.runs.context.workspace import Workspace

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

PASSPHRASE = "seven dull geese cross\n"


@pytest.fixture(autouse=True)
def _fixed(monkeypatch: Patch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr(sealing, "_COST", (1 << 14, 8, 1))


def command(*words: str | Path) -> int:
    return guarded(cli, [str(word) for word in words])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def certified(out: Path) -> dict[str, Any]:
    folder = out / "release" if (out / "release").is_dir() else out
    (run,) = json.loads((folder / "certificate.json").read_bytes())["runs"]
    return run


def acts(out: Path) -> list[LedgerAct]:
    lines, _ = read_lines((out / "ledger.jsonl").read_bytes(), "ledger.jsonl")
    return [line.said for line in lines if isinstance(line.said, LedgerAct)]


def keys(out: Path) -> list[str]:
    return [path.name for path in (out / "confidential" / "keys").iterdir()]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "passphrase"
    path.write_text(PASSPHRASE)
    path.chmod(0o600)
    return path


def test_a_finished_run_has_destroyed_its_key_and_says_so(tmp_path: Path, capsys: Capture) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("run", run, "--out", out, "--measurements", "used") == 0
    assert "key          destroyed" in capsys.readouterr().out
    assert keys(out) == []
    assert certified(out)["key"] == "destroyed"
    assert "was destroyed when the release was complete" in certified(out)["guarantee"]
    (act,) = acts(out)
    assert (act.act, dict(act.details)) == ("destroy-key", {"product": "mini"})
    assert act.run_id == Ledger.read(out / "ledger.jsonl")[0].run_id
    assert command("verify", out) == 0
    before = tree(out / "release")
    assert command("run", run, "--out", out, "--resume") == 0
    assert command("measure", run, "--out", out, "--resume") == 4
    assert "not at hand" in capsys.readouterr().err
    for arguments in (
        ("run", run, "--out", out),
        ("run", run, "--out", out, "--resume", "--measurements", "full"),
    ):
        assert command(*arguments) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "are lost, since its key is destroyed" in said
        assert "opendas measure" not in said, "no advice that leads nowhere"
    assert tree(out / "release") == before
    assert od.status(out)[0]["key"] is False


def test_a_key_is_kept_where_that_is_asked_for(tmp_path: Path, given: Path, capsys: Capture) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    there = (tmp_path / "there").as_uri()
    assert command("run", run, "--out", out, "--keep-key", "--measurements", "used") == 0
    assert keys(out) == ["mini.key"]
    assert acts(out) == []
    assert certified(out)["key"] == "kept"
    assert command("verify", out) == 0
    assert command("publish", out, there) == 4
    assert "forget-key" in capsys.readouterr().err
    assert not (tmp_path / "there").exists()
    assert command("publish", out, there, "--allow-key") == 0
    for arguments in (
        ("run", run, "--out", out),
        ("run", run, "--out", out, "--resume", "--measurements", "full"),
    ):
        assert command(*arguments) == 2
        assert f"opendas measure RUN.toml --out {out} --resume" in " ".join(capsys.readouterr().err.split())
    # More of the same measurement, after which the key goes.
    assert command("measure", run, "--out", out, "--resume") == 0
    assert keys(out) == []
    assert certified(out)["key"] == "destroyed"
    assert [act.act for act in acts(out)] == ["publish", "destroy-key"]
    sealed = tmp_path / "sealed"
    assert command("run", run, "--out", sealed, "--keep-key", "--key-passphrase-file", given) == 0
    assert certified(sealed)["key"] == "kept under a passphrase"
    assert command("publish", sealed, (tmp_path / "two").as_uri()) == 0
    assert command("forget-key", sealed) == 0
    assert [act.act for act in acts(sealed)] == ["publish", "destroy-key"]


def test_a_key_that_is_not_at_hand_is_not_called_lost(tmp_path: Path, given: Path, capsys: Capture) -> None:
    run, one, two, three = write_mini(tmp_path), *(tmp_path / name for name in ("one", "two", "three"))
    less = ("--measurements", "used")
    assert command("run", run, "--out", one, *less, "--key-command", f"/bin/echo {'5a' * 32}") == 0
    assert command("run", run, "--out", two, *less, "--keep-key", "--key-passphrase-file", given) == 0
    assert command("run", run, "--out", three, *less, "--seed", "3") == 0
    for out, way in ((one, "give the same one with --key-command"), (two, "give its passphrase with")):
        capsys.readouterr()
        assert command("measure", run, "--out", out, "--resume") == 4
        said = " ".join(capsys.readouterr().err.split())
        assert way in said
        assert "charged in full" not in said
    for out, source in ((one, " --key-command COMMAND"), (two, " --ask-passphrase"), (three, " --seed 3")):
        seed = ("--seed", "3") if out == three else ()
        assert command("run", run, "--out", out, *less, *seed) == 2
        assert f"--resume{source} writes the measurements" in " ".join(capsys.readouterr().err.split())


def test_a_key_of_a_command_or_of_a_seed_is_none_of_ours(tmp_path: Path) -> None:
    run = write_mini(tmp_path)
    fetch = f"/bin/echo {'5a' * 32}"
    assert command("run", run, "--out", tmp_path / "one", "--key-command", fetch) == 0
    assert certified(tmp_path / "one")["key"] == "kept elsewhere"
    assert acts(tmp_path / "one") == []
    assert command("measure", run, "--out", tmp_path / "one", "--resume", "--key-command", fetch) == 0
    assert certified(tmp_path / "one")["key"] == "kept elsewhere"
    assert command("run", run, "--out", tmp_path / "two", "--seed", "3") == 0
    assert certified(tmp_path / "two")["key"] == "made from a seed"
    assert command("measure", run, "--out", tmp_path / "two", "--seed", "3", "--resume") == 0


@pytest.mark.parametrize("keep", [False, True])
def test_measurements_alone_need_no_key_any_more(keep: bool, tmp_path: Path, capsys: Capture) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("measure", run, "--out", out, *(["--keep-key"] if keep else [])) == 0
    assert keys(out) == (["mini.key"] if keep else [])
    if not keep:
        assert command("run", run, "--out", out, "--resume") == 4
        assert "opendas estimate continues" in capsys.readouterr().err
    (tmp_path / "counts.csv").unlink()
    assert command("estimate", run, "--out", out) == 0
    assert keys(out) == (["mini.key"] if keep else []), "estimating touches no key"
    assert certified(out)["key"] == ("kept" if keep else "destroyed")
    assert command("verify", out) == 0


def stopped_before(owner: Any, name: str, patch: Patch, nth: int = 1) -> None:
    calls = []
    act = getattr(owner, name)

    def stop(*args: Any, **words: Any) -> Any:
        calls.append(1)
        if len(calls) == nth:
            raise KeyboardInterrupt
        return act(*args, **words)

    patch.setattr(owner, name, stop)


STEPS: dict[str, Callable[[Patch], None]] = {
    "the key goes": lambda patch: stopped_before(workspace, "destroy_secret", patch),
    "the ledger says so": lambda patch: stopped_before(Ledger, "enter", patch),
    "the certificate": lambda patch: stopped_before(runs_release, "issue_certificate", patch),
    "the last state": lambda patch: stopped_before(Workspace, "save_state", patch, 3),
    "the end": lambda patch: stopped_before(Workspace, "close", patch),
}


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("step", STEPS)
def test_a_death_on_the_way_out_is_completed_without_key_and_input(
    step: str, seed: int | None, tmp_path: Path, monkeypatch: Patch
) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    words = () if seed is None else ("--seed", str(seed))
    with monkeypatch.context() as patch:
        STEPS[step](patch)
        assert command("run", run, "--out", out, *words) == 130
    (row,) = od.status(out)
    if step != "the end":
        assert (row["phase"], row["state"]) == ("ending", "stopped")
        assert "--resume" in row["advice"]
        assert command("verify", out, "--allow-seeded") == (0 if step == "the last state" else 2)
    (out / "confidential" / "keys" / "mini.key").unlink(missing_ok=True)
    input_ = (tmp_path / "counts.csv").read_bytes()
    assert command("run", run, "--out", out, "--resume", *words) == 0
    assert keys(out) == []
    assert [act.act for act in acts(out)] == ["destroy-key"]
    assert (out / "ledger.jsonl").read_text().count('"finished"') == 1
    assert certified(out)["key"] == ("destroyed" if seed is None else "made from a seed")
    assert command("verify", out, "--allow-seeded") == 0
    assert (tmp_path / "counts.csv").read_bytes() == input_
    if seed is not None:
        again = tmp_path / "again"
        assert command("run", run, "--out", again, *words) == 0
        assert tree(out / "release") == tree(again / "release")


def test_a_death_on_the_way_out_of_a_measurement_is_completed_by_the_estimate(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    with monkeypatch.context() as patch:
        STEPS["the certificate"](patch)
        assert command("measure", run, "--out", out) == 130
    assert keys(out) == []
    assert command("estimate", run, "--out", out) == 0
    assert certified(out)["key"] == "destroyed"
    assert command("verify", out) == 0


@pytest.mark.parametrize("step", ["the key goes", "the ledger says so", "the last state"])
def test_households_end_in_the_same_way(step: str, tmp_path: Path, monkeypatch: Patch) -> None:
    data = write_world(tmp_path / "data", random_world(3, 60))
    (tmp_path / "config.json").write_text(json.dumps(configuration(tau=3)))
    words = ("phsafe", tmp_path / "config.json", data)
    assert command(*words, tmp_path / "kept", "--keep-key") == 0
    assert certified(tmp_path / "kept")["key"] == "kept"
    assert command("verify", tmp_path / "kept") == 0
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        STEPS[step](patch)
        assert command(*words, out) == 130
    assert od.status(out)[0]["phase"] == "ending"
    shutil.rmtree(tmp_path / "data")
    assert command(*words, out, "--resume") == 0
    assert keys(out) == []
    assert certified(out)["key"] == "destroyed"
    assert [act.act for act in acts(out)] == ["destroy-key"]
    assert command("verify", out) == 0
    with monkeypatch.context() as patch:
        stopped_before(household_run, "issue_certificate", patch)
        write_world(tmp_path / "data", random_world(3, 60))
        assert command(*words, tmp_path / "third") == 130
    assert command(*words, tmp_path / "third", "--resume") == 0
    assert command("verify", tmp_path / "third") == 0
