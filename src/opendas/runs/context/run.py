"""A run: the one place where a run file becomes objects."""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from opendas.budget.allocation import Budget, Contribution
from opendas.budget.resolve import resolve_budget
from opendas.constraints.table import ConstraintTable
from opendas.custody.account import PLAN
from opendas.custody.books import known_books
from opendas.custody.stamps import DOMAIN_FROM_RECORDS
from opendas.errors import ConfigError, FormatError, PrivacyError
from opendas.files.release_folder import ReleasedProduct, is_estimated, tie_to
from opendas.geography.bypass import LARGEST_FAMILY, bypass_general, bypass_only_children
from opendas.geography.frame import Frame
from opendas.geography.recipe import build_spine
from opendas.geography.spine import Spine
from opendas.gls.model import TreeModel
from opendas.intervals.expected_margins import MOST_CELLS
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.exact import format_fraction
from opendas.readers.input.spec import InputData, MemoryTable, Reader
from opendas.readers.registry import make_reader
from opendas.runs.config.load import load_run_file, parse_document
from opendas.runs.config.model import BudgetSection, RunFile, RunSection
from opendas.runs.config.product_file import declare_product
from opendas.runs.config.released import read_released, released_toml
from opendas.runs.config.resolve import Resolved, resolve
from opendas.runs.context.account import note_reading, tagger_of
from opendas.runs.context.machine import check_cells
from opendas.sampling.mechanisms import find_mechanism, is_stated
from opendas.schema.product import Product
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import BLOCK_BY_BLOCK, OWN_ESTIMATORS, WHOLE_TREE, StageRules

