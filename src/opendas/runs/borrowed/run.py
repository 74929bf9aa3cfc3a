"""A run on a file of noisy measurements that others took: plan, spine and exact counts are the file's.

Nothing confidential is opened and no key made: whatever such a run releases is computed from what was
published. The measurements are written as a run of one's own writes them, so that estimation, checks and
tables know no difference. The argument is in docs/proofs/composition.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

from opendas.arrays import Ints
from opendas.budget.presets import preset, preset_names
from opendas.budget.resolve import BudgetSpec
from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import ConstraintTable, bound_table, invariant_geolevels
from opendas.custody.folders import remove_file, remove_tree
from opendas.engines.outputs import Draw, write_full
from opendas.errors import ConfigError, FormatError, PrivacyError
from opendas.files.atomic import write_atomic
from opendas.files.geography_files import read_frame, write_constraints, write_frame, write_spine
from opendas.files.nmf.bureau import is_bureau_folder
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.public_totals import PublicTotals
from opendas.files.official_areas import official_areas_path, write_official_areas
from opendas.files.release_folder import list_of_files
from opendas.geography.frame import Frame
from opendas.geography.recipe import Recipe
from opendas.geography.spine import Spine
from opendas.intervals.noisy_tree import NoisyTree
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.readers.base import PUBLISHED, ReaderSpec, census_kind
from opendas.readers.frame.official import official_areas, with_headers
from opendas.readers.pl94.reader import official_reader
from opendas.readers.public_totals import read_public_totals
from opendas.runs.act import open_act
from opendas.runs.borrowed.budget import StatedBudget, implied_budget
from opendas.runs.config.product_file import load_product
from opendas.runs.config.released import released_toml
from opendas.runs.config.resolve import Resolved
from opendas.runs.options import Progress, RunOptions
from opendas.runs.release import estimate
from opendas.runs.run import Run, load
from opendas.runs.workspace import RunState, Workspace
from opendas.schema.declarations import PUBLISHED_LIST, Invariant, PublishedFile
from opendas.schema.product import Product
from opendas.schema.provenance import Domain, Provenance
from opendas.topdown.stages import check_stages
from opendas.version import __version__

__all__ = ["BorrowedRun", "borrow", "borrow_together", "estimate_borrowed"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class BorrowedRun:
    """A run that has its measurements from a published file.

    Parameters
    ----------
    run : Run
        On the file's blocks and hierarchy, with the budget that its variances come from.
    tree : NoisyTree
    constraints : ConstraintTable
    listing : str
        Digests and paths of the files that were read.
    zips : tuple of Path
        Official files that the geography comes from.
    """

    run: Run
    tree: NoisyTree = field(repr=False)
    constraints: ConstraintTable = field(repr=False)
    listing: str = field(repr=False)
    zips: tuple[Path, ...] = ()


def borrow(
    path: Path,
    file: BureauFile,
    *,
    estimator: str = "topdown",
    frame: Sequence[Path] = (),
    budget: StatedBudget | None = None,
) -> BorrowedRun:
    """Return the run that a file of noisy measurements of the Bureau's layout describes.

    Parameters
    ----------
    path : Path
        Folder with ``State.parquet`` and so on.
    file : BureauFile
        What it holds, with totals that it leaves out.
    estimator : str
    frame : sequence of Path
        Public geography: official redistricting zips, of which the headers are read, or one
        ``geography/<product>.parquet`` of a release. Without it nothing is known of places and districts.
    budget : StatedBudget, optional
        The budget that the file was measured with. By default the one that its variances tell.

    Raises
    ------
    ConfigError
        If the estimator cannot keep what the file holds exactly.
    FormatError, GeographyError, DataError
        If the file is not whole, or contradicts itself, the totals or the geography.
    """
    tree = file.tree()
    product = _held(tree)
    known = _known_frame(tree, product, frame)
    spine = _official(tree.spine, known)
    spec, spine = implied_budget(product, spine, tree.levels, budget)
    constraints = bound_table(product, known, spine, _exact(tree, product, spine))
    _check_bounds(tree, constraints)
    check_feasible(product, spine, constraints)
    listing, digest = list_of_files(path, _files(file))
    published = PublishedFile(path.resolve().name, listing.count("\n"), digest)
    resolved = _resolved(product, file.product, spec, known, spine, estimator, published)
    run = Run(path, resolved).on_frame(known, spine)
    for rules, level in zip(run.rules(constraints), constraints.levels, strict=True):
        check_stages(rules, level, product.workload)
    zips = tuple(one for one in frame if one.suffix.lower() == ".zip")
    return BorrowedRun(run, tree, constraints, listing, zips)


def borrow_together(
    paths: Sequence[Path],
    *,
    estimator: str = "topdown",
    frame: Sequence[Path] = (),
    state: str | None = None,
    totals: Path | None = None,
    budgets: Sequence[str] = (),
) -> tuple[BorrowedRun, ...]:
    """Return the runs of several files of one census: persons and units of the same blocks.

    Parameters
    ----------
    paths, estimator, frame, state
        As for :func:`borrow`.
    totals : Path, optional
        Published table or redistricting zip.
    budgets : sequence of str
        Presets, or run files, one for a product at most.

    Raises
    ------
    ConfigError
        If a product is there twice, or a budget is of none of the products.
    FormatError
        If the files are of different blocks, or differ about their housing units, which both hold exactly.
    """
    stated = dict(map(_stated, budgets))
    public = None if totals is None else read_public_totals(totals)
    found: dict[str, BorrowedRun] = {}
    for path in paths:
        file = _opened(path, state, public)
        name = file.product.name
        if name in found:
            raise ConfigError(
                f"{path}: measurements of {name} are there twice; files of two censuses, or of two vintages, "
                "are estimated one at a time."
            )
        found[name] = borrow(path, file, estimator=estimator, frame=frame, budget=stated.pop(name, None))
        _check_alike(found[name].run, next(iter(found.values())).run)
    if stated:
        raise ConfigError(f"--budget: of {', '.join(stated)}, and the files are of {', '.join(found)}.")
    return tuple(found.values())


def _stated(text: str) -> tuple[str, StatedBudget]:
    """Return a budget that a user names, and the product that it is for."""
    if text in preset_names():
        product = load_product(preset(text).product)
        return product.name, StatedBudget.of_preset(text, product)
    if not Path(text).is_file():
        raise ConfigError(
            f"--budget {text}: neither a preset nor a run file; the presets are {', '.join(preset_names())}."
        )
    run = load(text, need_input=False)
    budget = run.budget
    return run.product.name, StatedBudget(Path(text).name, budget.total, budget.geolevels, budget.queries)


def _check_alike(run: Run, first: Run) -> None:
    """Refuse files of other blocks, or that differ about what both hold exactly."""
    one, other = run.frame, first.frame
    names = f"{run.path.name} and {first.path.name}"
    if not np.array_equal(one.geocodes, other.geocodes):
        codes = np.setxor1d(one.geocodes, other.geocodes).tolist()
        code = codes[0].decode()
        raise FormatError(f"{names} are of different blocks, for instance {code}: files of two censuses.")
    units = [each.units["hu"] for each in (one, other) if "hu" in each.units]
    differing = np.flatnonzero(units[0] != units[-1]) if units else np.zeros(0, dtype=np.int64)
    if len(differing):
        code = one.geocodes[differing[0]].decode()
        raise FormatError(
            f"{names} differ about the housing units of {len(differing):,} blocks, for instance {code}, and "
            "both hold them exactly: files of two censuses, or of two vintages."
        )


def _opened(path: Path, state: str | None, totals: PublicTotals | None) -> BureauFile:
    """Open a file of a product that is estimated from files."""
    if not is_bureau_folder(path):
        raise ConfigError(
            f"{path}: no noisy measurement file of the Bureau's layout: a folder with State.parquet, "
            "County.parquet and so on. Measurements of a run of one's own are estimated by opendas estimate "
            "RUN.toml --out OUT."
        )
    file = BureauFile.open(path, state, totals)
    if file.product.layout not in ("persons", "units"):
        raise ConfigError(
            f"{path}: measurements of {file.product.name}; microdata are made of pl94-persons and "
            "pl94-units. opendas interval answers questions about others."
        )
    return file


def _held(tree: NoisyTree) -> Product:
    """Return the product with the invariants of the file, those that parts of states hold together too."""
    joint = [
        Invariant("total", name)
        for name, held in zip(tree.spine.names, tree.constraints.levels, strict=True)
        if held.joint is not None
    ]
    return replace(tree.product, invariants=(*tree.product.invariants, *joint))


def _known_frame(tree: NoisyTree, product: Product, paths: Sequence[Path]) -> Frame:
    """Return the file's blocks with the areas that public geography gives them, and their units."""
    frame = replace(tree.frame, units=_units(tree, product))
    tables = [path for path in paths if path.suffix.lower() != ".zip"]
    if not paths:
        return frame
    if tables and len(paths) > 1:
        raise ConfigError(f"--frame {tables[0]}: one table, or official zips, one a state.")
    if not tables:
        return with_headers(frame, paths)
    other = read_frame(tables[0])
    place = np.minimum(np.searchsorted(other.geocodes, frame.geocodes), len(other) - 1)
    lost = other.geocodes[place] != frame.geocodes
    if lost.any():
        raise FormatError(
            f"{tables[0].name}: block {frame.geocodes[lost][0].decode()} was measured and is not in it, nor "
            f"are {int(lost.sum()) - 1:,} others of {len(frame):,}: this is the geography of another census, "
            "or of other states."
        )
    entities = {name: codes[place] for name, codes in other.entities.items()}
    return replace(frame, entities=entities, names=other.names, functional_status=other.functional_status)


