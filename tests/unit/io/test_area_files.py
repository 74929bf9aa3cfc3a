"""Files of blocks that someone drew: every form, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opendas.errors import ConfigError, FormatError, GeographyError
from opendas.files.area_files import area_weights, read_area_file
from opendas.geography.frame import Frame

CODES = ("010010201001000", "010010201001001", "010010201002000")
FRAME = Frame(np.array(CODES, dtype="S15"), {}, "block")


def write(folder: Path, text: str, name: str = "blocks.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        f"geocode\n{CODES[0]}\n{CODES[2]}\n",
        f"GEOID20,other\n{CODES[0]},a\n{CODES[2]},b\n",
        f"\ufeffBlockID\n{CODES[0][1:]}\n{CODES[2][1:]}\n",  # leading zeros lost, and a byte order mark
        f"anything\n{CODES[0]}\n{CODES[2]}\n",
    ],
)
def test_one_area(tmp_path: Path, text: str) -> None:
    found = read_area_file(write(tmp_path, text), FRAME)
    assert found.leaf.tolist() == [0, 2]
    assert found.which.tolist() == [0, 0]
    assert bool((found.weight == 1.0).all())


def test_lists_in_text_files(tmp_path: Path) -> None:
    for text in (f"{CODES[1]}\n\n{CODES[0]}\n", f"geocode\r\n{CODES[1]}\r\n{CODES[0]}"):
        assert read_area_file(write(tmp_path, text, "blocks.txt"), FRAME).leaf.tolist() == [1, 0]


def test_areas_and_weights(tmp_path: Path) -> None:
    rows = [f"{CODES[2]},South,1", f"{CODES[0]},North,0.25", f"{CODES[1]},South,1e-1"]
    found = read_area_file(write(tmp_path, "\n".join(["geocode,district,weight", *rows])), FRAME)
    assert found.names == ("South", "North")
    assert found.which.tolist() == [0, 1, 0]
    assert found.weight.tolist() == [1.0, 0.25, 0.1]
    table = pa.table({"GEOID": [int(CODES[0]), int(CODES[1])], "area": [7, 8], "weight": [1.0, 0.5]})
    pq.write_table(table, tmp_path / "blocks.parquet")
    found = read_area_file(tmp_path / "blocks.parquet", FRAME)
    assert found.names == ("7", "8")
    assert found.leaf.tolist() == [0, 1]


def test_rows_without_an_area_are_in_none(tmp_path: Path) -> None:
    found = read_area_file(write(tmp_path, f"geocode,area\n{CODES[0]},\n{CODES[1]},x\n"), FRAME)
    assert found.names == ("x",)
    assert found.leaf.tolist() == [1]


def test_areas_may_overlap() -> None:
    found = area_weights(FRAME, [CODES[0], CODES[0]], ["a", "b"])
    assert found.leaf.tolist() == [0, 0]


def test_what_is_refused(tmp_path: Path) -> None:
    for text, kind, message in [
        ("geocode\n999\n", GeographyError, "no blocks of this release"),
        (f"geocode\n{CODES[0]}\n{CODES[0]}\n", GeographyError, "there twice"),
        (f"geocode,weight\n{CODES[0]},much\n", FormatError, "no number"),
        (f"geocode,weight\n{CODES[0]},\n", FormatError, "without a weight"),
        (f"geocode,weight\n{CODES[0]},inf\n", FormatError, "no finite number"),
        (f"a,b\n{CODES[0]},1\n", FormatError, "no column with geocodes"),
        ("geocode\n", FormatError, "names no block"),
        ("", FormatError, "is empty"),
        (f"geocode,area\n{CODES[0]}\n", FormatError, "line 2: 1 fields"),
        (f"geocode,area\n{CODES[0]},{'x' * 200_000}\n", FormatError, "not a table"),
        (f"geocode,weight\n{CODES[0]},1e200\n", FormatError, "weight beyond"),
        (f"geocode,weight\n{CODES[0]},nan\n", FormatError, "no finite number"),
        (f"{CODES[0]}\n{CODES[1]}\n", FormatError, "first line is a geocode"),
        ("010010201009999\n" + CODES[1], FormatError, "first line is a geocode"),
    ]:
        with pytest.raises(kind, match=message) as caught:
            read_area_file(write(tmp_path, text), FRAME)
        assert caught.value.exit_code == 3


def test_unknown_blocks_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, f"geocode\n{CODES[0]}\n010010201009999\n")
    with pytest.raises(GeographyError, match="010010201009999"):
        read_area_file(path, FRAME)
    found = read_area_file(path, FRAME, skip_unknown=True)
    assert found.leaf.tolist() == [0]
    assert found.skipped == 1
    with pytest.raises(GeographyError, match="none of its geocodes"):
        read_area_file(write(tmp_path, "geocode\n1\n"), FRAME, skip_unknown=True)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_area_file(tmp_path / "none.csv", FRAME)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "blocks.csv").write_bytes(b"\xff\xfe\x00geocode")
    with pytest.raises(FormatError, match="not a text file"):
        read_area_file(tmp_path / "blocks.csv", FRAME)
    (tmp_path / "blocks.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="Parquet"):
        read_area_file(tmp_path / "blocks.parquet", FRAME)


@pytest.mark.parametrize(
    "weight", [pa.array([[1.0]]), pa.array([1], pa.date32()), pa.array([None], pa.float64())]
)
def test_weights_that_are_no_numbers(tmp_path: Path, weight: pa.Array) -> None:
    pq.write_table(pa.table({"geocode": [CODES[0]], "weight": weight}), tmp_path / "blocks.parquet")
    with pytest.raises(FormatError, match="weight"):
        read_area_file(tmp_path / "blocks.parquet", FRAME)


def test_parquet_without_columns_and_with_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "blocks.parquet")
    with pytest.raises(FormatError, match="no column"):
        read_area_file(tmp_path / "blocks.parquet", FRAME)
    pq.write_table(pa.table({"geocode": [CODES[1].encode()]}), tmp_path / "blocks.parquet")
    assert read_area_file(tmp_path / "blocks.parquet", FRAME).leaf.tolist() == [1]
