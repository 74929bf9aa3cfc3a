"""Lists of cases as one test: every case is run, and a failure names its own."""

from __future__ import annotations

import inspect

import pytest
from support.each import each


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
    assert caught.value.__notes__ == ["case: {'b': 5, 'c': 6}", "case: {'a': 2}"]
    with pytest.raises(ValueError, match="no case of a"):
        each("a", [])
