"""What the machine offers for runs: requirements, and what to do where one is missing."""

from __future__ import annotations

import math
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from opendas.custody.folders import writable
from opendas.engines.spark.session import java_program
from opendas.errors import EnvironmentFailure
from opendas.runs.progress.clock import size_text
from opendas.runs.progress.processes import available_memory_mb
from opendas.schema.attributes import Attribute
from opendas.schema.product import Product

CELL_MB = 500 / (1 << 20)
"""MB that a cell takes of a run with few query groups: masks, row numbers, and an estimate of the topmost
geounit, as counted in a run of a table with 1.6 million cells."""

TIMED_CELLS = 1 << 21
"""A small run of more possible cells would itself take minutes: its root is a family with all of them. So no
more are proposed: nothing would predict the time of a run."""

_LEAST_GIB = 2
"""Of memory, and of disk."""

_PACKAGE = Path(__file__).parents[2]

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)\s*(?:>=\s*(?P<least>[0-9.]+))?")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    name: str
    level: str  # ``ok``, ``note`` (something is missing that a usual run does not need) or ``problem``
    detail: str  # what was found
    advice: str = ""  # what to do; empty where all is well


def examine(folder: Path | None = None) -> list[Finding]:
    """Return what was found on this machine.

    `folder`: where output would be written; the current folder by default.
    """
    where = Path() if folder is None else folder
    return [
        _python(),
        _cores(),
        _memory(),
        _disk(where),
        _permissions(where),
        *_packages(),
        _extra("matplotlib", "plots", "pictures in reports are left out"),
        _extra("starlette", "explore", "no opendas explore"),
        _extra("dp-accounting", "account", "no opendas account --exact"),
        _compiler_cache(),
        _aes(),
        *_spark(),
        _documentation(),
    ]


def check_cells(product: Product) -> None:
    """Refuse a product with more cells than this machine can hold arrays of."""
    cells, room = product.schema.size, available_memory_mb()
    if cells * CELL_MB / 2 <= room:
        return
    kept = sorted(product.schema.attributes, key=len)
    while len(kept) > 1 and (_cells(kept) * CELL_MB > room or _cells(kept) > TIMED_CELLS):
        kept.pop()
    names = [each.name for each in product.schema.attributes if each in kept]
    fits = (
        f"There is room for a product of the attributes {', '.join(names)}: {_cells(kept):,} cells, about "
        f"{size_text(_cells(kept) * CELL_MB)}; opendas plan predicts its time. Or join levels"
    )
    nearest = fits if _cells(kept) * CELL_MB <= room and _cells(kept) <= TIMED_CELLS else "Join levels"
    raise EnvironmentFailure(
        f"product {product.name!r} has {cells:,} cells, and a run holds arrays as long as all of them: about "
        f"{size_text(cells * CELL_MB)}, where {size_text(room)} of memory is available. Nothing was drawn. "
        f"{nearest}, or make two releases of fewer attributes each."
    )


def _cells(attributes: list[Attribute]) -> int:
    return math.prod(len(attribute) for attribute in attributes)


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if (3, 11) <= sys.version_info[:2] <= (3, 14):
        return Finding("python", "ok", version)
    return Finding("python", "problem", version, "use Python 3.11 to 3.14")


def _cores() -> Finding:
    from opendas.engines.local import cores  # loads what runs processes, which other commands do without

    usable = cores()
    if usable >= 2:
        return Finding(
            "cores", "ok", f"{usable} usable; a run uses at most two unless --workers says otherwise"
        )
    return Finding("cores", "note", "1 usable", "a run works, on one core; expect twice the time")


def _memory() -> Finding:
    free = available_memory_mb() / 1024
    detail = f"{free:.1f} GiB available"
    if free >= _LEAST_GIB:
        return Finding("memory", "ok", detail)
    return Finding(
        "memory", "problem", detail, "a state needs about 2 GiB: close programs, or use --workers 1"
    )


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / (1 << 30)
    detail = f"{free:.1f} GiB free in {folder}"
    if free >= _LEAST_GIB:
        return Finding("disk", "ok", detail)
    return Finding("disk", "problem", detail, "free 2 GiB, or give --out on a larger disk")


