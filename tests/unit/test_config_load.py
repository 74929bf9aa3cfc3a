"""Run files: defaults, refusals, and all errors together."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from pydantic import ValidationError

from opendas.errors import ConfigError
from opendas.runs.config.load import load_run_file
from opendas.runs.config.model import RunFile

MINIMAL = """
[run]
product = "pl94-persons"
[input]
reader = "pl94-2010"
path = "ri.zip"
"""

EVERYTHING = """
[run]
product = "pl94-persons"
mechanism = "discrete-laplace"
neighbours = "bounded"
estimator = "informed"
drop_invariants = ["total"]
failsafe = true
[input]
reader = "histogram"
path = ["a.csv", "parts/*.parquet"]
geocode = "GEOID"
count = "n"
columns = { votingage = "AGE2" }
constants = { hhgq = "household" }
other = { cenrace = "white" }
bins = { votingage = [18] }
units = { path = "units.csv", geocode = "GEOID", columns = { housing = "HU", gq1 = "G1" } }
unit_id = "patient"
unit = "patient"
at_most = 3
distinct = "leaf"
[geography]
spine = [
  { step = "aian", areas = "aianhh", codes = ["0001-4799"] },
  { step = "block_groups", fanout_cutoff = 12, off_by_one = false },
  { step = "tract_groups" },
  { step = "bypass" },
]
root = "us"
entities = ["place", "cousub"]
levels = [{ name = "region", prefix = 2 }, { name = "ward", column = "W" }]
frame = "blocks.csv"
other = "other"
provenance = { levels = "public", frame = "private" }
discovery = { act = "00112233445566778899aabbccddeeff", rho = "1/20", delta = "1e-11" }
block_assignment = "baf.zip"
[budget]
preset = "us2020-persons"
rho = "293764/114921"
epsilon = "1"
geolevels = { region = "1/2", ward = "1/2" }
normalise = true
source = "counts of 2010, published"
delta = "1e-10"
[budget.queries]
"*" = { total = "1/4", detailed = "3/4" }
[passes]
least_squares = { "*" = [["total"], ["rest"]] }
rounder = { "*" = [["total"], ["detailed"]] }
slack = "0.01"
milp = true
[[passes.earlier]]
least_squares = { "*" = [["rest"]] }
rounder = { "*" = [["total"]] }
[tie]
release = "first"
[prior]
path = "earlier.csv"
name = "counts of 2010"
query = "detailed"
geocode = "GEOID10"
count = "n"
"""

WRONG = """[run]
product = "pl94-persons"
mechansim = "discrete-gaussian"
estimator = "topdwn"
failsafe = "yes"
[input]
path = "ri.zip"
[budget]
rho = 0.1
geolevels = { state = "1/2", county = 0.5 }
[budgte]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_interface(tmp_path: Path) -> None:
    run_file = load_run_file(write(tmp_path, MINIMAL))
    assert run_file.run.mechanism == "discrete-gaussian"
    assert run_file.run.neighbours == "bounded"
    assert run_file.run.estimator == "topdown"
    assert run_file.run.failsafe is False
    assert not run_file.geography.spine.recipe_steps
    assert run_file.geography.root == "state"
    assert run_file.passes.slack == 0
    assert run_file.passes.milp is False
    assert run_file.geolevels == ("state", "county", "tract", "block_group", "block")


def test_every_documented_key_is_understood(tmp_path: Path) -> None:
    run_file = load_run_file(write(tmp_path, EVERYTHING))
    assert run_file.budget.rho == Fraction(293764, 114921)
    assert run_file.budget.delta == Fraction(1, 10**10)
    assert run_file.budget.queries == {"*": {"total": Fraction(1, 4), "detailed": Fraction(3, 4)}}
    assert run_file.passes.slack == Fraction(1, 100)
    assert [step.step for step in run_file.geography.spine.steps] == [
        "aian",
        "block_groups",
        "tract_groups",
        "bypass",
    ]
    assert run_file.geolevels == ("region", "ward")


