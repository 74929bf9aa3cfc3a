"""What people argue about: bias by race and size, majorities that flip, largest changes, districts, ranks.

Axes: ``g`` geounits, ``k`` race and ethnicity groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from opendas.arrays import Bools, Ints
from opendas.comparison.sources import Common
from opendas.geography.frame import Grouping
from opendas.metrics.errors import LevelErrors, as_sparse, difference, population_bins, summed
from opendas.metrics.race_groups import (
    GROUPS,
    adults,
    blau_index,
    group_counts,
    has_groups,
    quintile_classes,
)

LARGEST = 10
"""Geounits that a list names."""

_DISTRICTS = ("cd", "sldu", "sldl")
_WHITE = GROUPS.index("not_hispanic * white")

Rows = list[dict[str, Any]]


def summaries(
    common: Common,
    labels: Sequence[str],
    units: Mapping[str, Grouping],
    names: Mapping[str, Sequence[str]],
    urban: Grouping | None = None,
) -> dict[str, Rows]:
    """Return the summaries of one product, each a list of rows of plain values.

    - `labels`: names of the sources, the reference last.
    - `units`, geolevel -> Grouping.
    - `names`, geolevel -> the names of its geounits.
    - `urban`: leaves by ``U`` and ``R``, where a source says it.
    """
    found: dict[str, Rows] = {name: [] for name in ("bias", "largest_changes", "empty", "ranks", "districts")}
    if urban is not None:
        found["urban_rural"] = []
    groups = has_groups(common.product)
    if groups:
        found |= {"majority_minority": [], "shares": [], "diversity": []}
    *others, reference = common.estimates
    schema = common.product.schema
    bases: dict[str, Bools | None] = {"total": None}
    if groups and adults(schema) is not None:
        bases["18plus"] = adults(schema)
    for label, estimate in zip(labels, others, strict=False):
        counts, error = as_sparse(reference), difference(reference, estimate)
        for geolevel, places in units.items():
            level = LevelErrors(places, summed(counts, places), summed(error, places))
            head = {"geolevel": geolevel, "source": label}
            before, after = level.population, level.population + level.total_error
            races = (group_counts(level.truth, schema), group_counts(level.error, schema)) if groups else None
            found["bias"] += [head | row for row in _bias(level, races)]
            found["largest_changes"] += [
                head | row for row in _largest(places, names[geolevel], before, after)
            ]
            found["empty"].append(head | _emptied(before, after))
            found["ranks"].append(head | _ranks(before, after))
            drawn = geolevel in _DISTRICTS or not common.frame.has(geolevel)
            if drawn and len(places) > 1 and common.product.layout != "units":
                found["districts"].append(head | _deviations(places, names[geolevel], before, after))
            if urban is not None:
                found["urban_rural"].append(head | _urban(level, urban))
            if races is not None:
                found["shares"] += [head | row for row in _shares(*races)]
                found["diversity"] += [head | row for row in _diversity(level, races[0])]
            for base, keep in bases.items() if groups else ():
                truth = group_counts(level.truth, schema, keep)
                changed = truth + group_counts(level.error, schema, keep)
                found["majority_minority"].append(
                    head | {"base": base} | _flips(places, names[geolevel], truth, changed)
                )
    return found


def _bias(level: LevelErrors, races: tuple[Ints, Ints] | None) -> Iterator[dict[str, Any]]:
    """Yield mean differences of the total and of each group, over all geounits and by their size."""
    before, error = level.population[:, None], level.total_error[:, None]
    columns: tuple[str, ...] = ("total",)
    if races is not None:
        before, error = np.hstack([before, races[0]]), np.hstack([error, races[1]])
        columns += GROUPS
    bins = population_bins(level.units.geolevel)
    of_unit = bins.of(level.population)
    for size in (None, *range(len(bins.labels))):
        inside = np.ones(len(of_unit), dtype=np.bool_) if size is None else of_unit == size
        units = int(inside.sum())
        if not units:
            continue
        for number, column in enumerate(columns):
            moved, held = error[inside, number], int(before[inside, number].sum())
            yield {
                "size": None if size is None else bins.labels[size],
                "group": column,
                "geounits": units,
                "reference": held,
                "mean_difference": int(moved.sum()) / units,
                "mean_abs_difference": int(np.abs(moved).sum()) / units,
                "percent": 100 * int(moved.sum()) / held if held else None,
            }


def _diversity(level: LevelErrors, races: Ints) -> Iterator[dict[str, Any]]:
    """Yield mean differences of the total by quintile of the reference's Blau index.

    Notes
    -----
    TopDown paper, section 9, Table 13.
    """
    quintiles, of_unit = quintile_classes(blau_index(races))
    for number, quintile in enumerate(quintiles):
        moved = level.total_error[of_unit == number]
        if len(moved):
            yield {
                "quintile": quintile,
                "geounits": len(moved),
                "mean_difference": int(moved.sum()) / len(moved),
                "mean_abs_difference": int(np.abs(moved).sum()) / len(moved),
            }


def _geounit_row(places: Grouping, names: Sequence[str], number: int) -> dict[str, Any]:
    return {"geocode": bytes(places.geocodes[number]).decode(), "name": names[number]}


def _largest(places: Grouping, names: Sequence[str], before: Ints, after: Ints) -> Iterator[dict[str, Any]]:
    """Yield the geounits whose total differs most."""
    moved = np.abs(after - before)
    for rank, number in enumerate(np.argsort(-moved, kind="stable")[:LARGEST].tolist(), 1):
        if moved[number] == 0:
            return
        held = int(before[number])
        change = int(after[number]) - held
        yield {
            "rank": rank,
            **_geounit_row(places, names, number),
            "value": int(after[number]),
            "reference": held,
            "difference": change,
            "percent": 100 * change / held if held else None,
        }


def _emptied(before: Ints, after: Ints) -> dict[str, int]:
    """Count geounits that are populated on one side only, and who lives in them."""
    made, gone = (before == 0) & (after > 0), (before > 0) & (after == 0)
    return {
        "geounits": len(before),
        "populated": int((before > 0).sum()),
        "empty_made_populated": int(made.sum()),
        "in_them": int(after[made].sum()),
        "populated_made_empty": int(gone.sum()),
        "were_in_them": int(before[gone].sum()),
    }


def _ranks(before: Ints, after: Ints) -> dict[str, Any]:
    """Compare the order of geounits by size: Spearman's correlation, and who stays among the largest."""
    n = len(before)
    one, other = rankdata(before), rankdata(after)
    spread = float(one.std() * other.std())
    covariance = float(((one - one.mean()) * (other - other.mean())).mean())
    top = min(LARGEST, n)
    largest = [set(np.argsort(-counts, kind="stable")[:top].tolist()) for counts in (before, after)]
    return {
        "geounits": n,
        "rank_correlation": covariance / spread if spread else None,
        "largest": top,
        "stay_among_largest": len(largest[0] & largest[1]),
    }


