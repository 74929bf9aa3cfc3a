"""A release whose spine divides a state and bypasses parents: read as written, and tampering is seen."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.random_land import random_frame
from support.release_builder import add_product, issue_release, level_shares
from support.spine_shares import multiple

from opendas.constraints.table import bound_table
from opendas.custody.folders import sha256_file
from opendas.errors import FormatError, GeographyError
from opendas.files.geography_files import (
    read_constraint_table,
    read_constraints,
    read_spine,
    write_constraints,
    write_spine,
)
from opendas.files.release_folder import ReleaseFolder
from opendas.geography.bypass import bypass_general, bypass_only_children
from opendas.geography.frame import Frame
from opendas.geography.recipe import NAMED_SPINES, Recipe, SpineStep, build_spine
from opendas.measurement.invariants import declared_invariants
from opendas.sampling.laws import DiscreteGaussian
from opendas.tables.cells import query_table
from opendas.tables.tabulate import margins, write_tables
from opendas.verify.release import verify_release

PERSONS = "measurements/pl94-persons"


def divided(frame: Frame, *, pure: bool = False):
    """Two states' worth of parts, from one state: blocks 1, 3 and 5 lie in an AIAN area."""
    areas = np.array([b"", b"0010", b"", b"0010", b"", b"2415"])
    frame = Frame(
        frame.geocodes,
        frame.levels,
        frame.leaf,
        frame.units,
        {**frame.entities, "aianhh": areas},
        frame.names,
    )

    def finish(spine):
        shares = list(level_shares(spine.names).values())
        return bypass_general(spine, shares, top=1) if pure else bypass_only_children(spine, shares)

    return frame, build_spine(frame, Recipe(NAMED_SPINES["aian"], entities=("place",)), finish)


@pytest.fixture
def example(persons):
    frame, spine = divided(persons.frame)
    return type(persons)(persons.product, frame, persons.estimate), spine


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return {"root": tmp_path_factory.mktemp("made")}


@pytest.fixture
def release(example, units, made, tmp_path):
    """A fresh copy of a release of persons and units, with tables."""
    if "release" not in made:
        folder = made["root"] / "out"
        own, spine = example
        facts = [add_product(folder / "release", own, spine=spine)]
        facts.append(add_product(folder / "release", type(units)(units.product, own.frame, units.estimate)))
        write_tables(folder, ["P1"], ["state"], fmt="csv", confidence=Fraction(9, 10))
        issue_release(folder / "release", facts)
        made["release"] = folder / "release"
    shutil.copytree(made["release"], tmp_path / "release")
    return tmp_path / "release"


def failures(release):
    return {check.name: check.detail for check in verify_release(release) if not check.ok}


def relist(release, **changes):
    """Make the certificate list what is there now, as someone would who tampers with care."""
    path = release / "certificate.json"
    certificate = json.loads(path.read_text())
    for entry in certificate["files"]:
        file = release / entry["path"]
        entry["bytes"], entry["sha256"] = file.stat().st_size, sha256_file(file)
    certificate["runs"][0].update(changes)
    old = sha256_file(path)
    path.write_text(json.dumps(certificate))
    report = (release / "report.html").read_text()
    (release / "report.html").write_text(report.replace(old, sha256_file(path)))


def edit(path, change, metadata=None):
    """Rewrite a Parquet file as `change` of its table; update its JSON metadata."""
    table = pq.read_table(path)
    schema = table.schema.metadata
    key = next(key for key in schema if key.startswith(b"opendas"))
    told = json.loads(schema[key]) | (metadata or {})
    new = change(table)
    pq.write_table(new.replace_schema_metadata({**schema, key: json.dumps(told).encode()}), path)


def put(table, column, values):
    place = table.column_names.index(column)
    return table.set_column(place, column, pa.array(values, table.schema.field(column).type))


