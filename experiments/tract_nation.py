"""Thirteen states of 2020 tracts as a small nation: persons and units below one root, the US presets.

    python experiments/tract_nation.py [DATA] [--seeds 1] [--to FOLDER]

The geolevels are us, state, county and tract; the presets are rescaled to them with ``normalise = true``.
People in group quarters come from table P5 by the rule of the reader ``pl94-2020``: one facility for every
type with someone in it, its people apportioned over age, Hispanic origin and race. Tracts with neither a
housing unit nor group quarters are no leaves. The input is published, hence noisy itself; here it is the
truth. Every release is verified.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from experiment import (
    Figures,
    Key,
    arguments,
    average,
    deliver,
    figures_of,
    load,
    markdown,
    note,
    plain,
    write_table,
)

import opendas as od
from opendas.files.pl94_layout import P5_TYPES, TABLE_SIZES, cell_names
from opendas.geography.frame import GQ_COLUMNS, Frame, official_codes
from opendas.metrics.evaluate import evaluate
from opendas.readers.pl94.people import people, place_people
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

TRACTS = "pl94_2020_tracts/pl94_2020_tracts.parquet"
LEVELS = ("us", "state", "county", "tract")
QUERIES = {"pl94-persons": ("total", "votingage", "hispanic", "cenrace", "hhgq", "detailed")}
QUERIES["pl94-units"] = ("total", "detailed")

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Nation:
    """The tracts, ready to be released.

    Parameters
    ----------
    frame : Frame
        Leaves are tracts with a housing unit or group quarters.
    persons, units : Histogram
    without_units : int
        Leaves without housing unit, with group quarters only.
    left_out : int
        Tracts that are no leaves.
    """

    frame: Frame
    persons: Histogram
    units: Histogram
    without_units: int
    left_out: int


def read_nation(path: Path) -> Nation:
    """Read the published tables of the tracts and make frame and histograms from them."""
    data = pq.read_table(path).sort_by("GEOID")
    tables = {
        name: np.stack([data[cell].to_numpy() for cell in cell_names(name)], axis=1).astype(np.int64)
        for name in TABLE_SIZES
    }
    geocodes = np.array(data["GEOID"].to_pylist(), dtype="S11")
    housing, quarters = tables["H1"][:, 0], tables["P5"][:, np.array(P5_TYPES) - 1]
    leaf = (housing > 0) | quarters.any(axis=1)
    if tables["P1"][~leaf, 0].any():
        raise SystemExit("people live in a tract without housing unit and group quarters")
    implied = people({name: table[leaf] for name, table in tables.items()})
    minors = np.repeat([True, True, False, False], implied.shape[2])
    placed = place_people(implied.reshape(len(implied), -1), quarters[leaf], minors)
    facilities = (quarters[leaf] > 0).astype(np.int64)
    units = {"hu": housing[leaf]} | {name: facilities[:, k] for k, name in enumerate(GQ_COLUMNS)}
    frame = Frame(geocodes[leaf], official_codes(geocodes[leaf], "us", "tract"), "tract", units)
    return Nation(
        frame,
        _histogram(placed.reshape(len(placed), -1)),
        _histogram(tables["H1"][leaf][:, [2, 1]]),
        int((housing[leaf] == 0).sum()),
        int((~leaf).sum()),
    )


def _histogram(dense: Counts) -> Histogram:
    rows, cells = np.nonzero(dense)
    return Histogram.from_entries(rows, cells.astype(np.int32), dense[rows, cells], shape=dense.shape)


def run_file(product: str) -> str:
    """Return the run file of a product."""
    return f"""\
[run]
product = "{product}"
[input]
reader = "histogram"
path = "histogram.parquet"
[geography]
frame = "frame.csv"
levels = [
    {{ name = "us", prefix = 0 }}, {{ name = "state", prefix = 2 }}, {{ name = "county", prefix = 5 }},
    {{ name = "tract", prefix = 11 }},
]
[budget]
preset = "us2020-{product.removeprefix("pl94-")}"
normalise = true
"""


def released(nation: Nation, product: Product, seed: int) -> tuple[Histogram, Figures]:
    """Release one product of the nation, verify it, and return the estimate and its errors."""
    truth = nation.persons if product.layout == "persons" else nation.units
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder), nation.frame, truth, product.schema, {})
        run = load(run_file(product.name), Path(folder))
        release = od.release(run, Path(folder) / "out", seed=seed)
        failed = [check.name for check in release.verify(allow_seeded=True) if not check.ok]
        if failed:
            raise SystemExit(f"{product.name}, seed {seed}: verification failed: {', '.join(failed)}")
        estimate = release.estimate(product.name)
    note(f"{product.name}, seed {seed} released and verified")
    return estimate, figures_of(evaluate(truth, estimate, nation.frame, product))


def by_state(frame: Frame, counts: Histogram) -> dict[str, int]:
    """Return totals by state."""
    states, state = np.unique(frame.codes("state"), return_inverse=True)
    sums = np.zeros(len(states), dtype=np.int64)
    np.add.at(sums, state, counts.row_totals())
    return {code.decode(): int(total) for code, total in zip(states, sums, strict=True)}


def main() -> None:
    """Run the experiment."""
    given = arguments(__doc__, seeds=1).parse_args()
    nation = read_nation(given.data / TRACTS)
    rows: list[tuple[object, ...]] = []
    figures = {}
    totals: list[Mapping[str, int]] = [by_state(nation.frame, nation.persons)]
    for product in (pl94_persons(), pl94_units()):
        runs = [released(nation, product, seed) for seed in range(1, given.seeds + 1)]
        found = average([errors for _, errors in runs])
        figures[product.name] = plain(found)
        totals.append(by_state(nation.frame, runs[0][0]))
        for level in LEVELS:
            for query in QUERIES[product.name]:
                key: Key = (level, query, "", "mean_abs_error")
                count = found[level, query, "", "geounits"].value
                rows.append((product.name, level, f"{count:,.0f}", query, found[key]))
    text = "\n\n".join(
        [
            f"{len(nation.frame):,} leaves, {nation.without_units} of them without housing unit; "
            f"{nation.left_out} tracts are no leaves.",
            markdown(("Product", "Geolevel", "Geounits", "Query", "Mean absolute error"), rows),
            markdown(
                ("State", "People", "People released", "Units released"),
                [(state, *(f"{total[state]:,}" for total in totals)) for state in totals[0]]
                + [("all", *(f"{sum(total.values()):,}" for total in totals))],
            ),
        ]
    )
    deliver("tract_nation", text, figures, given.to)


if __name__ == "__main__":
    main()
