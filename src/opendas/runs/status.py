"""How far the runs in an output folder are: read from outside, without its lock, and without writing.

The log says what the process at work told last, ``run.json`` how far it got, the ledger what is spent. None
of them needs to be there: a folder of an earlier version has no log, a run that is still reading its input
has no state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from opendas.custody.ledger import Ledger
from opendas.errors import ConfigError, EnvironmentFailure, PrivacyError
from opendas.runs.context.workspace import RunState, book_in, read_state
from opendas.runs.progress.clock import StageSpeed
from opendas.runs.progress.log import LogFile, read_log
from opendas.runs.progress.processes import is_alive, memory_mb

_PARTS = "*.part"
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How far a run is."""

    product: str
    # ``preparing`` (no charge is known), ``started`` (budget spent), ``ending`` (all is there but the
    # certificate), ``measured``, ``finished`` or ``damaged``.
    phase: str
    # ``running``, ``stopped`` (interrupted, or no process is at it any more), ``failed`` (it ended with an
    # error), ``finished``, or ``unknown`` (it runs or ran on another machine, or has no log).
    state: str
    rho: str | None = None  # loss by the ledger of the folder, its own or a book: this or `epsilon`
    epsilon: str | None = None
    seeded: bool = False  # whether noise comes from a seed
    key: bool = False  # whether the run key is there
    tasks_finished: int = 0  # result files of tasks
    version: str | None = None
    # What is, or was last, being done: `done` of `total` parts of it, `rate` a second, for another
    # `stage_left` seconds.
    stage: str | None = None
    done: int | None = None
    total: int | None = None
    rate: float | None = None
    stage_left: float | None = None
    # Of the whole estimate, once its last stage is under way; writing comes on top.
    seconds_left: float | None = None
    workers: int | None = None
    engine: str | None = None
    memory_mb: float | None = None  # memory of all processes now
    peak_rss_mb: float | None = None  # largest resident set of one process as last logged
    started: str | None = None  # when the last attempt began, UTC
    updated: str | None = None  # when it last logged something, UTC
    elapsed: float | None = None  # seconds since the last attempt began, or that it took
    attempts: int = 0
    last_event: str | None = None
    error: str | None = None  # class and message of the error it ended with
    advice: str = ""  # what to do next; empty where nothing is to be done
    problem: str | None = None  # what could not be read

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, in order."""
        return {name: getattr(self, name) for name in self.__slots__}


def folder_status(out: Path, now: Callable[[], float] = time.time) -> tuple[RunStatus, ...]:
    """Return how far each run in an output folder is.

    `now`: seconds since 1970.

    Raises `ConfigError` if there is no such folder, or it is no output folder of a run; `EnvironmentFailure`
    if it may not be read.
    """
    try:
        places = _find_files(out)
        account = _account(out)
        return tuple(_status(out, name, state, log, account, now) for name, (state, log) in places.items())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        closed = (
            " Use the account of the user who started the run." if isinstance(error, PermissionError) else ""
        )
        raise EnvironmentFailure(f"{out} cannot be read: {reason}.{closed}") from error


def _find_files(out: Path) -> dict[str, tuple[Path | None, Path | None]]:
    """Return where state and log of each product are."""
    if not out.exists():
        raise ConfigError(f"{out}: there is no such folder.")
    if not out.is_dir():
        raise ConfigError(f"{out} is not a folder; give the output folder of a run.")
    # A folder that is closed to us would look empty to a pattern.
    names = {path.name for path in out.iterdir()}
    for inner in ("state", "confidential"):
        if inner in names and (out / inner).is_dir():
            next((out / inner).iterdir(), None)
    # A folder of household tables has the published layout, and its state under confidential/.
    states = {
        path.parent.name: path
        for path in sorted([*out.glob("state/*/run.json"), *out.glob("confidential/state/*/run.json")])
    }
    logs = {path.stem: path for path in sorted(out.glob("confidential/logs/*.jsonl"))}
    if not states and not logs:
        raise ConfigError(f"{out} is not an output folder of a run.")
    return {name: (states.get(name), logs.get(name)) for name in sorted({*states, *logs})}


@dataclass(frozen=True, slots=True)
class _Account:
    """The ledger of a folder, as far as it can be read."""

    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by run
    is_own: bool = False  # of this folder alone: what it lacks was not charged
    problem: str | None = None

    def entry(self, product: str, state: RunState | None, log: LogFile) -> Mapping[str, Any]:
        """Return the entry of a run; without its state, of one that its log or its product names."""
        if state is not None:
            return self.entries.get(state.run_id, {})
        started = _started(log)
        entries = self.entries.items()
        return next(
            (e for run, e in entries if run in started or (self.is_own and e["product"] == product)), {}
        )


def _started(log: LogFile) -> set[Any]:
    """Return the runs that went on to measure or estimate, by their log."""
    return {line.get("run_id") for line in log.lines if line["event"] == "phase"}


def _account(out: Path) -> _Account:
    try:
        book = book_in(out / "state") or book_in(out / "confidential" / "state")
        path = out / "ledger.jsonl" if book is None else book.path
        if not path.is_file():
            return _Account()
        return _Account({entry.run_id: entry.as_json() for entry in Ledger.read(path)}, book is None)
    except (ConfigError, PrivacyError, EnvironmentFailure) as error:
        return _Account(problem=str(error))


def _status(
    out: Path,
    product: str,
    state_path: Path | None,
    log_path: Path | None,
    account: _Account,
    now: Callable[[], float],
) -> RunStatus:
    log = LogFile() if log_path is None else read_log(log_path)
    state, problem = _read(state_path)
    entry = account.entry(product, state, log)
    phase = _phase(state, problem)
    life = _process_state(log, phase)
    if phase == "preparing" and life != "running" and (entry or _started(log)):
        phase = "damaged"
        problem = (
            f"run.json of {product} is gone, although its run had started: the run cannot be resumed. A new "
            "run in a new folder is charged in full."
        )
    start = log.attempt[0] if log.attempt else {}
    at = now() if life == "running" else None
    told = log.last("progress", "stage") or {}
    measured = log.last("progress", "stage", "step", "end", "error") or {}
    last = log.last()
    version = (start.get("versions") or {}).get("opendas")
    return RunStatus(
        product=product if state is None else state.product,
        phase=phase,
        state=life,
        rho=entry.get("rho"),
        epsilon=entry.get("epsilon"),
        seeded=bool(start.get("seeded")) if state is None else state.seed is not None,
        key=(out / "confidential" / "keys" / f"{product}.key").exists(),
        tasks_finished=0 if state_path is None else len(list(state_path.parent.glob(_PARTS))),
        version=state.version if state is not None else version if isinstance(version, str) else None,
        stage=told.get("stage"),
        done=told.get("done"),
        total=told.get("total"),
        **_time_left(log, at),
        workers=_newest(log, "workers"),
        engine=start.get("engine"),
        memory_mb=None if at is None or log.process is None else _rounded(memory_mb(log.process.pid)),
        peak_rss_mb=measured.get("peak_rss_mb"),
        started=start.get("ts"),
        updated=None if last is None else last["ts"],
        elapsed=_elapsed(log, at),
        attempts=sum(line["event"] == "start" for line in log.lines),
        last_event=None if last is None else last["event"],
        error=_error(log),
        advice=_advice(life, phase, log, state, account),
        problem=problem or account.problem,
    )


def _read(path: Path | None) -> tuple[RunState | None, str | None]:
    if path is None or not path.is_file():
        return None, None
    try:
        return read_state(path), None
    except PrivacyError as error:
        return None, str(error)


def _phase(state: RunState | None, problem: str | None) -> str:
    if state is None:
        return "preparing" if problem is None else "damaged"
    return state.phase if state.ending is None else "ending"


def _process_state(log: LogFile, phase: str) -> str:
    """Whether a process is at work on a run, or the run has what its last command was to give it."""
    settled = phase == "finished" or (phase == "measured" and _command(log) != "estimate")
    ended = log.last("end", "error")
    if ended is None:
        alive = None if log.process is None else is_alive(log.process)
        if alive:
            return "running"
        otherwise = "unknown" if alive is None else "stopped"
    else:
        failed = ended["event"] == "error" and ended.get("exit_code") != _INTERRUPTED
        otherwise = "failed" if failed else "stopped"
    return "finished" if settled else otherwise


def _command(log: LogFile) -> str | None:
    return log.attempt[0].get("command") if log.attempt else None


def _newest(log: LogFile, name: str) -> Any:
    """Return the newest value of a field of the attempt."""
    return next((line[name] for line in reversed(log.attempt) if line.get(name) is not None), None)


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _seconds(timestamp: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _elapsed(log: LogFile, now: float | None) -> float | None:
    """Return how long the attempt has been going on, or how long it was seen at work."""
    if not log.attempt:
        return None
    first, last = log.attempt[0], log.attempt[-1]
    began = _seconds(first["ts"])
    if now is not None and began is not None:
        return round(max(0.0, now - began), 1)
    return round(max(0.0, float(last["mono"]) - float(first["mono"])), 1)


def _time_left(log: LogFile, now: float | None) -> dict[str, float | None]:
    """Return the rate of the stage under way, and what is left of it and of the estimate."""
    speed, last = StageSpeed(), None
    for line in log.attempt:
        told: list[Any] = [line.get(name) for name in ("stage", "done", "total")]
        if line["event"] in ("stage", "progress") and None not in told:
            speed.see(float(line["mono"]), *told)
            last = line
    if last is None or now is None:
        return {"rate": None, "stage_left": None, "seconds_left": None}
    waited = max(0.0, now - (_seconds(last["ts"]) or now))
    left = speed.left(float(last["mono"]) + waited)
    stage_left = None if left is None else round(left, 1)
    leaves = next(reversed(_newest(log, "geounits") or {"": 0}))
    return {
        "rate": _rounded(speed.rate(), 3),
        "stage_left": stage_left,
        "seconds_left": stage_left if last["stage"] == f"estimating {leaves}" else None,
    }


def _error(log: LogFile) -> str | None:
    line = log.last("error")
    if line is None:
        return None
    message = line.get("message") or (f"at {line['place']}" if line.get("place") else "")
    return f"{line.get('error')}: {message}" if message else str(line.get("error"))


def _advice(life: str, phase: str, log: LogFile, state: RunState | None, account: _Account) -> str:
    if life == "unknown" and phase != "damaged":
        host = log.attempt[0].get("host") if log.attempt else None
        if host is not None:
            return f"it was started on the machine {host}: look there whether it is still running"
        return "" if phase in ("finished", "measured") else "no log says whether it is still running"
    if life not in ("stopped", "failed"):
        return ""
    first = "correct what the error says; then " if life == "failed" else ""
    if phase == "preparing":
        known = "" if account.is_own else " as far as this folder shows"
        return f"nothing was spent{known}: {first}start it again"
    if phase == "damaged":
        return "the run cannot be resumed; a new run in a new folder is charged in full"
    command = _command(log) or "run"
    files = "CONFIG.json DATA OUT" if command == "phsafe" else "RUN.toml --out OUT"
    if state is not None and state.is_borrowed:
        files = "--from-nmf FOLDER --to OUT"
    return f"{first}the same command with --resume finishes it: opendas {command} {files} --resume"
