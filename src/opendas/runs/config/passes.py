"""The tables of passes in run files and product files."""

from __future__ import annotations

from collections.abc import Mapping

from opendas.errors import ConfigError
from opendas.schema.product import Passes
from opendas.schema.query_groups import Workload

__all__ = ["pass_table"]


def pass_table(given: Mapping[str, Passes], workload: Workload, kind: str) -> dict[str, Passes]:
    """Check a table of passes and write its query groups in canonical form.

    Parameters
    ----------
    given : mapping of geolevel to passes
        Keys are geolevels, ``root``, ``leaf`` or ``"*"``.
    workload : Workload
    kind : str
        ``"least_squares"`` or ``"rounder"``. Only the former knows the word ``rest``; the latter ends with a
        pass that rounds the cells themselves.

    Returns
    -------
    dict

    Raises
    ------
    ConfigError
        If a query group is unknown, a geolevel has no pass, or rounding leaves the cells open.
    """
    table: dict[str, Passes] = {}
    for geolevel, passes in given.items():
        if not passes or not all(passes):
            raise ConfigError(f"geolevel {geolevel!r}: every pass names at least one query group.")
        table[geolevel] = tuple(
            tuple(
                "rest" if name == "rest" and kind == "least_squares" else workload.canonical(name)
                for name in names
            )
            for names in passes
        )
        if kind == "rounder" and "detailed" not in table[geolevel][-1]:
            raise ConfigError(f'geolevel {geolevel!r}: the last pass of the rounder includes "detailed".')
    return table
