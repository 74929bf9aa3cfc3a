"""Rows and sentences that PDF and HTML both show."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from opendas.budget.noise import NoiseRow
from opendas.geography.frame import CENSUS_GEOLEVELS
from opendas.geography.summary import PERCENTS, EntitySummary, LevelSummary, SpineSummary
from opendas.measurement.protected import Protection
from opendas.privacy.zcdp import CurvePoint, epsilon_curve
from opendas.report.facts import RunFacts
from opendas.schema.attributes import listed

_EXPONENTS = range(1, 17)
_NORMAL_90 = NormalDist().inv_cdf(0.95)
_LIKE_YOU = ("eu", "uni", "us", "ut")  # beginnings of nouns with a vowel that is none
_PLURALS = {"us": "nation", "person": "people", "leaf": "leaves", "group quarters": "group quarters"}


ALL = "all"
"""Geolevel that `opendas init table` adds above a user's own hierarchy."""


def one(noun: str) -> str:
    """Put the indefinite article before a noun.

    Examples
    --------
    >>> one("ward"), one("area"), one("urn"), one("unit")
    ('a ward', 'an area', 'an urn', 'a unit')
    """
    vowel = noun.lower().startswith(("a", "e", "i", "o", "u")) and not noun.lower().startswith(_LIKE_YOU)
    return f"{'an' if vowel else 'a'} {noun}"


def many(noun: str) -> str:
    """Return the plural of a protected unit or a geolevel.

    Examples
    --------
    >>> many("person"), many("ballot"), many("county"), many("class")
    ('people', 'ballots', 'counties', 'classes')
    """
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def words(name: str) -> str:
    """Return an identifier as words, for instance ``block_group`` as "block group"."""
    return {"us": "nation", "18plus": "18 and over"}.get(name, name.replace("_", " "))


def plural(name: str, count: int) -> str:
    """Return a count of geounits in words, for instance "5 counties"."""
    if name == ALL and count == 1:
        return "1 whole"
    plain = words(name)
    return f"{count:,} {plain if count == 1 else _PLURALS.get(name, many(plain))}"


def query_words(query: str) -> str:
    """Return the name of a query group with multiplication signs."""
    return query.replace(" * ", " \u00d7 ")


def invariant_words(name: str) -> str:
    """Return an invariant in words, for instance ``total@state`` as "total of every state"."""
    query, at, geolevel = name.partition("@")
    if geolevel == ALL:
        return f"{query_words(query)} of all records"
    return f"{query_words(query)} of every {words(geolevel)}" if at else name


