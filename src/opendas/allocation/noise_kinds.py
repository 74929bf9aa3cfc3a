"""The four kinds of noise that an allocation is made for."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction

from opendas.errors import ConfigError, nearest
from opendas.privacy.relations import Mechanism, Neighbours


class NoiseKind(StrEnum):
    """Noise added to every released count.

    The parameter is the budget of a count at sensitivity 1: epsilon for the Laplace kinds (scale
    ``1 / epsilon``), rho for the Gaussian kinds (``sigma2 = 1 / (2 rho)``).
    """

    LAPLACE = "laplace"
    GAUSSIAN = "gaussian"
    DISCRETE_LAPLACE = "discrete-laplace"
    DISCRETE_GAUSSIAN = "discrete-gaussian"

    @property
    def loss_name(self) -> str:
        """Name of the budget: ``"epsilon"`` or ``"rho"``."""
        return "rho" if self in (NoiseKind.GAUSSIAN, NoiseKind.DISCRETE_GAUSSIAN) else "epsilon"

    @property
    def is_integer(self) -> bool:
        """Whether the noise takes whole numbers only."""
        return self in (NoiseKind.DISCRETE_LAPLACE, NoiseKind.DISCRETE_GAUSSIAN)

    @property
    def order(self) -> int:
        """``q`` where the error falls as ``1 / budget**q``: 2 for epsilon, 1 for rho."""
        return 1 if self.loss_name == "rho" else 2


def noise_kind(name: str | Mechanism | NoiseKind) -> NoiseKind:
    """Return the kind of a name.

    Examples
    --------
    >>> noise_kind("laplace").loss_name
    'epsilon'
    """
    try:
        return NoiseKind(str(name))
    except ValueError:
        hint = nearest(str(name), [kind.value for kind in NoiseKind])
        raise ConfigError(f"mechanism: {str(name)[:60]!r} is not known; {hint}") from None


def relation(name: str | Neighbours) -> Neighbours:
    """Return the neighbour relation of a name."""
    try:
        return Neighbours(str(name))
    except ValueError:
        raise ConfigError(
            f"neighbours: {str(name)[:60]!r} is not known. Use unbounded (a record is added or removed) or "
            "bounded (a record is replaced)."
        ) from None


def sensitivity_factor(neighbours: str | Neighbours) -> Fraction:
    """Return the budget at sensitivity 1 that buys the same noise as one unit of budget here.

    A level that partitions the records changes by one count when a record is added or removed. Where one is
    replaced, two counts change by one each: the L1 sensitivity is 2, so that epsilon buys the noise of
    ``epsilon / 2``; the squared L2 sensitivity is 2, so that rho buys the noise of ``rho / 2``. The factor is
    the same for all kinds.

    Returns: 1 unbounded, 1/2 bounded.
    """
    return Fraction(1, relation(neighbours).l1)
