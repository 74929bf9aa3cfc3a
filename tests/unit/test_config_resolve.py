"""What a run file means, and what does not fit together."""

from __future__ import annotations

import tomllib
from fractions import Fraction
from pathlib import Path

import pytest

from opendas.budget.resolve import resolve_budget
from opendas.errors import ConfigError
from opendas.runs.config.load import load_run_file
from opendas.runs.config.released import read_released, released_toml
from opendas.runs.config.resolve import Resolved, resolve

PRODUCT = """
[product]
name = "patients"
protected_unit = "patient"
provenance = "code-book"
[attributes]
age = ["young", "old"]
ward_type = ["a \\"quoted\\" one", "b"]
[queries]
groups = ["age"]
[[invariants]]
query = "total"
geolevel = "region"
[budget]
rho = "1"
geolevels = { region = "1/4", ward = "3/4" }
[budget.queries]
"*" = { total = "1/4", detailed = "3/4" }
"""
OWN = """
[run]
product = "patients.toml"
[input]
reader = "records"
path = "data.csv"
[geography]
levels = [{ name = "region", prefix = 2 }, { name = "ward" }]
frame = "wards.csv"
provenance = "public"
"""
CENSUS = """
[run]
product = "pl94-persons"
[input]
reader = "pl94-2010"
path = "ri.zip"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "patients.toml").write_text(PRODUCT)
    for name in ("data.csv", "wards.csv", "ri.zip"):
        (tmp_path / name).write_text("")
    return tmp_path


def settle(folder: Path, text: str, **options: bool) -> Resolved:
    path = folder / "run.toml"
    path.write_text(text)
    return resolve(load_run_file(path), **options)


def test_an_own_product_takes_its_budget_from_its_file(folder: Path) -> None:
    resolved = settle(folder, OWN)
    assert resolved.geolevels == ("region", "ward")
    assert resolved.budget.rho == Fraction(1)
    assert [invariant.name for invariant in resolved.product.invariants] == ["total@region"]
    budget = resolve_budget(resolved.budget, resolved.geolevels, resolved.product.workload.canonical)
    assert budget.geolevels == {"region": Fraction(1, 4), "ward": Fraction(3, 4)}


def test_the_run_file_replaces_the_products_budget_part_by_part(folder: Path) -> None:
    resolved = settle(folder, OWN + '[budget]\nrho = "3"\n')
    assert resolved.budget.rho == 3
    assert resolved.budget.geolevels == {"region": Fraction(1, 4), "ward": Fraction(3, 4)}


SOURCE = 'source = "numbers of wards; no count was used"\n'


def test_the_source_of_the_shares_is_kept_and_belongs_to_its_shares(folder: Path) -> None:
    assert settle(folder, OWN).budget.source is None
    resolved = settle(folder, OWN + "[budget]\n" + SOURCE)
    assert resolved.budget.source == "numbers of wards; no count was used"
    product = folder / "patients.toml"
    product.write_text(product.read_text().replace("[budget]\n", "[budget]\n" + SOURCE))
    assert settle(folder, OWN + '[budget]\nrho = "3"\n').budget.source is not None
    others = '[budget]\ngeolevels = { region = "1/2", ward = "1/2" }\n'
    assert settle(folder, OWN + others).budget.source is None


def test_the_source_does_not_change_the_budget_or_its_digest(folder: Path) -> None:
    plain, told = settle(folder, OWN), settle(folder, OWN + "[budget]\n" + SOURCE)
    canonical = plain.product.workload.canonical
    first, second = (resolve_budget(one.budget, one.geolevels, canonical) for one in (plain, told))
    assert first == second
    assert first.digest() == second.digest()
    assert "source" not in released_toml(plain, first)
    assert tomllib.loads(released_toml(told, second))["budget"]["source"].startswith("numbers of wards")


@pytest.mark.parametrize("words", ['""', '"  "', '"two\\nlines"', f'"{"x" * 301}"', "3"])
def test_a_source_is_one_line(folder: Path, words: str) -> None:
    with pytest.raises(ConfigError, match=r"budget\.source"):
        settle(folder, OWN + f"[budget]\nsource = {words}\n")


@pytest.mark.parametrize(
    ("root", "preset"), [("", "pr2020-persons"), ('[geography]\nroot = "us"', "us2020-persons")]
)
def test_the_default_preset_fits_the_root(folder: Path, root: str, preset: str) -> None:
    assert settle(folder, CENSUS + root).budget.preset == preset


def test_the_units_invariant_is_at_the_leaf(folder: Path) -> None:
    resolved = settle(folder, CENSUS.replace("persons", "units"))
    assert [invariant.name for invariant in resolved.product.invariants] == ["total@block"]
    assert resolved.budget.preset == "pr2020-units"


def test_dropped_invariants_are_kept_apart(folder: Path) -> None:
    resolved = settle(folder, OWN.replace("[input]", 'drop_invariants = ["total"]\n[input]'))
    assert resolved.product.invariants == ()
    assert [invariant.name for invariant in resolved.dropped] == ["total@region"]


def test_block_by_block_refuses_invariants_above_the_leaf(folder: Path) -> None:
    text = CENSUS.replace("[input]", 'estimator = "block-by-block"\n[input]')
    with pytest.raises(ConfigError, match=r"total@state.*drop_invariants"):
        settle(folder, text)
    settle(folder, text.replace("[input]", 'drop_invariants = ["total"]\n[input]'))
    settle(folder, text.replace("persons", "units"))


@pytest.mark.parametrize("estimator", ["informed", "posterior"])
def test_estimators_of_the_whole_tree_refuse_passes_that_they_do_not_follow(
    folder: Path, estimator: str
) -> None:
    text = CENSUS.replace("[input]", f'estimator = "{estimator}"\n[input]')
    assert settle(folder, text).estimator == estimator
    rounder = text + '[passes]\nrounder = { "*" = [["detailed"]] }\n'
    assert settle(folder, rounder).product.passes.rounder
    for given, named in (
        ('least_squares = { "*" = [["rest"]] }', "least_squares:"),
        ('slack = "0.01"', "slack:"),
        ('[[passes.earlier]]\nrounder = { "*" = [["total"]] }', "earlier:"),
        ('slack = "0.01"\nleast_squares = { "*" = [["rest"]] }', "least_squares and slack:"),
    ):
        with pytest.raises(ConfigError, match=r"one\s+pass") as caught:
            settle(folder, f"{text}[passes]\n{given}\n")
        assert named in str(caught.value)
        assert caught.value.exit_code == 2
        settle(folder, f"{CENSUS}[passes]\n{given}\n")


def test_the_posterior_refuses_what_it_cannot_keep_or_has_no_likelihood_for(folder: Path) -> None:
    text = CENSUS.replace("[input]", 'estimator = "posterior"\n[input]')
    for changed, named in (
        (text.replace("pl94-persons", "pl94-units"), "invariant total@"),
        (text.replace("[input]", 'mechanism = "discrete-laplace"\n[input]'), "mechanism discrete-laplace"),
    ):
        with pytest.raises(ConfigError, match="Use estimator informed") as caught:
            settle(folder, changed)
        assert named in str(caught.value)
        assert caught.value.exit_code == 2
        settle(folder, changed.replace("posterior", "informed"))


def test_the_posterior_refuses_bounds_that_count_a_cell_twice(folder: Path) -> None:
    more = """
