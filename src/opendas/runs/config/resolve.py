"""What a run file means: product, reader, budget and rules together, checked against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.constraints.table import bound_cells
from opendas.custody.folders import sha256_file
from opendas.custody.protected_units import unit_of_column
from opendas.errors import BudgetError, ConfigError, PrivacyError, nearest
from opendas.files.release_folder import release_path, tie_to
from opendas.files.storage.remote import RemoteAddress, RemoteInput
from opendas.geography.frame import ENTITY_CATEGORIES, LevelRule
from opendas.geography.recipe import Recipe, recipe_levels, stand_ins
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.readers.input.paths import expand_paths, is_file
from opendas.readers.input.spec import (
    FRAME_FROM_RECORDS,
    MemoryTable,
    ReaderSpec,
    Source,
    UnitsSpec,
    census_kind,
)
from opendas.runs.config.model import (
    BUILT_IN_PRODUCTS,
    CENSUS_READERS,
    BudgetSection,
    InputSection,
    PassesSection,
    RunFile,
)
from opendas.runs.config.product_file import earlier_stages, load_product, pass_table
from opendas.sampling.mechanisms import stated_mechanism
from opendas.schema.declarations import Invariant, PriorTable, PublishedFile, Tie
from opendas.schema.product import PassPlan, Product
from opendas.schema.provenance import PROVENANCE_WORDS, Discovery, Domain, Provenance
from opendas.topdown.family_data import Estimator
from opendas.topdown.model import BLOCK_BY_BLOCK, POSTERIOR, WHOLE_TREE

_OF_TABLES = ("pl94-persons", "pl94-units")
"""Products that readers of published redistricting data fill; census records fill all that are built in."""


def reader_spec(run_file: RunFile, product: Product, *, need_input: bool = True) -> ReaderSpec:
    """Return what the reader of a run is asked.

    `need_input`: False where nothing will be read, as in estimation: files may then be absent.
    """
    given, geography = run_file.input, run_file.geography
    census = given.reader in CENSUS_READERS
    problems = [*_misplaced_keys(run_file), *_unknown_names(given, product)]
    filled = BUILT_IN_PRODUCTS if given.reader == "cef" else _OF_TABLES
    if census and product.name not in filled:
        problems.append(
            f"[input] reader {given.reader} reads records of {', '.join(filled)}; for {product.name!r} use "
            f"reader records or histogram{', or cef' if product.name in BUILT_IN_PRODUCTS else ''}"
        )
    if problems:
        raise ConfigError(
            "\n  ".join([f"the run file has {len(problems)} problems:", *problems])
            if problems[1:]
            else problems[0]
        )
    remote = _remote(run_file)
    frame: Source | str | None = None if given.reader == "cef" else geography.frame
    if isinstance(frame, str) and frame != FRAME_FROM_RECORDS:
        frame = Path(frame)
    if need_input and isinstance(frame, Path) and not remote.frame and not is_file(frame):
        raise ConfigError(
            f"[geography] frame: {frame}: no such file. Paths are relative to the run file's folder."
        )
    if need_input and given.units is not None:
        for path in given.units.path if given.reader != "cef" else ():
            if isinstance(path, Path) and not is_file(path):
                raise ConfigError(f"[input] units: {path}: no such file.")
    further = _further_files(run_file) if need_input else {}
    paths = tuple(path for path in given.path if isinstance(path, Path))
    tables = tuple(path for path in given.path if isinstance(path, MemoryTable))
    units = None if given.units is None or given.reader == "cef" else given.units.path[0]
    return ReaderSpec(
        reader=given.reader,
        paths=expand_paths(paths, Path()) if need_input and paths else tables,
        product=product,
        root=geography.root,
        levels=tuple(LevelRule(level.name, level.prefix, level.column) for level in geography.levels),
        frame=frame,
        geocode=given.geocode,
        count=given.count,
        columns=dict(given.columns),
        constants=dict(given.constants),
        other=dict(given.other),
        bins=dict(given.bins),
        other_leaf=geography.other,
        units=None
        if given.units is None or units is None
        else UnitsSpec(
            units if isinstance(units, MemoryTable) else Path(units),
            given.units.geocode,
            dict(given.units.columns),
        ),
        unit_records=further.get("units", ()),
        block_files=further.get("frame", ()),
        block_assignment=tuple(geography.block_assignment),
        remote=remote,
        contribution=given.contribution,
    )


def _remote(run_file: RunFile) -> RemoteInput:
    """Return what of the input stands at addresses."""
    given, geography = run_file.input, run_file.geography
    paths = tuple(path for path in given.path if isinstance(path, RemoteAddress))
    if 0 < len(paths) < len(given.path):
        raise ConfigError(
            f"[input] path: {paths[0]} is an address, others are not. Give all as addresses, or none."
        )
    if given.reader == "cef":  # further files of it are expanded as paths, which addresses are not
        return RemoteInput(paths)
    frame = RemoteAddress.of(geography.frame) if isinstance(geography.frame, str) else None
    units = None if given.units is None else given.units.path[0]
    return RemoteInput(paths, frame, units if isinstance(units, RemoteAddress) else None)


def _further_files(run_file: RunFile) -> dict[str, tuple[Path, ...]]:
    """Return the files beside those of ``[input] path``, by their key."""
    given, geography = run_file.input, run_file.geography
    files = {}
    if geography.block_assignment:
        expand_paths(geography.block_assignment, Path(), "[geography] block_assignment")  # for its errors
    if given.reader == "cef" and isinstance(geography.frame, str):
        files["frame"] = expand_paths(geography.frame, Path(), "[geography] frame")
    if given.reader == "cef" and given.units is not None:
        paths = [path for path in given.units.path if not isinstance(path, MemoryTable)]
        files["units"] = expand_paths(paths, Path(), "[input] units")
    return files


def _misplaced_keys(run_file: RunFile) -> list[str]:
    """Return keys that the chosen reader does not take."""
    given, geography = run_file.input, run_file.geography
    reader = given.reader
    if reader not in CENSUS_READERS:
        found = [*_several_unit_files(given), *_unit_keys(given)]
        if not geography.levels:
            found.append(
                f"[geography] levels: required with reader {reader}, top first, the leaf last, for instance "
                'levels = [{ name = "region", prefix = 2 }, { name = "ward" }]'
            )
        if geography.frame is None:
            found.append(
                f"[geography] frame: required with reader {reader}: the public list of leaves, empty ones "
                f'included. frame = "{FRAME_FROM_RECORDS}" takes it from the input, which publishes which '
                "leaves are populated"
            )
        if geography.frame == FRAME_FROM_RECORDS and geography.other is not None:
            found.append(
                "[geography] other: remove it; a frame from the records already has all their leaves"
            )
        if "root" in geography.model_fields_set:
            found.append(
                f"[geography] root: for census readers only; with reader {reader} the first of levels is the "
                "root"
            )
        if reader == "records" and "count" in given.model_fields_set:
            found.append("[input] count: for reader histogram only; reader records counts each row once")
        return found
    found = [
        f"[geography] {key}: not with reader {reader}, whose leaves are census blocks"
        for key in (("levels", "other") if reader == "cef" else ("levels", "frame", "provenance", "other"))
        if key in geography.model_fields_set
    ]
    found += [
        f"[input] {key}: not with reader {reader}, whose layout is fixed"
        for key in ("geocode", "count", "columns", "constants", "other", "bins", *_UNIT_KEYS)
        if key in given.model_fields_set
    ]
    if reader == "cef":
        return found + _missing_cef_keys(run_file)
    found += _several_unit_files(given)
    if given.units is not None and reader not in ("ppmf", "mdf"):
        found.append(f"[input] units: not with reader {reader}, which derives the units")
    return found


_UNIT_KEYS = ("unit_id", "unit", "at_most", "distinct")


def _unit_keys(given: InputSection) -> list[str]:
    """Say what is missing to count at most so many records of a unit."""
    found = [key for key in _UNIT_KEYS if key in given.model_fields_set]
    if found and given.reader != "records":
        return [f"[input] {key}: for reader records only, where each row is a record" for key in found]
    if found and given.unit_id is None:
        return [f"[input] {found[0]}: needs unit_id, the column that names the unit of a record"]
    if found and given.at_most is None:
        return [
            "[input] unit_id: needs at_most, the largest number of records of a unit that are counted. "
            "Choose it without looking at these records, since it is published"
        ]
    return []


def _several_unit_files(given: InputSection) -> list[str]:
    several = given.units is not None and len(given.units.path) > 1
    return [f"[input] units: path: give one file; reader {given.reader} reads no more"] if several else []


def _missing_cef_keys(run_file: RunFile) -> list[str]:
    given, geography = run_file.input, run_file.geography
    found = []
    if geography.frame in (None, FRAME_FROM_RECORDS):
        found.append(
            "[geography] frame: required with reader cef: the GRF-C, a file, folder or pattern; the leaves "
            "are its blocks with a unit"
        )
    if given.units is not None:
        found += [
            f"[input] units: {key}: not with reader cef, whose layout is fixed"
            for key in ("geocode", "columns")
            if key in given.units.model_fields_set
        ]
    elif run_file.run.product not in ("pl94-units", "dhc-units"):
        found.append(
            "[input] units: required with reader cef: the unit records, for instance units = { path = "
            '"CEF20_UNIT_*.txt" }'
        )
    return found


def _unknown_names(given: InputSection, product: Product) -> list[str]:
    # The attributes of a second histogram are read beside the product's.
    read = (product,) if product.companion is None else (product, product.companion)
    known = {attribute.name: attribute for each in read for attribute in each.schema.attributes}
    tables: dict[str, Mapping[str, object]] = {
        "columns": given.columns,
        "constants": given.constants,
        "bins": given.bins,
    }
    found = [
        f"[input] {key}: {product.name} has no attribute {name!r}; {nearest(name, known)}"
        for key, table in tables.items()
        for name in table
        if name not in known
    ]
    found += [
        f"[input] {name} is in columns and in constants; keep one"
        for name in given.columns
        if name in given.constants
    ]
    for name, label in given.constants.items():
        if name in known and label not in known[name].levels:
            hint = nearest(label, known[name].levels)
            found.append(f"[input] constants: {label!r} is not a level of {name}; {hint}")
    return found


@dataclass(frozen=True, slots=True)
class Resolved:
    """A run, ready to be planned."""

    product: Product  # with the invariants that this run holds, each at a geolevel of the run, and its passes
    dropped: tuple[Invariant, ...]  # invariants of the product that this run does not hold
    reader: ReaderSpec
    geolevels: tuple[str, ...]  # official geolevels, top first, the leaf last
    spine_name: str | None  # where the spine has a name
    recipe: Recipe
    levels: tuple[str, ...]  # geolevels of the spine, top first: those of the recipe
    # For each level that the recipe adds, the official one whose query groups and passes it takes where it
    # has none of its own.
    stand_ins: Mapping[str, str]
    budget: BudgetSpec
    mechanism: Mechanism
    neighbours: Neighbours
    estimator: str  # ``topdown``, ``informed``, ``block-by-block`` or the name of another package's
    failsafe: bool  # relax the parent equality of an infeasible family, and report it
    slack: Fraction  # at least 0. Added to the optimum of equation (7.6) of the TopDown paper, in counts.
    milp: bool  # allow rounder passes that are not laminar
    domain: Domain  # where labels, levels, frame and units come from, as the files declare it
    # ``release/`` of the release that this run is tied to; None also where a run is read from its release.
    tied: Path | None = None
    companion: Resolved | None = None  # the run of the product's second histogram, which comes first
    # An estimator of the program that made the run, in place of one by name.
    own_estimator: Estimator | None = None
    run_file: RunFile | None = None  # what was resolved; None for a run that was read from its release
    # The measurements of others that this run estimates from, instead of measuring.
    published: PublishedFile | None = None

    def __repr__(self) -> str:
        return f"Resolved({self.product.name}, {self.mechanism}, {self.estimator}, {' > '.join(self.levels)})"


def resolve(run_file: RunFile, *, strict: bool = False, need_input: bool = True) -> Resolved:
    """Settle what a run file means.

    - `strict`: a disagreement of the input with a published summary record is an error.
    - `need_input`: False where the input will not be read: its files may then be absent.

    Raises `ConfigError` if something is missing or does not fit together; `PrivacyError` if the relation
    ``unbounded`` meets an invariant that fixes a total: there would be no neighbouring pair, and the
    guarantee would say nothing.
    """
    product = load_product(run_file.run.product)
    if product.companion is None:
        found = _resolved(run_file, product, strict=strict, need_input=need_input)
    else:
        found = _with_companion(run_file, product, product.companion, strict=strict, need_input=need_input)
    return replace(found, run_file=run_file)


def _with_companion(
    run_file: RunFile, product: Product, companion: Product, *, strict: bool, need_input: bool
) -> Resolved:
    """Settle what a run file means for a product and for its second histogram.

    Both read one input and have one spine. What names attributes, recodes or invariants belongs to the
    product that has them; ``[passes]`` are the product's, and ``[tie]`` is the companion's.
    """
    given, run = run_file.input, run_file.run
    if given.unit_id is not None:
        raise ConfigError(
            f"[input] unit_id: {product.name} has the companion {companion.name}, and units with several "
            "rows are allowed only for a product without a companion. Give a table with one row per unit, "
            "and remove unit_id."
        )
    second = set(companion.schema.names)
    dropped = {name for each in companion.invariants for name in (each.query, each.name)}
    parts = []
    for mine in (False, True):
        names: dict[str, object] = {
            key: {name: value for name, value in getattr(given, key).items() if name in second}
            for key in ("columns", "constants", "other", "bins")
            if mine and key in given.model_fields_set
        }
        drop = tuple(name for name in run.drop_invariants if (name in dropped) == mine)
        parts.append(
            {
                "input": given.model_copy(update=names),
                "run": run.model_copy(update={"drop_invariants": drop}),
            }
        )
    households = run_file.model_copy(update={**parts[0], "tie": None})
    units = run_file.model_copy(update={**parts[1], "passes": PassesSection(slack=run_file.passes.slack)})
    if run.estimator in WHOLE_TREE:
        raise ConfigError(
            f"[run] estimator {run.estimator}: {product.name} must agree with its companion "
            f"{companion.name}, and {run.estimator} cannot keep counts of an earlier release. Use estimator "
            "topdown."
        )
    found = _resolved(households, product, strict=strict, need_input=need_input)
    budget, theirs = _parts(found, companion)
    first = _resolved(units, companion, theirs, strict=strict, need_input=need_input)
    # Of the tie it is not known yet which release it is to: the companion's is made first.
    both = replace(found.product, tie=product.tie, companion=first.product)
    reader = replace(found.reader, product=both)
    return replace(found, product=both, reader=reader, budget=budget, companion=first)


def is_of_second(query: str, companion: Product) -> bool:
    """Return whether a query group in a budget is of the second histogram: all its attributes are."""
    return all(factor.strip() in companion.workload.positions for factor in query.split("*"))


def both_canonical(product: Product, companion: Product) -> Callable[[str], str]:
    """Return what names a query group of either histogram in the budget that they share."""

    def canonical(name: str) -> str:
        if not is_of_second(name, companion):
            return product.workload.canonical(name)
        found = companion.workload.canonical(name)
        return " * ".join(companion.schema.names) if found == "detailed" else found

    return canonical


def _parts(whole: Resolved, companion: Product) -> tuple[BudgetSpec, BudgetSpec]:
    """Share a budget out: query groups of the companion's attributes are the companion's, the others not."""
    spec, theirs = whole.budget, companion.workload
    budget = resolve_budget(spec, whole.levels, both_canonical(whole.product, companion), whole.stand_ins)
    names = dict.fromkeys(name for shares in budget.queries.values() for name in shares)
    own = {name: name for name in names if not is_of_second(name, companion)}
    second = {name: theirs.canonical(name) for name in names if name not in own}
    for product, queries in ((whole.product, own), (companion, second)):
        if not queries:
            raise BudgetError(
                f"[budget] gives nothing to {product.name}: what it gives to query groups of "
                f"{', '.join(companion.schema.names)} alone is for {companion.name}, and all else is for "
                f"{whole.product.name}. Give both a share in [budget.queries]."
            )
    one, other = (
        replace(spec.stating(part.total, part.geolevels, part.queries), preset=spec.preset)
        for part in (budget.part(own), budget.part(second))
    )
    return one, other


def _resolved(
    run_file: RunFile,
    product: Product,
    budget: BudgetSpec | None = None,
    *,
    strict: bool,
    need_input: bool,
) -> Resolved:
    """Settle what a run file means for one product; `budget` is its part of one that it shares."""
    reader = replace(reader_spec(run_file, product, need_input=need_input), strict=strict)
    geolevels = run_file.geolevels
    domain = declared_domain(run_file, product)
    reader = replace(reader, frame_is_public=domain.frame in (Provenance.CODE_BOOK, Provenance.PUBLIC))
    held, dropped = _invariants(run_file, product, geolevels)
    given = run_file.run.estimator
    _check_estimator(run_file, product, held, geolevels)
    recipe = _recipe(run_file, product)
    levels = recipe_levels(geolevels, recipe.steps)
    product = replace(product, invariants=held, passes=_passes(run_file, product, levels))
    if reader.contribution is not None:  # which is then what one neighbour replaces
        unit = run_file.input.unit or unit_of_column(reader.contribution.unit_id)
        product = replace(product, protected_unit=unit)
    product = replace(product, prior=_prior(run_file, product, (*reader.paths, *reader.unit_records)))
    tied = None if run_file.tie is None else release_path(run_file.tie.release)
    product = replace(product, tie=_resolve_tie(run_file, product, tied))
    mechanism = Mechanism(stated_mechanism(run_file.run.mechanism))
    neighbours = Neighbours(run_file.run.neighbours)
    return Resolved(
        product=product,
        dropped=dropped,
        reader=replace(reader, product=product),
        geolevels=geolevels,
        spine_name=run_file.geography.spine.name,
        recipe=recipe,
        levels=levels,
        stand_ins=stand_ins(geolevels, recipe.steps),
        budget=budget or budget_spec(run_file.budget, product, geolevels, mechanism, neighbours),
        mechanism=mechanism,
        neighbours=neighbours,
        estimator=given if isinstance(given, str) else given.name,
        own_estimator=None if isinstance(given, str) else given,
        failsafe=run_file.run.failsafe,
        slack=run_file.passes.slack,
        milp=run_file.passes.milp,
        domain=domain,
        tied=tied,
    )


def _resolve_tie(run_file: RunFile, product: Product, release: Path | None) -> Tie | None:
    """Return to which release a run is tied, by the digest of its microdata."""
    if release is None:
        return None
    tie = product.tie
    if tie is None:
        own = product.name in BUILT_IN_PRODUCTS
        raise ConfigError(
            f"[tie]: the product {product.name} does not say what must agree with another product. Remove "
            "[tie]" + ("." if own else ", or give the product file a [tie] with product and query.")
        )
    if run_file.run.estimator in WHOLE_TREE:
        raise ConfigError(
            f"[tie]: estimator {run_file.run.estimator} estimates all geolevels together and cannot keep "
            "counts of an earlier release. Use estimator topdown, or remove [tie]."
        )
    return tie_to(release, product, run_file.geolevels)


def _prior(run_file: RunFile, product: Product, confidential: Sequence[Source]) -> PriorTable | None:
    """Return which table the posterior starts from, by its digest; it is none of the confidential files."""
    given = run_file.prior
    if given is None:
        return None
    estimator = run_file.run.estimator
    if estimator != POSTERIOR:
        raise ConfigError(
            f"[prior]: estimator {getattr(estimator, 'name', estimator)} uses no prior table. Set estimator "
            "posterior, or remove [prior]."
        )
    if not given.path.is_file():
        raise ConfigError(
            f"[prior] path: {given.path}: no such file. Paths are relative to the run file's folder."
        )
    if any(
        isinstance(path, Path) and path.exists() and path.samefile(given.path)
        for path in (*run_file.input.path, *confidential)
    ):
        raise PrivacyError(
            f"[prior] path: {given.path} is an input of this run, which OpenDAS treats as confidential. Use "
            "a table that was published without the records of this run, such as one of an earlier census."
        )
    try:
        query = product.workload.canonical(given.query)
    except ConfigError as error:
        raise ConfigError(f"[prior] {error}") from None
    return PriorTable(given.name, query, sha256_file(given.path))


def declared_domain(run_file: RunFile, product: Product) -> Domain:
    """Return where the parts of a run's domain come from, as run file and product file declare it.

    The products of the census carry code books of their own, and public geography. For a user's own product
    every part is to be declared; a frame taken from the records says so itself.
    """
    geography, units = run_file.geography, run_file.input.units
    own = product.name not in BUILT_IN_PRODUCTS
    problems: list[str] = []
    if own and not product.provenance:
        problems.append(f"product {product.name!r}: provenance: required for its labels, {_CHOICES}")
    labels = product.provenance or dict.fromkeys(product.schema.names, Provenance.CODE_BOOK)
    levels, frame = _geography_provenance(run_file, problems, own=own)
    found = None
    if units is not None:
        found = units.provenance or Provenance.PUBLIC
        if own and units.provenance is None:
            problems.append(f"[input] units: provenance: required, {_CHOICES}")
    private = Provenance.PRIVATE in (levels, frame, found)
    if private and geography.discovery is None:
        problems.append(
            '[geography] discovery: "private" levels, frame or units need the act that found them: '
            "discovery = { act, rho, delta }, as opendas init table --rho writes it"
        )
    if geography.discovery is not None and not private:
        problems.append('[geography] discovery: remove it; no levels, frame or units are "private"')
    if problems:
        raise ConfigError("\n  ".join(problems))
    discoveries = _discoveries(run_file, product)
    if discoveries and run_file.input.unit_id is not None:
        raise PrivacyError(
            "[input] unit_id: the discovery of labels or leaves protects one row, but one "
            f"{run_file.input.unit_id} may have several, and the loss of all of them is not known. Give a "
            "table with one row per unit and repeat the discovery, or take labels from a code book and "
            "leaves from a public list."
        )
    return Domain(labels, levels, frame, found, discoveries)


_CHOICES = f"one of {PROVENANCE_WORDS}"
_PARTS = ("levels", "frame")


def _geography_provenance(
    run_file: RunFile, problems: list[str], *, own: bool
) -> tuple[Provenance, Provenance]:
    """Return where levels and frame come from; a frame from the records brings its levels, unless told."""
    given = run_file.geography.provenance
    parts = dict(given) if isinstance(given, Mapping) else dict.fromkeys(_PARTS, given)
    problems += [
        f"[geography] provenance: unknown key {name!r}; expected levels and frame"
        for name in sorted(parts.keys() - set(_PARTS))
    ]
    levels, frame = parts.get("levels"), parts.get("frame")
    if run_file.geography.frame == FRAME_FROM_RECORDS:
        if frame not in (None, Provenance.FROM_RECORDS):
            alone = f'{{ levels = "{levels}" }}' if levels else "without frame"
            problems.append(
                f'[geography] provenance: frame = "{FRAME_FROM_RECORDS}" is from-records, not {frame}; write '
                f"provenance {'= ' if levels else ''}{alone}"
            )
        levels, frame = levels or Provenance.FROM_RECORDS, Provenance.FROM_RECORDS
    if own:
        problems += [
            f"[geography] provenance: required; say where {words}, {_CHOICES}; or say it for each, "
            "{ levels = ..., frame = ... }"
            for words, of in (("the levels come from", levels), ("the frame comes from", frame))
            if of is None
        ]
    return levels or Provenance.PUBLIC, frame or Provenance.PUBLIC


def _discoveries(run_file: RunFile, product: Product) -> tuple[Discovery, ...]:
    """Return the acts that found private parts, each once."""
    section = run_file.geography.discovery
    labels, places = product.discovery, None if section is None else section.discovery
    if labels is not None and places is not None and labels.act == places.act and labels != places:
        raise ConfigError(
            "[geography] discovery: product file and run file name the same act with different rho or delta. "
            "Restore both as opendas init table --rho wrote them."
        )
    return tuple(dict.fromkeys(act for act in (labels, places) if act is not None))


def _recipe(run_file: RunFile, product: Product) -> Recipe:
    """Return how the spine is made; entities must be categories or official geolevels."""
    geography = run_file.geography
    known = (*ENTITY_CATEGORIES, *run_file.geolevels)
    for step in geography.spine.recipe_steps:
        for name in step.entities or ():
            if name not in known:
                raise ConfigError(
                    f"[geography] spine: the step {step.step} names unknown entities {name!r}; "
                    f"{nearest(name, known)}"
                )
    return Recipe(
        geography.spine.recipe_steps,
        geography.entities,
        facilities=census_kind(product) != "units",
    )


def _invariants(
    run_file: RunFile, product: Product, geolevels: Sequence[str]
) -> tuple[tuple[Invariant, ...], tuple[Invariant, ...]]:
    """Return the invariants this run holds, and those it drops."""
    drop = run_file.run.drop_invariants
    known = {name for invariant in product.invariants for name in (invariant.query, invariant.name)}
    for name in drop:
        if name not in known:
            hint = nearest(name, sorted(known))
            raise ConfigError(f"[run] drop_invariants: {product.name} has no invariant {name!r}; {hint}")
    dropped = tuple(item for item in product.invariants if item.query in drop or item.name in drop)
    held = tuple(
        _placed(invariant, product, geolevels) for invariant in product.invariants if invariant not in dropped
    )
    return held, dropped


def _placed(invariant: Invariant, product: Product, geolevels: Sequence[str]) -> Invariant:
    """Return an invariant at a geolevel of the run."""
    level = {"leaf": geolevels[-1], "root": geolevels[0]}.get(invariant.geolevel, invariant.geolevel)
    if level not in geolevels:
        raise ConfigError(
            f"{product.name} holds {invariant.query!r} invariant at geolevel {level!r}, which this run does "
            f"not have; it has {', '.join(geolevels)}. Change [geography], or add "
            f'"{invariant.query}" to drop_invariants in [run].'
        )
    return Invariant(invariant.query, level)


def _check_estimator(
    run_file: RunFile, product: Product, held: Sequence[Invariant], geolevels: Sequence[str]
) -> None:
    """Refuse an estimator that cannot hold what the run promises."""
    if run_file.run.estimator in WHOLE_TREE:
        _refuse_passes(run_file)
        _refuse_coupled(run_file.run.estimator, product)
    if run_file.run.estimator == POSTERIOR:
        refuse_posterior(run_file.run.mechanism, product, held, geolevels[-1])
    above = [invariant for invariant in held if invariant.geolevel != geolevels[-1]]
    if above and run_file.run.estimator == BLOCK_BY_BLOCK:
        queries = ", ".join(dict.fromkeys(f'"{invariant.query}"' for invariant in above))
        raise ConfigError(
            f"[run] estimator block-by-block estimates each {geolevels[-1]} on its own, and cannot keep "
            f"invariants of higher geolevels: {', '.join(invariant.name for invariant in above)}. Use "
            f"estimator topdown, or add {queries} to drop_invariants in [run]."
        )


def refuse_posterior(mechanism: str, product: Product, held: Sequence[Invariant], leaf: str) -> None:
    """Refuse what the sampler of the leaves could not keep, or has no likelihood for.

    `held`: those that hold, each at a geolevel of the run.
    """
    wrong = [f"invariant {one.name}" for one in held if one.geolevel == leaf]
    inside = bound_cells(product)
    twice = inside.sum(axis=0) > 1
    several = [bound.name for k, bound in enumerate(product.bounds) if inside[k, twice].any()]
    if several:
        wrong.append(f"bounds {', '.join(several)}, of which several count the same cells")
    wrong += [f"linear constraint {one.name}" for one in product.linear]
    if mechanism != Mechanism.DISCRETE_GAUSSIAN:
        wrong.append(f"mechanism {mechanism}: it needs discrete Gaussian noise")
    if wrong:
        raise ConfigError(
            f"estimator posterior distributes a parent's records among its children of geolevel {leaf}, "
            f"and cannot keep or use: {'; '.join(wrong)}. Use estimator informed, which has the same "
            f"estimates above geolevel {leaf}."
        )


def _refuse_passes(run_file: RunFile) -> None:
    """Refuse what estimators of the whole tree could not follow: they fit what is known at once."""
    section = run_file.passes
    given = [
        name
        for name, there in (
            ("least_squares", section.least_squares is not None),
            ("earlier", section.earlier is not None),
            ("slack", section.slack > 0),
        )
        if there
    ]
    if given:
        raise ConfigError(
            f"[passes] {' and '.join(given)}: estimator {run_file.run.estimator} fits all measurements in "
            f"one pass, so it cannot use {'this key' if len(given) == 1 else 'these keys'}. Remove "
            f"{'it' if len(given) == 1 else 'them'}, or use estimator topdown. [passes.rounder] may stay."
        )


def _refuse_coupled(estimator: str, product: Product) -> None:
    """Refuse, before a record is read, a product whose structural zeros alone couple too many cells."""
    from opendas.gls.blocks import LARGEST_BLOCK  # which loads compiled code
    from opendas.gls.cells import dense_axes
    from opendas.intervals.expected_margins import MOST_CELLS

    coupled = [product.schema.attributes[axis] for axis in dense_axes(product)]
    categories = math.prod(map(len, coupled))
    if categories > LARGEST_BLOCK:
        tie = "" if product.tie is None else f", with a [tie] to a release of {product.tie.product}"
        more = ""
        if product.schema.size > MOST_CELLS:
            more = (
                " For unbiased estimates of a table or query group, run with --measurements full and ask "
                "opendas interval."
            )
        raise ConfigError(
            f"[run] estimator {estimator}: structural zeros of {product.name} couple {categories:,} "
            f"categories of {' and '.join(attribute.name for attribute in coupled)}; least squares over the "
            f"whole tree takes at most {LARGEST_BLOCK:,}. Use estimator topdown{tie}.{more}"
        )


def _passes(run_file: RunFile, product: Product, geolevels: Sequence[str]) -> PassPlan:
    section = run_file.passes
    plan = product.passes
    for kind, given in (("least_squares", section.least_squares), ("rounder", section.rounder)):
        if given is None:
            continue
        _check_geolevels(f"[passes] {kind}", given, geolevels)
        try:
            table = pass_table(given, product.workload, kind)
        except ConfigError as error:
            raise ConfigError(f"[passes] {kind}: {error}") from None
        if kind == "rounder":
            plan = replace(plan, rounder=table)
        else:
            plan = replace(plan, least_squares=table)
    if section.earlier is not None:
        for stage in section.earlier:
            _check_geolevels("[passes] earlier", {**(stage.least_squares or {}), **stage.rounder}, geolevels)
        try:
            plan = replace(plan, earlier=earlier_stages(section.earlier, product.workload))
        except ConfigError as error:
            raise ConfigError(f"[passes] earlier: {error}") from None
    return plan


def _check_geolevels(where: str, given: Iterable[str], geolevels: Sequence[str]) -> None:
    known = (*geolevels, "root", "leaf", "*")
    for level in given:
        if level not in known:
            raise ConfigError(f"{where}: no geolevel {level!r} in this run; {nearest(level, known)}")


def budget_spec(
    section: BudgetSection,
    product: Product,
    geolevels: Sequence[str],
    mechanism: Mechanism,
    neighbours: Neighbours,
) -> BudgetSpec:
    """Put the run file's budget over the product's own, part by part."""
    parts: dict[str, object] = dict(product.budget or {})
    if section.model_fields_set & {"preset", "geolevels", "queries"}:
        # What the product says about its own shares is not true of other ones.
        parts.pop("source", None)
    parts.update({key: getattr(section, key) for key in section.model_fields_set})
    complete = all(parts.get(key) is not None for key in (mechanism.loss_name, "geolevels", "queries"))
    if "preset" not in parts and not complete and product.preset is not None:
        # Production's for the run's root: the national one, or the one for a state.
        national = geolevels[0] == "us"
        parts["preset"] = product.preset if national else product.preset.replace("us2020-", "pr2020-")
    if not parts:
        raise ConfigError(
            f"[budget] is missing: the product {product.name} has none of its own. Give "
            f"{mechanism.loss_name}, geolevels and [budget.queries], or a preset."
        )
    queries = parts.get("queries")
    if product.workloads and isinstance(queries, Mapping):
        parts["queries"] = {level: product.each_query(shares) for level, shares in queries.items()}
    parts["normalise"] = bool(parts.get("normalise"))
    return BudgetSpec(**parts, mechanism=mechanism, neighbours=neighbours)  # type: ignore[arg-type]
