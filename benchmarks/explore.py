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
from functools import partial
from pathlib import Path

import opendas
from opendas.explore.app import Pages
from opendas.explore.budget_page import budget_state
from opendas.explore.household_page import household_state
from opendas.explore.households import production
from opendas.explore.session import Session
from opendas.explore.subjects import RunSubject, Subject

Form = dict[str, str]


def full(subject: Subject) -> Form:
    """A form in which every query group has a share at every geolevel that the start has one at."""
    state = budget_state(subject)
    form = {"subject": subject.key, "plans": "1", **state.fields()}
    count = len(subject.queries)
    for level in range(len(subject.levels)):
        names = [f"a.q{level}.{query}" for query in range(count)]
        if any(form[name] for name in names):
            form |= dict.fromkeys(names, f"1/{count}")
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


def budgets(subject: Subject, session: Session, count: int) -> dict[str, dict[str, float]]:
    """Time the sliders of the budget page."""
    answer = partial(Pages(session).answers, session.pages[0])
    form = full(subject)
    last = len(subject.levels) - 1
    two = {**form, "plans": "2"} | {f"b.{k}": v for k, v in budget_state(subject).plans[0].items()}
    query = f"a.q{last}.0"
    return {
        "total": timed(answer, moves(form, "a.total", 1.001, 0.0137, count)),
        "share of a geolevel": timed(
            answer, moves(form, f"a.l{last}", 0.1003, 0.0017, count, f"move:a.l{last}")
        ),
        "share of a query group": timed(answer, moves(form, query, 0.1003, 0.0017, count, f"move:{query}")),
        "total, two plans": timed(answer, moves(two, "a.total", 3.001, 0.0137, count)),
        "a small total (0.01)": timed(answer, moves(form, "a.total", 0.01, 0.0001, count)),
    }


def households(count: int) -> dict[str, dict[str, float]]:
    """Time the sliders of the page of household tables."""
    session = Session()
    answer = partial(Pages(session).answers, session.pages[1])
    budget = {"plans": "1", **household_state(production("budget")).fields()}
    target = {"plans": "1", **household_state(production("target", "exact")).fields()}
    return {
        "a budget": timed(answer, moves(budget, "a.v.PH3.3", 0.31, 0.0037, count)),
        "tau": timed(answer, moves(budget, "a.tau.PH4", 2, 1, count)),
        "a target": timed(answer, moves(target, "a.v.PH3.3", 21, 1, count)),
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
        name: budgets(session.budgets.subject(key), session, options.moves)
        for name, key in (("United States, persons", "us-persons"), ("a state, persons", "state-persons"))
    }
    if options.run is not None:
        subject = RunSubject(opendas.load(options.run))
        found[str(options.run.name)] = budgets(subject, Session(subject), options.moves)
    found["household tables"] = households(options.moves)
    for name, rows in found.items():
        for slider, row in rows.items():
            print(f"{name:26} {slider:26} {row['median_ms']:7.1f} ms  worst {row['worst_ms']:7.1f} ms")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": platform.machine(), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
