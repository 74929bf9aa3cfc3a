"""The files of a user's table: what they are called, what is said of them, and writing them all or none.

The command ``opendas init table`` and the page of ``opendas explore`` ask and show; what they do is here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opendas.custody.folders import make_folder, remove_file, write_atomic
from opendas.errors import ConfigError
from opendas.runs.starting.columns import Column
from opendas.runs.starting.guess import Declared, TableGuess, guess_table, smaller_choices
from opendas.runs.starting.templates import table_product_file, table_run_file
from opendas.runs.starting.wide import CATEGORY, COUNT, melt

_ROWS_A_CELL = 1.0
_NOT_FOR_GIT = ("confidential/", "*.key", "*-long.csv", "*.pl.zip", "/out/", "/*-out/")
FROM_RECORDS = "The labels were read from the data, so the release will be stamped DOMAIN FROM RECORDS."


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table, and the folder that its files are written to."""

    data: Path
    folder: Path

    @property
    def name(self) -> str:
        """Name of the product."""
        return re.sub(r"[^A-Za-z0-9_-]+", "-", self.data.name.split(".")[0]).strip("-").lower() or "table"

    @property
    def path(self) -> str:
        """Path of the table as seen from the folder."""
        return Path(os.path.relpath(self.data.resolve(), self.folder.resolve())).as_posix()

    def file(self, part: str) -> Path:
        """Return the path of a file, such as ``run.toml``."""
        return self.folder / f"{self.name}-{part}"

    @property
    def product(self) -> Path:
        """The product file."""
        return self.file("product.toml")

    @property
    def run(self) -> Path:
        """The run file."""
        return self.file("run.toml")

    @property
    def long(self) -> Path:
        """A wide table, written as a long one."""
        return self.file("long.csv")

    def next_command(self, guess: TableGuess) -> str:
        """Return what to run when the files are written from what the table shows."""
        records = f" --records {guess.records}" if guess.records else ""
        return f"opendas plan {self.run} --read-records{records}"


def guess_lines(guess: TableGuess) -> list[tuple[str, str]]:
    """Say what a table was taken for, a subject and a line each: last its size, and what looks wrong."""
    lines = [
        ("where", f"column {guess.geocode}, levels {', '.join(guess.level_names)}"),
        ("attributes", ", ".join(f"{a} ({len(v)} levels)" for a, v in guess.attributes.items())),
        ("rows", "counts in column " + guess.count if guess.count else "one record each"),
    ]
    if guess.unit_id is not None:
        lines.append(
            ("units", f"{guess.unit_id}; some have several rows, of which the run file counts at most 3")
        )
    for why in dict.fromkeys(guess.left_out.values()):
        columns = ", ".join(
            column or "(no name)" for column, reason in guess.left_out.items() if reason == why
        )
        lines.append(("not taken", f"{columns}: {why}"))
    lines += [("not sure", text) for text in guess.unsure]
    lines.append(("size", f"{guess.cells:,} cells in each of {guess.leaves:,} leaves, {guess.rows:,} rows"))
    if guess.count is None and guess.cells > _ROWS_A_CELL * guess.rows:
        choices = "; ".join(f"--attributes {','.join(names)}" for names, _ in smaller_choices(guess))
        fewer = f". Fewer cells: {choices}" if choices else ""
        lines.append(("sparse", f"more cells than rows: a cell has less than one record on average{fewer}"))
    return lines


def write_guess(files: TableFiles, guess: TableGuess, unit: str | None, data: str = "") -> str:
    """Write the product file and the run file of a guess.

    - `data`: path of the table as seen from the folder, where it is another than the one of `files`.
    - Returns: what is to be said about git; empty where there is nothing.
    """
    product = table_product_file(guess, files.name, protected_unit=unit or guess.protected_unit)
    run = table_run_file(guess, files.product.name, data or files.path)
    return write_new({files.product: product, files.run: run}, inputs=[data or files.path])


def write_melted(
    files: TableFiles, columns: Mapping[str, Column], wanted: str, unit: str | None
) -> tuple[TableGuess, list[str]]:
    """Write a wide table as a long one, and the files of that; return its guess, and what is to be said.

    `columns`, name -> Column; `wanted`: see :func:`opendas.runs.starting.wide.melt`.
    """
    refuse_existing((files.long, files.product, files.run))
    make_folder(files.folder)
    made = melt(columns, wanted, files.long)
    with _none_or_all((files.long,)):
        guess = guess_table(files.long, Declared((*made.above, made.geocode), (CATEGORY,), COUNT))
        said = [write_guess(files, guess, unit, files.long.name)]
    said.append(f"{len(made.labels)} columns became labels of {CATEGORY}")
    if made.totals:
        said.append(f"left out, as each is the sum of columns beside it: {', '.join(made.totals)}")
    said.append(
        f"{files.long} is as confidential as {files.data.name}: give it to nobody who may not see that file"
    )
    said.append("Look for CHECK in the files, and replace the labels with those of a code book.")
    return guess, [text for text in said if text]


def refuse_existing(paths: Iterable[Path]) -> None:
    """Refuse to write where something is already."""
    there = [str(path) for path in paths if path.exists()]
    if there:
        raise ConfigError(
            f"{', '.join(there)} already {'exist' if there[1:] else 'exists'}. Nothing was overwritten. Move "
            f"{'them' if there[1:] else 'it'} away, or choose another folder."
        )


@contextmanager
def _none_or_all(paths: Iterable[Path]) -> Iterator[None]:
    """Remove files that were not there before if not all of them can be written."""
    try:
        yield
    except BaseException:
        for path in paths:
            remove_file(path)
        raise


def write_new(texts: Mapping[Path, str], inputs: Iterable[str] = ()) -> str:
    """Write files of one folder that are not there yet, all or none, and keep git from what runs write there.

    `inputs`: paths of confidential tables as seen from the folder; those in it are kept from git as well.

    Returns what is to be said about git; empty where there is nothing.
    """
    refuse_existing(texts)
    with _none_or_all(texts):
        for path, text in texts.items():
            write_atomic(path, text.encode())
        here = [f"/{path}" for path in inputs if not path.startswith(("../", "/"))]
        listed = next(iter(texts)).parent / ".gitignore"
        if listed.exists():
            return f"{listed} already exists: check that it lists {', '.join([*_NOT_FOR_GIT[:2], *here])}"
        # OUT has the run file's name, unless --out says otherwise
        outputs = [f"/{path.stem}/" for path in texts if path.suffix == ".toml"]
        lines = ["# Written by opendas init: keys, counts and inputs of runs do not belong in a repository."]
        write_atomic(listed, "\n".join([*lines, *_NOT_FOR_GIT, *here, *outputs, ""]).encode())
    return ""
