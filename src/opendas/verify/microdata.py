"""Check that the microdata obey every declared constraint; kept apart because of its length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from opendas.arrays import Bools, Ints
from opendas.constraints.table import bound_table
from opendas.files.geography_files import ConstraintRows, read_tie
from opendas.files.mdf.dhc_units import units_of_records
from opendas.files.mdf.layout import PRODUCTION_LAYOUTS, estimate_of_records, mdf_parts
from opendas.files.mdf.reading import MdfRecords, mdf_files, read_mdf_records
from opendas.files.mdf.unit_types import UnitTypes
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder, tied_counts
from opendas.geography.frame import GQ_COLUMNS, official_codes, official_geolevels
from opendas.geography.spine import SpineLevel
from opendas.report.pyramids import pyramids
from opendas.report.views import plural
from opendas.schema.declarations import Tie
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import HHGQ_LEVELS
from opendas.schema.product import Product
from opendas.verify.check import first_few, require

_LEAVES_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Microdata:
    """The records of one product, read once."""

    released: ReleasedProduct

    @cached_property
    def records(self) -> MdfRecords:
        """Record counts by leaf and kind."""
        return read_mdf_records(self.released.mdf, self.released.product, self.released.frame)

    @cached_property
    def estimate(self) -> Histogram:
        """Histogram of the records, as an estimate."""
        return estimate_of_records(self.released.product, self.records.counts)

    def answers(self, query: str, unit_of_leaf: Ints, units: int) -> Ints:
        """Return the answers of a query group for groups of leaves, int64 (units, m)."""
        group = self.released.product.workload.group(query)
        out = np.zeros(units * group.size, dtype=np.int64)
        for first, rows in self.estimate.pieces(_LEAVES_AT_ONCE):
            unit = np.repeat(unit_of_leaf[first : first + rows.rows], np.diff(rows.indptr))
            np.add.at(out, unit * group.size + group.row_of_cell[rows.cells], rows.counts)
        return out.reshape(units, group.size)


def check_frame(released: ReleasedProduct) -> str:
    """Check that leaves ascend, census codes are prefixes, and spine and frame have the same leaves."""
    frame = released.frame
    if released.product.layout in PRODUCTION_LAYOUTS:
        require(
            frame.geolevels == official_geolevels(frame.geolevels[0], frame.leaf),
            "the geolevels are not the official ones.",
        )
        official = official_codes(frame.geocodes, frame.geolevels[0], frame.leaf)
        wrong = [name for name, codes in official.items() if not np.array_equal(codes, frame.levels[name])]
        require(not wrong, f"codes that are not a prefix of their leaf's: {first_few(wrong)}.")
    for number in range(len(released.spine.levels)):
        _check_official(released, number)
    negative = [name for name, counts in frame.units.items() if counts.size and counts.min() < 0]
    require(not negative, f"negative unit counts: {first_few(negative)}.")
    levels = ", ".join(plural(level.name, len(level)) for level in released.spine.levels)
    return f"{plural('leaf', len(frame))}; spine: {levels}"


def _check_official(released: ReleasedProduct, number: int) -> None:
    """Check that geounits declared official, whole or in parts, are those of the frame."""
    spine, frame = released.spine, released.frame
    level = spine.levels[number]
    if level.name not in frame.geolevels or not (level.official or level.whole is not None):
        return
    unit = np.repeat(np.arange(len(level)), np.diff(spine.leaf_starts(number)))
    codes = frame.codes(level.name)[spine.leaf_order]
    if level.whole is None:
        same = np.array_equal(level.geocodes[unit], codes)
    else:
        whole = level.whole[unit]
        same = np.array_equal(whole[1:] != whole[:-1], codes[1:] != codes[:-1])
        same = same and len(np.unique(codes)) == int(level.whole[-1]) + 1
    require(same, f"the geounits of {level.name!r} are not those of the frame.")


def check_records(run: Mapping[str, Any], data: Microdata) -> str:
    """Check columns, codes, order and numbering of records, and their number by sex and age."""
    released = data.released
    files = [path.stem for path in mdf_files(released.mdf)]
    parts = [part.name for part in mdf_parts(released.product, released.frame)]
    require(sorted(files) == sorted(parts), "the part files are not those of the frame.")
    records = data.records
    require(records.sorted_by_leaf, "records are not in order.")
    require(records.numbered, "EPNUM does not number the records from 0.")
    require(
        records.records == run["records"],
        f"{records.records} records, but the certificate says {run['records']}.",
    )
    if "pyramids" in run:
        leaves = np.arange(len(released.frame), dtype=np.int64)
        found = pyramids(released.product, released.frame, [(leaves, data.estimate)])
        same = [one.to_dict() for one in found] == run["pyramids"]
        require(same, "the numbers of people by sex and age differ from the certificate.")
    impossible = ~released.product.possible[data.estimate.cells]
    require(not bool(impossible.any()), "a record has a combination of levels that is declared impossible.")
    return f"{plural('record', records.records)} in {plural('part file', len(files))}"


def check_bounds(run: Mapping[str, Any], released: ReleasedProduct) -> str:
    """Check that bounds follow from frame and product, and that invariants are the declared ones.

    The certificate lists exactly the invariants on file.
    """
    spine, product = released.spine, released.product
    certified = {name for name in run["invariants"] if "@" in name}
    unlike = certified ^ {invariant.name for invariant in product.invariants}
    require(not unlike, f"invariants on file and in the certificate differ: {first_few(sorted(unlike))}.")
    blocks = {(block.geolevel, block.name): block for block in released.constraints}
    for level in spine.levels:
        for block in (b for b in blocks.values() if b.geolevel == level.name):
            require(
                np.array_equal(block.geocodes, level.geocodes),
                f"{level.name}, {block.name}: a geounit of the spine has no row.",
            )
    invariants = {}
    for query, number in product.invariant_levels(spine).items():
        key = (spine.names[number], f"{query}@{spine.names[number]}")
        require(key in blocks, f"the declared invariant {query!r} is not on file.")
        whole = spine.levels[number].whole
        held = blocks[key].lower
        # A total that parts hold together stands at each of them; once for every geounit is enough.
        invariants[query] = held if whole is None else held[np.flatnonzero(np.diff(whole, prepend=-1))]
    expected = bound_table(product, released.frame, spine, invariants)
    for level, wanted_level in zip(spine.levels, expected.levels, strict=True):
        limits = {
            bound.name: (wanted_level.lower[:, [k]], wanted_level.upper[:, [k]])
            for k, bound in enumerate(product.bounds)
        }
        if (linear := wanted_level.linear) is not None:
            none = np.zeros((len(level), 0), dtype=np.int64)
            limits |= {name: (none, linear.at_most[:, [k]]) for k, name in enumerate(linear.names)}
        for name, (least, most) in limits.items():
            require((level.name, name) in blocks, f"{level.name}: no row for {name}.")
            on_file = blocks[level.name, name]
            same = np.array_equal(on_file.lower, least) and np.array_equal(on_file.upper, most)
            require(same, f"{level.name}, {name}: it differs from the frame.")
    # An invariant holds at every geolevel above its own: of several of a query the lowest is on file.
    wanted = {
        (level.name, f"{query}@{spine.names[number]}")
        for query, number in product.invariant_levels(spine).items()
        for level in spine.levels[: number + 1]
    }
    exact = ("invariant", "joint")
    found = {key for key, block in blocks.items() if block.kind in exact}
    require(found == wanted, "the invariants on file differ from the declared ones.")
    known = {bound.name for bound in product.bounds} | {one.name for one in product.linear}
    others = {b.name for b in blocks.values() if b.kind not in exact} - known
    require(not others, f"bounds that the product does not declare: {first_few(sorted(others))}.")
    also = f", {plural('linear constraint', len(product.linear))}" if product.linear else ""
    bounds = plural("bound", len(product.bounds))
    return f"{bounds}{also} and {plural('invariant', len(product.invariants))}, as declared"


def _violations(product: Product, block: ConstraintRows, answers: Ints, level: SpineLevel) -> Bools:
    if block.kind == "linear":
        declared = next(one for one in product.linear if one.name == block.name)
        group = product.workload.group(declared.query)
        times = [declared.coefficients.get(group.row_label(row), 0) for row in range(group.size)]
        return np.asarray(answers @ np.array(times, dtype=np.int64) > block.upper[:, 0])
    if block.kind == "joint" and level.whole is not None:
        together = np.bincount(level.whole, answers[:, 0]).astype(np.int64)
        answers = together[level.whole][:, None]
    own = answers if block.row < 0 else answers[:, block.row : block.row + 1]
    return np.asarray(((own < block.lower) | (own > block.upper)).any(axis=1))


def check_constraints(run: Mapping[str, Any], data: Microdata) -> str:
    """Check sums of the records against every bound and invariant at every geolevel of the spine."""
    released = data.released
    spine = released.spine
    relaxed, rows = 0, 0
    for number, level in enumerate(spine.levels):
        starts = spine.leaf_starts(number)
        unit_of_leaf = np.repeat(np.arange(len(level)), np.diff(starts))[spine.place_of_leaf]
        answers: dict[str, Ints] = {}
        for block in (b for b in released.constraints if b.geolevel == level.name):
            if block.query not in answers:
                answers[block.query] = data.answers(block.query, unit_of_leaf, len(level))
            require(len(block.geocodes) == len(level), f"{level.name}, {block.name}: rows are missing.")
            broken = _violations(released.product, block, answers[block.query], level)
            rows += len(broken)
            if not bool(broken.any()):
                continue
            if run["failsafe"] and number < len(spine.levels) - 1:
                relaxed += int(broken.sum())
                continue
            where = first_few(code.decode() for code in block.geocodes[broken])
            require(False, f"{level.name}: {block.name} does not hold in {where}.")
    if not relaxed:
        return f"{plural('row', rows)}, all held"
    return f"{rows - relaxed:,} of {plural('row', rows)} held; the failsafe relaxed families below the rest"


def check_tie(data: Microdata) -> str:
    """Check that the records of every leaf, hence of every geounit, have the tied release's counts."""
    released = data.released
    spine, tie = released.spine, released.product.tied
    require(tie is not None, "the certificate describes a tie, but the product on file declares none.")
    assert tie is not None  # required above
    tied = read_tie(released.measurements / "tie.parquet", released.product, spine).take(spine.place_of_leaf)
    query = released.product.workload.group(tie.query)
    _check_tied_counts(released, tie, tied)
    unlike = data.estimate.recoded(query.row_of_cell, query.size).unlike(tied)
    _require_no_leaves(released, unlike, f"the counts differ from those of {tie.product} in")
    types = UnitTypes.of(released.product, released.frame)
    if types is not None:
        broken = types.broken(np.arange(tied.rows), data.estimate)
        _require_no_leaves(released, broken, "the types of unit differ from those of the frame in")
    held = "" if types is None else f"; {plural('type', len(tie.units))} of unit as the frame has them"
    return f"{plural('count', len(tied.counts))} of {tie.query}, as in the release of {tie.product}{held}"


