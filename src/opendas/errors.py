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

import difflib
import errno
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ENVIRONMENT_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "permission denied",
    errno.EPERM: "the operation is not permitted",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "too many open files",
    errno.EFBIG: "a file would be larger than this process may write (ulimit -f)",
    errno.EIO: "the disk reports an error",
}
"""What the system refuses for want of room, permission or hardware: exit code 6."""

PATH_ERRORS = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "this is a folder, not a file",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EEXIST: "something of this name is in the way",
    errno.ELOOP: "links lead in a circle",
}
"""What it says of a path that someone gave: exit code 2."""


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


@dataclass(frozen=True, slots=True)
class HeldConstraint:
    """One constraint of a geounit with its value: an invariant, a bound, or what was estimated above it.

    Parameters
    ----------
    geounit : str
        Geolevel and geocode, for instance ``"county 44007"``; empty for what holds everywhere.
    name : str
        For instance ``"invariant total@state"``.
    relation : str
        ``"="``, ``">="`` or ``"<="``.
    value : int
        Public: of a declared invariant, a bound or an estimate, never a confidential count.
    """

    geounit: str
    name: str
    relation: str
    value: int

    def __str__(self) -> str:
        where = f"{self.geounit}: " if self.geounit else ""
        return f"{where}{self.name} {self.relation} {self.value:,}"


@dataclass(frozen=True, slots=True)
class ConstraintConflict:
    """Constraints that no non-negative counts keep together.

    Parameters
    ----------
    constraints : tuple of HeldConstraint
    smallest : bool
        No conflict of the geounits that were looked at has fewer constraints.
    irreducible : bool
        Without any one of these the others can hold.
    least, most : int or None
        Where it is that simple: together they ask for at least so many records, and leave room for at most so
        many.
    others : tuple of str
        Other geounits of the same geolevel with a conflict of their own.
    """

    constraints: tuple[HeldConstraint, ...]
    smallest: bool
    irreducible: bool
    least: int | None = None
    most: int | None = None
    others: tuple[str, ...] = ()

    def lines(self, shown: int = 20) -> list[str]:
        """Return the conflict in words, one line a constraint."""
        count = len(self.constraints)
        these = "This constraint contradicts" if count == 1 else f"These {count:,} constraints contradict"
        note = {
            (True, True): "no smaller set does",
            (False, True): "each of them is needed; a smaller set was not ruled out",
        }.get((self.smallest, self.irreducible), "not all of them may be needed")
        lines = [f"{these} {'itself' if count == 1 else 'each other'}{f' ({note})' if count > 1 else ''}:"]
        lines += [f"  {constraint}" for constraint in self.constraints[:shown]]
        if count > shown:
            lines.append(f"  ... and {count - shown:,} more")
        if count > 1 and self.least is not None and self.most is not None:
            records = "1 record" if self.least == 1 else f"{self.least:,} records"
            lines.append(f"Together they ask for at least {records}, with room for at most {self.most:,}.")
        if self.others:
            names = ", ".join(self.others[:5]) + (", ..." if len(self.others) > 5 else "")
            lines.append(f"{len(self.others):,} more with a contradiction of their own: {names}.")
        return lines


class InfeasibleFamily(EstimationError):
    """The constraints of a family, or of a geounit and what lies below it, contradict each other.

    Parameters
    ----------
    family : str
        Geocode of the parent (or of the root, or of the geounit).
    step : str
        For instance ``"least squares, pass 2 of 2"``.
    constraints : iterable of str
        Names of the constraints in conflict; by default those of `conflict`.
    conflict : ConstraintConflict, optional
        The smallest set of them that was found, with values.
    advice : str, optional
        What to try.
    """

    def __init__(
        self,
        family: str,
        step: str,
        constraints: Iterable[str] = (),
        conflict: ConstraintConflict | None = None,
        advice: str = (
            "Check the frame and the invariants of its geounits. In a run file, failsafe = true in [run] "
            "gives up the sum to the parent and nothing else, which helps only where that sum is part of the "
            "contradiction. If opendas run stopped here, first complete its measurements with opendas "
            "measure --resume and the run file unchanged; then set failsafe and use opendas estimate."
        ),
    ) -> None:
        self.family = family
        self.step = step
        self.constraints = tuple(constraints)
        self.conflict = conflict
        self.advice = advice
        if conflict is None:
            names = ", ".join(self.constraints) or "its constraints"
            super().__init__(f"Family {family}, {step}: no non-negative solution satisfies {names}. {advice}")
        else:
            self.constraints = self.constraints or tuple(str(held) for held in conflict.constraints)
            lines = [f"Family {family}, {step}: no table of counts satisfies its constraints."]
            super().__init__("\n  ".join([*lines, *conflict.lines(), advice]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.family, self.step, self.constraints, self.conflict, self.advice)


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
            "Please report this line (CONTRIBUTING.md says where). Add the measurements of this family only "
            "if the release may be published: those of noise from a seed reveal confidential counts."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.family, self.step, self.residual)


def is_interrupt(error: BaseException) -> bool:
    """Return whether a signal ended the work; where one meets compiled code, Python blames the system."""
    cause: BaseException | None = error
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    return isinstance(cause, KeyboardInterrupt)


class EnvironmentFailure(OpendasError):
    """Disk, permission or a missing extra: nothing is wrong with data or configuration."""

    exit_code = 6


def refuse_system_error(path: object, error: BaseException) -> None:
    """Raise an `EnvironmentFailure` if the system did not let a file be read: then it is not damaged."""
    words = ENVIRONMENT_ERRORS | PATH_ERRORS
    if isinstance(error, OSError) and error.errno in words:
        raise EnvironmentFailure(f"{path}: {words[error.errno]}.") from None


class CheckFailed(OpendasError):
    """A verification found a difference."""

    exit_code = 1


def nearest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return the hint of a message: the nearest known word; if none is near, `otherwise` or all of them.

    Examples
    --------
    >>> nearest("mechansim", ["mechanism", "product"])
    'did you mean mechanism?'
    >>> nearest("x", ["mechanism", "product"])
    'the choices are mechanism, product.'
    """
    words = list(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    if otherwise is not None:
        return otherwise
    return f"the choices are {', '.join(words)}." if words else "there are none to choose from."
