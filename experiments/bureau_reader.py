"""The reader of the Census Bureau's own least squares on files that OpenDAS exports.

    PYTHONPATH=CHECKOUT python experiments/bureau_reader.py --checkout CHECKOUT [--blocks 60] [--seed 1]

`CHECKOUT` is a checkout of ``uscensusbureau/DAS_2020_GLS_Uncertainty_Evaluation``; it needs Java and pyspark.
A synthetic state is measured and exported (``opendas export --format nmf``), and the program's own function
reads all geolevels with Spark. Then it is asked what it understood: every query group has the number of rows
that its schema says, every geounit is there, and the cells that it takes for closed are those of our
constraints.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiment import arguments, deliver, markdown

import opendas as od
from opendas.demo import write_demo
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.bureau_writing import FOLDERS, bureau_geocodes
from opendas.gls.model import TreeModel
from opendas.intervals.tree_estimates import tree_model

PRODUCT = "pl94-persons"
SUFFIX = len("_dpq")


def understood(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return, by folder of a geolevel and geocode, what the program holds of it."""
    import pyspark

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    from GLS.main_two_pass_alg import setup_spine_structures  # type: ignore[import-not-found]
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    parts = dict.fromkeys(names, 2)
    _, found, _ = setup_spine_structures(str(folder), names, "Constraint", "DPQuery", SUFFIX, [], parts)
    return {name: dict(found[name].collect()) for name in names}


def free_cells(model: TreeModel, number: int) -> list[int]:
    """Return the number of cells that may hold people, of each geounit."""
    level = model.levels[number]
    allowed = model.domain.cells_of(level.patterns)
    return [int(n) for n in allowed.sum(axis=1)[level.pattern]]


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--checkout", type=Path, required=True, help="of the Bureau's program")
    parser.add_argument("--blocks", type=int, default=60, help="size of the synthetic state")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    given = parser.parse_args()
    sys.path.insert(0, str(given.checkout.resolve()))
    from GLS.das_decennial.das_constants import CC  # type: ignore[import-not-found]
    from GLS.das_decennial.programs.schema.schemas.schemamaker import (  # type: ignore[import-not-found]
        SchemaMaker,
    )
    from GLS.main_two_pass_alg import make_nonzeros_mask_vec

    schema = SchemaMaker.fromName(CC.SCHEMA_PL94)
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        path, _ = write_demo(work, given.blocks)
        od.measure(od.load(path), work / "measured", seed=given.seed)
        od.export_measurements(work / "measured", work / "published")
        tree = BureauFile.open(work / "published" / PRODUCT).tree()
        names = [FOLDERS[name] for name in tree.spine.names]
        found = understood(work / "published" / PRODUCT, names)
        model, codes = tree_model(tree), bureau_geocodes(tree)
        rows = []
        for number, name in enumerate(names):
            here, queries = found[name], set()
            if set(here) != {code.decode() for code in codes[number].tolist()}:
                raise SystemExit(f"{name}: the program has other geounits")
            for row in here.values():
                asked = {q: v for q, v in row.items() if isinstance(v, dict) and not v["from_zero_constr"]}
                for query, answer in asked.items():
                    size = schema.getQuery(query).matrixRep().shape[0]
                    if answer["value"] is not None and len(answer["value"]) != size:
                        raise SystemExit(f"{name}: {query} has {len(answer['value'])} rows, not {size}")
                queries |= set(asked)
            # The program leaves out what is exact about blocks.
            same = "not read" if name == "Block" else "the same"
            if name != "Block":
                theirs = [
                    int(make_nonzeros_mask_vec(schema, here[code.decode()]).sum())
                    for code in codes[number].tolist()
                ]
                if theirs != free_cells(model, number):
                    raise SystemExit(f"{name}: the program closes other cells")
            rows.append((name, len(here), len(queries), same))
    header = ("Geolevel", "Geounits", "Query groups, with the rows of its schema", "Closed cells")
    deliver("bureau_reader", markdown(header, rows), {"rows": [list(row) for row in rows]}, given.to)


if __name__ == "__main__":
    main()
