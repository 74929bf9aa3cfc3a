"""A swapping baseline: households exchange places, as before 2020. It gives no formal guarantee.

Published accounts of the 2010 census say that households were chosen with more chance where they were unlike
their neighbours, and exchanged with a household of equal size and as many adults elsewhere; rates and keys
were secret. Here all of it is a parameter. Axes: ``p`` persons, ``h`` households, ``l`` leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Bools, Ints, rank_in_run
from opendas.comparison.sources import NO_GUARANTEE, SWAPPING
from opendas.custody.folders import open_folder, write_atomic
from opendas.errors import ConfigError
from opendas.files.geography_files import write_frame
from opendas.files.mdf.writing import MdfFiles
from opendas.geography.frame import Frame
from opendas.readers.columns.coding import whole_numbers
from opendas.readers.columns.csv_parquet import read_batches
from opendas.readers.columns.findings import FindingLog
from opendas.readers.frame.frame_file import hierarchy
from opendas.readers.input.spec import ReaderSpec
from opendas.readers.row_readers import LongForm
from opendas.schema.histogram import Histogram

_ROUNDS = 20
"""Tries to find a partner elsewhere; the order is drawn again in each."""


@dataclass(frozen=True, slots=True)
class Swap:
    """What is swapped."""

    # Part of all households that move, from 0 to 1: half of them are chosen, the others are their partners.
    rate: float = 0.05
    # How many times the chance of another household one has in which a person is unlike all persons in the
    # other households of its geounit at `risk`; 1 for no targeting.
    targeting: float = 10.0
    # Attributes of which two partners have as many persons at every level, and hence as many persons.
    match: tuple[str, ...] = ("votingage",)
    within: str = "county"  # geolevel: partners lie in one of its geounits
    across: str = "tract"  # geolevel: partners lie in different geounits of it
    risk: str = "block"
    household: str = "household"  # column that numbers households in a leaf; 0 for persons in none, who stay

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"the rate of swapping lies between 0 and 1; not {self.rate:g}.")
        if not self.targeting > 0:
            raise ConfigError(f"targeting is above 0, and 1 for none; not {self.targeting:g}.")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Households:
    """Persons by household. Confidential."""

    leaf: Ints  # int64 (p,). Position of the leaf in the frame.
    cell: Ints  # int64 (p,). Cell of the product.
    household: Ints  # int64 (p,). From 0; -1 for persons in none.
    home: Ints  # int64 (h,). Leaf of each household.


@dataclass(frozen=True, slots=True)
class Swapped:
    """How many households moved.

    Parameters
    ----------
    at_risk, moved_at_risk : int
        Households with a person unlike all others around; how many of them moved.
    unmatched : int
        Chosen ones for which there was no partner.
    """

    households: int
    moved: int
    at_risk: int
    moved_at_risk: int
    unmatched: int


def read_households(spec: ReaderSpec, frame: Frame, column: str) -> Households:
    """Read the records of a run with the household of each.

    - `spec`: of reader ``records``, one row a person.
    - `column`: as :attr:`Swap.household`.

    Raises `ConfigError` if it is another reader, or keeps some records out; `DataError` with what is
    wrong in a file.
    """
    if spec.reader != "records" or spec.contribution is not None or spec.other_leaf is not None:
        raise ConfigError(
            "swapping reads one record a person, with a column that identifies the person's household. Set "
            'reader = "records" in [input], without unit_id, at_most and other_leaf. opendas make-census '
            "writes such records."
        )
    layout = LongForm.of(spec, hierarchy(spec).width, counted=False)
    leaves, cells, numbers = [], [], []
    for path in spec.paths:
        log = FindingLog()
        names = [*layout.leaf_columns, *layout.cell_columns, column]
        for batch in read_batches(path, list(dict.fromkeys(names)), log):
            codes = layout.leaves(batch, log).rows()
            leaf = np.minimum(np.searchsorted(frame.geocodes, codes), len(frame) - 1)
            unknown = frame.geocodes[leaf] != codes
            batch.report(unknown & (codes != b""), layout.leaf_field, "expected a leaf of the frame", log)
            leaves.append(leaf)
            cells.append(layout.cells(batch, log))
            numbers.append(whole_numbers(batch, column, log))
        log.raise_if_any("the records cannot be swapped.")
    leaf, cell, number = (np.concatenate(parts).astype(np.int64) for parts in (leaves, cells, numbers))
    inside = number > 0
    pairs, which = np.unique(np.stack([leaf[inside], number[inside]]), axis=1, return_inverse=True)
    household = np.full(len(leaf), -1, dtype=np.int64)
    household[inside] = which.ravel()
    return Households(leaf, cell, household, pairs[0])


def _numbered(columns: Sequence[Ints]) -> Ints:
    """Number the distinct rows of several columns."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, key = np.unique(key * (int(column.max(initial=0)) + 1) + column, return_inverse=True)
        key = key.ravel().astype(np.int64)
    return key


