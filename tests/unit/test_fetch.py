"""Fetching official files: from a made site, from no site, from a site that sends something else."""

from __future__ import annotations

import io
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from support.pl94_zip import some_blocks, write_zip

from opendas.errors import ConfigError, EnvironmentFailure, FormatError
from opendas.geography.states import STATES, find_state
from opendas.readers.pl94 import fetch
from opendas.readers.pl94.fetch import fetch_pl94, pl94_url


class Answer(io.BytesIO):
    """What a site sends."""

    def __init__(self, body: bytes, length: int | None = None) -> None:
        super().__init__(body)
        self.headers = Message()
        if length is not None:
            self.headers["Content-Length"] = str(length)


def serve(monkeypatch: pytest.MonkeyPatch, body: bytes | Exception, length: int | None = None) -> list[str]:
    asked: list[str] = []

    def answer(request: Any, timeout: float) -> Answer:
        asked.append(request.full_url)
        if isinstance(body, Exception):
            raise body
        return Answer(body, length)

    monkeypatch.setattr(fetch, "urlopen", answer)
    return asked


@pytest.mark.parametrize("year", [2010, 2020])
def test_a_file_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, year: int) -> None:
    body = write_zip(tmp_path / "made.zip", some_blocks("44"), year).read_bytes()
    asked = serve(monkeypatch, body, len(body))
    for _ in range(2):
        path = fetch_pl94("Rhode Island", year, tmp_path / "new")
        assert path == tmp_path / "new" / f"ri{year}.pl.zip"
        assert path.read_bytes() == body
    assert asked == [pl94_url(find_state("RI"), year)]
    assert asked[0].endswith(f"/Rhode_Island/ri{year}.pl.zip")
    assert [p.name for p in (tmp_path / "new").iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            URLError(OSError(-3, "Temporary failure in name resolution")),
            "could not be reached, or the connection broke off",
        ),
        (ConnectionResetError(), "could not be reached, or the connection broke off"),
        (TimeoutError(), "could not be reached, or the connection broke off"),
        (HTTPError("https://example.org", 404, "Not Found", Message(), io.BytesIO()), "answered 404"),
    ],
)
def test_no_internet_is_said_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    serve(monkeypatch, error)
    with pytest.raises(EnvironmentFailure, match=words) as caught:
        fetch_pl94("ri", 2020, tmp_path)
    assert "https://www2.census.gov" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("body", [b"", b"<html>sorry</html>", b"PK\x03\x04 cut"])
def test_what_is_not_the_official_file_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    serve(monkeypatch, body, len(body))
    with pytest.raises(FormatError, match="not the official file"):
        fetch_pl94("ri", 2010, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_wrong_year_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = write_zip(tmp_path / "made.zip", some_blocks("44"), 2010).read_bytes()
    serve(monkeypatch, body)
    with pytest.raises(FormatError):
        fetch_pl94("ri", 2020, tmp_path / "new")


def test_a_broken_connection_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"half", 1000)
    with pytest.raises(EnvironmentFailure):
        fetch_pl94("ri", 2010, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_states_and_years_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Rhode Island"):
        fetch_pl94("Rode Island", 2010, tmp_path)
    with pytest.raises(ConfigError, match="2010 and 2020"):
        fetch_pl94("ri", 2000, tmp_path)


def test_states_are_found_by_any_name() -> None:
    assert len(STATES) == 52
    assert (
        len({s.fips for s in STATES})
        == len({s.postal for s in STATES})
        == len({s.name for s in STATES})
        == 52
    )
    for state in STATES:
        names = (
            state.fips,
            state.postal,
            state.postal.lower(),
            state.name.upper(),
            state.name.replace(" ", "_"),
        )
        assert {find_state(name) for name in names} == {state}
    assert [s.fips for s in STATES] == sorted(s.fips for s in STATES)
