"""Product files: a user's own attributes, query groups and constraints, declared in TOML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
from pydantic import Field, StringConstraints

from opendas.errors import ConfigError, Finding, nearest
from opendas.parts import Origin
from opendas.readers.input.paths import is_file
from opendas.runs.config.lines import Path as KeyPath
from opendas.runs.config.lines import line_of
from opendas.runs.config.load import config_error, parse_document, parse_toml, read_text
from opendas.runs.config.model import (
    BUILT_IN_PRODUCTS,
    BudgetSection,
    DiscoverySection,
    Exact,
    Name,
    Origins,
    PassesSection,
    RunPath,
    Section,
    StageSection,
)
from opendas.schema.attributes import RESERVED_NAMES, Attribute, Recode, Schema, labels_named
from opendas.schema.declarations import (
    MAX_PEOPLE_PER_UNIT,
    Bound,
    Invariant,
    LinearConstraint,
    StructuralZero,
    Tie,
)
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.dhc_units import dhc_units, dhc_units_tenvacgq
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Passes, PassPlan, Product
from opendas.schema.provenance import PROVENANCE_WORDS, Provenance
from opendas.schema.query_groups import QueryGroup, Workload
from opendas.schema.workloads import OWN_WORKLOADS, find_workload, inside_or_out, partitions_of, recodes_of

# The tables of passes in run files and product files.


def pass_table(
    given: Mapping[str, Passes], workload: Workload, kind: str, *, last: bool = True
) -> dict[str, Passes]:
    """Check a table of passes and write its query groups in canonical form.

    - `given`, geolevel -> passes: keys are geolevels, ``root``, ``leaf`` or ``"*"``.
    - `kind`: ``"least_squares"`` or ``"rounder"``. Only the former knows the word ``rest``; the latter ends
      with a pass that rounds the cells themselves.
    - `last`: of the last stage; earlier ones leave the cells themselves open.
    """
    table: dict[str, Passes] = {}
    for geolevel, passes in given.items():
        if not passes or not all(passes):
            raise ConfigError(f"geolevel {geolevel!r}: give at least one pass, and a query group in each.")
        table[geolevel] = tuple(
            tuple(
                "rest" if name == "rest" and kind == "least_squares" else workload.canonical(name)
                for name in names
            )
            for names in passes
        )
        if kind == "rounder" and last and "detailed" not in table[geolevel][-1]:
            raise ConfigError(f'geolevel {geolevel!r}: the last pass of the rounder must include "detailed".')
        if kind == "rounder" and not last and any("detailed" in names for names in table[geolevel]):
            raise ConfigError(
                f'geolevel {geolevel!r}: an earlier stage rounds "detailed", which leaves nothing for the '
                "last stage. Remove it from the earlier one."
            )
    return table


def earlier_stages(given: Sequence[StageSection], workload: Workload) -> tuple[PassPlan, ...]:
    """Return the stages before the last one, checked as :func:`pass_table` checks.

    Raises `ConfigError` as :func:`pass_table`.
    """
    return tuple(
        PassPlan(
            pass_table(stage.least_squares or {}, workload, "least_squares"),
            pass_table(stage.rounder, workload, "rounder", last=False),
        )
        for stage in given
    )


_P = ParamSpec("_P")
_T = TypeVar("_T")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_BUILT_IN: Mapping[str, Callable[[], Product]] = {
    "pl94-persons": pl94_persons,
    "pl94-units": pl94_units,
    "dhc-persons": dhc_persons,
    "dhc-units": dhc_units,
    "dhc-units-tenvacgq": dhc_units_tenvacgq,
}
_TAKEN = (*BUILT_IN_PRODUCTS, "persons", "units", "tenvacgq")
MOST_PER_UNIT = 10**9
"""Records that a bound may speak of for one unit: with the counts of units, they stay within 64 bits."""

MOST_TIMES = 10**6
"""Largest coefficient, likewise."""

_Levels = Annotated[tuple[Name, ...], Field(min_length=1)]

DEFAULT_PASSES = PassPlan(
    least_squares={"root": (("rest",),), "leaf": (("rest",),), "*": (("total",), ("rest",))},
    rounder={"*": (("total",), ("detailed",))},
)
"""Root and leaf in one pass, the rest total first; rounding total first."""


class ProductSection(Section):
    """``[product]``."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    protected_unit: Name = "record"
    provenance: Origins | None = None
    discovery: DiscoverySection | None = None
    companion: RunPath | None = None


