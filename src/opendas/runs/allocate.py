"""Allocate the budget of a run, from public numbers: geounits of its spine, cells of its query groups.

What decides the allocation is the frame, which is public, and nothing that ``opendas plan`` does not open.
With counts of another, public data set the allocation can do a little better; then it says whose they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from opendas.allocation.after_least_squares_joint import (
    JointAllocation,
    allocate_queries_after_least_squares,
)
from opendas.allocation.histogram import CountHistogram, Level, unknown_counts
from opendas.allocation.joint import Pair, QueryAllocation, allocate_queries, pair_weights
from opendas.allocation.level_counts import LevelCounts
from opendas.budget.allocation import DEFAULT_DELTA, EVERY_OTHER, Budget
from opendas.budget.presets import preset
from opendas.custody.account import ALLOCATE
from opendas.custody.folders import write_atomic
from opendas.errors import ConfigError, DataError, PrivacyError, nearest
from opendas.geography.recipe import build_spine
from opendas.geography.spine import Spine
from opendas.privacy.exact import decimal_text, format_fraction, parse_fraction
from opendas.readers.input.spec import FRAME_FROM_RECORDS
from opendas.runs.config.released import toml_key, toml_value
from opendas.runs.config.words import checked_line
from opendas.runs.context.account import InputTagger, note_reading, tagger_of
from opendas.runs.context.run import Run

Number = Fraction | int | str

_PUBLIC = "public node counts: geounits of the frame on this spine, and cells of the query groups"


@dataclass(frozen=True, slots=True, eq=False)
class RunAllocation:
    """The allocated budget of a run."""

    allocation: QueryAllocation | JointAllocation

    def __repr__(self) -> str:
        budget = self.allocation.budget
        loss = f"{budget.mechanism.loss_name} {format_fraction(budget.total)}"
        return f"RunAllocation({loss} to {', '.join(budget.geolevels)})"

    def _repr_html_(self) -> str:
        from opendas.tables.frames import html_table

        budget = self.allocation.budget
        queries = dict.fromkeys(query for shares in budget.queries.values() for query in shares)
        rows = [("(geolevel)", *map(float, budget.geolevels.values()))]
        rows += [
            (query, *(float(budget.queries.get(level, {}).get(query, 0)) for level in budget.geolevels))
            for query in queries
        ]
        return html_table("Shares", ("query", *budget.geolevels), rows)

    def toml(self) -> str:
        """Return the ``[budget]`` section of a run file, exact, with the source."""
        return budget_section(self.allocation.budget, self.allocation.source)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of ``opendas allocate RUN.toml --json``."""
        return {**self.allocation.to_dict(), "toml": self.toml()}

    def write(self, run_file: Path | str, to: Path | str) -> None:
        """Write a run file with its ``[budget]`` replaced by this one.

        Raises
        ------
        ConfigError
            If `to` is the run file itself: what was written by hand is not overwritten.
        """
        run_file, to = Path(run_file), Path(to)
        if to.resolve() == run_file.resolve():
            raise ConfigError(f"--to: {to.name} is the run file itself; choose another name.")
        text = with_budget(run_file.read_text(encoding="utf-8"), self.toml())
        write_atomic(to, text.encode())


