"""Records that repeat the levels above their leaf, and contradict the frame there."""

from __future__ import annotations

from pathlib import Path

import pytest

from opendas.cli.failures import guarded
from opendas.cli.main import cli

FRAME = "ward,hospital,region\nN0-a,N0,north\nN0-b,N0,north\nS0-a,S0,south\n"
PRODUCT = """\
[product]
name = "patients"
provenance = "code-book"
[attributes]
age = ["young", "old"]
"""
RUN = """\
[run]
product = "product.toml"
[input]
reader = "{reader}"
path = {paths}
geocode = "ward"
[geography]
levels = [
    {{ name = "region", column = "region" }},
    {{ name = "hospital", column = "hospital" }},
    {{ name = "ward" }},
]
frame = "frame.csv"
provenance = "public"
[budget]
rho = "1"
geolevels = {{ region = "1/4", hospital = "1/4", ward = "1/2" }}
[budget.queries]
"*" = {{ total = "1/2", detailed = "1/2" }}
"""
ROWS = [
    "north,N0,N0-a,young",
    "south,N0,N0-a,old",  # line 3: N0 is in the north
    "south,S0,S0-a,old",
    "south,N0,S0-a,old",  # line 5: S0-a is of S0
    ",,N0-b,young",  # says nothing
]


def write(folder: Path, reader: str, *, header: str = "region,hospital,ward,age", files: int = 1) -> Path:
    counted = reader == "histogram"
    names = [f"rows{number}.csv" for number in range(files)]
    for name in names:
        rows = [row + (",2" if counted else "") for row in ROWS]
        text = "\n".join([header + (",count" if counted else ""), *rows]) + "\n"
        (folder / name).write_text(text)
    (folder / "frame.csv").write_text(FRAME)
    (folder / "product.toml").write_text(PRODUCT)
    run = folder / "run.toml"
    run.write_text(RUN.format(reader=reader, paths=names))
    return run


def told(out: Path) -> list[str]:
    """What a run found of this kind."""
    text = (out / "confidential" / "findings" / "patients.txt").read_text()
    return [line for line in text.splitlines() if "that the frame gives" in line]


def command(*words: str | Path) -> int:
    return guarded(cli, [str(word) for word in words])


@pytest.mark.parametrize("reader", ["records", "histogram"])
def test_a_record_that_contradicts_the_frame_is_a_finding(
    reader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = write(tmp_path, reader), tmp_path / "out"
    assert command("run", run, "--out", out) == 0
    assert "findings/patients.txt" in capsys.readouterr().err
    findings = told(out)
    assert len(findings) == 2
    for finding, line, field in zip(sorted(findings), (3, 5), ("region", "hospital"), strict=True):
        assert "rows0.csv" in finding
        assert f"line {line}" in finding
        assert field in finding
        assert "south" not in finding
        assert "N0" not in finding
    assert command("run", run, "--out", tmp_path / "strict", "--strict") == 3
    said = capsys.readouterr().err
    assert "line 3" in said
    assert "line 5" in said
    assert not (tmp_path / "strict").exists()


def test_columns_that_not_every_file_has_are_not_asked_for(tmp_path: Path) -> None:
    run, out = write(tmp_path, "records", files=2), tmp_path / "out"
    (tmp_path / "rows1.csv").write_text("ward,age\nN0-a,young\n")
    assert command("run", run, "--out", out) == 0
    assert told(out) == []


def test_a_frame_from_the_records_has_nothing_to_contradict(tmp_path: Path) -> None:
    run, out = write(tmp_path, "records"), tmp_path / "out"
    rows = ["north,N0,N0-a,young", "south,S0,S0-a,old"]
    (tmp_path / "rows0.csv").write_text("\n".join(["region,hospital,ward,age", *rows]) + "\n")
    run.write_text(
        run.read_text().replace('frame = "frame.csv"\nprovenance = "public"', 'frame = "from-records"')
    )
    assert command("run", run, "--out", out) == 0
