"""Columns of a CSV or Parquet table, every value as text."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from opendas.errors import ConfigError, EnvironmentFailure, FormatError
from opendas.readers.columns.csv_parquet import csv_form, csv_options, is_parquet
from opendas.runs.starting.columns import Column, look_at


def columns_of(path: Path) -> dict[str, Column]:
    """Read a CSV or Parquet table and say what each of its columns seems to be.

    Raises `ConfigError` if there is no such file; `FormatError` if it is no table.
    """
    table = _read(path)
    return {name: look_at(name, table.column(name)) for name in table.column_names}


def _read(path: Path) -> pa.Table:
    """Read every column as text: a code such as 007 is no number."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file.")
    kind = "CSV table in UTF-8 with a header row and equally many fields in each row"
    try:
        if is_parquet(path):
            kind = "Parquet table whose columns can be written as text"
            table = pq.read_table(path)
            _refuse_repeated(path, table.column_names)
            table = pa.table({name: table.column(name).cast(pa.string()) for name in table.column_names})
            table.validate(full=True)
            return _with_rows(path, table)
        form = csv_form(path)
        texts = dict.fromkeys(form.names, pa.string())
        table = pacsv.read_csv(
            path, **csv_options(form.names, form.delimiter, types=texts, skip=form.skip + 1)
        )
    except OSError as error:
        if error.errno is not None:
            raise EnvironmentFailure(f"{path}: {error.strerror or 'cannot be read'}.") from None
        raise _why_not(path, kind) from None
    except FormatError as error:
        raise (error if _in_utf8(path) else _why_not(path, kind)) from None
    except (pa.ArrowException, UnicodeDecodeError):
        raise _why_not(path, kind) from None
    return _with_rows(path, table)


def _why_not(path: Path, kind: str) -> FormatError:
    """Say why a file is no table; the reader's own message may quote a row."""
    if _in_utf8(path):
        return FormatError(f"{path.name}: cannot be read as a {kind}.")
    return FormatError(
        f"{path.name}: it is not in UTF-8. Convert it with `iconv -f LATIN1 -t UTF-8 OLD.csv > NEW.csv`; for "
        "LATIN1 write its encoding."
    )


def _in_utf8(path: Path) -> bool:
    """Whether a file is text in UTF-8, or none that could be converted."""
    if is_parquet(path) or path.suffix == ".gz":
        return True
    try:
        with path.open(encoding="utf-8") as file:
            for _ in file:
                pass
    except UnicodeDecodeError:
        return False
    return True


def _refuse_repeated(path: Path, names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise FormatError(f"{path.name}: two columns have the same name.")


def _with_rows(path: Path, table: pa.Table) -> pa.Table:
    if table.num_rows == 0:
        raise FormatError(f"{path.name}: the table has no rows.")
    return table
