"""Made truths of the eleven PHSafe tables, and noisy measurements of them in the published layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

GROUPS = ("*", "A", "B", "C", "D", "E", "F", "G", "H", "I")
CELLS: Mapping[str, tuple[int, ...]] = {
    "PH1_num": (2, 3),
    "PH1_denom": (1,),
    "PH2": (3, 4, 6, 7, 9, 10, 12, 13),
    "PH3": (2, 4, 5, 6, 7, 9, 10),
    "PH4": (2, 3),
    "PH5_denom": (1,),
    "PH6": (3, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21),
    "PH7": (2, 3, 4),
    "PH8_denom": (2, 3),
}
WITHOUT_GROUPS = ("PH2", "PH6")
GAUSSIAN = "Discrete Gaussian"

# Published margins of error: nation 500; states 200; states by race 68, in PH3 20. sigma = MOE / 1.645.
MARGINS = {"USA": 500.0, "STATE": 200.0, "A-G": 68.0, "PH3": 20.0}

Key = tuple[str, str, str]
"""Type of region, region, group."""


@dataclass(frozen=True)
class Truth:
    """Exact counts: table -> key -> one number a cell."""

    tables: Mapping[str, Mapping[Key, tuple[int, ...]]]


def keys(states: Sequence[str], groups: Sequence[str] = GROUPS) -> list[Key]:
    regions = [("USA", "1"), *(("STATE", state) for state in states)]
    return [(*region, group) for region in regions for group in groups]


def variance(table: str, key: Key) -> float:
    """The production variance of a table at a level."""
    region_type, _, group = key
    level = "STATE" if group in "*HI" else ("PH3" if table == "PH3" else "A-G")
    return (MARGINS["USA" if region_type == "USA" else level] / 1.645) ** 2


SHARES = dict(zip("*ABCDEFGHI", (1, 0.62, 0.12, 0.01, 0.06, 0.002, 0.08, 0.1, 0.18, 0.58), strict=True))
"""Of all households, by group: about those of the United States in 2020."""


def _households(rng: np.random.Generator, key: Key, like_states: bool) -> float:
    """Draw a number of households: as large as in a state, or evenly over six orders of magnitude."""
    if not like_states:
        return float(10 ** rng.uniform(0.5, 6.5))
    size = 1.3e8 if key[0] == "USA" else 10 ** rng.uniform(5.4, 7.1)
    return float(size * SHARES[key[2]] * (1 if key[2] == "*" else np.exp(rng.normal(-0.3, 0.8))))


def made_truth(
    rng: np.random.Generator,
    states: Sequence[str],
    groups: Sequence[str] = GROUPS,
    *,
    like_states: bool = False,
) -> Truth:
    """Draw households that obey every bound."""
    tables: dict[str, dict[Key, tuple[int, ...]]] = {name: {} for name in CELLS}
    for key in keys(states, groups):
        size = _households(rng, key, like_states)
        owners, renters = (int(1 + rng.poisson(size * share)) for share in (0.6, 0.4))
        owned, rented = (int(n + rng.binomial(4 * n, rng.uniform(0.2, 0.6))) for n in (owners, renters))
        families = int(1 + rng.binomial(owners + renters - 1, 0.65))
        related = int(2 * families + rng.binomial(3 * families, rng.uniform(0.2, 0.6)))
        people = owned + rented

        def split(total: int, shares: Sequence[float]) -> tuple[int, ...]:
            return tuple(map(int, rng.multinomial(total, np.array(shares) / sum(shares))))

        tables["PH1_denom"][key] = (owners + renters,)
        tables["PH1_num"][key] = split(people, (0.22, 0.78))
        tables["PH3"][key] = split(people // 4, (0.02, 0.6, 0.08, 0.05, 0.15, 0.07, 0.03))
        tables["PH4"][key] = split(related, (0.3, 0.7))
        tables["PH5_denom"][key] = (families,)
        mortgage, clear = split(owned, (0.6, 0.4))
        tables["PH7"][key] = (mortgage, clear, rented)
        tables["PH8_denom"][key] = (owners, renters)
        if key[2] == "*":
            tables["PH2"][key] = split(people, (50, 0.5, 7, 0.3, 12, 5, 15, 10))
            tables["PH6"][key] = split(people // 5, (14, 7, 21, 22, 2, 1, 3, 3, 0.5, 0.3, 1, 1, 3, 2, 6, 6))
    return Truth(tables)


def measurements(
    truth: Truth, rng: np.random.Generator, variances: Mapping[str, float] | None = None
) -> dict[str, dict[Key, tuple[tuple[int, float], ...]]]:
    """Add noise: table -> key -> (noisy count, variance) a cell. Derived tables share the noise."""
    found: dict[str, dict[Key, tuple[tuple[int, float], ...]]] = {}
    for name, counts in truth.tables.items():
        found[name] = {}
        for key, values in counts.items():
            v = variance(name, key) if variances is None else variances[name]
            noise = np.rint(rng.normal(0, np.sqrt(v), len(values))).astype(int)
            found[name][key] = tuple((int(n + e), v) for n, e in zip(values, noise, strict=True))
    found["PH5_num"] = dict(found["PH4"])
    found["PH8_num"] = {key: ((a[0] + b[0], a[1] + b[1]), c) for key, (a, b, c) in found["PH7"].items()}
    return found


def write_measurements(
    out: Path, tables: Mapping[str, Mapping[Key, Sequence[tuple[int, float]]]], noise: str = GAUSSIAN
) -> None:
    """Write the folders of a PHSafe output."""
    cells = {**CELLS, "PH5_num": (2, 3), "PH8_num": (2, 3)}
    for name, rows in tables.items():
        grouped = name not in WITHOUT_GROUPS
        group_column = "ITERATION_CODE|" if grouped else ""
        lines = [
            f"REGION_ID|REGION_TYPE|{group_column}{name.upper()}_DATA_CELL|COUNT|NOISE_DISTRIBUTION|VARIANCE"
        ]
        for (region_type, region, group), values in rows.items():
            head = f"{region}|{region_type}|" + (f"{group}|" if grouped else "")
            lines += [
                f"{head}{cell}|{count}|{noise}|{v!r}"
                for cell, (count, v) in zip(cells[name], values, strict=True)
            ]
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part-00000-made.csv").write_text("\n".join(lines) + "\n", encoding="ascii")
