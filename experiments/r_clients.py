"""R packages on files that OpenDAS exports: PL94171, ppmf, nanoparquet and arrow; and a script's way.

    python experiments/r_clients.py --library LIBRARY [--release OUT] [--seed 1]

`LIBRARY` is a folder of R packages in which ``CoryMcCartan/PL94171``, ``christopherkenny/ppmf``,
``r-lib/nanoparquet`` and the folder ``r`` of ``apache/arrow`` are installed from their sources
(``R CMD INSTALL -l LIBRARY CHECKOUT``). `OUT` is a finished release of persons and units of Rhode Island 2010
with its measurements in full; without it, one is made. Then: PL94171 on the legacy file against ppmf on the
microdata, block by block; R's nanoparquet and arrow against Arrow in Python on every part of the noisy
measurements and of the microdata; and the first lines of ``alarm-redist/census-2020``, which ask for voting
districts, on a state of the synthetic nation that has some.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from experiment import HERE, PUERTO_RICO, arguments, deliver, load, markdown, rhode_island

import opendas as od
from opendas.demo.nation import write_nation

GROUPS = ("", "_hisp", "_white", "_black", "_aian", "_asian", "_nhpi", "_other", "_two")
COLUMNS = tuple(kind + group for kind in ("pop", "vap") for group in GROUPS)


def made(folder: Path, data: Path, seed: int) -> Path:
    """Return a release of persons and units of Rhode Island."""
    for product in ("persons", "units"):
        text = rhode_island(data, PUERTO_RICO).replace("persons", product)
        od.release(load(text, folder), out=folder / "out", seed=seed, measurements="full")
    return folder / "out"


def export(out: Path, to: Path, file_format: str) -> None:
    """Export a release as the command does."""
    command = [sys.executable, "-m", "opendas", "export", str(out), "--format", file_format, "--to", str(to)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def asked(library: Path, question: str, file: Path) -> tuple[pa.Table, str]:
    """Return what R answers of a file, all as text, and the version of the package."""
    with tempfile.TemporaryDirectory() as place:
        answer = Path(place, "answer.csv")
        command = ["Rscript", str(HERE / "r_clients.R"), str(library), question, str(file), str(answer)]
        version = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        with answer.open("rb") as first:
            names = first.readline().decode().strip().split(",")
        text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        return pyarrow.csv.read_csv(answer, convert_options=text), version


def numbers(table: pa.Table, key: str) -> dict[str, tuple[int, ...]]:
    """Return the eighteen columns of each area."""
    columns = [[int(float(x)) for x in table[name].to_pylist()] for name in COLUMNS]
    return dict(zip(table[key].to_pylist(), zip(*columns, strict=True), strict=True))


def as_before(work: Path, part: Path) -> int:
    """Return the bytes of a part with lists of 64 bits and dictionaries, which R reads wrongly."""
    to, table = work / "packed", pq.ParquetFile(part).read()
    for name in ("query_shape", "value"):
        wide = table[name].cast(pa.list_(pa.int64()))
        table = table.set_column(table.column_names.index(name), name, wide)
    pq.write_table(table, to, compression="zstd", compression_level=3, store_schema=False)
    return to.stat().st_size


def unlike(part: pa.Table, read: pa.Table) -> int:
    """Return how many rows of noisy measurements R reads otherwise: texts, sizes, sums or variances."""
    if len(part) != len(read):
        return len(part)
    wrong = np.zeros(len(part), dtype=bool)
    for name in ("geocode", "query_name"):
        wrong |= np.asarray(part[name].to_pylist()) != np.asarray(read[name].to_pylist())
    values = pa.concat_arrays(part["value"].chunks)
    offsets = np.asarray(values.offsets)
    sums = np.add.reduceat(np.asarray(values.values, dtype=np.int64), offsets[:-1])
    ours = {"size": np.diff(offsets), "value": sums, "variance": np.asarray(part["variance"])}
    for name, mine in ours.items():
        theirs = np.array([float(x or "nan") for x in read[name].to_pylist()])
        wrong |= ~np.isclose(theirs, mine, rtol=1e-6)
    return int(wrong.sum())


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--library", type=Path, required=True, help="R packages")
    parser.add_argument("--release", type=Path, default=None, help="of Rhode Island, finished")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    given = parser.parse_args()
    rows: list[tuple[str, str, str, int]] = []

    def said(client: str, version: str, file: str, compared: str, differences: int) -> None:
        rows.append((f"{client} {version}", file, compared, differences))

    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        out = given.release or made(work, given.data, given.seed)
        for file_format in ("pl94", "ppmf", "nmf"):
            export(out, work / file_format, file_format)
        legacy = next((work / "pl94").rglob("*.zip"))
        blocks, version = asked(given.library, "legacy", legacy)
        people = next((work / "ppmf").rglob("*_person_*.csv"))
        records, other = asked(given.library, "microdata", people)
        one, two = numbers(blocks, "GEOID"), numbers(records, "GEOID")
        none = (0,) * len(COLUMNS)
        apart = sum(one[code] != two.get(code, none) for code in one) + len(two.keys() - one.keys())
        said(
            "PL94171",
            f"{version} = ppmf {other}",
            legacy.name,
            f"{len(COLUMNS)} columns x {len(one):,} blocks",
            apart,
        )

        parts = sorted((work / "nmf").rglob("*.parquet/**/*.parquet"))
        size, packed = (sum(map(of, parts)) for of in (lambda p: p.stat().st_size, partial(as_before, work)))
        for package in ("nanoparquet", "arrow"):
            apart = 0
            for part in parts:
                read, version = asked(given.library, package, part)
                apart += unlike(pq.ParquetFile(part).read(), read)
            said(package, version, "nmf", f"{len(parts)} parts", apart)
            for path in sorted((out / "release" / "mdf").rglob("*.parquet")):
                read, version = asked(given.library, package, path)
                whole = pq.ParquetFile(path).read()
                apart = sum(
                    [str(x) for x in whole[name].to_pylist()] != read[name].to_pylist()
                    for name in whole.column_names
                )
                said(
                    package, version, f"mdf/{path.parent.name}/{path.name}", f"{len(whole):,} records", apart
                )

        write_nation(work / "nation", 2600, only=("01",))
        for product in ("persons", "units"):
            run = od.load(work / "nation" / f"{product}-standard.toml")
            od.release(run, out=work / "state", seed=given.seed)
        export(work / "state", work / "districts", "pl94")
        zipped = next((work / "districts").rglob("*.zip"))
        found, version = asked(given.library, "districts", zipped)
        table = od.Release(work / "state").table("P1", geolevel="vtd").to_arrow()
        wanted = dict(zip(table["GEOID"].to_pylist(), table["P0010001"].to_pylist(), strict=True))
        theirs = {code: row[0] for code, row in numbers(found, "GEOID").items()}
        kind = ", ".join(sorted(set(found["type"].to_pylist())))
        apart = sum(theirs.get(code) != people for code, people in wanted.items()) + len(
            theirs.keys() - wanted
        )
        said("census-2020 by PL94171", version, zipped.name, f"{len(theirs)} areas of type {kind}", apart)
    names = ["Client", "File", "Compared", "Differences"]
    more = f"Measurements: {size:,} bytes with plain lists of 32 bits, {packed:,} with dictionaries and 64."
    deliver("r_clients", f"{markdown(names, rows)}\n\n{more}", {"rows": rows}, given.to)


if __name__ == "__main__":
    main()
