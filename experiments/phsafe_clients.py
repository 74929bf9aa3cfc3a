"""The Bureau's PHSafe programs on household tables of OpenDAS: its output validator, and its models in R.

    python experiments/phsafe_clients.py --checkout CHECKOUT [--draws 100000]

`CHECKOUT` is a checkout of ``uscensusbureau/DAS_2020_SDHC_Production_Code``. Its ``validate_output`` reads
with Spark what ``opendas phsafe`` made of a synthetic world, under both definitions of privacy. Its models
PH2, PH3, PH4, PH6 and PH7 (``SDHC_Model_Based_Estimates``) take the same noisy counts, and are compared with
``opendas phsafe-post --published``. The scripts in R need ``here``, ``msm``, ``tidyr``, ``dplyr``,
``stringr``, ``data.table`` and ``jsonlite``. They load ``tmvmixnorm``, of which these five use nothing:
an empty package of that name stands in. So do modules named ``boto3`` and ``smart_open`` for the validator,
which reads no store here. No confidential record is anywhere.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from experiment import HERE, arguments, deliver, markdown

from opendas.phsafe.posterior.files import Model
from opendas.phsafe.posterior.post_processing import post_process
from opendas.phsafe.run import HouseholdOptions, run_private

sys.path.insert(0, str(HERE.parent / "tests"))
MODELS = ("PH2", "PH3", "PH4", "PH6", "PH7")
STATE = "06"


def tables(work: Path, definition: str) -> Path:
    """Make the noisy tables of a synthetic world; returns their folder."""
    from support.households import configuration, random_world, write_world

    folder = work / definition
    data = write_world(folder / "data", random_world(3, 400, (STATE,)))
    config = folder / "config.json"
    config.write_text(json.dumps(configuration(states=(STATE,), definition=definition)))
    run_private(config, data, folder / "out", HouseholdOptions(seed=1))
    return folder


def parts(out: Path) -> dict[str, Path]:
    """Return the file of each table."""
    return {path.parent.name: path for path in sorted(out.glob("PH*/part-*.csv"))}


def _type(column: str) -> str:
    """Return the type that the validator's settings expect, of cells whole numbers."""
    if column == "VARIANCE":
        return "double"
    return "bigint" if column == "COUNT" or column.endswith("DATA_CELL") else "string"


def validated(checkout: Path, folder: Path) -> bool:
    """Return what the Bureau's validator says of an output."""
    stand_ins = folder / "stand_ins"
    stand_ins.mkdir()
    for name in ("boto3", "smart_open"):
        (stand_ins / f"{name}.py").write_text("from builtins import open\n")
    packages = [str(stand_ins), *(str(checkout / "phsafe" / name) for name in ("phsafe", "common"))]
    sys.path[:0] = packages
    os.environ["PYTHONPATH"] = os.pathsep.join([*packages, os.environ.get("PYTHONPATH", "")])  # of workers
    from pyspark.sql import SparkSession
    from tmlt.phsafe import TABULATION_OUTPUT_COLUMNS, PHSafeOutput
    from tmlt.phsafe.output_validation import validate_output

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    frames = {}
    for name, path in parts(folder / "out").items():
        columns = [(column, _type(column)) for column in TABULATION_OUTPUT_COLUMNS[name]]
        schema = ", ".join(map(" ".join, columns))
        frames[name] = spark.read.csv(str(path), header=True, sep="|", schema=schema, enforceSchema=False)
    config = json.loads((folder / "config.json").read_text())
    output = PHSafeOutput(**{name: frames.get(name) for name in PHSafeOutput._fields})
    return bool(
        validate_output(output, config["privacy_budget"], config["tau"], config["privacy_defn"], [STATE])
    )


def modelled(checkout: Path, out: Path, work: Path, draws: int) -> Path:
    """Run the models in R on the noisy counts of an output; returns the folder of their estimates."""
    place, library = work / "models", work / "library"
    shutil.copytree(checkout / "SDHC_Model_Based_Estimates", place)
    settings = json.loads((place / "config_global.json").read_text())
    (place / "config_global.json").write_text(json.dumps(settings | {"iteration_num": draws}))
    for name in MODELS:
        lines = parts(out)[name].read_text().splitlines()
        state = [line for line in lines[1:] if line.startswith(STATE)]
        for country, kept in (("us", lines[1:]), ("pr", state[:200])):  # the script asks for both
            path = place / "nm_inputs" / country / name / f"{name.lower()}.csv"
            path.parent.mkdir(parents=True)
            path.write_text("\n".join([lines[0], *kept]) + "\n")
        (place / name / "estimates").mkdir(exist_ok=True)
    empty = work / "tmvmixnorm"
    empty.mkdir()
    (empty / "DESCRIPTION").write_text("Package: tmvmixnorm\nVersion: 0.0\nTitle: Empty\nLicense: none\n")
    (empty / "NAMESPACE").write_text("")
    library.mkdir()
    subprocess.run(["R", "CMD", "INSTALL", "-l", library, empty], check=True, capture_output=True)
    for name in MODELS:
        given = [f'.libPaths(c(.libPaths(), "{library}"))', f'source("{name}/tnormal_{name.lower()}.R")']
        words = [word for line in given for word in ("-e", line)]
        subprocess.run(["Rscript", *words], cwd=place, check=True, capture_output=True)
    return place


def estimates(folder: Path) -> dict[tuple[str, ...], tuple[float, ...]]:
    """Return PRED, PRED_LO and PRED_HI of each cell that a table's files have."""
    found = {}
    for path in sorted(folder.glob("*_trunc_normal.csv")):
        if "_PR_" in path.name:
            continue
        with path.open(newline="") as file:
            for row in csv.DictReader(file, delimiter="|"):
                key = tuple(row[name] for name in ("GEOID", "REGION_TYPE", "ITERATION_CODE", "DATA_CELL"))
                found[key] = tuple(float(row[name]) for name in ("PRED", "PRED_LO", "PRED_HI"))
    return found


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--checkout", type=Path, required=True, help="of the Bureau's programs")
    parser.add_argument("--draws", type=int, default=100_000, help="of each cell's interval in R")
    given = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        said = []
        for definition in ("zcdp", "puredp"):
            folder = tables(work, definition)
            number = sum(len(path.read_text().splitlines()) - 1 for path in parts(folder / "out").values())
            answer = "accepted" if validated(given.checkout, folder) else "refused"
            said.append((definition, len(parts(folder / "out")), number, answer))
        out = work / "zcdp" / "out"
        theirs = modelled(given.checkout, out, work, given.draws)
        post_process(out, model=Model.PUBLISHED)
        for name in MODELS:
            one, two = estimates(out / name / "estimates"), estimates(theirs / name / "estimates")
            assert one.keys() == two.keys()
            apart = [tuple(abs(a - b) for a, b in zip(one[key], two[key], strict=True)) for key in one]
            ends = max(max(gap[1:]) for gap in apart)
            same = sum(gap[1] == 0 == gap[2] for gap in apart)
            rows.append((name, len(one), sum(gap[0] > 0 for gap in apart), same, int(ends)))
    checked = markdown(("Definition", "Tables", "Rows", "Validator"), said)
    header = ("Model", "Cells", "Estimates that differ", "Equal intervals", "Ends differ by, at most")
    text = f"{checked}\n\n{markdown(header, rows)}"
    deliver("phsafe_clients", text, {"validator": said, "models": rows}, given.to)


if __name__ == "__main__":
    main()
