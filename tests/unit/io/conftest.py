"""A miniature census for the file formats: two counties, six blocks, group quarters, an empty block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from support.dhc import dhc_persons_product

from opendas.geography.frame import Frame, official_codes
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import PassPlan, Product

BLOCKS = (
    b"440010301001000",
    b"440010301001001",
    b"440010301002000",
    b"440030201003005",
    b"440030201003006",
    b"440030202001000",
)


@dataclass(frozen=True)
class Example:
    product: Product
    frame: Frame
    estimate: Histogram


def block_frame() -> Frame:
    codes = np.array(BLOCKS)
    units = {"hu": np.array([3, 1, 0, 2, 4, 0], dtype=np.int64)}
    for k in range(1, 8):
        units[f"gq{k}"] = np.zeros(6, dtype=np.int64)
    units["gq3"][2] = 1
    units["gq7"][:] = [0, 0, 0, 2, 0, 1]
    entities = {"place": np.array([b"00100", b"00100", b"", b"", b"00200", b"00200"])}
    return Frame(
        codes, official_codes(codes, "state"), "block", units, entities, {"place": {"00100": "Arden"}}
    )


@pytest.fixture
def persons() -> Example:
    product = pl94_persons()
    frame = block_frame()
    entries = [
        (0, "household", "under18", "hispanic", "sor", 2),
        (0, "household", "18plus", "not_hispanic", "white", 5),
        (1, "household", "18plus", "hispanic", "white+black", 1),
        (2, "nursing", "18plus", "not_hispanic", "asian", 3),
        (3, "other_noninstitutional", "18plus", "not_hispanic", "white+black+aian+asian+nhpi+sor", 2),
        (3, "household", "18plus", "not_hispanic", "black", 4),
        (5, "other_noninstitutional", "under18", "hispanic", "nhpi", 1),
    ]
    names = product.schema.names
    cells = np.array([product.schema.cell(dict(zip(names, entry[1:5], strict=True))) for entry in entries])
    rows = np.array([entry[0] for entry in entries])
    counts = np.array([entry[5] for entry in entries])
    return Example(
        product, frame, Histogram.from_entries(rows, cells, counts, shape=(len(frame), product.schema.size))
    )


@pytest.fixture
def dhc_persons() -> Example:
    """Householders alone and not, relatives, group quarters of both kinds; the ends of every attribute."""
    product = dhc_persons_product()
    entries = np.array(
        [
            (0, 0, 0, 115, 0, 0, 2),
            (0, 1, 1, 44, 1, 62, 1),
            (0, 2, 0, 43, 0, 5, 1),
            (1, 6, 1, 0, 1, 6, 3),
            (2, 17, 0, 9, 0, 61, 1),
            (3, 18, 0, 30, 0, 1, 4),
            (3, 32, 1, 99, 1, 2, 1),
            (3, 33, 0, 19, 0, 3, 7),
            (5, 41, 1, 100, 1, 4, 2),
        ]
    )
    cells = product.schema.cells(list(entries.T[1:6]))
    frame = block_frame()
    return Example(
        product,
        frame,
        Histogram.from_entries(entries[:, 0], cells, entries[:, 6], shape=(len(frame), product.schema.size)),
    )


@pytest.fixture
def units() -> Example:
    product = pl94_units()
    frame = block_frame()
    rows = np.array([0, 0, 1, 3, 4])
    cells = np.array([0, 1, 1, 0, 1])
    counts = np.array([1, 2, 1, 2, 4])
    return Example(product, frame, Histogram.from_entries(rows, cells, counts, shape=(len(frame), 2)))


@pytest.fixture
def wards() -> Example:
    """A product of one's own: three geolevels by prefix, labels with awkward characters."""
    product = Product(
        name="wards",
        schema=Schema((Attribute("age", ("under|18", '"18"+')), Attribute("group", ("#a", "b", "c d")))),
        recodes=(Recode("broad", "group", (("ab", ("#a", "b")), ("rest of them", ("c d",)))),),
        query_names=("total", "age", "age * broad", "detailed"),
        invariants=(),
        bounds=(),
        structural_zeros=(),
        protected_unit="person",
        layout="wards",
        passes=PassPlan({}, {}),
    )
    codes = np.array([b"A1x", b"A2x", b"B1x", b"B1y"])
    levels = {"all": np.full(4, b"1"), "region": codes.astype("S1"), "district": codes.astype("S2")}
    frame = Frame(codes, levels, "ward")
    rng = np.random.default_rng(7)
    dense = rng.integers(0, 4, size=(4, 6))
    rows, cells = np.nonzero(dense)
    return Example(product, frame, Histogram.from_entries(rows, cells, dense[rows, cells], shape=(4, 6)))
