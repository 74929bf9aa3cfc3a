"""The budget that published variances come from, exactly: apart, because it needs variances and nothing else.

A file states the variance of each answer in single precision. Budgets are exact fractions: the preset or the
stated budget that has these variances is taken as it is; of another one only what the file tells is known,
and fractions are put in its place that differ from it by less than the file's own rounding.

Axes: ``g`` geounits of a geolevel, ``c`` classes of them with equal noise, ``q`` query groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from opendas.arrays import Floats
from opendas.budget.presets import preset, preset_names
from opendas.budget.resolve import BudgetSpec
from opendas.errors import BudgetError, FormatError
from opendas.files.nmf.bureau_tree import uneven_losses
from opendas.geography.spine import Shares, Spine
from opendas.intervals.noisy_tree import NoisyLevel
from opendas.privacy.exact import format_fraction
from opendas.runs.config.product_file import load_product
from opendas.runs.config.resolve import is_of_second
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.product import Product

_CLOSE = 3e-7
"""Part by which a variance in single precision differs from what it was, with room for a rounding or two."""

_PLAIN = 1000
"""Denominator up to which a total that shares leave open is taken for a fraction that was chosen."""

_FINEST = 10**9


@dataclass(frozen=True, slots=True)
class StatedBudget:
    """A budget that a file may have been measured with."""

    words: str  # what it is called
    rho: Fraction  # of a product and its second histogram together
    geolevels: Mapping[str, Fraction]
    queries: Mapping[str, Mapping[str, Fraction]]  # by geolevel and query group of one of them, in its names

    @classmethod
    def of_preset(cls, name: str) -> dict[str, StatedBudget]:
        """Return what a preset gives to its product, and to that one's second histogram, by their names."""
        known = preset(name)
        product = load_product(known.product)
        found = {}
        for each in (product, product.companion):
            if each is None:
                continue
            queries = {
                level: {
                    each.workload.canonical(query): share
                    for query, share in shares.items()
                    if product.companion is None
                    or is_of_second(query, product.companion) == (each is product.companion)
                }
                for level, shares in known.queries.items()
            }
            found[each.name] = cls(f"the preset {name}", known.rho, known.geolevels, queries)
        return found

    def on(self, levels: Sequence[str], observed: float) -> Iterator[StatedBudget]:
        """Yield what it is on a spine with these levels: nothing where it does not know one of them.

        Of levels that the spine lacks the loss is left out, or, as a run that rescales shares has it, given
        to the others. Last comes the same shares of the total that was observed, if that is a plain fraction.
        What another histogram has of it is not in what is yielded.
        """
        shares = {level: self.geolevels.get(level, Fraction(0)) for level in levels}
        kept = sum(shares.values(), Fraction(0))
        if not kept or any(share and level not in self.queries for level, share in shares.items()):
            return
        own = {level: sum(self.queries[level].values(), Fraction(0)) for level in levels if shares[level]}
        spent = {level: share / kept * own.get(level, 0) for level, share in shares.items()}
        part = sum(spent.values(), Fraction(0))
        if not part:
            return
        shares = {level: loss / part for level, loss in spent.items()}
        queries = {
            level: {query: share / own[level] for query, share in self.queries[level].items()}
            for level in levels
            if shares[level]
        }
        here = "" if kept == 1 else ", without the geolevels that the file lacks"
        yield StatedBudget(f"{self.words}{here}", self.rho * kept * part, shares, queries)
        words = f"the shares of {self.words}"
        for rho in (self.rho, Fraction(observed / float(part)).limit_denominator(_PLAIN)):
            yield StatedBudget(f"{words} of rho = {format_fraction(rho)}", rho * part, shares, queries)

    def spec(self) -> BudgetSpec:
        """Return it as a run file would state it."""
        return BudgetSpec(
            rho=self.rho,
            geolevels=self.geolevels,
            queries=self.queries,
            source=f"published variances: {self.words}",
        )