def allocate_run(
    run: Run,
    *,
    total: Number | None = None,
    mse: Number | None = None,
    weights: Mapping[str, float] | None = None,
    prior: LevelCounts | None = None,
    stand_in: Run | None = None,
    source: str | None = None,
    ledger: str | Path | None = None,
    after_least_squares: bool = False,
) -> RunAllocation:
    """Allocate the budget of a run over geolevels and query groups, from public numbers.

    By each measurement's error after clamping; or, with `after_least_squares`, by the variances of least
    squares over the run's tree, which uses no counts and takes only `total` and `weights`.

    Parameters
    ----------
    run : Run
        Its mechanism, neighbour relation, spine and query groups; its budget decides the total at most.
    total, mse : Fraction, int or str, optional
        A total other than that of the run file, or a target for the weighted sum of mean squared errors.
    weights : mapping, optional
        By geolevel, query group, or ``geolevel/query``; see :func:`~opendas.allocation.joint.pair_weights`.
    prior : LevelCounts, optional
        Public counts, with levels named ``geolevel/query``. Pairs without counts go by numbers of nodes.
    stand_in : Run, optional
        A run on public data with the same query groups, for instance those of an earlier census: its counts
        are read and used in place of `prior`.
    source : str, optional
        Where the counts of `prior` or `stand_in` come from; needed with them.
    ledger : path, optional
        A book, in which the reading of these counts is noted. The input of a stand-in finds a book that knows
        it by itself; counts of a `prior` are noted only in the book that is given.

    Raises
    ------
    ConfigError
        If no source is given for counts, or arguments do not fit together, or the stand-in is of another
        product.
    PrivacyError
        If the stand-in is the input of the run itself.
    DataError
        If the prior names pairs that the run does not have.
    """
    if after_least_squares:
        if (mse, prior, stand_in, source, ledger) != (None,) * 5:
            raise ConfigError("after_least_squares takes only total and weights beside it.")
        return _after_least_squares(run, total, weights or {})
    resolved = run.resolved
    pairs = public_pairs(run)
    if prior is not None and stand_in is not None:
        raise ConfigError("give a prior or a stand-in, not both.")
    if prior is not None or stand_in is not None:
        source = source or (prior.source if prior is not None else None)
        if not source or not source.strip():
            raise ConfigError(
                "source: say where these counts come from (--source). An allocation is published with the "
                "release: it may depend on public counts only, and readers should know on which."
            )
        source = checked_line(source, "source")
        if stand_in is not None or ledger is not None:
            read = InputTagger(()) if stand_in is None else tagger_of(stand_in)
            note_reading(ALLOCATE, read, product=run.product.name, ledger=ledger)
        pairs = _with_counts(pairs, prior.levels if prior is not None else _stand_in_levels(run, stand_in))
    elif source is not None:
        raise ConfigError("source: the allocation is made from the frame alone; no counts were given.")
    allocation = allocate_queries(
        pairs,
        resolved.levels,
        resolved.mechanism,
        source=source or f"{_PUBLIC}{demonstration(run)}",
        total=_total(run) if total is None and mse is None else total,
        mse=mse,
        weights=pair_weights(pairs, weights or {}),
        neighbours=resolved.neighbours,
        delta=_delta(run),
    )
    return RunAllocation(allocation)


def _after_least_squares(run: Run, total: Number | None, weights: Mapping[str, float]) -> RunAllocation:
    """Allocate by the variances of least squares over a run's tree."""
    run.check_algebra("allocate --after-least-squares")
    resolved = run.resolved
    if not resolved.mechanism.is_zcdp:
        raise ConfigError(
            "an allocation after least squares is found for discrete-gaussian noise; with "
            f"{resolved.mechanism} it is not convex. Leave the option out, or change [run] mechanism."
        )
    if resolved.estimator == "block-by-block":
        raise ConfigError("block-by-block estimation uses no tree: allocate without least squares.")
    if resolved.recipe.bypass is not None:
        raise ConfigError(
            "this spine bypasses parents, so that its geounits have different shares; an allocation after "
            "least squares is found for spines without the step bypass."
        )
    pairs = public_pairs(run)
    targets: dict[str, dict[str, float]] = {}
    measured: dict[str, list[str]] = {}
    for pair, weight in zip(pairs, pair_weights(pairs, weights), strict=True):
        targets.setdefault(pair.geolevel, {})[pair.query] = weight * pair.level.counts.nodes
        measured.setdefault(pair.geolevel, []).append(pair.query)
    found = allocate_queries_after_least_squares(
        run.product,
        _whole_spine(run),
        _total(run, "") if total is None else total,
        targets,
        measured=measured,
        neighbours=resolved.neighbours,
        delta=_delta(run),
    )
    return RunAllocation(replace(found, source=f"{found.source}{demonstration(run)}"))


