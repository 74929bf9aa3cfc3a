"""Beside the reference implementation of BlueDown, on one noisy measurement file.

    python experiments/bluedown.py --peer CHECKOUT --peer-python PY [--blocks 1000] [--seed 1] [--to FOLDER]

BlueDown is the method of Ghazi and others (2026), *Denoising the US Census: Succinct Block Hierarchical
Regression*; `CHECKOUT` is a checkout of ``census-bluedown``, which they published under the Apache licence,
and `PY` a Python with what it requires. Both read the same file, of the Census Bureau's layout, made from
`opendas measure` of a synthetic state with the production queries and the preset of one state. The state is
the root of the tree for both.

First the estimates of least squares, for three problems: ``plain``, the measurements alone; ``masks``, given
the group quarters types that geounits have and that no minor lives in nursing homes; ``total``, also given
the exact total of the state. With ``--constrained`` then the counts that both make of it. Seconds are those
of a processor, with one thread, reading and writing files left out but for `opendas estimate`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from bluedown_memory import most_memory
from experiment import arguments, deliver, load, markdown, note

import opendas as od
from opendas.constraints.table import LevelConstraints
from opendas.demo import write_demo
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.bureau_writing import FOLDERS, bureau_geocodes
from opendas.files.release_folder import ReleaseFolder
from opendas.files.release_tree import noisy_tree
from opendas.intervals.noisy_tree import NoisyTree
from opendas.intervals.rows import Rows
from opendas.intervals.tree_estimates import TreeEstimates
from opendas.runs.context.run import Run
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

PEER = Path(__file__).resolve().with_name("bluedown_peer.py")
PRODUCT = "pl94-persons"
PROBLEMS = ("plain", "masks", "total")
ESTIMATORS = ("topdown", "informed")
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
TINY = 1e-6
"""A standard error below this is that of something exact."""

Floats = npt.NDArray[np.float64]
Pair = tuple[Floats, Floats]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program took: seconds of one processor, and the most memory, in MiB."""

    seconds: float
    peak: float

    def __str__(self) -> str:
        """Seconds and MiB."""
        return f"{self.seconds:,.2g} s, {self.peak:,.0f} MiB"


class Held:
    """Answers that are read once and held, as the peer holds them; an ``AnswerSource``."""

    def __init__(self, tree: NoisyTree) -> None:
        self._values = [tree.full(number, 0, len(level)) for number, level in enumerate(tree.levels)]

    def full(self, level: int, first: int, geounits: int) -> list[npt.NDArray[np.int64]]:
        """Return all noisy answers of consecutive geounits."""
        return [values[first : first + geounits] for values in self._values[level]]


def problem(tree: NoisyTree, name: str) -> NoisyTree:
    """Return a tree with only what one of the problems is given."""
    if name == "total":
        return tree
    table = tree.constraints
    product = replace(tree.product, invariants=())
    levels = tuple(LevelConstraints(level.lower, level.upper, ()) for level in table.levels)
    if name == "plain":
        product = replace(product, bounds=(), structural_zeros=())
        none = table.bound_cells[:0]
        levels = tuple(LevelConstraints(level.lower[:, :0], level.upper[:, :0], ()) for level in levels)
        table = replace(table, bound_names=(), bound_cells=none, possible=product.possible)
    return replace(tree, product=product, constraints=replace(table, levels=levels))


def measured_queries(tree: NoisyTree) -> dict[str, QueryGroup]:
    """Return the query groups measured anywhere, by name, in the order of the product."""
    found = {query.name: query for level in tree.levels for query in level.queries}
    return {name: found[name] for name in tree.product.query_names if name in found}


def our_estimates(folder: Path, name: str) -> tuple[dict[str, dict[str, Pair]], float]:
    """Return estimates and variances of every measured answer, by geolevel and query, and seconds."""
    tree = BureauFile.open(folder).tree()
    tree = problem(replace(tree, answers=Held(tree)), name)
    queries = measured_queries(tree)
    for _ in range(2):  # the second time, everything is compiled
        start = time.process_time()
        estimates = TreeEstimates(tree)
        parts = [list(estimates.estimates(number)) for number in range(len(tree.levels))]
        seconds = time.process_time() - start
    found = {}
    for level, runs in zip(tree.spine.names, parts, strict=True):
        rows = {name: Rows.of_query(estimates.model.domain, query) for name, query in queries.items()}
        answers = {name: [of.answers(run) for run in runs] for name, of in rows.items()}
        found[level] = {
            name: (np.concatenate([a for a, _ in each]), np.concatenate([v for _, v in each]))
            for name, each in answers.items()
        }
    return found, seconds


