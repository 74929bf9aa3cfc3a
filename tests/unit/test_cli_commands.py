"""Commands: thin, and true to the interface."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from support.each import each

import opendas.api
from opendas.cli.failures import guarded
from opendas.cli.main import COMMANDS, cli
from opendas.cli.start import _next_steps as following

OPTIONS = {
    "plan": ("--json",),
    "run": (
        *(
            "--out",
            "--engine",
            "--master",
            "--workers",
            "--resume",
            "--seed",
            "--measurements",
            "--mdf-format",
        ),
        *("--strict", "--json", "--ledger", "--key-command"),
    ),
    "measure": (
        *("--out", "--engine", "--master", "--workers", "--resume", "--seed", "--json", "--ledger"),
        "--key-command",
    ),
    "estimate": ("--out", "--engine", "--master", "--workers", "--resume", "--json", "--sign"),
    "verify": ("--config", "--allow-seeded", "--rederive", "--signed-by", "--workers", "--json"),
    "tabulate": ("--tables", "--geolevel", "--format", "--intervals", "--to", "--sign"),
    "replicates": ("--runs", "--product", "--seed", "--workers", "--resume", "--json"),
    "margin": ("--query", "--geolevel", "--blocks", "--level", "--json"),
    "interval": ("--query", "--blocks", "--geolevel", "--level", "--skip-unknown", "--totals", "--json"),
    "nmf": ("--state", "--json"),
    "export": ("--format", "--product", "--to"),
    "evaluate": ("--truth", "--entities", "--json"),
    "account": ("--rho", "--delta", "--exact", "--curve", "--target-epsilon", "--html", "--json"),
    "demo": ("--out",),
}


@dataclass
class Check:
    name: str
    ok: bool
    detail: str


class Calls:
    """Stands in for the library and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        self.checks = [Check("digests", True, "12 files")]

    def note(self, name: str, answer: object) -> Any:
        def call(*positional: object, **named: Any) -> object:
            self.asked[name] = {"positional": positional, **named}
            return answer

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    monkeypatch.chdir(tmp_path)
    calls = Calls()
    reader = SimpleNamespace(paths=(), unit_records=(), remote=SimpleNamespace(paths=()))
    run = SimpleNamespace(
        product=SimpleNamespace(name="pl94-persons"),
        companion=None,
        input_files=(),
        resolved=SimpleNamespace(reader=reader),
    )
    release = SimpleNamespace(verify=lambda **_: calls.checks)
    plan = {
        "rho": "1/2",
        "epsilon": {"cks": 4.25, "bun-steinke": 5.5},
        "delta": 1e-10,
        "neighbours": "bounded",
        "contribution": None,
        "warnings": ["something is measured that is published anyway"],
        "usual": [],
        "forecast": {
            "seconds": None,
            "memory_mb": 300,
            "disk_mb": {"outputs": 1},
            "workers": 2,
            "measurements": {"text": "none"},
        },
        "rows": [
            {
                "geolevel": "block",
                "query": "detailed",
                "geounits": 3,
                "rho": "1/4",
                "sigma2": 4.0,
                "variance": 4.0,
                "moe90": 3,
            }
        ],
    }
    answers = {
        "load": run,
        "plan": SimpleNamespace(to_dict=lambda: plan),
        "release": release,
        "measure": release,
        "estimate": release,
        "Release": release,
        "tabulate": (Path("P1_tract.parquet"),),
        "status": [{"product": "pl94-persons", "phase": "finished"}],
        "forget_key": ("pl94-persons",),
        "evaluate": SimpleNamespace(to_dict=lambda: {"confidential": True, "rows": []}),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(opendas.api, name, calls.note(name, answer))
    certificate = {
        "runs": [{"product": "pl94-persons", "records": 7, "rho": "1/2", "families": 3, "fallbacks": 0}]
    }
    (tmp_path / "run" / "release").mkdir(parents=True)
    (tmp_path / "run" / "release" / "certificate.json").write_text(json.dumps(certificate))
    return calls


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, list(arguments), obj={})
    return result.exit_code, result.stdout, result.stderr


