"""Households to draw from: who lives together, at which ages, without place or race.

They come from public-use microdata where there are any (:mod:`opendas.demo.pums`), or from the generator
here. Axes: ``t`` households, ``p`` people, one household after another, each with its householder first.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.schema.dhc_persons import RELATIONSHIPS, dhc_persons

ADULT = 18
"""Age from which a person is an adult: the voting age of the redistricting data."""

CODE = {label: code for code, label in enumerate(RELATIONSHIPS)}
"""Code of ``relgq`` of each relationship. A pool has one for all householders, ``householder_not_alone``."""

MALE, FEMALE = 0, 1


def allowed_ages() -> Bools:
    """Return bool (42, 116): the ages that the edits of the DHC allow for each level of ``relgq``."""
    product = dhc_persons()
    names = ("relgq", "age")
    keys = {name: {x: k for k, x in enumerate(product.schema.attribute(name).levels)} for name in names}
    allowed = np.ones(tuple(len(keys[name]) for name in names), dtype=np.bool_)
    for zero in product.structural_zeros:
        codes = [[keys[name][label] for label in zero.levels[name]] for name in names]
        allowed[np.ix_(*codes)] = False
    return allowed


class HouseholdPool(NamedTuple):
    """Households by their numbers of adults and minors, and how often each occurs."""

    first: Ints  # int64 (t + 1,). Household ``t`` has the people ``first[t]:first[t + 1]``.
    relgq: Ints  # int64 (p,), as `sex` and `age`
    sex: Ints
    age: Ints
    adults: Ints  # int64 (t,), as `minors`. Ascending: first by adults, then by minors.
    minors: Ints
    cumulative: Floats  # float64 (t + 1,). Sums of the weights of the households before.
    # int64 (most adults + 1, most minors + 1, 2). The run of households, from and to, with so many adults and
    # minors.
    groups: Ints

    @classmethod
    def of(
        cls,
        household: Ints,
        relgq: npt.NDArray[np.integer],
        sex: npt.NDArray[np.integer],
        age: npt.NDArray[np.integer],
        weight: Floats,
    ) -> HouseholdPool:
        """Make a pool of people who are listed household by household, each householder first.

        - `household` (p,): from 0, not decreasing.
        - `weight` (t,): positive.
        """
        t = len(weight)
        grown = np.bincount(household, weights=age >= ADULT, minlength=t).astype(np.int64)
        size = np.bincount(household, minlength=t)
        order = np.lexsort((size - grown, grown))
        rank = np.empty(t, dtype=np.int64)
        rank[order] = np.arange(t)
        people = np.argsort(rank[household], kind="stable")
        adults, minors = grown[order], (size - grown)[order]
        shape = (int(adults.max()) + 1, int(minors.max()) + 1)
        ends = np.cumsum(np.bincount(adults * shape[1] + minors, minlength=shape[0] * shape[1]))
        groups = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).reshape(*shape, 2)
        return cls(
            np.concatenate([[0], np.cumsum(size[order])]).astype(np.int64),
            relgq[people].astype(np.int64),
            sex[people].astype(np.int64),
            age[people].astype(np.int64),
            adults,
            minors,
            np.concatenate([[0.0], np.cumsum(weight[order])]),
            groups.astype(np.int64),
        )


_MADE = 20_000
_KINDS = ("married", "partners", "parent", "alone", "roommates")
_SHARES = (0.46, 0.07, 0.15, 0.26, 0.06)
_LEAST_AGE = {"married": 20, "partners": 19, "parent": 18, "alone": 19, "roommates": 18}
_SPAN = {"married": 72, "partners": 62, "parent": 68, "alone": 78, "roommates": 55}
_SHAPE = {  # of the beta distribution of the householder's age over the span
    "married": (2.1, 2.3), "partners": (1.3, 2.8), "parent": (1.8, 2.6), "alone": (1.7, 1.5),
    "roommates": (1.0, 3.5),
}  # fmt: skip
_AT_HOME = ((18, 0.97), (22, 0.66), (25, 0.48), (30, 0.25), (35, 0.12), (200, 0.05))
"""Share of children below an age who live with their parents."""


@cache
def synthetic_households() -> HouseholdPool:
    """Return a pool of invented households: shares and ages are about those of the United States."""
    rng = np.random.default_rng(94)
    allowed = allowed_ages()
    people: list[tuple[int, int, int, int]] = []
    kinds = rng.choice(len(_KINDS), size=_MADE, p=_SHARES)
    for number, kind in enumerate(kinds):
        for relationship, sex, age in _household(_KINDS[kind], rng):
            if allowed[CODE[relationship], age]:
                people.append((number, CODE[relationship], sex, age))
    household, relgq, sex, age = np.array(people, dtype=np.int64).T
    return HouseholdPool.of(household, relgq, sex, age, np.ones(_MADE))


_Person = tuple[str, int, int]
"""Relationship, sex and age."""


def _household(kind: str, rng: np.random.Generator) -> list[_Person]:
    """Draw one household of a kind."""
    age = _LEAST_AGE[kind] + int(_SPAN[kind] * rng.beta(*_SHAPE[kind]))
    male = {"married": 0.58, "partners": 0.52, "parent": 0.31, "alone": 0.74 - 0.005 * age, "roommates": 0.53}
    sex = MALE if rng.random() < male[kind] else FEMALE
    members: list[_Person] = [("householder_not_alone", sex, age)]
    mother = age
    if kind in ("married", "partners"):
        members.append(_partner(kind, sex, age, rng))
        mother = min(mother, members[1][2]) if sex == members[1][1] else (age, members[1][2])[sex == MALE]
    children = [] if kind in ("alone", "roommates") else _children(kind, mother, rng)
    members += children
    if kind == "roommates":
        for _ in range(1 + rng.poisson(0.35)):
            near = _grown(age + rng.normal(0, 5), rng)
            members.append(("roommate" if rng.random() < 0.6 else "other_nonrelative", _sex(rng), near))
    if kind in ("married", "partners", "parent"):
        members += _relatives(age, children, rng)
    return members


def _sex(rng: np.random.Generator) -> int:
    return int(rng.random() < 0.49)


def _grown(age: float, rng: np.random.Generator) -> int:
    """Return an age in years, that of a young adult in place of a minor's."""
    return min(100, round(age)) if age >= ADULT else ADULT + int(rng.integers(0, 8))


