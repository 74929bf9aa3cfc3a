"""A run on a file of noisy measurements that others took: plan, spine and exact counts are the file's.

Nothing confidential is opened and no key made: whatever such a run releases is computed from what was
published. The argument is in docs/proofs/composition.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

from opendas.arrays import Codes, Ints, rank_in_run
from opendas.budget.presets import preset_names
from opendas.budget.resolve import BudgetSpec
from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.custody.stamps import DEMONSTRATION_FRAME, DOMAIN_FROM_RECORDS
from opendas.errors import ConfigError, FormatError
from opendas.files.mdf.reading import stamps_beside
from opendas.files.nmf.bureau import is_bureau_folder
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.public_totals import PublicTotals
from opendas.files.release_folder import ReleaseFolder, list_of_files, release_path, tie_to
from opendas.files.storage.addresses import located
from opendas.geography.frame import Frame
from opendas.geography.recipe import Recipe
from opendas.geography.spine import Spine, SpineLevel
from opendas.intervals.noisy_tree import NoisyTree
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.readers.columns.csv_parquet import column_names
from opendas.readers.frame.frame_file import hierarchy, read_frame_file
from opendas.readers.frame.official import places_of_blocks, with_headers
from opendas.readers.input.spec import PUBLISHED, ReaderSpec, census_kind
from opendas.readers.pl94.reader import official_reader
from opendas.readers.public_totals import read_public_totals
from opendas.runs.borrowed.budget import StatedBudget, implied_budget
from opendas.runs.config.resolve import Resolved, refuse_posterior
from opendas.runs.context.run import Run, load
from opendas.runs.prepare import check_rules, tie_constraints
from opendas.schema.declarations import Invariant, PublishedFile
from opendas.schema.pl94 import pl94_persons
from opendas.schema.product import Product
from opendas.schema.provenance import Domain, Provenance
from opendas.topdown.model import BLOCK_BY_BLOCK, POSTERIOR, WHOLE_TREE

log = logging.getLogger(__name__)

_GEOCODES = ("geocode", "GEOID", "GEOCODE")
"""Columns of a table of blocks that name them."""


@dataclass(frozen=True, slots=True, eq=False)
class BorrowedRun:
    """A run that has its measurements from a published file."""

    run: Run  # on the file's blocks and hierarchy, with the budget that its variances come from
    tree: NoisyTree = field(repr=False)
    constraints: ConstraintTable = field(repr=False)
    listing: str = field(repr=False)  # digests and paths of the files that were read
    stamps: tuple[str, ...]  # of the measurements, and of the release that the product is tied to
    # Where the geography comes from; None where the file's own codes are all that is known.
    geography: ReaderSpec | None = None
    companion: BorrowedRun | None = None  # of the product's second histogram, which comes first


def borrow(
    path: Path,
    file: BureauFile,
    *,
    estimator: str = "topdown",
    frame: Sequence[Path] = (),
    budgets: Mapping[str, StatedBudget] | None = None,
    tie: Path | None = None,
) -> BorrowedRun:
    """Return the run that a file of noisy measurements of the Bureau's layout describes.

    - `path`: folder with ``State.parquet`` and so on.
    - `file`: what it holds, with totals that it leaves out.
    - `frame`: public geography: official redistricting zips, of which the headers are read, or one table of
      blocks (CSV or Parquet: ``geocode`` or ``GEOID``, and a column for each entity category). Without it
      nothing is known of places and districts.
    - `budgets`: those that the file was measured with, by product. By default what its variances tell.
    - `tie`: ``release/`` of the redistricting release with which persons, or units, of the DHC agree in every
      geounit. Units of the blocks of persons are then its own, and so are areas where `frame` is not given.

    Raises `ConfigError` if the estimator cannot keep what the file holds exactly, or the release what it
    publishes; `PrivacyError` if the noise of the release came from a seed; `FormatError, GeographyError,
    DataError` if the file is not whole, or contradicts itself, the totals or the geography.
    """
    if estimator == BLOCK_BY_BLOCK:
        raise ConfigError(
            "estimator block-by-block would use the measurements of blocks alone, and none of the geolevels "
            "above them. Use topdown."
        )
    run_of = partial(_borrowed, path, file, estimator, frame, budgets or {}, tie)
    first = None if file.product.companion is None else run_of(file.companion(), None)
    return run_of(file.tree(), first)


def _borrowed(
    path: Path,
    file: BureauFile,
    estimator: str,
    frame: Sequence[Path],
    budgets: Mapping[str, StatedBudget],
    tie: Path | None,
    tree: NoisyTree,
    first: BorrowedRun | None,
) -> BorrowedRun:
    """Return the run of one histogram of a file; `first` is that of its companion, with which it agrees."""
    asked = [len(level) for level, noisy in zip(tree.spine.levels, tree.levels, strict=True) if noisy.queries]
    if not asked or asked[-1] < len(tree.spine.leaf):  # a block alone in what was asked above it is that
        raise FormatError(
            "Block.parquet/DPQuery: no block was measured, or this part of the file is missing. Microdata of "
            "blocks cannot be estimated from the geolevels above alone."
        )
    product = _product_of_file(tree)
    if (tie is not None or first is not None) and estimator in WHOLE_TREE:
        raise ConfigError(
            f"estimator {estimator} estimates all geolevels together and cannot keep counts of an earlier "
            "release. Use topdown."
        )
    if estimator == POSTERIOR:
        refuse_posterior(Mechanism.DISCRETE_GAUSSIAN, product, product.invariants, tree.spine.leaf.name)
    if first is not None:  # it is tied to what is estimated of its companion, and not yet to a release
        product, tie = replace(product, companion=first.run.product), None
    units = {} if product.layout == "dhc-persons" else _units(tree, product)  # of persons, the release's
    if tie is not None:
        product = replace(product, tie=tie_to(tie, product, tree.frame.geolevels))
    geography = _geography(frame, product)
    known = first.run.frame if first is not None else _known_frame(tree, product, geography, tie, units)
    spine = _official(tree.spine, known)
    spec, spine = implied_budget(product, spine, tree.levels, budgets.get(product.name))
    listing, digest = list_of_files(path, _files(file))
    published = PublishedFile(path.resolve().name, listing.count("\n"), digest)
    declared = file.product if product.name == file.product.name else file.product.companion
    assert declared is not None
    resolved = _resolved(product, declared, spec, known, spine, estimator, published)
    if first is not None:
        resolved = replace(resolved, companion=first.run.resolved)
    if tie is not None and product.layout == "dhc-persons" and _units_are_from_records(tie):
        resolved = replace(resolved, domain=replace(resolved.domain, units=Provenance.FROM_RECORDS))
    run = Run(path, replace(resolved, tied=tie)).on_frame(known, spine)
    constraints = bound_table(product, known, spine, _exact(tree, product, spine))
    _check_bounds(tree, constraints)
    constraints = tie_constraints(run, constraints, seeded=False)
    check_feasible(product, spine, constraints)
    check_rules(run, constraints)
    earlier = () if run.product.tied is None else run.product.tied.stamps
    before = () if first is None else first.stamps
    stamps = tuple(dict.fromkeys((*stamps_beside(path, file.product.name), *before, *earlier)))
    return BorrowedRun(run, tree, constraints, listing, stamps, geography, first)


def borrow_together(
    paths: Sequence[Path],
    *,
    estimator: str = "topdown",
    frame: Sequence[Path] = (),
    state: str | None = None,
    totals: Path | None = None,
    budgets: Sequence[str] = (),
    tie: Path | None = None,
) -> tuple[BorrowedRun, ...]:
    """Return the runs of several files of one census: persons and units of the same blocks.

    - `paths`, `estimator`, `frame`, `state`: as for :func:`borrow`.
    - `totals`: published table or redistricting zip. By default totals of states are those of `tie`, if they
      are exact there.
    - `budgets`: presets, or run files, one for a product at most.
    - `tie`: redistricting release, for the DHC.

    Raises `ConfigError` if a product is there twice, or a budget is of none of the products; `FormatError` if
    the files are of different blocks, or differ about their housing units, which both hold exactly.
    """
    stated = {name: budget for text in budgets for name, budget in _stated(text).items()}
    release = None if tie is None else release_path(tie)
    public = _exact_totals(release) if totals is None else read_public_totals(totals)
    found: dict[str, BorrowedRun] = {}
    for path in map(located, paths):
        file = _opened(path, state, public)
        name = file.product.name
        tied = _check_tie(path, file, release)
        if name in found:
            raise ConfigError(
                f"{path}: measurements of {name} appear twice. Estimate files of two censuses, or of two "
                "vintages, in separate runs."
            )
        second = file.product.companion
        names = (name,) if second is None else (name, second.name)
        given = {one: stated.pop(one) for one in names if one in stated}
        found[name] = borrow(
            path, file, estimator=estimator, frame=frame, budgets=given, tie=release if tied else None
        )
        _check_alike(found[name].run, next(iter(found.values())).run)
    if release is not None and not any((one.companion or one).run.product.tied for one in found.values()):
        raise ConfigError(
            f"--tie: {', '.join(found)} need not agree with a redistricting release; leave it out."
        )
    if stated:
        raise ConfigError(
            f"--budget states the budget of {', '.join(stated)}, but the files are of {', '.join(found)}."
        )
    units = {name: counts for one in found.values() for name, counts in one.run.frame.units.items()}
    return tuple(_with_units(one, units) for one in found.values())


def _with_units(borrowed: BorrowedRun, units: Mapping[str, Ints]) -> BorrowedRun:
    """Return a run on a frame that knows units: the file of units says nothing of group quarters."""
    run, first = borrowed.run, borrowed.companion
    if units.keys() == run.frame.units.keys():
        return borrowed
    run = run.on_frame(replace(run.frame, units=dict(units)), run.spine)
    tie_constraints(run, borrowed.constraints, seeded=False)  # more is known now that may contradict it
    return replace(borrowed, run=run, companion=None if first is None else _with_units(first, units))


def _stated(text: str) -> dict[str, StatedBudget]:
    """Return a budget that a user names, by the products that it is for."""
    if text in preset_names():
        return StatedBudget.of_preset(text)
    if not Path(text).is_file():
        raise ConfigError(
            f"--budget {text}: neither a preset nor a run file; the presets are {', '.join(preset_names())}."
        )
    run = load(text, need_input=False)
    return {
        one.product.name: StatedBudget(
            Path(text).name, one.budget.total, one.budget.geolevels, one.budget.queries
        )
        for one in (run, run.companion)
        if one is not None
    }


def _check_alike(run: Run, first: Run) -> None:
    """Refuse files of other blocks, or that differ about what both hold exactly."""
    one, other = run.frame, first.frame
    names = f"{run.path.name} and {first.path.name}"
    if not np.array_equal(one.geocodes, other.geocodes):
        codes = np.setxor1d(one.geocodes, other.geocodes).tolist()
        code = codes[0].decode()
        raise FormatError(f"{names} have different blocks: only one has {code}. Give files of one census.")
    units = [each.units["hu"] for each in (one, other) if "hu" in each.units]
    differing = np.flatnonzero(units[0] != units[-1]) if units else np.zeros(0, dtype=np.int64)
    if len(differing):
        code = one.geocodes[differing[0]].decode()
        raise FormatError(
            f"{names} differ about the housing units of {len(differing):,} blocks, for instance {code}. Give "
            "files of one census and one vintage, and their own release with --tie where they need one."
        )


def _opened(path: Path, state: str | None, totals: PublicTotals | None) -> BureauFile:
    """Open a file of a product that is estimated from files."""
    if not is_bureau_folder(path):
        raise ConfigError(
            f"{path}: not a noisy measurement file in the Census Bureau's layout, which is a folder with "
            "State.parquet, County.parquet and so on. To estimate from measurements of your own run, use "
            "opendas estimate RUN.toml --out OUT."
        )
    return BureauFile.open(path, state, totals)


def _check_tie(path: Path, file: BureauFile, release: Path | None) -> bool:
    """Return whether a file is of a product that is tied to a redistricting release."""
    tie = (file.product.companion or file.product).tie
    if tie is not None and release is None:
        raise ConfigError(
            f"{path}: microdata of {file.product.name} must agree with a release of {tie.product}. Give one "
            "with --tie; opendas estimate --from-nmf makes it from the redistricting measurements."
        )
    return tie is not None


def _exact_totals(release: Path | None) -> PublicTotals | None:
    """Return the totals of states that a redistricting release publishes exactly, if it does."""
    if release is None:
        return None
    folder = ReleaseFolder(release)
    if pl94_persons().name not in folder:
        return None
    released = folder[pl94_persons().name]
    exact = [f"{one.query}@{one.geolevel}" for one in released.product.invariants]
    if "total@state" not in exact or "state" not in released.frame.geolevels:
        return None
    codes, state = np.unique(released.frame.codes("state"), return_inverse=True)
    people = np.bincount(state, released.estimate.row_totals()).astype(np.int64)
    totals = {code.decode(): count for code, count in zip(codes.tolist(), people.tolist(), strict=True)}
    none = np.zeros(0, dtype=np.int64)
    return PublicTotals(str(release), totals, none.astype("S15"), none)


def _product_of_file(tree: NoisyTree) -> Product:
    """Return the product with the invariants of the file, those that parts of states hold together too.

    These sum to the total of the nation, so that it is none of its own.
    """
    joint = tuple(
        Invariant("total", name)
        for name, held in zip(tree.spine.names, tree.constraints.levels, strict=True)
        if held.joint is not None
    )
    own = tree.product.invariants
    return replace(
        tree.product, invariants=joint + tuple(one for one in own if not (joint and one.query == "total"))
    )


def _geography(paths: Sequence[Path], product: Product) -> ReaderSpec | None:
    """Return where public geography is read from: official zips, or one table of blocks."""
    if not paths:
        return None
    if all(path.suffix.lower() == ".zip" for path in paths):
        readers = {official_reader(path) for path in paths}
        if len(readers) > 1:
            raise ConfigError("--frame: these official files are of two censuses; give those of one.")
        return ReaderSpec(readers.pop(), tuple(paths), product)
    if len(paths) > 1:
        raise ConfigError(f"--frame {paths[0]}: give either one table, or official zips, one per state.")
    names = column_names(paths[0])
    geocode = next((name for name in _GEOCODES if name in names), _GEOCODES[0])
    return ReaderSpec("histogram", (), product, frame=paths[0], geocode=geocode)


def _known_frame(
    tree: NoisyTree,
    product: Product,
    geography: ReaderSpec | None,
    tie: Path | None,
    units: Mapping[str, Ints],
) -> Frame:
    """Return the file's blocks with the areas that public geography gives them, and their units."""
    frame = tree.frame
    if tie is not None and product.tie is not None:
        earlier = ReleaseFolder(tie)[product.tie.product].frame
        place = places_of_blocks(frame, earlier.geocodes, str(tie))
        units = units or {name: counts[place] for name, counts in earlier.units.items()}
        areas = {name: codes[place] for name, codes in earlier.entities.items()}
        frame = replace(frame, entities=areas)
    frame = replace(frame, units=units)
    if geography is None:
        return frame
    if geography.paths:
        return with_headers(frame, [path for path in geography.paths if isinstance(path, Path)])
    path = geography.frame
    assert isinstance(path, Path)
    other = read_frame_file(path, replace(geography, root=frame.geolevels[0]), hierarchy(geography)).frame()
    place = places_of_blocks(frame, other.geocodes, path.name)
    return replace(frame, entities={name: codes[place] for name, codes in other.entities.items()})


