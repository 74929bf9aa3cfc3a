"""Reading noisy measurement files back, in our layout and in the Bureau's, and refusing damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bureau_layout import FOLDERS, constraint_rows, measurement_rows, write_bureau, write_rows
from support.release_builder import add_product

from opendas.errors import ConfigError, DataError, EnvironmentFailure, FormatError
from opendas.files.nmf.bureau import names_part
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.release_folder import ReleaseFolder
from opendas.files.release_tree import noisy_tree
from opendas.files.storage.parquet import METADATA_KEY
from opendas.intervals.noisy_tree import NoisyTree


@pytest.fixture
def folder(tmp_path: Path, persons, units) -> Path:
    for example in (persons, units):
        add_product(tmp_path / "release", example)
    return tmp_path / "release"


def bureau_tree(path: Path) -> NoisyTree:
    return BureauFile.open(path).tree()


def own(folder: Path, name: str = "pl94-persons"):
    return noisy_tree(ReleaseFolder(folder)[name])


def as_bureau(folder: Path, tmp_path: Path, name: str = "pl94-persons") -> Path:
    return write_bureau(tmp_path / "nmf", own(folder, name))


def test_our_layout_gives_answers_noise_and_constraints(folder: Path) -> None:
    tree = own(folder)
    assert tree.spine.names == ("state", "county", "tract", "block_group", "block")
    assert [query.name for query in tree.levels[0].queries] == [
        "total", "cenrace", "hhgq", "votingage * hispanic", "detailed",
    ]  # fmt: skip
    file = ReleaseFolder(folder)["pl94-persons"].measurement("block")
    assert file is not None
    read = file.read()
    full = tree.full(4, 0, 6)
    part = tree.full(4, 2, 3)
    for query, values, some in zip(tree.levels[4].queries, full, part, strict=True):
        assert np.array_equal(values, read[query.name].dense())
        assert np.array_equal(values[2:5], some)
        column = tree.levels[4].queries.index(query)
        assert np.allclose(tree.levels[4].variances[:, column], read[query.name].variance[0])
    assert tree.constraints.levels[0].invariants[0].answers.tolist() == [[18]]


@pytest.mark.parametrize("name", ["pl94-persons", "pl94-units"])
def test_the_bureaus_layout_says_the_same(folder: Path, tmp_path: Path, name: str) -> None:
    ours = own(folder, name)
    theirs = bureau_tree(as_bureau(folder, tmp_path, name))
    assert theirs.product.schema.names == ours.product.schema.names
    assert theirs.spine.names == ours.spine.names
    assert np.array_equal(theirs.frame.geocodes, ours.frame.geocodes)
    for number, (one, other) in enumerate(zip(ours.levels, theirs.levels, strict=True)):
        assert np.array_equal(ours.spine.levels[number].parent, theirs.spine.levels[number].parent)
        names = [query.name for query in other.queries]
        answers = theirs.full(number, 0, len(other))
        for k, (query, values) in enumerate(zip(one.queries, ours.full(number, 0, len(one)), strict=True)):
            place = names.index(query.name)
            assert np.array_equal(values, answers[place])
            assert np.allclose(
                one.variances[one.which][:, k], other.variances[other.which][:, place], rtol=1e-6
            )
        here, there = ours.constraints.levels[number], theirs.constraints.levels[number]
        assert np.array_equal(here.lower, there.lower)
        assert np.array_equal(np.minimum(here.upper, 1 << 40), there.upper)
        for held, found in zip(here.invariants, there.invariants, strict=True):
            assert np.array_equal(held.answers, found.answers)
    assert theirs.spine.levels[-1].official
    assert np.array_equal(theirs.spine.leaf_order, ours.spine.leaf_order)


def test_some_geounits_at_a_time(folder: Path, tmp_path: Path) -> None:
    tree = bureau_tree(as_bureau(folder, tmp_path))
    whole = tree.full(4, 0, 6)
    for first in range(6):
        for values, part in zip(whole, tree.full(4, first, 1), strict=True):
            assert np.array_equal(values[first : first + 1], part)


def test_geounits_without_budget_have_constraints_only(folder: Path, tmp_path: Path) -> None:
    ours = own(folder)
    nmf = as_bureau(folder, tmp_path)
    rows = measurement_rows(ours, 1)
    keep = [i for i, code in enumerate(rows["geocode"]) if not code.endswith("003")]
    assert len(keep) < len(rows["geocode"])
    rewrite(nmf / "County.parquet" / "DPQuery", {k: [v[i] for i in keep] for k, v in rows.items()})
    tree = bureau_tree(nmf)
    county = tree.levels[1]
    assert len(county) == 2
    assert np.isinf(county.variances[county.which[1]]).all()
    assert np.isfinite(county.variances[county.which[0]]).all()
    assert all(not values[1].any() for values in tree.full(1, 0, 2))


@pytest.mark.parametrize(("more", "first"), [(1, "state"), (0, "us")])
def test_the_nation_is_left_out_beside_few_states(
    folder: Path, tmp_path: Path, more: int, first: str
) -> None:
    """Unless these states have all of its people: then there is no other state."""
    nmf = as_bureau(folder, tmp_path)
    shutil.copytree(nmf / "State.parquet", nmf / "US.parquet")
    for path in (nmf / "US.parquet").rglob("*.parquet"):
        rows = pq.read_table(path, partitioning=None).to_pydict()
        rows["geocode"] = ["0"] * len(rows["geocode"])
        if "Constraint" in str(path):
            total = rows["query_name"].index("total_con")
            rows["value"][total] = [value + more for value in rows["value"][total]]
        pq.write_table(pa.table(rows), path)
    assert bureau_tree(nmf).spine.names[0] == first


def read_all(opened, path: Path) -> None:
    tree = opened(path)
    for number, level in enumerate(tree.levels):
        tree.full(number, 0, len(level))


def rewrite(folder: Path, rows: dict[str, list]) -> None:
    shutil.rmtree(folder)
    write_rows(folder, rows)


def with_twice(rows: dict[str, list]) -> dict[str, list]:
    return {name: [*values, values[0]] for name, values in rows.items()}


def test_damaged_files_of_the_bureaus_layout_are_refused(folder: Path, tmp_path: Path) -> None:
    ours = own(folder)
    good = as_bureau(folder, tmp_path)

    def damaged(change) -> str:
        copy = tmp_path / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(good, copy)
        change(copy)
        with pytest.raises(FormatError) as caught:
            read_all(bureau_tree, copy)
        assert caught.value.exit_code == 3
        return str(caught.value)

    def measured(change, level: int = 2):
        def apply(copy: Path) -> None:
            rows = measurement_rows(ours, level)
            rewrite(copy / f"{FOLDERS[ours.spine.names[level]]}.parquet" / "DPQuery", change(rows))

        return apply

    def put(column: str, value):
        def change(rows):
            rows[column][3] = value
            return rows

        return measured(change)

    assert "County is missing" in damaged(lambda copy: shutil.rmtree(copy / "County.parquet"))
    assert "upper geolevels" in damaged(
        lambda copy: [shutil.rmtree(copy / f"{name}.parquet") for name in ("State", "County")]
    )
    assert "not above zero" in damaged(put("variance", 0.0))
    assert "not above zero" in damaged(put("variance", -2.0))
    assert "not above zero" in damaged(put("variance", float("nan")))
    assert "appears twice" in damaged(measured(with_twice))
    assert "neither attribute nor recode" in damaged(put("query_name", "age_dpq"))
    assert "one attribute twice" in damaged(put("query_name", "votingage * votingage_dpq"))
    assert "of shape (1, 2, 2, 1)" in damaged(put("query_name", "hispanic_dpq"))
    assert "of shape (1, 2, 1, 1)" in damaged(put("query_shape", [1, 2, 1, 1]))
    assert "found 2, expected" in damaged(put("value", [1, 2]))

    def unasked(rows):
        query = rows["query_name"][0]
        pairs = zip(rows["query_name"], rows["variance"], strict=True)
        rows["variance"] = [None if name == query else variance for name, variance in pairs]
        return rows

    assert "has no answer with a variance to query" in damaged(measured(unasked))

    def bound(*values: int):
        def apply(copy: Path) -> None:
            rows = constraint_rows(ours, 1)
            rows["value"][rows["query_name"].index("hhgq_total_lb_con")] = list(values)
            rewrite(copy / "County.parquet" / "Constraint", rows)

        return apply

    assert "values in constraint 'hhgq_total_lb_con': found 3, expected 8" in damaged(bound(0, 0, 0))
    assert "a lower bound above its upper bound at geocode 044" in damaged(bound(*[10**7] * 8))
    assert "not a whole number" in damaged(put("value", [None]))
    assert "characters" in damaged(put("geocode", "044"))
    assert "below no geounit" in damaged(put("geocode", "045999999999"))

    def no_column(copy: Path) -> None:
        path = next((copy / "Tract.parquet" / "DPQuery").rglob("*.parquet"))
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["variance"]), path)

    assert "no column 'variance'" in damaged(no_column)

    def cut_short(copy: Path) -> None:
        path = next((copy / "Tract.parquet" / "DPQuery").rglob("*.parquet"))
        path.write_bytes(path.read_bytes()[:-200])

    assert "not a whole Parquet file" in damaged(cut_short)

    def other_totals(copy: Path) -> None:
        rows = constraint_rows(ours, 0)
        rows["value"][0] = [17]
        rewrite(copy / "State.parquet" / "Constraint", rows)
        rows = constraint_rows(ours, 1)
        for i, name in enumerate(rows["query_name"]):
            if name == "hhgq_total_lb_con":
                rows["query_name"][i], rows["value"][i] = "total_con", [9]
                rows["query_shape"][i] = [1, 1, 1, 1]
        rewrite(copy / "County.parquet" / "Constraint", rows)

    assert "exact totals" in damaged(other_totals)


def set_metadata(path: Path, **values: object) -> None:
    table = pq.read_table(path)
    metadata = json.loads(table.schema.metadata[METADATA_KEY])
    metadata.update(values)
    group = pq.ParquetFile(path).metadata.row_group(0).num_rows
    pq.write_table(
        table.replace_schema_metadata({METADATA_KEY: json.dumps(metadata)}), path, row_group_size=group
    )


def test_damaged_files_of_our_layout_are_refused(folder: Path, tmp_path: Path) -> None:
    def damaged(change) -> str:
        copy = tmp_path / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        change(copy / "measurements" / "pl94-persons")
        with pytest.raises(DataError) as caught:
            read_all(own, copy)
        assert caught.value.exit_code == 3
        return str(caught.value)

    def variance(value: float):
        def change(here: Path) -> None:
            path = here / "tract.parquet"
            table = pq.read_table(path)
            values = table.column("variance").to_pylist()
            values[1] = value
            place = table.column_names.index("variance")
            pq.write_table(table.set_column(place, "variance", pa.array(values)), path)

        return change

    assert "no file of tract" in damaged(lambda here: (here / "tract.parquet").unlink())
    assert "no measurement file" in damaged(
        lambda here: [
            (here / f"{n}.parquet").unlink() for n in ("state", "county", "tract", "block_group", "block")
        ]
    )
    assert "--measurements full" in damaged(lambda here: set_metadata(here / "tract.parquet", stored="used"))
    assert "not above zero" in damaged(variance(0.0))
    assert "not above zero" in damaged(variance(-1.0))
    assert "not that of the file's own plan" in damaged(variance(3.25))
    assert "expected 'tract'" in damaged(
        lambda here: shutil.copy(here / "county.parquet", here / "tract.parquet")
    )

    def twice(here: Path) -> None:
        path = here / "block.parquet"
        table = pq.read_table(path)
        codes = table.column("geocode").to_pylist()
        codes[5:10] = codes[:5]
        place = table.column_names.index("geocode")
        pq.write_table(table.set_column(place, "geocode", pa.array(codes)), path)

    assert "appears twice" in damaged(twice)

    def other_product(here: Path) -> None:
        shutil.copy(here.parent / "pl94-units" / "tract.parquet", here / "tract.parquet")

    assert "another product" in damaged(other_product)

    def short(here: Path) -> None:
        path = here / "tract.parquet"
        table = pq.read_table(path)
        values = table.column("values").to_pylist()
        values[1] = values[1][:-1]
        place = table.column_names.index("values")
        pq.write_table(table.set_column(place, "values", pa.array(values, pa.list_(pa.int64()))), path)

    assert "values" in damaged(short)


def test_a_part_that_a_disk_does_not_give_is_named_with_its_folders() -> None:
    part = Path("nmf/County.parquet/DPQuery/State=044/part-0.parquet")
    said = "^County.parquet/DPQuery/State=044: part-0.parquet cannot be read"
    with pytest.raises(EnvironmentFailure, match=said), names_part(part):
        raise EnvironmentFailure("part-0.parquet cannot be read: Input/output error.")


def test_gaps_and_other_runs_are_refused(folder: Path, tmp_path: Path) -> None:
    def damaged(change) -> str:
        copy = tmp_path / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        change(copy / "measurements" / "pl94-persons" / "tract.parquet")
        with pytest.raises(DataError) as caught:
            read_all(own, copy)
        assert caught.value.exit_code == 3
        assert "tract.parquet" in str(caught.value)
        return str(caught.value)

    def put(column: str, change):
        def apply(path: Path) -> None:
            table = pq.read_table(path)
            field = table.schema.field(column)
            values = change(table.column(column).to_pylist())
            place = table.column_names.index(column)
            pq.write_table(table.set_column(place, field, pa.array(values, field.type)), path)

        return apply

    assert "number missing" in damaged(put("values", lambda v: [v[0], [None, *v[1][1:]], *v[2:]]))
    assert "without a geocode" in damaged(put("geocode", lambda v: [v[0], None, *v[2:]]))
    assert "one for every query group" in damaged(put("geocode", lambda v: [v[0], "odd", *v[2:]]))
    assert "not above zero" in damaged(put("variance", lambda v: [v[0], None, *v[2:]]))
    for name, value in (
        ("mechanism", "discrete-laplace"),
        ("neighbours", "unbounded"),
        ("rho", "17"),
    ):
        found = damaged(lambda path, name=name, value=value: set_metadata(path, **{name: value}))
        assert "different runs" in found
        assert name in found
    for name in ("geolevel", "geolevel_share", "order", "product", "queries"):
        found = damaged(lambda path, name=name: set_metadata(path, **{name: None}))
        assert "incomplete or damaged" in found, name
    assert "incomplete or damaged" in damaged(lambda path: set_metadata(path, geolevel_share="1/0"))
    assert "incomplete or damaged" in damaged(lambda path: set_metadata(path, order=[]))
    assert "do not describe query group 'total', only none" in damaged(
        lambda path: set_metadata(path, queries={})
    )
    cut = damaged(lambda path: pq.write_table(pq.read_table(path), path, row_group_size=3))
    assert "in a row group a row for every query group" in cut


def test_a_release_without_measurements_says_so(folder: Path) -> None:
    shutil.rmtree(folder / "measurements" / "pl94-units")
    with pytest.raises(ConfigError, match="no noisy measurements of pl94-units"):
        own(folder, "pl94-units")
