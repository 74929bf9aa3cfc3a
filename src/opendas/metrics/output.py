"""Write an evaluation under ``confidential/``: JSON, CSV tables, and plots where matplotlib is installed.

Every file says that it is confidential, and only its owner can read it.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opendas.custody.folders import open_folder
from opendas.errors import EnvironmentFailure
from opendas.metrics.errors import QUANTILES
from opendas.metrics.evaluate import Evaluation
from opendas.schema.attributes import cell_text

CONFIDENTIAL = "CONFIDENTIAL: computed from confidential data. Not for release."

_LOG = logging.getLogger(__name__)
_TABLES = ("rows", "by_population", "by_blau_quintile", "redistricting", "figures", "by_age_and_sex")


def _flat_rows(rows: Sequence[Mapping[str, object]]) -> Iterator[dict[str, object]]:
    """Spread quantiles over columns, and the intervals of the criterion over rows."""
    for row in rows:
        if "bins" in row:
            yield from _intervals(row)
            continue
        flat = {name: value for name, value in row.items() if name != "quantiles"}
        if "quantiles" in row:
            found = row["quantiles"]
            values = found if isinstance(found, Mapping) else {}
            flat |= {f"q{probability}": values.get(probability) for probability in QUANTILES}
        yield flat


def _intervals(row: Mapping[str, object]) -> Iterator[dict[str, object]]:
    bins = row["bins"]
    target = row["target"]
    if isinstance(bins, Sequence) and isinstance(target, Mapping):
        for entry in (*bins, target):
            yield {"geolevel": row["geolevel"], "base": row["base"], **entry}


def _cell(value: object) -> object:
    return cell_text(value) if isinstance(value, str) else value


def _csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Write a table; its first line is a comment that marks it confidential."""
    flat = list(_flat_rows(rows))
    target = io.StringIO()
    target.write(f"# {CONFIDENTIAL}\n")
    if flat:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(map(_cell, flat[0]))
        writer.writerows([_cell(row[name]) for name in flat[0]] for row in flat)
    return target.getvalue()


def evaluation_files(evaluation: Evaluation) -> dict[str, bytes]:
    """Return the files of an evaluation by name: ``evaluation.json`` and a CSV per table that has rows."""
    answer = evaluation.to_dict()
    text = json.dumps({"notice": CONFIDENTIAL, **answer}, indent=1, sort_keys=True, allow_nan=False)
    files = {"evaluation.json": (text + "\n").encode()}
    for name in _TABLES:
        rows = answer[name]
        if isinstance(rows, list) and rows:
            files["errors.csv" if name == "rows" else f"{name}.csv"] = _csv(rows).encode()
    return files


def write_evaluation(folder: Path, evaluation: Evaluation) -> tuple[Path, ...]:
    """Write an evaluation.

    - `folder`: ``OUT/confidential/evaluation/<product>``; created with mode 0700.
    - Returns: the files written, each with mode 0600.

    Raises `EnvironmentFailure` if the disk or the permissions refuse.
    """
    files = evaluation_files(evaluation)
    try:
        from opendas.metrics.plots import evaluation_plots
    except ImportError:
        _LOG.warning("Plots are left out: matplotlib is not installed. Install opendas[plots] to draw them.")
    else:
        files |= evaluation_plots(evaluation)
    try:
        # The writers of releases sit above this package, so that no release code can reach a truth.
        with open_folder(folder, make=True) as opened:
            opened.set_mode(0o700)
            for name, data in files.items():
                with opened.whole(name, 0o600) as file:
                    file.write(data)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise EnvironmentFailure(
            f"Could not write the evaluation: {reason}. "
            "Check free space and permissions of the output folder."
        ) from error
    return tuple(folder / name for name in files)
