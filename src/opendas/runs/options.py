"""How to run: one declaration of options for commands, Python and household tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opendas.custody.passphrase import Passphrase
from opendas.errors import ConfigError
from opendas.runs.context.workspace import check_custody
from opendas.topdown.model import WHOLE_TREE

if TYPE_CHECKING:
    from opendas.measurement.plan import MeasurementPlan
    from opendas.runs.simulated.forecast import Forecast

FULL_UP_TO = 10_000_000
"""Noisy answers that a run writes in full unless it is told otherwise: about a second, and 10 MB.

Intervals and other estimates need all of them, and a finished run has no key left to draw them with."""

FULL_UP_TO_INFORMED = 1_000_000_000
"""The same for the informed estimator, whose releases nobody could derive again from less: about 1 GB."""

Progress = Callable[[str, int, int], None]
Expect = Callable[["Forecast", tuple[str, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOptions:
    """Options of every privacy act.

    Parameters
    ----------
    engine : str
        ``local`` or ``spark``: where it runs. The result is the same.
    master : str or None
        URL of a Spark master; by default the Spark session of this process, else a local one.
    resume : bool
        Finish an interrupted run with the same noise, or return a finished one.
    seed : int or None
        For tests and research: everything is stamped NOT FOR RELEASE.
    ledger : path or None
        A ledger shared by several output folders.
    key_command : str or None
        External command that prints the run key as 64 hexadecimal digits.
    passphrase : Passphrase, str or None
        Encrypts the key file of a new run, and opens that of a resumed one.
    keep_key : bool
        Keep the stored key when the release is complete, to draw more of the same measurement later. By
        default it is destroyed.
    group_writable : bool
        Open the output folder and its release to the group of the folder. By default nobody else can write
        there, whatever the umask.
    progress : callable(stage, done, total) or None
    """

    engine: str = "local"
    master: str | None = None
    resume: bool = False
    seed: int | None = None
    ledger: Path | None = None
    key_command: str | None = None
    passphrase: Passphrase | None = None
    keep_key: bool = False
    group_writable: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if isinstance(self.ledger, str):
            object.__setattr__(self, "ledger", Path(self.ledger))
        if isinstance(self.passphrase, str):
            object.__setattr__(self, "passphrase", Passphrase(self.passphrase))
        if self.engine not in ("local", "spark"):
            raise ConfigError(f"engine is 'local' or 'spark', not {self.engine!r}.")
        if self.master is not None and self.engine != "spark":
            raise ConfigError("a master goes with the engine spark.")
        check_custody(self.seed, self.key_command, self.passphrase)

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(stage, done, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(ActOptions):
    """Options of a run; of them, only `seed`, `measurements` and `mdf_format` change what is released.

    Parameters
    ----------
    workers : int or None
        Processes; None means the machine's cores, at most two, and one for small spines.
    measurements : str
        ``full``, ``used`` or ``auto``: write all noisy answers, those that estimation read, or all where
        they are at most :data:`FULL_UP_TO`.
    mdf_format : str
        ``parquet`` or ``pipe``: layout of the microdata.
    expect : callable(forecast, warnings) or None
        Told what the run is expected to need, when the input is read and nothing is drawn yet.
    """

    workers: int | None = None
    measurements: str = "auto"
    mdf_format: str = "parquet"
    expect: Expect | None = None

    def __post_init__(self) -> None:
        ActOptions.__post_init__(self)
        if self.measurements not in ("auto", "used", "full"):
            raise ConfigError(f"measurements is 'auto', 'used' or 'full', not {self.measurements!r}.")
        if self.mdf_format not in ("parquet", "pipe"):
            raise ConfigError(f"mdf_format is 'parquet' or 'pipe', not {self.mdf_format!r}.")
        if self.workers is not None and self.workers < 1:
            raise ConfigError("workers is at least 1.")

    def stored(self, plan: MeasurementPlan, estimator: str) -> str:
        """Return how much of a plan's noisy answers is written: ``full`` or ``used``."""
        if self.measurements != "auto":
            return self.measurements
        most = FULL_UP_TO_INFORMED if estimator in WHOLE_TREE else FULL_UP_TO
        return "full" if plan.draws <= most else "used"

    @classmethod
    def of(cls, command: str, given: Mapping[str, Any]) -> RunOptions:
        """Return the options of ``release``, ``measure`` or ``estimate``.

        Raises
        ------
        TypeError
            If one is none of that command's.
        """
        taken = {field.name for field in fields(cls)} - _NOT_TAKEN[command]
        for name in given:
            if name not in taken:
                raise TypeError(f"{command}() got an unexpected keyword argument {name!r}")
        return cls(**given)


_NOT_TAKEN: Mapping[str, set[str]] = {
    "release": set(),
    "measure": {"measurements", "mdf_format"},
    "estimate": {"measurements", "seed", "key_command", "passphrase", "keep_key", "expect"},
}
