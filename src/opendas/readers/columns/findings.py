"""Collects everything wrong in the input, so that all errors of one file come together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools
from opendas.errors import DataError, Finding


@dataclass(frozen=True, slots=True)
class Origin:
    """Consecutive rows of one file: where they stand, without a number for every row.

    Parameters
    ----------
    where : str
        File name, as findings name it.
    first : int
        Line of the first row.
    rows : int
    """

    where: str
    first: int
    rows: int


def report_rows(
    wrong: Bools,
    origins: Sequence[Origin],
    field: str,
    rule: str,
    log: FindingLog,
    kind: type[DataError],
) -> None:
    """Record a finding for each joined row where `wrong` is true, by its own file and line."""
    start = 0
    for origin in origins:
        part = wrong[start : start + origin.rows]
        log.add_where(kind, origin.where, part, field, rule, first=origin.first)
        start += origin.rows


Element = TypeVar("Element", bound=np.generic)


def joined(parts: list[npt.NDArray[Element]]) -> npt.NDArray[Element]:
    """Return the parts as one array, and empty the list: they do not stay in memory beside it."""
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    parts.clear()
    return whole


_LINES_SHOWN = 20


class FindingLog:
    """A growing list of findings, raised together.

    Rules say what was expected; no method takes the value found, which may be confidential. Of lines that
    break the same rule in the same field of the same file the first twenty are listed and the others counted.
    """

    def __init__(self) -> None:
        self._listed: list[Finding] = []
        self._kinds: set[type[DataError]] = set()
        self._lines: Counter[tuple[str, str | None, str]] = Counter()

    def __len__(self) -> int:
        return len(self._listed)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far."""
        more = (
            Finding(file, None, field, f"{rule} ({count - _LINES_SHOWN} more lines)")
            for (file, field, rule), count in self._lines.items()
            if count > _LINES_SHOWN
        )
        return (*self._listed, *more)

    def add(self, kind: type[DataError], file: str, line: int | None, field: str | None, rule: str) -> None:
        """Record one finding, to be raised as `kind`."""
        self._kinds.add(kind)
        self._listed.append(Finding(file, line, field, rule))

    def note(self, file: str, rule: str) -> None:
        """Say what readers of findings have to know, if there are any."""
        if self._listed:
            self._listed.append(Finding(file, None, None, rule))

    def add_rows(
        self, kind: type[DataError], file: str, lines: Iterable[int], field: str | None, rule: str
    ) -> None:
        """Record one finding a line."""
        for line in lines:
            self._lines[file, field, rule] += 1
            if self._lines[file, field, rule] <= _LINES_SHOWN:
                self.add(kind, file, int(line), field, rule)

    def add_where(
        self,
        kind: type[DataError],
        file: str,
        wrong: Bools,
        field: str | None,
        rule: str,
        *,
        lines: npt.NDArray[np.integer] | None = None,
        first: int = 1,
    ) -> None:
        """Record a finding for each row where `wrong` is true.

        - `wrong` (rows,).
        - `lines` (rows,): line of each row; by default rows count from `first`.
        """
        if not wrong.any():
            return
        rows = np.flatnonzero(wrong)
        self.add_rows(kind, file, rows + first if lines is None else lines[rows], field, rule)

    def raise_if_any(self, message: str) -> None:
        """Raise what was found; the error's class is the findings' common one, else ``DataError``.

        Raises `DataError` or the subclass that all findings share.
        """
        if not self._listed:
            return
        kind = next(iter(self._kinds)) if len(self._kinds) == 1 else DataError
        raise kind(message, self.findings)
