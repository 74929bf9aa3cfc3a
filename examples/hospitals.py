"""Patients by hospital ward: a release that has nothing to do with a census.

Three levels (regions, hospitals, wards), two attributes, all from frames in memory. Run it:

    python examples/hospitals.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import opendas as od

PRODUCT = {
    "product": {"name": "patients", "protected_unit": "patient", "provenance": "code-book"},
    "attributes": {
        "age": ["0-17", "18-64", "65+"],
        "diagnosis": ["injury", "heart", "lung", "infection", "birth", "other"],
    },
    "recodes": {
        "adult": {"attribute": "age", "levels": {"child": ["0-17"], "adult": ["18-64", "65+"]}},
    },
    "queries": {"groups": ["age", "diagnosis", "adult * diagnosis"]},
    # Nobody over 65 is admitted to give birth.
    "structural_zeros": [{"age": ["65+"], "diagnosis": ["birth"]}],
    # The number of patients of each region is published exactly.
    "invariants": [{"query": "total", "geolevel": "region"}],
    # Only wards with beds have patients; the number of beds is public.
    "bounds": [
        {"query": "age", "cell": age, "column": "beds", "upper": 40} for age in ("0-17", "18-64", "65+")
    ],
}

RUN = """
[run]
product = "patients"
[input]
reader = "records"
geocode = "ward"
[geography]
levels = [
    { name = "region", column = "region" }, { name = "hospital", prefix = 4 }, { name = "ward", prefix = 7 }
]
provenance = "public"                   # the list of wards, and which hospital and region they belong to
[budget]
rho = "1/2"
geolevels = { region = "1/5", hospital = "2/5", ward = "2/5" }
[budget.queries]
"*" = { total = "1/4", "adult * diagnosis" = "1/4", detailed = "1/2" }
"""


def make_patients(seed: int = 7) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Make a public list of wards and a confidential table with one row a patient."""
    rng = np.random.default_rng(seed)
    wards = [
        (f"H{h:03d}W{w:02d}"[:7], f"region {h % 4}", int(rng.integers(0, 40)))
        for h in range(20)
        for w in range(12)
    ]
    frame = pl.DataFrame(wards, schema=["ward", "region", "beds"], orient="row")
    occupied = frame.filter(pl.col("beds") > 0)
    size = 6_000
    ward = rng.choice(occupied.height, size, p=(occupied["beds"] / occupied["beds"].sum()).to_numpy())
    age = rng.choice(["0-17", "18-64", "65+"], size, p=[0.2, 0.45, 0.35])
    diagnosis = rng.choice(PRODUCT["attributes"]["diagnosis"], size, p=[0.2, 0.25, 0.15, 0.1, 0.1, 0.2])
    diagnosis = np.where((age == "65+") & (diagnosis == "birth"), "heart", diagnosis)
    patients = (
        occupied[ward.tolist()]
        .select("ward", "region")
        .with_columns(pl.Series("age", age), pl.Series("diagnosis", diagnosis))
    )
    return frame, patients


def main() -> None:
    """Plan, release, verify and compare."""
    frame, patients = make_patients()
    run = od.define(RUN, product=PRODUCT, input=patients, frame=frame)
    print(od.plan(run).table()[["geolevel", "query", "rho", "variance", "moe90"]].to_string(index=False))
    with tempfile.TemporaryDirectory() as folder:
        release = od.release(run, out=Path(folder) / "out")
        print("verified:", all(check.ok for check in release.verify()))
        released = release.mdf().to_polars()
        print(f"{released.height} records, {patients.height} patients")
        table = release.table("diagnosis", geolevel="hospital").to_polars()
        print(table.head(3))
        noisy = release.measurements("region", "total").to_polars()
        print(noisy)
        errors = od.evaluate(release, truth=run, save=False)
        rows = [row for row in errors.rows if row["query"] in ("total", "diagnosis")]
        print(pl.DataFrame([{k: row[k] for k in ("geolevel", "query", "mean_abs_error")} for row in rows]))


if __name__ == "__main__":
    main()
