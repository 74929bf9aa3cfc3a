"""The Census Bureau's own least squares beside ours, on files that OpenDAS exports.

    PYTHONPATH=CHECKOUT python experiments/bureau_least_squares.py --work FOLDER [--blocks 60] [--seed 1]

`CHECKOUT` is a checkout of ``uscensusbureau/DAS_2020_GLS_Uncertainty_Evaluation``; it needs Java and pyspark.
A synthetic state is measured and exported into FOLDER, and the program's two passes (``two_pass_method``)
run with Spark on this machine; what FOLDER holds already is compared again. Exact facts are left out of the
files for both: the program holds them by noise of a small variance, and at blocks not at all. Its compiled
function that turns bytes into numbers is replaced by one in Python, as it needs another version of Spark.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bluedown import Held, measured_queries, problem
from experiment import arguments, deliver, markdown

import opendas as od
from opendas.demo import write_demo
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.bureau_writing import FOLDERS
from opendas.intervals.rows import Rows
from opendas.intervals.tree_estimates import TreeEstimates

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
    parser.add_argument("--blocks", type=int, default=60, help="size of the synthetic state")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    given = parser.parse_args()
    work = given.work.resolve()
    if not (work / "published").is_dir():
        write_files(work, given.blocks, given.seed)
    tree = BureauFile.open(work / "published" / PRODUCT).tree()
    tree = problem(replace(tree, answers=Held(tree)), "plain")
    names = [FOLDERS[name] for name in tree.spine.names]
    if not (work / "estimates" / "gls_est" / "Block_gls.ext").is_dir():
        run_program(work / "published" / PRODUCT, names, work / "estimates")
    ours, cells = TreeEstimates(tree), tree.product.schema.size
    rows = []
    for number, name in enumerate(names):
        codes = [code.decode() for code in tree.spine.levels[number].geocodes.tolist()]
        estimates, covariances = theirs(work / "estimates" / "gls_est" / f"{name}_gls.ext", codes, cells)
        parts = list(ours.estimates(number))
        worst, spread, answers = 0.0, 0.0, 0
        for group in measured_queries(tree).values():
            of = Rows.of_query(ours.model.domain, group)
            pairs = [of.answers(part) for part in parts]
            value, variance = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
            error = np.sqrt(variance)
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
    deliver("bureau_least_squares", markdown(header, rows), {"rows": [list(row) for row in rows]}, given.to)


if __name__ == "__main__":
    main()
