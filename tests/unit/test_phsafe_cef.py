"""The reader cef of PHSafe: synthetic records, the same state as csv, and files that are wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.households import configuration
from support.made_cef_files import write_cef

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import DataError
from opendas.phsafe.config import Mode, parse_config
from opendas.phsafe.inputs.linking import link, sort_inputs
from opendas.phsafe.inputs.read_cef import find_files, read_cef
from opendas.phsafe.inputs.read_csv import KINDS, read_csv
from opendas.phsafe.tables import OUTPUTS
from opendas.phsafe.validate import validate
from opendas.readers.cef.records import PERSONS, UNITS, RecordLayout

STATE = "44"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cef")
    write_cef(folder, blocks=300, seed=5, code=STATE)
    return folder / "cef_config.ini"


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    for path in made.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / made.name


def fields(path: Path, layout: RecordLayout) -> list[dict[str, str]]:
    lines = path.read_text().splitlines()
    return [{name: line[a:b] for name, (a, b) in layout.fields.items()} for line in lines]


def as_csv(made: Path, folder: Path) -> Path:
    """Write the records again as the three files of the other reader, one row at a time."""
    folder.mkdir()
    people = fields(made.parent / f"CEF20_PER_{STATE}.txt", PERSONS)
    units = fields(made.parent / f"CEF20_UNIT_{STATE}.txt", UNITS)
    related = {"20", "21", "23", *map(str, range(25, 34))}
    family = Counter(person["MAFID"] for person in people if person["RELSHIP"] in related)
    header, *rows = (made.parent / f"GRFC_{STATE}.txt").read_text().splitlines()
    blocks = {}
    for row in rows:
        block = dict(zip(header.split("|"), row.split("|"), strict=True))
        blocks[int(block["OIDTABBLK"])] = block
    places = []
    for unit in units:
        many = unit["RTYPE"] == "2" and int(unit["FINAL_POP"]) >= 2 and family[unit["MAFID"]] > 1
        unit["NPF"] = str(family[unit["MAFID"]] if many else 0)
        unit["HHSPAN"] = unit["HHSPAN"].strip() or "0"
        unit["HHRACE"] = unit["HHRACE"].strip() or "00"
        block = blocks[int(unit["OIDTB"])]
        places.append({"RTYPE": unit["RTYPE"], "MAFID": unit["MAFID"], "REGIONCE": "1", "DIVISIONCE": "1"})
        names = ("TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLK", "TABBLKGRPCE", "PLACEFP", "AIANNHCE")
        places[-1] |= {name: block[name] for name in names}
    tables = (
        ("persons", KINDS[0].columns, people),
        ("units", KINDS[1].columns, units),
        ("geo", KINDS[2].columns, places),
    )
    for name, columns, table in tables:
        lines = [",".join(columns), *(",".join(row[column].strip() for column in columns) for row in table)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_the_same_state_reads_the_same_from_either_reader(made: Path, tmp_path: Path) -> None:
    cef, csv = read_cef(made, [STATE]), read_csv(as_csv(made, tmp_path / "csv"), [STATE])
    assert len(cef.persons) > 1000
    one, other = sort_inputs(cef), sort_inputs(csv)
    for part in ("persons", "units", "places"):
        rows, twin = getattr(one, part), getattr(other, part)
        for name in set(rows.dtypes()) - {"line"}:
            assert getattr(rows, name).tolist() == getattr(twin, name).tolist(), (part, name)
    assert cef.units.npf.max() >= 4
    assert cef.persons.line.tolist() == list(range(1, len(cef.persons) + 1))


def test_both_give_the_same_tables_and_noise(made: Path, tmp_path: Path) -> None:
    data = {"cef": made, "csv": as_csv(made, tmp_path / "csv")}
    for reader, path in data.items():
        document = configuration(states=(STATE,)) | {"reader": reader}
        (tmp_path / f"{reader}.json").write_text(json.dumps(document))
        for mode in ("private", "non-private"):
            words = [str(tmp_path / f"{reader}.json"), str(path), str(tmp_path / f"{reader}-{mode}")]
            seed = ["--seed", "3"] if mode == "private" else []
            assert guarded(cli, ["phsafe", *words, "--mode", mode, *seed]) == 0
    for mode in ("private", "non-private"):
        for name in OUTPUTS:
            texts = {
                next((tmp_path / f"{reader}-{mode}" / name).glob("part-00000-*.csv")).read_text()
                for reader in data
            }
            assert len(texts) == 1


def test_made_records_agree_with_themselves(made: Path) -> None:
    inputs = read_cef(made, [STATE])
    config = parse_config(json.dumps(configuration(states=(STATE,))), Mode.VALIDATE)
    found = validate(inputs, link(inputs, [STATE]), config, every_table=True)
    assert (found.errors, found.warnings) == ((), ())
    households = inputs.units.hht > 0
    for column, codes in (("hht", range(1, 8)), ("hht2", range(1, 13)), ("cplt", range(1, 6))):
        assert set(getattr(inputs.units, column)[households].tolist()) == set(codes), column
    assert set(inputs.persons.relship.tolist()) == set(range(20, 39))


def test_two_states_are_two_files_and_findings_name_them(tmp_path: Path) -> None:
    for seed, code in ((5, "09"), (6, "44")):
        write_cef(tmp_path, blocks=60, seed=seed, code=code)
    ini = tmp_path / "cef_config.ini"
    ini.write_text(ini.read_text().replace("GRFC_44.txt", "."))
    text = (tmp_path / "CEF20_UNIT_44.txt").read_text().splitlines()
    a, _ = UNITS.fields["TEN"]
    text[6] = text[6][:a] + "7" + text[6][a + 1 :]
    (tmp_path / "CEF20_UNIT_44.txt").write_text("\n".join(text) + "\n")
    # Two synthetic states have the same numbers of units: keys that stand twice.
    inputs = read_cef(ini, ["09", "44"])
    config = parse_config(json.dumps(configuration(states=("09", "44"))), Mode.VALIDATE)
    found = validate(inputs, link(inputs, ["09", "44"]), config).errors
    assert "CEF20_UNIT_44.txt, line 7, field TEN: expected 0 to 4 (0 is not in universe)" in map(str, found)
    assert set(inputs.places.state.tolist()) == {9, 44}
    assert set(read_cef(ini, ["09"]).places.state.tolist()) == {9}


def test_puerto_rico_has_its_own_folders(tmp_path: Path) -> None:
    write_cef(tmp_path / "pr", blocks=60, seed=2, code="72")
    ini = tmp_path / "reader.ini"
    ini.write_text(
        "[paths]\nper_dir = us/\nunit_dir = us/\nper_dir_pr = pr/\nunit_dir_pr = pr\ngrfc_dir = pr/\n"
        "per_file_format = CEF20_PER_%%s.txt\nunit_file_format = CEF20_UNIT_%%s.txt\n"
    )
    persons, units, _ = find_files(ini, ["72"])
    assert [path.name for path in (*persons, *units)] == ["CEF20_PER_72.txt", "CEF20_UNIT_72.txt"]
    assert len(read_cef(ini, ["72"]).units) > 0
    with pytest.raises(DataError) as caught:
        read_cef(ini, ["01", "02"])
    assert [str(one) for one in caught.value.findings] == [
        f"CEF20_{kind}_{code}.txt: is missing" for kind in ("PER", "UNIT") for code in ("01", "02")
    ]
    beside = tmp_path / "pr" / "reader.ini"
    beside.write_text(ini.read_text().replace("= pr/", "=").replace("= pr", "="))
    assert find_files(beside, ["72"])[0] == (beside.parent / "CEF20_PER_72.txt",)


def test_files_of_other_states_are_left_alone(copy: Path) -> None:
    folder = copy.parent / "grfc"
    folder.mkdir()
    (copy.parent / f"GRFC_{STATE}.txt").rename(folder / f"grfc_tab20_{STATE}000.txt")
    (folder / "grfc_tab20_01000.txt").write_text("damaged")
    (folder / "readme.txt").write_text("nothing\n")
    copy.write_text(copy.read_text().replace(f"GRFC_{STATE}.txt", "grfc/"))
    assert [path.name for path in find_files(copy, [STATE])[2]] == [f"grfc_tab20_{STATE}000.txt"]
    assert len(read_cef(copy, [STATE]).units) > 0


def change(path: Path, layout: RecordLayout, row: int, field: str, value: str) -> None:
    lines = path.read_text().splitlines()
    start, end = layout.fields[field]
    lines[row] = lines[row][:start] + value.ljust(end - start)[: end - start] + lines[row][end:]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("layout", "field", "value", "column", "expected"),
    [
        (PERSONS, "CENRACE", " 1", "cenrace", -1),
        (PERSONS, "CENRACE", "", "cenrace", -1),
        (PERSONS, "QAGE", "x", "qage", -1),
        (PERSONS, "QAGE", " 7", "qage", 7),
        (PERSONS, "RELSHIP", "3a", "relship", -1),
        (UNITS, "HHSPAN", "", "hhspan", 0),
        (UNITS, "HHRACE", "", "hhrace", 0),
        (UNITS, "HHRACE", "6 ", "hhrace", -1),
        (UNITS, "FINAL_POP", "", "final_pop", 0),
        (UNITS, "HHT2", "", "hht2", -1),
        (UNITS, "TEN", "", "ten", -1),
    ],
)
def test_blanks_and_what_is_no_code(
    layout: RecordLayout, field: str, value: str, column: str, expected: int, copy: Path
) -> None:
    kind = "PER" if layout is PERSONS else "UNIT"
    change(copy.parent / f"CEF20_{kind}_{STATE}.txt", layout, 3, field, value)
    inputs = read_cef(copy, [STATE])
    rows = inputs.persons if layout is PERSONS else inputs.units
    assert getattr(rows, column)[3] == expected


@pytest.mark.parametrize(("people", "family"), [("1", False), ("2", True), ("", False)])
def test_a_family_needs_two_in_the_unit_record_too(people: str, family: bool, copy: Path) -> None:
    row = int(np.argmax(read_cef(copy, [STATE]).units.npf))
    change(copy.parent / f"CEF20_UNIT_{STATE}.txt", UNITS, row, "FINAL_POP", people)
    assert (read_cef(copy, [STATE]).units.npf[row] > 0) == family


def test_a_unit_in_no_block_of_the_states_is_refused(copy: Path) -> None:
    change(copy.parent / f"CEF20_UNIT_{STATE}.txt", UNITS, 4, "OIDTB", "12345")
    with pytest.raises(DataError) as caught:
        read_cef(copy, [STATE])
    rule = "expected a block of the GRF-C in the states of state_filter"
    assert str(caught.value.findings[0]) == f"CEF20_UNIT_{STATE}.txt, line 5, field OIDTB: {rule}"


def test_lines_of_another_width_in_all_files_come_together(copy: Path) -> None:
    for kind in ("PER", "UNIT"):
        path = copy.parent / f"CEF20_{kind}_{STATE}.txt"
        path.write_text(path.read_text() + "3 secret\n")
    with pytest.raises(DataError) as caught:
        read_cef(copy, [STATE])
    assert {finding.file for finding in caught.value.findings} == {
        f"CEF20_PER_{STATE}.txt",
        f"CEF20_UNIT_{STATE}.txt",
    }
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "takes an ini file"),
        ("nonsense", "is not an ini file"),
        ("[other]\na = 1\n", "has no section"),
        ("[paths]\nper_dir = x\n", "unit_file_format: is missing"),
        ("[paths]\nper_dir = %x\n", "write %% where"),
        ("[paths]\nper_file_format = PER.txt\n", "expected one %%s"),
    ],
)
def test_a_configuration_of_the_reader_that_is_wrong(
    text: str | None, words: str, tmp_path: Path, capsys: Capture
) -> None:
    ini = tmp_path / "reader.ini"
    if text is not None:
        ini.write_text(text)
    with pytest.raises(DataError, match=words):
        read_cef(ini, [STATE])
    config = tmp_path / "config.json"
    config.write_text(json.dumps(configuration(states=(STATE,)) | {"reader": "cef"}))
    assert guarded(cli, ["phsafe", str(config), str(ini), str(tmp_path / "out")]) == 3
    assert not (tmp_path / "out").exists()
    capsys.readouterr()


def test_an_empty_state_is_a_state(copy: Path) -> None:
    for kind in ("PER", "UNIT"):
        (copy.parent / f"CEF20_{kind}_{STATE}.txt").write_text("")
    inputs = read_cef(copy, [STATE])
    assert (len(inputs.persons), len(inputs.units), len(inputs.places)) == (0, 0, 0)
    assert np.asarray(inputs.units.npf).dtype == np.int8
