"""A list of small cases as one test, where a test of its own for each would cost more than the case."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["each"]

Test = Callable[..., None]


def each(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for every value, as ``pytest.mark.parametrize`` would; a failure names its case."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)) for value in values]
    if not cases:
        raise ValueError(f"no case of {', '.join(keys)}")

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**given: object) -> None:
            for case in cases:
                try:
                    test(**given, **case)
                except BaseException as error:
                    error.add_note(f"case: {case}")
                    raise

        whole = inspect.signature(test)
        left = [parameter for name, parameter in whole.parameters.items() if name not in keys]
        run.__signature__ = whole.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
