"""What an adapter offers, and where to find one by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from opendas.errors import ConfigError, EnvironmentFailure
from opendas.solvers.general.program import Form
from opendas.solvers.problem.problem import FamilyProblem, Status

__all__ = ["ADAPTERS", "Adapter", "RawAnswer", "load", "required"]

ADAPTERS: tuple[str, ...] = ("clarabel", "highs", "piqp", "osqp")
"""Names, in order of preference; each is a module of this package with a function ``solve``."""


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """What a general solver says, before certification.

    Parameters
    ----------
    x : ndarray, shape (C, n)
        Its point, negatives set to 0.
    status : Status
        OPTIMAL if it says so; nothing is believed before :func:`opendas.solvers.problem.certificate.certify`.
    iterations : int
        As reported.
    message : str
        Its own word for the status.
    parent, groups : ndarray or None
        Multipliers, shapes (n,) and (C, K), where the solver gives them.
    """

    x: NDArray[np.float64]
    status: Status
    iterations: int
    message: str
    parent: NDArray[np.float64] | None = None
    groups: NDArray[np.float64] | None = None


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
    return cast(Adapter, import_module(f"opendas.solvers.general.{name}"))


def required(package: str) -> ModuleType:
    """Import a solver's package, or say which extra brings it."""
    try:
        return import_module(package)
    except ImportError as missing:
        raise EnvironmentFailure(
            f"the solver package {package} is not installed; pip install 'opendas[solvers]' brings it"
        ) from missing
