"""Commented run files and product files to start from."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from fractions import Fraction

from opendas.geography.states import State, find_state
from opendas.readers.pl94.fetch import pl94_url
from opendas.runs.config.released import toml_key, toml_text, toml_value
from opendas.runs.starting.guess import OTHER, TableGuess
from opendas.schema.attributes import listed
from opendas.schema.provenance import Discovery


def pl94_run_files(state: str, year: int) -> tuple[str, str, dict[str, str]]:
    """Return postal code, address of the input, and run files by name for a state's redistricting file.

    Raises `ConfigError` if there is no such state, or no file of that year.
    """
    found = find_state(state)
    postal = found.postal.lower()
    texts = {f"{postal}{year}-{kind}.toml": pl94_run_file(found, year, kind) for kind in ("persons", "units")}
    return postal, pl94_url(found, year), texts


def pl94_run_file(state: State, year: int, kind: str) -> str:
    """Return a run file for a state's official redistricting file.

    - `year`: 2010 or 2020.
    - `kind`: ``persons`` or ``units``.
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


def cef_run_files() -> dict[str, str]:
    """Return run files by name for census records of one state: redistricting data, then the DHC."""
    products = ("pl94-persons", "pl94-units", "dhc-persons", "dhc-units")
    return {f"{product}.toml": _cef_run_file(product) for product in products}


def _cef_run_file(product: str) -> str:
    people, is_dhc = product.endswith("persons"), product.startswith("dhc")
    earlier, preset = product.replace("dhc", "pl94"), f"pr2020-{product.removeprefix('pl94-')}"
    tie = f"""
[tie]
release = "{earlier}"{" " * (27 - len(earlier))}# OUT of {earlier}, run before: both agree in every block
"""
    return f"""\
# OpenDAS run file: {product} of census records. Every key is explained in docs/run-file.md.
#
#   opendas plan {product}.toml --read-records
#   opendas run {product}.toml --out {product}

[run]
product    = "{product}"
mechanism  = "discrete-gaussian"     # exact integer noise under zero-concentrated differential privacy
neighbours = "bounded"               # one {"person" if people else "unit"} replaced by another

[input]
reader = "cef"
path   = "CEF20_PER_*.txt"           # person records, 91 characters a line
units  = {{ path = "CEF20_UNIT_*.txt" }}   # unit records, 76 characters a line

[geography]
root  = "state"                      # one state is the whole of this run
spine = "{"dhc" if is_dhc else "standard"}"{" " * (25 if is_dhc else 20)}# see opendas spine
frame = "GRFC*.txt"                  # the GRF-C; leaves are its blocks with a unit

[budget]
preset = "{preset}"{" " * (26 - len(preset))}# production's budget for a run rooted at a state
{tie if is_dhc else ""}"""


def _on_one_line(name: str) -> str:
    """Return a name for a comment, which ends with its line: those of spreadsheets may have several."""
    return "".join(char if char.isprintable() else " " for char in name)


def _columns(guess: TableGuess) -> str:
    renamed = {name: column for name, column in guess.columns.items() if name != column}
    text = f"columns = {toml_value(renamed)}\n" if renamed else ""
    if guess.bins:
        text += (
            "# CHECK: where each level begins; the last has no end. Choose without looking at the records.\n"
            f"bins    = {toml_value({name: list(edges) for name, edges in guess.bins.items()})}\n"
        )
    if guess.other:
        text += f"other   = {toml_value(guess.other)}   # an empty field, and every value that is no level\n"
    return text


def _levels(guess: TableGuess) -> str:
    entries = [f"  {toml_value(level)}" for level in guess.level_entries()]
    return "[\n" + ",\n".join(entries) + ",\n]"


_READ_LABELS = """\
# CHECK: the labels below were read from the data, and a release that shows them is stamped
# DOMAIN FROM RECORDS: a label that only one record has reveals this record. Replace them with labels of a
# code book, and write provenance = "code-book" (or "public"), or for each attribute by itself
# { age = "code-book", ... }. Or let `opendas init table --rho` find the labels privately.
provenance     = "from-records"

# CHECK: list every level that can occur, also one that no record has today, in the order of output."""

_FOUND_LABELS = """\
# The labels below were found privately, by an act that the certificate adds to the totals: leave `discovery`
# as it is. Labels may be left out or put in another order.
provenance     = "private"
discovery      = {discovery}

# A value that was not found counts as "{other}" ([input] other in the run file)."""


