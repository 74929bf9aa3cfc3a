"""From a TOML file to a checked value, with all that is wrong told at once."""

from __future__ import annotations

import datetime
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from opendas.custody.folders import at_once
from opendas.errors import ConfigError, EnvironmentFailure, Finding, nearest
from opendas.files.storage.remote import PASSWORD_RULE, holds_password
from opendas.runs.config.lines import Path as KeyPath
from opendas.runs.config.lines import line_of, scan_lines
from opendas.runs.config.model import RunFile, Section, freeze
from opendas.runs.config.words import not_one_of

_S = TypeVar("_S", bound=Section)

_KINDS = {
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "int_type": "an integer",
    "tuple_type": "a list in brackets",
    "mapping_type": "a table of keys",
    "dict_type": "a table of keys",
    "model_type": "a table of keys",
    "model_attributes_type": "a table of keys",
}
_LONGEST_TEXT = 1 << 22
"""A configuration of more characters is some other file, a device perhaps that never ends."""

_INNER = frozenset({"steps"})
"""Parts of a model's path that are no key of the file."""


def _models_in(annotation: Any) -> Iterable[type[BaseModel]]:
    """Yield the models a type annotation speaks of."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for part in typing.get_args(annotation):
        yield from _models_in(part)


def _model_at(model: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel]:
    """Return the model that a path below `model` leads to."""
    for part in path:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        inner = list(_models_in(field.annotation)) if field is not None else []
        if inner:
            model = inner[0]
    return model


def _explain(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    kind, where, value = error["type"], error["loc"], error["input"]
    if kind == "extra_forbidden":
        known = [name for name in _model_at(model, where[:-1]).model_fields if name not in _INNER]
        return f"unknown key; {nearest(str(where[-1]), known)}"
    if kind == "missing":
        return "required key is missing; it has no default"
    if kind == "literal_error":
        allowed = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        if isinstance(value, str):
            return not_one_of(value, allowed)
        return f"expected one of {', '.join(allowed)}; found {_toml_kind(value)}"
    if kind in _KINDS:
        return f"expected {_KINDS[kind]}, found {_toml_kind(value)}"
    if kind == "too_short" and isinstance(value, tuple):
        return f"expected a list with at least {error['ctx']['min_length']} entry"
    message = str(error["msg"])
    return message[:1].lower() + message[1:] if kind.startswith(("greater", "less", "too_")) else message


def _toml_kind(value: object) -> str:
    kinds = {str: "text", bool: "true or false", int: "an integer", float: "a float", tuple: "a list"}
    kinds |= dict.fromkeys((datetime.date, datetime.datetime, datetime.time), "a date or time")
    kinds |= {dict: "a table"}
    return kinds.get(type(value), f"a value of the type {type(value).__name__}")


def problems(
    error: ValidationError, model: type[BaseModel], lines: dict[KeyPath, int], file: str
) -> list[Finding]:
    """Return what a validation found, each with the line and field of the file.

    `lines`: from :func:`opendas.runs.config.lines.scan_lines`.
    """
    found = []
    for item in error.errors(include_url=False):
        where = tuple(part for part in item["loc"] if part not in _INNER)
        field = ".".join(str(part) for part in where) or None
        found.append(Finding(file, line_of(lines, where), field, _explain(dict(item), model)))
    return sorted(found, key=lambda finding: (finding.line or 0, finding.field or ""))


def config_error(file: str, findings: Iterable[Finding]) -> ConfigError:
    """Return one error that holds all findings of a file."""
    lines = [str(finding) for finding in findings]
    if len(lines) == 1:
        return ConfigError(lines[0])
    return ConfigError("\n  ".join([f"{file}: {len(lines)} problems", *lines]))


def read_text(path: Path, what: str) -> str:
    """Read a configuration file."""
    try:
        with open(path, encoding="utf-8", opener=at_once) as file:
            text = file.read(_LONGEST_TEXT + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise ConfigError(
            f"{path}: no such {what}. Give the path of a TOML file; `opendas init` writes one to start from."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: this {what} is not text in UTF-8. Save it in this encoding.") from None
    except PermissionError:
        raise EnvironmentFailure(f"{path}: no permission to read this {what}.") from None
    if len(text) > _LONGEST_TEXT:
        raise ConfigError(f"{path}: too long for a {what}, which has at most {_LONGEST_TEXT:,} characters.")
    return text


def parse_toml(text: str, model: type[_S], file: str, folder: Path) -> tuple[_S, dict[KeyPath, int]]:
    """Parse and validate a TOML text.

    - `folder`: what relative paths in the file start from.
    - Returns: the validated value and the lines of its keys.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except ValueError:
        raise ConfigError(f"{file}: not valid TOML: a number has too many digits.") from None
    except RecursionError:
        raise ConfigError(f"{file}: values are nested too deeply.") from None
    try:
        lines = scan_lines(text)
        return _validated(data, model, lines, file, folder), lines
    except RecursionError:
        raise ConfigError(f"{file}: values are nested too deeply.") from None


def parse_document(
    document: Mapping[str, Any], model: type[_S], file: str, folder: Path
) -> tuple[_S, dict[KeyPath, int]]:
    """Validate data in the form of a TOML document; as :func:`parse_toml`, without lines."""
    return _validated(document, model, {}, file, folder), {}


def _validated(
    document: Mapping[str, Any], model: type[_S], lines: dict[KeyPath, int], file: str, folder: Path
) -> _S:
    data = freeze(dict(document))
    # Before anything else: other messages may quote what they are about.
    found = [
        Finding(file, line_of(lines, where), ".".join(map(str, where)), PASSWORD_RULE)
        for where in _passwords(data, ())
    ]
    if found:
        raise config_error(file, found)
    try:
        return model.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        raise config_error(file, problems(error, model, lines, file)) from None


def _passwords(value: object, where: KeyPath) -> Iterator[KeyPath]:
    """Yield where an address with a password stands."""
    if isinstance(value, str):
        if holds_password(value):
            yield where
        return
    inner: Iterable[tuple[Any, object]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, tuple):
        inner = enumerate(value)
    for key, item in inner:
        yield from _passwords(item, (*where, key))


def load_run_file(path: Path | str) -> RunFile:
    """Read a run file.

    `path`: a TOML file. Paths inside are relative to its folder and come back absolute.

    Raises `ConfigError` everything wrong with the form of the file, together.
    """
    path = Path(path)
    text = read_text(path, "run file")
    run_file, _ = parse_toml(text, RunFile, path.name, path.resolve().parent)
    return run_file
