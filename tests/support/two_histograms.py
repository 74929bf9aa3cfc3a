"""A made pair of products: small units by status, and the households in them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

UNITS = """
[product]
name = "small-units"
provenance = "code-book"
protected_unit = "housing unit or group quarters"
[attributes]
status = ["owned", "rented", "vacant", "dormitory"]
[recodes.kind]
attribute = "status"
levels = { home = ["owned", "rented", "vacant"], dormitory = ["dormitory"] }
[recodes.occupancy]
attribute = "status"
levels = { vacant = ["vacant"], occupied = ["owned", "rented"], dormitory = ["dormitory"] }
[queries]
groups = ["kind", "occupancy"]
[[invariants]]
query = "kind"
geolevel = "block"
[tie]
product = "occupied"
query = "occupancy"
rows = { vacant = ["empty"], occupied = ["lived-in"] }
columns = { dormitory = "dormitories" }
"""
HOUSEHOLDS = """
[product]
name = "small-households"
provenance = "code-book"
protected_unit = "housing unit or group quarters"
companion = "units.toml"
[attributes]
tenure = ["owner", "renter"]
size = ["1", "2", "3plus"]
age = ["young", "old"]
[queries]
groups = ["tenure", "tenure * size", "age"]
[[structural_zeros]]
size = ["3plus"]
age = ["old"]
[tie]
product = "small-units"
query = "tenure"
rows = { owner = ["owned"], renter = ["rented"] }
"""
OCCUPIED = """
[product]
name = "occupied"
provenance = "code-book"
protected_unit = "housing unit"
[attributes]
occupancy = ["empty", "lived-in"]
[[invariants]]
query = "total"
geolevel = "block"
"""
_RUN = """
[run]
product = "{product}"
[input]
reader = "records"
path = "{records}"
[geography]
levels = [
    {{ name = "region", prefix = 2 }}, {{ name = "town", prefix = 4 }}, {{ name = "block", prefix = 6 }}
]
frame = "frame.csv"
provenance = "public"
[budget]
rho = "{rho}"
geolevels = {{ region = "1/4", town = "1/4", block = "1/2" }}
[budget.queries]
"*" = {{ {queries} }}
"""
RUN = _RUN.format(
    product="households.toml",
    records="records.csv",
    rho="3",
    queries='status = "1/3", "tenure * size" = "1/6", detailed = "1/2"',
)
EARLIER = _RUN.format(product="occupied.toml", records="homes.csv", rho="1", queries='detailed = "1"')


def write_two_histograms(folder: Path, seed: int = 3) -> Path:
    """Write products, frame, unit records and run files; returns the run file of the pair."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    frame = ["geocode,homes,dormitories"]
    records, homes = ["geocode,status,tenure,size,age"], ["geocode,occupancy"]
    for region, town, block in itertools.product(range(2), range(3), range(4)):
        code = f"{region:02d}{town:02d}{block:02d}"
        units, dormitories = int(rng.integers(0, 10)), int(rng.random() < 0.3)
        frame.append(f"{code},{units},{dormitories}")
        records += [f"{code},dormitory,,,"] * dormitories
        for status in rng.choice(["owned", "rented", "vacant"], units):
            homes.append(f"{code},{'empty' if status == 'vacant' else 'lived-in'}")
            if status == "vacant":
                records.append(f"{code},vacant,,,")
                continue
            size = rng.choice(["1", "2", "3plus"])
            age = "young" if size == "3plus" else rng.choice(["young", "old"])
            records.append(f"{code},{status},{'owner' if status == 'owned' else 'renter'},{size},{age}")
    files = {
        "units.toml": UNITS,
        "households.toml": HOUSEHOLDS,
        "occupied.toml": OCCUPIED,
        "run.toml": RUN,
        "earlier.toml": EARLIER,
        "frame.csv": "\n".join(frame) + "\n",
        "records.csv": "\n".join(records) + "\n",
        "homes.csv": "\n".join(homes) + "\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "run.toml"