def _permissions(folder: Path) -> Finding:
    """Whether a folder can be made that others cannot read."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".opendas-doctor-") as made:
            private = Path(made) / "confidential"
            private.mkdir()
            private.chmod(0o700)
            mode = stat.S_IMODE(private.stat().st_mode)
    except OSError:
        advice = "work in a folder of your own, or give --out elsewhere"
        return Finding("permissions", "problem", f"cannot make a private folder in {folder}", advice)
    if mode != 0o700:
        advice = "this file system keeps no permissions; put OUT on one that does"
        return Finding("permissions", "problem", "confidential folders stay readable for others here", advice)
    return Finding("permissions", "ok", "folders can be closed to others")


def version_at_least(version: str, least: str) -> bool:
    """Compare release numbers part by part.

    Examples
    --------
    >>> version_at_least("2.10.1", "2.9"), version_at_least("1.9", "1.14")
    (True, False)
    """

    def parts(text: str) -> list[int]:
        numbers = [int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3]]
        return numbers + [0] * (3 - len(numbers))

    return parts(version) >= parts(least)


def _documentation() -> Finding:
    """Say where the pages are that messages name as docs/...; the wheel holds them."""
    found = [folder for folder in (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs") if folder.is_dir()]
    detail = f"pages named docs/... are in {found[0]}" if found else "no pages are installed"
    return Finding("documentation", "ok" if found else "note", detail)


def _packages() -> Iterator[Finding]:
    """Yield one finding for all required packages, and one for each that is missing or too old."""
    good = []
    for requirement in metadata.requires("opendas") or []:
        match = _REQUIREMENT.match(requirement)
        if match is None or "extra ==" in requirement:
            continue
        name, least = match["name"], match["least"]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "problem", "not installed", "install opendas again in a fresh environment")
            continue
        if least and not version_at_least(version, least):
            advice = f"needs {least} or later: install opendas again in a fresh environment"
            yield Finding(name, "problem", version, advice)
        else:
            good.append(f"{name} {version}")
    yield Finding("packages", "ok", ", ".join(good))


def _extra(module: str, extra: str, without: str) -> Finding:
    try:
        return Finding(module, "ok", metadata.version(module))
    except metadata.PackageNotFoundError:
        return Finding(module, "note", f"not installed: {without}", f"install opendas[{extra}] to have it")


def _compiler_cache() -> Finding:
    """Whether compiled kernels can be kept; without, every start compiles for about a minute."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    own = (_PACKAGE, Path(os.path.expanduser("~/.cache")))
    for place in [Path(chosen)] if chosen else own:
        if writable(place):
            return Finding("compiler cache", "ok", f"kept under {place}")
    advice = "set NUMBA_CACHE_DIR to a folder of your own, or every start compiles for about a minute"
    return Finding("compiler cache", "problem", "no folder can be written", advice)


def _aes() -> Finding:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Finding("AES instructions", "note", "unknown on this system")
    if re.search(r"^(flags|Features)\s*:.*\baes\b", flags, re.MULTILINE):
        return Finding("AES instructions", "ok", "noise is drawn at memory speed")
    return Finding("AES instructions", "note", "none: drawing noise is slower, and otherwise the same")


def _spark() -> Iterator[Finding]:
    """What ``--engine spark`` needs: a package and Java."""
    yield _extra("pyspark", "spark", "no --engine spark")
    found = java_program()
    if found is None:
        advice = "install Java 17 or later, or set JAVA_HOME, to use --engine spark"
        yield Finding("java", "note", "not found; only --engine spark needs it", advice)
    else:
        yield Finding("java", "ok", f"found at {found}; only --engine spark needs it")
