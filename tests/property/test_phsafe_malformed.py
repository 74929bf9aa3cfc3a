"""Damaged files: each mode ends well or refuses, quotes nothing, and leaves nothing half-written."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.households import configuration, random_world, write_world

from opendas.errors import ConfigError, DataError, OpendasError
from opendas.phsafe.run import HouseholdOptions, run_exact, run_private, validate_input

CASES = 60
JUNK = [b",", b"\n", b'"', b"\x00", b"\xff", b"-", b"9" * 25, b" ", b"x", b"\r", b"", b"0", b"\xef\xbb\xbf"]
CANARY = "7654321"


def damage(content: bytes, source: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(source.choice([1, 1, 2, 5, 30])):
        at = source.randrange(len(data) + 1)
        length = 0 if source.random() < 0.5 else source.choice([1, 3, 20, 200])
        data[at : at + length] = source.choice(JUNK)
    return bytes(data)


def refusal(run: Callable[[], object]) -> OpendasError | None:
    try:
        run()
    except (ConfigError, DataError) as error:
        return error
    return None


@pytest.mark.parametrize("mode", ["private", "non-private", "validate"])
def test_damaged_files_are_counted_or_refused(mode: str, tmp_path: Path) -> None:
    source = random.Random(20)
    ends: Counter[str] = Counter()
    for number in range(CASES):
        folder = tmp_path / str(number)
        world = random_world(number, 12)
        for rows in world:  # every key starts alike, so that a message that quotes one shows
            for row in rows:
                row["MAFID"] = f"{CANARY}{int(row['MAFID']) % 100:02d}"
        data, config, out = write_world(folder / "data", world), folder / "config.json", folder / "out"
        config.write_text(json.dumps(configuration(tau=3)))
        damaged = source.choice([config, *(data / f"{name}.csv" for name in ("persons", "units", "geo"))])
        damaged.write_bytes(damage(damaged.read_bytes(), source))
        options = HouseholdOptions(seed=1)
        runs: dict[str, Callable[[], object]] = {
            "private": lambda: run_private(config, data, out, options),  # noqa: B023
            "non-private": lambda: run_exact(config, data, out, options),  # noqa: B023
            "validate": lambda: validate_input(config, data, options),  # noqa: B023
        }
        error = refusal(runs[mode])
        ends["refused" if error else "counted"] += 1
        if error is not None:
            assert CANARY not in str(error)
            assert not out.exists()
    assert min(ends["refused"], ends["counted"]) >= 3
