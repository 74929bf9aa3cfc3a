"""Real data on both engines: Rhode Island 2010 by block, and thirteen states of 2020 by tract.

    python experiments/on_spark.py [DATA] [--to FOLDER]        # a standalone Spark of two workers, made here
    python experiments/on_spark.py --master spark://host:7077

Persons and units are released with one seed by the local engine and on Spark, and the files of both releases
are compared, certificate and report included. Executors read the tracts; the Bureau's archive of Rhode Island
is read by the driver. With ``--bare`` executors have a Python without opendas, so that the package is sent to
them, and speculation is on: tasks that seem slow are done twice.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
from experiment import HERE, arguments, deliver, load, markdown, note, rhode_island, write_table
from tract_nation import TRACTS, read_nation, run_file

import opendas as od
from opendas.runs.context.run import Run
from opendas.schema.pl94 import pl94_persons, pl94_units

sys.path.insert(0, str(HERE.parent / "tests"))
from support.spark_cluster import ENCRYPTED, start_cluster

SEED = 1
SPECULATIVE = '"Speculative":true'
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "20ms",
}


def runs(data: Path, folder: Path) -> Iterator[tuple[str, str, Run]]:
    """Yield data set, product and run."""
    nation = read_nation(data / TRACTS)
    for product in (pl94_persons(), pl94_units()):
        place = folder / f"tracts-{product.layout}"
        place.mkdir()
        truth = nation.persons if product.layout == "persons" else nation.units
        write_table(place, nation.frame, truth, product.schema, {})
        yield "thirteen states, tracts", product.name, load(run_file(product.name), place)
    text = rhode_island(data)
    for layout in ("persons", "units"):
        place = folder / f"ri-{layout}"
        place.mkdir()
        yield "Rhode Island, blocks", f"pl94-{layout}", load(text.replace("persons", layout), place)


def bare_python(folder: Path) -> Path:
    """Make a Python that has the packages of this one, but not opendas."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # What a line of such a file adds is searched for packages, not for further such files: an editable
    # opendas is not found.
    (site / "others.pth").write_text(str(Path(numpy.__file__).parents[1]) + "\n")
    return folder / "bin" / "python"


@contextmanager
def spark(master: str | None, bare: bool, folder: Path) -> Iterator[str]:
    """Yield the address of a master."""
    if bare:
        os.environ["PYSPARK_PYTHON"] = str(bare_python(folder / "bare"))
        os.environ.pop("PYTHONPATH", None)
    if master is not None:
        yield master
        return
    (folder / "cluster").mkdir()
    more, second = (SPECULATION, "127.0.0.2") if bare else ({}, "127.0.0.1")
    with start_cluster(folder / "cluster", {**ENCRYPTED, **more}, ("127.0.0.1", second)) as cluster:
        os.environ.update(cluster.environment)
        yield cluster.url
        events = "".join(path.read_text() for path in (folder / "cluster" / "events").rglob("events_*"))
        ended = [line for line in events.splitlines() if line.startswith('{"Event":"SparkListenerTaskEnd"')]
        note(f"{sum(SPECULATIVE in line for line in ended)} second attempts at a task")


class Sent(logging.Handler):
    """Hears whether the package was sent to executors."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Hear a message."""
        self.times += "was sent to the executors" in record.getMessage()


def digests(out: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a release."""
    folder = out / "release"
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--master", default=None, help="Spark master; by default one is started")
    parser.add_argument("--bare", action="store_true", help="executors without opendas, and speculation")
    parser.add_argument("--only", default="", help="data sets whose name begins so")
    given = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1700000000")
    sent = Sent()
    log = logging.getLogger("opendas.engines.spark.session")
    log.setLevel(logging.INFO)
    log.addHandler(sent)
    rows: list[tuple[object, ...]] = []
    figures: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with spark(given.master, given.bare, folder) as master:
            for data, product, run in runs(given.data, folder):
                if not data.startswith(given.only):
                    continue
                seconds, found = [], []
                for engine in ("local", "spark"):
                    out = run.path.parent / engine
                    start = time.perf_counter()
                    there = master if engine == "spark" else None
                    od.release(run, out, seed=SEED, workers=2, engine=engine, master=there)
                    seconds.append(time.perf_counter() - start)
                    found.append(digests(out))
                if found[0] != found[1]:
                    raise SystemExit(f"{data}, {product}: the engines differ")
                note(f"{data}, {product}: {len(found[0])} files, the same bytes")
                microdata = hashlib.sha256(
                    "".join(digest for path, digest in found[0].items() if path.startswith("mdf/")).encode()
                ).hexdigest()
                figures[f"{data}, {product}"] = found[0]
                rows.append((data, product, len(found[0]), microdata[:16], *(f"{s:.0f}" for s in seconds)))
    if given.bare and sent.times < len(rows):
        raise SystemExit("executors had opendas")
    header = ("Data", "Product", "Files, same bytes", "Microdata, SHA-256", "Local, s", "Spark, s")
    deliver("on_spark", markdown(header, rows), figures, given.to)


if __name__ == "__main__":
    main()