def _units(tree: NoisyTree, product: Product) -> dict[str, Ints]:
    """Return the public unit counts of the blocks that the file's bounds tell.

    Raises
    ------
    FormatError
        If bounds are missing, or are none of a whole number of units.
    """
    leaf, order = tree.constraints.levels[-1], tree.spine.leaf_order
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
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
                "for each of its units (hhgq_total_lb_con, hhgq_total_ub_con). Without these bounds nobody "
                "knows where there are housing units and group quarters."
            )
        units[bound.column] = count[place]
    return units


def _official(spine: Spine, frame: Frame) -> Spine:
    """Return the spine with official codes where geounits are official, and the parts of states told apart.

    Raises
    ------
    FormatError
        If parts of one state do not lie side by side: several states with American Indian areas.
    """
    levels = []
    for number, level in enumerate(spine.levels):
        first = spine.leaf_order[spine.leaf_starts(number)[:-1]]
        if level.official:
            levels.append(replace(level, geocodes=frame.codes(level.name)[first]))
            continue
        if level.name == "state":
            states = frame.codes("state")[first]
            whole = np.cumsum(np.append(False, states[1:] != states[:-1])).astype(np.int64)
            if int(whole.max()) + 1 != len(np.unique(states)):
                raise FormatError(
                    "State.parquet: the parts of states with American Indian areas are apart. Estimate one "
                    "state at a time, with --state."
                )
            level = replace(level, whole=whole)
        levels.append(level)
    return replace(spine, levels=tuple(levels))