def implied_budget(
    product: Product, spine: Spine, noisy: Sequence[NoisyLevel], stated: StatedBudget | None = None
) -> tuple[BudgetSpec, Spine]:
    """Return the budget that variances come from, and the spine with what each geounit has of it.

    - `spine`: without shares.
    - `stated`: the only one that is looked at. By default all presets of the product.
    """
    published = [_published(level) for level in noisy]
    spent = [level.losses.sum(axis=1)[level.which] for level in noisy]
    uneven = uneven_losses(spine, spent)
    if uneven is not None:
        leaf, number, least, most = uneven
        raise FormatError(
            f"the noise cannot come from one budget: rho from the top down to block {_code(spine, leaf)} "
            f"sums to {least:.6g}, and down to another block to {most:.6g}. They differ most at "
            f"{spine.names[number]}: a part of its measurements may be missing, or variances may have been "
            "changed. opendas nmf shows what the file holds."
        )
    observed = float(sum(level[0] for level in spent))  # on the way from the top to the first leaf
    given = (
        [stated]
        if stated is not None
        else [
            budgets[product.name]
            for name in preset_names()
            if product.name.startswith(preset(name).product)
            and product.name in (budgets := StatedBudget.of_preset(name))
        ]
    )
    unlike = ""
    for budget in (one for each in given for one in each.on(spine.names, observed)):
        found = _shares_by(budget, noisy, published)
        if isinstance(found, str):
            unlike = unlike or found
            continue
        shared = replace(spine, shares=tuple(found))
        try:
            shared.check_paths([budget.geolevels[name] for name in spine.names])
        except BudgetError as error:
            unlike = unlike or str(error)
            continue
        return budget.spec(), shared
    if stated is not None:
        raise FormatError(
            f"the variances are not those of {stated.words}: "
            f"{unlike or 'its shares do not fit the geolevels of the file.'} Leave out --budget to infer the "
            "budget from the variances."
        )
    return _rounded(spine, noisy, published)


def _published(level: NoisyLevel) -> Floats:
    """Return ``sigma2`` of each published variance, float64 (c, q); infinite where a class was not asked."""
    found = np.full((len(level.laws), len(level.queries)), np.inf)
    for row, laws in enumerate(level.laws):
        for column, law in enumerate(laws):
            if isinstance(law, DiscreteGaussian):
                found[row, column] = float(law.sigma2)
    return found


def _code(spine: Spine, leaf: int) -> str:
    return str(spine.leaf.geocodes[leaf].decode())


def _shares_by(
    budget: StatedBudget, noisy: Sequence[NoisyLevel], published: Sequence[Floats]
) -> list[Shares | None] | str:
    """Return what the geounits have of their levels' shares; or in words where the variances are others."""
    names = [level.geolevel for level in noisy]
    own = [budget.geolevels[name] for name in names]
    found: list[Shares | None] = []
    for number, level in enumerate(noisy):
        queries = [query.name for query in level.queries]
        asked = np.asarray(np.isfinite(published[number]).all(axis=1) & bool(queries))
        planned = budget.queries.get(level.geolevel, {}) if own[number] else {}
        planned = {query: share for query, share in planned.items() if share}
        if asked.any() and set(queries) != set(planned):
            other = sorted(set(queries) ^ set(planned))[0]
            has, lacks = ("the file", "that budget") if other in queries else ("that budget", "the file")
            return f"at {level.geolevel} {has} has query {other!r}, and {lacks} does not."
        if not own[number]:
            found.append(None)
            continue
        multiples = [Fraction(0)] * len(asked)
        for kind in np.flatnonzero(asked).tolist():
            values = dict(zip(queries, published[number][kind].tolist(), strict=True))
            fitting = [m for m in _possible(own, number) if not _misfit(budget, number, names, values, m)]
            if not fitting:
                query = _misfit(budget, number, names, values, Fraction(1))
                sigma2 = 1 / (budget.rho * own[number] * planned[query])
                variance = level.variances[kind, queries.index(query)]
                return (
                    f"query {query!r} at {level.geolevel} has variance {variance:.8g} in the file, and "
                    f"{DiscreteGaussian(sigma2).variance:.8g} by that budget."
                )
            multiples[kind] = fitting[0]
        found.append(Shares.of(multiples, level.which))
    return found


