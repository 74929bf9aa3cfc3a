"""Defects that fuzzing found, each as the smallest input that showed it, without the fuzzer."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.mini import mini_frame, mini_product, write_mini
from support.pl94_zip import members, some_blocks

import opendas
from fuzz.seeds import MARK, seed
from opendas.cli.runs import next_steps, run_answer
from opendas.custody.ledger_lines import read_lines
from opendas.engines.checkpoint import Checkpoints
from opendas.errors import ConfigError, DataError, FormatError, PrivacyError
from opendas.files.area_files import Blocks, read_area_file
from opendas.files.geography_files import read_constraints, read_frame, read_product, read_spine
from opendas.files.storage.parquet import open_parquet, read_metadata, reading
from opendas.files.storage.zips import SMALL
from opendas.geography.frame import Frame, LevelRule, official_codes
from opendas.phsafe.run import HouseholdOptions, validate_input
from opendas.phsafe.verify import holds_household_tables, verify_output
from opendas.readers import ReaderSpec, make_reader
from opendas.readers.columns.csv_parquet import _check_dictionaries
from opendas.readers.frame.block_assignment import with_assignments
from opendas.runs.config.lines import scan_lines
from opendas.runs.config.load import load_run_file, read_text
from opendas.runs.config.released import toml_document
from opendas.runs.context.workspace import read_state
from opendas.runs.progress.clock import Clock
from opendas.runs.starting.guess import guess_table
from opendas.schema.pl94 import pl94_persons

LEVELS = (LevelRule("region", 2), LevelRule("town", 4), LevelRule("block", 6))


def written(folder: Path, name: str) -> Path:
    for path, data in seed(name).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def refused(folder: Path, counts: Path) -> str:
    (folder / "frame.csv").write_bytes(seed("mini")["frame.csv"])
    spec = ReaderSpec("histogram", (counts,), mini_product(), levels=LEVELS, frame=folder / "frame.csv")
    with pytest.raises(DataError) as caught:
        make_reader(spec).read()
    return str(caught.value)


# Readers of input -------------------------------------------------------------------------------------------


def test_a_first_line_that_is_a_record_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f"000000,home,old,{MARK},N{MARK}\n000000,home,adult,1,x\n")
    said = refused(tmp_path, tmp_path / "c.csv")
    assert MARK not in said
    assert "header" in said
    (tmp_path / "c.csv").write_text(f"000000,{MARK},{MARK},old\n")
    said = refused(tmp_path, tmp_path / "c.csv")
    assert MARK not in said
    assert "each column name once; the names of columns 2, 3 repeat" in said


def test_a_record_that_runs_into_the_header_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f"geocod{MARK},kind,age,count\n000000,home,old,1\n")
    assert MARK not in refused(tmp_path, tmp_path / "c.csv")


@pytest.mark.parametrize("header", [",".join(["c"] * 400_000), ",".join(f"c{i}" for i in range(100_000))])
def test_headers_of_very_many_columns(tmp_path: Path, header: str) -> None:
    (tmp_path / "c.csv").write_text(f"{header}\n1\n")
    assert len(refused(tmp_path, tmp_path / "c.csv")) < 2000


def test_a_line_that_does_not_end(tmp_path: Path) -> None:
    """Eighty million zeros in eighty thousand bytes: no table, and no more memory than a block takes."""
    text = b"geocode,kind,age,count\n000000,home,old,1\n" + b"0" * (80 << 20)
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(text, 9))
    tracemalloc.start()
    assert "c.csv.gz" in refused(tmp_path, tmp_path / "c.csv.gz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 80 << 20


def test_counts_that_add_up_to_nothing_in_64_bits(tmp_path: Path) -> None:
    """Eight times 2**61 in one cell are 2**64, which is 0 to the processor."""
    rows = ["geocode,kind,age,count", *[f"000000,home,old,{2**61}"] * 8]
    (tmp_path / "c.csv").write_text("\n".join(rows) + "\n")
    assert "sum stays below 2**62" in refused(tmp_path, tmp_path / "c.csv")


def test_text_that_is_no_text_and_codes_that_point_to_nothing(tmp_path: Path) -> None:
    codes = [code.decode() for code in mini_frame().geocodes]
    table = pa.table({"geocode": codes, "kind": ["home"] * 24, "age": ["old"] * 24, "count": [1] * 24})
    path = tmp_path / "c.parquet"
    pq.write_table(table, path, compression="none")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(codes[3].encode(), b"\xff\xfe0001"))
    assert "c.parquet, line 4, field geocode: expected a geocode" in refused(tmp_path, path)
    broken = pa.DictionaryArray.from_arrays(pa.array([0, 5], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(pa.ArrowInvalid):
        _check_dictionaries(pa.record_batch([broken], names=["x"]))


@pytest.mark.parametrize("value", [[1], {"a": 1}])
@pytest.mark.parametrize("column", ["geocode", "kind", "count"])
def test_nested_columns_are_refused(tmp_path: Path, column: str, value: object) -> None:
    rows: dict[str, object] = {"geocode": "000000", "kind": "home", "age": "old", "count": 3}
    rows[column] = value
    pq.write_table(pa.Table.from_pylist([rows]), tmp_path / "c.parquet")
    assert f"c.parquet, field {column}: expected text or numbers" in refused(tmp_path, tmp_path / "c.parquet")


def test_an_archive_whose_directory_points_before_its_beginning(tmp_path: Path) -> None:
    data = bytearray(seed("assignment")["BlockAssign_ST98_FB.zip"])
    end = data.rindex(b"PK\x05\x06")
    data[end + 16 : end + 20] = b"\xff\xff\xff\x7f"
    path = tmp_path / "BlockAssign_ST98_FB.zip"
    path.write_bytes(data)
    blocks = np.array([b"980010001001000", b"980010001001001"])
    with pytest.raises(FormatError, match=r"BlockAssign_ST98_FB\.zip"):
        with_assignments(Frame(blocks, official_codes(blocks, "state"), "block"), [path])


def test_a_damaged_stream_of_another_compression(tmp_path: Path) -> None:
    path = tmp_path / "BlockAssign_ST98_FB.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("BlockAssign_ST98_FB_CD.txt", "BLOCKID|DISTRICT\n980010001001000|01\n")
    data = bytearray(path.read_bytes())
    at = data.index(b"BZh")
    data[at : at + 3] = b"xxx"
    path.write_bytes(data)
    blocks = np.array([b"980010001001000", b"980010001001001"])
    with pytest.raises(FormatError, match=r"BlockAssign_ST98_FB\.zip"):
        with_assignments(Frame(blocks, official_codes(blocks, "state"), "block"), [path])


def test_members_that_unpack_to_far_more_than_a_text(tmp_path: Path) -> None:
    """A bomb is refused by the size that it states, and unpacked no further where that is a lie."""
    blocks = np.array([b"980010001001000", b"980010001001001"])
    frame = Frame(blocks, official_codes(blocks, "state"), "block")
    first = {"fb.zip": "fbgeo2010.pl", "BlockAssign_ST98_FB.zip": "BlockAssign_ST98_FB_CD.txt"}
    for path, member in first.items():
        with zipfile.ZipFile(tmp_path / path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in dict.fromkeys((member, "fb000012010.pl", "fb000022010.pl")):
                archive.writestr(name, b"0" * (SMALL + 1))
    for read in (
        lambda: make_reader(ReaderSpec("pl94-2010", (tmp_path / "fb.zip",), pl94_persons())).read(),
        lambda: with_assignments(frame, [tmp_path / "BlockAssign_ST98_FB.zip"]),
    ):
        tracemalloc.start()
        with pytest.raises(FormatError, match=r"\.zip"):
            read()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < SMALL


def test_members_are_read_where_they_are_and_never_written(tmp_path: Path) -> None:
    texts = members(some_blocks(), 2010)
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    with zipfile.ZipFile(inner / "fb.zip", "w") as archive:
        for name, text in texts.items():
            archive.writestr(f"../../{name}", text.encode("latin-1"))
    before = sorted(tmp_path.rglob("*"))
    make_reader(ReaderSpec("pl94-2010", (inner / "fb.zip",), pl94_persons())).read()
    assert sorted(tmp_path.rglob("*")) == before


# Guesses ----------------------------------------------------------------------------------------------------


def test_guesses_of_odd_tables(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("geocode,a,count\n01,²,1\n02," + "9" * 5000 + ",2\n02,1²,3\n")
    assert len(guess_table(path).attributes["a"]) == 3
    path.write_text("geocode,a,a\n01,x,y\n02,y,x\n")
    with pytest.raises(FormatError, match="each column name once; the names of columns 2, 3 repeat"):
        guess_table(path)


def test_a_guess_of_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"geocode": ["a", "b"] * 50, "x": list(range(100))}), path)
    data = bytearray(path.read_bytes())
    data[8:60] = b"\xff" * 52
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"t\.parquet"):
        guess_table(path)


# Configuration ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [("[" * 5000 + "1" + "]" * 5000, "values are nested too deeply"), ("1" + "0" * 5000, "too many digits")],
)
def test_a_run_file_that_the_parser_gives_up_on(tmp_path: Path, value: str, said: str) -> None:
    (tmp_path / "run.toml").write_text(f"[run]\nproduct = {value}\n")
    with pytest.raises(ConfigError, match=rf"run\.toml: .*{said}"):
        load_run_file(tmp_path / "run.toml")


def test_a_configuration_that_never_ends() -> None:
    with pytest.raises(ConfigError, match="too long for a run file"):
        read_text(Path("/dev/zero"), "run file")


@pytest.mark.parametrize(
    ("section", "key"),
    [("run", "product"), ("input", "path"), ("geography", "frame"), ("geography", "block_assignment")],
)
def test_names_that_are_longer_than_names_can_be(tmp_path: Path, section: str, key: str) -> None:
    document = tomllib.loads(write_mini(tmp_path).read_text())
    document[section][key] = "9" * 5000
    (tmp_path / "run.toml").write_text(toml_document(document))
    with pytest.raises(ConfigError, match=rf"\[{section}\] {key}"):
        opendas.load(tmp_path / "run.toml")


@pytest.mark.parametrize("key", ["unit_file_format", "grfc_dir"])
def test_names_in_a_configuration_of_cef_that_are_too_long(tmp_path: Path, key: str) -> None:
    folder = written(tmp_path, "cef-households")
    path = folder / "cef_config.ini"
    found, count = re.subn(rf"(?m)^({key} *[=:] *)", rf"\g<1>{'9' * 5000}", path.read_text())
    assert count == 1
    path.write_text(found)
    with pytest.raises(FormatError, match="names files that are not there"):
        validate_input(folder / "config.json", path, HouseholdOptions())


def test_lines_of_long_lists_are_found_in_linear_time() -> None:
    items = 100_000
    lines = scan_lines("x = [" + "1,\n" * items + "]\n")
    assert lines["x", items - 1] == items


# Releases and measurements ----------------------------------------------------------------------------------


def damaged(data: bytes, kind: str) -> bytes:
    """Return a Parquet file with its pages, its text, or the types of its columns spoilt."""
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if kind == "pages":
        return data[:4] + b"\xff" * (footer - 4) + data[footer:]
    if kind == "text":
        at = data.index(b"geocode", footer)
        return data[:at] + b"\xff\xfe" + data[at + 2 :]
    table = pq.read_table(pa.BufferReader(data))
    metadata = pq.read_schema(pa.BufferReader(data)).metadata
    if kind == "types":
        lists = [pa.array([[i] for i in range(table.num_rows)])] * table.num_columns
        table = pa.table(dict(zip(table.column_names, lists, strict=True)))
    if kind == "metadata":
        metadata = {b"opendas": json.dumps({"format": json.loads(metadata[b"opendas"])["format"]}).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, store_schema=False)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["pages", "text", "types", "metadata"])
@pytest.mark.parametrize(
    "name",
    ["geography/mini", "measurements/mini/spine", "measurements/mini/constraints", "measurements/mini/town"],
)
def test_a_damaged_file_of_a_release_is_named(tmp_path: Path, name: str, kind: str) -> None:
    folder = written(tmp_path, "release") / "out/release"
    path = folder / f"{name}.parquet"
    path.write_bytes(damaged(path.read_bytes(), kind))
    with pytest.raises(FormatError, match=f"{path.name}: "):
        opendas.NoisyFile(folder).intervals("kind", geolevel="block")


def test_measurements_whose_product_is_damaged_are_named(tmp_path: Path) -> None:
    folder = written(tmp_path, "release") / "out/release"
    path = folder / "measurements/mini/town.parquet"
    table = pq.read_table(path)
    metadata = json.loads(table.schema.metadata[b"opendas"])
    del metadata["product"]["layout"]
    pq.write_table(table.replace_schema_metadata({b"opendas": json.dumps(metadata).encode()}), path)
    with pytest.raises(FormatError, match=r"town\.parquet: the description of the product"):
        opendas.NoisyFile(folder).intervals("kind", geolevel="block")


def test_a_release_whose_files_do_not_belong_together(tmp_path: Path) -> None:
    folder = written(tmp_path, "release") / "out/release"
    frame = mini_frame(regions=1)
    with pytest.raises(DataError, match=r"spine\.parquet: "):
        read_spine(folder / "measurements/mini/spine.parquet", frame)


@pytest.mark.parametrize("kind", ["pages", "types"])
def test_damaged_microdata_are_named(tmp_path: Path, kind: str) -> None:
    folder = written(tmp_path, "release") / "out"
    path = folder / "release/mdf/mini/0000.parquet"
    path.write_bytes(damaged(path.read_bytes(), kind))
    with pytest.raises(FormatError, match=r"0000\.parquet: "):
        opendas.Release(folder).estimate()


@pytest.mark.parametrize("kind", ["pages", "text", "types"])
@pytest.mark.parametrize("part", ["DPQuery", "Constraint"])
def test_a_damaged_file_of_the_bureaus_layout_is_named(tmp_path: Path, part: str, kind: str) -> None:
    folder = written(tmp_path, "bureau") / "nmf"
    path = next((folder / "County.parquet" / part).rglob("*.parquet"))
    path.write_bytes(damaged(path.read_bytes(), kind))
    with pytest.raises(FormatError, match=r"\.parquet"):
        opendas.NoisyFile(folder).intervals("H1", geolevel="county")


@pytest.mark.parametrize("read", [open_parquet, read_metadata, read_product, read_frame, read_constraints,
                                  lambda path: read_spine(path, mini_frame())])  # fmt: skip
def test_content_is_not_blamed_on_the_disk(tmp_path: Path, read: Callable[[Path], object]) -> None:
    data = seed("release")["out/release/geography/mini.parquet"]
    footer = int.from_bytes(data[-8:-4], "little")
    path = tmp_path / "mini.parquet"
    path.write_bytes(data[: -8 - footer] + b"\xff" * footer + data[-8:])
    with pytest.raises(FormatError, match=r"mini\.parquet"):
        read(path)
    with pytest.raises(FormatError, match=r"areas\.parquet"), reading(tmp_path / "areas.parquet"):
        raise OSError("Corrupt snappy compressed data")


def test_a_damaged_file_of_blocks(tmp_path: Path) -> None:
    data = seed("areas")["areas.parquet"]
    (tmp_path / "areas.parquet").write_bytes(data[:4] + b"\xff" * 40 + data[44:])
    with pytest.raises(FormatError, match=r"areas\.parquet"):
        read_area_file(tmp_path / "areas.parquet", Blocks(mini_frame()))


@pytest.mark.parametrize(
    "table",
    [
        pa.table([pa.array(["000000"]), pa.array(["000001"])], names=["geocode", "geocode"]),
        pa.table({"geocode": [{"a": 1}]}),
        pa.table({"geocode": pa.array(["000000"]), "weight": [[1.0]]}),
    ],
)
def test_files_of_blocks_with_other_columns(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "areas.parquet")
    with pytest.raises(DataError, match=r"areas\.parquet"):
        read_area_file(tmp_path / "areas.parquet", Blocks(mini_frame()))


def test_names_of_areas_that_are_bytes_are_text(tmp_path: Path) -> None:
    table = pa.table({"geocode": pa.array(["000000"]), "area": pa.array([b"north"])})
    pq.write_table(table, tmp_path / "areas.parquet")
    assert read_area_file(tmp_path / "areas.parquet", Blocks(mini_frame())).names == ("north",)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"{}", b"[]", b'{"runs": [{}]}', b'{"runs": 1}', b"[" * 10**5])
def test_a_damaged_certificate(tmp_path: Path, text: bytes) -> None:
    folder = written(tmp_path, "release") / "out"
    (folder / "release/certificate.json").write_bytes(text)
    with pytest.raises(FormatError, match=r"certificate\.json"):
        opendas.Release(folder).product_name()


@pytest.mark.parametrize("text", [b"\xff", b"{", b'{"runs": [1]}'])
def test_a_finished_run_whose_certificate_is_damaged(tmp_path: Path, text: bytes) -> None:
    folder = written(tmp_path, "release")
    (folder / "out/release/certificate.json").write_bytes(text)
    with pytest.raises(FormatError, match=r"certificate\.json is damaged"):
        run_answer(folder / "out", "mini", 1.0)
    (folder / "out/release/certificate.json").write_text('{"runs": [{"product": "mini"}]}')
    assert "unknown number" in next_steps(run_answer(folder / "out", "mini", 1.0))


def test_what_is_said_of_a_seeded_run_verifies_it(tmp_path: Path) -> None:
    out = written(tmp_path, "release") / "out"
    answer = run_answer(out, "mini", 1.0)
    assert answer["stamps"] == ["NOT FOR RELEASE"]
    assert f"opendas verify {out} --allow-seeded\n" in next_steps(answer)


def test_household_tables_with_a_certificate_of_nonsense(tmp_path: Path) -> None:
    folder = written(tmp_path, "household-tables") / "out"
    path = folder / "certificate.json"
    whole = json.loads(path.read_text())
    whole["runs"][0]["noise"][0]["budget"] = "1/0"
    for text in (json.dumps(whole), '{"format": 1', "[" * 100_000):
        path.write_text(text)
        assert holds_household_tables(folder)
        assert not all(check.ok for check in verify_output(folder, allow_seeded=True))
    (folder / "confidential/mode").write_bytes(b"\xff")
    assert not holds_household_tables(folder)


# State, ledger, timings -------------------------------------------------------------------------------------


def test_a_line_of_the_ledger_that_is_nested_too_deeply() -> None:
    with pytest.raises(PrivacyError, match=r"ledger\.jsonl, line 1"):
        read_lines(b"[" * 100_000 + b"\n", "ledger.jsonl")


@pytest.mark.parametrize(
    "change",
    [
        {"result": []},
        {"phase": "x"},
        {"phase": []},
        {"run_id": 1},
        {"seed": "1"},
        {"seed": True},
        {"product": "../mini"},
    ],
)
def test_a_state_with_values_of_other_kinds(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "mini" / "run.json"
    path.parent.mkdir()
    state = json.loads(seed("release")["out/state/mini/run.json"])
    path.write_text(json.dumps(state))
    assert read_state(path).phase == "finished"
    path.write_text(json.dumps(state | change))
    with pytest.raises(PrivacyError, match=r"run\.json"):
        read_state(path)
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(PrivacyError, match=r"run\.json"):
        read_state(path)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"seconds": [], "peak_rss_mb": 1}', b"\xff"])
def test_damaged_timings_are_no_reason_to_refuse_a_result(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "mini.json").write_bytes(text)
    assert Clock.read(tmp_path / "mini.json") == {}


def test_torn_seconds_of_families_are_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path, "interrupted") / "out"
    part = folder / "state/mini/stage0-task0000.part"
    content = part.read_bytes()
    timings = tmp_path / "timings"
    timings.mkdir()
    (timings / part.with_suffix(".seconds").name).write_bytes(b"\x00" * 3)
    start = len(b"opendas task 3\n") + 32
    kept = Checkpoints(part.parent, "", lambda path, data: None, timings)
    object.__setattr__(kept, "_binding", content[start : start + 32])
    found = kept.load(0, 0)
    assert found is not None
    assert np.isnan(found.seconds).all()  # type: ignore[union-attr]
