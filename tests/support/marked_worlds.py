"""Inputs in which one record can be recognised, for every reader; and the same spoiled at that record."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from support import pl94_zip
from support.households import World, configuration, random_world, write_world
from support.made_cef_files import write_cef
from support.mini import from_dense, mini_frame, mini_histogram, to_dense, write_mini

COUNT = 1_234_567
"""People in one cell of one leaf, where the noise is so large that nothing else equals it."""

NUMBER = 877_317_731
"""Stands where a reader must refuse it, and is the key of a household."""

TEXT = "QZX77317"
"""Stands where a reader must refuse it, and in columns that it does not ask for."""

FINE = 'rho = "1/100000000"'
"""Noise of tens of thousands: a noisy answer equals the exact one once in many thousand runs."""


def marked_counts() -> np.ndarray:
    """Dense counts of the miniature census with the marked cell."""
    dense = to_dense(mini_histogram(mini_frame()))
    dense[3, 1] = COUNT
    return dense


def add_column(path: Path) -> None:
    """Give a CSV file a column that no run file names."""
    lines = path.read_text().splitlines()
    lines = [f"{lines[0]},remark", *(f"{line},{TEXT}" for line in lines[1:])]
    path.write_text("\n".join(lines) + "\n")


def histogram_csv(folder: Path, *, run: str = "") -> Path:
    """Return a run file: counts in a CSV file, with a column too many."""
    path = write_mini(folder, histogram=from_dense(marked_counts()), loss=FINE, run=run)
    add_column(folder / "counts.csv")
    return path


def histogram_parquet(folder: Path, *, run: str = "") -> Path:
    """Return a run file: the same in Parquet."""
    path = histogram_csv(folder, run=run)
    pq.write_table(pacsv.read_csv(folder / "counts.csv", convert_options=_AS_TEXT), folder / "counts.parquet")
    (folder / "counts.csv").unlink()
    path.write_text(path.read_text().replace("counts.csv", "counts.parquet"))
    return path


_AS_TEXT = pacsv.ConvertOptions(column_types={"geocode": pa.string()})


def records_csv(folder: Path) -> Path:
    """Return a run file: one row a person."""
    path = write_mini(folder, loss=FINE)
    head, *rows = (folder / "counts.csv").read_text().splitlines()
    people = [row.rpartition(",")[0] for row in rows for _ in range(int(row.rpartition(",")[2]))]
    (folder / "counts.csv").write_text("\n".join([head.rpartition(",")[0], *people]) + "\n")
    add_column(folder / "counts.csv")
    path.write_text(path.read_text().replace('reader = "histogram"', 'reader = "records"'))
    return path


_CENSUS = """\
[run]
product = "pl94-persons"
[input]
reader = "{reader}"
path = "{path}"
{more}
[budget]
preset = "us2020-persons"
rho = "1/1000"
normalise = true
"""


def census(folder: Path, reader: str, path: str, more: str = "") -> Path:
    """Write a run file of the persons product."""
    run = folder / "run.toml"
    run.write_text(_CENSUS.format(reader=reader, path=path, more=more))
    return run


def pl94(folder: Path, year: int, changed: Callable[[dict[str, str]], dict[str, str]] | None = None) -> Path:
    """Return a run file: a redistricting file."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = pl94_zip.some_blocks()
    texts = pl94_zip.members(blocks, year)
    pl94_zip.write_zip(folder / "fb.zip", blocks, year, changed(texts) if changed else None)  # type: ignore[arg-type]
    return census(folder, f"pl94-{year}", "fb.zip")


_PEOPLE = ["TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLKGRPCE", "TABBLK"]
_PEOPLE += ["RTYPE", "GQTYPE_PL", "VOTING_AGE", "CENHISP", "CENRACE"]
_PERSON = ["98", "001", "000100", "1", "1000", "3", "0", "2", "1", "01"]


def microdata(folder: Path, reader: str, race: str = "01") -> Path:
    """Return a run file: published microdata, with a column too many."""
    folder.mkdir(parents=True, exist_ok=True)
    separator = "|" if reader == "mdf" else ","
    rows = [_PEOPLE, *([_PERSON] * 30), [*_PERSON[:-1], race]]
    lines = [separator.join([*row, "REMARK" if row is _PEOPLE else TEXT]) for row in rows]
    (folder / "p.txt").write_text("\n".join(lines) + "\n")
    return census(folder, reader, "p.txt")


def cef(folder: Path, change: Callable[[str], str] = str) -> Path:
    """Return a run file: census records of fixed width; `change` spoils the 40th person's line."""
    write_cef(folder, blocks=60, seed=3)
    path = folder / "CEF20_PER_99.txt"
    lines = path.read_text().splitlines()
    lines[39] = change(lines[39])
    path.write_text("\n".join(lines) + "\n")
    run = folder / "persons.toml"
    assert run.is_file()
    return run


def households(folder: Path, spoil: Callable[[World], object] | None = None) -> tuple[Path, Path]:
    """Return configuration and data of PHSafe, with a household under the marked key."""
    persons, units, places = random_world(3, 60)
    unit = next(unit for unit in units if unit["HHT"] != "0")
    place = next(place for place in places if place["MAFID"] == unit["MAFID"])
    key = str(NUMBER)
    units.append(unit | {"MAFID": key, "HHT2": "05", "CPLT": "5", "TEN": "1", "FINAL_POP": "97731"})
    places.append(place | {"MAFID": key})
    head = {"RTYPE": "3", "MAFID": key, "QAGE": "40", "CENHISP": "1", "CENRACE": "01", "RELSHIP": "20"}
    persons += [head | {"RELSHIP": "20" if n == 0 else "36", "QAGE": str(30 + n)} for n in range(12)]
    world: World = (persons, units, places)
    if spoil is not None:
        spoil(world)
    write_world(folder / "data", deepcopy(world))
    config = folder / "config.json"
    config.write_text(json.dumps(configuration(tau=3)))
    return config, folder / "data"