if TYPE_CHECKING:
    from opendas.parts import Origin
    from opendas.topdown.estimators import RunEstimator
    from opendas.topdown.family_data import Estimator


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run file, understood."""

    path: Path  # the run file
    resolved: Resolved  # product, reader, geography, budget and rules

    def __repr__(self) -> str:
        return f"Run({', '.join(f'{name}={value}' for name, value in self._summary)})"

    def _repr_html_(self) -> str:
        from opendas.tables.frames import html_table

        return html_table(f"Run {self.path.name}", ("", ""), self._summary)

    @property
    def _summary(self) -> tuple[tuple[str, str], ...]:
        """What the run is, in a few words and without opening anything."""
        resolved = self.resolved
        loss = f"{resolved.mechanism.loss_name} {format_fraction(self._whole_loss())}"
        return (
            ("product", resolved.product.name),
            ("reader", resolved.reader.reader),
            ("levels", " > ".join(resolved.levels)),
            ("loss", f"{loss}, {resolved.mechanism.value}, {resolved.neighbours.value}"),
            ("estimator", resolved.estimator),
        )

    @property
    def product(self) -> Product:
        """What is counted, asked and held."""
        return self.resolved.product

    @property
    def domain_stamps(self) -> tuple[str, ...]:
        """What stamps the run because of where its domain comes from, and what it is tied to."""
        own = (DOMAIN_FROM_RECORDS,) if self.resolved.domain.from_records else ()
        return own if self.product.tied is None else tuple(dict.fromkeys((*own, *self.product.tied.stamps)))

    @cached_property
    def reader(self) -> Reader:
        """The reader of the input. What its ``read`` gives is confidential."""
        return make_reader(self.resolved.reader)

    @cached_property
    def frame(self) -> Frame:
        """The public frame of leaves."""
        return self.reader.frame()[0]

    @cached_property
    def spine(self) -> Spine:
        """The spine that measurements are taken on."""
        return build_spine(self.frame, self.resolved.recipe, self.bypass)

    @cached_property
    def budget(self) -> Budget:
        """The exact budget on the levels of the spine; block-by-block gives all of it to the leaves."""
        resolved, spec, levels = self.resolved, self.resolved.budget, self.resolved.levels
        if resolved.estimator == BLOCK_BY_BLOCK:
            shares = {name: Fraction(int(name == levels[-1])) for name in levels}
            spec = replace(spec, geolevels=shares, normalise=False)
        budget = resolve_budget(spec, levels, self.product.workload.canonical, resolved.stand_ins)
        bound = resolved.reader.contribution
        return replace(budget, contribution=Contribution.of(bound, self.product, levels[-1]))

    @cached_property
    def plan(self) -> MeasurementPlan:
        """What is asked of every geounit, with what noise."""
        check_cells(self.product)
        return MeasurementPlan(self.product, self.spine, self.budget)

    @cached_property
    def protection(self) -> ProtectionMap:
        """What invariants, bounds and structural zeros leave protected, whatever the invariants' values are.

        Raises `PrivacyError` if they leave nothing.
        """
        found = ProtectionMap.of(self.plan, self.frame)
        found.check()
        return found

    @cached_property
    def companion(self) -> Run | None:
        """The run of the product's second histogram, which comes first; None where there is none."""
        resolved = self.resolved.companion
        if resolved is None:
            return None
        found = Run(self.path, resolved)
        return found.reading_records() if self.resolved.reader.plan_from_records else found

    def check_alone(self, command: str) -> None:
        """Refuse a product with a companion: the run has two budgets, of which `command` would move one."""
        if self.product.companion is not None:
            raise ConfigError(
                f"opendas {command} moves the budget of one histogram, and {self.product.name} has a second "
                f"one, {self.product.companion.name}, that shares its [budget]. Choose a preset, or move "
                "the shares of both in opendas explore."
            )

    def check_algebra(self, command: str) -> None:
        """Refuse a product of many cells, whose query groups `command` would work out all together."""
        cells = self.product.schema.size
        if cells > MOST_CELLS:
            raise ConfigError(
                f"opendas {command} works out errors of all query groups together, of at most {MOST_CELLS:,} "
                f"cells; {self.product.name} has {cells:,}. opendas plan --full and opendas explore give "
                "those of its small query groups one by one; opendas allocate without --after-least-squares "
                "allocates its budget."
            )

    def tied_to(self, release: Path) -> Run:
        """Return the run tied to what ``release/`` holds of its companion, if that is there already."""
        tie = self.product.tie
        if tie is None or not is_estimated(release, tie.product):
            return self
        tie = tie_to(release, self.product, self.resolved.geolevels)
        return self.changed(product=replace(self.product, tie=tie), tied=release)

    def on_frame(self, frame: Frame, spine: Spine | None = None) -> Run:
        """Return the run on a frame, and perhaps a spine, that were read already."""
        found = Run(self.path, self.resolved)
        found.__dict__["frame"] = frame
        if spine is not None:
            found.__dict__["spine"] = spine
        return found

    def with_budget(self, budget: Budget) -> Run:
        """Return the run on its frame and spine with another budget."""
        found = self.on_frame(self.frame, self.spine)
        found.__dict__["budget"] = budget
        return found

    def reading_records(self) -> Run:
        """Return the run with leave to open its records for planning too, where its frame is from them."""
        return self.changed(reader=replace(self.resolved.reader, plan_from_records=True))

    @property
    def fits_whole_tree(self) -> bool:
        """Whether the estimator fits all geolevels together."""
        return self.resolved.estimator in WHOLE_TREE

    def needs_records(self) -> bool:
        """Whether planning has to open the confidential records, since the frame comes from them."""
        try:
            _ = self.frame
        except PrivacyError:
            return True
        return False

    @property
    def input_files(self) -> tuple[Path | str, ...]:
        """Where the records are read from; a table in memory is nowhere."""
        spec = self.resolved.reader
        local = (each for each in (*spec.paths, *spec.unit_records) if isinstance(each, Path))
        return (*local, *map(str, spec.remote.paths))

    def changed(self, **parts: Any) -> Run:
        """Return the run with parts of what was resolved replaced, such as product or budget."""
        found = Run(self.path, replace(self.resolved, **parts))
        return found.on_frame(self.frame) if "frame" in self.__dict__ else found

    def with_(
        self,
        *,
        rho: str | int | Fraction | None = None,
        epsilon: str | int | Fraction | None = None,
        estimator: str | Estimator | None = None,
        plan: str | Mapping[str, Any] | None = None,
    ) -> Run:
        """Return the run with another loss, estimator or sharing of the budget, checked as a run file is.

        Parameters
        ----------
        rho, epsilon : exact number, optional
            The loss, under the run's mechanism.
        estimator : str or Estimator, optional
            A name, or an object as :class:`opendas.topdown.family_data.Estimator` describes it.
        plan : str or mapping, optional
            How the loss is shared out: the name of a preset, or those keys of ``[budget]`` that change
            (``geolevels``, ``queries``, ``source``, ...). The loss of the run stays.

        Raises
        ------
        ConfigError, BudgetError
            If the run file could not say so.
        """
        written = self.resolved.run_file
        if written is None:
            raise ConfigError("a run that was read from its release cannot be changed: load its run file.")
        given = written.budget
        budget = {name: getattr(given, name) for name in given.model_fields_set}
        if plan is not None:
            parts_of_plan = {"preset": plan} if isinstance(plan, str) else dict(plan)
            whole = "preset" in parts_of_plan
            gone = {"source"} | ({"preset", "geolevels", "queries", "normalise"} if whole else set())
            budget = {name: value for name, value in budget.items() if name not in gone}
            budget[self.resolved.mechanism.loss_name] = self._whole_loss()
            budget |= parts_of_plan
        budget |= {name: loss for name, loss in (("rho", rho), ("epsilon", epsilon)) if loss is not None}
        section, _ = parse_document(budget, BudgetSection, "with_", Path())
        parts: dict[str, Any] = {"budget": section}
        if estimator is not None:
            chosen = {"product": self.product, "estimator": estimator}
            checked, _ = parse_document(chosen, RunSection, "with_", Path())
            parts["run"] = written.run.model_copy(update={"estimator": checked.estimator})
        spec = self.resolved.reader
        resolved = resolve(written.model_copy(update=parts), strict=spec.strict)
        _ = (found := Run(self.path, resolved)).budget  # sums are checked now
        if "frame" in self.__dict__:
            found = found.on_frame(self.frame)
        return found.reading_records() if spec.plan_from_records else found

    def _whole_loss(self) -> Fraction:
        """Return the loss of the run, that of the product's second histogram included."""
        return self.budget.total + (0 if self.companion is None else self.companion.budget.total)

    def bypass(self, spine: Spine) -> Spine:
        """Apply the bypass rule of the mechanism; a geounit with an invariant of its own is kept."""
        budget = self.budget
        shares = [budget.geolevels[name] for name in spine.names]
        if budget.mechanism.is_zcdp:
            return bypass_only_children(spine, shares)
        invariant = self.product.invariant_levels(spine).values()
        held = [level for level in invariant if level < len(shares) - 1]
        step = self.resolved.recipe.bypass
        most = LARGEST_FAMILY if step is None else step.largest_family
        return bypass_general(spine, shares, top=1 + max(held, default=0), largest_family=most)

    def model(self, constraints: ConstraintTable) -> TreeModel | None:
        """Return the model of the whole tree, where the estimator needs one.

        Raises `ConfigError` if bounds, structural zeros and recodes hang together so much that least squares
        over the whole tree is out of reach.
        """
        if not self.fits_whole_tree:
            return None
        return TreeModel.of_plan(self.plan, constraints)

    @cached_property
    def estimator(self) -> RunEstimator:
        """What fits a family.

        Raises `ConfigError` if another package's estimator is not installed, or cannot be loaded.
        """
        from opendas.topdown.estimators import find_estimator  # which loads the solvers

        return find_estimator(self.resolved.own_estimator or self.resolved.estimator)

    @property
    def parts(self) -> tuple[Origin, ...]:
        """Parts of the run that are not ours."""
        resolved, found = self.resolved, self.measuring_parts
        if resolved.own_estimator is None and resolved.estimator in OWN_ESTIMATORS:
            return found
        return found if self.estimator.origin is None else (*found, self.estimator.origin)

    @property
    def measuring_parts(self) -> tuple[Origin, ...]:
        """Those of them that decide what is measured: workloads and the mechanism."""
        word = self.resolved.mechanism.value
        return (*self.product.parts, *((find_mechanism(word)[1],) if is_stated(word) else ()))

    def rules(self, constraints: ConstraintTable) -> tuple[LevelRules, ...]:
        """Return how families at each geolevel are estimated."""
        resolved, product, levels = self.resolved, self.product, self.plan.levels
        passes = product.passes
        if self.fits_whole_tree:  # one pass, at the leaves as above
            passes = replace(passes, least_squares={"*": (("rest",),)})
        rules = []
        for number, level in enumerate(levels):
            named = level.geolevel in product.passes.geolevels
            stages = passes.for_geolevel(
                level.geolevel if named else resolved.stand_ins.get(level.geolevel, level.geolevel),
                level.measured,
                is_root=number == 0,
                is_leaf=number == len(levels) - 1,
            )
            if self.fits_whole_tree:  # one stage, too: later rounder passes keep earlier answers
                everything = (level.measured,) if level.measured else ()
                stages = ((everything, tuple(names for _, rounder in stages for names in rounder)),)
            *earlier, last = (
                StageRules(
                    least_squares,
                    tuple(
                        tuple((name, product.workload.group(name).row_of_cell) for name in names)
                        for names in rounder
                    ),
                )
                for least_squares, rounder in stages
            )
            rules.append(
                LevelRules(
                    level.geolevel,
                    constraints.bound_names,
                    constraints.bound_cells,
                    constraints.possible,
                    last.least_squares,
                    last.rounder,
                    float(resolved.slack),
                    resolved.milp,
                    tuple(earlier),
                    self.estimator.fits,
                )
            )
        return tuple(rules)

    def read(self, cache: Path | None = None) -> InputData:
        """Read the confidential input, every record of it, to compare with it.

        `cache`: folder for confidential scratch files, which the caller removes when the run is finished: a
        large histogram is put there and memory mapped.
        """
        spec = self.resolved.reader
        reader = self.reader if spec.contribution is None else make_reader(spec.counting_everything())
        return reader.read(cache)

    def estimation_digest(self) -> str:
        """Return the SHA-256 of the plan and of everything estimation adds to it."""
        resolved = self.resolved
        document = {
            "plan": self.plan.digest(),
            "estimator": resolved.estimator,
            "least_squares": sorted((k, v) for k, v in self.product.passes.least_squares.items()),
            "rounder": sorted((k, v) for k, v in self.product.passes.rounder.items()),
            "slack": str(resolved.slack),
            "milp": resolved.milp,
            "failsafe": resolved.failsafe,
            "invariants": [invariant.name for invariant in self.product.invariants],
            "bounds": [[b.name, b.lower, b.upper] for b in self.product.bounds],
            "domain": resolved.domain.to_dict(),
        }
        if self.product.linear:
            document["linear"] = [one.to_dict() for one in self.product.linear]
        if self.parts:
            document["parts"] = [part.to_dict() for part in self.parts]
        tie = self.product.tied
        if self.product.companion is not None and self.product.tie is not None:
            # its microdata are the run's own: measured first and tied later is the same run
            tie = replace(self.product.tie, microdata="", acts=(), bounds=(), impossible=())
        if tie is not None:
            document["tie"] = tie.to_dict()
        if self.product.prior is not None:
            document["prior"] = self.product.prior.to_dict()
        if self.product.passes.earlier:
            document["earlier"] = [
                [sorted(stage.least_squares.items()), sorted(stage.rounder.items())]
                for stage in self.product.passes.earlier
            ]
        if resolved.reader.contribution is not None:
            document["contribution"] = resolved.reader.contribution.to_dict()
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def load(
    path: str | Path, *, strict: bool = False, need_input: bool = True, read_records: bool = False
) -> Run:
    """Load a run file.

    Parameters
    ----------
    path : path of a TOML run file
    strict : bool
        A disagreement of the input with a published summary record is an error rather than a warning.
    need_input : bool
        False to estimate from measurements: the input's files may then be absent.
    read_records : bool
        Planning may open the confidential records too, where the frame comes from them. A book that knows
        them has it entered.

    Raises
    ------
    ConfigError
        Naming file, line, field and rule; everything wrong comes together.
    """
    run = Run(Path(path), resolve(load_run_file(path), strict=strict, need_input=need_input))
    if not read_records:
        return run
    found = run.reading_records()
    if known_books() and run.needs_records():
        # What planning shows of them, which leaves are populated for instance, is published with a release on
        # that frame: it counts as a reading, and not as a choice by the truth.
        note_reading(PLAN, tagger_of(found), product=run.product.name)
    return found


