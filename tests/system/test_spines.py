"""Whole releases on spines of every kind: a synthetic state with areas that no official geounit follows."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.attacker import put, reissue, rewrite

import opendas as od
from opendas.demo.generator import write_demo
from opendas.errors import ConfigError

BLOCKS = 400
SEED = 2
TRACT_GROUPS = """[{ step = "aian" }, { step = "block_groups", entities = ["place", "cousub"] },
    { step = "tract_groups", entities = ["place", "cousub"] }, { step = "bypass" }]"""
DHC = """[{ step = "aian" },
    { step = "intersect", level = "tract", name = "prim", entities = ["place"] },
    { step = "split", level = "tract", name = "tract_subset", entities = ["aianhh"] },
    { step = "group", level = "tract_subset", name = "tract_subset_group", entities = ["sduni"] },
    { step = "block_groups", entities = ["sduni", "block_group"] }, { step = "bypass" }]"""
LEVELS = {
    '"dhc"': 'preset = "pr2020-{product}"\ngeolevels = {{ state = "1/10", county = "1/10", prim = "1/10", '
    'tract_subset_group = "1/10", tract_subset = "2/10", block_group = "2/10", block = "2/10" }}',
    TRACT_GROUPS: 'preset = "pr2020-{product}"\ngeolevels = {{ state = "1/10", county = "1/10", '
    'tract_group = "1/10", tract = "2/10", block_group = "3/10", block = "2/10" }}',
    DHC: 'preset = "pr2020-{product}"\ngeolevels = {{ state = "1/10", county = "1/10", prim = "1/10", '
    'tract_subset_group = "1/10", tract_subset = "2/10", block_group = "2/10", block = "2/10" }}',
}
SPINES = {
    "bypass only": '[{ step = "bypass" }]',
    "optimized": '"optimized"',
    "aian": '"aian"',
    "tract groups": TRACT_GROUPS,
    "dhc": DHC,
    "dhc by name": '"dhc"',
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_demo(folder, blocks=BLOCKS, seed=SEED)
    return folder


def run_file(made: Path, spine: str, product: str = "persons") -> Path:
    """Return the demo's run file with another spine, and the budget of its levels."""
    text = (made / f"{product}.toml").read_text().replace('spine = "standard"', f"spine = {spine}")
    if spine in LEVELS:
        text = text.replace(f'preset = "pr2020-{product}"', LEVELS[spine].format(product=product))
    path = made / f"{product}-{abs(hash(spine))}.toml"
    path.write_text(text)
    return path


def state_total(run: od.Run, release: od.Release) -> tuple[int, int]:
    truth = run.read().histogram.total()
    name = run.product.name
    return truth, release.estimate(name).total()


@pytest.mark.parametrize("name", SPINES)
def test_a_release_on_any_spine_verifies_and_stays_on_official_geography(
    made: Path, name: str, tmp_path: Path
) -> None:
    run = od.load(run_file(made, SPINES[name]))
    release = od.release(run, out=tmp_path / "out", seed=5, measurements="full")
    failed = [check for check in release.verify(allow_seeded=True) if not check.ok]
    assert failed == []
    truth, released = state_total(run, release)
    assert truth == released
    errors = od.evaluate(release, truth=run, entities=True)
    found = {row["geolevel"]: row["geounits"] for row in errors.rows if row["query"] == "total"}
    assert list(found)[:5] == ["state", "county", "tract", "block_group", "block"]
    assert {"place", "aianhh", "cousub", "sduni"} <= set(found)
    assert found["block_group"] == len(np.unique(run.frame.levels["block_group"]))
    for path in od.tabulate(release, ["P1"], "block_group", to=tmp_path / "tables"):
        codes = pq.read_table(path).column("GEOID").to_pylist()
        assert codes == [code.decode() for code in np.unique(run.frame.levels["block_group"])]


@pytest.mark.parametrize("name", ["optimized", "aian", "tract groups"])
def test_measuring_and_estimating_apart_gives_the_same_bytes(made: Path, name: str, tmp_path: Path) -> None:
    run = od.load(run_file(made, SPINES[name]))
    at_once = od.release(run, out=tmp_path / "once", seed=5, workers=1)
    od.measure(run, out=tmp_path / "apart", seed=5)
    apart = od.estimate(run, out=tmp_path / "apart", workers=2)
    for one in sorted((at_once.path / "release" / "mdf").rglob("*.parquet")):
        other = apart.path / one.relative_to(at_once.path)
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("spine", ['"aian"', '"optimized"', DHC])
def test_units_keep_their_invariant_in_every_block(made: Path, spine: str, tmp_path: Path) -> None:
    run = od.load(run_file(made, spine, "units"))
    release = od.release(run, out=tmp_path / "out", seed=5)
    assert all(check.ok for check in release.verify(allow_seeded=True))
    truth = run.read().histogram.row_totals()
    assert np.array_equal(release.estimate("pl94-units").row_totals(), truth)


