"""What stands in the fields of the budget page, and the budget that it means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from opendas.budget.allocation import LARGEST_LOSS, Budget
from opendas.errors import OpendasError
from opendas.explore.problems import Problems, decimal_text, read_number, share_text
from opendas.explore.quick import Law
from opendas.explore.subjects import Subject
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import MAX_FLOORS, WORD_BITS, DiscreteGaussian

__all__ = ["Draft", "Sum", "draft_of", "level_field", "moved", "query_field", "read_draft", "rescaled"]

_UNITS = 1_000_000
"""Shares that were moved often are dealt out in parts of this size, so that fractions stay readable."""

_LONGEST_FRACTION = 60

_LARGEST_SHARE = 1_000_000
"""Shares may miss 1 while they are typed, and be rescaled, but not by more."""

_Choice = TypeVar("_Choice", Mechanism, Neighbours)


@dataclass(frozen=True, slots=True)
class Draft:
    """The fields of one plan, as typed.

    Parameters
    ----------
    mechanism, neighbours, total, delta : str
    levels : tuple of str
        Share of each geolevel.
    queries : tuple of tuple of str
        Geolevel by query group; empty where it is not measured.
    """

    mechanism: str
    neighbours: str
    total: str
    delta: str
    levels: tuple[str, ...]
    queries: tuple[tuple[str, ...], ...]

    def fields(self, prefix: str) -> dict[str, str]:
        """Return every field by its name in the form."""
        found = {
            f"{prefix}.mechanism": self.mechanism,
            f"{prefix}.neighbours": self.neighbours,
            f"{prefix}.total": self.total,
            f"{prefix}.delta": self.delta,
        }
        for i, text in enumerate(self.levels):
            found[level_field(prefix, i)] = text
        for i, row in enumerate(self.queries):
            for j, text in enumerate(row):
                found[query_field(prefix, i, j)] = text
        return found

    def taken(self, prefix: str, form: Mapping[str, str]) -> Draft:
        """Return the draft with the fields that a form has."""
        return Draft(
            form.get(f"{prefix}.mechanism", self.mechanism),
            form.get(f"{prefix}.neighbours", self.neighbours),
            form.get(f"{prefix}.total", self.total),
            form.get(f"{prefix}.delta", self.delta),
            tuple(form.get(level_field(prefix, i), text) for i, text in enumerate(self.levels)),
            tuple(
                tuple(form.get(query_field(prefix, i, j), text) for j, text in enumerate(row))
                for i, row in enumerate(self.queries)
            ),
        )


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a group of shares.

    Parameters
    ----------
    value : Fraction or None
        None where one of them is no number.
    """

    value: Fraction | None

    @property
    def sentence(self) -> str:
        """What to say beside the fields."""
        if self.value is None:
            return "The sum waits for a number."
        if self.value == 1:
            return "Sum: 1"
        off = abs(self.value - 1)
        exact = decimal_text(off, 9) or format_fraction(off)
        shown = exact if len(exact) <= 24 else f"about {float(off):.3g}"
        return f"Sum: {float(self.value):.6g}, that is {shown} too {'much' if self.value > 1 else 'little'}."


def level_field(prefix: str, level: int) -> str:
    """Name the field of a geolevel's share."""
    return f"{prefix}.l{level}"


def query_field(prefix: str, level: int, query: int) -> str:
    """Name the field of a query group's share."""
    return f"{prefix}.q{level}.{query}"


def draft_of(budget: Budget, subject: Subject) -> Draft:
    """Write a budget into fields, exactly."""
    queries = []
    for level in subject.levels:
        shares = budget.queries.get(level, {})
        queries.append(tuple(share_text(shares[q]) if shares.get(q) else "" for q in subject.queries))
    return Draft(
        budget.mechanism.value,
        budget.neighbours.value,
        share_text(budget.total),
        _delta_text(budget.delta),
        tuple(share_text(budget.geolevels[level]) for level in subject.levels),
        tuple(queries),
    )


def _delta_text(delta: Fraction) -> str:
    power = len(str(delta.denominator)) - 1
    if delta == Fraction(1, 10**power):
        return f"1e-{power}"
    return share_text(delta)


