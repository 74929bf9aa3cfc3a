"""One table in tmlt.analytics, as the published program asks for it: persons joined to their households.

    PEER/bin/python benchmarks/phsafe_peer.py FOLDER OUT.csv --tau 10 --rho 0.141622

PEER is an environment of its own with ``tmlt.analytics`` and Java; nothing of OpenDAS is imported here.
FOLDER has persons.csv, units.csv and geo.csv. The table is PH1_num by state and race of the householder:
persons in housing units, at most tau of each household, by age. Prints its times and its noise as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from itertools import product
from pathlib import Path

GROUPS = "ABCDEFG"
TYPES = {"MAFID": "bigint", "QAGE": "bigint", "CENHISP": "bigint"}
TYPES |= {"FINAL_POP": "bigint", "NPF": "bigint", "HHSPAN": "bigint"}


def main() -> None:
    """Answer one query."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tau", type=int, default=10)
    parser.add_argument("--rho", type=float, default=0.141622, help="inf: without noise")
    parser.add_argument("--memory", default="6g", help="of the driver")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    start = time.perf_counter()
    from pyspark.sql import SparkSession
    from tmlt.analytics import (
        AddMaxRows,
        AddOneRow,
        KeySet,
        QueryBuilder,
        RhoZCDPBudget,
        Session,
        TruncationStrategy,
    )

    spark = (
        SparkSession.builder.master(f"local[{given.threads}]")
        .config("spark.driver.memory", given.memory)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "8")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    started = time.perf_counter()

    def read(name: str) -> object:
        path = given.folder / name
        header = path.open().readline().strip().split(",")
        schema = ", ".join(f"{column} {TYPES.get(column, 'string')}" for column in header)
        return spark.read.csv(str(path), header=True, schema=schema)

    places = read("geo.csv").select("MAFID", "TABBLKST")  # type: ignore[attr-defined]
    states = sorted(row[0] for row in places.select("TABBLKST").distinct().collect())
    budget = RhoZCDPBudget(math.inf if math.isinf(given.rho) else given.rho)
    session = (
        Session.Builder()
        .with_privacy_budget(budget)
        .with_private_dataframe("persons", read("persons.csv"), AddOneRow())
        .with_private_dataframe("units", read("units.csv"), AddMaxRows(2))
        .with_public_dataframe("geo", places)
        .build()
    )
    units = QueryBuilder("units").rename({"RTYPE": "RTYPE_UNIT"}).join_public("geo")
    keys = KeySet.from_tuples(
        list(product(states, GROUPS, ("2", "3"))), columns=["TABBLKST", "GROUP", "CELL"]
    )

    def place(row: dict) -> dict:  # type: ignore[type-arg]
        race = int(row["HHRACE"])
        group = "?" if race == 0 else GROUPS[min(race, 7) - 1]
        return {"GROUP": group, "CELL": "2" if row["QAGE"] < 18 else "3"}

    query = (
        QueryBuilder("persons")
        .filter("RTYPE = '3'")
        .join_private(
            units,
            truncation_strategy_left=TruncationStrategy.DropExcess(given.tau),
            truncation_strategy_right=TruncationStrategy.DropNonUnique(),
        )
        .map(place, new_column_types={"GROUP": "VARCHAR", "CELL": "VARCHAR"}, augment=True)
        .groupby(keys)
        .count(name="COUNT")
    )
    noise = [{key: str(value) for key, value in one.items()} for one in session._noise_info(query, budget)]
    rows = session.evaluate(query, budget).collect()
    done = time.perf_counter()
    lines = sorted(f"{row['TABBLKST']}|{row['GROUP']}|{row['CELL']}|{row['COUNT']}" for row in rows)
    given.out.write_text("\n".join(lines) + "\n")
    print(json.dumps({"start_s": started - start, "query_s": done - started, "noise": noise}))


if __name__ == "__main__":
    main()