def same_spine(one, two):
    assert one.names == two.names
    assert np.array_equal(one.leaf_order, two.leaf_order)
    assert one.shares == two.shares
    for a, b in zip(one.levels, two.levels, strict=True):
        assert np.array_equal(a.geocodes, b.geocodes)
        assert np.array_equal(a.parent, b.parent)
        assert a.official == b.official
        assert (a.whole is None) == (b.whole is None)
        assert a.whole is None or np.array_equal(a.whole, b.whole)
    assert one.digest() == two.digest()


@pytest.mark.parametrize("pure", [False, True])
def test_a_spine_is_read_as_it_was_written(persons, tmp_path, pure):
    frame, spine = divided(persons.frame, pure=pure)
    assert any(shares is not None for shares in spine.shares)
    assert spine.levels[0].whole is not None
    assert [level.official for level in spine.levels] == [False] * 4 + [True]
    write_spine(tmp_path / "spine.parquet", spine)
    same_spine(read_spine(tmp_path / "spine.parquet", frame), spine)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("root", ["us", "state"])
def test_spines_of_several_states_are_read_as_they_were_written(tmp_path, seed, root):
    frame = random_frame(seed, root=root)

    def finish(spine):
        return bypass_general(spine, list(level_shares(spine.names).values()), top=1 + spine.index("state"))

    spine = build_spine(frame, Recipe(NAMED_SPINES["aian"]), finish)
    write_spine(tmp_path / "spine.parquet", spine)
    same_spine(read_spine(tmp_path / "spine.parquet", frame), spine)


def test_constraints_are_read_as_they_were_written(example, tmp_path):
    own, spine = example
    counts = own.estimate.take(spine.leaf_order)
    table = bound_table(own.product, own.frame, spine, declared_invariants(own.product, counts, spine))
    write_constraints(tmp_path / "constraints.parquet", own.product, spine, table)
    again = read_constraint_table(tmp_path / "constraints.parquet", own.product, spine)
    for one, two in zip(table.levels, again.levels, strict=True):
        assert np.array_equal(one.lower, two.lower)
        assert np.array_equal(one.upper, two.upper)
        assert [(i.name, i.answers.tolist()) for i in one.invariants] == [
            (i.name, i.answers.tolist()) for i in two.invariants
        ]
        assert (one.joint is None) == (two.joint is None)
        if one.joint is not None and two.joint is not None:
            assert one.joint.name == two.joint.name == "total@state"
            assert one.joint.group.tolist() == two.joint.group.tolist()
            assert one.joint.totals.tolist() == two.joint.totals.tolist() == [18]
    joint = [block for block in read_constraints(tmp_path / "constraints.parquet") if block.kind == "joint"]
    assert [(block.geolevel, block.row, len(block.geocodes)) for block in joint] == [("state", -1, 2)]


def test_a_divided_release_passes(release):
    assert failures(release) == {}
    certificate = json.loads((release / "certificate.json").read_text())
    assert [level["official"] for level in certificate["runs"][0]["spine"]["levels"]] == [False] * 4 + [True]


def test_the_state_has_no_margin_and_its_total_is_exact(release):
    # The state itself is no geounit of this spine; what its parts hold together is published exactly.
    (path,) = (release / "tables").glob("P1_state*.csv")
    rows = [line.split(",") for line in path.read_text().splitlines() if not line.startswith("#")]
    header, row = rows[0], rows[1]
    values = dict(zip(header, row, strict=True))
    margins = {name: value for name, value in values.items() if "_NOISE" in name}
    assert margins, header
    assert next(iter(margins.values())) == "0"
    assert set(list(margins.values())[1:]) <= {"", "-1"}


SPINES = {
    "aian": (NAMED_SPINES["aian"], False),
    "pure": (NAMED_SPINES["aian"], True),
    "bypass": ((SpineStep("bypass"),), False),
    "zones": (
        (
            SpineStep("intersect", level="tract", name="zone", entities=("place",)),
            SpineStep("block_groups", entities=("sduni",), fanout_cutoff=1),
            SpineStep("bypass"),
        ),
        False,
    ),
}


