"""Hierarchies of real counts for the experiments on allocations.

Rhode Island 2010 is read by our own reader of the official file, three times: with every block of the
geographic header, with the blocks that have housing units or group quarters, as the census products use them,
and with the populated blocks only, as the paper's data were. The tract states and Denver County are published
2020 counts, taken as if they were the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from experiment import RHODE_ISLAND, load, rhode_island

from opendas.allocation import CountHistogram, Level
from opendas.geography.hierarchy import Hierarchy
from opendas.readers.pl94.header import block_geocodes
from opendas.readers.pl94.reader import read_header

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A hierarchy and its counts.

    Parameters
    ----------
    name : str
    names : tuple of str
        Geolevels, top first.
    hierarchy : Hierarchy
    counts : tuple of int64 (g,)
        True counts, top first.
    """

    name: str
    names: tuple[str, ...]
    hierarchy: Hierarchy
    counts: tuple[Ints, ...]

    @classmethod
    def of(cls, name: str, names: tuple[str, ...], codes: list[npt.NDArray[np.str_]], leaves: Ints) -> Tree:
        """Return the tree of leaves with these codes, top first."""
        order = np.argsort(codes[-1])  # as the hierarchy numbers them
        hierarchy = Hierarchy.of_codes(*codes)
        return cls(name, names, hierarchy, hierarchy.totals(leaves[order]))

    def below(self, parent: int) -> Tree:
        """Return one geounit of the last but one level with its leaves: a tree of two levels."""
        leaves = self.counts[-1][self.hierarchy.parents[-1] == parent]
        hierarchy = Hierarchy.of([[0], np.zeros(len(leaves), dtype=np.int64)])
        name = f"{self.name}, one {self.names[-2]} alone"
        return Tree(name, self.names[-2:], hierarchy, (leaves.sum(keepdims=True), leaves))

    @property
    def levels(self) -> list[Level]:
        """Return what programs (6) and (7) ask for."""
        return [
            Level(name, CountHistogram.of(counts))
            for name, counts in zip(self.names, self.counts, strict=True)
        ]

    @property
    def sizes(self) -> str:
        """Return how many geounits each level has, in words."""
        return " / ".join(
            f"{size:,} {name}" for size, name in zip(self.hierarchy.sizes, self.names, strict=True)
        )


def rhode_islands(data: Path, folder: Path) -> dict[str, Tree]:
    """Return Rhode Island 2010 over three lists of blocks: ``all``, ``frame`` and ``populated``.

    Parameters
    ----------
    data : Path
    folder : Path
        Where a run file can be put for a moment.
    """
    read = load(rhode_island(data), folder).read()
    known = read.frame.geocodes.astype(str)
    counts = read.histogram.row_totals()
    header = read_header(data / RHODE_ISLAND, "pl94-2010")
    blocks = np.unique(block_geocodes(header).astype(str))
    everywhere = np.zeros(len(blocks), dtype=np.int64)
    everywhere[np.searchsorted(blocks, known)] = counts
    return {
        "all": _blocks("all blocks", blocks, everywhere),
        "frame": _blocks("blocks with units", known, counts),
        "populated": _blocks("populated blocks", known[counts > 0], counts[counts > 0]),
    }


def _blocks(name: str, blocks: npt.NDArray[np.str_], counts: Ints) -> Tree:
    codes = [blocks.astype(f"U{digits}") for digits in (2, 11, 15)]
    return Tree.of(f"Rhode Island 2010, {name}", ("state", "tract", "block"), codes, counts)


def tract_state(data: Path, state: str, name: str) -> Tree:
    """Return a state of the 2020 tract file: state, county, tract."""
    table = pq.read_table(
        data / "pl94_2020_tracts" / "pl94_2020_tracts.parquet", columns=["GEOID", "STUSAB", "POP100"]
    )
    mine = np.array(table.column("STUSAB").to_pylist()) == state
    tracts = np.array(table.column("GEOID").to_pylist())[mine]
    counts = np.array(table.column("POP100").to_pylist(), dtype=np.int64)[mine]
    codes = [tracts.astype(f"U{digits}") for digits in (2, 5, 11)]
    return Tree.of(f"{name} 2020", ("state", "county", "tract"), codes, counts)


def denver(data: Path) -> Tree:
    """Return Denver County 2020: county, tract, block."""
    table = pq.read_table(
        data / "block_2020_denver_co" / "denver_co_2020_block.parquet", columns=["GEOID", "TOTPOP20"]
    )
    blocks = np.array(table.column("GEOID").to_pylist())
    counts = np.array(table.column("TOTPOP20").to_pylist(), dtype=np.int64)
    codes = [blocks.astype(f"U{digits}") for digits in (5, 11, 15)]
    return Tree.of("Denver County 2020", ("county", "tract", "block"), codes, counts)