def read_draft(
    draft: Draft, prefix: str, subject: Subject, problems: Problems
) -> tuple[Budget | None, dict[str, Sum]]:
    """Understand the fields of a plan.

    Parameters
    ----------
    draft : Draft
    prefix : str
        Of field names.
    subject : Subject
    problems : Problems
        What is wrong is added here, at the field where it was typed.

    Returns
    -------
    budget : Budget or None
        None where something is wrong.
    sums : dict of group name to Sum
        ``{prefix}.l`` for geolevels, ``{prefix}.q0`` and so on for query groups.
    """
    mechanism = _choice(draft.mechanism, f"{prefix}.mechanism", Mechanism, problems)
    neighbours = _choice(draft.neighbours, f"{prefix}.neighbours", Neighbours, problems)
    if neighbours is Neighbours.UNBOUNDED and subject.held:
        problems.add(f"{prefix}.neighbours", _vacuous(subject.held))
    total = _total(draft.total, f"{prefix}.total", problems)
    delta = _delta(draft.delta, f"{prefix}.delta", problems)
    names = [level_field(prefix, i) for i in range(len(subject.levels))]
    shares, sums = _group(draft.levels, names, problems, f"{prefix}.l")
    queries: dict[str, dict[str, Fraction]] = {}
    for i, (level, row) in enumerate(zip(subject.levels, draft.queries, strict=True)):
        share = shares[i] if shares else None
        group = f"{prefix}.q{i}"
        names = [query_field(prefix, i, j) for j in range(len(row))]
        # A geolevel without budget measures nothing; its query shares may stay as they are.
        found, more = _group(row, names, problems if share != 0 else Problems(), group)
        sums |= more
        if found is not None and sum(found) == 1:
            queries[level] = {q: s for q, s in zip(subject.queries, found, strict=True) if s}
    if problems.under(prefix) or shares is None or not (mechanism and neighbours and total and delta):
        return None, sums
    levels = dict(zip(subject.levels, shares, strict=True))
    try:
        budget = Budget(mechanism, neighbours, total, levels, queries, delta)
    except OpendasError as error:
        problems.add(f"{prefix}.total", str(error))
        return None, sums
    _check_noise(budget, subject, prefix, problems)
    return (None if problems.under(prefix) else budget), sums


def _vacuous(held: Mapping[str, str]) -> str:
    names = ", ".join(f"the {query} of every {level}" for query, level in held.items())
    return (
        f"With {names} published exactly, no two data sets differ by one record added or removed: the "
        "guarantee would be empty. Choose bounded."
    )


def _choice(text: str, name: str, kind: type[_Choice], problems: Problems) -> _Choice | None:
    found = next((item for item in kind if item.value == text), None)
    if found is None:
        known = " or ".join(item.value for item in kind)
        problems.add(name, f"{text[:40]!r} is unknown. Choose {known}.")
    return found


def _total(text: str, name: str, problems: Problems) -> Fraction | None:
    total = read_number(text, name, problems)
    if total is not None and total == 0:
        problems.add(name, "The total is 0: nothing could be measured. Give a positive number.")
    if total is not None and total > LARGEST_LOSS:
        problems.add(name, f"The total is above {LARGEST_LOSS:.0e}, which protects nobody.")
    return None if name in problems.by_field else total


def _delta(text: str, name: str, problems: Problems) -> Fraction | None:
    delta = read_number(text, name, problems)
    if delta is not None and not Fraction(1, 10**300) <= delta < 1:
        problems.add(name, "delta lies between 0 and 1 (at least 1e-300), for instance 1e-10.")
    return None if name in problems.by_field else delta


def _group(
    texts: Sequence[str], names: Sequence[str], problems: Problems, group: str
) -> tuple[list[Fraction] | None, dict[str, Sum]]:
    """Read shares that must sum to 1; the message about their sum goes to the group."""
    read = [
        read_number(text, name, problems, empty=Fraction(0)) for text, name in zip(texts, names, strict=True)
    ]
    found = []
    for value, name in zip(read, names, strict=True):
        if value is not None and value > _LARGEST_SHARE:
            problems.add(name, "A share is a part of 1.")
        elif value is not None:
            found.append(value)
    if len(found) < len(read):
        return None, {group: Sum(None)}
    total = Sum(sum(found, Fraction(0)))
    if total.value != 1:
        problems.add(group, f"{total.sentence} Shares sum to exactly 1.")
    return found, {group: total}


