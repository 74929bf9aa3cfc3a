"""The measurements as they were written, and the estimates as the published step writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from opendas.custody.folders import write_atomic
from opendas.errors import ConfigError, DataError, EnvironmentFailure, Finding, FormatError
from opendas.phsafe.inputs.levels import PUERTO_RICO, NoiseDistribution
from opendas.phsafe.tables import OUTPUTS, find_table


class Model(StrEnum):
    """How tables are fitted."""

    JOINT = "joint"
    """Counts on the integers under the noise that was added; tables that share numbers share a posterior."""
    PUBLISHED = "published"
    """Continuous normal noise, every table by itself, as in the Bureau's model-based estimates."""


@dataclass(frozen=True, slots=True)
class CountTable:
    """A table of counts."""

    name: str  # folder of the measurements, and of the estimates
    cells: tuple[int, ...]  # measured cells
    # Totals, in the order of the published estimates, as sums of measured cells.
    margins: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AverageTable:
    """A table of averages: persons per household or family."""

    name: str
    # numerator, denominator: folders of the measurements.
    numerator: str
    denominator: str
    least: int  # Persons that every household (1) or family (2) has
    # Whether each cell has a denominator of its own (PH8). Otherwise all cells share one.
    by_cell: bool = False
    counts: str | None = None  # the count table with the same numerators

    @property
    def cells(self) -> tuple[int, ...]:
        """Cells of the estimates: all, and the two that make it."""
        return (1, 2, 3)

    @property
    def denominator_cells(self) -> tuple[int, ...]:
        """Measured cells of the denominator."""
        return (2, 3) if self.by_cell else (1,)


def _count_table(name: str) -> CountTable:
    """Take cells and totals from the declaration of the measured table; the total of all comes last."""
    table = find_table(name)
    if table is None:
        raise ConfigError(f"there is no table {name}.")
    order = sorted(table.shell, key=lambda cell: (cell == 1, cell))
    return CountTable(name, table.cells, MappingProxyType({cell: table.shell[cell] for cell in order}))


COUNTS: Mapping[str, CountTable] = MappingProxyType(
    {name: _count_table(name) for name in ("PH2", "PH3", "PH4", "PH6", "PH7")}
)
"""The tables of counts, by name."""

AVERAGES: Mapping[str, AverageTable] = MappingProxyType(
    {
        "PH1": AverageTable("PH1", "PH1_num", "PH1_denom", 1),
        "PH5": AverageTable("PH5", "PH5_num", "PH5_denom", 2, counts="PH4"),
        "PH8": AverageTable("PH8", "PH8_num", "PH8_denom", 1, by_cell=True, counts="PH7"),
    }
)
"""The tables of averages, by name."""


Key = tuple[str, str]
"""Region identifier as written, and population group (``*`` where the table has none)."""