def test_a_total_that_parts_hold_together_is_written_again_and_found_if_changed(
    made: Path, tmp_path: Path
) -> None:
    """A divided state: its exact total is a row of its own in ``constraints.parquet``."""
    release = od.release(od.load(run_file(made, '"aian"')), out=tmp_path / "out", seed=5)
    assert all(check.ok for check in release.verify(allow_seeded=True, rederive=True))
    path = release.path / "release" / "measurements" / "pl94-persons" / "constraints.parquet"
    kinds = pq.ParquetFile(path).read().column("kind").to_pylist()
    (joint, *_) = [row for row, kind in enumerate(kinds) if kind == "joint"]

    def one_more(table: pa.Table) -> pa.Table:
        lower = table.column("lower").to_pylist()
        return put(table, "lower", [*lower[:joint], [lower[joint][0] + 1], *lower[joint + 1 :]])

    rewrite(path, one_more)
    reissue(release.path / "release")
    wrong = [check.name for check in od.Release(release.path).verify(allow_seeded=True) if not check.ok]
    assert "columns" in wrong


def test_pure_differential_privacy_bypasses_by_the_general_rule(made: Path, tmp_path: Path) -> None:
    text = run_file(made, '[{ step = "block_groups" }, { step = "bypass" }]', "units").read_text()
    text = text.replace('mechanism = "discrete-gaussian"', 'mechanism = "discrete-laplace"')
    shares = ", ".join(f'{level} = "1/5"' for level in ("state", "county", "tract", "block_group", "block"))
    text = text[: text.index("[budget]")] + f'[budget]\nepsilon = "4"\ngeolevels = {{ {shares} }}\n'
    path = made / "laplace.toml"
    path.write_text(text + 'queries = { "*" = { detailed = "1" } }\n')
    run = od.load(path)
    families = [np.diff(run.spine.child_starts(level)) for level in range(4)]
    bypassed = [shares for shares in run.spine.shares if shares is not None]
    assert bypassed
    assert any(multiple == 0 for shares in bypassed for multiple in shares.multiples)
    # With equal shares the threshold is three children: none with two or three keeps its own measurement.
    parents = run.spine.shares[3]
    assert parents is not None
    small = families[3] > 1
    assert families[3][small].min() > 3
    release = od.release(run, out=tmp_path / "out", seed=5)
    assert all(check.ok for check in release.verify(allow_seeded=True))


def test_the_parts_of_a_state_hold_its_total_together(made: Path, tmp_path: Path) -> None:
    run = od.load(run_file(made, '"aian"'))
    spine = run.spine
    assert [code[:1] for code in spine.levels[0].geocodes.tolist()] == [b"0", b"1"]
    assert spine.levels[0].whole is not None
    assert spine.levels[0].whole.tolist() == [0, 0]
    release = od.release(run, out=tmp_path / "out", seed=6)
    rows = pq.read_table(release.path / "release/measurements/pl94-persons/constraints.parquet").to_pylist()
    joint = [row for row in rows if row["kind"] == "joint"]
    total = run.read().histogram.total()
    assert {(row["constraint"], row["lower"][0], row["upper"][0]) for row in joint} == {
        ("total@state", total, total)
    }
    held = [row for row in rows if row["kind"] == "invariant"]
    assert held == [], "the total of a part entered un-noised"
    certificate = json.loads((release.path / "release/certificate.json").read_text())
    assert certificate["runs"][0]["geounits"]["state"] == 2
    # The released totals of the parts are estimates: together exact, one by one off.
    inside = np.char.startswith(spine.levels[0].geocodes[1:2], b"1")
    assert inside.all()
    starts = spine.leaf_starts(0)
    leaves = spine.leaf_order[starts[1] : starts[2]]
    truth = int(run.read().histogram.row_totals()[leaves].sum())
    released = int(release.estimate("pl94-persons").row_totals()[leaves].sum())
    assert abs(truth - released) < 60


def test_shares_of_the_release_come_from_the_recipe(made: Path) -> None:
    run = od.load(run_file(made, TRACT_GROUPS))
    assert run.spine.names == ("state", "county", "tract_group", "tract", "block_group", "block")
    shares = [run.budget.geolevels[name] for name in run.spine.names]
    run.spine.check_paths(shares)
    assert sum(shares) == Fraction(1)
    assert run.budget.query_shares("tract_group") == run.budget.query_shares("tract")


def test_a_level_without_a_share_is_named(made: Path) -> None:
    path = run_file(made, '[{ step = "tract_groups", entities = ["place"] }]')
    with pytest.raises(ConfigError, match="tract_group"):
        od.plan(od.load(path))
