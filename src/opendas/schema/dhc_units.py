"""The units product of the 2020 Demographic and Housing Characteristics file (DHC), and its companion.

Households by sex, age, Hispanic origin and race of the householder, elderly members, tenure and type; and, as
a second histogram, every unit by tenure, vacancy status or group-quarters type. Level orders and codes,
recodes and edit constraints are those of the public release of the 2020 DHC production code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from itertools import product as cartesian

import numpy as np
import numpy.typing as npt

from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Invariant, StructuralZero, Tie
from opendas.schema.dhc_persons import GQ_TYPES
from opendas.schema.product import PassPlan, Product

LARGEST = 7
"""Top code of household size: seven people or more."""

VACANCIES = ("for_rent", "rented", "for_sale", "sold", "seasonal", "migrant", "other")
"""Vacancy status, codes 4 to 10 of ``tenvacgq``: 1 to 7 of the census."""

FIRST_VACANT = 4
"""Level of ``tenvacgq`` where vacant units begin; before it stand owned with a mortgage, owned clear, rented,
and no rent paid."""

FIRST_QUARTERS = FIRST_VACANT + len(VACANCIES)
"""Level of ``tenvacgq`` where group quarters begin."""

HOUSEHOLDER_AGES = (15, 25, 35, 45, 55, 60, 65, 75, 85)
"""Age at which each level of ``hhage`` begins."""

COUPLES = (
    "married_opposite_sex",
    "married_same_sex",
    "cohabiting_opposite_sex",
    "cohabiting_same_sex",
    "no_couple",
)
"""The householder's spouse or partner, 1 to 5 of the census."""

CHILDREN = ("under6", "6to17", "both", "none")
"""Which children under 18 there are, by the ranges of their ages: 1 to 4 of the census."""

_RANGES = {"none": 0, "under6": 1, "6to17": 1, "both": 2}


@dataclass(frozen=True, slots=True)
class HouseholdType:
    """A level of ``hhtype_dhch``."""

    # The householder's spouse or partner: ``married_opposite_sex``, ``married_same_sex``,
    # ``cohabiting_opposite_sex``, ``cohabiting_same_sex``, or ``no_couple``.
    couple: str
    # Own children of the householder under 18: ``none``, ``under6`` (only), ``6to17`` (only), ``both``.
    own_children: str
    children: str  # all people under 18 but householder, spouse and partner; the same words
    relatives: bool  # whether someone is related to the householder: spouse, own child, other relative
    minor: bool  # whether anybody is under 18, householder, spouse and partner included
    # Whether three generations live together: parents, householder, children; or grandchildren.
    multigenerational: bool
    size: int  # people, 1 to 7; 7 stands for seven or more

    @property
    def adults(self) -> int:
        """Householder, and spouse or partner, whatever their ages."""
        return 1 if self.couple == "no_couple" else 2

    @property
    def partner(self) -> str:
        """Spouse or partner, whatever the sexes: ``married``, ``cohabiting`` or ``no_couple``."""
        return self.couple if self.adults == 1 else self.couple.split("_")[0]

    @property
    def married(self) -> bool:
        """Whether the householder lives with a spouse."""
        return self.partner == "married"

    @property
    def label(self) -> str:
        """The level's label, for instance ``"size3_married_opposite_sex_own_under6"``."""
        words = [_size_word(self.size), self.couple]
        if self.own_children != "none":
            words.append(f"own_{self.own_children}")
        if self.children != self.own_children:
            words.append(f"children_{self.children}")
        elif self.minor and self.children == "none":
            words.append("minor_householder_or_partner")
        if self.relatives and self.own_children == "none" and not self.married:
            words.append("relatives")
        if self.multigenerational:
            words.append("multigenerational")
        return "_".join(words)


def _size_word(size: int) -> str:
    return f"size{size}" + "plus" * (size == LARGEST)


