"""The measurement plan of a run: everything its noise depends on but key and input."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from opendas.custody.ledger_entries import Loss
from opendas.errors import ConfigError
from opendas.phsafe.config import Config
from opendas.phsafe.sensitivity import LevelNoise, Sensitivity, plan_noise, total_loss
from opendas.phsafe.truncation import Truncation
from opendas.privacy.exact import canonical_json
from opendas.privacy.relations import Mechanism, Neighbours

__all__ = ["Plan"]

_FORMAT = "opendas phsafe plan 1"


@dataclass(frozen=True)
class Plan:
    """A configuration with the choices that the command line adds.

    Parameters
    ----------
    config : Config
    sensitivity : Sensitivity
    truncation : Truncation

    Raises
    ------
    ConfigError
        If the configuration gives no level a budget, or a budget to a table that sums a column.
    """

    config: Config
    sensitivity: Sensitivity = Sensitivity.PAPER
    truncation: Truncation = Truncation.KEYED

    def __post_init__(self) -> None:
        # A plain text would compare as another bound or selection further down.
        object.__setattr__(self, "sensitivity", Sensitivity(self.sensitivity))
        object.__setattr__(self, "truncation", Truncation(self.truncation))
        if self.config.mechanism is None or not self.config.measured:
            raise ConfigError(
                "privacy_budget: every budget is 0, so there is no table to produce; give a level a budget."
            )
        for table, _, _ in self.config.measured:
            if table.weight is not None:
                raise ConfigError(
                    f"privacy_budget.{table.name}: the table sums {table.weight.upper()}, which no "
                    "sensitivity here bounds; private tables count rows."
                )

    @property
    def mechanism(self) -> Mechanism:
        """Discrete Gaussian or discrete Laplace."""
        assert self.config.mechanism is not None
        return self.config.mechanism

    @cached_property
    def noise(self) -> tuple[LevelNoise, ...]:
        """Noise and losses of every table and level with a budget."""
        return plan_noise(self.config.measured, self.config.tau, self.mechanism, self.sensitivity)

    def loss(self, relation: Neighbours) -> Loss:
        """Return what the run is charged under a relation: by the bound that its noise was made for."""
        return total_loss(self.noise, self.sensitivity, relation)

    def digest(self) -> str:
        """Return 64 hexadecimal digits that name the plan."""
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
            "format": _FORMAT,
            "states": list(config.state_filter),
            "mechanism": self.mechanism.value,
            "sensitivity": self.sensitivity.value,
            "truncation": self.truncation.value,
            "tables": tables,
        }
        return hashlib.sha256(canonical_json(content)).hexdigest()
