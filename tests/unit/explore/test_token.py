"""The token that lets a page write is on no command line."""

from __future__ import annotations

import re
import stat
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from opendas.explore.app import _open


def test_the_browser_is_started_with_a_page_that_leads_to_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    address = "http://127.0.0.1:4321/?token=very-secret"
    _open(address, tmp_path)
    (given,) = opened
    assert "very-secret" not in given
    page = Path(unquote(urlsplit(given).path))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    found = re.search(r"url=([^\"]+)", page.read_text())
    assert found is not None
    assert found[1] == address


def test_an_address_without_a_token_is_given_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    _open("http://127.0.0.1:4321/", tmp_path)
    assert opened == ["http://127.0.0.1:4321/"]
    assert not list(tmp_path.iterdir())
