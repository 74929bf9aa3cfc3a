"""Collects everything wrong in the input, so that all errors of one file come together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from opendas.errors import DataError, Finding
from opendas.io.readers.chunks import Lines

__all__ = ["FindingLog"]

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
        wrong: npt.NDArray[np.bool_],
        field: str | None,
        rule: str,
        *,
        lines: npt.NDArray[np.integer] | Lines | None = None,
        first: int = 1,
    ) -> None:
        """Record a finding for each row where `wrong` is true.

        Parameters
        ----------
        wrong : bool (rows,)
        lines : int (rows,) or Lines, optional
            Line of each row; by default rows count from `first`.
        """
        if not wrong.any():
            return
        rows = np.flatnonzero(wrong)
        self.add_rows(kind, file, rows + first if lines is None else lines[rows], field, rule)

    def raise_if_any(self, message: str) -> None:
        """Raise what was found; the error's class is the findings' common one, else ``DataError``.

        Raises
        ------
        DataError
            Or the subclass that all findings share.
        """
        if not self._listed:
            return
        kind = next(iter(self._kinds)) if len(self._kinds) == 1 else DataError
        raise kind(message, self.findings)
