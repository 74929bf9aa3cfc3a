"""An agency's own table, exactly as the documentation declares it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from reference.phsafe_rows import iterations
from support.households import configuration, random_world, write_world

from opendas.phsafe.output import PART_FILE
from opendas.phsafe.run import run_private

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "phsafe.md"


def test_the_table_of_the_documentation_is_counted(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "phsafe.md", "exec"), names)
    world = random_world(5, 100, ("06",))
    document = configuration(budget=float("inf"), tau=50, states=("06",))
    budgets, tau = document["privacy_budget"], document["tau"]
    assert isinstance(budgets, dict)
    assert isinstance(tau, dict)
    budgets["AGE_BY_HOUSEHOLDER"] = budgets["PH7"]
    tau["AGE_BY_HOUSEHOLDER"] = 50
    (tmp_path / "config.json").write_text(json.dumps(document))
    options = replace(names["options"])  # type: ignore[type-var]
    data = write_world(tmp_path / "data", world)
    run_private(tmp_path / "config.json", data, tmp_path / "out", options)  # type: ignore[arg-type]
    lines = (tmp_path / "out" / "AGE_BY_HOUSEHOLDER" / PART_FILE).read_text().splitlines()
    assert lines[0] == (
        "REGION_ID|REGION_TYPE|ITERATION_CODE|AGE_BY_HOUSEHOLDER_DATA_CELL|COUNT|NOISE_DISTRIBUTION|VARIANCE"
    )
    found = {tuple(line.split("|")[1:4]): int(line.split("|")[4]) for line in lines[1:]}
    unit_of = {unit["MAFID"]: unit for unit in world[1]}
    expected = dict.fromkeys(found, 0)
    for person in world[0]:
        unit = unit_of[person["MAFID"]]
        if person["RTYPE"] == "3" and unit["RTYPE"] == "2":
            age = int(person["QAGE"])
            cell = "1" if age < 18 else "2" if age < 65 else "3"
            for group in iterations(unit["HHRACE"], unit["HHSPAN"]):
                for region in ("USA", "STATE"):
                    expected[region, group, cell] += 1
    assert found == expected
    assert sum(expected.values()) > 200