def _exact(tree: NoisyTree, product: Product, spine: Spine) -> dict[str, Ints]:
    """Return the exact answers of each invariant at its geolevel."""
    found = {}
    for query, number in invariant_geolevels(product, spine).items():
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
                "%s: %d bounds of the file are narrower than blocks and exact totals say, and are not used.",
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


def estimate_borrowed(borrowed: BorrowedRun, out: Path, options: RunOptions) -> None:
    """Take published measurements into an output folder, and estimate from them.

    Raises
    ------
    ConfigError
        If the product was estimated there already, and it is not to be resumed.
    PrivacyError
        If the folder holds other measurements of the product.
    FormatError
        If an answer is missing or cut off: then nothing of it stays.
    """
    _take(borrowed, out, options)
    estimate(borrowed.run, out, options)


def _take(borrowed: BorrowedRun, out: Path, options: RunOptions) -> None:
    """Write measurements and public facts as a run that measured them would have."""
    run, name = borrowed.run, borrowed.run.product.name
    published = run.resolved.published
    assert published is not None
    with (
        Workspace(out, options.ledger, group_writable=options.group_writable) as space,
        open_act(space, name, "estimate", options, options.workers) as act,
    ):
        if act.earlier is not None:
            if (act.earlier.input_tag, act.earlier.plan_digest) != (published.sha256, run.plan.digest()):
                raise PrivacyError(
                    f"{out} holds other measurements of {name}. Choose another output folder: a release "
                    "says of what it was made."
                )
            return
        protection = ProtectionMap.of(run.plan, run.frame, borrowed.constraints)
        protection.check()
        folder = space.release / "measurements" / name
        written = (space.release / "geography" / f"{name}.parquet", space.release / "run" / f"{name}.toml")
        try:
            write_full(folder, run.plan, _draws(borrowed), partial(_reading, act.tell))
            write_spine(folder / "spine.parquet", run.spine)
            write_constraints(folder / "constraints.parquet", run.product, run.spine, borrowed.constraints)
            write_atomic(folder / PUBLISHED_LIST, borrowed.listing.encode())
            write_frame(written[0], replace(run.frame, functional_status={}), run.product)
            _write_areas(borrowed, official_areas_path(space.release, name))
            write_atomic(written[1], released_toml(run.resolved, run.budget).encode())
        except BaseException:
            remove_tree(folder)
            for path in (*written, official_areas_path(space.release, name)):
                remove_file(path)
            raise
        act.clock.lap("read measurements")
        space.save_state(
            RunState(
                run_id=published.sha256[:32],
                product=name,
                version=__version__,
                plan_digest=run.plan.digest(),
                estimation_digest=run.estimation_digest(),
                input_tag=published.sha256,
                key_commitment="",
                seed=None,
                phase="measured",
                result={
                    "stamps": [],
                    "declared": [],
                    "domain": run.resolved.domain.to_dict(),
                    "measurements": "full",
                },
            )
        )