def _household_types() -> Iterable[HouseholdType]:
    """Yield the household types, in the order of their codes."""
    # Children beside householder, spouse and partner; whether anybody is under 18.
    children = (("under6", True), ("6to17", True), ("both", True), ("none", False), ("none", True))
    own_children = ("under6", "6to17", "both", "none")
    for couple in COUPLES:
        if couple == "no_couple":
            for minor in (False, True):
                yield HouseholdType(couple, "none", "none", False, minor, False, 1)
        for own, relatives, (others, minor), multigenerational in cartesian(
            own_children, (True, False), children, (False, True)
        ):
            kind = HouseholdType(couple, own, others, relatives, minor, multigenerational, LARGEST)
            if _is_possible(kind):
                for size in range(_least_size(kind), LARGEST + 1):
                    yield replace(kind, size=size)


def _is_possible(kind: HouseholdType) -> bool:
    """Whether there are households of several people that are of a kind, whatever their size."""
    own = kind.own_children
    minor_keeps_house = kind.adults == 1 and kind.minor and kind.children == "none"
    return (
        own in ("none", kind.children, *(("under6", "6to17") if kind.children == "both" else ()))
        and (kind.relatives or (own == "none" and not kind.married))
        and (kind.relatives or not kind.multigenerational)
        # Of whom the children would be own children, and who has no grandchildren.
        and not (minor_keeps_house and kind.multigenerational)
    )


def _least_size(kind: HouseholdType) -> int:
    """Return how many people the households of a kind have at least, if they are several.

    Householder and partner; a child in each range of ages, of which own children are of one generation; where
    there are three, someone of each other one; and someone beside a householder without partner, or a
    relative who is no spouse.
    """
    own = _RANGES[kind.own_children]
    others = _RANGES[kind.children] - own
    if kind.multigenerational:
        return kind.adults + own + others + 2 - (own > 0) - (others > 0)
    someone = kind.adults == 1 or (kind.relatives and not kind.married)
    return kind.adults + max(own + others, int(someone))


HOUSEHOLD_TYPES = tuple(_household_types())
"""The 522 household types, in the order of their codes."""


@cache
def household_type_codes() -> npt.NDArray[np.int16]:
    """Return the level of each combination of a household's parts; -1 where there is no such type.

    Returns (8, 6, 2, 5, 5, 2, 2): by size, couple (1 to 5), three generations, own children and all children
    but spouses and partners (1 to 4), whether anybody is under 18, and whether anybody is related to the
    householder.
    """
    couples, children = len(COUPLES) + 1, len(CHILDREN) + 1
    level = np.full((LARGEST + 1, couples, 2, children, children, 2, 2), -1, dtype=np.int16)
    for code, kind in enumerate(HOUSEHOLD_TYPES):
        own, under18 = (CHILDREN.index(words) + 1 for words in (kind.own_children, kind.children))
        flags = int(kind.multigenerational), own, under18, int(kind.minor), int(kind.relatives)
        level[kind.size, COUPLES.index(kind.couple) + 1, *flags] = code
    level.flags.writeable = False
    return level


_LABELS = tuple(kind.label for kind in HOUSEHOLD_TYPES)
_SEXES = ("male", "female")
_AGES = (*(f"{low}-{high - 1}" for low, high in pairwise(HOUSEHOLDER_AGES)), f"{HOUSEHOLDER_AGES[-1]}+")
_ELDERLY = ("none_60plus", "60plus_none_65plus", "65plus_none_75plus", "75plus")
_RACES = ("white", "black", "aian", "asian", "nhpi", "sor", "two_or_more")
_OWNED = ("owned_with_mortgage", "owned_clear")
_OCCUPIED = (*_OWNED, "rented", "no_rent_paid")
_VACANT = tuple(f"vacant_{status}" for status in VACANCIES)


def _types(fulfils: Callable[[HouseholdType], bool]) -> tuple[str, ...]:
    return tuple(kind.label for kind in HOUSEHOLD_TYPES if fulfils(kind))


def _grouped(name: str, label_of: Callable[[HouseholdType], str], order: Iterable[str]) -> Recode:
    """Return the recode that groups household types by a label; groups without types are left out."""
    groups: dict[str, list[str]] = {label: [] for label in order}
    for kind in HOUSEHOLD_TYPES:
        groups[label_of(kind)].append(kind.label)
    members = tuple((label, tuple(levels)) for label, levels in groups.items() if levels)
    return Recode(name, "hhtype_dhch", members)


