"""Describe what is protected of each attribute, geolevel and query group, from a protection map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np

from opendas.arrays import Ints
from opendas.constraints.fixed_sums import ExactQuery
from opendas.measurement.loss import change_loss, plan_loss
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.schema.query_groups import QueryGroup

PROTECTED, WITHIN = "protected", "protected only within"
EXACT, SAME = "published exactly", "the same in all neighbours"
"""Protection status of part of a record or of an answer. `SAME` is neither published nor protected."""


@dataclass(frozen=True, slots=True)
class Protected:
    """Protection of one attribute, geolevel or query group."""

    status: str  # one of the words above
    within: tuple[str, ...]  # geolevels and recodes that are known, for :data:`WITHIN`
    known: Fraction  # share of a record's places at which the exact facts leave nothing open here

    @property
    def words(self) -> str:
        """A phrase, for instance "protected only within state"."""
        text = f"{self.status} {' and '.join(self.within)}" if self.status == WITHIN else self.status
        if self.status in (EXACT, SAME) or not self.known:
            return text
        return f"{text}; known exactly at {_percent(self.known)} of the places"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"status": self.status, "within": list(self.within), "known": format_fraction(self.known)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return cls(record["status"], tuple(record["within"]), parse_fraction(record["known"], "known"))


_CROSSING = (
    " These numbers are upper limits: some of the exact facts cross each other, and more may follow from "
    "them together than is found here, so that what is called protected may be known. No loss is larger "
    "for it."
)


def _percent(share: Fraction) -> str:
    if share < Fraction(1, 1000):
        return "less than 0.1 %"
    return "more than 99.9 %" if share > Fraction(999, 1000) else f"{float(share) * 100:.1f} %"


@dataclass(frozen=True, slots=True)
class Protection:
    """What remains protected given the exact facts of a run; public."""

    # Names of exactly published facts: invariants, bounds that leave no room, facts of the frame.
    facts: tuple[str, ...]
    places: int  # number of pairs (leaf, cell) in which a record can be
    alone: int  # number of places without an alternative: a record there is known
    # least, median: number of other places that the facts leave to a record: at worst, and at the median
    # place.
    least: int
    median: int
    # Largest loss between neighbours that agree on all facts: rho, or epsilon for the discrete Laplace.
    loss: Fraction
    attributes: Mapping[str, Protected]  # attribute -> Protected
    # geolevel -> Protected: protection of the record's geounit on the spine.
    geolevels: Mapping[str, Protected]
    queries: Mapping[str, Mapping[str, Protected]]  # query group -> geolevel -> Protected
    nested: bool = True  # whether every consequence of the facts is found

    @property
    def alternatives(self) -> str:
        """Sentence on the number of alternatives that the exact facts leave."""
        places = "place (pair" if self.least == 1 else "places (pairs"
        return (
            f"The exact facts leave a record at least {self.least:,} other {places} of leaf and cell) "
            f"where it could be, and {self.median:,} at the median of {self.places:,} places"
            + (f"; at {self.alone:,} places they leave none: a record there is known." if self.alone else ".")
            + ("" if self.nested else _CROSSING)
        )

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield a row for each part: kind, name and words; query groups with their geolevels."""
        for kind, parts in (("attribute", self.attributes), ("geolevel", self.geolevels)):
            for name, part in parts.items():
                yield kind, name, part.words
        for query, levels in self.queries.items():
            by_words: dict[str, list[str]] = {}
            for level, part in levels.items():
                by_words.setdefault(part.words, []).append(level)
            for words, names in by_words.items():
                yield (
                    "query group",
                    query,
                    f"{words} ({', '.join(names)})" if by_words.keys() - {words} else words,
                )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; lists keep the order."""
        return {
            "facts": list(self.facts),
            "places": self.places,
            "alone": self.alone,
            "least": self.least,
            "median": self.median,
            "loss": format_fraction(self.loss),
            "attributes": [{"name": name, **part.to_dict()} for name, part in self.attributes.items()],
            "geolevels": [{"name": name, **part.to_dict()} for name, part in self.geolevels.items()],
            "queries": [
                {
                    "name": name,
                    "geolevels": [{"name": level, **part.to_dict()} for level, part in levels.items()],
                }
                for name, levels in self.queries.items()
            ],
            **({} if self.nested else {"nested": False}),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""

        def parts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Protected]:
            return {row["name"]: Protected.from_dict(row) for row in rows}

        return cls(
            tuple(record["facts"]),
            record["places"],
            record["alone"],
            record["least"],
            record["median"],
            parse_fraction(record["loss"], "loss"),
            parts(record["attributes"]),
            parts(record["geolevels"]),
            {row["name"]: parts(row["geolevels"]) for row in record["queries"]},
            record.get("nested", True),
        )


def protection_of(held: ProtectionMap, declared: Sequence[str] = ()) -> Protection:
    """Return the protection that a plan's map implies.

    `declared`: further exactly published facts, such as which leaves are populated.
    """
    plan, product = held.plan, held.plan.product
    names = product.schema.names
    codes = product.schema.codes(np.arange(product.schema.size))
    groups = [product.workload.group(name) for name in product.query_names]
    known_attribute = np.zeros(len(names), dtype=object)
    known_level = np.zeros(len(plan.spine.levels), dtype=object)
    known_answer = np.zeros((len(groups), len(plan.spine.levels)), dtype=object)
    for some in held.classes([*codes, *(group.row_of_cell.astype(np.int64) for group in groups)]):
        weight = some.size * some.times
        attributes, rows = some.differ[: len(names)], some.differ[len(names) :]
        known_attribute += (~attributes) @ weight
        known_level += (~some.moves) @ weight
        # an added record changes every answer that counts it
        if not ((held.adds or held.appears) and some.free):
            known_answer += np.einsum("qc,lc,c->ql", ~rows, ~some.moves, weight)
    reader = _Words(held)
    return Protection(
        (*held.exact_names, *declared),
        held.places,
        held.alone,
        held.least,
        held.median,
        _loss(held),
        {
            name: reader.of(
                Fraction(int(known), held.places),
                reader.recodes(name),
                reader.published(reader.group(name), 0),
            )
            for name, known in zip(names, known_attribute, strict=True)
        },
        {
            level: reader.of(
                Fraction(int(known), held.places),
                reader.above,
                reader.published(reader.group("total"), number),
            )
            for number, (level, known) in enumerate(zip(plan.spine.names, known_level, strict=True))
        },
        {
            group.name: {
                level: reader.of(
                    Fraction(int(known), held.places), reader.above, reader.published(group, number)
                )
                for number, (level, known) in enumerate(zip(plan.spine.names, row, strict=True))
            }
            for group, row in zip(groups, known_answer, strict=True)
        },
        # That every leaf is populated is a separate fact, not combined with the others.
        nested=held.facts.nested and not (declared and held.facts.invariants),
    )


def _loss(held: ProtectionMap) -> Fraction:
    held.check()
    if held.plan.budget.contribution.bound is not None:  # records of a unit change together
        return held.plan.budget.total
    return max(map(change_loss, plan_loss(held.plan, held).changes))


class _Words:
    """Chooses the status of each part."""

    def __init__(self, held: ProtectionMap) -> None:
        self.held, self.product = held, held.plan.product
        lowest = held.lowest
        several = lowest is not None and lowest.unit[-1] > 0
        self.above = (held.plan.spine.names[lowest.level],) if several and lowest is not None else ()

    def group(self, name: str) -> QueryGroup:
        return self.product.workload.group(name)

    def of(self, known: Fraction, within: tuple[str, ...], published: bool) -> Protected:
        if known == 1:
            return Protected(EXACT if published else SAME, (), known)
        return Protected(WITHIN if within else PROTECTED, within, known)

    def recodes(self, attribute: str) -> tuple[str, ...]:
        """Return the recodes of an attribute that some invariant publishes."""
        mine = [recode.name for recode in self.product.recodes if recode.attribute == attribute]
        used = {factor for exact in self.held.facts.invariants for factor in exact.query.factors}
        return tuple(name for name in mine if name in used)

    def published(self, group: QueryGroup, level: int) -> bool:
        """Whether an invariant gives the answers of a query group at a level of the spine."""
        return any(
            (exact.level > level or (exact.level == level and not self._divided(exact)))
            and self._finer(exact.query.row_of_cell.astype(np.int64), group)
            for exact in self.held.facts.invariants
            if not exact.of_companion
        )

    def _divided(self, exact: ExactQuery) -> bool:
        return self.held.plan.spine.levels[exact.level].whole is not None

    def _finer(self, rows: Ints, group: QueryGroup) -> bool:
        """Whether all possible cells in one row of an invariant are in one row of the query group."""
        there = self.held.facts.possible
        rows, wanted = rows[there], group.row_of_cell[there].astype(np.int64)
        least, most = (np.full(int(rows.max(initial=0)) + 1, start) for start in (group.size, -1))
        np.minimum.at(least, rows, wanted)
        np.maximum.at(most, rows, wanted)
        return bool(np.all(least >= most))
