"""The persons product of the 2020 Demographic and Housing Characteristics file (DHC).

Relationship or group-quarters type x sex x single year of age x Hispanic origin x race. Level orders and
codes, recodes and edit constraints are those of the public release of the 2020 DHC production code.
"""

from __future__ import annotations

from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Invariant, StructuralZero, Tie
from opendas.schema.pl94 import HHGQ_LEVELS, race_combinations
from opendas.schema.product import PassPlan, Product

OLDEST = 115
"""Top code of age, in years."""

RELATIONSHIPS = (
    "householder_alone",
    "householder_not_alone",
    "opposite_sex_spouse",
    "opposite_sex_partner",
    "same_sex_spouse",
    "same_sex_partner",
    "biological_child",
    "adopted_child",
    "stepchild",
    "sibling",
    "parent",
    "grandchild",
    "parent_in_law",
    "child_in_law",
    "other_relative",
    "roommate",
    "foster_child",
    "other_nonrelative",
)
"""What a person in a household is to its householder, codes 0 to 17 of ``relgq``."""

GQ_CODES = {
    "101": "federal_detention",
    "102": "federal_prison",
    "103": "state_prison",
    "104": "local_jail",
    "105": "correctional_residential",
    "106": "military_disciplinary",
    "201": "juvenile_group_home",
    "202": "juvenile_treatment",
    "203": "juvenile_correctional",
    "301": "nursing",
    "401": "mental_hospital",
    "402": "hospital_no_usual_home",
    "403": "hospice",
    "404": "military_treatment",
    "405": "residential_school_disabled",
    "501": "college",
    "601": "military_quarters",
    "602": "military_ships",
    "701": "shelter",
    "801": "adult_group_home",
    "802": "adult_treatment",
    "900": "maritime",
    "901": "workers_quarters",
    "997": "other_noninstitutional",
}
"""Group-quarters types by census code, in the order of codes 18 to 41 of ``relgq``."""

GQ_TYPES = tuple(f"gq{code}_{words}" for code, words in GQ_CODES.items())
"""Level labels of ``relgq``, codes 18 to 41."""

PL94_CELL = "hhgq8lev * votingage * hispanic * cenrace"
"""The query group whose rows are the cells of ``pl94-persons``, in their order."""

_RELGQ = RELATIONSHIPS + GQ_TYPES
_AGES = tuple(str(age) for age in range(OLDEST + 1))

# Least and greatest age that the edits of the census allow; other levels of relgq have every age.
_AGE_RULES: tuple[tuple[tuple[str, ...], int, int], ...] = (
    (RELATIONSHIPS[:6], 15, OLDEST),  # householders, spouses, partners
    (("biological_child", "adopted_child", "stepchild"), 0, 89),
    (("parent", "parent_in_law"), 30, OLDEST),
    (("grandchild",), 0, 74),
    (("child_in_law",), 15, 89),
    (("foster_child",), 0, 20),
    (GQ_TYPES[:5], 15, OLDEST),  # 101 to 105
    (("gq106_military_disciplinary", "gq404_military_treatment", *GQ_TYPES[16:18]), 17, 65),
    (GQ_TYPES[6:9], 0, 25),  # 201 to 203
    (("gq301_nursing",), 20, OLDEST),
    (("gq405_residential_school_disabled",), 3, 30),
    (("gq501_college",), 16, 65),
    (("gq801_adult_group_home", "gq802_adult_treatment"), 16, OLDEST),
    (("gq900_maritime",), 16, 75),
)


