"""Data and shapes that nobody meant: what is accepted is exact, what is refused is refused before the draw.

Each is a whole run and a verification through the command line, on few records; those that are large by
nature are marked slow.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.assembled import assemble
from support.hostile import Shape, call, finish, refuse, released
from support.mini import from_dense, mini_frame, mini_product, to_dense

from opendas.engines.drive import estimate_spine
from opendas.topdown.informed import Informed

Capture = pytest.CaptureFixture[str]

LEAVES = [state + county + block for state in "ab" for county in "abc" for block in "abcd"]
"""Two states of three counties of four blocks."""

KINDS = {"topdown": "state", "informed": "state", "block-by-block": "leaf"}
"""Estimators, and where each can hold a total."""

every_method = pytest.mark.parametrize(
    ("estimator", "mechanism"),
    list(itertools.product(KINDS, ("discrete-gaussian", "discrete-laplace"))),
)
both_estimators = pytest.mark.parametrize("estimator", ["topdown", "informed"])


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def by(estimator: str, mechanism: str = "discrete-gaussian") -> str:
    return f'estimator = "{estimator}"\nmechanism = "{mechanism}"'


def loss(mechanism: str, value: str = "2") -> str:
    return f'{"rho" if mechanism == "discrete-gaussian" else "epsilon"} = "{value}"'


def total_at(geolevel: str) -> str:
    return f'[[invariants]]\nquery = "total"\ngeolevel = "{geolevel}"'


def some_counts(leaves: int = len(LEAVES), cells: int = 2, seed: int = 0) -> dict[tuple[int, int], int]:
    rng = np.random.default_rng(seed)
    return {(i, int(rng.integers(cells))): int(rng.integers(1, 9)) for i in range(leaves)}


# Nobody, and everybody in one place ------------------------------------------------------------------------


@every_method
def test_every_count_is_zero_and_the_total_is_invariant(
    tmp_path: Path, capsys: Capture, estimator: str, mechanism: str
) -> None:
    """That nobody is there is published exactly: no record could be anywhere, and nothing is protected."""
    shape = Shape(
        LEAVES,
        {(i, 0): 0 for i in range(len(LEAVES))},
        run=by(estimator, mechanism),
        loss=loss(mechanism),
        product=total_at(KINDS[estimator]),
    )
    code, _, err = call(capsys, "run", str(shape.write(tmp_path)), "--out", str(tmp_path / "out"))
    assert (code, "nothing is protected" in err) == (4, True), err


@both_estimators
def test_every_count_is_zero_and_nothing_is_invariant(
    tmp_path: Path, capsys: Capture, estimator: str
) -> None:
    shape = Shape(LEAVES, {(0, 0): 0}, run=by(estimator))
    finish(capsys, tmp_path, shape)
    assert all(count > 0 for count in released(tmp_path, shape).values())


@both_estimators
def test_a_state_whose_total_is_zero_stays_empty(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    shape = Shape(LEAVES, some_counts(12), run=by(estimator), product=total_at("state"))
    answer = finish(capsys, tmp_path, shape)
    assert answer["records"] == sum(some_counts(12).values())
    assert all(leaf < 12 for leaf, _ in released(tmp_path, shape))


@both_estimators
def test_everybody_lives_in_one_block(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    shape = Shape(LEAVES, {(5, 1): 1 << 20}, run=by(estimator), product=total_at("state"))
    assert finish(capsys, tmp_path, shape)["records"] == 1 << 20
    assert sum(released(tmp_path, shape).values()) == 1 << 20


@both_estimators
@pytest.mark.parametrize("size", [(1 << 31) - 1, 1 << 31, (1 << 32) + 1, (1 << 39) - 100])
def test_counts_up_to_the_limit_are_estimated_exactly(estimator: str, size: int) -> None:
    """As many records in one cell as a run takes; one row a record would fill a disk, so none is written."""
    frame = mini_frame()
    dense = np.zeros((len(frame), 9), np.int64)
    dense[7, 1] = size
    dense[:, 0] += 1
    lower = (frame.units["schools"] > 0, frame.units["prisons"] > 0)
    dense[lower[0], 4] += 1
    dense[lower[1], 7] += 1
    frame.units["homes"][:] = 1 << 24  # room for them
    run = assemble(
        mini_product(),
        frame,
        from_dense(dense),
        rho=Fraction(10**6),
        whole_tree=Informed() if estimator == "informed" else None,
    )
    found = estimate_spine(
        run.spine,
        run.constraints,
        run.worker(),
        histogram=run.counts,
        estimator=estimator,
        workers=1,
        model=run.model if estimator == "informed" else None,
    )
    assert np.array_equal(to_dense(found.leaves), to_dense(run.counts))


def test_more_records_than_the_limit_are_refused(tmp_path: Path, capsys: Capture) -> None:
    shape = Shape(LEAVES, {(5, 1): 1 << 39})
    code, err = refuse(capsys, tmp_path, shape)
    assert code == 3
    assert "549,755,813,888 records" in err


def test_counts_whose_sum_passes_64_bits_are_refused(tmp_path: Path, capsys: Capture) -> None:
    shape = Shape(LEAVES, {(leaf, 0): (1 << 63) - 1 for leaf in range(4)})
    code, _ = refuse(capsys, tmp_path, shape)
    assert code == 3


def test_a_giant_block_can_be_measured(tmp_path: Path, capsys: Capture) -> None:
    path = Shape(LEAVES, {(5, 1): (1 << 39) - 1}, loss='rho = "1000000000"').write(tmp_path)
    out = str(tmp_path / "out")
    code, _, err = call(capsys, "measure", str(path), "--out", out, "--seed", "3", "--json")
    assert code == 0, err
    code, said, _ = call(capsys, "interval", out, "--query", "total", "--geolevel", "state", "--json")
    assert code == 0
    found = [row["estimate"] for row in json.loads(said)["rows"]]
    assert found == pytest.approx([(1 << 39) - 1, 0], abs=0.01)


# Shapes of the hierarchy ------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("leaves", [1, 2])
def test_one_leaf_and_two(
    tmp_path: Path, capsys: Capture, estimator: str, mechanism: str, leaves: int
) -> None:
    shape = Shape(LEAVES[:leaves], {(0, 0): 5}, run=by(estimator, mechanism), loss=loss(mechanism))
    finish(capsys, tmp_path, shape)


@both_estimators
@pytest.mark.parametrize("geography", ["", 'spine = [{ step = "bypass" }]'])
def test_a_tree_of_single_children(tmp_path: Path, capsys: Capture, estimator: str, geography: str) -> None:
    levels = [(f"level{i}", i + 1) for i in range(12)]
    shape = Shape(
        ["x" * 12],
        {(0, 0): 500},
        levels=levels,
        run=by(estimator),
        product=total_at("level0"),
        geography=geography,
    )
    assert finish(capsys, tmp_path, shape)["records"] == 500


@both_estimators
def test_a_hundred_geolevels(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    """Four leaves that part at the hundredth character."""
    levels = [(f"level{i}", i + 1) for i in range(100)]
    leaves = ["0" * 98 + end for end in ("00", "01", "10", "11")]
    shape = Shape(leaves, some_counts(4), levels=levels, run=by(estimator), product=total_at("level50"))
    assert finish(capsys, tmp_path, shape)["records"] == sum(some_counts(4).values())


@both_estimators
@pytest.mark.parametrize("length", [1, 60, 400])
def test_geocodes_of_any_length(tmp_path: Path, capsys: Capture, estimator: str, length: int) -> None:
    levels = [("top", 0), *([("middle", length - 1)] if length > 1 else []), ("lowest", length)]
    leaves = [letter * length for letter in "abcdef"]
    shape = Shape(leaves, some_counts(6), levels=levels, run=by(estimator), loss='rho = "1000000000"')
    finish(capsys, tmp_path, shape)
    assert released(tmp_path, shape) == some_counts(6)


# Schemas and queries ----------------------------------------------------------------------------------------


@every_method
def test_a_schema_of_one_cell(tmp_path: Path, capsys: Capture, estimator: str, mechanism: str) -> None:
    shape = Shape(
        LEAVES,
        some_counts(cells=1),
        attributes={"kind": ("only",)},
        run=by(estimator, mechanism),
        loss=loss(mechanism),
    )
    finish(capsys, tmp_path, shape)


@both_estimators
def test_an_attribute_of_one_level(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    shape = Shape(
        LEAVES,
        some_counts(),
        attributes={"kind": ("a", "b"), "single": ("only",)},
        product='[queries]\ngroups = ["kind", "single"]',
        queries='"*" = { total = "1/4", kind = "1/4", single = "1/4", detailed = "1/4" }',
        run=by(estimator),
    )
    finish(capsys, tmp_path, shape)


@both_estimators
def test_sixty_four_query_groups(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    names = [f"a{i}" for i in range(7)]
    groups = [" * ".join(some) for k in range(1, 7) for some in itertools.combinations(names, k)][:62]
    listed = ", ".join(f'"{group}"' for group in groups)
    shares = ", ".join(f'"{group}" = "1/64"' for group in groups)
    shape = Shape(
        LEAVES,
        some_counts(cells=128),
        attributes=dict.fromkeys(names, ("x", "y")),
        product=f"[queries]\ngroups = [{listed}]\n{total_at('state')}",
        queries=f'"*" = {{ total = "1/64", detailed = "1/64", {shares} }}',
        run=by(estimator),
    )
    assert finish(capsys, tmp_path, shape)["records"] == sum(some_counts(cells=128).values())


@both_estimators
def test_labels_in_any_script(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    shape = Shape(
        LEAVES,
        some_counts(cells=4),
        attributes={"größe": ('naïve "x" \\', "日本語 | y"), "δ": ("ü ё", "it's, a <b>")},
        run=by(estimator),
        loss='rho = "1000000000"',
    )
    finish(capsys, tmp_path, shape)
    assert released(tmp_path, shape) == some_counts(cells=4)


@pytest.mark.parametrize("name", ["ü", "a b", "a/b", "..", ".", 'q"q', "x" * 300, "-rf", "a\nb", " ", ""])
def test_names_of_products_that_make_no_folder_are_refused(
    tmp_path: Path, capsys: Capture, name: str
) -> None:
    code, err = refuse(capsys, tmp_path, Shape(LEAVES, some_counts(), name=name))
    assert code == 2
    assert "product.name" in err


@pytest.mark.parametrize("name", ["a.b-c_1", "UPPER", "x" * 100, "0"])
def test_names_of_products_that_make_one_are_taken(tmp_path: Path, capsys: Capture, name: str) -> None:
    finish(capsys, tmp_path, Shape(LEAVES[:4], some_counts(4), name=name))


# Budgets ----------------------------------------------------------------------------------------------------


@both_estimators
@pytest.mark.parametrize("only", ["state", "county", "block"])
def test_all_the_budget_on_one_level(tmp_path: Path, capsys: Capture, estimator: str, only: str) -> None:
    shares = {level: Fraction(int(level == only)) for level in ("state", "county", "block")}
    shape = Shape(LEAVES, some_counts(), shares=shares, run=by(estimator), product=total_at("state"))
    assert finish(capsys, tmp_path, shape)["records"] == sum(some_counts().values())


@every_method
def test_a_budget_without_end_gives_the_truth(
    tmp_path: Path, capsys: Capture, estimator: str, mechanism: str
) -> None:
    shape = Shape(LEAVES, some_counts(), run=by(estimator, mechanism), loss=loss(mechanism, "1000000000"))
    finish(capsys, tmp_path, shape)
    assert released(tmp_path, shape) == some_counts()


@both_estimators
def test_a_budget_of_next_to_nothing(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    """Noise of ten thousand times the counts; the totals hold all the same."""
    shape = Shape(
        LEAVES, some_counts(), run=by(estimator), loss='rho = "1/1000000000"', product=total_at("state")
    )
    assert finish(capsys, tmp_path, shape)["records"] == sum(some_counts().values())


def test_noise_wider_than_can_be_drawn_exactly_is_refused(tmp_path: Path, capsys: Capture) -> None:
    shape = Shape(
        LEAVES,
        some_counts(),
        run=by("topdown", "discrete-laplace"),
        loss=loss("discrete-laplace", "1/1000000000"),
    )
    code, err = refuse(capsys, tmp_path, shape)
    assert code == 2
    assert "too small" in err


# Contradictions ---------------------------------------------------------------------------------------------

HOMES = '[[bounds]]\nquery = "kind"\ncell = "{}"\ncolumn = "{}"\nlower = {}\nupper = {}\n'


def contradictory(invariants: str, homes: list[int], prisons: list[int], **more: str) -> Shape:
    """Eight records in every block, four of each kind; bounds that may not leave room for them."""
    counts = {(leaf, cell): 4 for leaf in range(len(LEAVES)) for cell in (0, 2)}
    return Shape(
        LEAVES,
        counts,
        attributes={"kind": ("home", "prison"), "age": ("young", "old")},
        units={"homes": homes, "prisons": prisons},
        product=HOMES.format("home", "homes", 0, 99) + HOMES.format("prison", "prisons", 1, 99) + invariants,
        **more,
    )


def in_docs(err: str) -> None:
    """The message is the one that the page on contradictions shows."""
    page = (Path(__file__).parents[2] / "docs" / "contradictions.md").read_text(encoding="utf-8")
    message = err[err.index("opendas: ") :].rstrip("\n")
    assert "\n".join("    " + line for line in message.split("\n")) in page


@pytest.mark.parametrize("estimator", list(KINDS))
def test_people_where_there_is_no_unit(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    """The block's total is published; its frame knows no home and no prison."""
    ones = [1] * len(LEAVES)
    none = [0, *ones[1:]]
    shape = contradictory(total_at("leaf"), none, none, run=by(estimator))
    code, err = refuse(capsys, tmp_path, shape)
    assert code == 5
    assert "block aaa: invariant total@block = 8" in err
    in_docs(err)


