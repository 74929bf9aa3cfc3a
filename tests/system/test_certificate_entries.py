"""Every entry of a certificate, one by one: `verify` finds another value there, or lists it as declared.

The attacker writes the certificate again, with its digest on the pages. Pages are not looked at here: they
are made of the certificate, by whoever has the package.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz.hostile import other_value
from support.attacker import certificate_of
from support.mini import write_mini

import opendas
from opendas.api import create_ledger
from opendas.report.certificate import certificate_bytes
from opendas.runs.context.run import load
from opendas.runs.finished_release import Release
from opendas.runs.options import RunOptions
from opendas.runs.release import release
from opendas.runs.verification import checks
from opendas.runs.verification.certificate import DECLARED

COUNTED = {"families", "fallbacks"}
"""What is counted when a run is estimated again; `test_rederivation.py` has both."""

NAMED = {"version", "commit", "issued", "account"}
"""Entries that `verify` lists as declared, where another value is one that a certificate may have."""


@pytest.fixture(autouse=True)
def _office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "office"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr(checks, "check_pages", lambda *_: "not looked at")


def with_a_table(folder: Path) -> Path:
    found = opendas.release(load(write_mini(folder)), folder / "out", seed=3)
    opendas.tabulate(found, tables=["age"], geolevel="town")
    return folder / "out" / "release"


def second_of_a_book(folder: Path) -> Path:
    path = write_mini(folder)
    product = folder / "product.toml"
    text = product.read_text().replace('name = "mini"', 'name = "mini"\nprotected_unit = "person"')
    product.write_text(text)
    create_ledger(folder / "persons.book", "person", rho="5")
    for out in ("first", "second"):
        release(load(path), folder / out, RunOptions(ledger=folder / "persons.book"))
    return folder / "second" / "release"


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every value that holds no other, and the keys that lead there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = list(items)
    if not inner:
        yield at, value
    for key, one in inner:
        yield from leaves(one, (*at, key))


def other(place: tuple[Any, ...], old: Any) -> Any:
    """Return another value: of the same type, or something where there is nothing."""
    if isinstance(old, dict | list):
        return {"x": "x"} if isinstance(old, dict) else ["x"]
    draw, new = random.Random(str(place)), old
    while new == old:
        new = "x" if old is None else other_value(old, draw) if old or isinstance(old, str | bool) else 1
    return new


@pytest.mark.parametrize("made", [with_a_table, second_of_a_book])
def test_another_value_is_found_or_listed_as_declared(tmp_path: Path, made: Any) -> None:
    folder = made(tmp_path)
    certificate = certificate_of(folder)
    places = list(leaves(certificate))
    assert len(places) > 350
    passing = set()
    for place, old in places:
        changed = copy.deepcopy(certificate)
        inner: Any = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = other(place, old)
        (folder / "certificate.json").write_bytes(certificate_bytes(changed))
        found = Release(folder).verify(allow_seeded=True)
        # The report quotes the digest of the certificate, and would be written again, too.
        if not any(not check.ok and check.name != "documents" for check in found):
            passing.add(place)
    assert passing, "nobody can know which version wrote a release, for instance"
    words = ", ".join(DECLARED)
    for place in passing:
        declared = place[0] in NAMED and place[0] in words
        assert declared or (place[0] == "runs" and place[-1] in COUNTED), place
