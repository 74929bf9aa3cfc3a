"""The persons, units and places of a run, wherever they are: in this process, or dealt out by an engine."""

from __future__ import annotations

from typing import Protocol

from opendas.arrays import Ints
from opendas.phsafe.config import Config, Plan
from opendas.phsafe.counting import Progress, count_tables, exact_cubes
from opendas.phsafe.inputs.digest import bucket_digests, canonical_bytes
from opendas.phsafe.inputs.linking import link
from opendas.phsafe.inputs.records import Inputs
from opendas.phsafe.tables import Table
from opendas.phsafe.validate import Validation, validate

__all__ = ["Households", "LocalHouseholds"]


class Households(Protocol):
    """Restricted to the state filter. Confidential."""

    def validate(self, *, every_table: bool = False) -> Validation:
        """Check everything, as :func:`opendas.phsafe.validate.validate` does."""
        ...

    def canonical_bytes(self) -> bytes:
        """Return what the input tag is a keyed digest of; see :mod:`opendas.phsafe.inputs.digest`."""
        ...

    def count(self, plan: Plan, keys: dict[str, bytes]) -> dict[str, Ints]:
        """Return the cube of each table with a budget, after truncation; `keys` are those of selections."""
        ...

    def count_exactly(self, tables: dict[str, Table]) -> dict[str, Ints]:
        """Return the cube of each table as the non-private mode counts it."""
        ...


class LocalHouseholds:
    """All rows in this process.

    Parameters
    ----------
    inputs : Inputs
    config : Config
    progress : callable(stage, done, total), optional
    """

    def __init__(self, inputs: Inputs, config: Config, progress: Progress | None = None) -> None:
        self._inputs = inputs
        self._config = config
        self._linked = link(inputs, config.state_filter)
        self._progress = progress

    def validate(self, *, every_table: bool = False) -> Validation:
        """Check everything."""
        return validate(self._inputs, self._linked, self._config, every_table=every_table)

    def canonical_bytes(self) -> bytes:
        """Return what the input tag is a keyed digest of."""
        return canonical_bytes(bucket_digests(self._inputs))

    def count(self, plan: Plan, keys: dict[str, bytes]) -> dict[str, Ints]:
        """Return the cube of each table with a budget, after truncation."""
        return count_tables(plan, self._linked, keys, self._progress)

    def count_exactly(self, tables: dict[str, Table]) -> dict[str, Ints]:
        """Return the cube of each table as the non-private mode counts it."""
        return exact_cubes(tables, self._linked, len(self._config.state_filter))