def _reading(tell: Progress, _: str, done: int, total: int) -> None:
    """Tell of files that are written as of files that are read: one cannot be had without the other."""
    tell("reading", done, total)


def _draws(borrowed: BorrowedRun) -> Draw:
    """Return what stands in place of drawing: answers of consecutive geounits, read."""
    tree, plan = borrowed.tree, borrowed.run.plan

    def draw(number: int, step: int) -> Iterator[tuple[int, int, list[Ints]]]:
        names = [query.name for query in tree.levels[number].queries]
        order = [names.index(planned.query.name) if names else -1 for planned in plan.levels[number].queries]
        size = len(plan.spine.levels[number])
        for start in range(0, size, step):
            stop = min(start + step, size)
            read = tree.full(number, start, stop - start) if names else []
            yield (
                start,
                stop,
                [
                    read[column]
                    if column >= 0
                    else np.zeros((stop - start, planned.query.size), dtype=np.int64)
                    for column, planned in zip(order, plan.levels[number].queries, strict=True)
                ],
            )

    return draw


def _write_areas(borrowed: BorrowedRun, path: Path) -> None:
    """Write the official areas beside the measured blocks, where an official file lists them."""
    if not borrowed.zips:
        return
    readers = {official_reader(one) for one in borrowed.zips}
    if len(readers) > 1:
        raise ConfigError("--frame: these official files are of two censuses; give those of one.")
    spec = ReaderSpec(readers.pop(), borrowed.zips, borrowed.run.product)
    areas = official_areas(spec, borrowed.run.frame)
    if areas is not None:
        write_official_areas(path, areas)
