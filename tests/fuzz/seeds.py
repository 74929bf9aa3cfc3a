"""Valid examples, all made: what every fuzzed input starts from, made once a process and kept in memory.

Confidential values of the seeds hold :data:`MARK`, which no message may quote.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from support.bureau_layout import write_bureau
from support.households import configuration, random_world, write_world
from support.made_cef_files import write_cef
from support.mini import mini_frame, mini_histogram, to_dense, write_mini
from support.pl94_zip import Block, some_blocks, write_zip

import opendas
from opendas.demo import write_demo
from opendas.files.release_folder import ReleaseFolder
from opendas.files.release_tree import noisy_tree
from opendas.phsafe.run import HouseholdOptions, run_private
from opendas.schema.histogram import Histogram

__all__ = ["MARK", "SEEDS", "Files", "seed"]

MARK = "77147"
Files = Mapping[str, bytes]

_TARGETS = """\
[[targets]]
geolevel = "town"
measure = "largest-group"
query = "kind"
within = "5"
share = "0.95"
population = [0]
[[targets]]
geolevel = "block"
measure = "absolute-error"
query = "kind * minor"
within = "60"
[[targets]]
geolevel = "region"
measure = "mean-absolute-error"
query = "total"
at_most = "5"
"""
_LEVELS = {
    "source": "made",
    "levels": [
        {"name": "state", "values": [1052567], "mult": [1]},
        {"name": "county", "values": [82888, 166158, 626667, 49875, 126979]},
        {"name": "block", "nodes": 17850},
    ],
}
_MDF_HEAD = (
    "TABBLKST|TABBLKCOU|TABTRACTCE|TABBLKGRPCE|TABBLK|EPNUM|RTYPE|GQTYPE_PL|VOTING_AGE|CENHISP|CENRACE"
)


def _mini(folder: Path) -> None:
    """The miniature census, one count marked, a note nobody reads marked too."""
    frame = mini_frame()
    dense = to_dense(mini_histogram(frame)).copy()
    dense[5, 1] = int(MARK)
    rows, cells = np.nonzero(dense)
    made = Histogram.from_entries(rows, cells, dense[rows, cells], shape=dense.shape)
    write_mini(folder, frame=frame, histogram=made)
    lines = (folder / "counts.csv").read_text().splitlines()
    noted = [lines[0] + ",note", *(f"{line},N{MARK}" for line in lines[1:])]
    (folder / "counts.csv").write_text("\n".join(noted) + "\n")
    (folder / "targets.toml").write_text(_TARGETS)


def _parquet(folder: Path) -> None:
    """The miniature census with its tables as Parquet."""
    _mini(folder)
    for name in ("counts", "frame"):
        convert = pacsv.ConvertOptions(column_types={"geocode": pa.string(), "note": pa.string()})
        pq.write_table(
            pacsv.read_csv(folder / f"{name}.csv", convert_options=convert), folder / f"{name}.parquet"
        )
        (folder / f"{name}.csv").unlink()
    text = (folder / "run.toml").read_text().replace("counts.csv", "counts.parquet")
    (folder / "run.toml").write_text(text.replace("frame.csv", "frame.parquet"))


def _records(folder: Path) -> None:
    """Records, one row a person, compressed; and a frame."""
    _mini(folder)
    lines = ["geocode,kind,age,note"]
    for line in (folder / "counts.csv").read_text().splitlines()[1:]:
        geocode, kind, age, count, note = line.split(",")
        lines += [f"{geocode},{kind},{age},{note}"] * min(int(count), 3)
    (folder / "records.csv").write_text("\n".join(lines) + "\n")


def _pl94(year: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        blocks = some_blocks()
        blocks.append(Block("980030001001006", {(1, 0, 0): int(MARK)}, 9, 0))
        write_zip(folder / "fb.zip", blocks, year)

    return write


def _cef(folder: Path) -> None:
    write_cef(folder, 50, 1)


def _mdf(folder: Path) -> None:
    """Persons in the production layout, and public units of the same blocks."""
    blocks = [("98", "001", "000100", "1", f"100{n}") for n in range(4)]
    rows = [_MDF_HEAD]
    for number in range(40):
        place = blocks[number % 4]
        age, race = 1 + number % 2, f"{1 + number % 6:02d}"
        rows.append("|".join([*place, f"{MARK}{number:04d}", "3", "0", str(age), str(1 + number % 2), race]))
    (folder / "persons.txt").write_text("\n".join(rows) + "\n")
    units = ["block,hu,gq1,gq2,gq3,gq4,gq5,gq6,gq7"]
    units += [f"{''.join(place[:3])}{place[4]},9,0,0,0,0,0,0,{n % 2}" for n, place in enumerate(blocks)]
    (folder / "units.csv").write_text("\n".join(units) + "\n")


def _assignment(folder: Path) -> None:
    """Block assignments of two made blocks: an official file, a zip of them, a table."""
    blocks = ("980010001001000", "980010001001001")
    official = {
        "CD": "BLOCKID|DISTRICT\n" + "".join(f"{block}|01\n" for block in blocks),
        "INCPLACE_CDP": "BLOCKID|PLACEFP\n" + "".join(f"{block}|0010{n}\n" for n, block in enumerate(blocks)),
        "VTD": "BLOCKID|COUNTYFP|DISTRICT\n" + "".join(f"{block}|001|00A1\n" for block in blocks),
    }
    with zipfile.ZipFile(folder / "BlockAssign_ST98_FB.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for kind, text in official.items():
            archive.writestr(f"BlockAssign_ST98_FB_{kind}.txt", text)
    (folder / "BlockAssign_ST98_FB_SLDU.txt").write_text(official["CD"].replace("|01", "|001"))
    (folder / "areas.csv").write_text(
        "GEOID,cd,place\n" + "".join(f"{b},01,0010{n}\n" for n, b in enumerate(blocks))
    )


def _areas(folder: Path) -> None:
    """Files of blocks that someone drew, for `interval`."""
    codes = [code.decode() for code in mini_frame().geocodes]
    rows = [f"{code},d{n % 3},{1 if n % 2 else 0.5}" for n, code in enumerate(codes)]
    (folder / "areas.csv").write_text("geocode,area,weight\n" + "\n".join(rows) + "\n")
    (folder / "areas.txt").write_text("\n".join(codes[:9]) + "\n")
    table = pa.table({"GEOID": codes, "district": [f"d{n % 2}" for n in range(len(codes))]})
    pq.write_table(table, folder / "areas.parquet")


def _release(folder: Path) -> None:
    """A finished release of the miniature census, its input beside it."""
    _mini(folder)
    run = opendas.load(folder / "run.toml")
    release = opendas.release(run, folder / "out", seed=1, workers=1, measurements="full")
    opendas.tabulate(release, ["kind"], "town")


def _interrupted(folder: Path) -> None:
    """A run that was interrupted among its families, with checkpoints."""
    _mini(folder)

    def stop(stage: str, done: int, total: int) -> None:
        if stage.startswith("estimating block") and done:
            raise KeyboardInterrupt

    run = opendas.load(folder / "run.toml")
    with contextlib.suppress(KeyboardInterrupt):
        opendas.release(run, folder / "out", seed=1, workers=1, measurements="full", progress=stop)


def _bureau(folder: Path) -> None:
    """A noisy measurement file in the Bureau's layout."""
    with tempfile.TemporaryDirectory() as scratch:
        _, units = write_demo(Path(scratch) / "input", blocks=50)
        out = Path(scratch) / "out"
        opendas.measure(opendas.load(units), out, workers=1)
        write_bureau(folder / "nmf", noisy_tree(ReleaseFolder(out / "release")["pl94-units"]))


