"""Private discovery of a table's domain, apart from any run: read, charge, draw once, forget the key.

The caller names the columns; they are never chosen by their values. The act stands in a ledger before
anything is drawn; its key comes from the operating system and is written nowhere, so that what was drawn
cannot be drawn again: a second discovery is a second act. Argument: docs/proofs/domain-discovery.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from secrets import token_hex

import numpy as np

from opendas.custody.books import book_of
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_entries import LedgerEntry
from opendas.custody.run_key import RunKey
from opendas.errors import ConfigError
from opendas.measurement.discovery import DiscoveryPlan, discover
from opendas.privacy.exact import canonical_json, format_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.readers.counting.others import other_leaf
from opendas.readers.counting.values import Value, count_values
from opendas.runs.context.account import InputTagger, check_given, find_book
from opendas.runs.starting.guess import OTHER, TableGuess, in_order
from opendas.schema.provenance import Discovery
from opendas.version import __version__

_LONGEST = 100
_LARGEST_DELTA = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True)
class FoundDomain:
    """What a discovery found: private, and hence fit to be shown."""

    columns: TableGuess  # with the labels that were found, and ``other``, as levels of each attribute
    # A row a leaf, ascending by leaf: the codes of the levels above, top first, and the leaf's. Those of
    # :func:`opendas.readers.counting.others.other_leaf` included.
    leaves: tuple[tuple[str, ...], ...]
    discovery: Discovery
    least: int  # a value of so many records is found with a probability of 90 % at least
    ledger: Path  # where the act stands


def discover_domain(
    path: Path,
    columns: TableGuess,
    *,
    name: str,
    protected_unit: str,
    rho: Fraction,
    delta: Fraction,
    own_ledger: Path,
    book: Path | None = None,
) -> FoundDomain:
    """Find labels, leaves and hierarchy of a table privately: one act, charged before it draws.

    - `path`: CSV or Parquet.
    - `columns`: what each column is, declared.
    - `rho`, `delta`: the loss of the act, where one record is replaced.
    - `own_ledger`: where the act is entered if the data set has no book; made if it is not there.
    - `book`: the book of the data set; by default the one that knows the file, if there is one.

    Raises `ConfigError` if rho or delta are out of range, or `book` is no book; `DataError` if the table
    cannot be read; `PrivacyError` if the ledger refuses the act: then nothing was drawn.
    """
    if delta > _LARGEST_DELTA:
        raise ConfigError(
            f"--delta {format_fraction(delta)}: with this probability a value that only one record has may "
            f"be shown; at most {float(_LARGEST_DELTA):g} is allowed."
        )
    labels = [(column,) for column in columns.columns.values()]
    above = columns.upper_columns
    paths = [above[: depth + 1] for depth in range(len(above))] + [(*above, columns.geocode)]
    words = [f"labels of {name}" for name in columns.columns] + [" > ".join(path) for path in paths]
    plan = DiscoveryPlan(Discovery(token_hex(16), rho, delta), tuple(words))
    counts = count_values(path, labels, _is_label, columns.count)
    counts += count_values(path, paths, _is_path, columns.count)
    ledger, tags = _account(path, own_ledger, book)
    passed = _charged(counts, plan, name, protected_unit, ledger, tags)
    found = zip(columns.columns, passed[: len(labels)], strict=True)
    attributes = {name: (*in_order(value for (value,) in each), OTHER) for name, each in found}
    leaves = _leaves(passed[len(labels) :], columns.level_names[1:-1])
    table = replace(columns, attributes=attributes)
    return FoundDomain(table, leaves, plan.discovery, plan.found_from(), ledger.path)


def _account(path: Path, own_ledger: Path, given: Path | None) -> tuple[Ledger, tuple[str, ...]]:
    """Return the ledger of the data set, and the tags of the file under the key of its book."""
    tagger = InputTagger((path,))
    book = None if given is None else book_of(given)
    if book is not None:
        check_given(book, tagger)
    book = book or find_book(tagger)
    if book is None:
        return Ledger.beside(own_ledger), ()
    return Ledger.beside(book.path), tagger(book.key)


def _charged(
    counts: Sequence[Mapping[Value, int]],
    plan: DiscoveryPlan,
    name: str,
    protected_unit: str,
    ledger: Ledger,
    tags: tuple[str, ...],
) -> list[dict[Value, int]]:
    """Enter the act into the ledger, draw, and return the values that passed with their noisy counts."""
    key = RunKey.generate()
    entries = [[[*value, number] for value, number in each.items()] for each in counts]
    tag, run_id, digest = key.tag(canonical_json(entries)), token_hex(16), plan.digest()
    ledger.intend(
        LedgerEntry(
            run_id=run_id,
            product=f"{name}, its domain",
            key_commitment=key.commitment(),
            input_tag=tag,
            plan_digest=digest,
            mechanism=Mechanism.DISCRETE_GAUSSIAN,
            loss=plan.discovery.loss(Neighbours.BOUNDED),
            relation=Neighbours.BOUNDED,
            protected_unit=protected_unit,
            version=__version__,
            delta=plan.discovery.delta,
            other_relations={Neighbours.UNBOUNDED: plan.discovery.loss(Neighbours.UNBOUNDED)},
            inputs=tags,
        )
    )
    noise_key = key.derive("discovery", bytes.fromhex(digest), bytes.fromhex(tag))
    passed = discover([np.array(list(each.values()), np.int64) for each in counts], plan, noise_key)
    ledger.finished(run_id)
    found = []
    for each, those in zip(counts, passed, strict=True):
        values = list(each)
        found.append(dict(zip((values[k] for k in those.bins), those.noisy.tolist(), strict=True)))
    return found


def _is_label(value: Value) -> bool:
    """Whether a value can be a label: a rule about the value itself, whatever other records have."""
    (text,) = value
    return 0 < len(text) <= _LONGEST and text.isprintable() and text == text.strip() and text != OTHER


def _is_path(value: Value) -> bool:
    """Whether all codes of a path can be geocodes, and none stands for other leaves."""
    return all(_is_label((code,)) and code.isascii() and not code.startswith(f"{OTHER}:") for code in value)


def _leaves(paths: Sequence[Mapping[Value, int]], levels: Sequence[str]) -> tuple[Value, ...]:
    """Return the rows of the frame: the leaves that were found, and one for the others of each unit.

    A code has one place: that of the largest noisy count. Units above what was found are found.

    - `paths`, sequence of mapping of path to noisy count: paths down to each level, top first, the leaf last.
    - `levels`: names of the levels above the leaf.
    """
    kept: list[dict[str, Value]] = []
    for depth, own in enumerate(paths):
        wanted = {path[: depth + 1] for deeper in paths[depth:] for path in deeper}
        placed: dict[str, Value] = {}
        for path in sorted(wanted, key=lambda path: (-own.get(path, 0), path)):
            if depth == 0 or kept[-1].get(path[-2]) == path[:-1]:
                placed.setdefault(path[-1], path)
        kept.append(placed)
    leaves = list(kept[-1].values())
    for level, units in zip(levels, kept[:-1], strict=True):
        for code, path in units.items():
            leaves.append((*path, *[other_leaf(OTHER, level, code)] * (len(paths) - len(path))))
    leaves.append((OTHER,) * len(paths))
    return tuple(sorted(leaves, key=itemgetter(-1)))
