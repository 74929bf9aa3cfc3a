"""What a noisy measurement file holds, without its answers: what was asked where, with what noise.

Axes: ``g`` geounits of a geolevel in spine order, ``c`` classes of geounits with equal noise, ``q`` query
groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.files.mdf.layout import PRODUCTION_LAYOUTS
from opendas.files.nmf.bureau import Progress
from opendas.files.nmf.bureau_tree import BureauFile, uneven_losses
from opendas.geography.spine import Spine
from opendas.intervals.noisy_tree import NoisyLevel, NoisyTree
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.product import Product


@dataclass(frozen=True, slots=True, eq=False)
class LevelSummary:
    """One geolevel."""

    geolevel: str
    queries: tuple[str, ...]
    rows: tuple[int, ...]
    variance: Floats  # (c, q): infinite where a class was not asked
    # (c, q): rho of each answer between bounded neighbours, one over the parameter of its noise; 0 where not
    # asked.
    loss: Floats
    which: Ints  # (g,)
    exact: tuple[str, ...]  # names of what the file says exactly about geounits of this level

    @classmethod
    def of(cls, noisy: NoisyLevel, queries: Iterable[str], exact: Iterable[str]) -> LevelSummary:
        """Return what was measured of a geolevel; `queries` as the file calls them."""
        rows = tuple(query.size for query in noisy.queries)
        return cls(
            noisy.geolevel, tuple(queries), rows, noisy.variances, noisy.losses, noisy.which, tuple(exact)
        )

    @property
    def spent(self) -> Floats:
        """Rho of each geounit, float64 (g,)."""
        return np.asarray(self.loss.sum(axis=1)[self.which])

    def to_dict(self) -> dict[str, Any]:
        """Plain values: of each query group the geounits asked, and the range of its variance."""
        number = np.bincount(self.which, minlength=len(self.variance))
        queries = []
        for column, name in enumerate(self.queries):
            there = np.isfinite(self.variance[:, column]) & (number > 0)
            some = self.variance[there, column]
            usual = np.flatnonzero(there)[np.argmax(number[there])] if len(some) else None
            queries.append(
                {
                    "query": name,
                    "rows": self.rows[column],
                    "geounits": int(number[there].sum()),
                    "variance": None if usual is None else float(self.variance[usual, column]),
                    "least_variance": float(some.min()) if len(some) else None,
                    "most_variance": float(some.max()) if len(some) else None,
                }
            )
        return {
            "geolevel": self.geolevel,
            "geounits": len(self.which),
            "measured": int(np.count_nonzero(self.spent)),
            "queries": queries,
            "exact": list(self.exact),
        }


@dataclass(frozen=True, slots=True, eq=False)
class FileSummary:
    """A noisy measurement file."""

    product: Product
    layout: str  # ``census-bureau`` or ``opendas``
    spine: Spine
    states: tuple[str, ...]  # two digits each; empty where leaves are no blocks
    levels: tuple[LevelSummary, ...]  # top first
    gaussian: bool  # whether all noise is Gaussian, so that losses are rho
    unlike: tuple[str, ...] = ()  # parts whose columns are not those of others, in words

    def losses(self) -> tuple[float, float]:
        """Return the least and the largest sum of rho on the way from the top to a leaf."""
        total = np.zeros(1)
        for number, level in enumerate(self.levels):
            above = total[self.spine.levels[number].parent] if number else 0.0
            total = above + level.spent
        return float(total.min()), float(total.max())

    def missing(self) -> list[str]:
        """Return in words what the file leaves out and a reader may look for."""
        found = []
        exact = {name for level in self.levels for name in level.exact}
        top = self.levels[0].geolevel
        counts_people = self.product.layout in ("persons", "dhc-persons")
        if counts_people and self.layout == "census-bureau" and not exact & {"total", "pl94"}:
            found.append(
                "totals of states: where a published table has them exactly, opendas interval and estimate "
                "take it by --totals"
            )
        if top != "us" and self.layout == "census-bureau":
            found.append("measurements of the nation: they are about all states, and not read here")
        for level in self.levels:
            unasked = len(level.which) - int(np.count_nonzero(level.spent))
            if unasked:
                found.append(
                    f"{level.geolevel}: {unasked:,} of {len(level.which):,} geounits were not asked "
                    "(bypassed, or the geolevel has no budget, or their measurements are missing)"
                )
        if self.layout == "census-bureau":
            found.append("places and districts: a block's code tells state, county, tract and block group")
        return found

    def contradictions(self) -> list[str]:
        """Return in words where variances and a budget cannot belong together."""
        if not self.gaussian:
            return []
        uneven = uneven_losses(self.spine, [level.spent for level in self.levels])
        if uneven is None:
            return []
        leaf, level, least, most = uneven
        return [
            f"rho on the way to leaf {self.spine.leaf.geocodes[leaf].decode()} is {least:.6g}, to others up "
            f"to {most:.6g}: one budget gives all the same. They differ most at "
            f"{self.levels[level].geolevel}: see whether a part of the file is missing or variances "
            "were changed"
        ]

    def to_dict(self, tables: Sequence[str], budgets: Mapping[str, Fraction]) -> dict[str, Any]:
        """Plain values.

        - `tables`: that can be made of the product.
        - `budgets`: rho of known runs of the product, by name.
        """
        least, most = self.losses()
        known = [name for name, rho in budgets.items() if abs(float(rho) - most) <= 1e-4 * float(rho)]
        names = self.product.query_names
        return {
            "product": self.product.name,
            "layout": self.layout,
            "states": list(self.states),
            "rho": most if self.gaussian else None,
            "least_rho": least if self.gaussian else None,
            "budget_of": known,
            "levels": [level.to_dict() for level in self.levels],
            "missing": self.missing(),
            "contradictions": self.contradictions(),
            "unlike_parts": list(self.unlike),
            "tables": list(tables),
            "query_groups": list(dict.fromkeys((*self._asked(), *names))),
            "attributes": {a.name: len(a.levels) for a in self.product.schema.attributes},
            "recodes": [recode.name for recode in self.product.recodes],
        }

    def _asked(self) -> list[str]:
        return list(dict.fromkeys(name for level in self.levels for name in level.queries))


def summary_of_tree(tree: NoisyTree) -> FileSummary:
    """Return the summary of measurements of a release."""
    levels, gaussian = [], True
    for noisy, held in zip(tree.levels, tree.constraints.levels, strict=True):
        gaussian &= all(
            law is None or isinstance(law, DiscreteGaussian) for kind in noisy.laws for law in kind
        )
        exact = [invariant.query.name for invariant in held.invariants]
        exact += ["total of parts together"] if held.joint is not None else []
        exact += ["bounds"] if tree.product.bounds else []
        levels.append(LevelSummary.of(noisy, (query.name for query in noisy.queries), exact))
    census = tree.product.layout in PRODUCTION_LAYOUTS
    codes = np.unique(tree.frame.geocodes.astype("S2")).tolist() if census else []
    states = tuple(code.decode() for code in codes)
    return FileSummary(tree.product, "opendas", tree.spine, states, tuple(levels), gaussian)


def summary_of_file(path: Path, state: str | None = None, progress: Progress | None = None) -> FileSummary:
    """Return the summary of a file of the Bureau's layout; no answer is read."""
    file = BureauFile.open(path, state, progress=progress)
    levels = []
    for level in file.levels:
        names, noisy = file.noise(level)
        exact = sorted({name.removesuffix("_con") for name in level.constraints.names})
        levels.append(LevelSummary.of(noisy, names, exact))
    states = tuple(code.decode() for code in np.unique(file.frame.geocodes.astype("S2")).tolist())
    unlike = [said for level in file.levels for said in (*level.measured.unlike, *level.constraints.unlike)]
    return FileSummary(file.product, "census-bureau", file.spine, states, tuple(levels), True, tuple(unlike))