def _runs(lower_ends: tuple[int, ...], labels: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Cut labels into runs that begin at the given positions, named ``first`` or ``first-last``."""
    ends = (*lower_ends[1:], len(labels))
    runs = [labels[low:high] for low, high in zip(lower_ends, ends, strict=True)]
    return tuple((run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}", run) for run in runs)


def _age_recodes() -> tuple[Recode, ...]:
    singles, older = tuple(range(15)), (18, 20, *range(25, 60, 5), 60, 62, 65, 67, *range(70, 111, 5))
    starts = {
        "age_18_64_116": (0, 18, 65),
        "age_10_groups": (0, 3, 15, 16, 17, 18, 20, 25, 30, 35),
        "age_38_groups": (*singles, 15, *older),
        "age_40_groups": (*singles, 15, 16, 17, *older),
    }
    votingage = (("under18", _AGES[:18]), ("18plus", _AGES[18:]))
    return (
        *(Recode(name, "age", _runs(lower_ends, _AGES)) for name, lower_ends in starts.items()),
        Recode("votingage", "age", votingage),
    )


def _relgq_recodes() -> tuple[Recode, ...]:
    alone = tuple((level, (level,)) for level in _RELGQ)
    households, quarters = alone[: len(RELATIONSHIPS)], alone[len(RELATIONSHIPS) :]
    household = ("household", RELATIONSHIPS)
    # Types of group quarters by their major type, the first digit of the redistricting file's code.
    lower_ends = (0, 6, 9, 10, 15, 16, 18)
    major = tuple(
        (label, run) for label, (_, run) in zip(HHGQ_LEVELS[1:], _runs(lower_ends, GQ_TYPES), strict=True)
    )
    codes = dict(zip(GQ_CODES, GQ_TYPES, strict=True))
    ages = {  # the production's grouping of types by the age from which the edits allow people
        "gq_from_3": ("405",),
        "gq_from_15": ("101", "102", "103", "104", "105"),
        "gq_from_16": ("501", "801", "802", "900", "901", "997"),
        "gq_from_17": ("106", "404", "601", "602"),
        "gq_other": ("201", "202", "203", "301", "401", "402", "403", "701"),
    }
    return (
        Recode(
            "relgq_4_groups",
            "relgq",
            (
                ("householder", RELATIONSHIPS[:2]),
                ("other_household_member", RELATIONSHIPS[2:]),
                ("institutional", GQ_TYPES[:15]),
                ("noninstitutional", GQ_TYPES[15:]),
            ),
        ),
        Recode("hhgq8lev", "relgq", (household, *major)),
        Recode("gqlevels", "relgq", (household, *quarters)),
        Recode(
            "gq_constr_groups",
            "relgq",
            (household, *((label, tuple(codes[code] for code in types)) for label, types in ages.items())),
        ),
        Recode("popSehsdTargetsRelship", "relgq", (*households, ("group_quarters", GQ_TYPES))),
        Recode("relship_and_eight_level_GQ", "relgq", (*households, *major)),
    )


def _zeros() -> tuple[StructuralZero, ...]:
    return tuple(
        StructuralZero({"relgq": levels, "age": _AGES[:least] + _AGES[greatest + 1 :]})
        for levels, least, greatest in _AGE_RULES
    )


_COARSE = (
    "relgq_4_groups * age_18_64_116",
    "sex * age_18_64_116",
    "sex * age_38_groups",
    "sex * hispanic",
    "relgq_4_groups * sex",
    "gq_constr_groups * age_10_groups",
    "popSehsdTargetsRelship",
)
_BY_RELATIONSHIP = "relship_and_eight_level_GQ * sex * age_40_groups * hispanic * cenrace"
_BY_RELGQ = "relgq * sex * age_40_groups * hispanic * cenrace"


def dhc_persons() -> Product:
    """Return the persons product: 42 x 2 x 116 x 2 x 63 = 1,227,744 cells, of which 905,184 are possible."""
    schema = Schema(
        (
            Attribute("relgq", _RELGQ),
            Attribute("sex", ("male", "female")),
            Attribute("age", _AGES),
            Attribute("hispanic", ("not_hispanic", "hispanic")),
            Attribute("cenrace", tuple("+".join(races) for races in race_combinations())),
        )
    )
    chain = (
        "hhgq8lev * sex * votingage * hispanic * cenrace",
        "hhgq8lev * sex * age_18_64_116 * hispanic * cenrace",
        _BY_RELATIONSHIP,
        _BY_RELGQ,
    )
    return Product(
        name="dhc-persons",
        schema=schema,
        recodes=(*_relgq_recodes(), *_age_recodes()),
        query_names=("total", *_COARSE, PL94_CELL, *chain, "detailed"),
        invariants=(Invariant("total", "state"),),
        bounds=(),
        structural_zeros=_zeros(),
        protected_unit="person",
        layout="dhc-persons",
        passes=PassPlan(
            least_squares={"*": (("detailed",),)},
            rounder={"*": (("detailed",),)},
            earlier=(PassPlan({"*": ((*_COARSE, _BY_RELATIONSHIP, _BY_RELGQ),)}, {"*": (chain,)}),),
        ),
        preset="us2020-dhc-persons",
        tie=Tie(
            "pl94-persons",
            PL94_CELL,
            units={label: f"gq{code}" for code, label in zip(GQ_CODES, GQ_TYPES, strict=True)},
        ),
    )
