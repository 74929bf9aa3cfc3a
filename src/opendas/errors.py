"""The errors of OpenDAS.

::

    OpendasError                    exit code
    |-- ConfigError                 2   run file, product file, budget sum, wrong output folder
    |   `-- BudgetError             2   shares that do not sum to one, preset that does not fit
    |-- DataError                   3   input data
    |   |-- FormatError             3   a row, a field, a zip member
    |   |-- SchemaError             3   a code outside its list
    |   `-- GeographyError          3   a geocode that is no child of its parent
    |-- PrivacyError                4   reused key, other input, vacuous relation
    |-- EstimationError             5
    |   |-- InfeasibleFamily        5   constraints in conflict
    |   `-- SolverFailure           5   no certified solution
    |-- EnvironmentFailure          6   disk, permission, missing extra
    `-- CheckFailed                 1   verification found a difference

Messages and fields hold names, places and rules; they never hold a confidential count or record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "BudgetError",
    "CheckFailed",
    "ConfigError",
    "DataError",
    "EnvironmentFailure",
    "EstimationError",
    "Finding",
    "FormatError",
    "GeographyError",
    "InfeasibleFamily",
    "OpendasError",
    "PrivacyError",
    "SchemaError",
    "SolverFailure",
]


class OpendasError(Exception):
    """Root of all errors that OpenDAS raises on purpose."""

    exit_code = 70


class ConfigError(OpendasError):
    """A run file, product file, command line or output folder is wrong."""

    exit_code = 2


class BudgetError(ConfigError):
    """Shares do not sum to exactly one, or a preset does not fit the run."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with the input data.

    Parameters
    ----------
    file : str
        File name, or archive and member as ``archive!member``.
    line : int or None
        1-based line or row, where there is one.
    field : str or None
        Column or field name.
    rule : str
        What was expected. Never the value found.
    """

    file: str
    line: int | None
    field: str | None
    rule: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{where}: {self.rule}" if self.field is None else f"{where}, field {self.field}: {self.rule}"


class DataError(OpendasError):
    """The input data are wrong.

    Parameters
    ----------
    message : str
        Summary. Holds no confidential value.
    findings : iterable of Finding
        Everything wrong in one file comes together.
    shown : int
        How many the message lists.
    """

    exit_code = 3

    def __init__(self, message: str, findings: Iterable[Finding] = (), *, shown: int = 20) -> None:
        self.findings = tuple(findings)
        listed = [str(finding) for finding in self.findings[:shown]]
        if len(self.findings) > len(listed):
            listed.append(f"... and {len(self.findings) - len(listed)} more")
        super().__init__("\n  ".join([message, *listed]))


class FormatError(DataError):
    """A file, row or field has the wrong form."""


class SchemaError(DataError):
    """A value lies outside the levels of its attribute."""


class GeographyError(DataError):
    """A geocode is unknown, repeated, or no child of its parent."""


class PrivacyError(OpendasError):
    """The guarantee would be broken or empty: the run is refused."""

    exit_code = 4


class EstimationError(OpendasError):
    """Post-processing could not finish."""

    exit_code = 5


class InfeasibleFamily(EstimationError):
    """The constraints of a family contradict each other.

    Parameters
    ----------
    family : str
        Geocode of the parent (or of the root).
    step : str
        For instance ``"least squares, pass 2 of 2"``.
    constraints : iterable of str
        Names of the constraints in conflict.
    """

    def __init__(self, family: str, step: str, constraints: Iterable[str] = ()) -> None:
        self.family = family
        self.step = step
        self.constraints = tuple(constraints)
        names = ", ".join(self.constraints) or "its constraints"
        super().__init__(
            f"Family {family}, {step}: no non-negative solution satisfies {names}. "
            "Check the frame and the invariants of its geounits, or set failsafe = true in [run], which "
            "gives up the equality with the parent, though no constraint."
        )


class SolverFailure(EstimationError):
    """No solver reached a certified solution.

    Parameters
    ----------
    family, step : str
        As in :class:`InfeasibleFamily`.
    residual : float
        Best relative Karush-Kuhn-Tucker residual reached.
    """

    def __init__(self, family: str, step: str, residual: float) -> None:
        self.family = family
        self.step = step
        self.residual = residual
        super().__init__(
            f"Family {family}, {step}: no solver reached a certified solution (residual {residual:.1e}). "
            "Please report it with the measurements of this family, which are publishable."
        )


class EnvironmentFailure(OpendasError):
    """Disk, permission or a missing extra: nothing is wrong with data or configuration."""

    exit_code = 6


class CheckFailed(OpendasError):
    """A verification found a difference."""

    exit_code = 1