def _check_tied_counts(released: ReleasedProduct, tie: Tie, tied: Histogram) -> None:
    """Check the tied counts against the companion in this release, if any, and the frame."""
    if released.product.companion is not None:
        known = tied_counts(released.release, released.product, released.frame)
        require(
            not len(tied.unlike(known)),
            f"the counts of tie.parquet differ from those of {tie.product} in this release.",
        )
    query = released.product.workload.group(tie.query)
    labels = {query.row_label(row): row for row in range(query.size)} if tie.columns else {}
    leaf = tied.row_of_entries()
    for label, column in tie.columns.items():
        here, counts = tied.cells == labels[label], np.zeros(tied.rows, dtype=np.int64)
        counts[leaf[here]] = tied.counts[here]
        same = np.array_equal(counts, released.frame.units[column])
        require(same, f"the counts of {label} in tie.parquet differ from {column} of the frame.")


def check_quarters(data: Microdata) -> str:
    """Check people and units against the frame, block by block."""
    released = data.released
    frame = released.frame
    leaves = np.arange(len(frame), dtype=np.int64)
    if released.product.layout == "dhc-units":
        return _check_all_units(data)
    if released.product.layout not in ("persons", "units"):
        return "not declared for this product"
    if released.product.layout == "persons":
        people = data.answers("hhgq", leaves, len(frame))
        known = [(code, frame.units[c]) for code, c in enumerate(("hu", *GQ_COLUMNS)) if c in frame.units]
        if not known:
            return "the frame has no units"
        for code, units in known:
            whose = f"{HHGQ_LEVELS[code]} people"
            homeless = (units == 0) & (people[:, code] > 0)
            _require_no_leaves(released, np.flatnonzero(homeless), f"{whose} without a unit in block")
            short = (people[:, code] < units) & (code > 0)
            _require_no_leaves(released, np.flatnonzero(short), f"{whose} fewer than facilities in block")
        return "nobody where there is no unit; no group quarters without people"
    facilities = data.records.counts
    quarters = np.zeros(len(frame), dtype=np.int64)
    kind = facilities.cells == 2
    leaf = np.repeat(leaves, np.diff(facilities.indptr))
    np.add.at(quarters, leaf[kind], facilities.counts[kind])
    wanted = sum((frame.units[c] for c in GQ_COLUMNS if c in frame.units), np.zeros(len(frame), np.int64))
    require(np.array_equal(quarters, wanted), "group-quarters rows of a block differ from the frame.")
    if any(invariant.query == "total" for invariant in released.product.invariants) and "hu" in frame.units:
        same = np.array_equal(data.estimate.row_totals(), frame.units["hu"])
        require(same, "housing-unit rows of a block differ from the frame.")
        return "unit rows of every block equal the frame"
    return "group-quarters rows of every block equal the frame"


def _check_all_units(data: Microdata) -> str:
    """Check rows by tenure, vacancy status and group-quarters type against the second histogram."""
    released = data.released
    companion = released.product.companion
    require(companion is not None, "the product on file has no second histogram.")
    assert companion is not None  # required above
    units = ReleaseFolder(released.release)[companion.name].estimate
    unlike = units_of_records(released.product, data.records.counts).unlike(units)
    _require_no_leaves(released, unlike, f"the units differ from those of {companion.name} in")
    return f"{plural('unit', units.total())} of every block, as in {companion.name}"


def _require_no_leaves(released: ReleasedProduct, leaves: Ints, what: str) -> None:
    """Fail the current check if there are leaves, given by their positions, with something wrong."""
    codes = released.frame.geocodes[leaves]
    require(not len(leaves), f"{what} {first_few(code.decode() for code in codes)}.")
