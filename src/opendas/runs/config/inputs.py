"""From the input section of a run file to what a reader is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opendas.errors import ConfigError
from opendas.files.remote import RemoteAddress, RemoteInput
from opendas.geography.frame import LevelRule
from opendas.readers.base import FRAME_FROM_RECORDS, MemoryTable, ReaderSpec, Source, UnitsSpec
from opendas.readers.paths import expand_paths, is_file
from opendas.runs.config.model import CENSUS_READERS, InputSection, RunFile
from opendas.runs.config.words import nearest
from opendas.schema.product import Product

__all__ = ["reader_spec"]


def reader_spec(run_file: RunFile, product: Product, *, need_input: bool = True) -> ReaderSpec:
    """Return what the reader of a run is asked.

    Parameters
    ----------
    run_file : RunFile
    product : Product
    need_input : bool
        False where nothing will be read, as in estimation: files may then be absent.

    Raises
    ------
    ConfigError
        If a file is missing, or a key does not go with the reader or the product.
    """
    given, geography = run_file.input, run_file.geography
    census = given.reader in CENSUS_READERS
    problems = [*_misplaced_keys(run_file), *_unknown_names(given, product)]
    if census and product.name not in ("pl94-persons", "pl94-units"):
        problems.append(
            f"[input] reader {given.reader} fills the products pl94-persons and pl94-units; "
            f"{product.name!r} is read by records or histogram"
        )
    if problems:
        raise ConfigError(
            "\n  ".join(["the run file does not fit together:", *problems]) if problems[1:] else problems[0]
        )
    remote = _remote(run_file)
    frame: Source | str | None = None if given.reader == "cef" else geography.frame
    if isinstance(frame, str) and frame != FRAME_FROM_RECORDS:
        frame = Path(frame)
    if need_input and isinstance(frame, Path) and not remote.frame and not is_file(frame):
        raise ConfigError(
            f"[geography] frame: {frame}: no such file. Paths are relative to the run file's folder."
        )
    if need_input and given.units is not None:
        for path in given.units.path if given.reader != "cef" else ():
            if isinstance(path, Path) and not is_file(path):
                raise ConfigError(f"[input] units: {path}: no such file.")
    further = _further_files(run_file) if need_input else {}
    paths = tuple(path for path in given.path if isinstance(path, Path))
    tables = tuple(path for path in given.path if isinstance(path, MemoryTable))
    units = None if given.units is None or given.reader == "cef" else given.units.path[0]
    return ReaderSpec(
        reader=given.reader,
        paths=expand_paths(paths, Path()) if need_input and paths else tables,
        product=product,
        root=geography.root,
        levels=tuple(LevelRule(level.name, level.prefix, level.column) for level in geography.levels),
        frame=frame,
        geocode=given.geocode,
        count=given.count,
        columns=dict(given.columns),
        constants=dict(given.constants),
        units=None
        if given.units is None or units is None
        else UnitsSpec(
            units if isinstance(units, MemoryTable) else Path(units),
            given.units.geocode,
            dict(given.units.columns),
        ),
        unit_records=further.get("units", ()),
        block_files=further.get("frame", ()),
        block_assignment=tuple(geography.block_assignment),
        remote=remote,
    )


def _remote(run_file: RunFile) -> RemoteInput:
    """Return what of the input stands at addresses.

    Raises
    ------
    ConfigError
        If data stand at addresses and on this machine.
    """
    given, geography = run_file.input, run_file.geography
    paths = tuple(path for path in given.path if isinstance(path, RemoteAddress))
    if 0 < len(paths) < len(given.path):
        raise ConfigError(f"[input] path: {paths[0]} is an address, others are paths of this machine.")
    if given.reader == "cef":  # further files of it are expanded as paths, which addresses are not
        return RemoteInput(paths)
    frame = RemoteAddress.of(geography.frame) if isinstance(geography.frame, str) else None
    units = None if given.units is None else given.units.path[0]
    return RemoteInput(paths, frame, units if isinstance(units, RemoteAddress) else None)


def _further_files(run_file: RunFile) -> dict[str, tuple[Path, ...]]:
    """Return the files beside those of ``[input] path``, by their key."""
    given, geography = run_file.input, run_file.geography
    files = {}
    if geography.block_assignment:
        expand_paths(geography.block_assignment, Path(), "[geography] block_assignment")  # for its errors
    if given.reader == "cef" and isinstance(geography.frame, str):
        files["frame"] = expand_paths(geography.frame, Path(), "[geography] frame")
    if given.reader == "cef" and given.units is not None:
        paths = [path for path in given.units.path if not isinstance(path, MemoryTable)]
        files["units"] = expand_paths(paths, Path(), "[input] units")
    return files


def _misplaced_keys(run_file: RunFile) -> list[str]:
    """Return keys that the chosen reader does not take."""
    given, geography = run_file.input, run_file.geography
    reader = given.reader
    if reader not in CENSUS_READERS:
        found = _several_unit_files(given)
        if not geography.levels:
            found.append(
                f"[geography] levels: required with reader {reader}, top first, the leaf last, for instance "
                'levels = [{ name = "region", prefix = 2 }, { name = "ward" }]'
            )
        if geography.frame is None:
            found.append(
                f"[geography] frame: required with reader {reader}: the public list of leaves, empty ones "
                f'included. frame = "{FRAME_FROM_RECORDS}" takes it from the input, which publishes which '
                "leaves are populated"
            )
        if "root" in geography.model_fields_set:
            found.append(
                f"[geography] root: census readers only; with reader {reader} the first of levels is the root"
            )
        if reader == "records" and "count" in given.model_fields_set:
            found.append("[input] count: reader histogram only; records counts one record a row")
        return found
    found = [
        f"[geography] {key}: not with reader {reader}, which knows the census geolevels and frame"
        for key in (("levels",) if reader == "cef" else ("levels", "frame"))
        if key in geography.model_fields_set
    ]
    found += [
        f"[input] {key}: not with reader {reader}, whose layout is fixed"
        for key in ("geocode", "count", "columns", "constants")
        if key in given.model_fields_set
    ]
    if reader == "cef":
        return found + _missing_cef_keys(run_file)
    found += _several_unit_files(given)
    if given.units is not None and reader not in ("ppmf", "mdf"):
        found.append(f"[input] units: not with reader {reader}, which derives the units")
    return found


def _several_unit_files(given: InputSection) -> list[str]:
    several = given.units is not None and len(given.units.path) > 1
    return [f"[input] units: path: one file with reader {given.reader}"] if several else []


def _missing_cef_keys(run_file: RunFile) -> list[str]:
    given, geography = run_file.input, run_file.geography
    found = []
    if geography.frame in (None, FRAME_FROM_RECORDS):
        found.append(
            "[geography] frame: required with reader cef: the GRF-C, a file, folder or pattern; the leaves "
            "are its blocks with a unit"
        )
    if given.units is not None:
        found += [
            f"[input] units: {key}: not with reader cef, whose layout is fixed"
            for key in ("geocode", "columns")
            if key in given.units.model_fields_set
        ]
    elif run_file.run.product != "pl94-units":
        found.append(
            "[input] units: required with reader cef: the unit records, for instance units = { path = "
            '"CEF20_UNIT_*.txt" }'
        )
    return found


def _unknown_names(given: InputSection, product: Product) -> list[str]:
    schema = product.schema
    tables: dict[str, Mapping[str, str]] = {"columns": given.columns, "constants": given.constants}
    found = [
        f"[input] {key}: {product.name} has no attribute {name!r}; {nearest(name, schema.names)}"
        for key, table in tables.items()
        for name in table
        if name not in schema.names
    ]
    found += [
        f"[input] {name} is in columns and in constants; keep one"
        for name in given.columns
        if name in given.constants
    ]
    for name, label in given.constants.items():
        if name in schema.names and label not in schema.attribute(name).levels:
            hint = nearest(label, schema.attribute(name).levels)
            found.append(f"[input] constants: {label!r} is no level of {name}; {hint}")
    return found