@each("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(name: str) -> None:
    code, out, _ = invoke(name, "--help")
    assert code == 0
    if name not in ("init", "fetch"):
        assert "Example: opendas" in out


@each(("name", "options"), sorted(OPTIONS.items()))
def test_every_documented_option_is_there(name: str, options: tuple[str, ...]) -> None:
    _, out, _ = invoke(name, "--help")
    for option in options:
        assert option in out


def test_version_is_fast_enough_to_be_typed() -> None:
    code = "import sys; from opendas.cli.main import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("opendas ")


def test_version_and_help_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom opendas.cli.failures import guarded\nfrom opendas.cli.main import cli\n"
        "guarded(cli, ['--version'])\nguarded(cli, ['--help'])\n"
        "print(sorted({'numpy', 'pyarrow', 'pydantic', 'numba', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("word", "command"), [("verfy", "verify"), ("release", "run"), ("improve", "tune")])
def test_an_unknown_command_names_the_nearest(
    capsys: pytest.CaptureFixture[str], word: str, command: str
) -> None:
    assert guarded(cli, [word]) == 2
    assert f"did you mean {command}?" in capsys.readouterr().err


def test_plan_puts_data_on_stdout_and_warnings_on_stderr(calls: Calls) -> None:
    code, out, err = invoke("plan", "run.toml", "--json")
    assert code == 0
    assert json.loads(out)["rows"][0]["sigma2"] == 4.0
    assert "warning: something" in err
    _, out, _ = invoke("plan", "run.toml")
    assert "epsilon 4.25 (cks), 5.5 (bun-steinke)" in out


def test_run_passes_every_option_on(calls: Calls) -> None:
    code, out, err = invoke(
        *("run", "run.toml", "--workers", "2", "--resume", "--seed", "5", "--measurements", "full"),
        *("--mdf-format", "pipe", "--strict", "--ledger", "l.jsonl", "--key-command", "pass key", "--json"),
    )
    assert code == 0, err
    asked = calls.asked["release"]
    assert asked["expect"] == asked["progress"].announce
    del asked["positional"], asked["progress"], asked["expect"]
    assert asked == {
        "out": Path("run"),
        "workers": 2,
        "keep_key": False,
        "group_writable": False,
        "resume": True,
        "seed": 5,
        "measurements": "full",
        "mdf_format": "pipe",
        "ledger": Path("l.jsonl"),
        "key_command": "pass key",
        "passphrase": None,
        "engine": "local",
        "master": None,
    }
    assert calls.asked["load"]["strict"] is True
    answer = json.loads(out)
    assert answer["records"] == 7
    assert answer["out"] == "run"
    assert {"product", "rho", "seconds", "peak_rss_mb", "families", "fallbacks"} <= set(answer)
    assert "NOT FOR RELEASE" in err


def test_run_defaults_to_a_folder_named_after_the_run_file(calls: Calls) -> None:
    code, out, err = invoke("run", "somewhere/run.toml")
    assert code == 0, err
    assert calls.asked["release"]["out"] == Path("run")
    assert calls.asked["load"]["strict"] is False
    assert "opendas verify run" in out


@pytest.mark.parametrize(
    ("name", "asked"), [("run", "release"), ("measure", "measure"), ("estimate", "estimate")]
)
def test_the_engine_goes_to_the_functions(calls: Calls, name: str, asked: str) -> None:
    assert guarded(cli, [name, "run.toml", "--engine", "spark", "--master", "local[2]"]) == 0
    assert (calls.asked[asked]["engine"], calls.asked[asked]["master"]) == ("spark", "local[2]")
    assert guarded(cli, [name, "run.toml", "--master", "local[2]"]) == 2


def test_measure_and_estimate_go_to_their_functions(calls: Calls) -> None:
    code, out, _ = invoke("measure", "run.toml", "--out", "run", "--seed", "1", "--json")
    assert code == 0
    assert calls.asked["measure"]["seed"] == 1
    assert json.loads(out)["product"] == "pl94-persons"
    code, out, _ = invoke("estimate", "run.toml", "--out", "run", "--json")
    assert code == 0
    assert json.loads(out)["records"] == 7


def test_verify_fails_with_one(calls: Calls) -> None:
    code, out, _ = invoke("verify", "run", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    calls.checks.append(Check("budget", False, "the shares sum to 2"))
    code, out, _ = invoke("verify", "run", "--json")
    assert code == 1
    assert json.loads(out)["checks"][1] == {"name": "budget", "ok": False, "detail": "the shares sum to 2"}
    assert "FAILED  budget" in invoke("verify", "run")[1]


def test_tabulate_splits_its_tables(calls: Calls) -> None:
    code, out, _ = invoke("tabulate", "run", "--tables", "P1, P2", "--geolevel", "tract")
    assert (code, out) == (0, "P1_tract.parquet\n")
    assert calls.asked["tabulate"]["tables"] == ["P1", "P2"]
    invoke("tabulate", "run", "--tables", "P1", "--tables", "P2,P3", "--geolevel", "tract")
    assert calls.asked["tabulate"]["tables"] == ["P1", "P2", "P3"]
    assert invoke("tabulate", "run", "--tables", ",", "--geolevel", "tract")[0] == 2
    assert calls.asked["tabulate"]["intervals"] is None
    assert invoke("tabulate", "run", "--tables", "P1", "--geolevel", "tract", "--intervals", "0.9")[0] == 0
    assert calls.asked["tabulate"]["intervals"] == Fraction(9, 10)


def test_evaluate_says_that_its_answer_is_confidential(calls: Calls) -> None:
    code, out, err = invoke("evaluate", "run", "--truth", "run.toml", "--json")
    assert code == 0
    assert json.loads(out)["confidential"] is True
    assert "confidential" in err
    assert calls.asked["evaluate"]["entities"] is False
    assert invoke("evaluate", "run", "--truth", "run.toml", "--entities")[0] == 0
    assert calls.asked["evaluate"]["entities"] is True


def test_status_and_forget_key(calls: Calls) -> None:
    assert json.loads(invoke("status", "run", "--json")[1])["runs"][0]["phase"] == "finished"
    assert "pl94-persons" in invoke("forget-key", "run")[1]


def test_account_reproduces_the_certificate() -> None:
    code, out, _ = invoke("account", "--rho", "293764/114921", "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["rho"] == "293764/114921"
    assert answer["delta"] == 1e-10
    assert round(answer["epsilon"]["cks"], 2) == 17.14


def test_account_says_of_a_rho_what_an_attacker_can_do() -> None:
    code, out, _ = invoke("account", "--rho", "1/10", "--json")
    assert code == 0
    attacker = json.loads(out)["attacker"]
    for row in attacker["power"]:
        assert row["wrongly"] < row["gaussian"] < row["by_rho"] < 4 * row["wrongly"] + 0.01
    (triple, *_) = attacker["odds"]
    assert triple["chance"] == pytest.approx(math.exp(-((math.log(3) - 0.1) ** 2) / 0.4))
    assert triple["one_percent_becomes"] == pytest.approx(3 / 102)
    out = invoke("account", "--rho", "1/10")[1]
    assert "grow more than 3-fold with probability at most 0.0827\n" in out
    assert "takes a belief of 1 % to 2.9 %\n" in out


def test_list_names_everything_a_run_file_may_name() -> None:
    from opendas.budget.presets import preset_names
    from opendas.geography.recipe import NAMED_SPINES
    from opendas.parts import ESTIMATORS, WORKLOADS, names_of_parts
    from opendas.runs.config.model import InputSection
    from opendas.schema.workloads import OWN_WORKLOADS
    from opendas.topdown.model import OWN_ESTIMATORS

    known = json.loads(invoke("list", "--json")[1])
    assert tuple(known["readers"]) == get_args(InputSection.model_fields["reader"].annotation)
    assert tuple(known["spines"]) == tuple(NAMED_SPINES)
    assert set(known["estimators"]) == {*OWN_ESTIMATORS, *names_of_parts(ESTIMATORS, OWN_ESTIMATORS)}
    assert set(known["workloads"]) == {*OWN_WORKLOADS, *names_of_parts(WORKLOADS, OWN_WORKLOADS)}
    assert tuple(known["presets"]) == preset_names()
    assert set(known["products"]) >= {"pl94-persons", "pl94-units"}
    _, out, _ = invoke("list")
    assert all(len(line) <= 115 for line in out.splitlines())


def test_the_demo_says_how_to_find_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").write_text("")
    (tmp_path / "bin" / "opendas").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "opendas").chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    hint = f"Next, try\n  . {tmp_path}/bin/activate\n  opendas tabulate"
    monkeypatch.setenv("PATH", "")
    assert hint in following(Path("out"), Path("run.toml"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "Next, try\n  opendas tabulate" in following(Path("out"), Path("run.toml"))
