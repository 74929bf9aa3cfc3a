"""What happened to my town: Rhode Island 2010 released, swapped, and compared with the official file.

Writes the tables of docs/compare.md between its marks ``<!-- table NAME -->`` and ``<!-- end -->``. Input is
the official redistricting file of 2010, and persons made to agree with it in every block, whose households
are swapped. All runs are seeded, and so NOT FOR RELEASE.

    python experiments/my_town.py DATA [--work FOLDER] [--runs 20] [--page docs/compare.md]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import opendas as od
from opendas.comparison.comparison import Comparison
from opendas.demo.census import make_census

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compare.md"
TABLE = re.compile(r"(<!-- table (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
TOWNS = {"New Shoreham": "4400950500", "Central Falls": "4400714140"}
LEVELS = ("county", "tract", "block_group", "block", "cousub", "place", "sldu", "sldl")
RUN = """\
[run]
product = "pl94-persons"
[input]
reader = "pl94-2010"
path = "{path}"
[budget]
preset = "pr2020-persons"
"""

Rows = Sequence[Sequence[object]]


def made(path: Path, work: Path, runs: int) -> Comparison:
    """Release, swap and compare; what the folder holds already is taken as it is."""
    work.mkdir(parents=True, exist_ok=True)
    run = work / "persons.toml"
    run.write_text(RUN.format(path=path.resolve()))
    if not (work / "released" / "release" / "certificate.json").is_file():
        od.release(od.load(run), work / "released", seed=1, workers=1)
    release = od.Release(work / "released")
    od.replicates(release, runs=runs, workers=1, resume=True)
    if not (work / "made").is_dir():
        make_census(path, work / "made", seed=2020)
    if not (work / "swapped").is_dir():
        od.swap(od.load(work / "made" / "run-pl94-persons.toml"), work / "swapped", seed=1)
    return od.compare(release, work / "swapped", path)


def signed(number: float | None, digits: int = 0) -> str:
    """Return a number with its sign, as a reader of prose expects it."""
    if number is None:
        return ""
    text = f"{abs(number):,.{digits}f}"
    return text if float(text.replace(",", "")) == 0 else f"{'+' if number > 0 else '−'}{text}"


def markdown(head: Sequence[str], rows: Rows) -> str:
    """Return a table in Markdown: the first column words, the others numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def town(comparison: Comparison, name: str) -> str:
    """Return the figures of a town."""
    rows = comparison.table.to_arrow().to_pylist()
    own = [row for row in rows if row["geolevel"] == "cousub" and row["geocode"] == TOWNS[name]]
    return markdown(
        ["", "official", "released", "difference", "margin", "swapped", "difference"],
        [
            [
                row["label"],
                f"{row['value_3']:,}",
                f"{row['value_1']:,}",
                signed(row["difference"]),
                f"±{row['margin']}",
                f"{row['value_2']:,}",
                signed(row["difference_2"]),
            ]
            for row in own
            if not row["variable"].endswith(("0003", "0004"))
        ],
    )


def both(comparison: Comparison, name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the rows of a summary, of the release and of the swapped counts."""
    rows = comparison.summary["products"][0][name]
    half = len(rows) // 2
    yield from zip(rows[:half], rows[half:], strict=True)


def errors(comparison: Comparison) -> str:
    """Return the mean absolute difference by geolevel, of the total and of Hispanic persons."""
    found: dict[str, list[object]] = {}
    for one, other in both(comparison, "bias"):
        if one["size"] is None and one["group"] in ("total", "hispanic") and one["geolevel"] in LEVELS:
            line = found.setdefault(one["geolevel"], [one["geolevel"], f"{one['geounits']:,}"])
            line += [f"{row['mean_abs_difference']:,.2f}" for row in (one, other)]
    head = ["", "areas", "total: released", "swapped", "Hispanic: released", "swapped"]
    return markdown(head, list(found.values()))


def bias(comparison: Comparison) -> str:
    """Return the mean signed difference of each group over tracts, for tracts that are more or less white."""
    rows = []
    for one, other in both(comparison, "bias"):
        if one["geolevel"] == "tract" and one["size"] is None:
            values = (one["mean_difference"], other["mean_difference"])
            absolute = (one["mean_abs_difference"], other["mean_abs_difference"])
            group = one["group"].replace("not_hispanic * ", "not Hispanic, ")
            rows.append(
                [group, *(signed(value, 2) for value in values), *(f"{value:,.1f}" for value in absolute)]
            )
    head = ["", "mean: released", "swapped", "mean absolute: released", "swapped"]
    return markdown(head, rows)


def flips(comparison: Comparison) -> str:
    """Return how many areas have another majority."""
    rows = [
        [
            one["geolevel"],
            f"{one['reference']:,}",
            *(f"{row['became']:,} / {row['ceased']:,}" for row in (one, other)),
        ]
        for one, other in both(comparison, "majority_minority")
        if one["base"] == "18plus" and one["geolevel"] in LEVELS
    ]
    return markdown(["", "official", "released: became / ceased", "swapped: became / ceased"], rows)


def districts(comparison: Comparison) -> str:
    """Return the population deviation of official districts, in per cent of the mean district."""
    rows = [
        [
            one["geolevel"],
            one["districts"],
            *(
                f"{value:.3f}"
                for value in (
                    one["reference_range_percent"],
                    one["range_percent"],
                    other["range_percent"],
                )
            ),
        ]
        for one, other in both(comparison, "districts")
    ]
    return markdown(["", "districts", "official", "released", "swapped"], rows)


def empty(comparison: Comparison) -> str:
    """Return how many blocks are populated on one side only."""
    rows = []
    for one, other in both(comparison, "empty"):
        if one["geolevel"] == "block":
            for label, number, people in (
                ("empty made populated", "empty_made_populated", "in_them"),
                ("populated made empty", "populated_made_empty", "were_in_them"),
            ):
                rows.append([label, *(f"{row[number]:,} ({row[people]:,})" for row in (one, other))])
    return markdown(["blocks (persons in them)", "released", "swapped"], rows)


def tables(comparison: Comparison) -> dict[str, str]:
    """Return the tables of the page by name."""
    named = {f"town-{name.lower().replace(' ', '-')}": town(comparison, name) for name in TOWNS}
    return named | {name: table(comparison) for name, table in PARTS.items()}


PARTS = {"errors": errors, "bias": bias, "flips": flips, "districts": districts, "empty": empty}
"""Tables of the whole state."""


def main() -> None:
    """Run, compare, and write the tables of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder that holds pl94_2010_ri/")
    parser.add_argument("--work", type=Path, default=Path("my-town"), help="folder of runs")
    parser.add_argument("--runs", type=int, default=20, help="replicates")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    comparison = made(given.data / "pl94_2010_ri" / "ri2010.pl.zip", given.work, given.runs)
    od.write_comparison(comparison, given.work / "compared")
    found = tables(comparison)
    text = given.page.read_text(encoding="utf-8")
    given.page.write_text(TABLE.sub(lambda part: part[1] + found[part[2]] + part[4], text), encoding="utf-8")
    print(given.work / "compared" / "compare.html")


if __name__ == "__main__":
    main()
