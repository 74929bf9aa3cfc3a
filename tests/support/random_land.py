"""Random census frames for tests of spines: several states, odd tracts, areas that cut across everything."""

from __future__ import annotations

import numpy as np

from opendas.geography.frame import Frame, official_codes

STATES = ("01", "04", "27", "44")
"""Two states without and two with strong minor civil divisions."""


def random_frame(seed: int, *, root: str = "state", most_blocks: int = 9) -> Frame:
    """Draw a frame of one to three states with places, subdivisions, AIAN areas, districts and facilities.

    Areas are runs of blocks and single blocks, so that they cross tracts and counties; some categories may be
    empty everywhere, and codes of different categories may be equal.
    """
    rng = np.random.default_rng(seed)
    codes = [
        f"{state}{2 * county + 1:03d}{tract + 1:06d}{group}{block:03d}"
        for state in sorted(rng.choice(STATES, size=int(rng.integers(1, 4)), replace=False))
        for county in range(int(rng.integers(1, 4)))
        for tract in range(int(rng.integers(1, 4)))
        for group in range(1, int(rng.integers(2, 4)))
        for block in range(int(rng.integers(1, most_blocks + 1)))
    ]
    geocodes = np.array(codes, dtype="S15")
    n = len(geocodes)
    units = {"hu": rng.integers(0, 30, n)}
    units |= {f"gq{k}": (rng.random(n) < 0.08).astype(np.int64) for k in range(1, 8)}
    entities = {
        "place": _areas(rng, n, ("00100", "00200", "10000"), 0.3),
        "cousub": _areas(rng, n, ("00100", "10000", "20000"), 0.0),
        "aianhh": _areas(rng, n, ("0010", "2415", "8000", "9500"), 0.6),
        "sduni": _areas(rng, n, ("00030", "00060"), 0.1),
    }
    if seed % 5 == 0:
        entities["aianhh"][:] = b""
    return Frame(geocodes, official_codes(geocodes, root), "block", units, entities)


def _areas(rng: np.random.Generator, n: int, codes: tuple[str, ...], none: float) -> np.ndarray:
    """Cut the blocks into runs, give each run a code or none, and let single blocks differ."""
    runs = np.cumsum(rng.random(n) < 0.15)
    column = np.array(codes, dtype="S5")[rng.integers(0, len(codes), runs[-1] + 1)[runs]]
    column[(rng.random(runs[-1] + 1) < none)[runs]] = b""
    column[rng.random(n) < 0.05] = codes[0].encode()
    return column