def _units_are_from_records(tie: Path) -> bool:
    """Whether the release that gives units is stamped for them; a census publishes those of its records."""
    earlier = ReleaseFolder(tie)[pl94_persons().name]
    stamped = {DEMONSTRATION_FRAME, DOMAIN_FROM_RECORDS} & set(earlier.stamps)
    return bool(stamped) and earlier.domain.units is Provenance.FROM_RECORDS


def _units(tree: NoisyTree, product: Product) -> dict[str, Ints]:
    """Return the public unit counts of the blocks that the file's bounds tell."""
    leaf, order = tree.constraints.levels[-1], tree.spine.leaf_order
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    if product.layout == "tenvacgq":
        return _units_by_type(tree, place)
    if not product.bounds:
        held = [one for one in leaf.invariants if one.query.name == "total"]
        return {"hu": held[0].answers[place, 0]} if held else {}
    units = {}
    for k, bound in enumerate(product.bounds):
        lower, upper = leaf.lower[:, k], leaf.upper[:, k]
        count = upper // bound.upper
        wrong = (count * bound.upper != upper) | (bound.lower * count != lower)
        if wrong.any():
            code = tree.spine.leaf.geocodes[wrong][0].decode()
            raise FormatError(
                f"Block.parquet/Constraint: block {code[-16:]} has {int(lower[wrong][0]):,} to "
                f"{int(upper[wrong][0]):,} people in {bound.cell}, expected {bound.lower} to {bound.upper:,} "
                "for each of its units (hhgq_total_lb_con, hhgq_total_ub_con). OpenDAS reads from these "
                "bounds how many housing units and group quarters a block has."
            )
        units[bound.column] = count[place]
    return units


