"""What an adapter offers, and where to find one by name."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Protocol, cast

from opendas.errors import ConfigError, EnvironmentFailure
from opendas.solvers.least_squares.clarabel import Form, RawAnswer
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["ADAPTERS", "Adapter", "load", "required"]

ADAPTERS: tuple[str, ...] = ("clarabel", "highs", "piqp", "osqp")
"""Names, in order of preference; each is a module of this package with a function ``solve``."""


class Adapter(Protocol):
    """One general solver."""

    def solve(self, problem: FamilyProblem, *, form: Form = ..., tolerance: float = ...) -> RawAnswer:
        """Solve in one of the two forms of a program, to the solver's own idea of `tolerance`.

        The defaults are the form that suits the solver and the tightest tolerance it bears.
        """
        ...


def load(name: str) -> Adapter:
    """Adapter by name.

    Raises
    ------
    ConfigError
        If there is none of that name.
    EnvironmentFailure
        On use, if its package is missing.
    """
    if name not in ADAPTERS:
        raise ConfigError(f"no solver named {name!r}; there are {', '.join(ADAPTERS)}")
    return cast(Adapter, import_module(f"support.general.{name}"))


def required(package: str) -> ModuleType:
    """Import a solver's package, or say which extra brings it."""
    try:
        return import_module(package)
    except ImportError as missing:
        raise EnvironmentFailure(
            f"the solver package {package} is not installed; pip install 'opendas[solvers]' brings it"
        ) from missing
