from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow.parquet as pq
import pytest

from opendas.constraints.table import bound_table
from opendas.errors import FormatError, GeographyError
from opendas.files.geography_files import (
    read_constraint_table,
    read_constraints,
    read_frame,
    read_product,
    read_spine,
    write_constraints,
    write_frame,
    write_spine,
)
from opendas.files.nmf.product_json import product_from_json, product_to_json
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Shares, Spine, SpineLevel
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import StructuralZero
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.dhc_units import dhc_units
from opendas.schema.product import PassPlan, Product


def reordered_spine(example) -> Spine:
    """A spine whose leaves are in another order than the frame, with shares of their own."""
    codes = example.frame.geocodes
    order = np.array([5, 0, 1, 2, 3, 4])
    return Spine(
        (
            SpineLevel("state", np.array([b"44"]), np.zeros(1, np.int64)),
            SpineLevel("group", np.array([b"x", b"yy"]), np.zeros(2, np.int64)),
            SpineLevel("block", codes[order].astype("S20"), np.array([0, 0, 0, 1, 1, 1])),
        ),
        order,
        (None, Shares.of([Fraction(4, 3), Fraction(1)], np.arange(2)), None),
    )


@pytest.mark.parametrize("name", ["persons", "units", "wards"])
def test_frame_and_product_come_back(request, name, tmp_path):
    example = request.getfixturevalue(name)
    path = tmp_path / "geography" / "x.parquet"
    write_frame(path, example.frame, example.product)
    found = read_frame(path)
    frame = example.frame
    assert np.array_equal(found.geocodes, frame.geocodes)
    assert found.geolevels == frame.geolevels
    assert found.names == frame.names
    for attribute in ("levels", "units", "entities"):
        wanted = getattr(frame, attribute)
        assert list(getattr(found, attribute)) == list(wanted)
        assert all(np.array_equal(getattr(found, attribute)[key], wanted[key]) for key in wanted)
    product = read_product(path)
    assert product_to_json(product) == product_to_json(example.product)
    assert np.array_equal(product.possible, example.product.possible)


def test_columns_are_named_by_their_role(persons, tmp_path):
    write_frame(tmp_path / "a.parquet", persons.frame, persons.product)
    names = pq.read_schema(tmp_path / "a.parquet").names
    assert names[:3] == ["geocode", "level:state", "level:county"]
    assert names[-9:-7] == ["entity:place", "units:hu"]


def test_incomplete_product_is_a_format_error(persons):
    value = product_to_json(persons.product)
    del value["recodes"]
    with pytest.raises(FormatError):
        product_from_json(value)
    value = product_to_json(persons.product)
    with pytest.raises(FormatError):
        product_from_json({**value, "attributes": [*value["attributes"], value["attributes"][0]]})


def held_wider(example):
    """Return a spine whose codes are held in more bytes than they are long, as those of divided geounits."""
    spine = standard_spine(example.frame)
    levels = tuple(
        replace(level, geocodes=level.geocodes.astype(f"S{level.geocodes.dtype.itemsize + 9}"))
        for level in spine.levels
    )
    assert replace(spine, levels=levels).digest() != spine.digest()
    return replace(spine, levels=levels)


@pytest.mark.parametrize("make", [lambda example: standard_spine(example.frame), reordered_spine, held_wider])
def test_spine_comes_back_with_its_digest(persons, tmp_path, make):
    spine = make(persons)
    write_spine(tmp_path / "spine.parquet", spine)
    found = read_spine(tmp_path / "spine.parquet", persons.frame)
    assert found.digest() == spine.digest()
    assert found.shares == spine.shares
    assert np.array_equal(found.leaf_order, spine.leaf_order)
    rows = pq.read_table(tmp_path / "spine.parquet").to_pylist()
    assert rows[0]["parent"] == ""
    assert rows[-1]["parent"] == spine.levels[-2].geocodes[spine.leaf.parent[-1]].decode()


def test_spine_of_another_frame_is_refused(persons, tmp_path):
    write_spine(tmp_path / "spine.parquet", standard_spine(persons.frame))
    smaller = persons.frame.take(np.arange(5))
    with pytest.raises(GeographyError, match=r"leaf \d{15} is not in the frame"):
        read_spine(tmp_path / "spine.parquet", smaller)
    codes = np.append(persons.frame.geocodes, b"449990201003005")
    larger = Frame(codes, {"state": codes.astype("S2")}, "block")
    with pytest.raises(GeographyError, match=f"lacks 1 of the {len(larger)} leaves"):
        read_spine(tmp_path / "spine.parquet", larger)


