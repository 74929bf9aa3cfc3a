"""Product files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opendas.errors import ConfigError
from opendas.runs.config.product_file import load_product
from opendas.schema.attributes import label_runs, labels_named

FILE = """
[product]
name = "age-by-group"
provenance = "code-book"
[attributes]
age   = ["under18", "18plus"]
group = ["hispanic", "white", "black", "other"]
[recodes.broad]
attribute = "group"
levels = { hispanic = ["hispanic"], white = ["white"], other = ["black", "other"] }
[queries]
groups = ["age", "group", "broad * age", "group * age"]
[[structural_zeros]]
age = ["under18"]
group = ["other"]
[[invariants]]
query = "total"
geolevel = "region"
[[bounds]]
query = "age * broad"
cell = "18plus*other"
column = "wards"
lower = 1
[budget]
rho = "1"
geolevels = { region = "1/2", ward = "1/2" }
[budget.queries]
"*" = { total = "1/4", detailed = "3/4" }
[passes]
least_squares = { "*" = [["group*age"], ["rest"]] }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "product.toml"
    path.write_text(text)
    return path


def test_a_product_file_becomes_a_product(tmp_path: Path) -> None:
    product = load_product(write(tmp_path, FILE))
    assert product.name == product.layout == "age-by-group"
    assert product.protected_unit == "record"
    assert product.schema.shape == (2, 4)
    assert product.query_names == ("total", "age", "group", "age * broad", "detailed")
    assert [invariant.name for invariant in product.invariants] == ["total@region"]
    bound = product.bounds[0]
    assert (bound.query, bound.cell, bound.lower, bound.upper) == ("age * broad", "18plus * other", 1, 99999)
    assert product.bound_row(bound) == 5
    assert product.possible.tolist() == [True, True, True, False, True, True, True, True]
    assert product.budget is not None
    assert product.budget["rho"] == Fraction(1)
    assert product.passes.least_squares == {"*": (("detailed",), ("rest",))}
    assert product.passes.rounder == {"*": (("total",), ("detailed",))}


def test_default_passes_are_total_first_between_root_and_leaf(tmp_path: Path) -> None:
    product = load_product(write(tmp_path, FILE[: FILE.index("[passes]")]))
    measured = ("total", "age", "detailed")
    for root, leaf in ((True, False), (False, True)):
        ((passes, rounder),) = product.passes.for_geolevel("x", measured, is_root=root, is_leaf=leaf)
        assert passes == (measured,)
        assert rounder == (("total",), ("detailed",))
    ((passes, _),) = product.passes.for_geolevel("x", measured, is_root=False, is_leaf=False)
    assert passes == (("total",), ("age", "detailed"))


@pytest.mark.parametrize("name", ["pl94-persons", "pl94-units"])
def test_built_in_products_are_known_by_name(name: str) -> None:
    assert load_product(name).name == name


