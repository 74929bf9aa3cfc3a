"""Read the published configuration, ``config.json``, strictly, with budgets as exact decimals.

One error reports every mistake in a file. As in the published program, unknown keys give a warning and are
ignored. What that program accepts by accident (a tau of zero or ``true``, a repeated key, a budget for a
level that a table does not have) is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from opendas.custody.folders import at_once
from opendas.custody.ledger_entries import INFINITE, Loss
from opendas.errors import ConfigError, EnvironmentFailure, nearest
from opendas.phsafe.inputs.levels import PUERTO_RICO, STATE_CODES, Level, find_level
from opendas.phsafe.tables import TABLES, Table, find_table
from opendas.phsafe.tables.sensitivity import LevelNoise, Sensitivity, plan_noise, total_loss
from opendas.phsafe.truncation import Truncation
from opendas.privacy.exact import canonical_json, parse_fraction
from opendas.privacy.relations import LARGEST_LOSS, Mechanism, Neighbours

_log = logging.getLogger(__name__)

READERS = ("csv", "cef")
_MECHANISMS = {"zcdp": Mechanism.DISCRETE_GAUSSIAN, "puredp": Mechanism.DISCRETE_LAPLACE}
_PLAN_FORMAT = "opendas phsafe plan 1"
_TAU = re.compile("[1-9][0-9]{0,5}")
_KEYS = ("privacy_budget", "tau", "state_filter", "reader", "privacy_defn")


class Mode(StrEnum):
    """Modes of ``opendas phsafe``."""

    PRIVATE = "private"
    NON_PRIVATE = "non-private"
    VALIDATE = "validate"


@dataclass(frozen=True, slots=True)
class Config:
    """A parsed configuration."""

    state_filter: tuple[str, ...]  # two-digit FIPS codes of the states in the region grid, in order
    reader: str  # ``csv`` or ``cef``
    # Discrete Gaussian under zCDP, discrete Laplace under pure differential privacy. This and the next two
    # are None if a configuration for the non-private mode omits them.
    mechanism: Mechanism | None
    # rho or epsilon by table and level, positive or "infinity"; levels of budget zero and tables without a
    # level are left out.
    budgets: Mapping[str, Mapping[Level, Loss]]
    tau: Mapping[str, int]  # largest number of persons counted of a household, per table of persons
    tables: tuple[Table, ...] = TABLES  # the measured tables that the configuration may name

    def __post_init__(self) -> None:
        if len({table.name for table in self.tables}) < len(self.tables):
            raise ConfigError(
                "two tables are declared under one name, so they would share their noise; rename one of them."
            )

    @property
    def measured(self) -> tuple[tuple[Table, Level, Loss], ...]:
        """Tables and levels with a budget, in the order of the published program."""
        return tuple(
            (table, level, self.budgets[table.name][level])
            for table in self.tables
            for level in table.levels
            if level in self.budgets.get(table.name, {})
        )

    @property
    def is_infinite(self) -> bool:
        """Whether any level is released without noise."""
        return any(loss == INFINITE for _, _, loss in self.measured)


def read_config(path: Path, mode: Mode, tables: tuple[Table, ...] = TABLES) -> Config:
    """Read a configuration file.

    - `mode`: the non-private mode reads ``state_filter`` and ``reader`` only.
    - `tables`: the measured tables; an agency adds its own.
    """
    try:
        with open(path, encoding="utf-8-sig", opener=at_once) as file:
            text = file.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise ConfigError(f"there is no configuration file {path}.") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not text in UTF-8. The first argument must be the JSON configuration."
        ) from None
    except OSError as error:
        raise EnvironmentFailure(f"could not read {path}: {error.strerror or 'unknown reason'}.") from None
    return parse_config(text, mode, tables, name=path.name)


def parse_config(
    text: str, mode: Mode, tables: tuple[Table, ...] = TABLES, *, name: str = "config.json"
) -> Config:
    """Parse the text of a configuration; see :func:`read_config`."""
    try:
        document = json.loads(
            text,
            parse_float=_Number,
            parse_int=_Number,
            parse_constant=_Number,
            object_pairs_hook=_Object,
        )
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{name}, line {error.lineno}, column {error.colno}: this is not valid JSON ({error.msg})."
        ) from None
    except RecursionError:
        raise ConfigError(f"{name}: objects are nested too deeply.") from None
    if not isinstance(document, _Object):
        raise ConfigError(f"{name}: expected one JSON object with the keys {', '.join(_KEYS)}.")
    checker = _Checker(tables)
    config = checker.config(document, mode)
    if checker.problems:
        raise ConfigError("\n  ".join([f"{name} is not a usable configuration:", *checker.problems]))
    return config


class _Number(str):
    """A number as written; a type of its own, because JSON texts are str too."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """An object that records repeated keys."""

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        listed = list(pairs)
        super().__init__(listed)
        names = [key for key, _ in listed]
        self.repeated = sorted({key for key in names if names.count(key) > 1})


class _Checker:
    """Collects every mistake of a configuration."""

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.tables = tables
        self.problems: list[str] = []

    def config(self, document: _Object, mode: Mode) -> Config:
        self._once("", document)
        for key in document:
            if key not in _KEYS:
                _log.warning("configuration: the key %r is unknown and ignored", key)
        wanted = ("state_filter", "reader") if mode is Mode.NON_PRIVATE else _KEYS
        for key in wanted:
            if key not in document:
                self._note(key, "is missing")
        states = self._states(document["state_filter"]) if "state_filter" in document else ()
        reader = self._word("reader", document.get("reader"), READERS) if "reader" in document else "csv"
        mechanism, budgets, tau = None, {}, {}
        if mode is not Mode.NON_PRIVATE:
            if "privacy_defn" in document:
                mechanism = _MECHANISMS.get(
                    self._word("privacy_defn", document["privacy_defn"], tuple(_MECHANISMS))
                )
            if "privacy_budget" in document:
                budgets = self._budgets(document["privacy_budget"])
            if "tau" in document:
                tau = self._taus(document["tau"])
        return Config(states, reader, mechanism, budgets, tau, self.tables)

    def _note(self, where: str, what: str) -> None:
        self.problems.append(f"{where}: {what}." if where else f"{what}.")

    def _once(self, where: str, value: _Object) -> None:
        for key in value.repeated:
            self._note(f"{where}.{key}".lstrip("."), "is given twice")

    def _word(self, where: str, value: Any, words: tuple[str, ...]) -> str:
        if type(value) is str and value in words:
            return value
        self._note(where, f"expected {' or '.join(repr(word) for word in words)}, found {_shown(value)}")
        return words[0]

    def _states(self, value: Any) -> tuple[str, ...]:
        where = "state_filter"
        if not isinstance(value, list) or not value:
            self._note(where, f"expected a list of two-digit state codes, found {_shown(value)}")
            return ()
        unknown = [_shown(code) for code in value if type(code) is not str or code not in STATE_CODES]
        if unknown:
            self._note(where, f"no state has the code {', '.join(unknown)}; write two digits in quotes")
            return ()
        if len(set(value)) < len(value):
            self._note(where, "a state is listed twice")
        if PUERTO_RICO in value and len(set(value)) > 1:
            self._note(where, f"Puerto Rico ({PUERTO_RICO}) is a run of its own; list it alone")
        return tuple(sorted(set(value)))

    def _names(self, where: str, value: Any, wanted: tuple[str, ...]) -> dict[str, Any]:
        """Return the entries of an object that must have exactly the keys `wanted`."""
        if not isinstance(value, _Object):
            self._note(where, f"expected an object, found {_shown(value)}")
            return {}
        self._once(where, value)
        for key in value:
            if key not in wanted:
                self._note(f"{where}.{key}", f"is unknown; {nearest(key, wanted).rstrip('?.')}")
        for key in wanted:
            if key not in value:
                self._note(f"{where}.{key}", "is missing")
        return {key: value[key] for key in wanted if key in value}

    def _budgets(self, value: Any) -> dict[str, dict[Level, Loss]]:
        names = tuple(table.name for table in self.tables)
        budgets: dict[str, dict[Level, Loss]] = {}
        for name, levels in self._names("privacy_budget", value, names).items():
            table = find_table(name, self.tables)
            assert table is not None
            found: dict[Level, Loss] = {}
            wanted = tuple(level.name for level in table.levels)
            for key, amount in self._names(f"privacy_budget.{name}", levels, wanted).items():
                level, loss = find_level(key), self._budget(f"privacy_budget.{name}.{key}", amount)
                if level is not None and loss is not None and loss != 0:
                    found[level] = loss
            if found:
                budgets[name] = found
        return budgets

    def _budget(self, where: str, value: Any) -> Loss | None:
        if not isinstance(value, _Number):
            self._note(where, f"expected a number, found {_shown(value)}")
            return None
        if value == "Infinity":
            return INFINITE
        try:
            exact = parse_fraction(str(value), where)
        except ConfigError:
            exact = Fraction(-1)
        if 0 <= exact <= LARGEST_LOSS:
            return exact
        wanted = "of at least 0" if exact < 0 else "up to 1e15, or Infinity"
        self._note(where, f"expected a number {wanted}, found {_shown(value)}")
        return None

    def _taus(self, value: Any) -> dict[str, int]:
        taus: dict[str, int] = {}
        wanted = tuple(table.name for table in self.tables if table.has_tau)
        for name, given in self._names("tau", value, wanted).items():
            if not isinstance(given, _Number) or not _TAU.fullmatch(given):
                self._note(f"tau.{name}", f"expected an integer from 1 to 999999, found {_shown(given)}")
            else:
                taus[name] = int(given)
        return taus


def _shown(value: Any) -> str:
    """Return a short text for a value of the configuration, which is public."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, _Number):
        return str(value)[:40]
    if isinstance(value, str):
        return repr(value[:40])
    return "a list" if isinstance(value, list) else "an object"


