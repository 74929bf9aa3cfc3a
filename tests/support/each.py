"""Lists of small cases as one test, where a test of its own for each would cost more than the case."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

__all__ = ["each", "pairs_that_meet"]

Test = Callable[..., None]
Cases = list[dict[str, Any]]


def pairs_that_meet(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Choose of all combinations of three lists or more a few in which every two values of two lists meet."""

    def pairs(some: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
        return set(itertools.combinations(enumerate(some), 2))

    every = list(itertools.product(*map(range, lengths)))
    if len(lengths) < 3:
        yield from every
        return
    left = set().union(*map(pairs, every))
    while left:
        some = max(every, key=lambda some: len(pairs(some) & left))
        left -= pairs(some)
        yield some


def each(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for every value, as ``pytest.mark.parametrize`` would; a failure names its case.

    Of three lists or more, those combinations are tried in which every two values meet; all of them with
    ``OPENDAS_SEEDS=all``, as in CI.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)) for value in values]
    if not cases:
        raise ValueError(f"no case of {', '.join(keys)}")

    def decorate(test: Test) -> Test:
        lists: list[Cases] = [cases, *getattr(test, "lists", [])]
        one: Test = getattr(test, "one", test)

        @functools.wraps(one)
        def run(**given: object) -> None:
            lengths = [len(cases) for cases in lists]
            every = os.environ.get("OPENDAS_SEEDS") == "all"
            chosen = itertools.product(*map(range, lengths)) if every else pairs_that_meet(lengths)
            for places in chosen:
                case = {
                    key: value
                    for cases, i in zip(lists, places, strict=True)
                    for key, value in cases[i].items()
                }
                try:
                    one(**given, **case)
                except BaseException as error:
                    error.add_note(f"case: {case}")
                    raise

        whole = inspect.signature(one)
        left = [p for name, p in whole.parameters.items() if not any(name in cases[0] for cases in lists)]
        run.__signature__ = whole.replace(parameters=left)  # type: ignore[attr-defined]
        run.lists, run.one = lists, one  # type: ignore[attr-defined]
        return run

    return decorate
