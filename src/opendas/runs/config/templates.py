"""Commented run files and product files to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from opendas.geography.states import State, find_state
from opendas.readers.pl94.fetch import pl94_url
from opendas.runs.config.guess import TableGuess
from opendas.runs.config.released import toml_key, toml_text, toml_value

__all__ = ["pl94_run_file", "pl94_run_files", "table_product_file", "table_run_file"]


def pl94_run_files(state: str, year: int) -> tuple[str, str, dict[str, str]]:
    """Return postal code, address of the input, and run files by name for a state's redistricting file.

    Raises
    ------
    ConfigError
        If there is no such state, or no file of that year.
    """
    found = find_state(state)
    postal = found.postal.lower()
    texts = {f"{postal}{year}-{kind}.toml": pl94_run_file(found, year, kind) for kind in ("persons", "units")}
    return postal, pl94_url(found, year), texts


def pl94_run_file(state: State, year: int, kind: str) -> str:
    """Return a run file for a state's official redistricting file.

    Parameters
    ----------
    state : State
    year : int
        2010 or 2020.
    kind : str
        ``persons`` or ``units``.
    """
    postal = state.postal.lower()
    out = f"{postal}{year}"
    name = f"{out}.pl.zip"
    people = kind == "persons"
    invariant = "The number of housing units of each block is published exactly, as in production."
    if people:
        invariant = 'drop_invariants = ["total"]     # the total is published exactly, unless dropped'
    return f"""\
# OpenDAS run file: {state.name} {year}, {kind}. Every key is explained in docs/run-file.md.
#
#   opendas fetch pl94 {postal} {year}
#   opendas plan {out}-{kind}.toml
#   opendas run {out}-{kind}.toml --out {out}

[run]
product    = "pl94-{kind}"
mechanism  = "discrete-gaussian"     # exact integer noise under zero-concentrated differential privacy
neighbours = "bounded"               # one {"person" if people else "housing unit"} replaced by another
estimator  = "topdown"               # or "informed": less error from the same measurements
# {invariant}

[input]
reader = "pl94-{year}"
path   = "{name}"{" " * (27 - len(name))}# beside this file; as downloaded, not unpacked

[geography]
root = "state"                       # one state is the whole of this run
spine = "standard"                   # or "optimized", "aian": made around legal areas; see opendas spine

[budget]
preset    = "pr2020-{kind}"{" " * (9 if people else 11)}# production's budget for a run rooted at a state
normalise = true                     # levels that the run does not have are dropped, the others rescaled
# rho     = "1"                      # another total; always in quotes, so that it is exact
"""


def _columns(guess: TableGuess) -> str:
    renamed = {name: column for name, column in guess.columns.items() if name != column}
    return f"columns = {toml_value(renamed)}\n" if renamed else ""


def _levels(guess: TableGuess) -> str:
    entries = [f"  {toml_value(level)}" for level in guess.level_entries()]
    return "[\n" + ",\n".join(entries) + ",\n]"


def table_product_file(guess: TableGuess, name: str) -> str:
    """Return a product file for a table of the user's own.

    Parameters
    ----------
    guess : TableGuess
    name : str
        Of the product.
    """
    attributes = "\n".join(f"{toml_key(a)} = {toml_value(levels)}" for a, levels in guess.attributes.items())
    single = list(guess.attributes) if len(guess.attributes) > 1 else []
    first = next(iter(guess.attributes))
    return f"""\
# OpenDAS product file, guessed from {guess.file}. Look for CHECK: a guess knows only the form of data.

[product]
name           = {toml_text(name)}
protected_unit = "record"            # what one row is: "patient", "voter", ...

# CHECK: the labels below were read from the data, and a release that shows them is stamped
# DOMAIN FROM RECORDS: a label that one record alone bears gives this record away. Put labels of a code
# book in their place, and write provenance = "code-book" (or "public"), or for each attribute by itself
# {{ age = "code-book", ... }}. Or let `opendas init table --rho` find the labels privately.
provenance     = "from-records"

# CHECK: every level that can occur, also one that no record of today has. The order is the order of output.
[attributes]
{attributes}

# Coarser groups of one attribute, for queries:
# [recodes.broad]
# attribute = {toml_text(first)}
# levels = {{ low = [...], high = [...] }}

# CHECK: which tables matter. They can be given budget of their own.
[queries]
groups = {toml_value(single)}

# Published exactly, by policy. Leave out unless a law demands it.
# [[invariants]]
# query    = "total"
# geolevel = {toml_text(guess.level_names[0])}
"""


def _unit_comment(guess: TableGuess) -> str:
    if guess.unit_id is None:
        return ""
    return f"""\
# CHECK: {guess.unit_id} seems to say whose a record is, and some have several. With unit_id the privacy loss
# is that of all records of one; at_most is how many of them are counted, and is published: decide it without
# looking at the records. Leave both out only if every row is somebody else.
"""


def _unit(guess: TableGuess) -> str:
    return "" if guess.unit_id is None else f"unit_id = {toml_text(guess.unit_id)}\nat_most = 3\n"


def _even(names: Sequence[str]) -> dict[str, Fraction]:
    return {name: Fraction(1, len(names)) for name in names}


def _query_shares(guess: TableGuess) -> Mapping[str, Fraction]:
    """Give the total a quarter, the attributes a quarter together, the cells the rest."""
    attributes = list(guess.attributes)
    if len(attributes) < 2:
        return {"total": Fraction(1, 4), "detailed": Fraction(3, 4)}
    shares = {"total": Fraction(1, 4)}
    shares.update({name: Fraction(1, 4 * len(attributes)) for name in attributes})
    return {**shares, "detailed": Fraction(1, 2)}


def table_run_file(guess: TableGuess, product_file: str, data_path: str) -> str:
    """Return a run file for a table of the user's own.

    Parameters
    ----------
    guess : TableGuess
    product_file, data_path : str
        As seen from the run file's folder.
    """
    count = f"count   = {toml_text(guess.count)}\n" if guess.count is not None else ""
    ignored = ", ".join(guess.ignored) or "none"
    return f"""\
# OpenDAS run file, guessed from {guess.file}. Look for CHECK.

[run]
product    = {toml_text(product_file)}
estimator  = "informed"              # the least error; "topdown" estimates as the 2020 Census did
neighbours = "bounded"               # one record replaced by another; "unbounded": one added or removed

# CHECK: one row is {"a number of records with the same values" if guess.count else "one record"}.
{_unit_comment(guess)}# Columns that were not taken: {ignored}.
[input]
reader  = {toml_text(guess.reader)}
path    = {toml_text(data_path)}
geocode = {toml_text(guess.geocode)}
{count}{_columns(guess)}{_unit(guess)}
# CHECK: the hierarchy, top first. A level is found by the first characters of the geocode, or by a column.
[geography]
levels = {_levels(guess)}

# CHECK: "from-records" publishes which leaves hold records. Better: a file that lists every leaf, the empty
# ones included, in a column named {guess.geocode}:   frame = "leaves.csv"
# and where levels and leaves come from:       provenance = "public" (or "code-book")
frame = "from-records"               # says its provenance itself: stamped DOMAIN FROM RECORDS

# CHECK: rho is the privacy loss of the whole release: smaller protects more. `opendas plan` shows the noise.
[budget]
rho = "1"
geolevels = {toml_value(_even(guess.level_names))}

[budget.queries]
"*" = {toml_value(_query_shares(guess))}
"""
