"""Run files of made data."""

from __future__ import annotations

from opendas.geography.frame import CENSUS_PREFIX, official_geolevels

__all__ = ["run_file"]


def run_file(
    product: str,
    *,
    made: str,
    path: str,
    root: str = "state",
    spine: str = "standard",
    preset: str,
    note: str,
) -> str:
    """Return the text of a run file for the ``histogram`` reader.

    Parameters
    ----------
    product : ``"persons"`` or ``"units"``
    made : str
        What was made, for the first line.
    path : str
        Of the counts, beside the run file; so is ``frame.parquet``.
    root : str
        Topmost geolevel.
    spine : str
    preset, note : str
        Budget, and what is said of it.
    """
    levels = "\n".join(
        f'    {{ name = "{name}", prefix = {CENSUS_PREFIX[name]} }},'
        for name in official_geolevels(root, "block")
    )
    label = {"persons": "People", "units": "Housing units"}[product]
    return f"""\
# {label} of a {made}. Nobody's data.

[run]
product = "pl94-{product}"
mechanism = "discrete-gaussian"
neighbours = "bounded"

[input]
reader = "histogram"
path = "{path}"
geocode = "GEOID"
count = "count"
units = {{ path = "frame.parquet", geocode = "GEOID" }}   # hu, gq1 ... gq7

[geography]
spine = "{spine}"
frame = "frame.parquet"     # every block, the empty ones included
levels = [                  # the official levels, by characters of the geocode
{levels}
]

[budget]
preset = "{preset}"    # {note}
"""
