"""The command: what it begins with, and what it says when it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.mini import write_mini

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import ConfigError, EnvironmentFailure
from opendas.explore.app import ADDRESS, hosts_of, loopback_socket
from opendas.explore.budget_page import budget_state
from opendas.explore.fields import Problems
from opendas.explore.households import config_json, production, read_households
from opendas.explore.session import make_session
from opendas.explore.subjects import stand_in

Capture = pytest.CaptureFixture[str]


def test_without_a_file_published_numbers_stand_in() -> None:
    session = make_session()
    assert session.run is None
    assert session.budgets.first.title == "United States 2020, persons"


def test_a_run_file_comes_first_and_its_counts_are_not_read(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    (tmp_path / "counts.csv").write_text("geocode,kind,age,count\nthis is no count\n")
    session = make_session(path)
    assert session.budgets.keys[0] == "run"
    assert session.budgets.first.geounits == {"region": 2, "town": 6, "block": 24}
    assert session.budgets.starts[0] == ("run:", "run.toml, as it is")


def test_a_kept_state_and_a_configuration_are_told_apart(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept_state = budget_state(stand_in("state-units"))
    kept.write_text(json.dumps(kept_state.to_document()))
    assert make_session(kept).state == kept_state
    planned = read_households(production(), "a", Problems())
    assert planned is not None
    config = tmp_path / "config.json"
    config.write_text("\ufeff" + config_json(planned.config))
    state = make_session(config).state
    assert state is not None
    assert state.page == "phsafe"


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"privacy_budget": 3}', '{"opendas-explore": 1, "page": "budget"}', "[run]\n"]
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError):
        make_session(path)


def test_only_this_machine_is_listened_to() -> None:
    listener = loopback_socket()
    with listener:
        name, port = listener.getsockname()
        assert name == ADDRESS == "127.0.0.1"
        assert hosts_of(port) == {f"127.0.0.1:{port}", f"localhost:{port}"}
        listener.listen()
        with pytest.raises(EnvironmentFailure, match="cannot be used"):
            loopback_socket(port)


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("opendas.explore")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert guarded(cli, ["explore", "--no-browser"]) == 6
    assert "pip install 'opendas[explore]'" in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    assert guarded(cli, ["explore", "--no-browser", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
