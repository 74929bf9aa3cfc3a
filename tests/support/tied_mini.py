"""A miniature census of coarse counts, and a finer product of the same people that is tied to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.mini import mini_frame, mini_histogram, to_dense, write_mini

FINE = """
[product]
name = "fine"
provenance = "code-book"
[attributes]
kind = ["home", "school", "prison"]
age = ["child", "adult", "old"]
sex = ["m", "f"]
[recodes.quarter]
attribute = "kind"
levels = { home = ["home"], school = ["school"], prison = ["prison"] }
[queries]
groups = ["kind", "age * sex", "kind * age"]
[[structural_zeros]]
kind = ["prison"]
age = ["child"]
[[invariants]]
query = "total"
geolevel = "region"
[passes]
least_squares = { "*" = [["rest"]] }
[[passes.earlier]]
least_squares = { "*" = [["kind", "kind * age"]] }
rounder = { "*" = [["kind * age"]] }
[tie]
product = "mini"
query = "kind * age"
"""
RUN = """
[run]
product = "fine.toml"
[input]
reader = "histogram"
path = "fine.csv"
[geography]
levels = [
    { name = "region", prefix = 2 }, { name = "town", prefix = 4 }, { name = "block", prefix = 6 }
]
frame = "frame.csv"
provenance = "public"
[budget]
rho = "2"
geolevels = { region = "1/4", town = "1/4", block = "1/2" }
[budget.queries]
"*" = { "age * sex" = "1/4", "kind * age" = "1/4", detailed = "1/2" }
[tie]
release = "first"
"""


def write_tied(folder: Path, seed: int = 0) -> np.ndarray:
    """Write both; return the finer truth, a row of cells for each block.

    ``run.toml`` is the run file of the first; ``tied.toml`` of the second, tied to the release in ``first``.
    """
    frame = mini_frame(seed=seed)
    histogram = mini_histogram(frame, seed)
    coarse = to_dense(histogram)
    write_mini(folder, frame=frame, histogram=histogram)
    male = np.random.default_rng(seed + 5).binomial(coarse, 0.5)
    lines = ["geocode,kind,age,sex,count"]
    kinds, ages = ("home", "school", "prison"), ("child", "adult", "old")
    for i, code in enumerate(frame.geocodes):
        for cell in np.flatnonzero(coarse[i]):
            kind, age = divmod(int(cell), 3)
            for sex, count in (("m", male[i, cell]), ("f", coarse[i, cell] - male[i, cell])):
                lines.append(f"{code.decode()},{kinds[kind]},{ages[age]},{sex},{count}")
    (folder / "fine.csv").write_text("\n".join(lines) + "\n")
    (folder / "fine.toml").write_text(FINE)
    (folder / "tied.toml").write_text(RUN)
    return np.stack([male, coarse - male], axis=2).reshape(len(frame), -1)