def decimal(value: Fraction | float, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, without an exponent if it stays readable."""
    number = float(value)
    if number == 0:
        return "0"
    if not 1e-4 <= abs(number) < 1e9:
        return f"{number:.{digits - 1}e}"
    places = max(digits - 1 - math.floor(math.log10(abs(number))), 0)
    text = f"{number:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: Fraction) -> str:
    """Return a share in per cent."""
    return f"{decimal(share * 100, 3)} %"


def loss_words(record: Mapping[str, Any]) -> str:
    """Return a loss of the certificate's JSON in one line."""
    if record.get("unbounded"):
        return "unbounded"
    if record["rho"] is None:
        return f"epsilon = {decimal(Fraction(record['pure_epsilon']))} (pure)"
    return f"rho = {decimal(Fraction(record['rho']))}; epsilon about {record['epsilon']['cks']:.2f}"


def exact_words(record: Mapping[str, Any], digits: int = 0) -> str:
    """Return the exact loss of the certificate's JSON; with `digits`, rounded if it is too long."""
    exact: str = record["rho"] or record.get("pure_epsilon") or "unbounded"
    return f"about {decimal(Fraction(exact), digits)}" if digits and len(exact) > 34 else exact


def runs_words(total: Mapping[str, Any]) -> str:
    """Return the number of runs that a total covers, out of those on the same records."""
    runs, uncovered = total["runs"], total["uncovered"]
    found = f", {total['tied']} of them in an earlier release" if total.get("tied") else ""
    found += f" and {plural('discovery', total['discoveries'])}" if total.get("discoveries") else ""
    return (f"{runs} of {runs + uncovered}" if uncovered else str(runs)) + found


def partial_losses(run: RunFacts) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Return titles, heads and rows of the losses when only part of a record changes."""
    head = ("epsilon, exact",) if run.pure else ("rho", "epsilon (cks)", "epsilon (bun-steinke)")
    found = []
    for title, first, losses in (
        ("One attribute of a record changes, all else equal", "Attribute", run.attributes),
        ("A record moves within one geounit of the spine, all else equal", "Within one", run.within),
    ):
        rows = []
        for name, loss in run.losses(losses).items():
            epsilons: Any = {} if run.pure else loss["epsilon"]
            rows.append((words(name), exact_words(loss, 8), *(f"{epsilons[key]:.2f}" for key in epsilons)))
        found.append((title, (first, *head), rows))
    return found


PROTECTED_HEAD = ("Of a record", "", "What the exact facts leave")
"""Heads over :func:`protected_rows`."""


def protected_rows(found: Protection) -> list[tuple[str, str, str]]:
    """Return a row for each attribute, geolevel and query group: protected, protected within, or not."""
    return [(kind, words(name), text) for kind, name, text in found.rows()]


def official_head(run: RunFacts) -> tuple[str, ...]:
    """Return the heads over :func:`official_rows`."""
    if run.pure:
        return ("Within one of the", "Number", "Epsilon, at most", "half at most", "Above the spine's")
    head = ("Within one of the", "Number", "rho, at most", "epsilon (cks)")
    return (*head, "rho, half at most", "epsilon (cks)", "Above the spine's")


def official_rows(run: RunFacts) -> list[tuple[str, ...]]:
    """Return a row for each kind of official area, under :func:`official_head`."""
    rows = []
    for row in run.within_official:
        figures = []
        for loss in (row.largest, row.median):
            figures.append(decimal(loss))
            if not run.pure:
                figures.append(f"{_cks(run, loss):.2f}")
        above = "\u2013" if row.above_spine is None else f"{row.above_spine:,}"
        rows.append((kind_words(row.kind), f"{row.areas:,}", *figures, above))
    return rows


def official_sentences(run: RunFacts) -> tuple[str, ...]:
    """State the loss when a record moves within a smallest official geounit, or within a place."""
    kinds = {row.kind: row for row in run.within_official}
    geolevels = [kind for kind in kinds if kind not in _ENTITIES]
    census = list(run.geounits)[-1] == CENSUS_GEOLEVELS[-1]
    found = []
    for kind in (*geolevels[-1:], *(["place"] if "place" in kinds else [])):
        row = kinds[kind]
        within = one(f"official {words(kind)}" if census and kind in geolevels else words(kind))
        if kind == ALL:
            within = "the whole"
        if not row.largest:
            found.append(
                f"No record can move within {within}: it would change what is published exactly, or has "
                "nowhere to go."
            )
            continue
        text = f"A record that moves within {within} loses at most {_loss_text(run, row.largest)}"
        if row.areas > 1:
            text += f"; in half of the {row.areas:,} {kind_words(kind)} at most {_loss_text(run, row.median)}"
        if row.above_spine:
            leaves = many(words(list(run.geounits)[-1]))
            text += (
                f". In {row.above_spine:,} of the {row.areas:,} it loses more than within one {words(kind)} "
                f"of the spine, because their {leaves} lie in different geounits of it"
            )
        found.append(f"{text}.")
    return tuple(found)


def _cks(run: RunFacts, loss: Fraction) -> float:
    return float(run.losses({"": loss})[""]["epsilon"]["cks"])  # type: ignore[index]


def _loss_text(run: RunFacts, loss: Fraction) -> str:
    if run.pure:
        return f"epsilon = {decimal(loss)}"
    return f"rho = {decimal(loss)} (epsilon about {_cks(run, loss):.2f})"


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One query group over the geolevels of a budget."""

    query: str
    # Share of each geolevel's budget; None where the query is not measured.
    shares: tuple[Fraction | None, ...]
    # One row per distinct share of geounits, largest first; empty where the query is not measured.
    noise: tuple[tuple[NoiseRow, ...], ...]


def share_matrix(run: RunFacts) -> tuple[MatrixRow, ...]:
    """Arrange a budget by query group and geolevel (the geolevels of ``run.geolevel_shares``)."""
    by_place: dict[tuple[str, str], list[NoiseRow]] = {}
    for row in run.rows:
        by_place.setdefault((row.geolevel, row.query), []).append(row)
    levels = tuple(run.geolevel_shares)
    return tuple(
        MatrixRow(
            query,
            tuple(run.query_shares.get(level, {}).get(query) for level in levels),
            tuple(tuple(by_place.get((level, query), ())) for level in levels),
        )
        for query in run.query_groups
    )


def margin_words(rows: Sequence[NoiseRow]) -> str:
    """Return the 90 % margin of a measured answer; a range if geounits have different shares."""
    if not rows:
        return "\u2013"
    low, high = min(row.moe90 for row in rows), max(row.moe90 for row in rows)
    return f"\u00b1{low:,}" if low == high else f"\u00b1{low:,} to \u00b1{high:,}"


@dataclass(frozen=True, slots=True)
class TotalMargin:
    """Margin of one geounit's total, from its own measurements alone."""

    geolevel: str
    geounits: int
    margin: int | None  # in counts; 90 % of the noise lies within it. None if the total is an invariant.
    sentence: str
    label: str  # kind of geounit: "county", or "part of a state" if the spine divides states


def _invariant_from(run: RunFacts) -> int:
    """Return the position of the lowest geolevel whose total is an invariant, -1 if there is none."""
    position = {level: number for number, level in enumerate(run.geounits)}
    position |= {"root": 0, "leaf": len(run.geounits) - 1}
    fixed = [name.removeprefix("total@") for name in run.invariants if name.startswith("total@")]
    return max((position[level] for level in fixed if level in position), default=-1)


def total_margins(run: RunFacts) -> tuple[TotalMargin, ...]:
    """Return for each geolevel the margin of a geounit's total from its own measurements.

    Notes
    -----
    Each query group counts everybody, so the sum of its m noisy answers measures the total with variance
    m times that of one answer. Independent measurements are weighted by the inverse of their variances.
    The margin is that of geounits with the geolevel's least budget, and treats the summed noise as normal.
    Released counts also use the levels above and below, and that counts are not negative.
    """
    found = []
    exact = _invariant_from(run)
    made = {level.geolevel for level in run.spine.levels if not level.official} if run.spine else set()
    for number, (level, geounits) in enumerate(run.geounits.items()):
        here = [row for row in run.rows if row.geolevel == level]
        name, beside = words(level), ""
        whose, total = f"{one(name).capitalize()}'s total", f"The total of {one(name)}"
        if level == ALL:
            whose = total = f"The total of all {'records' if run.contribution else many(run.protected_unit)}"
        if number < exact or (number == exact and level not in made):
            sentence = f"{total} is an invariant: it is exact."
            found.append(TotalMargin(level, geounits, None, sentence, name))
            continue
        if number == exact:  # only divided geounits can hold an invariant without being official
            beside = f" The total of the whole {name} is an invariant: its parts hold it together."
            whose, name = f"The total of one part of {one(name)}", f"part of {one(name)}"
        elif level in made:
            beside = " It is a geounit of the spine, not an official area."
        if run.tied:
            beside += f" The released total is that of the earlier release of {run.tied[0].product}."
        if not here:
            continue
        worst = {row.query: row for row in sorted(here, key=lambda row: row.variance)}
        exact_rows = any(row.variance == 0.0 for row in worst.values())
        precision = sum(1 / (row.cells * row.variance) for row in worst.values() if row.variance)
        margin = 0 if exact_rows else math.ceil(_NORMAL_90 / math.sqrt(precision))
        sentence = (
            f"{whose} is off by at most {margin:,} in about 9 cases out of 10, "
            f"if it is computed from its own measurements alone.{beside}"
        )
        found.append(TotalMargin(level, geounits, margin, sentence, name))
    return tuple(found)


def curve(run: RunFacts) -> tuple[CurvePoint, ...]:
    """Return epsilon of a zCDP run for delta from 0.1 to 1e-16; empty for pure losses."""
    if run.pure:
        return ()
    return _curve(run.loss)


@lru_cache(maxsize=16)
def _curve(loss: Fraction) -> tuple[CurvePoint, ...]:
    return epsilon_curve(loss, [Fraction(1, 10**exponent) for exponent in _EXPONENTS])


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round numbers from at or below `low` to at or above `high`.

    Examples
    --------
    >>> ticks(0.3, 21.0)
    [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
    """
    raw = max(high - low, 1e-9) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * k, 12) for k in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class FileGroup:
    """The files of one folder of the release."""

    folder: str
    files: tuple[Mapping[str, Any], ...]  # entries of the certificate
    bytes: int
    digest: str  # SHA-256 of the lines that ``sha256sum`` prints for the files, in listed order


def file_groups(files: Iterable[Mapping[str, Any]]) -> tuple[FileGroup, ...]:
    """Group the files of a certificate by folder."""
    folders: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        folders.setdefault(file["path"].rpartition("/")[0] or ".", []).append(file)
    groups = []
    for folder, found in folders.items():
        lines = "".join(f"{file['sha256']}  {file['path']}\n" for file in found)
        size = sum(file["bytes"] for file in found)
        groups.append(FileGroup(folder, tuple(found), size, hashlib.sha256(lines.encode()).hexdigest()))
    return tuple(groups)


LEVEL_HEAD = ("Geolevel", "Geounits", "Official", "Children (median)", "Parents of one child", "Bypassed")
ENTITY_HEAD = ("Areas", "Number", "Mean distance", "before", "Largest distance", "before")

_MEDIAN = PERCENTS.index(50)
_ENTITIES = {
    "cousub": "county subdivisions",
    "place": "places",
    "aianhh": "AIAN areas",
    "cd": "congressional districts",
    "sldu": "upper state districts",
    "sldl": "lower state districts",
    "vtd": "voting districts",
    "sdelm": "elementary school districts",
    "sdsec": "secondary school districts",
    "sduni": "unified school districts",
}


def entity_words(category: str) -> str:
    """Return an entity category in words, for instance ``cousub`` as "county subdivisions"."""
    return _ENTITIES.get(category, words(category))


def kind_words(kind: str) -> str:
    """Return an official geolevel or an entity category in the plural."""
    return "whole" if kind == ALL else _ENTITIES.get(kind) or plural(kind, 2).removeprefix("2 ")


def _children(level: LevelSummary) -> str:
    if not level.fanouts:
        return "\u2013"
    low, middle, high = level.fanouts[0], level.fanouts[_MEDIAN], level.fanouts[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,} ({middle:,})"


def level_rows(levels: Sequence[LevelSummary]) -> list[tuple[str, ...]]:
    """Return a row for each level, under :data:`LEVEL_HEAD`."""
    return [
        (
            words(level.geolevel),
            f"{level.geounits:,}",
            "yes" if level.official else "no",
            _children(level),
            f"{level.single_child_parents:,}" if level.fanouts else "\u2013",
            f"{level.bypassed:,}",
        )
        for level in levels
    ]


def entity_rows(entities: Sequence[EntitySummary]) -> list[tuple[str, ...]]:
    """Return a row for each entity category, under :data:`ENTITY_HEAD`."""
    return [
        (
            entity_words(entity.category),
            f"{entity.count:,}",
            f"{entity.mean_distance:,.2f}",
            f"{entity.standard_mean:,.2f}",
            f"{entity.max_distance:,}",
            f"{entity.standard_max:,}",
        )
        for entity in entities
    ]


def spine_sentence(spine: SpineSummary) -> str:
    """State in words whether the measured geounits are official."""
    made = [words(level.geolevel) for level in spine.levels if not level.official]
    if not made:
        census = all(level.geolevel in CENSUS_GEOLEVELS for level in spine.levels)
        return f"Measurements were taken on the {'official geography' if census else 'levels as declared'}."
    return (
        "Measurements were taken on a spine made for this run from public information: at the "
        f"level{'s' if len(made) > 1 else ''} {listed(made)} its geounits are not the official ones. "
        "Tables are of official areas all the same."
    )