def _units_by_type(tree: NoisyTree, place: Ints) -> dict[str, Ints]:
    """Return housing units, and group quarters of each type, which the file of DHC units holds exactly."""
    held = [one for one in tree.constraints.levels[-1].invariants if one.query.name == "hhgq_vector"]
    if not held:
        raise FormatError(
            "Block.parquet/Constraint: gq_vect_con is missing, or missing for some block. OpenDAS reads from "
            "it how many housing units and group quarters a block has."
        )
    (query, answers) = held[0].query, held[0].answers[place]
    columns = ("hu", *(query.row_label(row).partition("_")[0] for row in range(1, query.size)))
    return {column: answers[:, row] for row, column in enumerate(columns)}


def _official(spine: Spine, frame: Frame) -> Spine:
    """Return the spine with the codes that a run of one's own gives to such geounits.

    Estimates break ties by them. Where all geounits are official, they have official codes. Otherwise it is a
    spine as in production: below the nation the part in American Indian areas, or outside of them, stands in
    front (1 or 0, as in the file), groups are numbered below their parents, and parts of a tract behind it.
    """
    plain = all(level.official for level in spine.levels)
    levels: list[SpineLevel] = []
    for number, level in enumerate(spine.levels):
        first = spine.leaf_order[spine.leaf_starts(number)[:-1]]
        known = frame.codes(level.name)[first] if level.name in frame.geolevels else None
        if known is not None and (plain or level.name in ("us", frame.leaf)):
            levels.append(replace(level, geocodes=known))
            continue
        if level.name == "tract_subset":
            known = frame.codes("tract")[first]
        codes = None if known is None else np.char.add(level.geocodes.astype("S1"), known)
        if codes is not None and level.name == "tract_subset":
            codes = _numbered(codes)
        if codes is None or len(np.unique(codes)) < len(codes):
            rank = rank_in_run(level.parent) + 1
            numbers = np.char.zfill(rank.astype(str), len(str(int(rank.max())))).astype("S")
            codes = np.char.add(np.char.add(levels[-1].geocodes[level.parent], b"-"), numbers)
        whole = None
        if level.name == "state":
            whole = np.unique(frame.codes("state")[first], return_inverse=True)[1].astype(np.int64)
        levels.append(replace(level, geocodes=codes, official=False, whole=whole))
    return replace(spine, levels=tuple(levels))