def _deviations(places: Grouping, names: Sequence[str], before: Ints, after: Ints) -> dict[str, Any]:
    """Measure how far districts are from equal population: the largest less the smallest, by the mean."""

    def deviation(counts: Ints) -> float | None:
        mean = int(counts.sum()) / len(counts)
        return 100 * int(counts.max() - counts.min()) / mean if mean else None

    return {
        "districts": len(before),
        "range_percent": deviation(after),
        "reference_range_percent": deviation(before),
        "rows": [
            _geounit_row(places, names, number)
            | {"value": int(after[number]), "reference": int(before[number])}
            | {
                "deviation_percent": 100 * (int(after[number]) * len(after) / max(1, int(after.sum())) - 1),
                "reference_deviation_percent": 100
                * (int(before[number]) * len(before) / max(1, int(before.sum())) - 1),
            }
            for number in range(len(before))
        ],
    }


def _urban(level: LevelErrors, urban: Grouping) -> dict[str, Any]:
    """Compare geounits that are urban, rural, or of both kinds, by the blocks that they have."""
    units = level.units
    inside = (units.of_leaf >= 0) & (urban.of_leaf >= 0)
    seen = np.zeros((len(units), len(urban)), dtype=np.bool_)
    seen[units.of_leaf[inside], urban.of_leaf[inside]] = True
    words = {b"U": "urban", b"R": "rural"}
    rows = []
    for name, chosen in (
        *((words.get(bytes(code), bytes(code).decode()), k) for k, code in enumerate(urban.geocodes)),
        ("both", None),
    ):
        here = seen.sum(axis=1) > 1 if chosen is None else seen[:, chosen] & (seen.sum(axis=1) == 1)
        if here.any():
            moved = level.total_error[here]
            held = int(level.population[here].sum())
            rows.append(
                {
                    "kind": name,
                    "geounits": int(here.sum()),
                    "value": held + int(moved.sum()),
                    "reference": held,
                    "mean_difference": int(moved.sum()) / len(moved),
                    "mean_abs_difference": int(np.abs(moved).sum()) / len(moved),
                }
            )
    return {"rows": rows}


def _shares(before: Ints, error: Ints) -> Iterator[dict[str, Any]]:
    """Yield by how many percentage points the share of each group moves where someone lives in both."""
    after = before + error
    there = (before.sum(axis=1) > 0) & (after.sum(axis=1) > 0)
    units = int(there.sum())
    if not units:
        return
    shares = [100.0 * counts[there] / counts[there].sum(axis=1, keepdims=True) for counts in (before, after)]
    moved = shares[1] - shares[0]
    for number, group in enumerate(GROUPS):
        yield {
            "group": group,
            "geounits": units,
            "mean_difference_points": float(moved[:, number].mean()),
            "mean_abs_difference_points": float(np.abs(moved[:, number]).mean()),
            "largest_abs_difference_points": float(np.abs(moved[:, number]).max()),
        }


def _flips(places: Grouping, names: Sequence[str], before: Ints, after: Ints) -> dict[str, Any]:
    """Count geounits in which a majority is not non-Hispanic white on one side only."""

    def minority(counts: Ints) -> Bools:
        return np.asarray(2 * (counts.sum(axis=1) - counts[:, _WHITE]) > counts.sum(axis=1))

    one, other = minority(before), minority(after)
    flipped = np.flatnonzero(one != other)
    largest = flipped[np.argsort(-before[flipped].sum(axis=1), kind="stable")[:LARGEST]]

    def share(counts: Ints) -> float | None:
        total = int(counts.sum())
        return 100 * (total - int(counts[_WHITE])) / total if total else None

    return {
        "geounits": len(before),
        "value": int(other.sum()),
        "reference": int(one.sum()),
        "became": int((other & ~one).sum()),
        "ceased": int((one & ~other).sum()),
        "largest_flips": [
            _geounit_row(places, names, number)
            | {"population": int(before[number].sum())}
            | {"percent": share(after[number]), "reference_percent": share(before[number])}
            for number in largest.tolist()
        ],
    }