def public_pairs(run: Run) -> tuple[Pair, ...]:
    """Return geolevels and query groups of a run with their public numbers of counts.

    Returns by geolevel from the top. Query groups are those that the run's budget measures, or all that the
    product declares where it has none. Invariants are marked: they need no budget.

    Notes
    -----
    On a spine with bypassing, an only child is not counted: it is not measured.
    """
    run.check_alone("allocate")
    bound = run.resolved.reader.contribution
    if bound is not None and bound.at_most > 1:
        raise ConfigError(
            "[input] unit_id: opendas allocate works for units of one record only. Leave out unit_id and "
            "at_most for this command. Unless the run file has distinct, the noise has the same shape with "
            "them as without."
        )
    spine = _whole_spine(run)
    product = run.product
    fixed = {
        (level, query)
        for query, declared in product.invariant_levels(spine).items()
        for level in range(declared + (spine.levels[declared].whole is None))
    }
    pairs = []
    for number, name in enumerate(spine.names):
        if run.resolved.estimator == "block-by-block" and number < len(spine.names) - 1:
            continue
        geounits = _measured(run, spine, number)
        for query in _query_names(run, name):
            counts = geounits * product.workload.group(query).size
            level = unknown_counts(f"{name}/{query}", counts, fixed=(number, query) in fixed)
            pairs.append(Pair(name, query, level))
    return tuple(pairs)


def count_pairs(run: Run) -> tuple[Pair, ...]:
    """Read the input of a run, and return geolevels and query groups with the counts themselves.

    The counts are those of the input: for data that are public, as an earlier census is by now. What is
    allocated from confidential counts cannot be published (docs/proofs/allocation.md).
    """
    spine, data = _whole_spine(run), run.read()
    counts = data.histogram.take(spine.leaf_order)
    pairs = []
    for number, name in enumerate(spine.names):
        units = counts.aggregate(spine.leaf_starts(number))
        for query in _query_names(run, name):
            group = run.product.workload.group(query)
            found = units.recoded(group.row_of_cell, group.size).counts
            empty = units.rows * group.size - len(found)
            seen = CountHistogram(np.append(found, 0), np.append(np.ones_like(found), empty))
            pairs.append(Pair(name, query, Level(f"{name}/{query}", seen)))
    return tuple(pairs)


def _whole_spine(run: Run) -> Spine:
    """Return the spine before bypassing, which needs the shares that are sought."""
    return build_spine(run.frame, run.resolved.recipe, lambda spine: spine)


def _measured(run: Run, spine: Spine, number: int) -> int:
    """Return how many geounits of a level are measured, at least one."""
    level = spine.levels[number]
    if run.resolved.recipe.bypass is None or number == 0:
        return len(level)
    return max(1, int(np.sum(np.bincount(level.parent)[level.parent] > 1)))


def _query_names(run: Run, geolevel: str) -> Sequence[str]:
    """Return the query groups that the run measures at a geolevel, in the order of the product."""
    spec, product = run.resolved.budget, run.product
    given: Mapping[str, Mapping[str, Any]] | None = spec.queries
    if given is None and spec.preset is not None:
        given = preset(spec.preset).queries
    if given is None:
        return product.query_names
    other = run.resolved.stand_ins.get(geolevel, geolevel)
    shares = given.get(geolevel, given.get(other, given.get(EVERY_OTHER)))
    if shares is None:
        return product.query_names
    wanted = {product.workload.canonical(name) for name, share in shares.items() if Fraction(share) > 0}
    return [name for name in product.query_names if name in wanted]


def _total(run: Run, other: str = ", or --mse") -> Number:
    spec = run.resolved.budget
    name = run.resolved.mechanism.loss_name
    given = spec.rho if name == "rho" else spec.epsilon
    if given is not None:
        return given
    if spec.preset is not None and name == "rho":
        return preset(spec.preset).rho
    raise ConfigError(f"[budget] has no {name}: give --total{other}.")


def _delta(run: Run) -> Fraction:
    given = run.resolved.budget.delta
    return DEFAULT_DELTA if given is None else parse_fraction(given, "delta")


def demonstration(run: Run) -> str:
    """Say where a frame came from that is no public list."""
    if run.resolved.reader.frame == FRAME_FROM_RECORDS:
        return "; the frame was taken from the records, which publishes its leaves"
    if run.reader.frame()[1]:
        return "; the frame was derived from the input (DEMONSTRATION FRAME)"
    return ""


