"""A made county in the published layout of the DHC noisy measurement files: names, shapes and noise as there.

Names of queries and constraints, shapes, folders, geocodes and variances are those of the Bureau's public
files; the people are random. Measurements hold all 1.9 million answers of each geounit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opendas.intervals.laws import probabilities
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.dhc_persons import PL94_CELL, dhc_persons
from opendas.schema.product import Product

LEVELS = ("State", "County", "Prim", "Tract_Subset_Group", "Tract_Subset", "Block_Group", "Block")

NAMES = {
    "age_18_64_116 * relgq_4_groups": (999, 310, 478, 478, 868, 430, 11),
    "age_18_64_116 * sex": (999, 310, 478, 478, 868, 430, 11),
    "age_38_groups * sex": (999, 310, 478, 478, 868, 430, 11),
    "hispanic * sex": (999, 310, 478, 478, 868, 430, 11),
    "sex * relgq_4_groups": (999, 310, 478, 478, 868, 430, 11),
    "gq_constr_groups * age_10_groups": (3996, 1240, 1912, 1912, 3472, 430, 11),
    "popSehsdTargetsRelship": (999, 1240, 478, 478, 3472, 430, 11),
    "hispanic * sex * age_40_groups * relship_and_eight_level_GQ * cenrace": (
        999,
        310,
        478,
        478,
        868,
        430,
        11,
    ),
    "relgq * age_40_groups * hispanic * cenrace * sex": (999, 310, 478, 478, 868, 430, 11),
    "detailed": (999, 310, 478, 478, 868, 430, 11),
}
"""Queries as they are named in the files, and rho in ten thousandths from State to Block."""

GEOCODES: dict[str, tuple[str, ...]] = {
    "State": ("044",),
    "County": ("04410001",),
    "Prim": ("044100011",),
    "Tract_Subset_Group": ("0441000111",),
    "Tract_Subset": ("04410001111", "04410001112"),
    "Block_Group": ("044100011111", "044100011121"),
    "Block": (
        "044100011111" + "4400103010011001",
        "044100011111" + "4400103010011002",
        "044100011121" + "4400103020022001",
    ),
}


@dataclass(eq=False)
class MadeCounty:
    """People of three blocks, and noise of one seed."""

    seed: int = 0
    people: tuple[int, ...] = (70, 45, 90)

    @cached_property
    def product(self) -> Product:
        return dhc_persons()

    @cached_property
    def blocks(self) -> list[np.ndarray]:
        """Cells of the people of each block: of few sorts, one in five in group quarters."""
        rng = np.random.default_rng(self.seed)
        cells = np.flatnonzero(self.product.possible)
        relgq, _, age, _, race = self.product.schema.codes(cells)
        likely = np.where(relgq < 18, 1.0, 0.05) * (race < 6) * np.exp(-age / 60.0)
        likely[(relgq >= 18) & (relgq != 33) & (relgq != 27)] = 0.0  # colleges and nursing homes alone
        return [rng.choice(cells, size, p=likely / likely.sum()) for size in self.people]

    def counts(self, geocode: str) -> np.ndarray:
        """Return the counts of a geounit, int64 (n,)."""
        inside = [
            c for code, c in zip(GEOCODES["Block"], self.blocks, strict=True) if code.startswith(geocode)
        ]
        return np.bincount(np.concatenate(inside), minlength=self.product.schema.size)

    @cached_property
    def published_name(self) -> dict[str, str]:
        """Name in the files of each query group by its canonical one."""
        return {self.product.workload.canonical(name): name for name in NAMES}

    def answers(self, level: str, geocode: str, query: str) -> tuple[np.ndarray, float]:
        """Return the noisy answers of a geounit and their variance."""
        query = self.published_name.get(query, query)
        group = self.product.workload.group(query)
        law = DiscreteGaussian(Fraction(10_000, NAMES[query][LEVELS.index(level)]))
        chance = probabilities(law)
        rng = np.random.default_rng(
            [self.seed, LEVELS.index(level), int(geocode[-9:]), list(NAMES).index(query)]
        )
        noise = rng.choice(len(chance), group.size, p=chance) - len(chance) // 2
        return group.answers(self.counts(geocode)) + noise, float(law.variance)

    def shape(self, query: str) -> list[int]:
        group = self.product.workload.group(query)
        found = [1] * len(self.product.schema.shape)
        for factor, size in zip(group.factors, group.shape, strict=True):
            found[self.product.workload.positions[factor]] = size
        return found

    def write(
        self, root: Path, levels: Sequence[str] = LEVELS, queries: Sequence[str] = tuple(NAMES)
    ) -> Path:
        """Write folders as published: a level, measurements or constraints, state, county, one file."""
        for level in levels:
            measured, constraints = self._measured(level, queries), self._constraints(level)
            for kind, table in (("DPQuery", measured), ("Constraint", constraints)):
                folder = root / f"{level}.parquet" / kind / "State=044"
                if level != "State":
                    folder /= "County=04410001"
                folder.mkdir(parents=True, exist_ok=True)
                # Real files have row groups of many rows, in no order of geocodes.
                table = table.take(np.random.default_rng(1).permutation(len(table)))
                pq.write_table(table, folder / "part-00000-made.snappy.parquet", row_group_size=7)
        return root

    def _measured(self, level: str, queries: Sequence[str]) -> pa.Table:
        columns: dict[str, list] = {
            "geocode": [],
            "query_name": [],
            "query_shape": [],
            "value": [],
            "variance": [],
        }
        for code in GEOCODES[level]:
            for query in queries:
                values, variance = self.answers(level, code, query)
                columns["geocode"].append(code)
                columns["query_name"].append(f"{query}_dpq")
                columns["query_shape"].append(self.shape(query))
                columns["value"].append(pa.array(values.astype(np.int32)))
                columns["variance"].append(variance)
        values = pa.ListArray.from_arrays(
            np.concatenate([[0], np.cumsum([len(v) for v in columns["value"]])]).astype(np.int32),
            pa.concat_arrays(columns["value"]),
        )
        return pa.table(
            {
                "geocode": columns["geocode"],
                "query_name": columns["query_name"],
                "query_shape": pa.array(columns["query_shape"], pa.list_(pa.int32())),
                "value": values,
                "variance": pa.array(columns["variance"], pa.float32()),
            }
        )

    def facilities(self, geocode: str) -> np.ndarray:
        """Return housing units and facilities of each of the 24 types, int64 (25,)."""
        found = np.zeros(25, dtype=np.int64)
        for code, cells in zip(GEOCODES["Block"], self.blocks, strict=True):
            if code.startswith(geocode):
                kinds = np.unique(self.product.workload.group("gqlevels").row_of_cell[cells])
                found[kinds] += 1
                found[0] += len(cells)  # more housing units than households
        return found

    def _constraints(self, level: str) -> pa.Table:
        columns: dict[str, list] = {
            "geocode": [],
            "query_name": [],
            "sign": [],
            "query_shape": [],
            "value": [],
        }
        tied = self.product.workload.group(PL94_CELL)
        for code in GEOCODES[level]:
            units = self.facilities(code)
            lower = np.where(np.arange(25) > 0, units, 0)
            rows = {
                "pl94_con": ("=", [8, 1, 2, 2, 63], self.published(code, tied)),
                "hhgq_total_lb_con": (">=", [25, 1, 1, 1, 1], lower),
                "hhgq_total_ub_con": ("<=", [25, 1, 1, 1, 1], 99_999 * units),
                "relgq0_lt15_con": ("=", [1, 1, 1, 1, 1], np.zeros(1, dtype=np.int64)),
            }
            for name, (sign, shape, values) in rows.items():
                columns["geocode"].append(code)
                columns["query_name"].append(name)
                columns["sign"].append(sign)
                columns["query_shape"].append(shape)
                columns["value"].append(values.tolist())
        lists = {"query_shape": pa.list_(pa.int32()), "value": pa.list_(pa.int64())}
        return pa.table({name: pa.array(found, lists.get(name)) for name, found in columns.items()})

    def published(self, geocode: str, tied) -> np.ndarray:
        """Return counts of an earlier release: true in the state's total, and otherwise not."""
        counts = tied.answers(self.counts(geocode))
        return counts if geocode == "044" else np.roll(counts, 1)