def _partner(kind: str, sex: int, age: int, rng: np.random.Generator) -> _Person:
    same = rng.random() < (0.013 if kind == "married" else 0.09)
    gap = rng.normal(0.0 if same else (-2.2 if sex == MALE else 2.2), 4.0)
    other = _grown(age + gap, rng)
    word = "spouse" if kind == "married" else "partner"
    return f"{'same' if same else 'opposite'}_sex_{word}", sex if same else 1 - sex, other


def _children(kind: str, mother: int, rng: np.random.Generator) -> list[_Person]:
    """Draw the children who live with their parents; those of a lone parent are one at least."""
    born = rng.poisson({"married": 2.05, "partners": 1.3}.get(kind, 2.1))
    found = []
    for _ in range(born):
        age = mother - int(np.clip(round(rng.normal(28.5, 5.6)), 16, 46))
        if age >= 0 and rng.random() < next(share for below, share in _AT_HOME if age < below):
            found.append(age)
    if kind == "parent" and not found:
        found.append(mother - int(rng.integers(15, min(mother, 36) + 1)))
    words = ("biological_child", "stepchild", "adopted_child")
    return [(str(rng.choice(words, p=(0.93, 0.05, 0.02))), _sex(rng), age) for age in found]


def _relatives(age: int, children: list[_Person], rng: np.random.Generator) -> list[_Person]:
    """Draw grandchildren, parents and others beside a family."""
    found: list[_Person] = []
    for _, sex, child in children:
        if child >= 20 and rng.random() < 0.16:
            found.append(("grandchild", _sex(rng), child - int(rng.integers(17, min(child, 34) + 1))))
        if child >= 21 and rng.random() < 0.03:
            found.append(("child_in_law", 1 - sex, child))
    parent = age + int(np.clip(round(rng.normal(28, 5)), 16, 45))
    if parent <= 99 and rng.random() < 0.045:
        found.append(("parent" if rng.random() < 0.65 else "parent_in_law", int(rng.random() < 0.8), parent))
    for relationship, share, least, most in (
        ("sibling", 0.02, age - 14, age + 14),
        ("other_relative", 0.03, 1, 70),
        ("roommate", 0.012, ADULT, 60),
        ("foster_child", 0.005, 0, 20),
        ("other_nonrelative", 0.02, 1, 70),
    ):
        if rng.random() < share:
            found.append((relationship, _sex(rng), int(rng.integers(max(0, least), min(99, most) + 1))))
    return found
