"""What a hostile or careless user gives: the right exit code, a message that helps, and nothing half-written.

Everything goes through the command line. The miniature census of the test support is the victim.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.mini import mini_frame, mini_histogram, write_mini
from support.pl94_zip import members, some_blocks, write_zip

from opendas.cli.failures import guarded
from opendas.cli.main import cli

SECRET = "7714"
RUN = ("run", "run.toml", "--out", "out", "--seed", "1")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the miniature census, and in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    write_mini(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the miniature census, run with seed 1 into ``out``."""
    folder = tmp_path_factory.mktemp("finished")
    write_mini(folder)
    asked = ("--out", str(folder / "out"), "--seed", "1", "--measurements", "used")
    assert guarded(cli, ["run", str(folder / "run.toml"), *asked]) == 0
    return folder


def call(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, what it said on stdout and on stderr."""
    capsys.readouterr()
    code = guarded(cli, list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def refused(capsys: Capture, *arguments: str) -> tuple[int, str]:
    """Run a command that must fail with nothing on stdout and nothing confidential on stderr."""
    code, out, err = call(capsys, *arguments)
    assert code != 0
    assert out == ""
    assert SECRET not in err
    assert "internal error" not in err
    return code, err


def strict_json(text: str) -> Any:
    """Parse strict JSON."""

    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=fail)


def change(name: str, old: str, new: str) -> None:
    path = Path(name)
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {name}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def append(name: str, text: str) -> None:
    with open(name, "a", encoding="utf-8") as file:
        file.write(text)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# Rows and files of the input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "field", "rule"),
    [
        (f"000000,home,adult,-{SECRET}", "count", "whole number, not negative"),
        (f"000000,home,adult,{SECRET}.5", "count", "whole number"),
        (f"000000,home,adult,{SECRET}e3", "count", "whole number"),
        (f"000000,home,adult,{SECRET}{SECRET}{SECRET}{SECRET}{SECRET}", "count", "below 2**62"),
        ("000000,home,adult,", "count", "whole number"),
        ("000000,home,adult,NaN", "count", "whole number"),
        ("000000,home,adult,7_714", "count", "whole number"),
        (f"000000,castle{SECRET},adult,1", "kind", "one of home, school, prison"),
        (f"00{SECRET},home,adult,1", "geocode", "a block that the frame holds"),
        ("00,home,adult,1", "geocode", "6 characters"),
        (f",home,adult,{SECRET}", "geocode", "geocode"),
        ("é00000,home,adult,1", "geocode", "geocode"),
        (f"000000,prison,child,{SECRET}", None, "structural zero of mini"),
        (f"000000,home,{SECRET}", None, "expected 4 fields"),
        (f"000000,home,adult,{SECRET},2", None, "expected 4 fields"),
        ("\0\0", None, "expected 4 fields"),
    ],
)
def test_a_bad_row_is_named_by_file_line_field_and_rule(
    mini: Path, capsys: Capture, row: str, field: str | None, rule: str
) -> None:
    line = len(Path("counts.csv").read_text().splitlines()) + 1
    append("counts.csv", row + "\n")
    code, said = refused(capsys, *RUN)
    assert code == 3
    where = f"counts.csv, line {line}" + (f", field {field}" if field else "")
    assert f"{where}: " in said
    assert rule in said
    assert not Path("out").exists()


def test_all_bad_rows_come_together(mini: Path, capsys: Capture) -> None:
    append("counts.csv", "000000,castle,adult,1\n000000,home,adult,-1\n999999,home,adult,1\n")
    code, said = refused(capsys, *RUN)
    assert code == 3
    assert said.count("counts.csv, line") == 3


@pytest.mark.parametrize(
    ("name", "content", "code", "rule"),
    [
        ("counts.csv", b"", 3, "empty file"),
        ("counts.csv", b"geocode,kind,age,count\n", 3, "expected rows, found none"),
        ("counts.csv", b"\x00\x01\xff" * 500, 3, "damaged"),
        ("counts.csv", b"geocode,kin,age,count\n000000,home,old,1\n", 3, 'did you mean "kin"?'),
        ("counts.csv", b"geocode,kind,kind,count\n000000,home,old,1\n", 3, "each column name once"),
        ("frame.csv", b"", 3, "empty file"),
        ("frame.csv", b"geocode,homes,schools,prisons\n", 3, "expected rows, found none"),
        ("frame.csv", b"geocode,homes,schools,prisons\n000000,1,1,1\n000000,1,1,1\n", 3, "each leaf once"),
        ("frame.csv", b"geocode,homes,schools,prisons\n0000,1,1,1\n", 3, "6 characters"),
        ("frame.csv", b"geocode,homes,schools,prisons\n000000,-1,1,1\n", 3, "not negative"),
        ("frame.csv", b"geocode,homes,schools,prisons\n000000,1.5,1,1\n", 3, "whole number"),
    ],
)
def test_a_bad_file_is_refused(
    mini: Path, capsys: Capture, name: str, content: bytes, code: int, rule: str
) -> None:
    Path(name).write_bytes(content)
    found, said = refused(capsys, *RUN)
    assert (found, rule in said) == (code, True), said
    assert name in said
    assert not Path("out").exists()


def test_more_records_than_integers_are_exact_for_are_refused(mini: Path, capsys: Capture) -> None:
    append("counts.csv", f"000000,home,adult,{2**41}\n")
    code, said = refused(capsys, *RUN)
    assert code == 3
    assert str(2**41) not in said
    assert not Path("out").exists()


def test_units_beyond_integers_are_refused(mini: Path, capsys: Capture) -> None:
    lines = Path("frame.csv").read_text().splitlines()
    fields = lines[1].split(",")
    Path("frame.csv").write_text("\n".join([lines[0], f"{fields[0]},{2**61},0,0", *lines[2:]]) + "\n")
    code, said = refused(capsys, *RUN)
    assert (code, "homes" in said) == (3, True), said
    assert not Path("out").exists()


def test_a_table_saved_by_a_spreadsheet_reads_like_any_other(mini: Path, capsys: Capture) -> None:
    plain = Path("counts.csv").read_bytes()
    assert call(capsys, *RUN)[0] == 0
    Path("counts.csv").write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    assert call(capsys, "run", "run.toml", "--out", "other", "--seed", "1")[0] == 0
    assert files(mini / "out/release/mdf") == files(mini / "other/release/mdf")


# Run files and product files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "required key is missing"),
        (b"\x80\x81\xff" * 300, "UTF-8"),
        (b"\0" * 300, "not valid TOML"),
        (b"[run\n", "not valid TOML"),
        (b"geocode,kind,age,count\n", "not valid TOML"),
    ],
)
@pytest.mark.parametrize("name", ["run.toml", "product.toml"])
def test_garbage_instead_of_a_file_of_ours(
    mini: Path, capsys: Capture, name: str, content: bytes, rule: str
) -> None:
    Path(name).write_bytes(content)
    code, said = refused(capsys, "plan", "run.toml", "--json")
    assert (code, rule in said, name in said) == (2, True, True), said


@pytest.mark.parametrize("name", [".", "nowhere.toml"])
@pytest.mark.parametrize("command", ["plan", "run", "measure", "estimate"])
def test_no_run_file(mini: Path, capsys: Capture, command: str, name: str) -> None:
    code, said = refused(capsys, command, name, *(() if command == "plan" else ("--out", "out")), "--json")
    assert (code, "no such run file" in said) == (2, True)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("old", "new", "code", "rule"),
    [
        ('block = "1/2"', 'block = "0.500000000001"', 2, "1/1000000000000 too much"),
        ('detailed = "1/2"', 'detailed = "0.500000000001"', 2, "1/1000000000000 too much"),
        ('detailed = "1/2"', 'detailed = "0.499999999999"', 2, "1/1000000000000 too little"),
        ('town = "1/4", block = "1/2"', 'town = "-1/4", block = "1"', 2, "shares must not be negative"),
        ('block = "1/2"', "block = 0.5", 2, "binary floating-point"),
        ('rho = "2"', "rho = 2.0", 2, "binary floating-point"),
        ('rho = "2"', 'rho = "inf"', 2, "not a number"),
        ('rho = "2"', 'rho = "nan"', 2, "not a number"),
        ('rho = "2"', 'rho = "1/0"', 2, "denominator zero"),
        ('rho = "2"', 'rho = "0"', 2, "must be positive"),
        ('rho = "2"', 'rho = "1e400"', 2, "rho is above"),
        ('rho = "2"', 'rho = "1e-14"', 2, "too small"),
        ('rho = "2"', 'rho = "1e-400"', 2, "too small"),
        ('rho = "2"', 'rho = "2"\ndelta = "2"', 2, "between 0 and 1"),
        ('block = "1/2"', 'blok = "1/2"', 2, "no share for block"),
        ("[budget.queries]", "[budget.query]", 2, "did you mean queries?"),
        ("product =", "failsave = true\nproduct =", 2, "did you mean failsafe?"),
        ("product =", 'mechanism = "gaussian"\nproduct =', 2, "did you mean discrete-gaussian?"),
        ("product =", 'mechanism = "discrete-laplace"\nproduct =', 2, "Give epsilon"),
        ("product =", 'estimator = "informd"\nproduct =', 2, "did you mean informed?"),
        ("product =", 'neighbours = "unbounded"\nproduct =', 4, "drop_invariants"),
        ("product =", 'drop_invariants = ["totl"]\nproduct =', 2, "did you mean total?"),
        ("[geography]", '[geography]\nspine = "aian"', 2, "needs the areas 'aianhh'"),
        ("[geography]", '[geography]\nspine = [{ step = "bypas" }]', 2, "did you mean bypass?"),
        ("[geography]", '[geography]\nspine = "standrad"', 2, "did you mean standard?"),
        ('"histogram"', '"cef"', 2, "required with reader cef"),
        ('"histogram"', '"histogramm"', 2, "did you mean histogram?"),
        ("counts.csv", "nowhere.csv", 2, "nothing found"),
        ("frame.csv", "nowhere.csv", 2, "no such file"),
        ("product.toml", "nowhere.toml", 2, "no product file"),
        ("product.toml", "pl94-person", 2, "did you mean pl94-persons?"),
        ('geolevels = { region = "1/4", town = "1/4", block = "1/2" }', 'preset = "us2020"', 2, "us2020-"),
        (
            'geolevels = { region = "1/4", town = "1/4", block = "1/2" }',
            'preset = "us2020-persons"',
            2,
            "The run has region, town, block",
        ),
        ('name = "town"', 'name = "region"', 2, "two levels have the same name"),
        ('name = "town"', 'name = "REGION"', 2, "upper and lower case are the same"),
        ("prefix = 4", "prefix = 1", 2, "from the top down"),
        ("prefix = 6", "prefix = 9", 3, "9 characters"),
        ("prefix = 4", 'column = "TOWN"', 3, "TOWN"),
        ('"kind * minor" =', '"kind * minr" =', 2, "'minr' is neither"),
    ],
)
def test_a_run_file_that_does_not_hold_together(
    mini: Path, capsys: Capture, old: str, new: str, code: int, rule: str
) -> None:
    if "preset" in new and "name =" not in old:
        change("run.toml", 'rho = "2"\n', "")
    change("run.toml", old, new)
    for command in (("plan", "run.toml", "--json"), RUN):
        if code == 3 and command[0] == "plan":
            continue
        found, said = refused(capsys, *command)
        assert (found, rule in said) == (code, True), said
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "geolevel", ["", " ", "spine", "Constraints", "a/b", "../x", "/abs", "<b>", ".", "a\\u0000b"]
)
def test_a_geolevel_whose_measurements_could_have_no_file_is_refused(
    mini: Path, capsys: Capture, geolevel: str
) -> None:
    change("run.toml", 'name = "town"', f'name = "{geolevel}"')
    code, said = refused(capsys, *RUN)
    assert (code, "levels" in said) == (2, True), said
    assert not Path("out").exists()


def test_a_pipe_is_no_input(mini: Path, capsys: Capture) -> None:
    """It would be read twice, and the second time never end."""
    Path("counts.csv").unlink()
    os.mkfifo("counts.csv")
    code, said = refused(capsys, *RUN)
    assert (code, "a pipe or a device" in said) == (2, True), said
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["run.toml", "product.toml", "frame.csv"])
def test_a_pipe_into_which_nobody_writes_is_not_waited_for(mini: Path, name: str) -> None:
    Path(name).unlink()
    os.mkfifo(name)
    code, said = again(*RUN, before="ulimit -t 60")
    assert (code, name in said) == (2, True), said
    assert not Path("out").exists()


def test_a_run_file_may_come_through_a_pipe(mini: Path) -> None:
    _, said = again("plan", "/dev/fd/9", "--json", before="exec 9< <(sleep 1; cat run.toml)")
    assert "fd/product.toml" in said, "it was read: its paths start from its folder"


@pytest.mark.parametrize("date", ["", "yesterday", "1.5", "9" * 20])
def test_a_date_that_no_certificate_could_bear_is_refused_before_anything_else(
    mini: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, date: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
    code, said = refused(capsys, *RUN)
    assert (code, "SOURCE_DATE_EPOCH" in said) == (2, True), said
    assert not Path("out").exists()


def again(*arguments: str, before: str = "true", **environment: str) -> tuple[int, str]:
    """Run the command in a process that has loaded nothing yet, after a line of the shell."""
    script = f'{before}; exec "$0" -m opendas "$@"'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("command", [("status", "out"), ("list",)])
def test_a_date_is_refused_before_a_library_reads_it(mini: Path, command: tuple[str, ...]) -> None:
    code, said = again(*command, SOURCE_DATE_EPOCH="yesterday")
    assert (code, "SOURCE_DATE_EPOCH" in said, "internal" in said) == (2, True, False), said


@pytest.mark.parametrize("limit", ["ulimit -v 600000", "ulimit -v 2000000", "ulimit -d 600000"])
def test_too_few_addresses_get_a_sentence(mini: Path, limit: str) -> None:
    """Below some 2 GB, libraries end the process half-way with a signal, or for ever ask for more."""
    code, said = again(*RUN, before=limit)
    assert (code, "not enough memory" in said, limit[:9] in said) == (6, True, True), said
    assert not Path("out").exists()
    assert again("--version", before=limit)[0] == 0


@pytest.mark.parametrize("slack", ["1e400", "-1", "1099511627777"])
def test_a_slack_beyond_any_count_is_refused(mini: Path, capsys: Capture, slack: str) -> None:
    append("run.toml", f'[passes]\nslack = "{slack}"\n')
    code, said = refused(capsys, *RUN)
    assert (code, "slack" in said) == (2, True), said
    assert not Path("out").exists()


def test_compiled_code_has_a_place_where_no_folder_can_be_written(
    mini: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else numba refuses to load a kernel. The folder goes with the process."""
    monkeypatch.setenv("HOME", "/proc")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr("opendas.cli.main.writable", lambda _: False)
    asked: list[Any] = []
    monkeypatch.setattr("opendas.cli.main.atexit.register", lambda *call, **_: asked.append(call))
    assert guarded(cli, ["plan", "run.toml"]) == 0
    ((remove, folder),) = [call for call in asked if call[0] is shutil.rmtree]
    assert os.environ["NUMBA_CACHE_DIR"] == folder
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    remove(folder)
    assert not Path(folder).exists()


def test_a_module_that_is_cut_short_is_not_taken_for_an_interruption(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python keeps what it compiles where no more can be written, and finds out at the next import."""

    def ended(name: str) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr("opendas.cli.main.importlib.import_module", ended)
    code, said = refused(capsys, "list")
    assert (code, "cut short" in said) == (6, True), said


def test_rounder_passes_that_cross_are_refused_before_anything_is_spent(mini: Path, capsys: Capture) -> None:
    append("run.toml", '[passes]\nrounder = { "*" = [["kind", "age"], ["detailed"]] }\n')
    code, said = refused(capsys, *RUN)
    assert (code, "cross" in said, "milp = true" in said) == (2, True, True)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('["home", "school", "prison"]', '["home", "home", "prison"]', "repeats the level"),
        ('["home", "school", "prison"]', "[1, 2]", "text in quotes"),
        ('["home", "school", "prison"]', "[]", "attributes.kind"),
        ('age = ["child", "adult", "old"]', 'total = ["child", "adult", "old"]', "'total' is not usable"),
        ('major = ["adult", "old"]', 'major = ["adult"]', "partition"),
        ('cell = "school"', 'cell = "shcool"', "shcool"),
        ("lower = 1", "lower = 100000", "lower is greater than upper"),
        ("lower = 1", f"lower = 1\nupper = {1 << 63}", "less than or equal to"),
        ('query = "total"', 'query = "totl"', "totl"),
        ('geolevel = "region"', 'geolevel = "regin"', "regin"),
        ('kind = ["prison"]\n', 'kind = ["prism"]\n', "prism"),
        ("[queries]", "[querys]", "did you mean queries?"),
    ],
)
def test_a_product_file_that_does_not_hold_together(
    mini: Path, capsys: Capture, old: str, new: str, rule: str
) -> None:
    change("product.toml", old, new)
    code, said = refused(capsys, "plan", "run.toml")
    assert (code, rule in said) == (2, True), said


# Options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "rule"),
    [
        (("--engine", "sprak"), 2, "sprak"),
        (("--master", "local"), 2, "--master"),
        (("--workers", "0"), 2, "--workers"),
        (("--seed", "-1"), 2, "--seed"),
        (("--seed", "1.5"), 2, "--seed"),
        (("--key-command", ""), 2, "--key-command is empty"),
        (("--key-command", "no-such-program-of-ours"), 6, "key command"),
        (("--key-command", '"'), 6, "key command"),
        (("--key-command", "echo zz"), 4, "64 hexadecimal digits"),
        (("--seed", "1", "--key-command", "echo " + "ab" * 32), 2, "takes no key command"),
        (("--ledger", "run.toml"), 4, "run.toml, line 1"),
        (("--ledger", "."), 2, "--ledger"),
        (("--ledger", "nowhere/ledger.jsonl"), 2, "--ledger"),
        (("--mdf-format", "xml"), 2, "xml"),
        (("--ouut", "x"), 2, "--out"),
    ],
)
def test_options_that_cannot_be_meant(
    mini: Path, capsys: Capture, arguments: tuple[str, ...], code: int, rule: str
) -> None:
    before = files(mini)
    found, said = refused(capsys, "run", "run.toml", "--out", "out", "--json", *arguments)
    assert (found, rule in said) == (code, True), said
    assert files(mini) == before
    assert not Path("out").exists()


def test_the_nearest_command_is_named(capsys: Capture) -> None:
    code, said = refused(capsys, "rnu", "run.toml")
    assert (code, "did you mean run?" in said) == (2, True)


# Output folders ---------------------------------------------------------------------------------------------


def test_an_output_folder_that_cannot_be_one(mini: Path, capsys: Capture) -> None:
    assert refused(capsys, "run", "run.toml", "--out", "run.toml")[0] == 2
    assert refused(capsys, "run", "run.toml", "--out", "run.toml/below")[0] == 6
    assert refused(capsys, "run", "run.toml", "--out", "/proc/nowhere")[0] == 6
    assert refused(capsys, "run", "run.toml", "--out", ".")[0] == 2
    assert sorted(path.name for path in mini.iterdir()) == [
        *("counts.csv", "frame.csv", "product.toml", "run.toml"),
    ]


def test_an_output_folder_without_permission(
    mini: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("locked").mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write anywhere: the system's answer to others is put in its place
        make = os.mkdir

        def mkdir(path: str, *arguments: Any, **more: Any) -> None:
            if Path(path).name == "out":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            make(path, *arguments, **more)

        monkeypatch.setattr(os, "mkdir", mkdir)
    assert refused(capsys, "run", "run.toml", "--out", "locked/out")[0] == 6


def test_a_folder_is_bound_to_its_run(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    run, out = str(tmp_path / "copy/run.toml"), str(tmp_path / "copy/out")
    log = "out/confidential/logs/mini.jsonl"  # every attempt is told there
    before = files(tmp_path / "copy")

    def again(*more: str) -> tuple[int, str]:
        return refused(capsys, "run", run, "--out", out, "--json", *more)

    assert again("--seed", "1")[0] == 2
    assert "--resume" in again("--seed", "1")[1]
    assert again("--resume")[0] == 4
    assert again("--resume", "--seed", "2")[0] == 4
    assert refused(capsys, "measure", run, "--out", out, "--seed", "1")[0] == 2
    assert refused(capsys, "estimate", run, "--out", out)[0] == 2
    after = files(tmp_path / "copy")
    assert after.pop(log).startswith(before.pop(log))
    assert after == before
    code, said, _ = call(capsys, "run", run, "--out", out, "--json", "--resume", "--seed", "1")
    assert (code, strict_json(said)["records"]) == (0, mini_histogram(mini_frame()).total())
    change(run, 'rho = "2"', 'rho = "3"')
    code, text = again("--resume", "--seed", "1")
    assert (code, "differ in plan" in text) == (4, True)
    change(run, 'rho = "3"', 'rho = "2"')
    append(str(tmp_path / "copy/counts.csv"), "000000,home,adult,1\n")
    code, text = again("--resume", "--seed", "1")
    assert (code, "differ in input" in text) == (4, True)


def test_a_folder_of_another_version(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    state = tmp_path / "copy/out/state/mini/run.json"
    document = json.loads(state.read_text())
    state.write_text(json.dumps({**document, "version": "0.0.1"}))
    run, out = str(tmp_path / "copy/run.toml"), str(tmp_path / "copy/out")
    code, said = refused(capsys, "run", run, "--out", out, "--resume", "--seed", "1")
    assert (code, "differ in program version (0.0.1 and " in said) == (4, True)


@pytest.mark.parametrize("content", ["{", "{}", "[]", "null", '{"a": 1}'])
def test_a_damaged_state_is_no_internal_error(
    finished: Path, tmp_path: Path, capsys: Capture, content: str
) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    (tmp_path / "copy/out/state/mini/run.json").write_text(content)
    run, out = str(tmp_path / "copy/run.toml"), str(tmp_path / "copy/out")
    for command in (
        ("status", out, "--json"),
        ("run", run, "--out", out, "--resume", "--seed", "1", "--json"),
        ("measure", run, "--out", out, "--resume", "--seed", "1", "--json"),
        ("estimate", run, "--out", out, "--resume", "--json"),
    ):
        code, said = refused(capsys, *command)
        assert (code, "damaged" in said) == (4, True), (command, said)


def test_a_damaged_ledger_stops_everything_that_draws(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    (tmp_path / "copy/out/ledger.jsonl").write_text("garbage\n")
    run, out = str(tmp_path / "copy/run.toml"), str(tmp_path / "copy/out")
    code, said = refused(capsys, "run", run, "--out", out, "--resume", "--seed", "1", "--json")
    assert (code, "ledger.jsonl, line 1" in said) == (4, True)


@pytest.mark.parametrize("where", ["nowhere", "run.toml", "empty", "/"])
def test_folders_that_are_no_release(mini: Path, capsys: Capture, where: str) -> None:
    Path("empty").mkdir()
    before = files(mini)
    for command in (
        ("status", where, "--json"),
        ("verify", where, "--json"),
        ("tabulate", where, "--tables", "kind", "--geolevel", "town"),
        ("evaluate", where, "--truth", "run.toml", "--json"),
        ("forget-key", where),
    ):
        assert refused(capsys, *command)[0] == 2, command
    assert files(mini) == before


# Tables, evaluation, accounts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "rule"),
    [
        (("--tables", "kind", "--geolevel", "twon"), 2, "did you mean town?"),
        (("--tables", "kind", "--geolevel", "place"), 2, "region, town, block"),
        (("--tables", "knid", "--geolevel", "town"), 2, "did you mean kind?"),
        (("--tables", "P1", "--geolevel", "town"), 2, "pl94-persons"),
        (("--tables", ",", "--geolevel", "town"), 2, "names no table"),
        (("--tables", "kind", "--geolevel", "town", "--format", "pl94"), 2, "pl94 format"),
        (("--tables", "kind", "--geolevel", "town", "--intervals", "0.9"), 3, "--measurements full"),
        (("--tables", "kind", "--geolevel", "town", "--intervals", "90"), 2, "level"),
        (("--tables", "kind", "--geolevel", "town", "--to", "/proc/x"), 6, "kind_town"),
    ],
)
def test_tables_that_cannot_be_made(
    finished: Path, capsys: Capture, arguments: tuple[str, ...], code: int, rule: str
) -> None:
    before = files(finished / "out/release")
    found, said = refused(capsys, "tabulate", str(finished / "out"), *arguments)
    assert (found, rule in said) == (code, True), said
    assert files(finished / "out/release") == before


def test_an_evaluation_without_or_with_another_truth(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    out = str(finished / "out")
    assert refused(capsys, "evaluate", out, "--truth", str(tmp_path / "no.toml"), "--json")[0] == 2
    other = write_mini(tmp_path, frame=mini_frame(regions=1))
    code, said = refused(capsys, "evaluate", out, "--truth", str(other), "--json")
    assert (code, "different leaves" in said) == (2, True)
    change(str(other), "product.toml", "pl94-persons")
    assert refused(capsys, "evaluate", out, "--truth", str(other), "--json")[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rho", "x"),
        ("--rho", "-1"),
        ("--rho", "nan"),
        ("--rho", "1e300"),
        ("--rho", "1", "--delta", "0"),
        ("--rho", "1", "--delta", "1"),
    ],
)
def test_accounts_of_no_number(capsys: Capture, arguments: tuple[str, ...]) -> None:
    assert refused(capsys, "account", "--json", *arguments)[0] == 2


@pytest.mark.parametrize("rho", ["0", "1e-300", "1e15", "1/3", "293764/114921"])
def test_accounts_are_strict_json_for_any_rho(capsys: Capture, rho: str) -> None:
    code, said, _ = call(capsys, "account", "--json", "--rho", rho)
    assert code == 0
    assert set(strict_json(said)["epsilon"]) == {"cks", "bun-steinke"}


# Tampering --------------------------------------------------------------------------------------------------


def _rewrite(path: Path, text: str) -> None:
    path.write_text(text)


TAMPERING: dict[str, Callable[[Path], Any]] = {
    "certificate cut": lambda release: _rewrite(release / "certificate.json", "{"),
    "certificate empty": lambda release: _rewrite(release / "certificate.json", "{}"),
    "certificate a list": lambda release: _rewrite(release / "certificate.json", "[]"),
    "certificate NaN": lambda release: _rewrite(release / "certificate.json", '{"runs": NaN}'),
    "certificate binary": lambda release: (release / "certificate.json").write_bytes(b"\xff\x00" * 50),
    "loss": lambda release: _rewrite(
        release / "certificate.json",
        (release / "certificate.json").read_text().replace('"rho": "2"', '"rho": "1"'),
    ),
    "pdf gone": lambda release: (release / "certificate.pdf").unlink(),
    "report empty": lambda release: _rewrite(release / "report.html", ""),
    "microdata replaced": lambda release: (release / "mdf/mini/0000.parquet").write_bytes(b"x"),
    "microdata gone": lambda release: (release / "mdf/mini/0000.parquet").unlink(),
    "microdata swapped": lambda release: shutil.copy(
        release / "mdf/mini/0000.parquet", release / "mdf/mini/0001.parquet"
    ),
    "file too many": lambda release: _rewrite(release / "mdf/mini/more.parquet", "x"),
    "link": lambda release: (release / "mdf/mini/link").symlink_to("/etc/hostname"),
    "geography garbage": lambda release: (release / "geography/mini.parquet").write_bytes(b"PAR1 no"),
    "measurements garbage": lambda release: (release / "measurements/mini/block.parquet").write_bytes(
        b"PAR1"
    ),
    "measurements gone": lambda release: shutil.rmtree(release / "measurements"),
    "spine garbage": lambda release: (release / "measurements/mini/spine.parquet").write_bytes(b""),
    "plan": lambda release: _rewrite(release / "run/mini.toml", "x"),
}


@pytest.mark.parametrize("what", TAMPERING)
def test_a_tampered_release_fails_verification_and_says_so_in_json(
    finished: Path, tmp_path: Path, capsys: Capture, what: str
) -> None:
    shutil.copytree(finished / "out", tmp_path / "out")
    TAMPERING[what](tmp_path / "out/release")
    code, said, error = call(capsys, "verify", str(tmp_path / "out"), "--allow-seeded", "--json")
    assert code == 1, error
    answer = strict_json(said)
    assert answer["ok"] is False
    assert any(not check["ok"] for check in answer["checks"])


def test_a_seeded_release_passes_only_where_it_is_allowed(finished: Path, capsys: Capture) -> None:
    code, said, _ = call(capsys, "verify", str(finished / "out"), "--json")
    assert (code, strict_json(said)["ok"]) == (1, False)
    code, said, _ = call(capsys, "verify", str(finished / "out"), "--json", "--allow-seeded")
    assert (code, strict_json(said)["ok"]) == (0, True)


def test_every_answer_in_json_is_strict(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    run, out = str(finished / "run.toml"), str(finished / "out")
    measured = str(tmp_path / "measured")
    for command in (
        ("plan", run),
        ("run", run, "--out", out, "--resume", "--seed", "1"),
        ("measure", run, "--out", measured, "--seed", "1"),
        ("estimate", run, "--out", measured),
        ("status", out),
        ("verify", out, "--allow-seeded"),
        ("evaluate", out, "--truth", run),
        ("account", "--rho", "1"),
    ):
        code, said, error = call(capsys, *command, "--json")
        assert code == 0, (command, error)
        assert said.count("\n") == 1
        strict_json(said)


def test_the_command_line_as_a_process(finished: Path) -> None:
    """Data on stdout, messages on stderr, and a reader that leaves early is no error."""
    import subprocess

    base = [sys.executable, "-m", "opendas"]
    done = subprocess.run([*base, "status", "nowhere", "--json"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"nowhere" in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error_and_no_message_lands_in_a_release(
    mini: Path, closed: str
) -> None:
    import subprocess

    def shell(command: str) -> int:
        return subprocess.run(f"{sys.executable} -m opendas {command}", shell=True, check=False).returncode

    assert shell(f"{' '.join(RUN)} {closed}") == 0
    assert shell("verify out --allow-seeded") == 0


# Inputs at the edge of what is allowed ----------------------------------------------------------------------


def test_a_geolevel_without_budget_is_spread_evenly_and_said_so(mini: Path, capsys: Capture) -> None:
    change("run.toml", 'town = "1/4", block = "1/2"', 'town = "0", block = "3/4"')
    code, said, error = call(capsys, "plan", "run.toml", "--json")
    assert code == 0
    assert any("'town' has no budget" in warning for warning in strict_json(said)["warnings"])
    assert "'town' has no budget" in error
    assert call(capsys, *RUN)[0] == 0
    assert call(capsys, "verify", "out", "--allow-seeded")[0] == 0


def test_the_informed_estimator_spreads_by_what_was_measured_below(mini: Path, capsys: Capture) -> None:
    change("run.toml", "product =", 'estimator = "informed"\nproduct =')
    change("run.toml", 'town = "1/4", block = "1/2"', 'town = "0", block = "3/4"')
    _, said, _ = call(capsys, "plan", "run.toml", "--json")
    assert not any("has no budget" in warning for warning in strict_json(said)["warnings"])
    change("run.toml", 'town = "0", block = "3/4"', 'town = "3/4", block = "0"')
    _, said, _ = call(capsys, "plan", "run.toml", "--json")
    assert any("'block' has no budget" in warning for warning in strict_json(said)["warnings"])


@pytest.mark.parametrize("estimator", ["topdown", "informed", "block-by-block"])
def test_leaves_alone_are_a_spine(mini: Path, capsys: Capture, estimator: str) -> None:
    for name in ("region", "town"):
        change("run.toml", f'{{ name = "{name}", prefix = {2 if name == "region" else 4} }},', "")
    change("run.toml", 'region = "1/4", town = "1/4", block = "1/2"', 'block = "1"')
    change("run.toml", "product =", f'estimator = "{estimator}"\nproduct =')
    change("product.toml", 'geolevel = "region"', 'geolevel = "block"')
    code, _, error = call(capsys, *RUN, "--measurements", "full")
    assert code == 0, error
    assert call(capsys, "verify", "out", "--allow-seeded")[0] == 0
    _, said, _ = call(capsys, "interval", "out", "--query", "total", "--geolevel", "block", "--json")
    assert all(row["lower"] == row["upper"] == row["count"] for row in strict_json(said)["rows"])


@pytest.mark.parametrize("estimator", ["topdown", "informed"])
@pytest.mark.parametrize("rho", ["1e-5", "1e9", "1e15"])
def test_losses_far_off_run_all_the_same(mini: Path, capsys: Capture, rho: str, estimator: str) -> None:
    change("run.toml", 'rho = "2"', f'rho = "{rho}"')
    change("run.toml", "product =", f'estimator = "{estimator}"\nproduct =')
    assert call(capsys, *RUN)[0] == 0
    assert call(capsys, "verify", "out", "--allow-seeded")[0] == 0


def test_records_that_break_their_bounds_are_told_and_refused_when_strict(
    mini: Path, capsys: Capture
) -> None:
    lines = Path("frame.csv").read_text().splitlines()
    Path("frame.csv").write_text("\n".join([lines[0], lines[1].split(",")[0] + ",0,0,0", *lines[2:]]) + "\n")
    code, said = refused(capsys, *RUN, "--strict")
    assert code == 3
    assert "kind=home" in said
    code, _, error = call(capsys, *RUN)
    assert code == 0
    assert "out/confidential/findings/mini.txt" in error


def write_any(
    product: str,
    counts: str,
    frame: str,
    levels: list[str],
) -> None:
    """Write a run of a small table of one's own into the current folder."""
    names = [level.split('"')[1] for level in levels]
    shares = ", ".join(f'{name} = "1/{len(names)}"' for name in names)
    Path("product.toml").write_text(
        f'[product]\nname = "own"\nprovenance = "code-book"\n{product}', encoding="utf-8"
    )
    Path("counts.csv").write_text(counts, encoding="utf-8")
    Path("frame.csv").write_text(frame, encoding="utf-8")
    Path("run.toml").write_text(
        f"""[run]
product = "product.toml"
[input]
reader = "histogram"
path = "counts.csv"
[geography]
levels = [{", ".join(levels)}]
frame = "frame.csv"
provenance = "public"
[budget]
rho = "1"
geolevels = {{ {shares} }}
[budget.queries]
"*" = {{ total = "1/4", detailed = "3/4" }}
""",
        encoding="utf-8",
    )


TWO = '[attributes]\na = ["x", "y"]\n'
LEVELS = ['{ name = "r", prefix = 1 }', '{ name = "b", prefix = 3 }']
DEEP = "0" * 99
EDGES = {
    "no records": (TWO, "geocode,a,count\n101,x,0\n", "geocode\n101\n102\n201\n", LEVELS),
    "one leaf": (TWO, "geocode,a,count\n101,x,5\n", "geocode\n101\n", LEVELS),
    "one geolevel": (TWO, "geocode,a,count\n101,x,5\n", "geocode\n101\n102\n", LEVELS[1:]),
    "one large leaf": (TWO, "geocode,a,count\n101,x,300000\n", "geocode\n101\n", LEVELS),
    "one root": (
        *(TWO, "geocode,a,count\n101,x,5\n", "geocode\n101\n102\n"),
        ['{ name = "all", prefix = 0 }', '{ name = "b", prefix = 3 }'],
    ),
    "single children": (
        *(TWO, "geocode,a,count\nabcdef,x,5\n", "geocode\nabcdef\n"),
        [f'{{ name = "l{i}", prefix = {i} }}' for i in range(1, 7)],
    ),
    "a hundred geolevels": (
        TWO,
        f"geocode,a,count\n{DEEP}0,x,5\n{DEEP}1,y,7\n",
        f"geocode\n{DEEP}0\n{DEEP}1\n{DEEP}2\n",
        [f'{{ name = "l{i}", prefix = {i} }}' for i in range(1, 101)],
    ),
    "one level of one attribute": (
        '[attributes]\na = ["x"]\n',
        "geocode,a,count\n101,x,5\n201,x,0\n",
        "geocode\n101\n102\n201\n",
        LEVELS,
    ),
    "awkward labels": (
        '[attributes]\na = ["x, y", "say \\"hi\\"", "żółć 你好", "| pipe", "=cmd()", "<b>&amp;"]\n'
        '"b c" = ["0", "1"]\n',
        'geocode,a,b c,count\n101,"x, y",0,5\n101,"say ""hi""",1,4\n102,żółć 你好,1,9\n201,| pipe,0,3\n',
        "geocode\n101\n102\n201\n",
        LEVELS,
    ),
    "geocodes of several widths": (
        *(TWO, "geocode,a,count\n1,x,5\n22,y,3\n", "geocode,region\n1,a\n22,bb\n333,bb\n"),
        ['{ name = "r", column = "region" }', '{ name = "b" }'],
    ),
    "an invariant of nobody": (
        TWO + '[[invariants]]\nquery = "total"\ngeolevel = "r"\n',
        "geocode,a,count\n101,x,5\n",
        "geocode\n101\n102\n201\n202\n",
        LEVELS,
    ),
}


@pytest.mark.parametrize("estimator", ["topdown", "informed"])
@pytest.mark.parametrize("what", EDGES)
def test_inputs_at_the_edge_give_whole_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, what: str, estimator: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_any(*EDGES[what])
    change("run.toml", "product =", f'estimator = "{estimator}"\nproduct =')
    top, leaf = (EDGES[what][3][i].split('"')[1] for i in (0, -1))
    code, said, error = call(capsys, *RUN, "--json")
    assert code == 0, error
    records = strict_json(said)["records"]
    if "invariant" in what:
        assert records == 5
    for command in (
        ("plan", "run.toml", "--json"),
        ("evaluate", "out", "--truth", "run.toml", "--json"),
        ("tabulate", "out", "--tables", "total,detailed", "--geolevel", top, "--format", "csv", "--to", "t"),
        ("tabulate", "out", "--tables", "total,detailed", "--geolevel", leaf),
        ("verify", "out", "--allow-seeded", "--json"),
    ):
        if "hundred" in what and command[0] == "evaluate":
            continue  # a figure for every geolevel takes its time
        code, said, error = call(capsys, *command)
        assert code == 0, (command, said, error)
        if "--json" in command:
            strict_json(said)


def test_a_geounit_of_two_parents_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    levels = ['{ name = "r", column = "R" }', '{ name = "s", column = "S" }', '{ name = "b" }']
    write_any(TWO, "geocode,a,count\n1,x,5\n", "geocode,R,S\n1,a,s1\n2,b,s1\n3,b,s2\n", levels)
    code, said = refused(capsys, *RUN)
    assert (code, "frame.csv, line 3, field s" in said) == (3, True), said


# Constraints in conflict ------------------------------------------------------------------------------------


def write_conflict(folder: Path) -> None:
    """Two towns with invariant totals: one can take kinds p and q only, the other r and s only.

    With next to no budget the region's kinds are far off: p and q together may exceed the first town's total,
    which no bound of a single kind forbids.
    """
    bounds = "".join(f'[[bounds]]\nquery = "a"\ncell = "{k}"\ncolumn = "has_{k}"\n' for k in "pqrs")
    write_any(
        f'[attributes]\na = ["p", "q", "r", "s"]\n[[invariants]]\nquery = "total"\ngeolevel = "t"\n{bounds}',
        "geocode,a,count\n111,p,100\n112,q,100\n121,r,100\n122,s,100\n",
        "geocode,has_p,has_q,has_r,has_s\n111,1,1,0,0\n112,1,1,0,0\n121,0,0,1,1\n122,0,0,1,1\n",
        ['{ name = "r", prefix = 1 }', '{ name = "t", prefix = 2 }', '{ name = "b", prefix = 3 }'],
    )
    change("run.toml", 'rho = "1"', 'rho = "1/100000"')


@pytest.mark.parametrize("seed", ["4", "5"])
def test_an_infeasible_family_stops_the_run_or_goes_to_the_failsafe(
    mini: Path, capsys: Capture, seed: str
) -> None:
    write_conflict(mini)
    command = ("run", "run.toml", "--out", "out", "--seed", seed)
    code, said = refused(capsys, *command, "--json")
    assert code == 5
    assert "Family 1" in said
    assert "total@t" in said
    assert "failsafe" in said
    assert not Path("out/release/certificate.json").exists()
    assert refused(capsys, *command, "--resume")[0] == 5
    change("run.toml", "product =", "failsafe = true\nproduct =")
    assert refused(capsys, *command, "--resume")[0] == 4
    code, said, error = call(capsys, "run", "run.toml", "--out", "other", "--seed", seed, "--json")
    assert (code, strict_json(said)["records"]) == (0, 400), error
    recorded = strict_json(Path("other/release/certificate.json").read_text())["runs"][0]["failsafe"]
    assert [(family["geolevel"], family["label"]) for family in recorded] == [("t", "1")]
    assert "relaxed" in recorded[0]["failsafe"]
    assert "failsafe" in Path("other/release/report.html").read_text().lower()
    code, said, _ = call(capsys, "verify", "other", "--allow-seeded", "--json")
    assert code == 0, said
    assert call(capsys, "tabulate", "other", "--tables", "total", "--geolevel", "t", "--to", "t")[0] == 0


def test_the_failsafe_gives_the_same_from_measurements_and_with_two_workers(
    mini: Path, capsys: Capture
) -> None:
    write_conflict(mini)
    change("run.toml", "product =", "failsafe = true\nproduct =")
    assert call(capsys, "measure", "run.toml", "--out", "two-steps", "--seed", "4")[0] == 0
    assert call(capsys, "estimate", "run.toml", "--out", "two-steps")[0] == 0
    once = ("run", "run.toml", "--out", "out", "--seed", "4", "--measurements", "full", "--workers", "2")
    assert call(capsys, *once)[0] == 0
    assert strict_json(Path("out/release/certificate.json").read_text())["runs"][0]["failsafe"]
    assert files(mini / "two-steps/release") == files(mini / "out/release")


def test_what_the_failsafe_relaxed_is_derived_again(mini: Path, capsys: Capture) -> None:
    """From the answers that both attempts at the family read."""
    write_conflict(mini)
    change("run.toml", "product =", "failsafe = true\nproduct =")
    assert call(capsys, "run", "run.toml", "--out", "out", "--seed", "4")[0] == 0
    assert strict_json(Path("out/release/certificate.json").read_text())["runs"][0]["failsafe"]
    assert call(capsys, "verify", "out", "--rederive", "--allow-seeded")[0] == 0


def test_constraints_that_nothing_satisfies(mini: Path, capsys: Capture) -> None:
    lines = Path("frame.csv").read_text().splitlines()
    empty = [line.split(",")[0] + ",0,0,0" for line in lines[1:]]
    Path("frame.csv").write_text("\n".join([lines[0], *empty]) + "\n")
    change("run.toml", "product =", "failsafe = true\nproduct =")
    code, said = refused(capsys, *RUN)
    assert code == 5
    assert "Family 00" in said
    assert "total@region" in said


def test_plan_refuses_what_a_run_refuses_whatever_its_records_are(
    mini: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """With the same exit code and words; but in a contradiction, a run may also name exact counts."""
    monkeypatch.setattr("opendas.topdown.checks.LARGEST_WRITTEN", 3)
    no_cell = ('"kind * minor" = "1/4", detailed = "1/2"', 'kind = "1/4", age = "1/2"')
    divided = ("[geography]", '[geography]\nspine = [{ step = "aian", level = "region" }]')
    asked = '[[bounds]]\nquery = "minor"\ncell = "minor"\ncolumn = "homes"\nlower = 900000\nupper = 900000\n'
    for name, old, new, expected, said in (
        ("run.toml", "[passes]", '[passes]\nrounder = { "*" = [["kind", "age"], ["detailed"]] }', 2, "cross"),
        ("run.toml", *no_cell, 2, "no query group asks every cell"),
        ("run.toml", *divided, 2, "roots hold a total together"),
        ("product.toml", "[[bounds]]", asked + "[[bounds]]", 5, "no table of counts"),
    ):
        write_mini(mini, more="[passes]")
        lines = Path("frame.csv").read_text().splitlines()  # every other block lies in a reservation
        areas = ("aianhh", *("0001" if number % 2 else "" for number in range(len(lines) - 1)))
        lines = [f"{line},{area}\n" for line, area in zip(lines, areas, strict=True)]
        Path("frame.csv").write_text("".join(lines))
        change(name, old, new)
        code, told = refused(capsys, *RUN)
        assert (code, said in told) == (expected, True), told
        assert not Path("out/ledger.jsonl").exists()
        refusal = told[told.index("opendas: ") :]
        code, told = refused(capsys, "plan", "run.toml")
        assert (code, said in told) == (expected, True), told
        assert expected == 5 or told[told.index("opendas: ") :] == refusal


def test_more_cells_than_the_memory_holds_are_refused_and_what_is_proposed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Twenty attributes, a billion cells: the nearest choice of attributes is named, and does."""
    monkeypatch.chdir(tmp_path)
    levels = {f"a{k:02d}": ["x", "y", "z"][: 3 - k // 17] for k in range(20)}
    lines = [",".join(["geocode", *levels, "count"])]
    for place, level in itertools.product(("101", "102", "201"), range(3)):
        lines.append(",".join([place, *(each[level % len(each)] for each in levels.values()), "7"]))

    def write(names: Sequence[str]) -> None:
        declared = "".join(f"{name} = {levels[name]}\n" for name in names)
        write_any(f"[attributes]\n{declared}", "\n".join(lines) + "\n", "geocode\n101\n102\n201\n", LEVELS)

    write(list(levels))
    # Of memory for 230,686 cells, and of cells whose time is predicted.
    for megabytes, most, cells in ((110.0, 1 << 21, 157_464), (110.0, 250, 216)):
        monkeypatch.setattr("opendas.runs.context.machine.available_memory_mb", lambda room=megabytes: room)
        monkeypatch.setattr("opendas.runs.context.machine.TIMED_CELLS", most)
        for command in (RUN, ("plan", "run.toml")):
            code, told = refused(capsys, *command)
            assert (code, "has 1,033,121,304 cells" in told) == (6, True), told
            named = re.search(r"room for a product of the attributes (.*): ([0-9,]+) cells", told)
            assert named is not None
            names = named[1].split(", ")
            assert int(named[2].replace(",", "")) == cells
            assert math.prod(len(levels[name]) for name in names) == cells
        assert not Path("out/ledger.jsonl").exists()
    write(names)
    for command in (("plan", "run.toml"), RUN, ("verify", "out", "--allow-seeded")):
        code, _, error = call(capsys, *command)
        assert code == 0, error


# Phases, formats and readers of others ----------------------------------------------------------------------


def test_estimation_needs_neither_input_nor_frame_nor_key(mini: Path, capsys: Capture) -> None:
    assert call(capsys, "measure", "run.toml", "--out", "out")[0] == 0
    assert call(capsys, "forget-key", "out")[0] == 0
    Path("counts.csv").unlink()
    Path("frame.csv").unlink()
    code, said, error = call(capsys, "estimate", "run.toml", "--out", "out", "--json")
    assert (code, strict_json(said)["product"]) == (0, "mini"), error
    assert call(capsys, "verify", "out")[0] == 0
    code, said = refused(capsys, "run", "run.toml", "--out", "other", "--json")
    assert (code, "frame.csv: no such file" in said) == (2, True)
    assert not Path("other").exists()


def test_estimation_of_nothing_or_of_another_plan(mini: Path, capsys: Capture) -> None:
    assert refused(capsys, "estimate", "run.toml", "--out", "out", "--json")[0] == 2
    assert call(capsys, "measure", "run.toml", "--out", "out", "--seed", "1")[0] == 0
    change("run.toml", 'rho = "2"', 'rho = "3"')
    code, said = refused(capsys, "estimate", "run.toml", "--out", "out", "--json")
    assert (code, "another plan" in said) == (4, True)


def test_a_forgotten_key_ends_drawing_but_not_the_result(mini: Path, capsys: Capture) -> None:
    asked = ("--measurements", "used", "--keep-key")
    assert call(capsys, "run", "run.toml", "--out", "out", *asked)[0] == 0
    assert call(capsys, "forget-key", "out")[0] == 0
    code, said, _ = call(capsys, "forget-key", "out")
    assert (code, "holds no run key" in said) == (0, True)
    assert call(capsys, "run", "run.toml", "--out", "out", "--resume", "--json")[0] == 0
    code, said = refused(capsys, "measure", "run.toml", "--out", "out", "--resume", "--json")
    assert (code, "destroyed" in said) == (4, True)


def test_a_finished_run_is_not_passed_off_as_another(finished: Path, capsys: Capture) -> None:
    command = ("run", str(finished / "run.toml"), "--out", str(finished / "out"), "--resume", "--seed", "1")
    code, said = refused(capsys, *command, "--measurements", "full", "--json")
    assert (code, "opendas measure RUN.toml" in said) == (2, True)
    code, said = refused(capsys, *command, "--mdf-format", "pipe", "--json")
    assert (code, "Parquet" in said) == (2, True)


def test_a_key_is_used_once(mini: Path, capsys: Capture) -> None:
    assert call(capsys, "ledger", "create", "shared", "--limit-rho", "9", "--unit", "record")[0] == 0
    shared = ("--ledger", "shared", "--key-command", "echo " + "ab" * 32)
    assert call(capsys, "run", "run.toml", "--out", "one", *shared)[0] == 0
    assert refused(capsys, "run", "run.toml", "--out", "two", *shared, "--json")[0] == 4
    append("counts.csv", "000000,home,adult,1\n")
    code, said = refused(capsys, "run", "run.toml", "--out", "three", *shared, "--json")
    assert (code, "ab" * 8 in said) == (4, False)


def test_the_pipe_layout_is_read_by_others_as_it_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    labels = ["x, y", 'say "hi"', "żółć 你好", "| pipe", "=cmd()", "# hash"]
    quoted = ", ".join(json.dumps(label, ensure_ascii=False) for label in labels)
    rows = "".join('201,"{}",9\n'.format(label.replace('"', '""')) for label in labels)
    write_any(f"[attributes]\na = [{quoted}]\n", "geocode,a,count\n" + rows, "geocode\n201\n101\n", LEVELS)
    assert call(capsys, *RUN, "--mdf-format", "pipe", "--measurements", "full")[0] == 0
    assert call(capsys, "verify", "out", "--allow-seeded")[0] == 0
    path = "out/release/mdf/own/2.txt"
    one = pandas.read_csv(path, sep="|", comment=None, skiprows=2, dtype=str)
    two = polars.read_csv(path, separator="|", skip_rows=2, infer_schema=False)
    assert set(one["a"]) == set(labels)
    assert one["a"].tolist() == two["a"].to_list()
    assert set(one["geocode"]) == {"201"}
    measured = pandas.read_parquet("out/release/measurements/own/b.parquet")
    assert {"geolevel", "geocode", "query", "values", "variance"} <= set(measured.columns)
    assert len(measured) == 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({5: ',"left open'}, 6),
        ({5: ',"left open', 50: ',"left open'}, 6),
        ({77: ',"left open'}, None),
    ],
)
def test_a_quotation_mark_left_open_swallows_no_rows(
    mini: Path, capsys: Capture, changes: dict[int, str], line: int | None
) -> None:
    """Rows between two marks are one field to a lenient parser; in a column that nobody reads, silently."""
    rows = Path("counts.csv").read_text().splitlines()
    noted = [f"{rows[0]},note"] + [f"{row}{changes.get(i, ',n')}" for i, row in enumerate(rows[1:], start=1)]
    if line is None:
        noted[-1] = rows[-1] + ',"left open'
    Path("counts.csv").write_text("\n".join(noted))
    code, said = refused(capsys, *RUN)
    assert (code, "closing quotation mark" in said) == (3, True), said
    assert f"counts.csv, line {line or len(rows)}" in said


def test_marks_and_blank_lines_that_are_in_order(mini: Path, capsys: Capture) -> None:
    rows = Path("counts.csv").read_text().splitlines()
    notes = {5: ',5" pipe', 6: ',"two\nlines"', 7: ',"a ""word"""'}
    noted = [f"{rows[0]},note"] + [f"{row}{notes.get(i, ',n')}" for i, row in enumerate(rows[1:], start=1)]
    Path("counts.csv").write_text("\n".join(noted) + "\n\n\n")
    assert call(capsys, *RUN)[0] == 0
    answer = call(capsys, "evaluate", "out", "--truth", "run.toml", "--json")[1]
    regions = [
        row for row in strict_json(answer)["rows"] if (row["geolevel"], row["query"]) == ("region", "total")
    ]
    assert regions[0]["mean_abs_error"] == 0
    assert (
        (mini / "out/release/certificate.json")
        .read_text()
        .count(f'"records": {mini_histogram(mini_frame()).total()}')
    )


@pytest.mark.parametrize(
    ("damage", "code", "rule"),
    [
        ("truncated", 3, "fb.zip"),
        ("swapped", 3, "swapped"),
        ("missing", 3, "data segment 1"),
        ("no zip", 3, "fb.zip"),
        ("preset", 2, "pr2020-persons"),
        ("other year", 3, "data segment 3"),
    ],
)
def test_a_damaged_census_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, damage: str, code: int, rule: str
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = members(some_blocks(), 2010)
    one, two = "fb000012010.pl", "fb000022010.pl"
    changed: dict[str, dict[str, str | None]] = {
        "swapped": {one: texts[two], two: texts[one]},
        "missing": {one: None},
    }
    path = write_zip(tmp_path / "fb.zip", some_blocks(), 2010, changed.get(damage))
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-500])
    if damage == "no zip":
        path.write_bytes(b"not a zip" * 100)
    year = 2020 if damage == "other year" else 2010
    preset = "us2020-persons" if damage == "preset" else "pr2020-persons"
    Path("run.toml").write_text(
        f'[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-{year}"\npath = "fb.zip"\n'
        f'[budget]\npreset = "{preset}"\n'
    )
    found, said = refused(capsys, *RUN)
    assert (found, rule in said) == (code, True), said
    assert not Path("out").exists()


def test_an_attempt_that_died_at_once_is_begun_again_in_its_folder(mini: Path, capsys: Capture) -> None:
    """Empty folders and an empty ledger say nothing; a file of someone else's does."""
    Path("out/confidential/keys").mkdir(parents=True)
    Path("out/ledger.jsonl").touch()
    assert call(capsys, *RUN, "--resume")[0] == 0
    Path("other/confidential").mkdir(parents=True)
    Path("other/confidential/thesis.txt").write_text("precious")
    assert refused(capsys, "run", "run.toml", "--out", "other", "--seed", "1")[0] == 2
