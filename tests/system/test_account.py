"""``opendas account`` and ``od.account``: from a rho, and from the plan of a run."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.mini import write_mini

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import ConfigError
from opendas.privacy.zcdp import epsilon_cks

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The miniature census: three geolevels, totals of regions invariant."""
    return write_mini(tmp_path_factory.mktemp("account"))


@pytest.fixture(scope="module")
def laplace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mini(
        tmp_path_factory.mktemp("laplace"), run='mechanism = "discrete-laplace"', loss='epsilon = "3/2"'
    )


def answer(capsys: Capture, *arguments: str) -> Any:
    capsys.readouterr()
    assert guarded(cli, ["account", "--json", *arguments]) == 0

    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=fail)


def said(capsys: Capture, *arguments: str) -> str:
    capsys.readouterr()
    assert guarded(cli, ["account", *arguments]) == 0
    return capsys.readouterr().out


def refusal(capsys: Capture, *arguments: str) -> str:
    capsys.readouterr()
    assert guarded(cli, ["account", *arguments]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    return found.err


def test_a_plan_by_its_rho_alone(run_file: Path, capsys: Capture) -> None:
    found = answer(capsys, str(run_file))
    assert (found["product"], found["rho"], found["delta"]) == ("mini", "2", 1e-10)
    assert set(found["epsilon"]) == {"cks", "bun-steinke"}
    assert found["epsilon"]["cks"] == epsilon_cks(2, "1e-10")
    assert set(found["attributes"]) == {"kind", "age"}
    assert list(found["within"])[-1] == "block"
    assert found["within"]["block"]["rho"] == "0"
    region = found["within_official"]["region"]
    assert region["largest"] == {name: found["within"]["region"][name] for name in ("rho", "epsilon")}
    assert region["above_spine"] == 0
    assert [row["wrongly"] for row in found["attacker"]["power"]] == [0.001, 0.01, 0.05]
    assert "exact" not in found


def test_a_plan_by_its_noise(run_file: Path, capsys: Capture) -> None:
    found = answer(capsys, str(run_file), "--exact", "--delta", "1e-6", "--curve", "1e-3,1e-9")
    exact = found["exact"]
    assert exact["lower"] <= exact["upper"] < found["epsilon"]["cks"]
    assert exact["upper"] - exact["lower"] < 1e-3 * exact["upper"]
    assert exact["proof"] == "docs/proofs/exact-accounting.md"
    # Totals of regions are invariant and measured, so that agreeing on them leaves less to tell apart.
    assert found["epsilon"]["exact-invariants"] < found["epsilon"]["exact"]
    assert [row["delta"] for row in found["curve"]] == [1e-3, 1e-9]
    assert all(row["exact_at_least"] <= row["exact"] < row["cks"] for row in found["curve"])
    for part in (*found["attributes"].values(), *found["within"].values()):
        assert part["epsilon"]["exact"] <= part["epsilon"]["cks"] + 1e-9
    for row in found["attacker"]["power"]:
        assert row["wrongly"] < row["exact"] < row["by_rho"]
    assert 0.5 < found["attacker"]["guess"] < 1


def test_without_the_extra_only_the_exact_account_ends(
    run_file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    assert "exact" not in answer(capsys, str(run_file))
    assert guarded(cli, ["account", str(run_file), "--exact"]) == 6
    assert "pip install 'opendas[account]'" in capsys.readouterr().err


def test_spare_noise_for_a_target(run_file: Path, capsys: Capture) -> None:
    cks = answer(capsys, str(run_file))["epsilon"]["cks"]
    more = answer(capsys, str(run_file), "--target-epsilon", f"{cks:.6f}")["target"]
    assert Fraction(more["budget_factor"]) > 1
    assert 0 < more["variance_saved"] < 0.5
    assert more["reached"]["upper"] <= float(f"{cks:.6f}")
    less = answer(capsys, str(run_file), "--target-epsilon", "3")["target"]
    assert Fraction(less["budget_factor"]) < 1
    text = said(capsys, str(run_file), "--target-epsilon", "3")
    assert "not met" in text
    assert "less" in said(capsys, str(run_file), "--target-epsilon", "40")


def test_the_text_is_for_people(run_file: Path, capsys: Capture) -> None:
    text = said(capsys, str(run_file), "--exact", "--curve", "1e-5")
    for words in (
        "mini: rho 2, bounded neighbours",
        "exact, from the noise of the plan",
        "false-positive rate of 1 in 20 has power at most",
        "a guess between two records is right at most",
        "when one record moves within one geounit of the spine",
        "when one record moves within one official area",
    ):
        assert words in text
    assert all(len(line) <= 110 for line in text.splitlines())
    assert "false-positive rate of 1 in 20 has" in said(capsys, str(run_file))


def test_a_page_with_pictures(run_file: Path, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "account.html"
    said(capsys, str(run_file), "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == text.count("</svg>") == 1
    assert text.count("<polyline") == 2
    assert "http" not in text.replace("http-equiv", "")
    said(capsys, str(run_file), "--html", str(tmp_path / "again.html"))
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_pure_plans(laplace_file: Path, capsys: Capture, tmp_path: Path) -> None:
    found = answer(
        capsys, str(laplace_file), "--exact", "--delta", "1e-3", "--html", str(tmp_path / "a.html")
    )
    assert found["rho"] is None
    assert (found["pure_epsilon"], found["implied_rho"]) == ("3/2", "9/8")
    assert found["exact"]["upper"] < 1.5 == found["epsilon"]["pure"]
    for row in found["attacker"]["power"]:
        assert row["exact"] <= row["by_epsilon"] + 1e-9
    target = answer(capsys, str(laplace_file), "--delta", "1e-3", "--target-epsilon", "1")["target"]
    assert target["scale_saved"] == pytest.approx(1 - 1 / float(Fraction(target["budget_factor"])))
    assert "every scale would be" in said(capsys, str(laplace_file), "--target-epsilon", "1")


def test_from_python(run_file: Path) -> None:
    account = od.account(od.load(run_file), "1e-8")
    assert account.rho == 2
    assert account.epsilon() == account.epsilon("cks") == od.account(rho="2", delta="1e-8").epsilon("cks")
    assert account.epsilon("exact") == account.exact().upper
    assert account.epsilon("exact-invariants") < account.epsilon("exact")
    assert account.attacker().power(0.05) < 1
    assert od.account("1/3").epsilon("bun-steinke") == od.account(rho="1/3").epsilon("bun-steinke")
    with pytest.raises(ConfigError, match="no conversion formula"):
        account.epsilon("exakt")
    for arguments in ((), (od.load(run_file), "0")):
        with pytest.raises(ConfigError):
            od.account(*arguments)
    with pytest.raises(ConfigError, match="not both"):
        od.account("1", rho="1")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((), "either RUN.toml or --rho"),
        (("RUN", "--rho", "1"), "either RUN.toml or --rho"),
        (("--rho", "1", "--exact"), "--exact needs RUN.toml"),
        (("--rho", "1", "--target-epsilon", "3"), "--target-epsilon needs RUN.toml"),
        (("--rho", "1", "--html", "x.html"), "--html needs RUN.toml"),
        (("--rho", "1", "--curve", ","), "names no delta"),
        (("--rho", "1", "--curve", "1e-5,2"), "delta"),
        (("--rho", "1e1000"), "rho is above 1e+15"),
        (("--rho", "-1"), "negative"),
        (("--rho", "inf"), "not a number"),
        (("RUN", "--delta", "0"), "delta"),
        (("RUN", "--delta", "1"), "delta"),
        (("RUN", "--delta", "x"), "delta"),
        (("RUN", "--exact", "--delta", "1e-60"), "1e-45"),
        (("RUN", "--target-epsilon", "0"), "positive"),
        (("RUN", "--target-epsilon", "x"), "not a number"),
        (("nothing.toml",), "nothing.toml"),
    ],
)
def test_what_cannot_be_accounted_for(
    run_file: Path, capsys: Capture, arguments: tuple[str, ...], rule: str
) -> None:
    given = [str(run_file) if argument == "RUN" else argument for argument in arguments]
    assert rule in refusal(capsys, *given)


def test_the_curve_of_a_rho(capsys: Capture) -> None:
    found = answer(capsys, "--rho", "1", "--curve", "1e-5, 1e-10")
    assert [row["delta"] for row in found["curve"]] == [1e-5, 1e-10]
    assert found["curve"][1]["cks"] == found["epsilon"]["cks"]
    assert "1e-05" in said(capsys, "--rho", "1", "--curve", "1e-5")
