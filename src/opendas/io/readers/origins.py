"""From rows of several files, joined, back to their files and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.errors import DataError
from opendas.io.readers.findings import FindingLog

__all__ = ["Origin", "tell_rows"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Consecutive rows of one file.

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


def tell_rows(
    wrong: npt.NDArray[np.bool_],
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
