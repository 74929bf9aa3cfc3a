"""Spines built around legal areas beside the standard spine, at the same budget: Rhode Island 2010, persons.

    python experiments/spines.py [DATA] [--seeds 20] [--to FOLDER]

Seven spines share rho and, but for one level, the shares of the geolevels; every seed runs on all of them. Of
each spine: how far areas lie from it, the error of their counts, the difference to the standard spine seed by
seed, and the error that the measurements alone let expect. Errors are counted on official geography, on
every spine. Then, without counts, the spines of the 2020 blocks, whose areas come from the block assignment
files.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from experiment import (
    Figures,
    Key,
    Mean,
    arguments,
    average,
    deliver,
    figures_of,
    load,
    markdown,
    note,
    paper_rows,
    plain,
    rhode_island,
    seeded_runs,
)

from opendas.budget.presets import preset
from opendas.geography.bypass import bypass_only_children
from opendas.geography.frame import Frame, official_codes
from opendas.geography.off_spine_distance import EntityDistances, entity_distances
from opendas.geography.recipe import Recipe, SpineStep, build_spine
from opendas.geography.spine import Spine
from opendas.gls.expected_error import ExpectedError, expected_rows
from opendas.runs.context.run import Run

ASSIGNMENT = "baf_2020_ri/ri_2020_block_assignment.parquet"
CATEGORIES = ("cousub", "place", "vtd", "sldl", "sldu", "sduni", "cd", "aianhh")
SHOWN = ("county", "cousub", "place", "aianhh", "tract", "block_group", "block", "sduni", "sldu", "sldl")
"""Geolevels and entity categories of the tables of errors, from large areas to small, then districts."""
QUERIES = ("total", "votingage * hispanic * cenrace", "detailed")
TRACT_GROUP_SHARE = Fraction(200, 4099)
"""What a level of tract groups gets, taken from the tracts."""
NORMAL = math.sqrt(2 / math.pi)
"""Mean absolute value of a standard normal variable."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One spine.

    Parameters
    ----------
    steps : tuple of SpineStep
    entities : tuple of str or None
        What its steps build around; None is the production rule.
    """

    steps: tuple[SpineStep, ...]
    entities: tuple[str, ...] | None = None

    def toml(self) -> str:
        """Return the lines of a run file."""
        steps = ", ".join(
            "{ " + ", ".join(f'{name} = "{value}"' for name, value in step.to_dict().items()) + " }"
            for step in self.steps
        )
        spine = f"[{steps}]" if self.steps else '"standard"'
        lines = ["[geography]", f"spine = {spine}"]
        if self.entities is not None:
            lines.append("entities = [" + ", ".join(f'"{name}"' for name in self.entities) + "]")
        if any(step.step == "tract_groups" for step in self.steps):
            lines += ["[budget.geolevels]", *(f'{name} = "{s}"' for name, s in shares_with_groups().items())]
        return "\n".join(lines)


def _settings() -> dict[str, Setting]:
    blocks, bypass = SpineStep("block_groups"), SpineStep("bypass")
    both = ("place", "cousub")
    found = {
        "standard": Setting(()),
        "bypass": Setting((bypass,)),
        "optimized, place": Setting((blocks, bypass), ("place",)),
        "optimized, production rule": Setting((blocks, bypass)),
        "aian, place": Setting((SpineStep("aian"), blocks, bypass), ("place",)),
    }
    for method, name in (("greedy", "Algorithm 2"), ("best_first", "best first")):
        groups = SpineStep("tract_groups", method=method)
        found[f"tract groups, {name}"] = Setting((blocks, groups, bypass), both)
    return found


SPINES: Mapping[str, Setting] = _settings()


def shares_with_groups() -> dict[str, Fraction]:
    """Return the shares of the geolevels with tract groups, of the same sum as without."""
    shares = dict(preset("pr2020-persons").geolevels)
    shares["tract"] -= TRACT_GROUP_SHARE
    return shares | {"tract_group": TRACT_GROUP_SHARE}


def distances(spine: Spine, frame: Frame) -> dict[str, EntityDistances]:
    """Return the distances of every entity category, and of the official block groups."""
    present = [name for name in CATEGORIES if name in frame.entities and (frame.entities[name] != b"").any()]
    return {name: entity_distances(spine, frame.codes(name), name) for name in ("block_group", *present)}


def expected(run: Run) -> dict[tuple[str, str], float]:
    """Return the mean absolute error of totals that the measurements let expect, by geolevel or category.

    Of the least-squares estimate, which knows nothing of non-negativity and whole numbers; for normal noise.
    """
    rows = expected_rows(ExpectedError.build(run.plan), run.frame)
    return {(row.name, row.query): NORMAL * row.mean_sd for row in rows}


def paired(setting: Sequence[Figures], standard: Sequence[Figures]) -> dict[Key, Mean]:
    """Return the mean difference of each figure to the standard spine, the same seeds beside each other."""
    return average(
        [
            {key: value - other[key] for key, value in figures.items() if key in other}
            for figures, other in zip(setting, standard, strict=True)
        ]
    )


def table_of_spines(spines: Mapping[str, Spine], frame: Frame) -> str:
    """Return the size of each spine, and mean (largest) distance by category."""
    found = {name: distances(spine, frame) for name, spine in spines.items()}
    rows: list[tuple[object, ...]] = []
    for level in ("tract_group", "tract", "block_group"):
        counts = [
            f"{len(spine.levels[spine.index(level)]):,}" if level in spine.names else None
            for spine in spines.values()
        ]
        rows.append((f"geounits: {level}", "", *counts))
    for category, first in found["standard"].items():
        cells = [f"{of[category].mean:.2f} ({of[category].maximum})" for of in found.values()]
        rows.append((f"distance: {category}", len(first), *cells))
    return markdown(("", "Areas", *spines), rows)


def table_of_errors(
    errors: Mapping[str, Mapping[Key, Mean]], differences: Mapping[str, Mapping[Key, Mean]], query: str
) -> str:
    """Return mean absolute errors of a query on the standard spine, and the differences on the others."""
    rows = []
    for level in SHOWN:
        key = (level, query, "", "mean_abs_error")
        count = errors["standard"][level, query, "", "geounits"].value
        rows.append(
            (
                level,
                f"{count:,.0f}",
                errors["standard"][key],
                *(_signed(found[key]) for found in differences.values()),
            )
        )
    return markdown(("Areas", "Number", "standard", *differences), rows)


def _signed(mean: Mean) -> str:
    return f"{mean.value:+,.2f}" + (f" ± {mean.error:,.2f}" if mean.error else "")


def table_of_expectations(
    predicted: Mapping[str, Mapping[tuple[str, str], float]], errors: Mapping[str, Mapping[Key, Mean]]
) -> str:
    """Return expected beside observed mean absolute errors of totals."""
    rows = []
    for level in SHOWN:
        key = (level, "total", "", "mean_abs_error")
        cells = [
            value for name in errors for value in (predicted[name][level, "total"], errors[name][key].value)
        ]
        rows.append((level, *cells))
    heads = [f"{name}: {what}" for name in errors for what in ("expected", "observed")]
    return markdown(("Areas", *heads), rows)


def table_beside_paper(errors: Mapping[str, Mapping[Key, Mean]]) -> str:
    """Return errors of official block groups beside Tables 9 and 10, whose spine had custom ones."""
    rows = [row for row in paper_rows(9, 10) if row.key[0] == "block_group"]
    return markdown(
        ("Official block groups", "Paper", *errors),
        [(row.key[1], row.runs["baseline1"], *(found[row.key] for found in errors.values())) for row in rows],
    )


def read_assignment(path: Path) -> Frame:
    """Read the areas of the 2020 blocks; no counts exist for them, so all blocks are leaves."""
    table = pq.read_table(path).sort_by("GEOID")
    geocodes = np.array(table["GEOID"].to_pylist(), dtype="S15")
    entities = {
        name: np.array(table[name.upper()].to_pylist(), dtype=np.bytes_)
        for name in CATEGORIES
        if name.upper() in table.column_names
    }
    return Frame(geocodes, official_codes(geocodes, "state"), "block", entities=entities)


def spine_of(frame: Frame, setting: Setting) -> Spine:
    """Build a spine without a run; there is no group-quarters pattern in a frame without units."""
    shares = preset("pr2020-persons").geolevels
    if any(step.step == "tract_groups" for step in setting.steps):
        shares = shares_with_groups()

    def finish(spine: Spine) -> Spine:
        return bypass_only_children(spine, [shares[name] for name in spine.names])

    return build_spine(frame, Recipe(setting.steps, setting.entities, facilities=False), finish)


def settings_of_2020() -> dict[str, Setting]:
    """Return the spines of the 2020 blocks: those of 2010 that differ, the AIAN spine, and one for VTDs."""
    kept = ("standard", "optimized, place", "tract groups, best first")
    found = {name: SPINES[name] for name in kept}
    steps = SPINES["optimized, place"].steps
    found["aian, production rule"] = Setting(SPINES["aian, place"].steps)
    found["optimized, vtd"] = Setting(steps, ("vtd",))
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """Spines and figures by name of the setting; figures are one mapping a seed."""

    frame: Frame
    spines: dict[str, Spine]
    figures: dict[str, list[dict[Key, float]]]
    expected: dict[str, dict[tuple[str, str], float]]


def measure(data: Path, seeds: Sequence[int], names: Sequence[str] = tuple(SPINES)) -> Found:
    """Run settings of :data:`SPINES`."""
    with tempfile.TemporaryDirectory() as folder:
        truth = load(rhode_island(data), Path(folder)).read()
        found = Found(truth.frame, {}, {}, {})
        for name in names:
            note(name)
            run = load(rhode_island(data, more=SPINES[name].toml()), Path(folder))
            found.spines[name], found.expected[name] = run.spine, expected(run)
            several = seeded_runs(run, truth, seeds, entities=True)
            found.figures[name] = [figures_of(evaluation) for _, evaluation in several]
    return found


def report(found: Found) -> tuple[str, object]:
    """Return the tables, and all figures for JSON; the standard spine is one of the settings."""
    errors = {name: average(figures) for name, figures in found.figures.items()}
    differences = {
        name: paired(figures, found.figures["standard"])
        for name, figures in found.figures.items()
        if name != "standard"
    }
    parts = ["Distances: mean (largest)", table_of_spines(found.spines, found.frame)]
    for query in QUERIES:
        parts.append(f"{query}: mean absolute error, and difference to it")
        parts.append(table_of_errors(errors, differences, query))
    parts.append("total: mean absolute error, expected and observed")
    parts.append(table_of_expectations(found.expected, errors))
    parts.append("Official block groups beside the nation's production run")
    parts.append(table_beside_paper(errors))
    record = {
        name: {
            "errors": plain(mean),
            "differences": plain(differences.get(name, {})),
            "expected": [
                {"areas": area, "query": query, "mean_abs_error": value}
                for (area, query), value in found.expected[name].items()
            ],
        }
        for name, mean in errors.items()
    }
    return "\n\n".join(parts), record


def main() -> None:
    """Run the experiment."""
    given = arguments(__doc__, seeds=20).parse_args()
    text, record = report(measure(given.data, range(1, given.seeds + 1)))
    frame = read_assignment(given.data / ASSIGNMENT)
    spines = {name: spine_of(frame, setting) for name, setting in settings_of_2020().items()}
    text += f"\n\n2020 blocks: {len(frame):,}\n\n" + table_of_spines(spines, frame)
    deliver("spines", text, record, given.to)


if __name__ == "__main__":
    main()
