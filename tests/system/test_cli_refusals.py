"""Bad input at the command line: the right exit code, a message that helps, nothing half-written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opendas.cli.failures import guarded
from opendas.cli.main import cli

SECRET = "7714"
PRODUCT = """
[product]
name = "votes"
provenance = "code-book"
[attributes]
party = ["a", "b"]
"""
RUN = """
[run]
product = "votes.toml"
[input]
reader = "histogram"
path = "votes.csv"
[geography]
levels = [{ name = "town", prefix = 1 }, { name = "precinct" }]
frame = "precincts.csv"
provenance = "public"
[budget]
rho = "1"
geolevels = { town = "1/2", precinct = "1/2" }
[budget.queries]
"*" = { total = "1/4", detailed = "3/4" }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "votes.toml").write_text(PRODUCT)
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "votes.csv").write_text(f"geocode,party,count\n11,a,{SECRET}\n12,b,3\n21,a,5\n")
    (tmp_path / "precincts.csv").write_text("geocode\n11\n12\n13\n21\n")
    return tmp_path


def refuse(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that must fail; return its code and message."""
    code = guarded(cli, list(arguments))
    said = capsys.readouterr()
    assert said.out == ""
    assert SECRET not in said.err
    return code, said.err


def rewrite(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new", "code", "expected"),
    [
        ("run.toml", "[budget]", "[budgte]", 2, "did you mean budget?"),
        ("run.toml", 'town = "1/2"', 'town = "0.500000000001"', 2, "1/1000000000000 too much"),
        ("run.toml", 'rho = "1"', "rho = 1.5", 2, "Write it in quotes"),
        ("run.toml", 'rho = "1"', 'rho = "-1"', 2, "positive"),
        (
            "run.toml",
            'geolevels = { town = "1/2", precinct = "1/2" }',
            'preset = "us2020-persons"',
            2,
            "the run has",
        ),
        ("run.toml", "votes.csv", "absent.csv", 2, "absent.csv"),
        ("run.toml", "precincts.csv", "absent.csv", 2, "absent.csv"),
        ("run.toml", 'frame = "precincts.csv"', "", 2, "frame"),
        ("votes.toml", '["a", "b"]', '["a", "a"]', 2, "repeats the level"),
        ("votes.csv", "12,b,3", "12,c,3", 3, "line 3"),
        ("votes.csv", "12,b,3", "19,b,3", 3, "line 3"),
        ("votes.csv", "12,b,3", "12,b,-3", 3, "line 3"),
        ("votes.csv", "12,b,3", "12,b,3.5", 3, "line 3"),
        ("precincts.csv", "12\n", "11\n", 3, "each leaf once"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    old: str,
    new: str,
    code: int,
    expected: str,
) -> None:
    rewrite(folder, name, old, new)
    found, said = refuse(folder, capsys, "run", "run.toml", "--out", "out")
    assert (found, expected.lower() in said.lower()) == (code, True), said
    assert not list(folder.glob("out/release/*"))
    assert not list(folder.glob("out/**/*.key"))


def test_an_invariant_under_unbounded_is_a_privacy_refusal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "votes.toml").open("a") as file:
        file.write('[[invariants]]\nquery = "total"\ngeolevel = "town"\n')
    rewrite(folder, "run.toml", "[input]", 'neighbours = "unbounded"\n[input]')
    assert refuse(folder, capsys, "plan", "run.toml")[0] == 4


def test_a_folder_of_something_else_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refuse(folder, capsys, "run", "run.toml", "--out", ".")
    assert code == 2
    assert "--out" in said
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
        *("precincts.csv", "run.toml", "votes.csv", "votes.toml"),
    ]


def test_commands_about_a_folder_that_is_no_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("status", "nowhere"), ("forget-key", "nowhere"), ("verify", "nowhere")):
        assert refuse(folder, capsys, *arguments)[0] == 2, arguments
    assert not (folder / "nowhere").exists()


def test_another_input_under_the_same_key_is_a_privacy_refusal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(cli, ["run", "run.toml", "--out", "out"]) == 0
    capsys.readouterr()
    assert refuse(folder, capsys, "run", "run.toml", "--out", "out")[0] == 2
    rewrite(folder, "votes.csv", "12,b,3", "12,b,4")
    assert refuse(folder, capsys, "run", "run.toml", "--out", "out", "--resume")[0] == 4
    rewrite(folder, "run.toml", 'rho = "1"', 'rho = "2"')
    assert refuse(folder, capsys, "run", "run.toml", "--out", "out", "--resume")[0] == 4


def test_a_second_folder_over_the_same_input_asks_before_it_spends(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guarded(cli, ["run", "run.toml", "--out", "one", "--workers", "1"]) == 0
    said = capsys.readouterr().err
    assert "holds a run" not in said
    assert guarded(cli, ["run", "run.toml", "--out", "one", "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert "--resume" in said
    assert "spends its budget again" in said

    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text))
    for command in ("run", "measure"):
        assert guarded(cli, [command, "run.toml", "--out", "two", "--workers", "1"]) == 4
        said = capsys.readouterr().err
        assert "one holds a run of votes on the same files already, rho 1" in said
        assert "opendas run run.toml --out" in said
        assert "--resume" in said
        assert "opendas measure" not in said, "it left nothing out"
        assert not (folder / "two").exists()
    assert len(asked) == 2
    assert guarded(cli, ["run", "run.toml", "--out", "seeded", "--workers", "1", "--seed", "1"]) == 0
    assert len(asked) == 2, "noise from a seed spends nothing"
    monkeypatch.setattr("click.confirm", lambda text, **_: True)
    assert guarded(cli, ["run", "run.toml", "--out", "two", "--workers", "1"]) == 0

    capsys.readouterr()
    (folder / "votes.csv").write_text("geocode,party,count\n11,a,4\n12,b,3\n21,a,5\n")
    assert guarded(cli, ["run", "run.toml", "--out", "other", "--workers", "1"]) == 0
    assert "holds a run" not in capsys.readouterr().err, "other data"
    monkeypatch.undo()


def test_where_nobody_can_be_asked_a_second_folder_is_named_and_the_run_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert guarded(cli, ["run", "run.toml", "--out", "one", "--workers", "1"]) == 0
    assert guarded(cli, ["run", "run.toml", "--out", "two", "--workers", "1"]) == 0
    said = capsys.readouterr().err
    assert "one holds a run of votes" in said
    assert "Nobody can be asked" in said
    for kept, words in (([], "are lost"), (["--keep-key"], "opendas measure RUN.toml --out")):
        shutil.rmtree(folder / "one")
        shutil.rmtree(folder / "two")
        asked = ["run", "run.toml", "--workers", "1", "--measurements", "used", *kept]
        assert guarded(cli, [*asked, "--out", "one"]) == 0
        capsys.readouterr()
        assert guarded(cli, [*asked, "--out", "two"]) == 0
        assert words in " ".join(capsys.readouterr().err.split())
