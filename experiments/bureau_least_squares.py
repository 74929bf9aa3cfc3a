"""The Census Bureau's own least squares beside ours, on files that OpenDAS exports.

    PYTHONPATH=CHECKOUT python experiments/bureau_least_squares.py --work FOLDER [--blocks 50] [--seed 1]

`CHECKOUT` is a checkout of ``uscensusbureau/DAS_2020_GLS_Uncertainty_Evaluation``; it needs Java and pyspark.
A synthetic state is measured and exported into FOLDER, and the program's two passes (``two_pass_method``)
run with Spark on this machine; what FOLDER holds already is compared again. Exact facts are left out of the
files for both: the program holds them by noise of a small variance, and at blocks not at all. Its compiled
function that turns bytes into numbers is replaced by one in Python, as it needs another version of Spark.

Seconds are those of processors, with one thread, of a process that starts, reads the files and estimates,
and of all that it starts, Java with it: theirs writes every cell, ours keeps every answer with its variance.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bluedown import ONE_THREAD, Held, measured_queries, problem
from experiment import arguments, deliver, markdown

import opendas as od
from opendas.demo import write_demo
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.bureau_writing import FOLDERS
from opendas.intervals.noisy_tree import NoisyTree
from opendas.intervals.rows import Rows
from opendas.intervals.tree_estimates import TreeEstimates
from opendas.schema.query_groups import QueryGroup

PRODUCT = "pl94-persons"
SUFFIX = len("_dpq")
Floats = npt.NDArray[np.float64]


def write_files(work: Path, blocks: int, seed: int) -> None:
    """Measure and export; leave one constraint of each geounit, which the program does not use."""
    path, _ = write_demo(work, blocks)
    od.measure(od.load(path), work / "measured", seed=seed)
    od.export_measurements(work / "measured", work / "published", product=PRODUCT)
    for part in (work / "published").rglob("Constraint/**/*.parquet"):
        table = pq.read_table(part, partitioning=None)
        pq.write_table(table.filter(pc.equal(table["query_name"], "hhgq_total_lb_con")), part)


def run_program(folder: Path, names: list[str], to: Path) -> None:
    """Run the program's two passes on the files of a folder."""
    import pyspark

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    from GLS.das_decennial.das_constants import CC  # type: ignore[import-not-found]
    from GLS.main_two_pass_alg import (  # type: ignore[import-not-found]
        setup_spine_structures,
        two_pass_method,
    )
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import pandas_udf

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", "6g").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    numbers = pandas_udf(  # type: ignore[call-overload]
        lambda values: values.map(lambda one: None if one is None else np.frombuffer(one)), "array<double>"
    )
    session.udf.register("bin2da", numbers)
    parts = dict.fromkeys(names, 2)
    levels, rows, widths = setup_spine_structures(
        str(folder), names, "Constraint", "DPQuery", SUFFIX, [], parts
    )
    two_pass_method(CC.SCHEMA_PL94, levels, rows, widths, f"{to}/", 8, None, parts)


def read(folder: Path) -> NoisyTree:
    """Read the files into memory, without what is exact."""
    tree = BureauFile.open(folder).tree()
    return problem(replace(tree, answers=Held(tree)), "plain")


def ours(tree: NoisyTree) -> Iterator[list[tuple[QueryGroup, Floats, Floats]]]:
    """Yield the answers of each geolevel and their standard errors, by query group."""
    estimates = TreeEstimates(tree)
    for number in range(len(tree.levels)):
        parts, found = list(estimates.estimates(number)), []
        for group in measured_queries(tree).values():
            of = Rows.of_query(estimates.model.domain, group)
            pairs = [of.answers(part) for part in parts]
            value, variance = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
            found.append((group, value, np.sqrt(variance)))
        yield found


def run_ours(folder: Path) -> None:
    """Do what :func:`run_program` does, but for writing."""
    list(ours(read(folder)))


def spent() -> float:
    """Return the processor seconds of this process and of all below it, those included that have ended."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {one for one, (parent, _) in found.items() if parent in family} - family:
        family |= more
    return sum(found[one][1] for one in family) / os.sysconf("SC_CLK_TCK")


def seconds(function: Callable[..., None], *given: object) -> float:
    """Run a function in a process of its own; return what it and all that it started spent."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(function, *given).result()
        return pool.submit(spent).result()


def theirs(folder: Path, codes: list[str], cells: int) -> tuple[Floats, list[Floats]]:
    """Return the program's estimates of all cells, and their covariances where it writes them."""
    table = pq.read_table(folder)
    place = {code: row for row, code in enumerate(table["geocode"].to_pylist())}
    order = [place[code] for code in codes]
    estimates = np.stack([table["beta_tilde_da"][row].values.to_numpy() for row in order])
    covariances = []
    for row in order:
        upper = table["covar_tilde_da"][row].values
        if upper is not None:
            half = np.zeros((cells, cells))
            half[np.triu_indices(cells)] = upper.to_numpy()
            covariances.append(half + half.T - np.diag(np.diag(half)))
    return estimates, covariances


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--work", type=Path, required=True, help="folder for the files of both")
    parser.add_argument("--blocks", type=int, default=50, help="size of the synthetic state")
    parser.add_argument("--larger", type=int, default=5000, help="size of one that ours alone estimates")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    given = parser.parse_args()
    os.environ.update(ONE_THREAD)
    work = given.work.resolve()
    published, theirs_to = work / "published" / PRODUCT, work / "estimates"
    if not published.is_dir():
        write_files(work, given.blocks, given.seed)
    tree = read(published)
    names = [FOLDERS[name] for name in tree.spine.names]
    others = None
    if not (theirs_to / "gls_est" / "Block_gls.ext").is_dir():
        others = seconds(run_program, published, names, theirs_to)
    cells = tree.product.schema.size
    rows = []
    for number, (name, found) in enumerate(zip(names, ours(tree), strict=True)):
        codes = [code.decode() for code in tree.spine.levels[number].geocodes.tolist()]
        estimates, covariances = theirs(theirs_to / "gls_est" / f"{name}_gls.ext", codes, cells)
        worst, spread, answers = 0.0, 0.0, 0
        for group, value, error in found:
            sums = np.zeros((group.size, cells))
            sums[group.row_of_cell, np.arange(cells)] = 1.0
            worst = max(worst, float((np.abs(estimates @ sums.T - value) / error).max()))
            answers += value.size
            for covariance, here in zip(covariances, error if covariances else [], strict=True):
                other = np.sqrt(((sums @ covariance) * sums).sum(axis=1))
                spread = max(spread, float(np.abs(other / here - 1.0).max()))
        said = f"{spread:.1e}" if covariances else "not written"
        rows.append((name, len(codes), f"{answers:,}", f"{worst:.1e}", said))
    header = ("Geolevel", "Geounits", "Answers", "Estimates, standard errors", "Standard errors")
    own = seconds(run_ours, published)  # everything is compiled
    write_files(work / "larger", given.larger, given.seed)
    published = work / "larger" / "published" / PRODUCT
    larger, blocks = seconds(run_ours, published), len(BureauFile.open(published).frame)
    text = [markdown(header, rows), f"Processor seconds: ours {own:.2f}; of {blocks:,} blocks {larger:.2f}"]
    if others is not None:
        text.append(f"theirs {others:,.0f}, {others / own:,.0f} times as many")
    figures = {
        "rows": [list(row) for row in rows],
        "seconds": {"ours": own, "larger": larger, "theirs": others},
    }
    deliver("bureau_least_squares", "\n\n".join(text), figures, given.to)


if __name__ == "__main__":
    main()
