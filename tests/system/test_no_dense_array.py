"""A run of many cells and leaves holds no array as long as cells times leaves."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from opendas.cli.main import main

LEAVES, SIZES = 1000, {"a": 100, "b": 300}
RUN = """
[run]
product = "wide.toml"
[input]
reader = "records"
path = "people.csv"
geocode = "geocode"
[geography]
levels = [{ name = "all", prefix = 0 }, { name = "ward", prefix = 2 }, { name = "block", prefix = 4 }]
frame = "frame.csv"
provenance = "public"
[budget]
rho = "40"
geolevels = { all = "1/3", ward = "1/3", block = "1/3" }
queries = { "*" = { a = "1/2", detailed = "1/2" } }
"""


@pytest.mark.parametrize(("measurements", "width"), [("used", 1), ("full", 8)])
def test_memory_does_not_grow_with_cells_times_leaves(tmp_path: Path, measurements: str, width: int) -> None:
    """Reading, measuring, fitting, rounding, checkpoints and files, in one process.

    Not even one byte for each; all 30 million answers, where they are written, are never there at once.
    """
    levels = "\n".join(f"{name} = {[f'{name}{i}' for i in range(size)]}" for name, size in SIZES.items())
    (tmp_path / "wide.toml").write_text(
        f'[product]\nname = "wide"\nprovenance = "code-book"\n[attributes]\n{levels}\n'
        '[queries]\ngroups = ["a"]\n'
    )
    codes = [f"{leaf // 50:02d}{leaf % 50:02d}" for leaf in range(LEAVES)]
    (tmp_path / "frame.csv").write_text("\n".join(["geocode", *codes]) + "\n")
    skewed = np.random.default_rng(0).random((LEAVES, 4, 2)) ** 3
    people = [
        f"{code},a{int(100 * a)},b{int(300 * b)}"
        for code, few in zip(codes, skewed, strict=True)
        for a, b in few
    ]
    (tmp_path / "people.csv").write_text("\n".join(["geocode,a,b", *people]) + "\n")
    (tmp_path / "run.toml").write_text(RUN)
    for name in ("compiled", "traced"):
        if name == "traced":
            tracemalloc.start()
        words = ["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / name), "--workers", "1"]
        with pytest.raises(SystemExit) as ended:
            main([*words, "--seed", "1", "--measurements", measurements])
        assert not ended.value.code
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < width * LEAVES * np.prod(list(SIZES.values()))