_REGION = re.compile("1|[0-9]{2}")
_WHOLE = re.compile("-?[0-9]{1,18}")
_NO_VARIANCE = (
    "{0} has no VARIANCE column: these are exact counts (non-private mode), with nothing to estimate. "
    "Give the output of private mode."
)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The noisy counts of one table for one type of region."""

    name: str  # folder it came from
    region_type: str  # ``USA`` or ``STATE``
    keys: tuple[Key, ...]
    cells: tuple[int, ...]  # cell codes
    counts: npt.NDArray[np.int64]  # (k, n): one row a key, one column a cell
    variances: npt.NDArray[np.float64]  # (k, n): in squared counts; 0 where nothing was added
    noise: tuple[NoiseDistribution, ...]  # one a key

    def columns(self, cells: Sequence[int]) -> list[int]:
        """Return the positions of cells."""
        return [self.cells.index(cell) for cell in cells]

    def rows(self, keys: Iterable[Key]) -> list[int]:
        """Return the positions of keys."""
        where = {key: row for row, key in enumerate(self.keys)}
        return [where[key] for key in keys]


def _lines(folder: Path) -> tuple[list[str], list[tuple[str, int, list[str]]]]:
    """Return the header and the rows, with file and line, of all part files of a folder."""
    header: list[str] = []
    rows: list[tuple[str, int, list[str]]] = []
    files = sorted(path for path in folder.glob("*.csv") if not path.name.startswith((".", "_")))
    if not files:
        raise FormatError(f"{folder.name} holds no .csv file; expected part-00000-*.csv.")
    for path in files:
        try:
            head, *lines = path.read_text("ascii").splitlines() or [""]
        except UnicodeDecodeError as error:
            raise FormatError(f"{folder.name}/{path.name} is not a text file in ASCII.") from error
        except OSError as error:
            raise EnvironmentFailure(f"Could not read {path.name}: {error.strerror}.") from error
        if header and head.split("|") != header:
            raise FormatError(f"The files of {folder.name} have different headers.")
        header = head.split("|")
        name = f"{folder.name}/{path.name}"
        rows += [(name, line, text.split("|")) for line, text in enumerate(lines, start=2) if text]
    return header, rows


def _check_header(name: str, header: Sequence[str]) -> None:
    cell = f"{name.upper()}_DATA_CELL"
    if "COUNT" in header and "VARIANCE" not in header:
        raise ConfigError(_NO_VARIANCE.format(name))
    needed = ("REGION_ID", "REGION_TYPE", cell, "COUNT", "NOISE_DISTRIBUTION", "VARIANCE")
    missing = [column for column in needed if column not in header]
    if missing:
        raise FormatError(f"{name}: the header lacks {', '.join(missing)}.")


def _row_error(row: dict[str, str], cell: str, cells: Sequence[int]) -> tuple[str, str] | None:
    """Return column and rule of the first thing wrong with a row."""
    if _REGION.fullmatch(row["REGION_ID"]) is None:
        return "REGION_ID", "1 or two digits"
    if row["REGION_TYPE"] not in ("USA", "STATE"):
        return "REGION_TYPE", "USA or STATE"
    if row[cell] not in {str(code) for code in cells}:
        return cell, f"one of the measured cells {', '.join(map(str, cells))}"
    if _WHOLE.fullmatch(row["COUNT"]) is None:
        return "COUNT", "a whole number"
    if row["NOISE_DISTRIBUTION"] not in set(NoiseDistribution):
        return "NOISE_DISTRIBUTION", " or ".join(NoiseDistribution)
    try:
        variance = float(row["VARIANCE"])
    except ValueError:
        variance = math.nan
    return None if 0 <= variance < math.inf else ("VARIANCE", "a number, 0 or more")


def read_table(out: Path, name: str, cells: tuple[int, ...]) -> dict[str, Grid]:
    """Read one folder of a PHSafe output.

    - `name`: for instance ``PH1_num``.
    - `cells`: the measured cells.
    - Returns: by type of region; empty where the folder is not there, as for a table without budget.

    Raises `ConfigError` if the counts are exact.
    """
    folder = out / name
    if not folder.is_dir():
        return {}
    header, rows = _lines(folder)
    _check_header(name, header)
    cell = f"{name.upper()}_DATA_CELL"
    findings: list[Finding] = []
    found: dict[str, dict[Key, dict[int, tuple[int, float, str]]]] = {}
    for file, line, values in rows:
        row = dict(zip(header, values, strict=False))
        wrong = (
            ("row", f"{len(header)} fields") if len(values) != len(header) else _row_error(row, cell, cells)
        )
        if wrong is None:
            key = (row["REGION_ID"], row.get("ITERATION_CODE", "*"))
            of_key = found.setdefault(row["REGION_TYPE"], {}).setdefault(key, {})
            code = int(row[cell])
            if code in of_key:
                wrong = (cell, "each cell of a region and group once")
            else:
                of_key[code] = (int(row["COUNT"]), float(row["VARIANCE"]), row["NOISE_DISTRIBUTION"])
        if wrong is not None:
            findings.append(Finding(file, line, *wrong))
    for region_type, of_type in found.items():
        findings += [
            Finding(name, None, f"{region_type} {key[0]} {key[1]}", "all measured cells")
            for key, of_key in of_type.items()
            if len(of_key) < len(cells)
        ]
    if findings:
        raise FormatError(f"{name} is not a PHSafe output.", findings)
    return {region_type: _grid(name, region_type, cells, of_type) for region_type, of_type in found.items()}


def _grid(
    name: str,
    region_type: str,
    cells: tuple[int, ...],
    found: dict[Key, dict[int, tuple[int, float, str]]],
) -> Grid:
    keys = tuple(found)
    counts = np.array([[found[key][code][0] for code in cells] for key in keys], dtype=np.int64)
    variances = np.array([[found[key][code][1] for code in cells] for key in keys])
    noise = tuple(NoiseDistribution(found[key][cells[0]][2]) for key in keys)
    return Grid(name, region_type, keys, cells, counts, variances, noise)


def read_measurements(out: Path, cells: dict[str, tuple[int, ...]]) -> dict[str, dict[str, Grid]]:
    """Read the folders of a PHSafe output.

    Returns (dict of str to Grid): folder name to type of region to counts; folders that are not there are
    left out.
    """
    tables = {name: read_table(out, name, of_table) for name, of_table in cells.items()}
    tables = {name: grids for name, grids in tables.items() if grids}
    if not tables:
        raise ConfigError(
            f"{out} holds no PHSafe output: none of the folders {', '.join(OUTPUTS)} is there. "
            "Give the OUT of opendas phsafe."
        )
    states = {key[0] for grids in tables.values() if "STATE" in grids for key in grids["STATE"].keys}
    if PUERTO_RICO in states and len(states) > 1:
        raise DataError("Puerto Rico (72) stands beside other states; it is a run of its own.")
    return tables


def estimate_path(out: Path, table: str, region_type: str, puerto_rico: bool) -> Path:
    """Return where the published step writes the estimates of a table."""
    place = "nation" if region_type == "USA" else "state"
    prefix = "PR_" if puerto_rico else ""
    return out / table / "estimates" / f"{table}_{prefix}{place}_trunc_normal.csv"


def _text(value: object) -> str:
    """Write a value as R's write.table does: text in quotes, numbers with up to 15 digits."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return f"{value:.15g}" if math.isfinite(value) else ("Inf" if value > 0 else "-Inf")
    return str(value)


def write_estimates(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a file of estimates in one step."""
    lines = ["|".join(_text(column) for column in columns)]
    lines += ["|".join(_text(value) for value in row) for row in rows]
    write_atomic(path, ("\n".join(lines) + "\n").encode("ascii"))
