"""Lists of cases as one test: every case is run, and a failure names its own."""

from __future__ import annotations

import inspect
import itertools
import math

import pytest
from support.each import each, pairs_that_meet


def test_every_case_is_run_and_a_failure_names_its_own() -> None:
    seen = []

    @each("a", [1, 2])
    @each(("b", "c"), [(3, 4), (5, 6)])
    def test(a: int, b: int, c: int, fixture: str) -> None:
        seen.append((a, b, c, fixture))
        assert (a, b) != (2, 5)

    assert list(inspect.signature(test).parameters) == ["fixture"]
    with pytest.raises(AssertionError) as caught:
        test(fixture="x")
    assert seen == [(1, 3, 4, "x"), (1, 5, 6, "x"), (2, 3, 4, "x"), (2, 5, 6, "x")]
    assert caught.value.__notes__ == ["case: {'a': 2, 'b': 5, 'c': 6}"]
    with pytest.raises(ValueError, match="no case of a"):
        each("a", [])


def test_of_many_lists_every_two_values_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (2, 2, 3, 4)
    some = list(pairs_that_meet(lengths))
    assert len(some) < math.prod(lengths) / 2
    for (i, first), (j, second) in itertools.combinations(enumerate(lengths), 2):
        assert {(case[i], case[j]) for case in some} == set(itertools.product(range(first), range(second)))
    seen = []

    @each("a", range(3))
    @each("b", range(3))
    @each("c", range(3))
    def test(a: int, b: int, c: int) -> None:
        seen.append((a, b, c))

    monkeypatch.delenv("OPENDAS_SEEDS", raising=False)
    test()
    assert sorted(seen) == sorted(pairs_that_meet((3, 3, 3)))
    seen.clear()
    monkeypatch.setenv("OPENDAS_SEEDS", "all")
    test()
    assert seen == list(itertools.product(range(3), repeat=3))