def literal_margin(spine, plan_file, frame, geolevel, leaves, query, confidence):
    """The margin of a query of an official geounit, found leaf by leaf and parent by parent."""
    number = spine.index(geolevel)
    starts = spine.leaf_starts(number).tolist()
    place = next(
        (
            i
            for i in range(len(spine.levels[number]))
            if {int(leaf) for leaf in spine.leaf_order[starts[i] : starts[i + 1]]} == leaves
        ),
        None,
    )
    if place is None:
        return -1
    while multiple(spine, number, place) == 0:
        place, number = int(spine.levels[number].parent[place]), number - 1
        assert int((spine.levels[number + 1].parent == place).sum()) == 1
    sigma2 = plan_file(spine.names[number]).parameter(query)[1]
    return DiscreteGaussian(sigma2 / multiple(spine, number, place)).margin(confidence)


@pytest.mark.parametrize("name", SPINES)
def test_margins_are_those_of_the_measurement_that_was_made(persons, tmp_path, name):
    steps, pure = SPINES[name]
    frame, _ = divided(persons.frame)
    frame.entities["sduni"] = np.array([b"1", b"2", b"1", b"1", b"1", b"2"])  # type: ignore[index]

    def finish(spine):
        shares = list(level_shares(spine.names).values())
        return bypass_general(spine, shares) if pure else bypass_only_children(spine, shares)

    spine = build_spine(frame, Recipe(steps, entities=("place",)), finish)
    # Without bounds, which fix cells at 0 and so their margins.
    own = type(persons)(replace(persons.product, invariants=(), bounds=()), frame, persons.estimate)
    issue_release(tmp_path / "release", [add_product(tmp_path / "release", own, spine=spine)])
    released = ReleaseFolder(tmp_path / "release")["pl94-persons"]
    confidence, seen = Fraction(9, 10), set()
    for geolevel in frame.geolevels:
        grouping = frame.grouping(geolevel)
        for query in ("total", "hhgq"):
            found = margins(released, query_table(own.product, query), grouping, confidence)
            for unit in range(len(grouping)):
                leaves = set(np.flatnonzero(grouping.of_leaf == unit).tolist())
                wanted = literal_margin(
                    spine, released.measurement, frame, geolevel, leaves, query, confidence
                )
                assert set(found[unit].tolist()) == {wanted}, (geolevel, query, grouping.geocodes[unit])
                seen.add(wanted)
    assert len(seen) >= 3
    assert failures(tmp_path / "release") == {}
    assert (-1 in seen) == (name != "bypass")


def test_what_is_invariant_in_every_leaf_is_exact_everywhere(persons, units, tmp_path):
    frame, spine = divided(persons.frame)
    own = type(units)(units.product, frame, units.estimate)
    issue_release(tmp_path / "release", [add_product(tmp_path / "release", own, spine=spine)])
    released = ReleaseFolder(tmp_path / "release")["pl94-units"]
    for geolevel in frame.geolevels:
        grouping = frame.grouping(geolevel)
        found = margins(released, query_table(own.product, "total"), grouping, Fraction(9, 10))
        assert found.tolist() == [[0]] * len(grouping), geolevel


def change_joint(rows):
    """Change the joint total of chosen rows by one."""

    def change(table):
        kinds = table.column("kind").to_pylist()
        places = [i for i, kind in enumerate(kinds) if kind == "joint"]
        lower, upper = table.column("lower").to_pylist(), table.column("upper").to_pylist()
        for i in places[:rows]:
            lower[i] = upper[i] = [lower[i][0] + 1]
        return put(put(table, "lower", lower), "upper", upper)

    return change


def test_a_changed_joint_total_is_seen(release):
    for rows in (1, 2):
        path = release / PERSONS / "constraints.parquet"
        whole = path.read_bytes()
        edit(path, change_joint(rows))
        relist(release)
        found = failures(release)
        assert "total@state does not hold" in found["pl94-persons: constraints"]
        path.write_bytes(whole)
    relist(release)
    assert failures(release) == {}


def test_joint_totals_that_differ_within_a_state_are_no_table(release, example):
    own, spine = example
    edit(release / PERSONS / "constraints.parquet", change_joint(1))
    with pytest.raises(FormatError, match="parts of one geounit have different joint totals"):
        read_constraint_table(release / PERSONS / "constraints.parquet", own.product, spine)