def test_a_county_against_its_blocks(tmp_path: Path, capsys: Capture) -> None:
    """The county's prisoners are published, and the totals of its blocks, most of which have no prison."""
    ones = [1] * len(LEAVES)
    prisons = [1, 0, 0, 0, *ones[4:]]
    invariants = '[[invariants]]\nquery = "kind"\ngeolevel = "county"\n' + total_at("block")
    code, err = refuse(capsys, tmp_path, contradictory(invariants, ones, prisons))
    assert code == 5
    assert "county aa: invariant kind@county, prison = 16" in err
    in_docs(err)


def test_more_is_asked_for_than_there_is(tmp_path: Path, capsys: Capture) -> None:
    """Prisons that must hold more people than the state has."""
    ones = [1] * len(LEAVES)
    shape = contradictory(total_at("state"), ones, [100] * len(LEAVES))
    code, err = refuse(capsys, tmp_path, shape)
    assert code == 5
    assert "state a: invariant total@state = 96" in err
    assert "state a: lower bound of kind=prison by prisons >= 1,200" in err
    assert "1 more with a contradiction of their own: b." in err


def test_a_contradiction_that_only_shows_on_the_way_down_is_told_with_its_numbers(
    tmp_path: Path, capsys: Capture
) -> None:
    """Bounds that cross: whether a family below fits depends on the estimate above it."""
    product = (
        '[[bounds]]\nquery = "x"\ncell = "x1"\ncolumn = "first"\nlower = 1\nupper = 1\n'
        '[[bounds]]\nquery = "y"\ncell = "y1"\ncolumn = "second"\nlower = 1\nupper = 1\n'
        '[[bounds]]\nquery = "total"\ncell = "total"\ncolumn = "room"\nlower = 1\nupper = 2\n'
    )
    shape = Shape(
        LEAVES,
        {(leaf, 3): 1 for leaf in range(len(LEAVES))},
        attributes={"x": ("x0", "x1"), "y": ("y0", "y1")},
        units={
            "first": [leaf % 2 for leaf in range(len(LEAVES))],
            "second": [leaf // 2 % 2 for leaf in range(len(LEAVES))],
            "room": [1] * len(LEAVES),
        },
        product=product,
        geography="[passes]\nmilp = true",
        loss='rho = "1/100"',
    )
    path = shape.write(tmp_path)
    stopped = None
    for seed in range(8):
        out = str(tmp_path / f"out{seed}")
        code, _, err = call(capsys, "run", str(path), "--out", out, "--seed", str(seed))
        assert code in (0, 5)
        if code == 5:
            stopped = out, str(seed), err
            break
    assert stopped is not None
    out, number, err = stopped
    assert "contradict each other" in err
    assert re.search(r"parent [ab][abc]?: estimate of .* = \d+\n", err)
    assert re.search(r"(county [ab][abc]|block [ab][abc][abcd]): \w+ bound of .* [<>]= \d+\n", err)
    assert not (Path(out) / "release" / "mdf").exists()

    # What was measured is not lost: the same measurements, estimated with the failsafe.
    assert call(capsys, "measure", str(path), "--out", out, "--seed", number, "--resume")[0] == 0
    replace(shape, run="failsafe = true").write(tmp_path)
    assert call(capsys, "estimate", str(path), "--out", out)[0] == 0
    assert call(capsys, "verify", out, "--allow-seeded")[0] == 0
    run = json.loads((Path(out) / "release" / "certificate.json").read_text())["runs"][0]
    assert run["failsafe"]
    ledger = (Path(out) / "ledger.jsonl").read_text()
    assert ledger.count('"intent"') == 1


# Large by nature --------------------------------------------------------------------------------------------

FIELDS = {"a": ("p", "q", "r", "s"), "b": ("x", "y")}
WIDE = '"*" = { total = "1/4", a = "1/4", b = "1/4", detailed = "1/4" }'
GROUPS = '[queries]\ngroups = ["a", "b"]\n'


@pytest.mark.slow
@both_estimators
def test_a_county_of_two_and_a_half_thousand_tracts(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    shape = Shape(
        [f"0{tract:04d}{block}" for tract in range(2500) for block in range(3)],
        some_counts(7500, 8),
        attributes=FIELDS,
        levels=(("county", 1), ("tract", 5), ("block", 6)),
        queries=WIDE,
        product=GROUPS + total_at("county"),
        run=by(estimator),
    )
    assert finish(capsys, tmp_path, shape)["records"] == sum(some_counts(7500, 8).values())


def test_cells_that_nothing_asks_one_by_one_are_refused_where_they_would_fill_the_memory(
    tmp_path: Path, capsys: Capture
) -> None:
    """Ninety thousand cells from two margins: least squares at the root would take 65 GB."""
    shape = Shape(
        LEAVES[:8],
        some_counts(8, 90_000),
        attributes={"a": [f"a{i}" for i in range(300)], "b": [f"b{i}" for i in range(300)]},
        queries='"*" = { total = "1/2", a = "1/4", b = "1/4" }',
        product=GROUPS,
    )
    code, err = refuse(capsys, tmp_path, shape)
    assert code == 2
    assert "90,000 cells are told apart and no query group asks every cell" in err
    assert "65 GB" in err


@pytest.mark.slow
@both_estimators
def test_a_schema_of_three_hundred_thousand_cells(tmp_path: Path, capsys: Capture, estimator: str) -> None:
    shape = Shape(
        LEAVES[:8],
        some_counts(8, 300_000),
        attributes={"a": [f"a{i}" for i in range(500)], "b": [f"b{i}" for i in range(600)]},
        queries=WIDE,
        product=GROUPS + total_at("state"),
        run=by(estimator),
    )
    assert finish(capsys, tmp_path, shape)["records"] == sum(some_counts(8, 300_000).values())