def _numbered(codes: Codes) -> Codes:
    """Number geounits of equal code: ``.1``, ``.2`` ... behind it, as a run's own step does."""
    _, same, count = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(same, kind="stable")
    number = np.empty(len(codes), dtype=np.int64)
    number[order] = rank_in_run(same[order]) + 1
    suffix = np.char.add(b".", number.astype("S10"))
    found = np.where(count[same] > 1, np.char.add(codes, suffix), codes)
    return np.array(found.tolist())  # as wide as they are long


def _exact(tree: NoisyTree, product: Product, spine: Spine) -> dict[str, Ints]:
    """Return the exact answers of each invariant at its geolevel."""
    found = {}
    for query, number in product.invariant_levels(spine).items():
        level = tree.constraints.levels[number]
        held = next((one.answers for one in level.invariants if one.query.name == query), None)
        if held is None and level.joint is not None:
            held = level.joint.totals[:, None]
        elif held is not None and (whole := spine.levels[number].whole) is not None:
            held = np.add.reduceat(held, np.flatnonzero(np.diff(whole, prepend=-1)), axis=0)
        assert held is not None
        found[query] = held
    return found


def _check_bounds(tree: NoisyTree, ours: ConstraintTable) -> None:
    """Say where bounds of the file above the blocks are narrower than blocks and exact totals make them."""
    for name, theirs, level in zip(tree.spine.names, tree.constraints.levels, ours.levels, strict=True):
        closed = (theirs.upper == 0) & (level.upper > 0) | (theirs.lower > level.upper)
        if closed.any():
            log.warning(
                "%s: %d bounds of the file contradict those that follow from its blocks and exact totals, "
                "and are not used.",
                name,
                int(closed.sum()),
            )


