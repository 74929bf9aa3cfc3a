"""Declarations of invariants, bounds, structural zeros, ties, prior tables, and units of several records.

An invariant is a statistic of the confidential data that is published exactly, by policy. Bounds and
structural zeros are public: they follow from the frame and from the definition of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, Self

from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours

MAX_PEOPLE_PER_UNIT = 99_999
"""Most people in one housing unit or facility (TopDown production; see docs/products)."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """The answers of one query group are published exactly at one geolevel.

    They then hold, as sums, at every geolevel above.
    """

    query: str  # query group
    geolevel: str  # where it holds; ``"leaf"`` is the lowest geolevel of the run, whatever its name

    @property
    def name(self) -> str:
        """Identifier, for instance ``"total@state"``."""
        return f"{self.query}@{self.geolevel}"


@dataclass(frozen=True, slots=True)
class EarlierAct:
    """What an earlier release of the same records cost; its loss adds to that of a run that is tied to it."""

    act: str  # names it: the digest of the microdata that came of it, or the name of a discovery
    product: str
    protected_unit: str
    mechanism: Mechanism
    neighbours: Neighbours
    loss: Fraction | None  # rho or epsilon; None where nothing bounds it
    delta: Fraction = Fraction(0)  # of an act that holds its loss but for a probability

    def to_dict(self) -> dict[str, str]:
        """Plain values, exact."""
        return {
            "act": self.act,
            "product": self.product,
            "protected_unit": self.protected_unit,
            "mechanism": self.mechanism.value,
            "neighbours": self.neighbours.value,
            self.mechanism.loss_name: "infinity" if self.loss is None else format_fraction(self.loss),
            "delta": format_fraction(self.delta),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        mechanism = Mechanism(record["mechanism"])
        loss = record[mechanism.loss_name]
        return cls(
            str(record["act"]),
            str(record["product"]),
            str(record["protected_unit"]),
            mechanism,
            Neighbours(record["neighbours"]),
            None if loss == "infinity" else parse_fraction(loss, mechanism.loss_name),
            parse_fraction(record["delta"], "delta"),
        )


PUBLISHED_LIST = "published.sha256"
"""Name of the list of files that a :class:`PublishedFile` speaks of, beside the measurements."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """Noisy measurements that others took and published: what a run has in place of an input."""

    name: str  # of its folder
    files: int  # of which it consists, as far as they were read
    # Of their list, a line ``<sha256>  <path>`` each, in the order of paths: as ``sha256sum`` writes it.
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "files": self.files, "sha256": self.sha256}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return cls(str(record["name"]), int(record["files"]), str(record["sha256"]))


@dataclass(frozen=True, slots=True)
class TiedBound:
    """A bound that an earlier release holds, so that it holds in one that agrees with it."""

    name: str
    column: str  # of public unit counts in the frame
    # lower, upper: as of :class:`Bound`.
    lower: int
    upper: int
    # Rows of the tie's query group that are counted: each from the first up to the second, left out.
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Tie:
    """The counts of a product agree with those of an earlier release, in every geounit."""

    product: str  # the earlier product
    query: str  # query group of which every row has its count from there, or from the frame
    # Digest of the earlier release's microdata, where a run is tied to one; see
    # :func:`opendas.files.release_folder.tie_to`. So are `acts`, `bounds`, `impossible` and `stamps`.
    microdata: str = ""
    acts: tuple[EarlierAct, ...] = ()  # what that release cost, with all that it is tied to itself
    bounds: tuple[TiedBound, ...] = ()
    # Rows of the query group, as in :class:`TiedBound`, that are structural zeros of the earlier product.
    impossible: tuple[tuple[int, int], ...] = ()
    # Label of a row -> labels of the earlier product's cells that it counts; cells that no row names are left
    # open. Without `rows` and `columns` the rows are that product's cells, in order.
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Label of a row -> column of public unit counts in the frame, for rows that the earlier product does not
    # count.
    columns: Mapping[str, str] = field(default_factory=dict)
    # Label of a level of one attribute -> column of public unit counts in the frame: in a leaf nobody has a
    # level without units, and at least as many people as units and at most :data:`MAX_PEOPLE_PER_UNIT` times
    # as many have one with. Used where the frame has all the columns.
    units: Mapping[str, str] = field(default_factory=dict)
    # What must be said of the earlier release, and so of each that agrees with it, beside its acts.
    stamps: tuple[str, ...] = ()
    linear: bool = False  # the earlier release holds linear constraints, which are not listed here

    def to_dict(self) -> dict[str, Any]:
        """Plain values, exact."""
        return {
            "product": self.product,
            "query": self.query,
            "microdata": self.microdata,
            "acts": [act.to_dict() for act in self.acts],
            "bounds": [
                [bound.name, bound.column, bound.lower, bound.upper, [list(rows) for rows in bound.rows]]
                for bound in self.bounds
            ],
            "impossible": [list(rows) for rows in self.impossible],
            **({"rows": {label: list(self.rows[label]) for label in sorted(self.rows)}} if self.rows else {}),
            **({"columns": dict(sorted(self.columns.items()))} if self.columns else {}),
            **({"units": dict(sorted(self.units.items()))} if self.units else {}),
            **({"stamps": list(self.stamps)} if self.stamps else {}),
            **({"linear": True} if self.linear else {}),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        bounds = (
            TiedBound(name, column, lower, upper, _ranges(rows))
            for name, column, lower, upper, rows in record["bounds"]
        )
        acts = map(EarlierAct.from_dict, record["acts"])
        product, query, microdata = (str(record[name]) for name in ("product", "query", "microdata"))
        return cls(
            product,
            query,
            microdata,
            tuple(acts),
            tuple(bounds),
            _ranges(record["impossible"]),
            {label: tuple(cells) for label, cells in record.get("rows", {}).items()},
            dict(record.get("columns", {})),
            dict(record.get("units", {})),
            tuple(map(str, record.get("stamps", ()))),
            bool(record.get("linear", False)),
        )


def _ranges(pairs: Iterable[Iterable[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(end)) for first, end in pairs)


@dataclass(frozen=True, slots=True)
class Bound:
    """Per leaf, ``lower * units <= answer <= upper * units`` for one row of a query group.

    Summed over leaves at every geolevel above, so that children are never infeasible.
    """

    query: str  # query group
    cell: str  # label of the row
    column: str  # column of public unit counts in the frame
    # lower, upper: least and most records a unit; where there is no unit there is no record.
    lower: int = 0
    upper: int = MAX_PEOPLE_PER_UNIT

    @property
    def name(self) -> str:
        """Identifier, for instance ``"hhgq=nursing by gq3"``."""
        return f"{self.query}={self.cell} by {self.column}"


@dataclass(frozen=True, slots=True)
class LinearConstraint:
    """Per leaf, ``sum of coefficient * answer <= at_most`` over rows of one query group; sums hold above.

    A row of ``C x <= c``, (6.2) of Abowd et al. (2022); as there, a least value is stated by negating.
    """

    name: str
    query: str  # query group
    coefficients: Mapping[str, int]  # label of a row -> whole number; rows that are not named count nothing
    at_most: int = 0  # for each unit of `column`, or for each leaf
    column: str = ""  # column of public unit counts in the frame; empty for none

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a product file declares them."""
        return {
            "name": self.name,
            "query": self.query,
            "coefficients": dict(sorted(self.coefficients.items())),
            "at_most": self.at_most,
            **({"column": self.column} if self.column else {}),
        }

    def __str__(self) -> str:
        terms = " ".join(f"{times:+d} {label!r}" for label, times in sorted(self.coefficients.items()))
        units = f" a unit of {self.column}" if self.column else " a leaf"
        return f"{self.name}: {terms} of {self.query} at most {self.at_most}{units}"


