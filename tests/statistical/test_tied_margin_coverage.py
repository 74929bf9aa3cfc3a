"""Pooled margins of a tied release hold the truth as often as they say, in cells finer than the tie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.tied_mini import write_tied

import opendas as od

SEEDS = 7
LEVEL = 0.9


def counts_of(folder: Path, seed: int) -> np.ndarray:
    """Return published counts, their errors and pooled margins of all cells in blocks, (3, blocks, cells)."""
    truth = write_tied(folder, seed)
    run = folder / "tied.toml"
    run.write_text(run.read_text().replace('rho = "2"', 'rho = "1/2"'))
    first, second = (
        od.release(od.load(folder / file), out=folder / out, seed=seed, workers=1)
        for file, out in (("run.toml", "first"), ("tied.toml", "second"))
    )
    od.replicates(first, runs=20, seed=seed, workers=1)
    od.replicates(second, runs=20, seed=seed, workers=1, tied=first)
    table = second.margin("detailed", geolevel="block", level=LEVEL, pooled=True, tied=first).to_pandas()
    count, margin = (table[name].to_numpy().reshape(truth.shape) for name in ("count", "margin"))
    return np.stack([count, np.abs(count - truth), margin])


def test_pooled_tied_margins_hold_the_truth_by_count_and_by_cell(tmp_path: Path) -> None:
    """Counts are whole: margins hold more often than they say, and one smaller, less often."""
    found = np.concatenate([counts_of(tmp_path / str(seed), seed) for seed in range(1, SEEDS + 1)], axis=1)
    found = np.delete(found, (12, 13), axis=2)  # nobody can be a child in prison
    count, error, margin = found
    held, closer = error <= margin, error <= margin - 1
    classes = [count == 0, (count > 0) & (count < 4), count >= 4]
    cells = [np.arange(count.shape[1]) == cell for cell in range(count.shape[1])]
    for inside in (*classes, *(np.broadcast_to(cell, count.shape) for cell in cells)):
        seen = held[inside]
        assert len(seen) > 40
        assert seen.mean() > LEVEL - 3 * np.sqrt(LEVEL * (1 - LEVEL) / len(seen))
    assert closer[count > 0].mean() < LEVEL
    assert (error[count > 0] > 0).mean() > 1 - LEVEL  # margins of 0 would not do
