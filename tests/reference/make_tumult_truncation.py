"""Make tumult_truncation.csv: rows we made up, and how many of each the real library keeps.

Runs in an environment of its own (pip install "tmlt.core==0.12.0" "pandas==1.5.3" "numpy==1.26.0", Java):

    python make_tumult_truncation.py tumult_truncation.csv
"""

import csv
import random
import sys
from collections import Counter

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tmlt.core.utils.truncation import truncate_large_groups

TAUS = (1, 2, 3, 5, 6, 10)
COLUMNS = (
    ("RTYPE", StringType()),
    ("MAFID", LongType()),
    ("QAGE", LongType()),
    ("CENHISP", LongType()),
    ("CENRACE", StringType()),
    ("RELSHIP", StringType()),
)
HOUSEHOLDS = {100000001: 1, 899999999: 3, 123456789: 12, 555555555: 7, 300000007: 15, 712345678: 11}


def made_rows():
    rng = random.Random(20260714)
    rows = []
    for mafid, size in HOUSEHOLDS.items():
        for _ in range(size):
            rtype, age = rng.choice("3335"), rng.choice([0, 1, 17, 18, 35, 64, 115])
            origin, race = rng.choice([1, 2]), rng.choice(["01", "02", "07", "63"])
            relation = rng.choice(["20", "21", "25", "30", "34"])
            rows.append((rtype, mafid, age, origin, race, relation))
    rows += [("3", 400000004, 9, 1, "01", "25")] * 9
    rows += [("3", 400000005, age, 1, "01", "25") for age in (3, 3, 5, 5, 5, 8, 8, 8, 8)]
    rng.shuffle(rows)
    return rows


def main(path):
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = made_rows()
    schema = StructType([StructField(name, kind) for name, kind in COLUMNS])
    frame = spark.createDataFrame(rows, schema)
    kept = {tau: Counter(map(tuple, truncate_large_groups(frame, ["MAFID"], tau).collect())) for tau in TAUS}
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([name for name, _ in COLUMNS] + ["ROWS"] + [f"KEPT_{tau}" for tau in TAUS])
        for row, count in sorted(Counter(rows).items()):
            writer.writerow([*row, count] + [kept[tau][row] for tau in TAUS])


if __name__ == "__main__":
    main(sys.argv[1])
