"""The two products of the 2020 redistricting data (Public Law 94-171).

Level orders and codes are those of the 2020 production system. Sources: TopDown paper, sections 5 and 8,
and the public release of the production code.
"""

from __future__ import annotations

from itertools import product as cartesian

from opendas.geography.frame import GQ_COLUMNS
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Bound, Invariant, StructuralZero
from opendas.schema.product import PassPlan, Product

HHGQ_LEVELS = (
    "household",
    "correctional",
    "juvenile",
    "nursing",
    "other_institutional",
    "college",
    "military",
    "other_noninstitutional",
)
"""Household or group-quarters type, codes 0 to 7."""

RACES = ("white", "black", "aian", "asian", "nhpi", "sor")
"""The six race categories, in the order of the production system."""


def race_combinations() -> tuple[tuple[str, ...], ...]:
    """Return the 63 combinations of races in code order 0 to 62.

    By number of races, then in the order of ``itertools.product`` over presence flags, presence first.
    "None of the above" is no combination: that structural zero is built into the attribute.
    """
    flags = [flag for flag in cartesian((1, 0), repeat=len(RACES)) if any(flag)]
    flags.sort(key=sum)
    return tuple(tuple(race for race, on in zip(RACES, flag, strict=True) if on) for flag in flags)


def _persons_passes() -> PassPlan:
    tree = ("hhgq", "hhgq * hispanic", "hhgq * hispanic * cenrace", "detailed", "detailed")
    one = (("rest",),)
    total_first = (("total",), ("rest",))
    return PassPlan(
        least_squares={"root": one, "leaf": one, "*": total_first},
        rounder={"root": (("total", *tree),), "leaf": (("total", *tree),), "*": (("total",), tree)},
    )


def pl94_persons() -> Product:
    """Return the persons product: 8 x 2 x 2 x 63 = 2,016 cells."""
    hhgq = Attribute("hhgq", HHGQ_LEVELS)
    schema = Schema(
        (
            hhgq,
            Attribute("votingage", ("under18", "18plus")),
            Attribute("hispanic", ("not_hispanic", "hispanic")),
            Attribute("cenrace", tuple("+".join(races) for races in race_combinations())),
        )
    )
    hhinst = Recode(
        "hhinstlevels",
        "hhgq",
        (
            ("household", HHGQ_LEVELS[:1]),
            ("institutional", HHGQ_LEVELS[1:5]),
            ("noninstitutional", HHGQ_LEVELS[5:]),
        ),
    )
    columns = ("hu", *GQ_COLUMNS)
    return Product(
        name="pl94-persons",
        schema=schema,
        recodes=(hhinst,),
        query_names=(
            "total",
            "cenrace",
            "hispanic",
            "votingage",
            "hhinstlevels",
            "hhgq",
            "hispanic * cenrace",
            "votingage * cenrace",
            "votingage * hispanic",
            "votingage * hispanic * cenrace",
            "detailed",
        ),
        invariants=(Invariant("total", "state"),),
        bounds=tuple(
            Bound("hhgq", level, column, lower=0 if column == "hu" else 1)
            for level, column in zip(HHGQ_LEVELS, columns, strict=True)
        ),
        structural_zeros=(StructuralZero({"hhgq": ("nursing",), "votingage": ("under18",)}),),
        protected_unit="person",
        layout="persons",
        passes=_persons_passes(),
        preset="us2020-persons",
    )


def pl94_units() -> Product:
    """Return the housing-units product: occupancy, 2 cells; the number of units a block is invariant."""
    passes = {"*": (("rest",),)}
    return Product(
        name="pl94-units",
        schema=Schema((Attribute("occupancy", ("vacant", "occupied")),)),
        recodes=(),
        query_names=("total", "detailed"),
        invariants=(Invariant("total", "leaf"),),
        bounds=(),
        structural_zeros=(),
        protected_unit="housing unit",
        layout="units",
        passes=PassPlan(least_squares=passes, rounder={"*": (("detailed",),)}),
        preset="us2020-units",
    )
