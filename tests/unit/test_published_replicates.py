"""Replicates that an office published, of microdata of the redistricting files and of the DHC."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.mdf import write_mdf

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import ConfigError, FormatError
from opendas.geography.frame import Frame, official_codes
from opendas.runs.simulated import replicates as drawing
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

CODES = np.array(
    [b"440010301001000", b"440010301001001", b"440010302002001", b"440030201001000", b"440030201001001"]
)
FRAME = Frame(CODES, official_codes(CODES, "state"), "block", {})
RUNS = 9


def write(path: Path, seed: int, kind: str, form: str) -> None:
    """Random people, of whom some blocks have none."""
    product = pl94_persons() if kind == "pl94" else dhc_persons()
    rng = np.random.default_rng(seed)
    cells = rng.choice(np.flatnonzero(product.possible), 60)
    leaf = rng.integers(seed % 2, 4 + seed % 2, 60)
    counts = Histogram.from_entries(leaf, cells, rng.integers(1, 4, 60), shape=(5, product.schema.size))
    folder = path if form == "folder" else path.with_name(path.name + ".parts")
    write_mdf(folder, product, FRAME, counts, "pipe")
    if form == "csv":
        texts = [file.read_text().splitlines() for file in sorted(folder.iterdir())]
        rows = [line for text in texts for line in text if not line.startswith("#")]
        rows = [rows[0], *(row for row in rows if row != rows[0])]
        path.with_suffix(".csv").write_text("\n".join(rows).replace("|", ",") + "\n")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def by_hand(path: Path) -> Counter[tuple[str, str]]:
    """People by tract and origin, straight from the lines."""
    found: Counter[tuple[str, str]] = Counter()
    for file in [path] if path.is_file() else sorted(path.iterdir()):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        mark = "," if "," in lines[0] else "|"
        head = lines[0].split(mark)
        for line in lines[1:]:
            row = dict(zip(head, line.split(mark), strict=True))
            found[row["TABBLKST"] + row["TABBLKCOU"] + row["TABTRACTCE"], row["CENHISP"]] += 1
    return found


@pytest.mark.parametrize(("kind", "form"), [("pl94", "csv"), ("pl94", "folder"), ("dhc", "csv")])
def test_margins_are_those_of_the_published_replicates(tmp_path: Path, kind: str, form: str, capsys) -> None:
    end = ".csv" if form == "csv" else ""
    folder = tmp_path / "replicates"
    folder.mkdir()
    base = tmp_path / f"ppmf_0{end}"
    write(tmp_path / "ppmf_0", 0, kind, form)
    for number in range(1, RUNS + 1):
        write(folder / f"2020_ppmf_person_{number}", number, kind, form)
    assert guarded(cli, ["replicates", str(base), "--published", str(folder), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert set(files) == {"pl94": {"pl94-persons"}, "dhc": {"pl94-persons", "dhc-persons"}}[kind]
    published = by_hand(base)
    drawn = [by_hand(folder / f"2020_ppmf_person_{n}{end}") for n in range(1, RUNS + 1)]
    asked = ["margin", str(base), "--query", "hispanic", "--geolevel", "tract", "--level", "0.8", "--json"]
    assert guarded(cli, asked) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 6
    for row in rows:
        key = (row["geocode"], "2" if row["cell"] == "hispanic" else "1")
        errors = np.array([one[key] - published[key] for one in drawn])
        assert row["count"] == published[key]
        assert row["bias"] == pytest.approx(errors.mean())
        assert row["standard_error"] == pytest.approx(errors.std(ddof=1))
        assert row["margin"] == sorted(abs(errors))[7]  # the eighth of nine and one
    there, to = base.as_uri(), str(tmp_path / "from addresses")  # a store of Arrow, as s3 is one
    given = ["replicates", there, "--published", folder.as_uri(), "--to", to, "--json"]
    assert guarded(cli, given) == 0
    assert set(json.loads(capsys.readouterr().out)["files"]) == set(files)
    assert guarded(cli, ["margin", there, *asked[2:], "--to", to]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == rows
    assert guarded(cli, ["margin", there, *asked[2:]]) == 2
    assert "with --to" in capsys.readouterr().err
    total = od.PublishedMicrodata(base).margin("P1", geolevel="county", level="0.8").to_arrow()
    assert total.column("count").to_pylist()[0] == sum(
        count for (tract, _), count in published.items() if tract.startswith("44001")
    )


def test_replicates_that_are_missing_or_of_others_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "replicates"
    folder.mkdir()
    write(tmp_path / "ppmf", 0, "pl94", "csv")
    base = od.PublishedMicrodata(tmp_path / "ppmf.csv")
    with pytest.raises(ConfigError, match="there are no replicates"):
        base.margin("P1", geolevel="tract")
    with pytest.raises(ConfigError, match="0 of two or more replicates"):
        base.take_replicates(folder)
    for number in (1, 3):
        write(folder / f"ppmf{number}", number, "pl94", "csv")
    with pytest.raises(ConfigError, match="replicate 2 of pl94-persons is missing, and 3 is there"):
        base.take_replicates(folder)
    write(folder / "ppmf2", 2, "pl94", "csv")
    write(folder / "again2", 2, "pl94", "csv")
    with pytest.raises(ConfigError, match=r"again2\.csv and ppmf2\.csv are both replicate 2"):
        base.take_replicates(folder)
    (folder / "again2.csv").unlink()
    with pytest.raises(ConfigError, match="holds microdata of pl94-persons, not of pl94-units"):
        base.take_replicates(folder, "pl94-units")
    base.take_replicates(folder)
    with pytest.raises(ConfigError, match="take at least 9 replicates"):
        base.margin("P1", geolevel="tract")
    write(tmp_path / "ppmf", 5, "pl94", "csv")
    with pytest.raises(FormatError, match="replicates of other counts"):
        base.margin("P1", geolevel="tract", level="0.5")


def test_drawn_replicates_are_found_again_and_those_of_another_run_file_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an interrupted command left of another budget, or for another seed, is in no file."""
    write(tmp_path / "ppmf", 0, "pl94", "folder")
    text = '[run]\nproduct = "pl94-persons"\n[input]\nreader = "mdf"\npath = "none"\n[budget]\n{}'
    preset = 'preset = "pr2020-persons"\n'
    for name, budget in (("one", preset), ("two", f'{preset}rho = "1/100"\n')):
        (tmp_path / f"{name}.toml").write_text(text.format(budget))

    def drawn(name: str, to: str, **options: object) -> bytes:
        base = od.PublishedMicrodata(tmp_path / "ppmf", tmp_path / f"{name}.toml", tmp_path / to)
        return od.replicates(base, runs=2, workers=1, **options)["pl94-persons"].read_bytes()

    straight = drawn("two", "straight")
    assert drawn("two", "straight") == straight
    assert sorted(path.name for path in (tmp_path / "straight").iterdir()) == ["pl94-persons.parquet"]
    draw = drawing._Draw.__call__

    def first_alone(self: object, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        draw(self, number)

    for seed in (0, 1):
        with monkeypatch.context() as patch:
            patch.setattr(drawing._Draw, "__call__", first_alone)
            with pytest.raises(KeyboardInterrupt):
                drawn("one", "again", seed=seed)
    assert drawn("two", "again", resume=True) == straight
    assert len(list((tmp_path / "again" / "state").iterdir())) == 1, "that of the other seed can be finished"
