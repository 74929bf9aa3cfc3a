"""Every target, from its valid example and from malformed ones; and that the oracle would see a defect."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.corpus import corpus
from fuzz.damage import damaged
from fuzz.harness import Harness
from fuzz.oracle import Defect, command
from fuzz.seeds import MARK
from fuzz.targets import TARGETS, Target
from opendas.errors import EnvironmentFailure, FormatError, OpendasError

EXAMPLES = 16
"""Inputs of each target in the tests; campaigns run thousands."""


@pytest.fixture(scope="module", params=list(TARGETS))
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with Harness(TARGETS[request.param]) as made:
        yield made


def test_the_example_is_valid(harness: Harness) -> None:
    outcome = harness.run(b"")
    assert outcome.code == 0, outcome


def test_inputs_that_campaigns_found_worth_keeping(harness: Harness) -> None:
    for data in corpus(harness.target.name):
        harness.run(data)


def test_malformed_inputs(harness: Harness) -> None:
    number = max(3, int(EXAMPLES * harness.target.share))

    @settings(max_examples=number, deadline=None, derandomize=True, database=None)
    @given(st.binary(min_size=2, max_size=40))
    def inner(data: bytes) -> None:
        harness.run(data)

    inner()


def test_damage_is_a_function_of_its_bytes_and_grows_with_them() -> None:
    files = {"a.csv": b"x,y\n1,2\n3,4\n", "b.toml": b"[run]\na = 1\n"}
    assert damaged(files, b"", tuple(files)) == files
    seen = set()
    for number in range(200):
        data = hashlib.sha256(bytes([number])).digest()
        changed = damaged(files, data, tuple(files))
        assert changed == damaged(files, data, tuple(files))
        seen.add((changed["a.csv"], changed["b.toml"]))
    assert len(seen) > 100


def _lookup(folder: Path) -> None:
    {}["missing"]


def _quotes(folder: Path) -> None:
    raise FormatError(f"run.toml: found {MARK}")


def _nameless(folder: Path) -> None:
    raise FormatError("something is wrong somewhere")


def _memory(folder: Path) -> None:
    raise MemoryError


def _environment(folder: Path) -> None:
    raise EnvironmentFailure("run.toml: the disk is full")


def _classless(folder: Path) -> None:
    raise OpendasError("run.toml")


def _slow(folder: Path) -> None:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (_lookup, "KeyError at test_targets.py:_lookup"),
        (_quotes, "confidential"),
        (_nameless, "names no file"),
        (_memory, "too much memory"),
        (_environment, "blamed the environment"),
        (_classless, "without a class"),
        (_slow, "took more than"),
    ],
)
def test_the_oracle_sees(call: Callable[[Path], None], said: str) -> None:
    bad = Target("bad", "mini", ("run.toml",), call, marks=(MARK,))
    with Harness(bad, seconds=0.05) as harness, pytest.raises(Defect, match=said):
        harness.run(b"")


def test_the_oracle_sees_an_internal_error_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opendas.api.status", lambda out: {}["missing"])
    with pytest.raises(Defect, match="exit code 70: KeyError"):
        command(Path(), "status", "anywhere")