def test_joint_totals_that_are_dropped_or_renamed_are_seen(release):
    path = release / PERSONS / "constraints.parquet"
    whole = path.read_bytes()
    edit(path, lambda table: table.filter(pc.not_equal(table.column("kind"), "joint")))
    relist(release)
    assert "'total' is not on file" in failures(release)["pl94-persons: declared constraints"]
    path.write_bytes(whole)

    def separate(table):
        kinds = ["invariant" if kind == "joint" else kind for kind in table.column("kind").to_pylist()]
        return put(table, "kind", kinds)

    edit(path, separate)  # each part would have to hold the state's total
    relist(release)
    assert "does not hold" in failures(release)["pl94-persons: constraints"]


def shares_of(change):
    def changed(table):
        shares = table.column("share").to_pylist()
        place = next(i for i, share in enumerate(shares) if share not in ("0", "1"))
        shares[place] = change(Fraction(shares[place]))
        return put(table, "share", shares)

    return changed


@pytest.mark.parametrize("change", [lambda share: str(share + 1), lambda _: "1", lambda _: "0"])
def test_a_changed_share_is_seen(release, example, change):
    path = release / PERSONS / "spine.parquet"
    edit(path, shares_of(change))
    own, _ = example
    relist(release, spine_digest=read_spine(path, own.frame).digest())
    found = failures(release)
    assert {"pl94-persons: plan", "pl94-persons: measurements"} & set(found), found
    assert "on the path to leaf" in " ".join(found.values())


@pytest.mark.parametrize("bad", ["-1", "half", "1/0", "0.5x", ""])
def test_a_share_that_is_no_number_fails_without_a_traceback(release, bad):
    edit(release / PERSONS / "spine.parquet", shares_of(lambda _: bad))
    relist(release)
    found = failures(release)
    assert found
    assert all("internal" not in detail for detail in found.values())


def wholes(values):
    def changed(table):
        old = table.column("whole").to_pylist()
        places = [i for i, whole in enumerate(old) if whole is not None]
        for i, value in zip(places, values, strict=True):
            old[i] = value
        return put(table, "whole", old)

    return changed


@pytest.mark.parametrize("values", [[0, 1], [None, None]])
def test_other_parts_are_seen(release, example, values):
    path = release / PERSONS / "spine.parquet"
    edit(path, wholes(values))
    own, _ = example
    relist(release)
    assert "not the certified one" in failures(release)["pl94-persons: plan"]
    # Even with a certificate that was changed to match.
    relist(release, spine_digest=read_spine(path, own.frame).digest())
    found = failures(release)
    wanted = "declared constraints" if values[0] is None else "geography"
    assert f"pl94-persons: {wanted}" in found


@pytest.mark.parametrize("values", [[1, 1], [1, 0], [0, None]])
def test_parts_that_are_none_do_not_read(release, example, values):
    path = release / PERSONS / "spine.parquet"
    own, _ = example
    edit(path, wholes(values))
    relist(release)
    assert failures(release)
    if values != [0, None]:
        with pytest.raises(GeographyError):
            read_spine(path, own.frame)


def test_levels_that_are_called_official_and_are_not(release, example):
    path = release / PERSONS / "spine.parquet"
    edit(path, lambda table: table, {"official": [False, True, False, False, True]})
    own, _ = example
    relist(release, spine_digest=read_spine(path, own.frame).digest())
    assert (
        "the geounits of 'county' are not those of the frame" in failures(release)["pl94-persons: geography"]
    )


def test_another_parent_is_seen(release, example):
    path = release / PERSONS / "spine.parquet"

    def swap(table):
        parents, levels = table.column("parent").to_pylist(), table.column("geolevel").to_pylist()
        places = [i for i, level in enumerate(levels) if level == "block"]
        first = places[0]
        other = next(i for i in places if parents[i] != parents[first])
        parents[first], parents[other] = parents[other], parents[first]
        return put(table, "parent", parents)

    edit(path, swap)
    relist(release)
    assert failures(release)
