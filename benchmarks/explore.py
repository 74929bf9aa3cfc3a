"""How long ``opendas explore`` takes to answer a slider, from the form to the page's new answers.

    OMP_NUM_THREADS=1 python benchmarks/explore.py [--run RUN.toml] [--moves N] [--json FILE]

Each move is a number that was not asked for before, so that nothing of its answer is remembered. Every query
group of the product at every geolevel is measured, except where the preset leaves one out. Median and worst
of the moves, in processor time of the thread that answers (a busy machine disturbs it less than wall time);
what is measured is the handler of the route, templates and JSON included.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import opendas
from opendas.explore.budget_page import start_state
from opendas.explore.budget_routes import BudgetPages
from opendas.explore.drafts import draft_of
from opendas.explore.household_drafts import production
from opendas.explore.household_routes import HouseholdPages
from opendas.explore.session import Session
from opendas.explore.subjects import RunSubject, Subject

Form = dict[str, str]


def full(subject: Subject) -> Form:
    """A form in which every query group has a share at every geolevel that the start has one at."""
    draft = draft_of(subject.start(), subject)
    form = {"subject": subject.key, "plans": "1", **draft.fields("a")}
    for level, row in enumerate(draft.queries):
        if any(row):
            for query in range(len(row)):
                form[f"a.q{level}.{query}"] = f"1/{len(row)}"
    return form


def moves(form: Form, name: str, low: float, step: float, count: int, action: str = "") -> Iterator[Form]:
    """Move one slider, one step after the other."""
    for number in range(count):
        yield {**form, name: f"{low + number * step:.6g}", "action": action}


def timed(answer: Callable[[Form], object], forms: Iterator[Form]) -> dict[str, float]:
    """Return median and worst milliseconds of the answers; the first warms up."""
    answer(next(forms))
    taken = []
    for form in forms:
        start = time.thread_time()
        found = answer(form)
        taken.append(1000 * (time.thread_time() - start))
        assert found.status_code == 200, form  # type: ignore[attr-defined]
    return {"median_ms": statistics.median(taken), "worst_ms": max(taken)}


def budgets(subject: Subject, pages: BudgetPages, count: int) -> dict[str, dict[str, float]]:
    """Time the sliders of the budget page."""
    form = full(subject)
    last = len(subject.levels) - 1
    two = {**form, "plans": "2", **start_state(subject).plans[0].fields("b")}
    query = f"a.q{last}.0"
    return {
        "total": timed(pages._answers, moves(form, "a.total", 1.001, 0.0137, count)),
        "share of a geolevel": timed(
            pages._answers, moves(form, f"a.l{last}", 0.1003, 0.0017, count, f"move:a.l{last}")
        ),
        "share of a query group": timed(
            pages._answers, moves(form, query, 0.1003, 0.0017, count, f"move:{query}")
        ),
        "total, two plans": timed(pages._answers, moves(two, "a.total", 3.001, 0.0137, count)),
        "a small total (0.01)": timed(pages._answers, moves(form, "a.total", 0.01, 0.0001, count)),
    }


def households(count: int) -> dict[str, dict[str, float]]:
    """Time the sliders of the page of household tables."""
    pages = HouseholdPages()
    budget = {"plans": "1", **production("budget").fields("a")}
    target = {"plans": "1", **production("target", "exact").fields("a")}
    return {
        "a budget": timed(pages._answers, moves(budget, "a.v.PH3.3", 0.31, 0.0037, count)),
        "tau": timed(pages._answers, moves(budget, "a.tau.PH4", 2, 1, count)),
        "a target": timed(pages._answers, moves(target, "a.v.PH3.3", 21, 1, count)),
    }


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run file to time as well")
    parser.add_argument("--moves", type=int, default=31)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    session = Session()
    found = {
        name: budgets(session.subject(key), BudgetPages(session), options.moves)
        for name, key in (("United States, persons", "us-persons"), ("a state, persons", "state-persons"))
    }
    if options.run is not None:
        subject = RunSubject(opendas.load(options.run))
        found[str(options.run.name)] = budgets(subject, BudgetPages(Session(subject)), options.moves)
    found["household tables"] = households(options.moves)
    for name, rows in found.items():
        for slider, row in rows.items():
            print(f"{name:26} {slider:26} {row['median_ms']:7.1f} ms  worst {row['worst_ms']:7.1f} ms")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": platform.machine(), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
