"""Every edit of the DHC persons product, brought to its bound by the people of a whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opendas
from opendas.files.release_folder import ReleaseFolder
from opendas.runs.finished_release import Release
from opendas.schema.dhc_persons import GQ_CODES, GQ_TYPES, PL94_CELL, RELATIONSHIPS, dhc_persons
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

PRODUCT = dhc_persons()
RELGQ = PRODUCT.schema.attributes[0].levels
PARTNERS = ("opposite_sex_spouse", "opposite_sex_partner", "same_sex_spouse", "same_sex_partner")
CODES = dict(zip(GQ_CODES, GQ_TYPES, strict=True))
AGES = {
    **dict.fromkeys(RELATIONSHIPS, (0, 115)),
    **dict.fromkeys(("householder_alone", "householder_not_alone", *PARTNERS), (15, 115)),
    **dict.fromkeys(("biological_child", "adopted_child", "stepchild"), (0, 89)),
    **dict.fromkeys(("parent", "parent_in_law"), (30, 115)),
    "grandchild": (0, 74),
    "child_in_law": (15, 89),
    "foster_child": (0, 20),
    **dict.fromkeys(GQ_TYPES, (0, 115)),
    **{CODES[code]: (15, 115) for code in ("101", "102", "103", "104", "105")},
    **{CODES[code]: (17, 65) for code in ("106", "404", "601", "602")},
    **{CODES[code]: (0, 25) for code in ("201", "202", "203")},
    CODES["301"]: (20, 115),
    CODES["405"]: (3, 30),
    CODES["501"]: (16, 65),
    **{CODES[code]: (16, 115) for code in ("801", "802")},
    CODES["900"]: (16, 75),
}
"""Least and greatest age by relationship or type of group quarters."""

BLOCKS = tuple(f"4400103010010{k:02d}" for k in range(1, 5))
LEVELS = """levels = [
    { name = "state", prefix = 2 }, { name = "county", prefix = 5 }, { name = "tract", prefix = 11 },
    { name = "block_group", prefix = 12 }, { name = "block", prefix = 15 },
]
"""


def people() -> Iterator[tuple[int, str, int]]:
    """Yield the block, relationship and age of each person.

    One at either bound of every rule: of households in the first block, of facilities in the second. In the
    third each type has as many people as facilities, one; in the fourth there are no facilities.
    """
    for level, ages in AGES.items():
        for age in ages:
            yield int(level in GQ_TYPES), level, age
            if level in RELATIONSHIPS:
                yield 3, level, age
        if level in GQ_TYPES:
            yield 2, level, ages[len(level) % 2]


def write_world(folder: Path) -> Histogram:
    """Write the records of both products and the frame of their facilities; return the counts."""
    rng = np.random.default_rng(17)
    block, relgq, age = (np.array(column) for column in zip(*people(), strict=True))
    level = np.array([RELGQ.index(one) for one in relgq])
    others = (rng.integers(0, 2, len(block)), rng.integers(0, 2, len(block)), rng.integers(0, 6, len(block)))
    cells = PRODUCT.schema.cells([level, others[0], age, others[1], others[2]])
    rows = PRODUCT.workload.group(PL94_CELL).row_of_cell[cells]
    for product, own in ((PRODUCT, cells), (pl94_persons(), rows)):
        codes = dict(zip(product.schema.names, product.schema.codes(own), strict=True))
        pq.write_table(
            pa.table({"geocode": np.array(BLOCKS)[block], **codes}), folder / f"{product.name}.parquet"
        )
    major = pl94_persons().schema.codes(rows)[0]
    facilities = np.zeros((len(BLOCKS), 8 + len(GQ_CODES)), dtype=int)
    facilities[:, 0] = 60
    for number, code in enumerate(level):
        if code >= 18:
            facilities[block[number], 8 + code - 18] = 1 + (block[number] == 1)
    for code in np.unique(level[level >= 18]):
        kind = major[level == code][0]
        facilities[:, kind] += facilities[:, 8 + code - 18]
    units = [f"gq{kind}" for kind in (*range(1, 8), *GQ_CODES)]
    names = ("geocode", "cousub", "place", "aianhh", "sduni", "hu", *units)
    lines = [
        ",".join([one, "44001", "11111", "", "00030", *map(str, row)])
        for one, row in zip(BLOCKS, facilities.tolist(), strict=True)
    ]
    (folder / "frame.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    return Histogram.from_entries(
        block, cells, np.ones(len(cells), dtype=np.int64), shape=(len(BLOCKS), PRODUCT.schema.size)
    )


@pytest.mark.parametrize("loss", ["", 'rho = "1000000"\n'])
def test_released_people_obey_the_edits_that_the_census_brings_to_their_bounds(
    tmp_path: Path, loss: str
) -> None:
    """With the production's budget; and with so much that the release is the census itself."""
    made = write_world(tmp_path)
    for product, spine, preset, tie in (
        ("pl94-persons", "standard", "persons", ""),
        ("dhc-persons", "dhc", "dhc-persons", '[tie]\nrelease = "pl94-persons"\n'),
    ):
        (tmp_path / f"{product}.toml").write_text(
            f'[run]\nproduct = "{product}"\n[input]\nreader = "records"\npath = "{product}.parquet"\n'
            f'units = {{ path = "frame.csv" }}\n[geography]\nspine = "{spine}"\nframe = "frame.csv"\n{LEVELS}'
            f'[budget]\npreset = "pr2020-{preset}"\n{loss}{tie}'
        )
        opendas.release(opendas.load(tmp_path / f"{product}.toml"), tmp_path / product)
    assert [check.name for check in Release(tmp_path / "dhc-persons").verify() if not check.ok] == []
    found = ReleaseFolder(tmp_path / "dhc-persons")["dhc-persons"]
    counts = found.estimate
    relgq, _, age, *_ = PRODUCT.schema.codes(counts.cells)
    bounds = np.array([AGES[level] for level in RELGQ])
    assert (age >= bounds[relgq, 0]).all()
    assert (age <= bounds[relgq, 1]).all()
    block = np.repeat(np.arange(counts.rows), np.diff(counts.indptr))
    by_type = np.zeros((counts.rows, 42), dtype=np.int64)
    np.add.at(by_type, (block, relgq), counts.counts)
    units = np.stack([found.frame.units[f"gq{code}"] for code in GQ_CODES], axis=1)
    assert (by_type[:, 18:] >= units).all()
    assert (by_type[:, 18:][units == 0] == 0).all()
    assert units.tolist() == [[number] * len(GQ_CODES) for number in (0, 2, 1, 0)]
    if loss:
        assert len(counts.unlike(made)) == 0
        assert (by_type[1:3, 18:] == units[1:3]).all()
        at = {(int(k), int(a)) for k, a in zip(relgq, age, strict=True)}
        assert at == {(k, int(a)) for k, ages in enumerate(bounds) for a in ages}
