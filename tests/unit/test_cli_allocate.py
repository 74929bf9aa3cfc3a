"""``opendas allocate`` on counts of levels: the answer that scripts hold on to, and what it refuses."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from opendas.cli.failures import guarded
from opendas.cli.main import cli

TREE = [
    {"name": "state", "values": [900], "mult": [1]},
    {"name": "tract", "values": [400, 300, 200], "mult": [1, 1, 1]},
    {"name": "block", "values": [0, 10, 40], "mult": [30, 10, 20]},
]


def allocate(tmp_path: Path, document: object, *options: str) -> int:
    file = tmp_path / "input.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return guarded(cli, ["allocate", str(file), *options])


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=refuse)
    return found


def test_the_answer_has_the_documented_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert allocate(tmp_path, {"levels": TREE}, "--mechanism", "laplace", "--total", "2", "--json") == 0
    found = answer(capsys)
    assert len(found["allocation"]) == len(found["exact"]) == 3
    assert sum(map(Fraction, found["exact"])) == 2
    assert sum(found["allocation"]) == pytest.approx(2, rel=1e-14)
    assert [row["name"] for row in found["levels"]] == ["state", "tract", "block"]
    for row in found["levels"]:
        assert row["mse"] == pytest.approx(
            row["bias2"] + row["variance"], rel=0.2
        )  # bias2 is a sum of squares
    assert found["objective"] == pytest.approx(sum(row["mse"] for row in found["levels"]))
    assert found["uniform"]["allocation"] == pytest.approx([2 / 3] * 3)
    assert found["uniform"]["objective"] > found["objective"]
    assert found["source"] == "not stated"


def test_counts_of_unknown_origin_are_warned_about_and_a_source_is_carried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--mechanism", "gaussian", "--total", "1", "--json")
    assert allocate(tmp_path, {"levels": TREE}, *options) == 0
    assert "must not be used" in capsys.readouterr().err
    assert allocate(tmp_path, {"levels": TREE, "source": "census of 2010"}, *options) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["source"] == "census of 2010"
    assert allocate(tmp_path, {"levels": TREE}, *options, "--source", "made up") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["source"] == "made up"


def test_numbers_of_nodes_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = [{"name": "a", "nodes": 1}, {"name": "b", "nodes": 27}]
    assert allocate(tmp_path, {"levels": levels}, "--mechanism", "laplace", "--total", "4", "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert found["allocation"] == pytest.approx([1, 3])
    assert found["source"] == "numbers of nodes"
    assert all(row["before_clamping"] for row in found["levels"])


def test_a_target_is_met_by_the_exact_fractions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--mechanism", "discrete-laplace", "--json")
    assert allocate(tmp_path, {"levels": TREE}, *options, "--mse", "1e3/1") == 2  # a fraction of integers
    capsys.readouterr()
    assert allocate(tmp_path, {"levels": TREE}, *options, "--mse", "1e3") == 0
    first = answer(capsys)
    assert first["objective"] == pytest.approx(1000, rel=1e-12)
    exact = list(map(Fraction, first["exact"]))
    assert all(float(e) >= b for e, b in zip(exact, first["allocation"], strict=True))
    assert allocate(tmp_path, {"levels": TREE}, *options, "--total", str(sum(exact))) == 0
    assert answer(capsys)["objective"] <= 1000


def test_a_zero_weight_is_said_to_be_unbounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--mechanism", "discrete-gaussian", "--total", "1/2", "--weights")
    assert allocate(tmp_path, {"levels": TREE}, *options, "1,0,2", "--json") == 0
    found = answer(capsys)
    assert found["exact"][1] == "0"
    assert found["levels"][1]["mse"] is None
    assert found["levels"][1]["unbounded"] is True
    assert allocate(tmp_path, {"levels": TREE}, *options, "tract=0, block=2", "--json") == 0
    assert answer(capsys)["exact"] == found["exact"]
    assert allocate(tmp_path, {"levels": TREE}, *options, "1,0,2") == 0
    assert "tract gets nothing: its error is unbounded." in capsys.readouterr().out


def test_bounded_neighbours_halve_what_a_budget_buys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objectives = []
    for options in (("--total", "1"), ("--total", "2", "--neighbours", "bounded")):
        assert allocate(tmp_path, {"levels": TREE}, "--mechanism", "gaussian", "--json", *options) == 0
        objectives.append(answer(capsys)["objective"])
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--total", "1"), "--mechanism is missing"),
        (("--mechanism", "laplace"), "give --total, or --mse"),
        (("--mechanism", "laplace", "--total", "1", "--mse", "2"), "not both"),
        (("--mechanism", "laplcae", "--total", "1"), "did you mean laplace?"),
        (("--mechanism", "laplace", "--total", "-1"), "not positive"),
        (("--mechanism", "laplace", "--total", "0"), "not positive"),
        (("--mechanism", "laplace", "--total", "one"), "total: 'one' is not a number"),
        (("--mechanism", "laplace", "--total", "nan"), "is not a number"),
        (("--mechanism", "laplace", "--total", "1e1000"), "from 1e-12 to 1e+15"),
        (("--mechanism", "discrete-gaussian", "--total", "1e-1000"), "from 1e-12 to 1e+15"),
        (("--mechanism", "discrete-gaussian", "--mse", "1e-1000"), "too small"),
        (("--mechanism", "gaussian", "--mse", "1e1000"), "too large"),
        (("--mechanism", "laplace", "--mse", "0"), "cannot be met"),
        (("--mechanism", "laplace", "--mse", "1e-99"), "too small"),
        (("--mechanism", "laplace", "--mse", "1e99"), "too large"),
        (("--mechanism", "laplace", "--total", "1", "--weights", "1,2"), "2 were given for 3"),
        (("--mechanism", "laplace", "--total", "1", "--weights", "0,0,0"), "every level has weight 0"),
        (("--mechanism", "laplace", "--total", "1", "--weights", "1,-2,1"), "number 2 is -2"),
        (("--mechanism", "laplace", "--total", "1", "--weights", "1,x,1"), "--weights: 'x' is not a number"),
        (("--mechanism", "laplace", "--total", "1", "--weights", "country=2"), "no level 'country'"),
        (("--mechanism", "laplace", "--total", "1", "--weights", "block=2,block=3"), "appears twice"),
        (("--mechanism", "laplace", "--total", "1", "--weights", "block=2,3"), "NAME=NUMBER"),
        (("--mechanism", "laplace", "--total", "1", "--neighbours", "both"), "neighbours"),
        (("--mechanism", "laplace", "--total", "1", "--prior", "x.json"), "--prior does not go with"),
        (("--mechanism", "laplace", "--total", "1", "--to", "x.toml"), "--to does not go with"),
    ],
)
def test_wrong_usage_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert allocate(tmp_path, {"levels": TREE}, *options) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def level(**fields: object) -> dict[str, object]:
    return {"levels": [TREE[0], {"name": "b", **fields}]}


@pytest.mark.parametrize(
    ("document", "field", "rule"),
    [
        (level(values=[1, -4], mult=[1, 1]), "levels[1].values[1]", "whole number from 0"),
        (level(values=[1, 2.5], mult=[1, 1]), "levels[1].values[1]", "whole number from 0"),
        (level(values=[1, "7"], mult=[1, 1]), "levels[1].values[1]", "whole number from 0"),
        (level(values=[True, 2], mult=[1, 1]), "levels[1].values[0]", "whole number from 0"),
        (level(values=[None], mult=[1]), "levels[1].values[0]", "whole number from 0"),
        (level(values=[[1]], mult=[1]), "levels[1].values[0]", "whole number from 0"),
        (level(values=[10**30], mult=[1]), "levels[1].values[0]", "whole number from 0"),
        (level(values=[1], mult=[-1]), "levels[1].mult[0]", "whole number from 0"),
        (level(values=[1], mult=[1, 2]), "levels[1].mult", "one number for each value"),
        (level(values=3, mult=[1]), "levels[1].values", "a list of numbers"),
        (level(values=[], mult=[]), "levels[1].values", "the level is empty"),
        (level(values=[4], mult=[0]), "levels[1].values", "the level is empty"),
        (level(), "levels[1].values", "values, or nodes"),
        (level(nodes=3, values=[1]), "levels[1].values", "values, or nodes"),
        (level(nodes=3, mult=[1]), "levels[1].mult", "goes with values"),
        (level(nodes=0), "levels[1].nodes", "from 1"),
        (level(nodes=2.5), "levels[1].nodes", "from 1"),
        (level(value=[1]), "levels[1].value", "did you mean values?"),
        (level(values=[1], fixed="yes"), "levels[1].fixed", "true or false"),
        ({"levels": [TREE[0], TREE[0]]}, "levels[1].name", "'state' appears twice"),
        ({"levels": [{"values": [1]}]}, "levels[0].name", "expected text"),
        ({"levels": [7]}, "levels[0]", "expected an object"),
        ({"levels": []}, "levels", "at least one level"),
        ({"levels": "x"}, "levels", "at least one level"),
        ({"levels": TREE, "sources": "x"}, "sources", "did you mean source?"),
        ({"levels": TREE, "source": 4}, "source", "expected text"),
        ({"levels": TREE, "source": "\udfff"}, "source", "expected text"),
        ({"levels": [{"name": "\ud800", "nodes": 3}]}, "levels[0].name", "expected text"),
        ({"levels": [{"name": "a\x1b[31m", "nodes": 3}]}, "levels[0].name", "expected text"),
        ({"levels": TREE, "\ud800": 1}, "\\ud800", "is not known"),
        (level(values=list(range(2048)), mult=[2**53] * 2048), "levels[1].values", "at most 2**53 nodes"),
        ('{"levels": [{"name": "a", "nodes": 1, "nodes": 3}]}', "nodes", "appears twice"),
    ],
)
def test_wrong_counts_exit_3_and_name_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: object, field: str, rule: str
) -> None:
    assert allocate(tmp_path, document, "--mechanism", "laplace", "--total", "1") == 3
    said = capsys.readouterr().err
    assert f"input.json, field {field}:" in said.replace(":", ":", 1) or f"input.json: {field}" in said, said
    assert rule in said


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"levels": [{"name": "a", "values": [NaN]}]}', "[" * 10**5]
)
def test_what_is_no_json_object_exits_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert allocate(tmp_path, text, "--mechanism", "laplace", "--total", "1") == 3
    assert "input.json" in capsys.readouterr().err


def test_several_wrong_fields_come_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"levels": [{"name": "a", "values": [-1]}, {"name": "b", "values": [0.5]}]}
    assert allocate(tmp_path, document, "--mechanism", "laplace", "--total", "1") == 3
    said = capsys.readouterr().err
    assert "levels[0].values[0]" in said
    assert "levels[1].values[0]" in said
    assert "-1" not in said
    assert "0.5" not in said


@pytest.mark.parametrize("path", ["input.json/part", "x" * 300 + ".json", "circle.json"])
def test_a_path_that_leads_nowhere_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    (tmp_path / "input.json").write_text("{}", encoding="utf-8")
    (tmp_path / "circle.json").symlink_to("circle.json")
    assert guarded(cli, ["allocate", str(tmp_path / path), "--mechanism", "laplace", "--total", "1"]) == 2
    assert "Check the path" in capsys.readouterr().err


def test_a_missing_file_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        guarded(cli, ["allocate", str(tmp_path / "no.json"), "--mechanism", "laplace", "--total", "1"]) == 2
    )
    assert "no such file" in capsys.readouterr().err
    assert guarded(cli, ["allocate", str(tmp_path), "--mechanism", "laplace", "--total", "1"]) == 2