def _at_risk(people: Households, geounit: Ints, cells: int) -> Bools:
    """Mark households with a person whose cell no other household of the geounit has, bool (h,)."""
    inside = people.household >= 0
    household, cell = people.household[inside], people.cell[inside]
    once = np.unique(household * cells + cell)
    place = geounit[people.home[once // cells]] * cells + once % cells
    _, which, homes = np.unique(place, return_inverse=True, return_counts=True)
    found = np.zeros(len(people.home), dtype=np.bool_)
    found[(once // cells)[homes[which.ravel()] == 1]] = True
    return found


def swap_households(
    people: Households,
    kind: Ints,
    places: Mapping[str, Ints],
    cells: int,
    swap: Swap,
    rng: np.random.Generator,
) -> tuple[Ints, Swapped]:
    """Let households exchange their leaves.

    - `kind` (p,): what partners have as many persons of.
    - `places`, ``"within"``, ``"across"``, ``"risk"`` -> int64 (l,): geounit of each leaf.
    - `cells`: of the product.
    - Returns: `home` (h,): leaf of each household afterwards. Every leaf has as many households of each
      composition by `kind` as before.
    """
    home, many = people.home, len(people.home)
    inside, kinds = people.household >= 0, int(kind.max(initial=0)) + 1
    of_kind = np.bincount(people.household[inside] * kinds + kind[inside], minlength=many * kinds)
    stratum = _numbered([places["within"][home], *of_kind.reshape(many, kinds).T])
    risky = _at_risk(people, places["risk"], cells)
    chance = np.where(risky, swap.targeting, 1.0)
    chosen = np.zeros(many, dtype=np.bool_)
    # The smallest of exponential waiting times: a sample without replacement, by weight.
    waiting = rng.exponential(size=many) / chance
    chosen[np.argsort(waiting, kind="stable")[: int(swap.rate * many / 2)]] = True
    partner = np.full(many, -1, dtype=np.int64)
    for _ in range(_ROUNDS):
        seeking, free = (np.flatnonzero((chosen == side) & (partner < 0)) for side in (True, False))
        if not len(seeking) or not len(free):
            break
        one, other = (_in_strata(stratum, each, rng) for each in (seeking, free))
        _, left, right = np.intersect1d(one[1], other[1], assume_unique=True, return_indices=True)
        a, b = one[0][left], other[0][right]
        apart = places["across"][home[a]] != places["across"][home[b]]
        partner[a[apart]], partner[b[apart]] = b[apart], a[apart]
    moved = partner >= 0
    after = np.where(moved, home[partner], home)
    unmatched = int((chosen & ~moved).sum())
    counts = (many, int(moved.sum()), int(risky.sum()), int((risky & moved).sum()), unmatched)
    return after, Swapped(*counts)


def _in_strata(stratum: Ints, households: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return households in a drawn order within each stratum, and a number for stratum and place in it."""
    mixed = households[rng.permutation(len(households))]
    mixed = mixed[np.argsort(stratum[mixed], kind="stable")]
    return mixed, stratum[mixed] * len(stratum) + rank_in_run(stratum[mixed])


def write_swapped(spec: ReaderSpec, frame: Frame, to: Path, swap: Swap, seed: int | None = None) -> Swapped:
    """Swap the households of a run's records, and write what `opendas compare` reads.

    Writes microdata and geography in the layout of a release, without a certificate, and a file that says
    that there is no guarantee. The seed is in none of them: who has it can swap back.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {to} is a file, or a folder that is not empty. Give a new folder.")
    product = spec.product
    for name in swap.match:
        product.schema.attribute(name)
    levels = {part: getattr(swap, part) for part in ("within", "across", "risk")}
    for name in levels.values():
        if name not in frame.geolevels:
            raise ConfigError(f"no geolevel {name!r}; this run has {', '.join(frame.geolevels)}.")
    people = read_households(spec, frame, swap.household)
    codes = dict(zip(product.schema.names, product.schema.codes(people.cell), strict=True))
    kind = _numbered([np.zeros_like(people.leaf), *(codes[name].astype(np.int64) for name in swap.match)])
    places = {part: frame.grouping(name).of_leaf for part, name in levels.items()}
    rng = np.random.default_rng(seed)
    home, found = swap_households(people, kind, places, product.schema.size, swap, rng)
    leaf = np.where(people.household < 0, people.leaf, np.append(home, -1)[people.household])
    ones = np.ones(len(leaf), dtype=np.int64)
    counts = Histogram.from_entries(leaf, people.cell, ones, shape=(len(frame), product.schema.size))
    with open_folder(to, make=True) as folder:
        folder.set_mode(0o700)
    write_frame(to / "geography" / f"{product.name}.parquet", frame, product)
    for file in MdfFiles(to / "mdf" / product.layout, product, frame, counts.take, "parquet"):
        file.write()
    said: dict[str, Any] = {
        "format": "opendas swapping 1",
        "stamps": [NO_GUARANTEE],
        "meaning": "Exact counts of records of which some households exchanged places. No noise, no bound on "
        "what they tell of a person: for comparison with other releases, not for publication.",
        "product": product.name,
        "parameters": asdict(swap),
        "kept_exactly": f"the number of persons by {' * '.join(swap.match)} in every {frame.leaf}",
        **asdict(found),
    }
    write_atomic(to / SWAPPING, (json.dumps(said, indent=1) + "\n").encode())
    return found
