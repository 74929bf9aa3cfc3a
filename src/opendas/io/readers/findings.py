"""Collects everything wrong in the input, so that all errors of one file come together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from opendas.errors import DataError, Finding

__all__ = ["FindingLog"]

_ROWS_SHOWN = 20


class FindingLog:
    """A growing list of findings, raised together.

    Rules say what was expected; no method takes the value found, which may be confidential.
    """

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._kinds: list[type[DataError]] = []

    def __len__(self) -> int:
        return len(self._findings)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far."""
        return tuple(self._findings)

    def add(self, kind: type[DataError], file: str, line: int | None, field: str | None, rule: str) -> None:
        """Record one finding, to be raised as `kind`."""
        self._kinds.append(kind)
        self._findings.append(Finding(file, line, field, rule))

    def add_rows(
        self, kind: type[DataError], file: str, lines: Iterable[int], field: str | None, rule: str
    ) -> None:
        """Record one finding a line; of a long list the first few and the number of the others."""
        listed = [int(line) for line in lines]
        for line in listed[:_ROWS_SHOWN]:
            self.add(kind, file, line, field, rule)
        if len(listed) > _ROWS_SHOWN:
            self.add(kind, file, None, field, f"{rule} ({len(listed) - _ROWS_SHOWN} more lines)")

    def add_where(
        self,
        kind: type[DataError],
        file: str,
        wrong: npt.NDArray[np.bool_],
        field: str | None,
        rule: str,
        *,
        lines: npt.NDArray[np.integer] | None = None,
        first: int = 1,
    ) -> None:
        """Record a finding for each row where `wrong` is true.

        Parameters
        ----------
        wrong : bool (rows,)
        lines : int (rows,), optional
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
        if not self._findings:
            return
        kinds = set(self._kinds)
        kind = kinds.pop() if len(kinds) == 1 else DataError
        raise kind(message, self._findings)