def released_run(released: ReleasedProduct) -> Run:
    """Return the run that a release describes, on its frame and spine: no run file, no input, no key."""
    path = released.release / "run" / f"{released.name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(
            f"run/{path.name} cannot be read as text. Restore it from a copy of the release."
        ) from error
    run = Run(path, read_released(text, released.product))
    if released_toml(run.resolved, run.budget) != text:
        raise FormatError(
            f"run/{path.name} is not the text that this version writes for the plan in it: it was changed, "
            "or another version wrote it."
        )
    return run.on_frame(released.frame, released.spine)


def define(
    run: Mapping[str, Any] | str,
    *,
    input: Any = None,  # noqa: A002  # the section's name
    frame: Any = None,
    units: Any = None,
    product: Product | Mapping[str, Any] | None = None,
    folder: str | Path = ".",
) -> Run:
    """Define a run from objects: what a run file says, with tables that are in memory already.

    Parameters
    ----------
    run : mapping or str
        The sections of a run file, or its TOML text. ``[input] path``, ``[geography] frame`` and ``[input]
        units`` may be left out where a table is given below.
    input, frame, units : table, optional
        pandas, polars or pyarrow frames, or anything else that speaks the Arrow stream interface. Arrow data
        are shared, not copied. `units` is taken under the name ``units`` of the run file's section.
    product : Product or mapping, optional
        A product, or the sections of a product file. By default the one that the run names.
    folder : path
        What relative paths start from.

    Raises
    ------
    ConfigError
        Naming everything that is wrong.
    """
    document = copy.deepcopy(dict(tomllib.loads(run) if isinstance(run, str) else run))
    if product is not None:
        declared = declare_product(product) if isinstance(product, Mapping) else product
        document.setdefault("run", {})["product"] = declared
    if input is not None:
        document.setdefault("input", {})["path"] = _memory_table("input", input)
    if frame is not None:
        document.setdefault("geography", {})["frame"] = _memory_table("frame", frame)
    if units is not None:
        document.setdefault("input", {}).setdefault("units", {})["path"] = _memory_table("units", units)
    run_file, _ = parse_document(document, RunFile, "run", Path(folder).resolve())
    return Run(Path(folder) / "run", resolve(run_file))


def _memory_table(name: str, table: Any) -> MemoryTable:
    try:
        return MemoryTable(name, table if isinstance(table, pa.Table) else pa.table(table))
    except (TypeError, ValueError, OverflowError, pa.ArrowException):
        raise ConfigError(  # without the cause, which may quote a value
            f"{name}: a table must be a pandas, polars or pyarrow frame, or support the Arrow stream "
            "interface, with one name for each column, and text or numbers of 64 bits in it: no complex "
            "numbers, no objects."
        ) from None