def constraints_of(example, spine):
    product = example.product
    invariants = {}
    for query, level in product.invariant_levels(spine).items():
        leaf_totals = example.estimate.row_totals()[spine.leaf_order]
        starts = spine.leaf_starts(level)[:-1]
        invariants[query] = np.add.reduceat(leaf_totals, starts)[:, None]
    return bound_table(product, example.frame, spine, invariants)


@pytest.mark.parametrize("name", ["persons", "units"])
def test_constraints_come_back(request, name, tmp_path):
    example = request.getfixturevalue(name)
    spine = standard_spine(example.frame)
    table = constraints_of(example, spine)
    path = tmp_path / "constraints.parquet"
    write_constraints(path, example.product, spine, table)
    found = read_constraint_table(path, example.product, spine)
    assert found.bound_names == table.bound_names
    assert np.array_equal(found.bound_cells, table.bound_cells)
    for a, b in zip(found.levels, table.levels, strict=True):
        assert np.array_equal(a.lower, b.lower)
        assert np.array_equal(a.upper, b.upper)
        assert [i.name for i in a.invariants] == [i.name for i in b.invariants]
        for one, other in zip(a.invariants, b.invariants, strict=True):
            assert np.array_equal(one.answers, other.answers)


def test_constraint_rows_name_cell_and_kind(persons, tmp_path):
    spine = standard_spine(persons.frame)
    path = tmp_path / "constraints.parquet"
    write_constraints(path, persons.product, spine, constraints_of(persons, spine))
    blocks = {(block.geolevel, block.name): block for block in read_constraints(path)}
    nursing = blocks["county", "hhgq=nursing by gq3"]
    assert (nursing.kind, nursing.query, nursing.row) == ("bound", "hhgq", 3)
    assert nursing.lower.ravel().tolist() == [1, 0]
    assert nursing.upper.ravel().tolist() == [99_999, 0]
    total = blocks["state", "total@state"]
    assert (total.kind, total.row, total.lower.tolist()) == ("invariant", -1, [[18]])
    assert ("county", "total@state") not in blocks


def test_missing_bound_is_refused(units, persons, tmp_path):
    spine = standard_spine(units.frame)
    path = tmp_path / "constraints.parquet"
    write_constraints(path, units.product, spine, constraints_of(units, spine))
    with pytest.raises(FormatError, match="missing"):
        read_constraint_table(path, persons.product, spine)


def test_levels_of_large_attributes_stand_as_positions():
    """Also out of order, with gaps, and as listed labels; nothing is lost, nothing damaged passes."""
    ages = Attribute("age", tuple(f"a{k}" for k in range(65)))
    sexes = Attribute("sex", ("m", "f"))
    groups = (
        ("odd", ("a3", "a1", "a2", *(f"a{k}" for k in range(5, 65)))),
        ("rest", ("a0", "a4")),
    )
    product = Product(
        name="own",
        schema=Schema((ages, sexes)),
        recodes=(Recode("odds", "age", groups), Recode("sexes", "sex", (("all", ("f", "m")),))),
        query_names=("odds",),
        invariants=(),
        bounds=(),
        structural_zeros=(StructuralZero({"age": ("a0", "a1"), "sex": ("f",)}),),
        protected_unit="person",
        layout="own",
        passes=PassPlan({}, {}),
    )
    value = json.loads(json.dumps(product_to_json(product)))
    assert value["recodes"][0]["groups"] == [["odd", "3,1-2,5-64"], ["rest", "0,4"]]
    assert value["recodes"][1]["groups"] == [["all", ["f", "m"]]]
    assert value["structural_zeros"] == [{"age": "0-1", "sex": ["f"]}]
    listed = {**value, "structural_zeros": [{"age": ["a0", "a1"], "sex": ["f"]}]}
    listed["recodes"] = [
        {**value["recodes"][0], "groups": [[k, list(m)] for k, m in groups]},
        value["recodes"][1],
    ]
    for written in (value, listed):
        found = product_from_json(written)
        assert (found.recodes, found.structural_zeros) == (product.recodes, product.structural_zeros)
    for damaged in ("0-65", "4-3", "x", "", "-1"):
        with pytest.raises(FormatError):
            product_from_json({**value, "structural_zeros": [{"age": damaged}]})


@pytest.mark.parametrize(("made", "most"), [(dhc_persons, 15_000), (dhc_units, 55_000)])
def test_dhc_products_are_short_and_come_back(made, most):
    product = made()
    text = json.dumps(product_to_json(product))
    assert len(text) < most
    found = product_from_json(json.loads(text))
    assert (found.recodes, found.structural_zeros) == (product.recodes, product.structural_zeros)
    assert np.array_equal(found.possible, product.possible)