def _coarse_label(couple: str, multigenerational: bool, own_children: str, size: int) -> str:
    words = (_size_word(size), couple, f"own_{own_children}", *("multigenerational",) * multigenerational)
    return "_".join(words)


def _type_recodes() -> tuple[Recode, ...]:
    couples = ("married_same_sex", "married_opposite_sex", "cohabiting_same_sex", "cohabiting_opposite_sex")
    partners = ("no_couple", "married", "cohabiting")
    own = ("under6", "none", "6to17", "both")
    any_own = {"none": "none", "under6": "under18", "6to17": "under18", "both": "under18"}
    sizes = range(1, LARGEST + 1)

    def every_label(own_children: Sequence[str]) -> Iterable[str]:
        parts = cartesian(("no_couple", *couples), (False, True), own_children, sizes)
        return (_coarse_label(*part) for part in parts)

    return (
        _grouped(
            "multig",
            lambda kind: "multigenerational" if kind.multigenerational else "not_multigenerational",
            ("not_multigenerational", "multigenerational"),
        ),
        _grouped("coupled_hh_type", lambda kind: kind.couple, (*couples, "no_couple")),
        _grouped(
            "partner_type_detailed_own_child_status",
            lambda kind: f"{kind.partner}_own_{kind.own_children}",
            (f"{partner}_own_{children}" for partner, children in cartesian(partners, own)),
        ),
        _grouped(
            "DetailedCoupleTypeMultGenDetOwnChildSize",
            lambda kind: _coarse_label(kind.couple, kind.multigenerational, kind.own_children, kind.size),
            every_label(("none", "under6", "6to17", "both")),
        ),
        _grouped(
            "DetailedCoupleTypeMultGenOwnChildSize",
            lambda kind: _coarse_label(
                kind.couple, kind.multigenerational, any_own[kind.own_children], kind.size
            ),
            every_label(("none", "under18")),
        ),
    )


def _zeros() -> tuple[StructuralZero, ...]:
    """Return the households that the edits of the census rule out."""
    # Where nobody but the householder can be elderly, the householder's age says who is.
    alone = _types(
        lambda kind: (
            kind.size == 1
            or (kind.size == 2 and kind.children != "none")
            or (kind.size == 3 and kind.adults == 1 and kind.own_children == "both")
        )
    )
    alone_if_old = _types(lambda kind: kind.label in alone or (kind.size == 2 and kind.minor))
    couple_with_own = _types(lambda kind: kind.adults == 2 and kind.size == 2 + _RANGES[kind.own_children])
    under_6 = _types(lambda kind: kind.own_children in ("under6", "both"))
    own = _types(lambda kind: kind.own_children != "none")
    child_alone = _types(lambda kind: kind.size == 1 and kind.minor)

    def zero(ages: tuple[str, ...], **levels: tuple[str, ...]) -> StructuralZero:
        return StructuralZero({"hhage": ages, **levels})

    return (
        zero(_AGES[:5], elderly=_ELDERLY[1:], hhtype_dhch=alone),
        *(
            zero(ages, elderly=tuple(e for e in _ELDERLY if e != own_class), hhtype_dhch=alone_if_old)
            for ages, own_class in zip((_AGES[5:6], _AGES[6:7], _AGES[7:]), _ELDERLY[1:], strict=True)
        ),
        zero(_AGES[1:], hhtype_dhch=child_alone),
        zero(_AGES[:1], elderly=_ELDERLY[3:], hhtype_dhch=couple_with_own),
        zero(_AGES[5:6], elderly=_ELDERLY[:1]),
        zero(_AGES[6:7], elderly=_ELDERLY[:2]),
        zero(_AGES[7:], elderly=_ELDERLY[:3]),
        zero(_AGES[7:], sex=("male",), hhtype_dhch=under_6),
        zero(_AGES[7:], sex=("female",), hhtype_dhch=own),
        zero(_AGES[5:], sex=("female",), hhtype_dhch=under_6),
    )


