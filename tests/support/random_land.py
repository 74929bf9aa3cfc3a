"""Random census frames for tests of spines: several states, odd tracts, areas that cut across everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opendas.geography.frame import Frame, official_codes
from opendas.schema.pl94 import HHGQ_LEVELS

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


RUN_TOML = """\
[run]
product = "pl94-{kind}"
{run}
[input]
reader = "histogram"
path = "counts.csv"
[geography]
levels = [{levels}]
frame = "frame.csv"
{geography}
{more}
"""


def write_land(
    folder: Path,
    frame: Frame,
    *,
    kind: str = "persons",
    run: str = "",
    geography: str = "",
    more: str = "",
    seed: int = 0,
) -> Path:
    """Write a frame, counts that obey its bounds, and a run file of a census product; return the run file."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    units, areas = list(frame.units), list(frame.entities)
    lines = [",".join(["geocode", *units, *areas])]
    for i, code in enumerate(frame.geocodes):
        row = [code.decode(), *(str(int(frame.units[name][i])) for name in units)]
        lines.append(",".join([*row, *(frame.entities[name][i].decode() for name in areas)]))
    (folder / "frame.csv").write_text("\n".join(lines) + "\n")
    (folder / "counts.csv").write_text("\n".join(_counts(frame, kind, rng)) + "\n")
    prefixes = {"us": 0, "state": 2, "county": 5, "tract": 11, "block_group": 12, "block": 15}
    levels = ", ".join(f'{{ name = "{name}", prefix = {prefixes[name]} }}' for name in frame.geolevels)
    path = folder / "run.toml"
    path.write_text(RUN_TOML.format(kind=kind, run=run, levels=levels, geography=geography, more=more))
    return path


def _counts(frame: Frame, kind: str, rng: np.random.Generator) -> list[str]:
    if kind == "units":
        lines = ["geocode,occupancy,count"]
        for i, code in enumerate(frame.geocodes):
            occupied = int(rng.integers(0, int(frame.units["hu"][i]) + 1))
            lines.append(f"{code.decode()},occupied,{occupied}")
            lines.append(f"{code.decode()},vacant,{int(frame.units['hu'][i]) - occupied}")
        return lines
    lines = ["geocode,hhgq,votingage,hispanic,cenrace,count"]
    for i, code in enumerate(frame.geocodes):
        for number, column in enumerate(("hu", *(f"gq{k}" for k in range(1, 8)))):
            if frame.units[column][i]:
                for race in ("white", "black+asian"):
                    count = int(frame.units[column][i]) + int(rng.integers(0, 3))
                    lines.append(f"{code.decode()},{HHGQ_LEVELS[number]},18plus,hispanic,{race},{count}")
    return lines
