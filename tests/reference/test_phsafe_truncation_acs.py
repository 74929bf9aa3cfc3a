"""The shares of persons dropped that the page on margins quotes, from survey files of two states."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.data import shared_data

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "phsafe-margins.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the documentation is not beside the tests")
GROUP_QUARTERS = ("16", "17")
REFERENCE_PERSON = 0


def dropped_share(sizes: Counter[int], tau: int) -> float:
    """Return the share of persons beyond the first tau of their household."""
    persons = sum(size * households for size, households in sizes.items())
    return sum(max(size - tau, 0) * households for size, households in sizes.items()) / persons


@pytest.mark.parametrize(("state", "name"), [("ri", "Rhode Island"), ("wy", "Wyoming")])
@pytest.mark.parametrize(("who", "below"), [("persons", 1000), ("minors", 18)])
def test_shares_of_the_survey(state: str, name: str, who: str, below: int) -> None:
    path = shared_data(f"pums_2018/{state}_2018_pums_persons.parquet")
    table = pq.read_table(path, columns=["SERIALNO", "RELP", "AGEP", "PWGTP"]).to_pylist()
    members: Counter[str] = Counter()
    weight: dict[str, int] = {}
    for row in table:
        relation = int(row["RELP"])
        if str(relation) in GROUP_QUARTERS:
            continue
        members[row["SERIALNO"]] += int(row["AGEP"]) < below
        if relation == REFERENCE_PERSON:
            weight[row["SERIALNO"]] = int(row["PWGTP"])
    sizes: Counter[int] = Counter()
    for household, size in members.items():
        sizes[size] += weight[household]
    (line,) = re.findall(rf"^\| {name}, {who} \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    quoted = [cell.strip() for cell in line.split("|")]
    assert quoted == [f"{100 * dropped_share(sizes, tau):.2f}" for tau in range(4, 11)]
