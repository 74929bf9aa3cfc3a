"""What is audited: the plan of the 2020 persons product, measured by the code that a run uses.

The variances to expect are written down here from the published allocation, as plain fractions, and come
from no module of the package: an error in the package's budget arithmetic shows as a misfit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from opendas.budget.allocation import Budget
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.constraints.table import LevelConstraints
from opendas.custody.run_key import RunKey
from opendas.engines.subtree import Part, PartLevel
from opendas.engines.truth import input_tag
from opendas.engines.work import KeyedSource
from opendas.geography.spine import Spine, SpineLevel
from opendas.measurement.family import MeasurementSource
from opendas.measurement.noisy import MeasuredLevel, measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

__all__ = ["LEVELS", "RHO", "Subject", "declared_sigma2", "make_subject"]

LEVELS = ("us", "state", "county", "tract", "block_group", "block")
RHO = Fraction(293764, 114921)
_LEVEL_SHARES = dict(zip(LEVELS, (104, 1440, 447, 687, 1256, 165), strict=True))
_LEVEL_TOTAL = 4099

# Published shares of the query groups within a geolevel, top to bottom, by the factors of the group.
_QUERY_SHARES: Mapping[frozenset[str], tuple[str, ...]] = {
    frozenset(): ("0", "3773/4097", "3126/4097", "1567/4102", "1705/4099", "5/4097"),
    frozenset({"cenrace"}): ("52/4097", "6/4097", "10/4097", "4/2051", "3/4099", "9/4097"),
    **{
        frozenset(factors): ("26/4097", "6/4097", "10/4097", "5/4102", "3/4099", "5/4097")
        for factors in ({"hispanic"}, {"votingage"}, {"hhinstlevels"}, {"hhgq"}, {"votingage", "hispanic"})
    },
    frozenset({"hispanic", "cenrace"}): (
        "130/4097", "12/4097", "28/4097", "1933/4102", "1055/4099", "21/4097",
    ),
    frozenset({"votingage", "cenrace"}): (
        "130/4097", "12/4097", "28/4097", "10/2051", "9/4099", "21/4097",
    ),
    frozenset({"votingage", "hispanic", "cenrace"}): (
        "26/241", "2/241", "101/4097", "67/4102", "24/4099", "71/4097",
    ),
    frozenset({"detailed"}): (
        "189/241", "230/4097", "754/4097", "241/2051", "1288/4099", "3945/4097",
    ),
}  # fmt: skip


def declared_sigma2(geolevel: str, query: str) -> Fraction:
    """Return ``1 / (share of the query * share of the geolevel * rho)``; replacing one record is a change."""
    factors = frozenset() if query == "total" else frozenset(query.split(" * "))
    share = Fraction(_QUERY_SHARES[factors][LEVELS.index(geolevel)])
    return 1 / (share * Fraction(_LEVEL_SHARES[geolevel], _LEVEL_TOTAL) * RHO)


@dataclass(frozen=True)
class Subject:
    """A plan on a spine of separate chains, one geounit a geolevel, ready to be measured under many keys.

    Parameters
    ----------
    plan : MeasurementPlan
    levels : tuple of MeasuredLevel
        What the workers of a run are given.
    part : Part
        The whole spine as one task.
    chains : int
        Number of roots, and of leaves.
    """

    plan: MeasurementPlan
    levels: tuple[MeasuredLevel, ...]
    part: Part
    chains: int

    @property
    def cells(self) -> int:
        """Number of cells of the schema."""
        return self.plan.product.schema.size

    def row_of_cell(self, query: str) -> npt.NDArray[np.int32]:
        """Return the row of a query group that counts each cell."""
        return self.plan.product.workload.group(query).row_of_cell

    def counts(self, cells: npt.NDArray[np.int64]) -> Histogram:
        """Return the input in which chain ``i`` holds one record in each of ``cells[i]``; -1 is none."""
        rows = np.repeat(np.arange(self.chains), cells.shape[1])
        flat = cells.ravel()
        kept = flat >= 0
        return Histogram.from_entries(
            rows[kept], flat[kept], np.ones(kept.sum(), np.int64), shape=(self.chains, self.cells)
        )

    def noise_key(self, run_key: RunKey, counts: Histogram) -> bytes:
        """Derive the noise key as a run does, bound to plan and input."""
        tag = input_tag(run_key, counts)
        return run_key.derive(
            "noise/" + self.plan.product.name, bytes.fromhex(self.plan.digest()), bytes.fromhex(tag)
        )

    def measure(self, key: bytes, counts: Histogram) -> MeasurementSource:
        """Return the measurements under a noise key, as a worker opens them."""
        return KeyedSource(self.levels, key).open(self.part, counts)


def _chain_spine(chains: int) -> Spine:
    codes = np.array([f"{i:07d}" for i in range(chains)], dtype="S7")
    parent = np.arange(chains, dtype=np.int64)
    levels = tuple(
        SpineLevel(name, codes, np.zeros(chains, np.int64) if i == 0 else parent)
        for i, name in enumerate(LEVELS)
    )
    return Spine(levels, parent, (None,) * len(LEVELS))


def make_subject(chains: int, budget: Budget | None = None) -> Subject:
    """Build the subject; another budget makes a mutant."""
    product = pl94_persons()
    spine = _chain_spine(chains)
    if budget is None:
        spec = BudgetSpec(preset="us2020-persons")
        budget = resolve_budget(spec, LEVELS, product.workload.canonical)
    plan = MeasurementPlan(product, spine, budget)
    free = LevelConstraints(np.zeros((chains, 0), np.int64), np.zeros((chains, 0), np.int64), ())
    starts = np.arange(chains + 1, dtype=np.int64)
    part = Part(
        tuple(
            PartLevel(i, 0, level.geocodes, starts if i + 1 < len(LEVELS) else None, free)
            for i, level in enumerate(spine.levels)
        ),
        None,
    )
    return Subject(plan, measured_levels(plan), part, chains)