def _files(file: BureauFile) -> Iterator[Path]:
    """Yield the files that a set of measurements was read from."""
    for level in file.levels:
        yield from (*level.measured.files, *level.constraints.files)


def _resolved(
    product: Product,
    declared: Product,
    spec: BudgetSpec,
    frame: Frame,
    spine: Spine,
    estimator: str,
    published: PublishedFile,
) -> Resolved:
    """Return what a run file would say, if there were one."""
    held = {invariant.query for invariant in product.invariants}
    top = "state" if "state" in spine.names else spine.names[0]
    return Resolved(
        product=product,
        dropped=tuple(
            Invariant(one.query, {"leaf": spine.leaf.name, "state": top}.get(one.geolevel, one.geolevel))
            for one in declared.invariants
            if one.query not in held
        ),
        reader=ReaderSpec(PUBLISHED, (), product),
        geolevels=spine.names,
        spine_name=None,
        recipe=Recipe((), None, facilities=census_kind(product) != "units"),
        levels=spine.names,
        stand_ins={},
        budget=spec,
        mechanism=Mechanism.DISCRETE_GAUSSIAN,
        neighbours=Neighbours.BOUNDED,
        estimator=estimator,
        failsafe=False,
        slack=Fraction(0),
        milp=False,
        domain=Domain(
            dict.fromkeys(product.schema.names, Provenance.CODE_BOOK),
            Provenance.PUBLIC,
            Provenance.PUBLIC,
            Provenance.PUBLIC if frame.units else None,
        ),
        published=published,
    )
