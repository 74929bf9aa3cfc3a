"""The csv reader: what it takes, what it refuses, and that it quotes nobody's values."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.households import random_world, write_world

from opendas.errors import DataError
from opendas.phsafe.inputs.read_csv import read_csv


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_world(tmp_path / "data", random_world(1, 30))


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_reads_rows_of_the_states_only(folder: Path) -> None:
    both, one = read_csv(folder, ["06", "44"]), read_csv(folder, ["06"])
    assert len(both.units) == len(both.places) == 30
    assert 0 < len(one.units) < 30
    assert set(one.places.state.tolist()) == {6}
    assert set(one.persons.mafid.tolist()) <= set(one.places.mafid.tolist())
    assert both.persons.line.tolist() == list(range(2, len(both.persons) + 2))


def test_a_state_without_records(folder: Path) -> None:
    inputs = read_csv(folder, ["56"])
    assert (len(inputs.persons), len(inputs.units), len(inputs.places)) == (0, 0, 0)


def test_windows_line_ends_a_byte_order_mark_and_no_last_newline(folder: Path) -> None:
    wanted = read_csv(folder, ["06", "44"])
    for path in folder.iterdir():
        text = path.read_text().rstrip("\n").replace("\n", "\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = read_csv(folder, ["06", "44"])
    for name in wanted.persons.dtypes():
        assert getattr(found.persons, name).tolist() == getattr(wanted.persons, name).tolist()


def test_all_missing_files_and_wrong_headers_together(folder: Path) -> None:
    (folder / "persons.csv").unlink()
    for name in ("units.csv", "geo.csv"):
        path = folder / name
        head, *rest = path.read_text().split("\n")
        columns = head.split(",")
        columns = [columns[1], columns[0], *columns[2:]] if name == "units.csv" else columns[1:]
        path.write_text("\n".join([",".join(columns), *rest]))
    with pytest.raises(DataError) as caught:
        read_csv(folder, ["06"])
    text = str(caught.value)
    assert "persons.csv: is missing" in text
    assert "units.csv, line 1: the columns stand in another order" in text
    assert "geo.csv, line 1: expected the columns" in text
    assert caught.value.exit_code == 3


def test_rows_with_another_number_of_fields_are_named_by_line(folder: Path) -> None:
    key = read_csv(folder, ["06", "44"]).units.mafid[0]
    lines = len((folder / "persons.csv").read_text().splitlines())
    append(folder / "persons.csv", "3,100000001,77\n3,100000001,30,1,01,20,secret\n")
    append(folder / "persons.csv", f"3,{key},130,1,01,20\n")
    append(folder / "units.csv", "2,100000001\n")
    with pytest.raises(DataError) as caught:
        read_csv(folder, ["06", "44"])
    text = str(caught.value)
    assert f"persons.csv, line {lines + 1}: expected 6 fields, found 3" in text
    assert f"persons.csv, line {lines + 2}: expected 6 fields, found 7" in text
    assert f"persons.csv, line {lines + 3}, field QAGE: expected 0 to 115" in text
    assert "units.csv, line 32: expected 10 fields, found 2" in text
    assert "secret" not in text
    assert "100000001" not in text


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("3,{key},x,1,01,20", "qage"),
        ("3,{key},99999,1,01,20", "qage"),
        ("3,{key},-4,1,01,20", "qage"),
        ("33,{key},9,1,01,20", "rtype"),
        ("3,{key},9,1,1,20", "cenrace"),
        ("3,{key},9,1,,20", "cenrace"),
        ("3,{key},9,1,01, 20", "relship"),
        ("3,{key},9,1.0,01,20", "cenhisp"),
    ],
)
def test_what_is_no_code_becomes_minus_one(row: str, column: str, folder: Path) -> None:
    key = read_csv(folder, ["06", "44"]).units.mafid[0]
    append(folder / "persons.csv", row.format(key=key) + "\n")
    persons = read_csv(folder, ["06", "44"]).persons
    assert getattr(persons, column)[-1] == -1
    others = [name for name in persons.dtypes() if name != column]
    assert all(getattr(persons, name)[-1] >= 0 for name in others)


def test_a_key_that_is_no_number_joins_nothing(folder: Path) -> None:
    wanted = len(read_csv(folder, ["06", "44"]).persons)
    append(folder / "persons.csv", "3,A1,9,1,01,20\n")
    assert len(read_csv(folder, ["06", "44"]).persons) == wanted


@pytest.mark.parametrize("end", ["", "\n", "\r\n\r\n"])
def test_files_without_rows(end: str, folder: Path) -> None:
    for path in folder.iterdir():
        path.write_text(path.read_text().split("\n")[0] + end, newline="")
    inputs = read_csv(folder, ["06", "44"])
    assert (len(inputs.persons), len(inputs.units), len(inputs.places)) == (0, 0, 0)


def test_bytes_that_are_no_text(folder: Path) -> None:
    path = folder / "persons.csv"
    key = read_csv(folder, ["06", "44"]).units.mafid[0]
    path.write_bytes(path.read_bytes() + f"3,{key},9,1,".encode() + b"\xff,20\n")
    assert read_csv(folder, ["06", "44"]).persons.cenrace[-1] == -1
    path.write_bytes(path.read_bytes() + b"3,\xff\n")
    with pytest.raises(DataError, match="expected 6 fields, found 2"):
        read_csv(folder, ["06", "44"])
