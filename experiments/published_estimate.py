"""Microdata of Rhode Island from its own exported noisy measurements, beside those of the run that measured.

    python experiments/published_estimate.py [DATA] [--seed 1] [--to FOLDER]

Rhode Island 2010 is run on the spine and with the preset of the 2020 production run for one area, estimator
topdown, and its measurements are exported in the Census Bureau's layout. From the export alone microdata are
made with the estimators topdown and informed (``opendas estimate --from-nmf``). Those of topdown must be the
run's own, byte for byte. Mean absolute errors are of one draw of the noise; seconds are those of the
processor, with one worker.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

from experiment import RHODE_ISLAND, arguments, deliver, load, markdown, note, rhode_island

import opendas as od

PRODUCT = "pl94-persons"
SHOWN = (("block", "total"), ("block_group", "total"), ("tract", "total"), ("county", "total"))
SHOWN += (("block_group", "votingage * hispanic * cenrace"), ("tract", "detailed"))


def peak() -> int:
    """Return the most memory that this process has had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def microdata(release: od.Release) -> dict[str, bytes]:
    """Return the files of microdata."""
    folder = release.path / "release" / "mdf"
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    given = parser.parse_args()
    zipped = given.data / RHODE_ISLAND
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        run = load(rhode_island(given.data, more='[geography]\nspine = "aian"'), work)
        begun = time.process_time()
        own = od.release(run, work / "own", seed=given.seed, measurements="full", workers=1)
        found = {"the run itself, topdown": (own, time.process_time() - begun, peak())}
        note("measured")
        od.export_measurements(work / "own", work / "published")
        for estimator in ("topdown", "informed"):
            begun = time.process_time()
            made = od.estimate_published(
                [work / "published" / PRODUCT],
                work / estimator,
                frame=[zipped],
                totals=zipped,
                estimator=estimator,
                workers=1,
            )
            found[f"from the export, {estimator}"] = (made, time.process_time() - begun, peak())
            note(f"{estimator} done")
        same = microdata(own) == microdata(found["from the export, topdown"][0])
        if not same or not microdata(own):
            raise SystemExit("the microdata of the export are not those of the run")
        rows = []
        for name, (release, seconds, memory) in found.items():
            errors = {(row.geolevel, row.query): row.errors for row in od.evaluate(release, run).errors}
            figures = [errors[key].mean_abs_error for key in SHOWN]
            rows.append((name, *figures, f"{seconds:,.0f}", f"{memory:,}"))
    header = ("Microdata", *(f"{query}, {level}" for level, query in SHOWN), "Seconds", "Most MiB")
    deliver("published_estimate", markdown(header, rows), {"rows": [list(row) for row in rows]}, given.to)


if __name__ == "__main__":
    main()