@dataclass(frozen=True)
class Plan:
    """A configuration with the command line's choices: all that fixes the noise except key and input."""

    config: Config
    sensitivity: Sensitivity = Sensitivity.PAPER
    truncation: Truncation = Truncation.KEYED

    def __post_init__(self) -> None:
        # A plain str would later compare unequal to the enum member.
        object.__setattr__(self, "sensitivity", Sensitivity(self.sensitivity))
        object.__setattr__(self, "truncation", Truncation(self.truncation))
        if self.config.mechanism is None or not self.config.measured:
            raise ConfigError(
                "privacy_budget: every budget is 0, so there is no table to produce. Give at least one level "
                "a budget."
            )
        for table, _, _ in self.config.measured:
            if table.weight is not None:
                raise ConfigError(
                    f"privacy_budget.{table.name}: the table sums {table.weight.upper()}, and no "
                    "sensitivity bound is known for such sums. A private table must count rows."
                )

    @property
    def mechanism(self) -> Mechanism:
        """Discrete Gaussian or discrete Laplace."""
        assert self.config.mechanism is not None
        return self.config.mechanism

    @cached_property
    def noise(self) -> tuple[LevelNoise, ...]:
        """Noise and losses of every table and level that has a budget."""
        return plan_noise(self.config.measured, self.config.tau, self.mechanism, self.sensitivity)

    def loss(self, relation: Neighbours) -> Loss:
        """Return the loss charged for the run under a relation, by the bound that calibrated its noise."""
        return total_loss(self.noise, self.sensitivity, relation)

    def digest(self) -> str:
        """Return the plan's digest, 64 hexadecimal digits."""
        config = self.config
        tables = [
            {
                "name": table.name,
                "kind": table.kind.value,
                "cells": list(table.cells),
                "groups": None if table.iterates_by is None else table.iterates_by.value,
                "levels": {level.name: str(loss) for level, loss in config.budgets[table.name].items()},
                "tau": config.tau.get(table.name),
            }
            for table in config.tables
            if table.name in config.budgets
        ]
        content = {
            "format": _PLAN_FORMAT,
            "states": list(config.state_filter),
            "mechanism": self.mechanism.value,
            "sensitivity": self.sensitivity.value,
            "truncation": self.truncation.value,
            "tables": tables,
        }
        return hashlib.sha256(canonical_json(content)).hexdigest()