def _stand_in_levels(run: Run, stand_in: Run | None) -> tuple[Level, ...]:
    if stand_in is None:
        return ()
    own, other = (
        {Path(str(path)).resolve() for path in each.resolved.reader.paths} for each in (run, stand_in)
    )
    if own & other:
        raise PrivacyError(
            "the stand-in reads the input of the run itself: an allocation computed from the counts that it "
            "protects would reveal something about them. Use public data, or leave out --stand-in."
        )
    if run.product.schema != stand_in.product.schema:
        raise ConfigError(
            f"the stand-in is a run of {stand_in.product.name}, whose attributes and levels are not those of "
            f"{run.product.name}: counts of one say nothing about the other."
        )
    wanted = {pair.name for pair in public_pairs(run)}
    return tuple(pair.level for pair in count_pairs(stand_in) if pair.name in wanted)


def _with_counts(pairs: Sequence[Pair], levels: Sequence[Level]) -> tuple[Pair, ...]:
    """Put known counts in place of numbers of nodes, scaled to as many."""
    names = [pair.name for pair in pairs]
    for level in levels:
        if level.name not in names:
            raise DataError(
                f"the prior has counts of {level.name!r}; levels are named geolevel/query. "
                f"{nearest(level.name, names)}"
            )
    if not any(level.name in names for level in levels):
        raise DataError("none of the given counts is of a geolevel and query group of this run.")
    return tuple(_filled(pair, {level.name: level for level in levels}) for pair in pairs)


def _filled(pair: Pair, known: Mapping[str, Level]) -> Pair:
    """Return a pair with known counts, as many as the run releases; invariants stay marked.

    Numbers of nodes decide an allocation and counts hardly: those of an earlier geography as they are would
    be worse than none.
    """
    level = known.get(pair.name)
    if level is None:
        return pair
    values, mult = level.counts.values, level.counts.mult
    ends = np.rint(np.cumsum(mult) * (pair.level.counts.nodes / level.counts.nodes)).astype(np.int64)
    counts = CountHistogram(values, np.diff(ends, prepend=0))
    return Pair(pair.geolevel, pair.query, replace(level, counts=counts, fixed=pair.level.fixed))


def budget_section(budget: Budget, source: str | None = None) -> str:
    """Write a budget as the ``[budget]`` section of a run file, exact, with the source of its shares."""
    lines = [
        "[budget]",
        *([] if source is None else [f"source = {toml_value(source)}"]),
        f"{budget.mechanism.loss_name} = {_decimal(budget.total)}",
        *([f"delta = {_decimal(budget.delta)}"] if budget.delta != DEFAULT_DELTA else []),
        f"geolevels = {_shares(budget.geolevels)}",
        "",
        "[budget.queries]",
        *(
            f"{toml_key(level)} = {_shares(shares)}"
            for level, shares in budget.queries.items()
            if budget.geolevels[level]
        ),
    ]
    return "\n".join(lines) + "\n"


def _decimal(value: Fraction) -> str:
    """Write a number for TOML: as a decimal where that is exact and short, else as a fraction."""
    return toml_value(decimal_text(value, 20) or format_fraction(value))


def _shares(shares: Mapping[str, Fraction]) -> str:
    return "{ " + ", ".join(f"{toml_key(name)} = {_decimal(share)}" for name, share in shares.items()) + " }"


def with_budget(text: str, section: str) -> str:
    """Return the text of a run file with its ``[budget]`` sections replaced.

    `section`: as :func:`budget_section` writes it.
    """
    return "".join(_other_sections(text.splitlines(keepends=True))).rstrip("\n") + "\n\n" + section


def _other_sections(lines: Sequence[str]) -> Iterator[str]:
    budget = False
    for line in lines:
        header = line.split("#")[0].strip()
        # An inner line of a list of lists starts with a bracket too, but ends with a comma or has no name.
        if header.startswith("[") and header.endswith("]") and "=" not in header:
            name = header.strip("[").split("]")[0].strip()
            if name[:1].isalpha():
                budget = name == "budget" or name.startswith("budget.")
        if not budget:
            yield line