def _households(folder: Path) -> None:
    world = random_world(3, 12)
    for rows in world:
        for row in rows:
            row["MAFID"] = f"{MARK}{int(row['MAFID']) % 10000:04d}"
    write_world(folder / "data", world)
    (folder / "config.json").write_text(json.dumps(configuration(tau=3), indent=1))


def _cef_households(folder: Path) -> None:
    write_cef(folder, 50, 1, "44")
    (folder / "config.json").write_text(json.dumps(configuration(tau=3, states=["44"]) | {"reader": "cef"}))


def _household_tables(folder: Path) -> None:
    _households(folder)
    run_private(folder / "config.json", folder / "data", folder / "out", HouseholdOptions(seed=1))


def _levels(folder: Path) -> None:
    (folder / "levels.json").write_text(json.dumps(_LEVELS, indent=1))


SEEDS: Mapping[str, Callable[[Path], None]] = {
    "mini": _mini,
    "parquet": _parquet,
    "records": _records,
    "pl94-2010": _pl94(2010),
    "pl94-2020": _pl94(2020),
    "cef": _cef,
    "mdf": _mdf,
    "assignment": _assignment,
    "areas": _areas,
    "release": _release,
    "interrupted": _interrupted,
    "bureau": _bureau,
    "households": _households,
    "cef-households": _cef_households,
    "household-tables": _household_tables,
    "levels": _levels,
}
"""Name to what writes the files of an example into a folder."""


@cache
def seed(name: str) -> Files:
    """Return the files of an example by relative path."""
    folder = Path(tempfile.mkdtemp(prefix="seed-"))
    try:
        SEEDS[name](folder)
        paths = sorted(
            path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")
        )
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    finally:
        shutil.rmtree(folder)