@dataclass(frozen=True, slots=True)
class StructuralZero:
    """Cells that are impossible by definition: every combination of the listed levels."""

    # attribute name -> level labels: attributes not named are unrestricted.
    levels: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class PriorTable:
    """A public table of leaves that the posterior of a run starts from, such as an earlier census."""

    name: str  # what it is and who published it, in the run file's words
    query: str  # query group whose rows it counts
    sha256: str  # digest of the file

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as certificates and released run files hold them."""
        return {"name": self.name, "query": self.query, "sha256": self.sha256}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return cls(*(str(record[name]) for name in ("name", "query", "sha256")))


class Distinct(StrEnum):
    """In what the records of one unit that are counted differ from each other."""

    LEAF = "leaf"
    CELL = "cell"
    RECORD = "record"
    """In leaf or cell: no two are alike."""


@dataclass(frozen=True, slots=True)
class ContributionBound:
    """What is counted of one protected unit, where a unit may have several records."""

    unit_id: str  # Column of the input that says whose a record is. It is read and not kept.
    at_most: int  # >= 1: records of a unit that are counted; which, a secret order decides
    # In what they differ; records that do not are not counted. None: they may be alike.
    distinct: Distinct | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as certificates and released run files hold them."""
        return {
            "unit_id": self.unit_id,
            "at_most": self.at_most,
            "distinct": None if self.distinct is None else self.distinct.value,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote.

        Raises `KeyError, ValueError` if an entry is missing or of another form.
        """
        at_most, distinct = record["at_most"], record["distinct"]
        if isinstance(at_most, bool) or not isinstance(at_most, int) or at_most < 1:
            raise ValueError("at_most is not a number of records")
        return cls(str(record["unit_id"]), at_most, None if distinct is None else Distinct(distinct))