def _parameter(noise: Law) -> Fraction:
    return noise.sigma2 if isinstance(noise, DiscreteGaussian) else noise.scale


def _check_noise(budget: Budget, subject: Subject, prefix: str, problems: Problems) -> None:
    """Refuse noise that cannot be drawn exactly, at the share that asks for it, as a run refuses it."""
    for i, level in enumerate(subject.levels):
        if not budget.geolevels[level]:
            continue
        for query, share in budget.query_shares(level).items():
            noise = budget.distribution(level, query)
            if share and (_parameter(noise) > 10**15 or noise.tail_length(WORD_BITS) > MAX_FLOORS):
                problems.add(
                    query_field(prefix, i, subject.queries.index(query)),
                    "Too small: the noise would be wider than exact sampling reaches. Give more, or nothing.",
                )


def rescaled(draft: Draft, group: str) -> Draft:
    """Scale a group of shares so that they sum to 1; a group that cannot be scaled stays as it is.

    Parameters
    ----------
    draft : Draft
    group : str
        ``l``, or ``q`` and the number of a geolevel.
    """
    texts = _texts(draft, group)
    shares = [read_number(text, "", Problems(), empty=Fraction(0)) for text in texts]
    known = [share for share in shares if share is not None]
    total = sum(known, Fraction(0))
    if len(known) < len(texts) or total == 0:
        return draft
    return _with(draft, group, _written([share / total for share in known], texts))


def moved(draft: Draft, group: str, place: int) -> Draft:
    """Let the other shares of a group give way in proportion to the one that was moved.

    Where the others are all zero there is nothing to scale: what is left goes to them evenly.
    """
    texts = _texts(draft, group)
    shares = [read_number(text, "", Problems(), empty=Fraction(0)) for text in texts]
    chosen = shares[place] if 0 <= place < len(shares) else None
    if chosen is None or chosen > 1 or any(share is None for share in shares):
        return draft
    others = sum((s for i, s in enumerate(shares) if i != place and s), Fraction(0))
    room = 1 - chosen
    new = []
    for i, share in enumerate(shares):
        if i == place:
            new.append(chosen)
        elif others:
            new.append((share or Fraction(0)) * room / others)
        else:
            new.append(room / (len(shares) - 1) if len(shares) > 1 else Fraction(0))
    return _with(draft, group, _written(new, texts))


def _texts(draft: Draft, group: str) -> tuple[str, ...]:
    return draft.levels if group == "l" else draft.queries[int(group.removeprefix("q"))]


def _with(draft: Draft, group: str, texts: tuple[str, ...]) -> Draft:
    if group == "l":
        return replace(draft, levels=texts)
    number = int(group.removeprefix("q"))
    queries = list(draft.queries)
    queries[number] = texts
    return replace(draft, queries=tuple(queries))


def _written(shares: Sequence[Fraction], before: Iterable[str]) -> tuple[str, ...]:
    """Write shares that sum to 1, in whole millionths where the exact fractions have grown too long."""
    if max(len(format_fraction(share)) for share in shares) > _LONGEST_FRACTION or sum(shares) != 1:
        shares = _millionths(shares)
    empty = [not text.strip() for text in before]
    return tuple("" if none and not s else share_text(s) for s, none in zip(shares, empty, strict=True))


def _millionths(shares: Sequence[Fraction]) -> list[Fraction]:
    """Round to millionths by the largest remainder, so that the sum stays 1 and no share changes sides."""
    scaled = [share * _UNITS for share in shares]
    floors = [int(value) for value in scaled]
    left = _UNITS - sum(floors)
    order = sorted(range(len(shares)), key=lambda i: (floors[i] - scaled[i], i))
    for i in order[: max(left, 0)]:
        floors[i] += 1
    return [Fraction(value, _UNITS) for value in floors]