[[bounds]]
query = "age"
cell = "old"
column = "beds"
[[bounds]]
query = "ward_type"
cell = "b"
column = "rooms"
"""
    (folder / "patients.toml").write_text(PRODUCT + more)
    with pytest.raises(ConfigError, match=r"bounds .*old.*b.*, of which several count the same cells"):
        settle(folder, OWN.replace("[input]", 'estimator = "posterior"\n[input]'))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OWN.replace('frame = "wards.csv"', ""), "frame: required with reader records"),
        (OWN.replace("levels", 'root = "us"\nlevels'), "root: for census readers only"),
        (OWN.replace('frame = "wards.csv"', 'frame = "absent.csv"'), "absent.csv: no such file"),
        (OWN.replace("data.csv", "absent.csv"), "absent.csv"),
        (
            OWN.replace('"data.csv"', '"data.csv"\ncolumns = { agee = "A" }'),
            "no attribute 'agee'; did you mean age?",
        ),
        (OWN.replace('"data.csv"', '"data.csv"\nconstants = { age = "yung" }'), "did you mean young?"),
        (
            OWN.replace('"data.csv"', '"data.csv"\nconstants = { age = "old" }\ncolumns = { age = "A" }'),
            "age is in columns and in constants",
        ),
        (OWN.replace("patients.toml", "pl94-persons"), "holds 'total' invariant at geolevel 'state'"),
        (OWN + '[passes]\nleast_squares = { regoin = [["rest"]] }', "did you mean region?"),
        (OWN + '[passes]\nleast_squares = { "*" = [["agee"]] }', "'agee'"),
        (OWN + '[[passes.earlier]]\nrounder = { regoin = [["age"]] }', "did you mean region?"),
        (OWN + '[[passes.earlier]]\nrounder = { "*" = [["agee"]] }', "earlier: query group 'agee'"),
        (OWN + '[[passes.earlier]]\nrounder = { "*" = [["detailed"]] }', "leaves nothing for the last"),
        (OWN.replace("[input]", 'drop_invariants = ["totl"]\n[input]'), "did you mean total?"),
        (CENSUS.replace("pl94-persons", "patients.toml"), "use reader records or histogram"),
        (CENSUS + '[geography]\nframe = "wards.csv"', "frame: not with reader pl94-2010"),
        (CENSUS + 'geocode = "GEOID"', "geocode: not with reader pl94-2010"),
    ],
)
def test_what_does_not_fit_is_refused(folder: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settle(folder, text)
    assert expected in str(caught.value)


def test_estimation_needs_no_input(folder: Path) -> None:
    (folder / "data.csv").unlink()
    (folder / "wards.csv").unlink()
    assert settle(folder, OWN, need_input=False).reader.paths == ()


def test_the_released_plan_is_complete_and_holds_no_path(folder: Path) -> None:
    resolved = settle(folder, OWN)
    budget = resolve_budget(resolved.budget, resolved.geolevels, resolved.product.workload.canonical)
    text = released_toml(resolved, budget)
    assert str(folder) not in text
    assert "data.csv" not in text
    assert "wards.csv" not in text
    data = tomllib.loads(text)
    assert data["budget"]["rho"] == "1"
    assert data["budget"]["queries"]["ward"] == {"total": "1/4", "detailed": "3/4"}
    assert data["attributes"]["ward_type"] == ['a "quoted" one', "b"]
    assert data["invariants"] == [{"query": "total", "geolevel": "region"}]
    assert text == released_toml(settle(folder, OWN), budget)


def test_stages_of_a_product_and_of_a_run_come_back_from_the_released_plan(folder: Path) -> None:
    stage = """
[[passes.earlier]]
least_squares = { "*" = [["total"], ["rest"]] }
rounder = { "*" = [["total"], ["age"]], region = [["age"]] }
"""
    (folder / "patients.toml").write_text(PRODUCT + stage)
    for text in (OWN, OWN + '[[passes.earlier]]\nrounder = { leaf = [["ward_type"]] }\n'):
        resolved = settle(folder, text)
        assert len(resolved.product.passes.earlier) == 1
        budget = resolve_budget(resolved.budget, resolved.geolevels, resolved.product.workload.canonical)
        back = read_released(released_toml(resolved, budget), resolved.product)
        assert back.product.passes == resolved.product.passes
    plan = settle(folder, OWN).product.passes.earlier[0]
    assert plan.least_squares == {"*": (("total",), ("rest",))}
    assert plan.rounder == {"*": (("total",), ("age",)), "region": (("age",),)}
    assert resolved.product.passes.earlier[0].rounder == {"leaf": (("ward_type",),)}
    (folder / "patients.toml").write_text(PRODUCT + stage.replace('"age"', '"ages"'))
    with pytest.raises(ConfigError, match=r"patients.toml.*earlier.*'ages'"):
        settle(folder, OWN)
