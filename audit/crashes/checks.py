"""What must hold of an output folder: after every death, and when the run is finished."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

from opendas.custody.ledger_entries import LedgerEntry
from opendas.custody.ledger_lines import Finished, LedgerAct, LedgerLine, read_lines
from opendas.errors import OpendasError
from opendas.report.certificate import ISSUED_FILES

__all__ = ["after_death", "at_the_end", "beside", "ledger_lines", "stage", "tree"]

_PUBLIC = ("spine.parquet", "constraints.parquet")


def tree(folder: Path) -> dict[str, str]:
    """Return the digest of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def ledger_lines(path: Path) -> tuple[LedgerLine, ...]:
    """Read a ledger, its chain checked; a torn last line is passed over."""
    return read_lines(path.read_bytes(), path.name)[0] if path.exists() else ()


def _whole(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.rglob(pattern) if path.is_file() and not path.name.startswith(".")]


def drawn(out: Path) -> list[Path]:
    """Return what is there only because noise was drawn."""
    measured = [p for p in _whole(out / "release" / "measurements", "*.parquet") if p.name not in _PUBLIC]
    return [*measured, *_whole(out / "release" / "mdf", "*"), *_whole(out / "state", "*.part")]


def stage(out: Path, ledger: Path) -> str:
    """Return how far a run was, from its folder."""
    try:
        lines = ledger_lines(ledger)
    except OpendasError:
        lines = ()
    open_acts = {line.run_id for line in lines if line.entry is not None}
    open_acts -= {line.run_id for line in lines if isinstance(line.said, Finished)}
    states = [json.loads(path.read_text() or "{}") for path in (out / "state").glob("*/run.json")]
    if not out.exists():
        return "before the folder"
    if lines and not open_acts and len(states) == len({line.run_id for line in lines}):
        return "closing" if _whole(out / "state", "*.part") else "after the end"
    if not open_acts:
        return "before the ledger"
    now: dict[str, object] = next((state for state in states if state.get("run_id") in open_acts), {})
    name = str(now.get("product", ""))
    if now.get("phase") == "finished" or now.get("ending") is not None:
        return "closing"
    done = {path.name.split("-")[0] for path in (out / "state" / name).glob("*.part")}
    if _mdf(out, name):
        return "microdata and certificate"
    if now.get("phase") == "measured" and not done:
        return "between the phases"
    if _whole(out / "release" / "measurements" / name, "*") and now.get("phase") != "measured":
        return "measurement files"
    down = sorted(part for part in done if part.startswith("stage"))
    if down:
        return f"tasks, {down[-1]} begun"
    return "tasks, upward" if done else "after the intent"


def _mdf(out: Path, product: str) -> list[Path]:
    folder = out / "release" / "mdf"
    return [p for p in _whole(folder, "*") if p.parent.name == product.removeprefix("pl94-")]


def beside(out: Path) -> set[str]:
    """Return the files that stand beside the release; not the keys, which a key command keeps elsewhere."""
    return {name for name in tree(out) if not name.startswith(("release/", "confidential/keys/"))}


def after_death(out: Path, ledger: Path) -> tuple[list[str], dict[str, str]]:
    """Check what a death left.

    Returns
    -------
    problems : list of str
    seen : dict
        Digests of the finished files of the release that are there: each must be one of those of an
        undisturbed run.
    """
    problems = []
    try:
        acts = [line for line in ledger_lines(ledger) if line.entry is not None]
    except OpendasError as error:
        return [f"after a death: {error}"], {}
    products = {line.entry.product for line in acts if line.entry is not None}
    for path in drawn(out):
        inside = path.relative_to(out).parts
        product = next((part for part in inside if part in products), None)
        microdata = inside[:2] == ("release", "mdf") and any(p.endswith(inside[2]) for p in products)
        if product is None and not microdata:
            problems.append(f"after a death: {'/'.join(inside)} was drawn before the ledger held the act")
    release = out / "release"
    seen = {name: digest for name, digest in tree(release).items() if "/." not in f"/{name}"}
    return problems, seen


def at_the_end(
    out: Path, ledger: Path, wanted: dict[str, str], names: set[str], acts: int, *, destroyed: bool
) -> list[str]:
    """Check a finished run.

    Parameters
    ----------
    wanted : dict
        Release of an undisturbed run; of what is issued, the files that it names are compared.
    names : set of str
        Files beside the release that an undisturbed run leaves.
    acts : int
        Privacy acts.
    destroyed : bool
        Whether each of them ends with its key destroyed.
    """
    problems = []
    found = tree(out / "release")
    found = {name: digest for name, digest in found.items() if name in wanted or name not in ISSUED_FILES}
    for name in sorted(found.keys() | wanted.keys()):
        if name not in wanted:
            problems.append(f"release/{name} should not be there")
        elif name not in found:
            problems.append(f"release/{name} is missing")
        elif found[name] != wanted[name]:
            problems.append(f"release/{name} differs from an undisturbed run's")
    here = beside(out)
    problems += [f"left over: {name}" for name in sorted(here - names)]
    problems += [f"missing: {name}" for name in sorted(names - here)]
    try:
        lines = ledger_lines(ledger)
    except OpendasError as error:
        return [*problems, str(error)]
    kinds = Counter((line.run_id, type(line.said)) for line in lines)
    wanted_lines = {LedgerEntry: acts, Finished: acts, LedgerAct: acts if destroyed else 0}
    for kind, count in wanted_lines.items():
        there = [times for (_, one), times in kinds.items() if one is kind]
        if there != [1] * count:
            problems.append(f"the ledger holds {sum(there)} lines of {kind.__name__}, expected {count}")
    return problems
