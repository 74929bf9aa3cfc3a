"""A miniature census: three geolevels, two attributes, public units, one empty block.

Small enough that every expected value can be found by brute force.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opendas.geography.frame import Frame
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Bound, Invariant, StructuralZero
from opendas.schema.histogram import Histogram
from opendas.schema.product import PassPlan, Product

KINDS = ("home", "school", "prison")
AGES = ("child", "adult", "old")


def mini_product(*, invariant: bool = True) -> Product:
    """People by kind of residence and age; regions' totals are invariant; no children in prison."""
    return Product(
        name="mini",
        schema=Schema((Attribute("kind", KINDS), Attribute("age", AGES))),
        recodes=(Recode("minor", "age", (("minor", ("child",)), ("major", ("adult", "old")))),),
        query_names=("total", "kind", "age", "minor", "kind * minor", "detailed"),
        invariants=(Invariant("total", "region"),) if invariant else (),
        bounds=(
            Bound("kind", "home", "homes"),
            Bound("kind", "school", "schools", lower=1),
            Bound("kind", "prison", "prisons", lower=1),
        ),
        structural_zeros=(StructuralZero({"kind": ("prison",), "age": ("child",)}),),
        protected_unit="person",
        layout="mini",
        passes=PassPlan(
            {"root": (("rest",),), "leaf": (("rest",),), "*": (("total",), ("rest",))},
            {"*": (("total",), ("kind", "detailed"))},
        ),
    )


def mini_frame(regions: int = 2, towns: int = 3, blocks: int = 4, seed: int = 0) -> Frame:
    """Blocks ``RRTTBB``; every block has homes, some have a school or a prison."""
    rng = np.random.default_rng(seed)
    codes = np.array(
        [f"{r:02d}{t:02d}{b:02d}" for r in range(regions) for t in range(towns) for b in range(blocks)],
        dtype="S6",
    )
    n = len(codes)
    return Frame(
        codes,
        {"region": codes.astype("S2"), "town": codes.astype("S4")},
        "block",
        {
            "homes": rng.integers(1, 9, n),
            "schools": (rng.random(n) < 0.25).astype(np.int64),
            "prisons": (rng.random(n) < 0.2).astype(np.int64),
        },
    )


def mini_histogram(frame: Frame, seed: int = 0, mean: float = 6.0) -> Histogram:
    """Counts that obey bounds and structural zeros."""
    rng = np.random.default_rng(seed + 1000)
    n = len(frame)
    dense = np.zeros((n, len(KINDS), len(AGES)), dtype=np.int64)
    dense[:, 0] = rng.poisson(mean / 3, (n, 3)) * (rng.random((n, 1)) < 0.8)
    for k, column in ((1, "schools"), (2, "prisons")):
        has = frame.units[column] > 0
        dense[has, k] = rng.poisson(2.0, (int(has.sum()), 3))
        dense[has, k, 1] += 1
    dense[:, 2, 0] = 0
    return from_dense(dense.reshape(n, -1))


def from_dense(dense: np.ndarray) -> Histogram:
    """Make a histogram of dense rows."""
    rows, cells = np.nonzero(dense)
    return Histogram.from_entries(rows, cells, dense[rows, cells], shape=dense.shape)


def to_dense(histogram: Histogram) -> np.ndarray:
    """Return dense rows, int64 (g, n)."""
    return np.stack([histogram.dense(row) for row in range(histogram.rows)])


PRODUCT_TOML = """\
[product]
name = "mini"
provenance = "code-book"
[attributes]
kind = ["home", "school", "prison"]
age = ["child", "adult", "old"]
[recodes.minor]
attribute = "age"
levels = { minor = ["child"], major = ["adult", "old"] }
[queries]
groups = ["kind", "age", "minor", "kind * minor"]
[[structural_zeros]]
kind = ["prison"]
age = ["child"]
[[invariants]]
query = "total"
geolevel = "region"
[[bounds]]
query = "kind"
cell = "home"
column = "homes"
[[bounds]]
query = "kind"
cell = "school"
column = "schools"
lower = 1
[[bounds]]
query = "kind"
cell = "prison"
column = "prisons"
lower = 1
"""

RUN_TOML = """\
[run]
product = "product.toml"
{run}
[input]
reader = "histogram"
path = "counts.csv"
[geography]
levels = [
    {{ name = "region", prefix = 2 }}, {{ name = "town", prefix = 4 }}, {{ name = "block", prefix = 6 }}
]
frame = "frame.csv"
provenance = "public"
[budget]
{loss}
geolevels = {{ region = "1/4", town = "1/4", block = "1/2" }}
[budget.queries]
"*" = {{ total = "1/4", "kind * minor" = "1/4", detailed = "1/2" }}
{more}
"""


def write_mini(
    folder: Path,
    *,
    frame: Frame | None = None,
    histogram: Histogram | None = None,
    run: str = "",
    loss: str = 'rho = "2"',
    more: str = "",
) -> Path:
    """Write product, frame, counts and run file; returns the run file."""
    folder.mkdir(parents=True, exist_ok=True)
    frame = frame or mini_frame()
    histogram = histogram or mini_histogram(frame)
    (folder / "product.toml").write_text(PRODUCT_TOML)
    lines = ["geocode,homes,schools,prisons"]
    for i, code in enumerate(frame.geocodes):
        units = ",".join(str(int(frame.units[c][i])) for c in ("homes", "schools", "prisons"))
        lines.append(f"{code.decode()},{units}")
    (folder / "frame.csv").write_text("\n".join(lines) + "\n")
    lines = ["geocode,kind,age,count"]
    for i, code in enumerate(frame.geocodes):
        for cell in range(histogram.indptr[i], histogram.indptr[i + 1]):
            kind, age = divmod(int(histogram.cells[cell]), len(AGES))
            lines.append(f"{code.decode()},{KINDS[kind]},{AGES[age]},{int(histogram.counts[cell])}")
    (folder / "counts.csv").write_text("\n".join(lines) + "\n")
    path = folder / "run.toml"
    path.write_text(RUN_TOML.format(run=run, loss=loss, more=more))
    return path


def write_earlier(path: Path, seed: int = 50) -> Path:
    """Write the counts of an earlier census by kind and recoded age; some leaves are in no row."""
    frame = mini_frame()
    dense = to_dense(mini_histogram(frame, seed)).reshape(len(frame), len(KINDS), len(AGES))
    lines = ["block,kind,minor,people"]
    for code, table in zip(frame.geocodes[1:], dense[1:], strict=True):
        for kind, ages in zip(KINDS, table, strict=True):
            lines += [f"{code.decode()},{kind},minor,{ages[0]}", f"{code.decode()},{kind},major,{ages[1]}"]
            lines.append(f"{code.decode()},{kind},major,{ages[2]}")
    path.write_text("\n".join(lines) + "\n")
    return path


def prior_table(path: str, name: str = "the census before") -> str:
    """Return the section of a run file that names such a table."""
    return (
        f'[prior]\npath = "{path}"\nname = "{name}"\nquery = "minor * kind"\n'
        'geocode = "block"\ncount = "people"\n'
    )