def _possible(own: Sequence[Fraction], number: int) -> list[Fraction]:
    """Return what multiples of its share a geounit of a level may have: with those of levels beside it."""
    sums = {
        sum(own[first:last], Fraction(0))
        for first in range(number + 1)
        for last in range(number + 1, len(own) + 1)
    }
    return sorted(total / own[number] for total in sums)


def _misfit(
    budget: StatedBudget, number: int, names: Sequence[str], values: Mapping[str, float], multiple: Fraction
) -> str:
    """Return the first query group whose noise is not that of the budget; an empty text if all are."""
    share = budget.rho * budget.geolevels[names[number]] * multiple
    for query, value in values.items():
        sigma2 = 1 / (share * budget.queries[names[number]][query])
        if abs(value - float(sigma2)) > _CLOSE * value:
            return query
    return ""


def _rounded(
    spine: Spine, noisy: Sequence[NoisyLevel], published: Sequence[Floats]
) -> tuple[BudgetSpec, Spine]:
    """Return a budget of plain fractions with these variances, to their precision.

    The share of a level is what its geounits have on a way where no level was bypassed.
    """
    place = np.arange(len(spine.leaf))
    kinds = [noisy[-1].which]
    for number in range(len(spine.levels) - 1, 0, -1):
        place = spine.levels[number].parent[place]
        kinds.append(noisy[number - 1].which[place])
    ways = np.unique(np.column_stack(kinds[::-1]), axis=0).tolist()
    asked = [
        np.asarray(np.isfinite(variance).all(axis=1) & bool(level.queries))
        for variance, level in zip(published, noisy, strict=True)
    ]
    there = [bool(one.any()) for one in asked]
    plain = next(
        (
            way
            for way in ways
            if all(one[kind] == some for one, kind, some in zip(asked, way, there, strict=True))
        ),
        None,
    )
    if plain is None:
        raise FormatError(
            "no preset has these variances, and on every path from the top to a block some geounit lacks the "
            "measurements that others of its geolevel have. So the shares of the geolevels cannot be told "
            "apart. State the budget: --budget PRESET, or --budget RUN.toml."
        )
    rhos: dict[str, dict[str, Fraction]] = {}
    for level, variance, kind, measured in zip(noisy, published, plain, there, strict=True):
        if measured:
            exact = [Fraction(1 / value).limit_denominator(_FINEST) for value in variance[kind].tolist()]
            rhos[level.geolevel] = {query.name: rho for query, rho in zip(level.queries, exact, strict=True)}
    sums = {level: sum(shares.values(), Fraction(0)) for level, shares in rhos.items()}
    total = sum(sums.values(), Fraction(0))
    budget = StatedBudget(
        "of no known budget, whose fractions are rounded to nine digits",
        total,
        {name: sums.get(name, Fraction(0)) / total for name in spine.names},
        {
            level: {query: rho / sums[level] for query, rho in shares.items()}
            for level, shares in rhos.items()
        },
    )
    found = _shares_by(budget, noisy, published)
    if isinstance(found, str):
        raise FormatError(
            "no preset has these variances, and a budget inferred from some geounits does not fit all: "
            f"{found} State the budget: --budget PRESET, or --budget RUN.toml."
        )
    shared = replace(spine, shares=tuple(found))
    try:
        shared.check_paths([budget.geolevels[name] for name in spine.names])
    except BudgetError as error:
        raise FormatError(f"the variances cannot come from one budget: {error}") from error
    return budget.spec(), shared
