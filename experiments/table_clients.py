"""A spreadsheet and Spark on files of a release: what each of them makes of codes and counts.

    python experiments/table_clients.py --soffice SOFFICE [--seed 1]

`SOFFICE` starts LibreOffice with Calc; Spark needs Java and pyspark. The release is of persons and units of
Alabama, whose code begins with 0, from the synthetic nation. LibreOffice opens each table in CSV, guesses
types as it does by itself, and saves it again; Python's own csv says what is in both. Spark reads each folder
of microdata, tables and exported measurements, and Arrow says what is there.
"""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
from experiment import arguments, deliver, markdown

import opendas as od
from opendas.demo.nation import write_nation

GEOLEVELS = ("county", "tract", "block", "place")
CODE = "GEOID"
"""The column that programs take for a number."""

Row = tuple[str, str, str, int, int]


def write_files(work: Path, seed: int) -> None:
    """Write a release into ``out``, tables into ``tables`` and ``csv``, and measurements into ``nmf``."""
    write_nation(work / "nation", 2600, only=("01",))
    for product in ("persons", "units"):
        run = od.load(work / "nation" / f"{product}-standard.toml")
        release = od.release(run, out=work / "out", seed=seed, measurements="full")
    for file_format, folder in (("parquet", "tables"), ("csv", "csv")):
        od.tabulate(release, ["P1", "P2", "H1"], geolevel=GEOLEVELS, format=file_format, to=work / folder)
    od.export_measurements(work / "out", work / "nmf")


def lines(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table in CSV, by column."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def spreadsheet(soffice: Path, work: Path) -> Iterator[Row]:
    """Open and save tables; yield how many cells there are, and how many came back as others."""
    tables, to = sorted((work / "csv").rglob("*.csv")), work / "saved"
    utf8 = "csv:Text - txt - csv (StarCalc):44,34,76,1"
    profile = f"-env:UserInstallation=file://{work}/profile"
    command = [str(soffice), profile, "--headless", "--convert-to", utf8, "--outdir", str(to)]
    done = subprocess.run([*command, *map(str, tables)], check=True, capture_output=True)
    version = subprocess.run([str(soffice), profile, "--version"], check=True, capture_output=True, text=True)
    if len(list(to.glob("*.csv"))) != len(tables):
        raise SystemExit(f"not every table was saved:\n{done.stderr.decode()}")
    for what in (f"all but {CODE}", CODE):
        cells, other = 0, 0
        for path in tables:
            for mine, theirs in zip(lines(path), lines(to / path.name), strict=True):
                names = [name for name in mine if (name == CODE) == (what == CODE)]
                cells += len(names)
                other += sum(mine[name] != theirs[name] for name in names)
        client = " ".join(version.stdout.split()[:2])
        yield client, f"{len(tables)} tables in CSV", f"cells, {what}", cells, other


def rows_of(table: pa.Table, names: list[str]) -> Counter[str]:
    """Return the rows of a table as texts."""
    return Counter(map(repr, table.select(names).to_pylist()))


def spark(work: Path) -> Iterator[Row]:
    """Read folders of Parquet files; yield how many rows they have, and how many are others."""
    import pyspark

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    mdf, tables = sorted((work / "out" / "release" / "mdf").iterdir()), sorted((work / "tables").glob("*"))
    levels = sorted((work / "nmf").glob("*/*.parquet/*"))
    for name, folders in (("microdata", mdf), ("tables in Parquet", tables), ("measurements", levels)):
        rows, other = 0, 0
        for folder in folders:
            ours = pa.dataset.dataset(folder, format="parquet", partitioning=None).to_table()
            theirs = session.read.parquet(str(folder)).toArrow()
            one, two = (rows_of(table, ours.column_names) for table in (ours, theirs))
            rows += len(ours)
            other += (one - two).total() + (two - one).total()
        yield f"Spark {pyspark.__version__}", f"{name}, {len(folders)} of a schema each", "rows", rows, other
    session.stop()


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--soffice", type=Path, required=True, help="LibreOffice")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        write_files(work, given.seed)
        found = [*spreadsheet(given.soffice, work), *spark(work)]
    rows = [(*row[:3], f"{row[3]:,}", f"{row[4]:,}") for row in found]
    header = ("Client", "Files", "Compared", "In all", "Otherwise")
    deliver("table_clients", markdown(header, rows), {"rows": [list(row) for row in found]}, given.to)


if __name__ == "__main__":
    main()