class RecodeSection(Section):
    """``[recodes.NAME]``: a partition of one attribute's levels; `others` is the group of those not named."""

    attribute: Name
    levels: Mapping[str, _Levels] = Field(min_length=1)
    others: Name | None = None


class WorkloadSection(Section):
    """``[workloads.NAME]``: query groups by a rule, or of listed ranges, with one name in a budget."""

    attribute: Name
    kind: Name | None = None
    ranges: tuple[_Levels, ...] = ()
    by: tuple[Name, ...] = ()
    weights: tuple[Exact, ...] = ()


class QueriesSection(Section):
    """``[queries]``."""

    groups: tuple[Name, ...] = ()


class InvariantSection(Section):
    """``[[invariants]]``."""

    query: Name
    geolevel: Name


class BoundSection(Section):
    """``[[bounds]]``."""

    query: Name
    cell: Name
    column: Name
    lower: Annotated[int, Field(ge=0, le=MOST_PER_UNIT)] = 0
    upper: Annotated[int, Field(ge=0, le=MOST_PER_UNIT)] = MAX_PEOPLE_PER_UNIT


class ConstraintSection(Section):
    """``[[constraints]]``: a sum of a query group's answers, each times a whole number, is bounded."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^@\n]+$")]
    query: Name
    coefficients: Mapping[str, Annotated[int, Field(ge=-MOST_TIMES, le=MOST_TIMES)]] = Field(min_length=1)
    at_most: Annotated[int, Field(ge=-MOST_PER_UNIT, le=MOST_PER_UNIT)] = 0
    column: Name | None = None


class TiedProductSection(Section):
    """``[tie]``: the product that a run may be tied to."""

    product: Name
    query: Name
    rows: Mapping[str, _Levels] = Field(default_factory=dict)
    columns: Mapping[str, Name] = Field(default_factory=dict)
    units: Mapping[str, Name] = Field(default_factory=dict)


class ProductFile(Section):
    """A product file."""

    product: ProductSection
    attributes: Mapping[str, _Levels] = Field(min_length=1)
    recodes: Mapping[str, RecodeSection] = Field(default_factory=dict)
    workloads: Mapping[str, WorkloadSection] = Field(default_factory=dict)
    queries: QueriesSection = QueriesSection()
    structural_zeros: tuple[Mapping[str, _Levels], ...] = ()
    invariants: tuple[InvariantSection, ...] = ()
    constraints: tuple[ConstraintSection, ...] = ()
    bounds: tuple[BoundSection, ...] = ()
    budget: BudgetSection | None = None
    passes: PassesSection | None = None
    tie: TiedProductSection | None = None


class _Checker:
    """Collects what is wrong with the parts of a product file."""

    def __init__(self, file: str, lines: dict[KeyPath, int]) -> None:
        self.file = file
        self.lines = lines
        self.findings: list[Finding] = []

    def refuse(self, where: KeyPath, rule: str) -> None:
        """Note that a key breaks a rule."""
        field = ".".join(str(part) for part in where)
        self.findings.append(Finding(self.file, line_of(self.lines, where), field, rule))

    def attempt(
        self, where: KeyPath, build: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T | None:
        """Return what `build` makes of its arguments, or note why it refuses them."""
        try:
            return build(*args, **kwargs)
        except ConfigError as error:
            self.refuse(where, str(error))
            return None

    def error(self) -> ConfigError:
        """Return one error that holds everything found so far."""
        return config_error(self.file, sorted(self.findings, key=lambda finding: finding.line or 0))

    def finish(self) -> None:
        """Stop here if anything is wrong."""
        if self.findings:
            raise self.error()


def load_product(name_or_path: str | Path | Product) -> Product:
    """Return a product by name, or from a product file.

    `name_or_path`: a built-in product, such as ``pl94-persons``, the path of a TOML file, or the product
    itself.
    """
    if isinstance(name_or_path, Product):
        return name_or_path
    name = str(name_or_path)
    if name in BUILT_IN_PRODUCTS:
        return _BUILT_IN[name]()
    path = Path(name_or_path)
    if not is_file(path):
        hint = nearest(path.name, BUILT_IN_PRODUCTS)
        raise ConfigError(f"[run] product: no built-in product and no product file {name!r}; {hint}")
    text = read_text(path, "product file")
    declared, lines = parse_toml(text, ProductFile, path.name, path.resolve().parent)
    return _product(declared, _Checker(path.name, lines))


def declare_product(document: Mapping[str, Any]) -> Product:
    """Return the product that a mapping in the form of a product file declares.

    Raises `ConfigError` as for :func:`load_product`.
    """
    declared, lines = parse_document(document, ProductFile, "product", Path())
    return _product(declared, _Checker("product", lines))


def _product(declared: ProductFile, check: _Checker) -> Product:
    name = declared.product.name
    if not _FOLDER_NAME.fullmatch(name):
        check.refuse(
            ("product", "name"),
            "a name has letters, digits, '-', '_' and '.', and begins with a letter or digit, since folders "
            "are named after it",
        )
    if name.lower() in _TAKEN:
        check.refuse(
            ("product", "name"), f"{name!r} is the name of a built-in product or layout; choose another"
        )
    workload = _workload(declared, check)
    if workload is None:
        raise check.error()
    workloads = _workloads(declared, workload, check)
    discovery = declared.product.discovery
    product = Product(
        name=name,
        schema=workload.schema,
        recodes=tuple(workload.recodes.values()),
        query_names=_query_names(declared, workload, workloads, check),
        invariants=_invariants(declared, workload, check),
        bounds=_bounds(declared, workload, check),
        linear=_linear(declared, workload, check),
        structural_zeros=_structural_zeros(declared, workload, check),
        protected_unit=declared.product.protected_unit,
        layout=name,
        passes=_passes(declared, workload, check),
        budget=None if declared.budget is None else _written(declared.budget),
        provenance=_provenance(declared, check),
        discovery=None if discovery is None else discovery.discovery,
        tie=_declared_tie(declared, workload, check),
        companion=_companion(declared, workload, check),
        workloads=workloads,
        parts=_outside_workloads(declared),
    )
    check.finish()
    if product.structural_zeros and not product.possible.any():
        check.refuse(("structural_zeros",), "together they forbid every cell of the schema")
    check.finish()
    return product


def _declared_tie(declared: ProductFile, workload: Workload, check: _Checker) -> Tie | None:
    given = declared.tie
    if given is None:
        return None
    query = check.attempt(("tie", "query"), workload.group, given.query)
    if query is None:
        return None
    labels = [query.row_label(row) for row in range(query.size)]
    named = (*given.rows, *given.columns)
    for label in sorted(set(named) ^ set(labels)) if named else ():
        rule = (
            f"no row {label!r}; {nearest(label, labels)}"
            if label in named
            else f"neither rows nor columns name {label!r}; add it to one of them"
        )
        check.refuse(("tie",), f"query {query.name!r}: {rule}")
    _check_units(given.units, workload, query, check)
    return Tie(
        given.product, query.name, rows=dict(given.rows), columns=dict(given.columns), units=dict(given.units)
    )


def _check_units(units: Mapping[str, str], workload: Workload, query: QueryGroup, check: _Checker) -> None:
    """Levels with units are of one attribute, each with all that the tie counts together with it."""
    if not units:
        return
    schema = workload.schema
    holds = [n for n, attribute in enumerate(schema.attributes) if set(units) & set(attribute.levels)]
    levels = schema.attributes[holds[0]].levels if holds else ()
    for label in units:
        if label not in levels:
            rule = f"no attribute has a level {label!r}"
            if holds:
                rule = (
                    f"{schema.attributes[holds[0]].name!r} has no level {label!r}; {nearest(label, levels)}"
                )
            check.refuse(("tie", "units"), rule)
    if len(holds) != 1 or not set(units) <= set(levels):
        return
    rows = np.moveaxis(query.row_of_cell.reshape(schema.shape), holds[0], 0).reshape(len(levels), -1)
    for number, label in enumerate(levels):
        together = [
            other for other, row in zip(levels, rows, strict=True) if np.array_equal(row, rows[number])
        ]
        if label in units and not set(together) <= set(units):
            missing = next(other for other in together if other not in units)
            check.refuse(
                ("tie", "units"),
                f"{label!r} has a column and {missing!r} has none, but the tie counts them together; give "
                f"{missing!r} a column, too",
            )


def _companion(declared: ProductFile, workload: Workload, check: _Checker) -> Product | None:
    """Return the second histogram, to which this product must be tied."""
    path = declared.product.companion
    if path is None:
        return None
    where = ("product", "companion")
    if str(path) not in BUILT_IN_PRODUCTS and not is_file(path):
        check.refuse(where, f"{path}: no such product file")
        return None
    found = load_product(path)
    if found.companion is not None:
        check.refuse(where, f"{found.name!r} has a companion of its own; a run has two histograms at most")
    if declared.tie is None or declared.tie.product != found.name:
        check.refuse(where, f"needs a [tie] with product = {found.name!r}, which says what both count")
    if found.protected_unit != declared.product.protected_unit:
        check.refuse(where, f"its protected unit is {found.protected_unit!r}; both need the same one")
    shared = sorted(set(found.workload.positions) & set(workload.positions))
    if shared:
        check.refuse(where, f"both have an attribute or recode {shared[0]!r}; rename one of them")
    return found


def _provenance(declared: ProductFile, check: _Checker) -> dict[str, Provenance]:
    """Return where the labels of each attribute come from; every attribute must be spoken of."""
    where, given = ("product", "provenance"), declared.product.provenance
    if given is None:
        check.refuse(
            where,
            f"required: where the labels of the attributes come from, one of {PROVENANCE_WORDS}; or one for "
            'each attribute, { age = "code-book", illness = "private" }',
        )
        return {}
    found = dict.fromkeys(declared.attributes, given) if isinstance(given, Provenance) else dict(given)
    for name in found.keys() - declared.attributes.keys():
        check.refuse((*where, name), f"no attribute {name!r}; {nearest(name, declared.attributes)}")
    for name in declared.attributes.keys() - found.keys():
        check.refuse(where, f"the attribute {name!r} is missing; give it one of {PROVENANCE_WORDS}")
    private = Provenance.PRIVATE in found.values()
    if private and declared.product.discovery is None:
        check.refuse(
            where,
            '"private" needs the act that found the labels: discovery = { act, rho, delta }, as '
            "opendas init table --rho writes it",
        )
    if declared.product.discovery is not None and not private:
        check.refuse(("product", "discovery"), 'remove it: no labels are declared "private"')
    return {name: found[name] for name in declared.attributes if name in found}


def _workload(declared: ProductFile, check: _Checker) -> Workload | None:
    attributes: dict[str, Attribute] = {}
    for name, levels in declared.attributes.items():
        attribute = check.attempt(("attributes", name), Attribute, name, levels)
        if attribute is not None:
            attributes[name] = attribute
    schema = check.attempt(("attributes",), Schema, tuple(attributes.values()))
    recodes = []
    for name, section in declared.recodes.items():
        recode = _recode(name, section, attributes, check)
        if recode is not None:
            recodes.append(recode)
    for name, given in declared.workloads.items():
        recodes += _partitions(name, given, declared, attributes, check)
    return None if check.findings or schema is None else Workload(schema, recodes)


def _partitions(
    name: str,
    given: WorkloadSection,
    declared: ProductFile,
    attributes: Mapping[str, Attribute],
    check: _Checker,
) -> Sequence[Recode]:
    """Return the recodes of a workload."""
    where = ("workloads", name)
    if name in declared.attributes or name in declared.recodes or name in RESERVED_NAMES:
        check.refuse(where, f"{name!r} is already an attribute, a recode or a reserved word")
        return ()
    if given.attribute not in attributes:
        check.refuse(
            (*where, "attribute"),
            f"no attribute {given.attribute!r}; {nearest(given.attribute, attributes)}",
        )
        return ()
    if (given.kind is None) == (not given.ranges):
        check.refuse(where, f"give either a kind ({', '.join(OWN_WORKLOADS)}) or ranges")
        return ()
    attribute = attributes[given.attribute]

    def recodes() -> Sequence[Recode]:
        if given.kind is not None:
            found = partitions_of(given.kind, len(attribute))
        else:
            order = attribute.levels
            found = [inside_or_out(labels_named(texts, order), order) for texts in given.ranges]
        return recodes_of(name, attribute, found)

    return check.attempt(where, recodes) or ()


def _workloads(
    declared: ProductFile, workload: Workload, check: _Checker
) -> dict[str, tuple[tuple[str, Fraction], ...]]:
    """Return the query groups of each workload, with their weights."""
    found = {}
    for name, given in declared.workloads.items():
        recodes = [each for each in workload.recodes if each.rpartition(" ")[0] == name]
        where = ("workloads", name, "by")
        queries = [
            check.attempt(where, workload.canonical, " * ".join((recode, *given.by))) for recode in recodes
        ]
        weights = given.weights or (Fraction(1),) * len(recodes)
        if len(weights) != len(recodes) or min(weights) <= 0:
            rule = f"expected {len(recodes)} positive numbers, one for each partition"
            check.refuse(("workloads", name, "weights"), rule)
            continue
        found[name] = tuple(
            (query, w) for query, w in zip(queries, weights, strict=True) if query is not None
        )
    return found


def _outside_workloads(declared: ProductFile) -> tuple[Origin, ...]:
    kinds = {given.kind for given in declared.workloads.values() if given.kind is not None}
    origins = (find_workload(kind)[1] for kind in sorted(kinds))
    return tuple(origin for origin in origins if origin is not None)


def _recode(
    name: str, section: RecodeSection, attributes: Mapping[str, Attribute], check: _Checker
) -> Recode | None:
    where = ("recodes", name)
    if name in attributes:
        check.refuse(where, f"{name!r} names both an attribute and a recode")
        return None
    if section.attribute not in attributes:
        hint = nearest(section.attribute, attributes)
        check.refuse((*where, "attribute"), f"no attribute {section.attribute!r}; {hint}")
        return None
    order = attributes[section.attribute].levels
    groups = tuple((label, labels_named(texts, order)) for label, texts in section.levels.items())
    if section.others is not None:
        named = {level for _, levels in groups for level in levels}
        left = tuple(level for level in order if level not in named)
        if not left or section.others in section.levels:
            rule = f"{section.others!r} is already a group in levels; choose another label"
            check.refuse((*where, "others"), rule if left else "every level has a group already; remove it")
            return None
        groups = (*groups, (section.others, left))
    recode = check.attempt(where, Recode, name, section.attribute, groups)
    if recode is not None:
        check.attempt((*where, "levels"), recode.group_of_level, attributes[section.attribute])
    return recode


def _query_names(
    declared: ProductFile,
    workload: Workload,
    workloads: Mapping[str, tuple[tuple[str, Fraction], ...]],
    check: _Checker,
) -> tuple[str, ...]:
    names = ["total"]
    for number, name in enumerate(declared.queries.groups):
        canonical = check.attempt(("queries", "groups", number), workload.canonical, name)
        if canonical is not None and canonical != "detailed":
            names.append(canonical)
    names += [query for members in workloads.values() for query, _ in members if query != "detailed"]
    return (*dict.fromkeys(names), "detailed")


def _invariants(declared: ProductFile, workload: Workload, check: _Checker) -> tuple[Invariant, ...]:
    found = []
    for number, section in enumerate(declared.invariants):
        canonical = check.attempt(("invariants", number, "query"), workload.canonical, section.query)
        if canonical is not None:
            found.append(Invariant(canonical, section.geolevel))
    names = [invariant.name for invariant in found]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        check.refuse(("invariants",), f"{name} is listed twice")
    return tuple(found)


def _bounds(declared: ProductFile, workload: Workload, check: _Checker) -> tuple[Bound, ...]:
    found = []
    for number, section in enumerate(declared.bounds):
        where: KeyPath = ("bounds", number)
        group = check.attempt((*where, "query"), workload.group, section.query)
        if group is None:
            continue
        cell = _label(group, section.cell, (*where, "cell"), check)
        if cell is None:
            continue
        if section.lower > section.upper:
            check.refuse((*where, "lower"), f"lower is greater than upper, which is {section.upper}")
            continue
        found.append(Bound(group.name, cell, section.column, section.lower, section.upper))
    return tuple(found)


def _label(group: QueryGroup, given: str, where: KeyPath, check: _Checker) -> str | None:
    """Return the label of a row of a query group as the group has it, or refuse it."""
    labels = [group.row_label(row) for row in range(group.size)]
    cell = given if given in labels else " * ".join(part.strip() for part in given.split("*"))
    if cell in labels:
        return cell
    check.refuse(where, f"query {group.name!r} has no cell {given!r}; {nearest(cell, labels)}")
    return None


def _linear(declared: ProductFile, workload: Workload, check: _Checker) -> tuple[LinearConstraint, ...]:
    found: list[LinearConstraint] = []
    for number, section in enumerate(declared.constraints):
        where: KeyPath = ("constraints", number)
        group = check.attempt((*where, "query"), workload.group, section.query)
        if group is None:
            continue
        times: dict[str, int] = {}
        for given, coefficient in section.coefficients.items():
            label = _label(group, given, (*where, "coefficients"), check)
            if label is not None:
                times[label] = coefficient
        if section.name in [one.name for one in found]:
            check.refuse((*where, "name"), f"{section.name!r} names two constraints")
        elif not any(section.coefficients.values()):
            check.refuse((*where, "coefficients"), "every coefficient is 0, so nothing is counted")
        else:
            column = section.column or ""
            found.append(LinearConstraint(section.name, group.name, times, section.at_most, column))
    return tuple(found)


def _structural_zeros(
    declared: ProductFile, workload: Workload, check: _Checker
) -> tuple[StructuralZero, ...]:
    """Return the zeros in levels of attributes; groups of a recode stand for their levels."""
    schema, zeros = workload.schema, []
    for number, given in enumerate(declared.structural_zeros):
        where: KeyPath = ("structural_zeros", number)
        if not given:
            check.refuse(where, "names no attribute, so it would forbid every cell")
        levels: dict[str, tuple[str, ...]] = {}
        for name, texts in given.items():
            if name not in workload.positions:
                hint = nearest(name, workload.positions)
                check.refuse((*where, name), f"no attribute or recode {name!r}; {hint}")
                continue
            attribute = schema.attributes[workload.positions[name]]
            recode = workload.recodes.get(name)
            alone = {level: (level,) for level in attribute.levels}
            groups = alone if recode is None else dict(recode.groups)
            labels = labels_named(texts, tuple(groups))
            unknown = [label for label in labels if label not in groups]
            for label in unknown:
                hint = nearest(label, groups)
                check.refuse((*where, name), f"{label!r} is not a level of {name!r}; {hint}")
            if unknown:
                continue
            chosen = {level for label in labels for level in groups[label]}
            before = levels.get(attribute.name, attribute.levels)
            levels[attribute.name] = tuple(level for level in before if level in chosen)
            if not levels[attribute.name]:
                check.refuse(
                    (*where, name),
                    f"this entry and the others here have no level of {attribute.name!r} in common",
                )
        zeros.append(StructuralZero(levels))
    return tuple(zeros)


def _passes(declared: ProductFile, workload: Workload, check: _Checker) -> PassPlan:
    section = declared.passes
    if section is None:
        return DEFAULT_PASSES
    for key in ("slack", "milp"):
        if key in section.model_fields_set:
            check.refuse(("passes", key), f"{key} is set in a run file, not in a product file")
    tables = {}
    for kind in ("least_squares", "rounder"):
        given, default = getattr(section, kind), getattr(DEFAULT_PASSES, kind)
        tables[kind] = default
        if given is not None:
            tables[kind] = check.attempt(("passes", kind), pass_table, given, workload, kind)
    earlier = check.attempt(("passes", "earlier"), earlier_stages, section.earlier or (), workload)
    return PassPlan(tables["least_squares"] or {}, tables["rounder"] or {}, earlier or ())


def _written(budget: BudgetSection) -> dict[str, object]:
    return {key: getattr(budget, key) for key in BudgetSection.model_fields if key in budget.model_fields_set}