def test_every_key_of_the_models_is_covered_above(tmp_path: Path) -> None:
    run_file = load_run_file(write(tmp_path, EVERYTHING))
    for name in RunFile.model_fields:
        section = getattr(run_file, name)
        assert section.model_fields_set == set(type(section).model_fields), name


def test_paths_start_from_the_run_file(tmp_path: Path) -> None:
    run_file = load_run_file(write(tmp_path, EVERYTHING))
    assert run_file.input.path == (tmp_path / "a.csv", tmp_path / "parts/*.parquet")
    assert run_file.geography.frame == str(tmp_path / "blocks.csv")
    assert run_file.input.units is not None
    assert run_file.input.units.path == (tmp_path / "units.csv",)
    assert run_file.geography.block_assignment == (tmp_path / "baf.zip",)
    assert run_file.prior is not None
    assert run_file.prior.path == tmp_path / "earlier.csv"


def test_a_frame_from_records_is_no_path(tmp_path: Path) -> None:
    text = EVERYTHING.replace('frame = "blocks.csv"', 'frame = "from-records"')
    assert load_run_file(write(tmp_path, text)).geography.frame == "from-records"


def test_a_product_file_is_found_beside_the_run_file(tmp_path: Path) -> None:
    text = MINIMAL.replace("pl94-persons", "sub/mine.toml")
    assert load_run_file(write(tmp_path, text)).run.product == str(tmp_path / "sub/mine.toml")


def test_all_errors_come_together_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_file(write(tmp_path, WRONG))
    message = str(caught.value)
    for expected in (
        "run.toml: 7 problems",
        "run.toml, line 3, field run.mechansim: unknown key; did you mean mechanism?",
        "run.toml, line 4, field run.estimator: expected one of topdown, block-by-block, informed, "
        "posterior; found 'topdwn'; did you mean topdown?",
        "run.toml, line 5, field run.failsafe: expected true or false, found text",
        "run.toml, line 6, field input.reader: required key is missing; it has no default",
        "run.toml, line 9, field budget.rho: 0.1 is a binary floating-point number",
        'in quotes, as a decimal or a fraction: "0.5"',
        "run.toml, line 11, field budgte: unknown key; did you mean budget?",
    ):
        assert expected in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('path = "ri.zip"', "path = []", "input.path"),
        ('path = "ri.zip"', 'path = "ri.zip"\nunits = { pth = "x" }', "did you mean path?"),
        (
            "[input]",
            "drop_invariants = [1]\n[input]",
            "run.drop_invariants.0: expected text in quotes, found an integer",
        ),
        (
            "[input]",
            '[passes]\nslack = "-1"\n[input]',
            "passes.slack: input should be greater than or equal to 0",
        ),
        ("[input]", "[budget]\nrho = true\n[input]", "found bool"),
        ("[input]", '[budget]\nrho = "1/0"\n[input]', "denominator zero"),
        (
            "[input]",
            '[geography]\nspine = [{ step = "bypass", codes = ["1"] }]\n[input]',
            "step bypass has no key codes",
        ),
        ("[input]", "[geography]\nspine = 3\n[input]", "expected the name of a spine or a list of steps"),
        (
            "[input]",
            '[geography]\nlevels = [{ name = "a" }, { name = "b" }]\n[input]',
            "a needs a prefix or a column",
        ),
        (
            "[input]",
            '[geography]\nlevels = [{ name = "a", prefix = 5 }, { name = "b", prefix = 2 }]\n[input]',
            "from the top down",
        ),
        ("[run]", "[run]\n[run]", "not valid TOML"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_file(write(tmp_path, MINIMAL.replace(old, new, 1)))
    assert expected in str(caught.value)


def test_a_missing_run_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such run file"):
        load_run_file(tmp_path / "absent.toml")


def test_a_run_file_cannot_be_changed(tmp_path: Path) -> None:
    run_file = load_run_file(write(tmp_path, MINIMAL))
    with pytest.raises(ValidationError):
        run_file.run.failsafe = True  # type: ignore[misc]