def measured_alone(function: Callable[..., tuple[T, float]], *given: object) -> tuple[T, Cost]:
    """Call a function in a process of its own; it returns its result and the seconds that count."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        result, seconds = pool.submit(function, *given).result()
        peak = pool.submit(most_memory).result()
    return result, Cost(seconds, peak)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other program."""

    checkout: Path
    python: Path

    def run(self, nmf: Path, what: str, to: Path) -> tuple[Mapping[str, npt.NDArray[np.generic]], Cost]:
        """Run one problem.

        Raises
        ------
        SystemExit
            If the program fails.
        """
        command = [str(self.python), str(PEER), str(nmf), what, str(to)]
        environment = os.environ | {"PYTHONPATH": str(self.checkout), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise SystemExit(f"the peer failed on {what!r}, with exit code {done.returncode}")
        said = json.loads(done.stdout.decode().splitlines()[-1])
        return np.load(to), Cost(sum(said["seconds"].values()), said["peak"])


def peer_answers(
    found: Mapping[str, npt.NDArray[np.generic]], folder: str, product: Product, query: QueryGroup
) -> Pair:
    """Return estimates and variances of a query group from the peer's cells and compressed covariances."""
    values = np.asarray(found[f"{folder}/value"], dtype=float)
    answers = np.zeros((len(values), query.size))
    np.add.at(answers.T, query.row_of_cell, values.T)
    races = product.schema.shape[-1]
    split = "cenrace" in query.factors or query.size == product.schema.size
    row = query.row_of_cell.reshape(-1, races)
    rows = np.zeros((query.size, len(row)))  # answers by combinations of the other attributes
    rows[row[:, 0], np.arange(len(row))] = 1.0
    part = np.asarray(found[f"{folder}/covariance"])[:, slice(0 if split else 1, None, 2)]
    part = part[:, :, slice(0 if split else 1, None, 2)]
    variances = np.einsum("mi,gij,mj->gm", rows, part, rows, optimize=True)
    if split:  # all races have the variance of the first
        first = row[:, 0]
        for shift in range(1, races):
            variances[:, row[:, shift]] = variances[:, first]
    return answers, np.maximum(variances, 0.0)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two sets of estimates of one geolevel and query group compare."""

    answers: int
    errors: float
    """Largest difference of estimates, in standard errors."""
    exact: float
    """Largest difference, in counts, of estimates that have no error."""
    spread: float
    """Largest difference of standard errors, as a part of ours."""


def agreement(ours: Pair, theirs: Pair) -> Agreement:
    """Compare estimates and standard errors."""
    error, other = (np.sqrt(np.maximum(pair[1], 0.0)) for pair in (ours, theirs))
    apart = np.abs(ours[0] - theirs[0])
    noisy = error > TINY

    def most(values: Floats) -> float:
        return float(values.max()) if values.size else 0.0

    return Agreement(
        apart.size,
        most(apart[noisy] / error[noisy]),
        most(apart[~noisy]),
        most(np.abs(other[noisy] / error[noisy] - 1.0)),
    )


def compare_estimates(peer: Peer, nmf: Path, work: Path) -> tuple[str, object]:
    """Run the three problems of least squares with both."""
    tree = BureauFile.open(nmf).tree()
    codes = [level.geocodes.astype(str) for level in tree.spine.levels]
    queries = measured_queries(tree)
    rows: list[tuple[object, ...]] = []
    costs: list[tuple[object, ...]] = []
    figures: list[dict[str, object]] = []
    for name in PROBLEMS:
        ours, cost = measured_alone(our_estimates, nmf, name)
        found, other = peer.run(nmf, name, work / f"{name}.npz")
        note(f"{name}: ours {cost}; peer {other}")
        costs.append((name, str(cost), str(other), f"{other.seconds / cost.seconds:,.0f}"))
        figures.append({"problem": name, "ours": asdict(cost), "peer": asdict(other)})
        for number, level in enumerate(tree.spine.names):
            if not np.array_equal(found[f"{FOLDERS[level]}/geocode"], codes[number]):
                raise SystemExit(f"the peer has other geounits at {level}")
            each = {
                query: agreement(ours[level][query], peer_answers(found, FOLDERS[level], tree.product, group))
                for query, group in queries.items()
            }
            for query, a in each.items():
                figures.append({"problem": name, "level": level, "query": query, **_plain(a)})
            worst = max(each, key=lambda query: each[query].errors)
            rows.append(
                (
                    name,
                    level,
                    f"{sum(a.answers for a in each.values()):,}",
                    f"{each[worst].errors:.0e} ({worst})",
                    f"{max(a.exact for a in each.values()):.0e}",
                    f"{max(a.spread for a in each.values()):.0e}",
                )
            )
    header = (
        "Problem",
        "Geolevel",
        "Answers",
        "Estimates, standard errors",
        "Exact, counts",
        "Standard errors",
    )
    text = [markdown(header, rows), markdown(("Problem", "Ours", "Peer", "Ratio of times"), costs)]
    return "\n\n".join(text), figures


def _plain(found: Agreement) -> dict[str, float]:
    return {name: float(getattr(found, name)) for name in ("answers", "errors", "exact", "spread")}


def our_counts(folder: Path, text: str, seed: int) -> tuple[dict[str, npt.NDArray[np.int64]], float]:
    """Return the counts of an estimator from measurements of a seed, by geolevel, and seconds."""
    run = load(text, folder)
    for attempt in range(2):  # the second time, everything is compiled
        out = folder / f"out-{run.estimation_digest()[:8]}-{attempt}"
        od.measure(run, out, seed=seed, workers=1)
        start = time.process_time()
        release = od.estimate(run, out, workers=1)
        seconds = time.process_time() - start
    histogram = release.estimate(PRODUCT).take(run.spine.leaf_order)
    return by_level(run, histogram), seconds


def by_level(run: Run, histogram: object) -> dict[str, npt.NDArray[np.int64]]:
    """Return dense counts, int64 (g, n), of each geolevel."""
    found = {}
    for number, name in enumerate(run.spine.names):
        level = histogram.aggregate(run.spine.leaf_starts(number))  # type: ignore[attr-defined]
        found[name] = np.stack([level.dense(i) for i in range(level.rows)]).astype(np.int64)
    return found


def errors(
    counts: npt.NDArray[np.int64], truth: npt.NDArray[np.int64], queries: Mapping[str, QueryGroup]
) -> Iterator[tuple[str, float]]:
    """Yield the mean over geounits of the sum of absolute errors of a query group's answers."""
    for name, query in queries.items():
        apart = np.abs(query.answers(counts) - query.answers(truth))
        yield name, float(apart.sum(axis=1).mean())


def compare_counts(peer: Peer, run: Run, text: str, seed: int, nmf: Path, work: Path) -> tuple[str, object]:
    """Make counts with both, from the same measurements."""
    truth = by_level(run, run.read().histogram.take(run.spine.leaf_order))
    queries = measured_queries(BureauFile.open(nmf).tree())
    counts, costs = {}, {}
    for estimator in ESTIMATORS:
        given = text.replace("[run]", f'[run]\nestimator = "{estimator}"', 1)
        counts[estimator], costs[estimator] = measured_alone(our_counts, work, given, seed)
        note(f"{estimator}: {costs[estimator]}")
    found, costs["peer"] = peer.run(nmf, "constrained", work / "constrained.npz")
    note(f"peer: {costs['peer']}")
    counts["peer"] = {}
    own = noisy_tree(ReleaseFolder(work / "measured")[PRODUCT])
    for level, codes in zip(run.spine.levels, bureau_geocodes(own), strict=True):
        place = np.searchsorted(found[f"{FOLDERS[level.name]}/geocode"], codes.astype(str))
        counts["peer"][level.name] = np.asarray(found[f"{FOLDERS[level.name]}/value"])[place].astype(np.int64)
    rows: list[tuple[object, ...]] = []
    for level_name, exact in truth.items():
        each = {who: dict(errors(of[level_name], exact, queries)) for who, of in counts.items()}
        apart = dict(errors(counts["informed"][level_name], counts["peer"][level_name], queries))
        rows += [
            (level_name, query, *(each[who][query] for who in counts), apart[query]) for query in queries
        ]
    ratio = [costs["peer"].seconds / costs[who].seconds for who in ESTIMATORS]
    header = ("Geolevel", "Query", "TopDown", "Informed", "Peer", "Informed beside peer")
    lines = [
        markdown(header, rows),
        "; ".join(f"{who}: {cost}" for who, cost in costs.items()),
        f"Peer's time over ours: TopDown {ratio[0]:,.0f}, informed {ratio[1]:,.0f}",
    ]
    figures: list[dict[str, object]] = [
        dict(zip(("level", "query", *counts, "apart"), row, strict=True)) for row in rows
    ]
    figures.append({who: asdict(cost) for who, cost in costs.items()})
    return "\n\n".join(lines), figures


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--peer", type=Path, required=True, help="checkout of census-bluedown")
    parser.add_argument("--peer-python", type=Path, required=True, help="a Python with its requirements")
    parser.add_argument("--blocks", type=int, default=1000, help="size of the synthetic state")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    parser.add_argument("--constrained", action="store_true", help="also make counts")
    given = parser.parse_args()
    if not (given.peer / "census_bluedown" / "linear_postprocessing.py").is_file():
        raise SystemExit(f"no checkout of census-bluedown in {given.peer}; this experiment needs the peer")
    if not given.peer_python.is_file():
        raise SystemExit(f"no Python at {given.peer_python}; this experiment needs the peer")
    peer = Peer(given.peer.resolve(), given.peer_python.absolute())
    os.environ.update(ONE_THREAD)  # for the processes that are timed
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        path, _ = write_demo(work, given.blocks)
        text = path.read_text(encoding="utf-8")
        run = od.load(path)
        release = od.measure(run, work / "measured", seed=given.seed)
        od.export_measurements(release.path, work / "published")
        nmf = work / "published" / PRODUCT
        sizes = ", ".join(f"{len(level):,} {level.name}" for level in run.spine.levels)
        note(sizes)
        parts, figures = [f"A synthetic state: {sizes}"], {}
        text_of, figures["estimates"] = compare_estimates(peer, nmf, work)
        parts.append(text_of)
        if given.constrained:
            text_of, figures["counts"] = compare_counts(peer, run, text, given.seed, nmf, work)
            parts.append(text_of)
    deliver("bluedown", "\n\n".join(parts), figures, given.to)


if __name__ == "__main__":
    main()