def test_an_unknown_product_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean pl94-persons"):
        load_product("pl94-person")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'name = "age-by-group"',
            'name = "units"',
            "line 3, field product.name: 'units' is the name of a built-in",
        ),
        ('name = "age-by-group"', 'name = "a/b"', "folders are named after it"),
        ("[recodes.broad]", "[recodes.total]", "recode name 'total' is not usable"),
        ("[recodes.broad]", "[recodes.age]", "names both an attribute and a recode"),
        ('attribute = "group"', 'attribute = "gruop"', "no attribute 'gruop'; did you mean group?"),
        ('["black", "other"] }', '["black"] }', "level 'other' of 'group' is in no group"),
        ('["black", "other"] }', '["black", "other", "white"] }', "level 'white' is named twice"),
        ('["black", "other"] }', '["black", "othr"] }', "'othr' is not a level of 'group'"),
        ('"broad * age"', '"broad * group"', "uses one attribute twice"),
        ('"broad * age"', '"sex"', "line 12, field queries.groups.2: query group 'sex'"),
        ('"broad * age"', '"braod * age"', "field queries.groups.2: query group 'braod * age'"),
        ('"broad * age"', '"braod * age"', "did you mean broad?"),
        ('age = ["under18"]', 'age = ["under81"]', "did you mean under18?"),
        ('age = ["under18"]', 'agee = ["under18"]', "no attribute or recode 'agee'; did you mean age?"),
        ('cell = "18plus*other"', 'cell = "18plus"', "query 'age * broad' has no cell '18plus'"),
        ("lower = 1", "lower = 100000", "lower is greater than upper"),
        ("lower = 1", "lower = 1.5", "expected an integer, found a float"),
        ('query = "total"', 'query = "totl"', "invariants.0.query"),
        ('age   = ["under18", "18plus"]', 'age = ["under18", "under18"]', "repeats the level"),
        ('age   = ["under18", "18plus"]', "rest = []", "attributes.rest"),
        ('[["group*age"], ["rest"]]', '[["group*agee"]]', "passes.least_squares"),
        (
            'least_squares = { "*" = [["group*age"], ["rest"]] }',
            'rounder = { "*" = [["total"]] }',
            "detailed",
        ),
        ('least_squares = { "*" = [["group*age"], ["rest"]] }', "milp = true", "set in a run file"),
        ("[queries]", "[queries]\ngroup = []", "did you mean groups?"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in FILE
    with pytest.raises(ConfigError) as caught:
        load_product(write(tmp_path, FILE.replace(old, new, 1)))
    assert expected in str(caught.value)


def test_everything_wrong_comes_together(tmp_path: Path) -> None:
    text = FILE.replace('cell = "18plus*other"', 'cell = "x"').replace(
        'geolevel = "region"', 'geolevel = "region"\n[[invariants]]\nquery="nope"\ngeolevel="x"'
    )
    text = text.replace('age = ["under18"]', 'age = ["x"]')
    with pytest.raises(ConfigError) as caught:
        load_product(write(tmp_path, text))
    assert "product.toml: 3 problems" in str(caught.value)


def test_forbidding_every_cell_is_refused(tmp_path: Path) -> None:
    text = FILE.replace('group = ["other"]\n', "").replace(
        '[[structural_zeros]]\nage = ["under18"]', '[[structural_zeros]]\nage = ["under18", "18plus"]'
    )
    with pytest.raises(ConfigError, match="forbid every cell"):
        load_product(write(tmp_path, text))


@pytest.mark.parametrize(
    ("zero", "groups"),
    [
        ('broad = ["other"]', {"black", "other"}),
        ('group = ["white..other"]', {"white", "black", "other"}),
        ('broad = ["white..other"]\ngroup = ["hispanic..black"]', {"white", "black"}),
    ],
)
def test_structural_zeros_by_recodes_and_runs(tmp_path: Path, zero: str, groups: set[str]) -> None:
    product = load_product(write(tmp_path, FILE.replace('group = ["other"]\n', f"{zero}\n", 1)))
    (found,) = product.structural_zeros
    assert found.levels.keys() == {"age", "group"}
    assert set(found.levels["group"]) == groups
    for group in product.schema.attribute("group").levels:
        assert product.possible[product.schema.cell({"age": "under18", "group": group})] == (
            group not in groups
        )
        assert product.possible[product.schema.cell({"age": "18plus", "group": group})]


@pytest.mark.parametrize(
    ("zero", "message"),
    [
        ('broad = ["black"]', r"'black' is not a level of 'broad'"),
        ('group = ["other..white"]', r"'other..white' is not a level of 'group'"),
        ('broad = ["other"]\ngroup = ["white"]', "have no level of 'group' in common"),
        ('braod = ["other"]', "did you mean broad"),
    ],
)
def test_structural_zeros_that_name_nothing(tmp_path: Path, zero: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_product(write(tmp_path, FILE.replace('group = ["other"]\n', f"{zero}\n", 1)))


def test_recodes_by_runs(tmp_path: Path) -> None:
    product = load_product(write(tmp_path, FILE.replace('["black", "other"]', '["black..other"]', 1)))
    assert dict(product.recodes[0].groups)["other"] == ("black", "other")


def test_a_recode_may_leave_levels_to_others(tmp_path: Path) -> None:
    def with_recode(text: str) -> Path:
        recode = f'[recodes.some]\nattribute = "group"\n{text}\n[queries]'
        return write(tmp_path, FILE.replace("[queries]", recode, 1))

    found = load_product(with_recode('levels = { known = ["hispanic..white"] }\nothers = "elsewhere"'))
    assert found.recodes[1].groups == (("known", ("hispanic", "white")), ("elsewhere", ("black", "other")))
    for wrong, message in (
        ('levels = { known = ["hispanic..other"] }\nothers = "elsewhere"', "every level has a group already"),
        ('levels = { known = ["hispanic..white"] }\nothers = "known"', "is already a group in levels"),
        ('levels = { known = ["hispanic..white"] }', 'give others = "LABEL"'),
    ):
        with pytest.raises(ConfigError, match=message):
            load_product(with_recode(wrong))


@given(st.lists(st.text("ab.", min_size=1, max_size=6), min_size=1, unique=True), st.randoms())
def test_runs_name_the_labels_that_they_are_made_from(order: list[str], random: Random) -> None:
    labels = [label for label in order if random.random() < 0.7]
    runs = label_runs(labels, order)
    ambiguous = {f"{a}..{b}" for a in order for b in order} & set(order)
    if not ambiguous and not any(".." in label for label in order):
        assert labels_named(runs, order) == tuple(labels)
    assert labels_named(labels, order) == tuple(labels)
