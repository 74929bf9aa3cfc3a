"""Neighbour relations, mechanisms, and the noise of a query group for its share of the budget."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction

from opendas.errors import BudgetError
from opendas.privacy.exact import format_fraction
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace
from opendas.sampling.mechanisms import AnyNoise, StatedNoise, is_stated

LARGEST_LOSS = 10**15
"""Largest accepted loss, beyond any use; above it, certificate figures overflow doubles."""


class Neighbours(StrEnum):
    """Pairs of data sets that the guarantee compares.

    ``BOUNDED``: one record is replaced by another, anywhere. ``UNBOUNDED``: one record is added or removed.

    The sensitivities are those of a marginal query group: each record counts in exactly one cell of the
    group, so a replaced record moves one count between cells and an added record raises one cell by one. If a
    unit has several records, neighbours differ in a unit and the sensitivities grow: see
    :func:`noise_distribution`.
    """

    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"

    @property
    def l2_squared(self) -> int:
        """Squared L2 sensitivity of a marginal query group: 2 bounded, 1 unbounded."""
        return 2 if self is Neighbours.BOUNDED else 1

    @property
    def l1(self) -> int:
        """L1 sensitivity of a marginal query group: 2 bounded, 1 unbounded."""
        return 2 if self is Neighbours.BOUNDED else 1


class Mechanism(StrEnum):
    """Discrete Gaussian noise under zCDP, or discrete Laplace noise under pure differential privacy.

    Mechanisms of other packages, ``zcdp:NAME (PACKAGE VERSION)``, become members when first named.
    """

    DISCRETE_GAUSSIAN = "discrete-gaussian"
    DISCRETE_LAPLACE = "discrete-laplace"

    @classmethod
    def _missing_(cls, value: object) -> Mechanism | None:
        if not isinstance(value, str) or not is_stated(value):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type[Mechanism], tuple[str]]:
        """Go to other processes by value: Python 3.11.2 looks for the name, which those have not met."""
        return type(self), (self.value,)

    @property
    def is_zcdp(self) -> bool:
        """Whether the loss is a rho of zCDP rather than a pure epsilon."""
        return self is not Mechanism.DISCRETE_LAPLACE

    @property
    def loss_name(self) -> str:
        """Name of the loss parameter: ``"rho"`` or ``"epsilon"``."""
        return "rho" if self.is_zcdp else "epsilon"


def noise_distribution(
    mechanism: Mechanism,
    neighbours: Neighbours,
    share: Fraction,
    total: Fraction,
    *,
    records: int = 1,
    together: int = 1,
) -> AnyNoise:
    """Return the noise of every cell of a marginal query group with a share of the budget.

    - `share`, in (0, 1]: product of the shares from the total down to this query group.
    - `total`, > 0: rho for the discrete Gaussian, epsilon for the discrete Laplace.
    - `records`, >= 1: most records of one protected unit, in which neighbours differ.
    - `together`, from 1 to `records`: most of those records in one cell of the group.
    - Returns: zCDP: ``sigma2 = D2^2 / (2 * share * rho)``, so ``1 / sigma2 = share * rho`` bounded and ``2 *
      share * rho`` unbounded. Laplace: ``scale = D1 / (share * epsilon)``. For units of several records
      ``D2^2`` is ``records * together`` times as large, and ``D1`` `records` times.

    Raises `BudgetError` if the share lies outside (0, 1], or the total is not positive; a query without
    budget is not measured.

    Notes
    -----
    Abowd et al. (2022), Theorem 2 (bounded); argument for both relations in ``docs/proofs/composition.md``,
    for units of several records in ``docs/proofs/units.md``.

    Examples
    --------
    >>> noise_distribution(
    ...     Mechanism.DISCRETE_GAUSSIAN, Neighbours.BOUNDED, Fraction(1, 4), Fraction(2)
    ... ).sigma2
    Fraction(2, 1)
    """
    if not 0 < share <= 1:
        raise BudgetError(
            f"A query group was given the share {format_fraction(share)} of the budget; a share lies in "
            "(0, 1]. A query without budget is not measured: leave it out."
        )
    if total <= 0:
        raise BudgetError(
            f"The total {mechanism.loss_name} is {format_fraction(total)}; it must be positive. "
            f"Set {mechanism.loss_name} in [budget]."
        )
    if not 1 <= together <= records:
        raise BudgetError(f"{together} of {records} records of a unit in one cell: expected 1 to {records}.")
    if mechanism.is_zcdp:
        return noise_of(mechanism, Fraction(neighbours.l2_squared * records * together) / (2 * share * total))
    return noise_of(mechanism, Fraction(neighbours.l1 * records) / (share * total))


def noise_of(mechanism: Mechanism, parameter: Fraction) -> AnyNoise:
    """Return the noise of a mechanism: `parameter` is ``sigma2`` under zCDP, else ``scale``."""
    if mechanism is Mechanism.DISCRETE_GAUSSIAN:
        return DiscreteGaussian(parameter)
    if mechanism is Mechanism.DISCRETE_LAPLACE:
        return DiscreteLaplace(parameter)
    return StatedNoise(parameter, mechanism.value)