def table_product_file(
    guess: TableGuess, name: str, discovery: Discovery | None = None, protected_unit: str = "record"
) -> str:
    """Return a product file for a table of the user's own.

    `discovery`: the act that found the labels; without it they were read from the records.
    """
    attributes = "\n".join(f"{toml_key(a)} = {toml_value(levels)}" for a, levels in guess.attributes.items())
    single = list(guess.attributes) if len(guess.attributes) > 1 else []
    first = next(iter(guess.attributes))
    labels, made = _READ_LABELS, "guessed" if discovery is None else "made"
    if discovery is not None:
        labels = _FOUND_LABELS.format(discovery=toml_value(discovery.to_dict()), other=OTHER)
    return f"""\
# OpenDAS product file, {made} from {_on_one_line(guess.file)}. Look for CHECK.

[product]
name           = {toml_text(name)}
protected_unit = {toml_text(protected_unit).ljust(19)} # what the guarantee protects: "patient", "voter", ...

{labels}
[attributes]
{attributes}

# Coarser groups of one attribute, for queries:
# [recodes.broad]
# attribute = {toml_text(first)}
# levels = {{ low = [...], high = [...] }}

# CHECK: list the tables that matter. Each can have its own share of the budget.
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
# CHECK: {_on_one_line(guess.unit_id)} seems to identify the unit of a record, and some units have several.
# With unit_id the privacy loss is that of all records of one unit; at_most is how many of them are counted,
# and is published: choose it without looking at the records. Remove both only if each row is a unit of its
# own, whatever this column says.
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


_READ_FRAME = """\
# CHECK: "from-records" publishes which leaves hold records. Better: a file that lists every leaf, the empty
# ones included, with a column for {columns}:   frame = "leaves.csv"
# and where levels and leaves come from:       provenance = "public" (or "code-book")
frame = "from-records"               # says its provenance itself: stamped DOMAIN FROM RECORDS"""

_FOUND_FRAME = """\
# Leaves and hierarchy were found privately, by an act that the certificate adds to the totals: leave
# `discovery` as it is. A record whose leaf was not found counts in the leaf "{other}:LEVEL:CODE" of the
# lowest unit above it that was found, else in the leaf "{other}".
frame      = {frame}
provenance = "private"
discovery  = {discovery}
other      = "{other}\""""


def table_run_file(
    guess: TableGuess,
    product_file: str,
    data_path: str,
    discovery: Discovery | None = None,
    frame_file: str = "",
) -> str:
    """Return a run file for a table of the user's own.

    - `product_file`, `data_path`, `frame_file`: as seen from the run file's folder; the last is the list of
      leaves, where they were discovered.
    - `discovery`: the act that found labels, leaves and hierarchy; without it they were read from the
      records.
    """
    made = "guessed" if discovery is None else "made"
    count = f"count   = {toml_text(guess.count)}\n" if guess.count is not None else ""
    left_out = (f"\n#   {_on_one_line(name)}: {why}" for name, why in guess.left_out.items())
    frame, other = _READ_FRAME.format(columns=_on_one_line(listed((*guess.upper_columns, guess.geocode)))), ""
    unit = "record" if guess.unit_id is None else "unit"
    loss = "whole release" if discovery is None else "run, to which the discovery adds its own"
    if discovery is not None:
        told = toml_value(discovery.to_dict())
        frame = _FOUND_FRAME.format(frame=toml_text(frame_file), discovery=told, other=OTHER)
        other = f"other   = {toml_value(dict.fromkeys(guess.attributes, OTHER))}   # what was not found\n"
    return f"""\
# OpenDAS run file, {made} from {_on_one_line(guess.file)}. Look for CHECK.

[run]
product    = {toml_text(product_file)}
estimator  = "topdown"               # or "informed": opendas plan tries both on synthetic records
neighbours = "bounded"               # one {unit} replaced by another; "unbounded": one added or removed

# CHECK: one row is {"a number of records with the same values" if guess.count else "one record"}.
{_unit_comment(guess)}# Columns that were not taken:{"".join(left_out) or " none"}
[input]
reader  = {toml_text(guess.reader)}
path    = {toml_text(data_path)}
geocode = {toml_text(guess.geocode)}
{count}{_columns(guess)}{other}{_unit(guess)}
# CHECK: the hierarchy, top first. A level is found by the first characters of the geocode, or by a column.
[geography]
levels = {_levels(guess)}

{frame}

# CHECK: rho is the privacy loss of the {loss}. A smaller rho protects more.
# `opendas plan` shows the noise.
[budget]
rho = "1"
geolevels = {toml_value(_even(guess.level_names))}

[budget.queries]
"*" = {toml_value(_query_shares(guess))}
"""


def frame_file(table: TableGuess, leaves: Sequence[Sequence[str]]) -> str:
    """Return a list of leaves as CSV: a column for each level above, and the geocode.

    `leaves`: the codes of each leaf's levels, top first, the leaf last.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*table.upper_columns, table.geocode])
    writer.writerows(leaves)
    return text.getvalue()
