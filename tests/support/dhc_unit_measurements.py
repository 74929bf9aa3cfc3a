"""Synthetic households in the published layout of the DHC units' measurement files."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from opendas.intervals.laws import probabilities
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.dhc_units import dhc_units
from opendas.schema.product import Product
from support.dhc_measurements import GEOCODES, LEVELS, MadeCounty

UNIT_NAMES = (
    "multig * hisp * hhtenshort_2lev",
    "hisp * hhtenshort_2lev * race",
    "sex * hisp * hhtenshort_3lev * race * DetailedCoupleTypeMultGenDetOwnChildSize",
    "detailed",
    "tenvacgq",
)


class MadeHouseholds(MadeCounty):
    """Households of three blocks, and vacant units and group quarters beside them."""

    @cached_property
    def product(self) -> Product:
        return dhc_units()

    @cached_property
    def blocks(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        cells = np.flatnonzero(self.product.possible)
        return [rng.choice(cells[:: 997 + self.seed], size) for size in self.people]

    def units(self, geocode: str) -> np.ndarray:
        """Return all units by tenure, vacancy and type, int64 (35,): of the rented, a third without rent."""
        found = np.zeros(35, dtype=np.int64)
        tenure = self.product.workload.group("hhtenshort_3lev").answers(self.counts(geocode))
        found[:4] = (*tenure[:2], tenure[2] - tenure[2] // 3, tenure[2] // 3)
        found[4], found[20] = 7, 2
        return found

    @cached_property
    def published_name(self) -> dict[str, str]:
        return {}

    def answers(self, level: str, geocode: str, query: str) -> tuple[np.ndarray, float]:
        law = DiscreteGaussian(5 + LEVELS.index(level))
        chance = probabilities(law)
        exact = (
            self.units(geocode)
            if query == "tenvacgq"
            else self.product.workload.group(query).answers(self.counts(geocode))
        )
        rng = np.random.default_rng([self.seed, LEVELS.index(level), int(geocode[-9:]), len(exact)])
        noise = rng.choice(len(chance), len(exact), p=chance) - len(chance) // 2
        return exact + noise, float(law.variance)

    def shape(self, query: str) -> list[int]:
        return [35] if query == "tenvacgq" else super().shape(query)

    def _constraints(self, level: str) -> pa.Table:
        codes = GEOCODES[level]
        lists = pa.list_(pa.int64())
        return pa.table(
            {
                "geocode": list(codes),
                "query_name": ["h1_toth1occupied_con"] * len(codes),
                "sign": ["="] * len(codes),
                "query_shape": pa.array([[1] * 7] * len(codes), lists),
                "value": pa.array([[1_000]] * len(codes), lists),
            }
        )
