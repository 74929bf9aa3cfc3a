"""What the exact loss of a release means for an attacker: tests, guesses, beliefs, odds.

The attacker knows everything but which of two neighbouring inputs is the true one. All figures are upper
bounds for the discrete noise that is really drawn; where neighbours can differ in several ways, the worst
counts. The same questions answered from rho alone: :mod:`opendas.privacy.tradeoff`. Proofs:
``docs/proofs/exact-accounting.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opendas.errors import ConfigError
from opendas.privacy.composed import ComposedLoss
from opendas.privacy.grid import GRID_POINTS, TiltedGrid
from opendas.privacy.worst import WorstLoss

__all__ = ["Attacker", "PowerPoint"]

_POINTS = GRID_POINTS >> 2


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """One point of a trade-off curve.

    Parameters
    ----------
    level : float
        How often the attacker is wrong when the claim is false (type I error).
    power : float
        How often at most the attacker is then right when the claim is true.
    """

    level: float
    power: float


class Attacker:
    """Upper bounds on what anybody can tell from a release.

    Parameters
    ----------
    worst : WorstLoss
    """

    def __init__(self, worst: WorstLoss) -> None:
        points = min(_POINTS, worst.points)
        losses = [worst.loss(k, points) for k in range(len(worst.changes))]
        self._views = [_Untilted(loss) for loss in losses if loss.parts]

    def power(self, level: float) -> float:
        """Largest power of any test at a false-positive rate.

        Parameters
        ----------
        level : float, in (0, 1)

        Raises
        ------
        ConfigError
            If the level is out of range.
        """
        return self._worst(lambda view: view.power(_chance(level, "level")), level)

    def curve(self, levels: Sequence[float]) -> tuple[PowerPoint, ...]:
        """Return the trade-off curve at some levels."""
        return tuple(PowerPoint(level, self.power(level)) for level in levels)

    def guess(self, prior: float = 0.5) -> float:
        """Largest chance to guess right between two inputs.

        Parameters
        ----------
        prior : float, in (0, 1)
            Chance of the first input before looking. Without a release the best guess is right with the
            larger of `prior` and ``1 - prior``.
        """
        known = max(_chance(prior, "prior"), 1.0 - prior)
        return self._worst(lambda view: view.guess(prior), known)

    def belief(self, prior: float) -> float:
        """Largest probability, on average over the noise, that the attacker ends up giving the truth.

        Parameters
        ----------
        prior : float, in (0, 1)
            Probability given to the truth before looking.
        """
        return self._worst(lambda view: view.belief(_chance(prior, "prior")), prior)

    def odds(self, factor: float) -> float:
        """Largest chance that the release multiplies the odds of a true claim by more than a factor.

        Parameters
        ----------
        factor : float, > 1
        """
        if not factor > 1.0:
            raise ConfigError("factor must be greater than 1.")
        return self._worst(lambda view: view.odds(math.log(factor)), 0.0)

    def _worst(self, figure: Callable[[_Untilted], float], without: float) -> float:
        return min(1.0, max([without, *(figure(view) for view in self._views)]))


class _Untilted:
    """One composed loss on a grid without tilt, for chances that are not tiny."""

    def __init__(self, loss: ComposedLoss) -> None:
        self._grid = TiltedGrid(loss.parts, 0.0, loss.points, 0.0)
        self._loss, self._missing = loss, loss.missing

    def delta(self, epsilon: float) -> float:
        if not self._grid.covers(epsilon):
            return self._loss.delta_at(epsilon).upper
        return self._grid.delta(epsilon).upper + self._missing

    def power(self, level: float) -> float:
        # delta + level * exp(epsilon) bounds the power at every epsilon: any choice is valid, the best tight.
        epsilon = self._grid.threshold(level)
        return self.delta(epsilon) + level * math.exp(epsilon)

    def guess(self, prior: float) -> float:
        # Each of the two answers may be taken as the first; the better bound need not be known beforehand.
        odds = (1.0 - prior) / prior
        return (1.0 - prior) + prior * self.delta(math.log(odds))

    def belief(self, prior: float) -> float:
        return self._grid.mean_posterior(prior) + self._missing

    def odds(self, threshold: float) -> float:
        return self._grid.tail(threshold) + self._missing


def _chance(value: float, what: str) -> float:
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{what} must lie strictly between 0 and 1.")
    return value