_COARSE = (
    "hisp * hhtenshort_2lev * multig",
    "hisp * hhtenshort_2lev",
    "hisp * race * hhtenshort_2lev",
    "sex * hhtenshort_2lev * partner_type_detailed_own_child_status",
    "hisp * hhtenshort_2lev * coupled_hh_type",
)
_TYPE = "DetailedCoupleTypeMultGenDetOwnChildSize"
_BY_TYPE = f"sex * hisp * race * hhtenshort_3lev * {_TYPE}"
_BY_AGE = f"sex * hhage * hisp * race * hhtenshort_3lev * {_TYPE}"
_AGE_AND_TYPE = f"hhage * hhtenshort_3lev * {_TYPE}"
_TENURE_AND_TYPE = f"hhtenshort_3lev * {_TYPE}"


def dhc_units() -> Product:
    """Return the household histogram, with that of all units as its companion.

    2 x 9 x 2 x 7 x 4 x 3 x 522 = 1,578,528 cells, of which 1,111,572 are possible.
    """
    schema = Schema(
        (
            Attribute("sex", _SEXES),
            Attribute("hhage", _AGES),
            Attribute("hisp", ("not_hispanic", "hispanic")),
            Attribute("race", _RACES),
            Attribute("elderly", _ELDERLY),
            Attribute("hhtenshort_3lev", (*_OWNED, "rented")),
            Attribute("hhtype_dhch", _LABELS),
        )
    )
    owned = Recode("hhtenshort_2lev", "hhtenshort_3lev", (("owned", _OWNED), ("not_owned", ("rented",))))
    return Product(
        name="dhc-units",
        schema=schema,
        recodes=(owned, *_type_recodes()),
        query_names=("total", *_COARSE, _TENURE_AND_TYPE, _BY_TYPE, _AGE_AND_TYPE, _BY_AGE, "detailed"),
        invariants=(),
        bounds=(),
        structural_zeros=_zeros(),
        protected_unit="housing unit or group quarters",
        layout="dhc-units",
        passes=PassPlan(
            least_squares={"*": ((_BY_AGE, _AGE_AND_TYPE, "detailed"),)},
            rounder={"*": (("detailed",),)},
            earlier=(PassPlan({"*": ((*_COARSE, _BY_TYPE),)}, {"*": ((_TENURE_AND_TYPE, _BY_TYPE),)}),),
        ),
        preset="us2020-dhc-units",
        companion=dhc_units_tenvacgq(),
        tie=Tie(
            "dhc-units-tenvacgq",
            "hhtenshort_3lev",
            rows={**{level: (level,) for level in _OWNED}, "rented": _OCCUPIED[2:]},
        ),
    )


def dhc_units_tenvacgq() -> Product:
    """Return the histogram of all units, 35 cells; numbers of housing units and facilities are invariant."""
    housing = _OCCUPIED + _VACANT
    quarters = tuple((level, (level,)) for level in GQ_TYPES)
    return Product(
        name="dhc-units-tenvacgq",
        schema=Schema((Attribute("tenvacgq", housing + GQ_TYPES),)),
        recodes=(
            Recode("hhgq_vector", "tenvacgq", (("housing_unit", housing), *quarters)),
            Recode("occupancy", "tenvacgq", (("vacant", _VACANT), ("occupied", _OCCUPIED), *quarters)),
        ),
        query_names=("total", "hhgq_vector", "occupancy", "detailed"),
        invariants=(Invariant("hhgq_vector", "leaf"),),
        bounds=(),
        structural_zeros=(),
        protected_unit="housing unit or group quarters",
        layout="tenvacgq",
        passes=PassPlan({"*": (("detailed",),)}, {"*": (("detailed",),)}),
        tie=Tie(
            "pl94-units",
            "occupancy",
            rows={status: (status,) for status in ("vacant", "occupied")},
            columns={level: level.partition("_")[0] for level in GQ_TYPES},
        ),
    )
