"""Convert rho to (epsilon, delta) by named formulas, rounded so that they are upper bounds.

A mechanism is rho-zCDP when for every order ``alpha > 1`` and every neighbouring pair the Renyi
divergence of its outputs is at most ``alpha * rho``. rho is what is spent and summed; formulas give the pairs
(epsilon, delta) that it implies. There are two, because both are quoted in print:

``bun-steinke``
    ``rho + 2 sqrt(rho ln(1/delta))``, Bun and Steinke (2016), Proposition 1.3. Not tight; the TopDown paper
    quotes it (1.095 gives 11.14).
``cks``
    The optimised Renyi conversion of Canonne, Kamath and Steinke (2020), Corollary 13. The certificates of
    the production system behind the TopDown paper quote it.

Both are evaluated in 60-digit decimal arithmetic and rounded up, so that the float returned is itself a
valid epsilon. Derivations: ``docs/proofs/conversions.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction
from types import MappingProxyType

from opendas.errors import ConfigError
from opendas.privacy.exact import format_fraction, parse_fraction

SEVERAL = (2, 4)
"""Group sizes, such as the persons of a household, whose loss is stated."""

_DIGITS = 60
# Each evaluation below takes a few dozen correctly rounded operations on terms listed beside it. Their summed
# rounding errors stay below this fraction of the sum of absolute terms, by more than seven digits.
_SLACK = Decimal(10) ** -50
# Halvings of a logarithm, which give t to 16 digits or more. Its error enters the value squared.
_SEARCH_STEPS = 60
_SEARCH_DIGITS = 24


def group_loss(loss: Fraction, units: int, *, pure: bool) -> Fraction:
    """Return the loss when several protected units change together, such as the persons of a household.

    - `loss`: loss of one unit: rho, or epsilon if `pure`.
    - `units`, >= 1.
    - Returns: ``units**2`` times rho, ``units`` times epsilon. This is the smallest valid bound: units that
      change alike attain it, for instance persons of one age and race who move together.

    Notes
    -----
    Bun and Steinke (2016), Proposition 1.9; docs/proofs/units.md.
    """
    return loss * (units if pure else units**2)


def _context() -> Context:
    return Context(prec=_DIGITS, Emax=999999999, Emin=-999999999)


def _decimal(value: Fraction, rounding: str) -> Decimal:
    with localcontext(_context()) as context:
        context.rounding = rounding
        return Decimal(value.numerator) / Decimal(value.denominator)


def _float_up(value: Decimal) -> float:
    """Return the smallest float not below the value."""
    rounded = float(value)
    return math.nextafter(rounded, math.inf) if Decimal(rounded) < value else rounded


def _checked_rho(rho: Fraction | int | str) -> Fraction:
    exact = parse_fraction(rho, "rho")
    if exact < 0:
        raise ConfigError(f"rho is {format_fraction(exact)}; it must not be negative.")
    return exact


def checked_delta(delta: Fraction | int | str) -> Fraction:
    """Read a delta exactly; one outside (0, 1) raises a ConfigError."""
    exact = parse_fraction(delta, "delta")
    if not 0 < exact < 1:
        raise ConfigError(
            f'delta is {format_fraction(exact)}; it must lie strictly between 0 and 1, for instance "1e-10".'
        )
    return exact


def _root(increasing: Callable[[Decimal], Decimal], low: Decimal, high: Decimal) -> Decimal:
    """Bisect an increasing function of t > 0 on a logarithmic scale.

    The callers' bounds hold at every t, so the precision of the root affects tightness, never validity.
    """
    with localcontext() as context:
        context.prec = _SEARCH_DIGITS
        for _ in range(_SEARCH_STEPS):
            middle = (low * high).sqrt()
            if increasing(middle) < 0:
                low = middle
            else:
                high = middle
        return (low * high).sqrt()


def _sum_up(terms: Iterable[Decimal]) -> Decimal:
    """Return an upper bound of the exact sum of terms with rounding errors."""
    listed = tuple(terms)
    return sum(listed, Decimal(0)) + _SLACK * sum((abs(term) for term in listed), Decimal(0))


def epsilon_bun_steinke(rho: Fraction | int | str, delta: Fraction | int | str) -> float:
    """Convert rho to epsilon by ``rho + 2 sqrt(rho ln(1/delta))``.

    - `rho`, >= 0.
    - `delta`, in (0, 1).
    - Returns: rounded up, hence a valid epsilon.

    Raises `ConfigError` if an argument is a float or out of range.

    Notes
    -----
    Bun and Steinke (2016), Proposition 1.3; the formula behind 11.14 and 4.36 in the TopDown paper. Its
    delta also bounds the probability that the privacy loss exceeds epsilon.

    Examples
    --------
    >>> round(epsilon_bun_steinke("1.095", "1e-10"), 2)
    11.14
    """
    exact_rho, exact_delta = _checked_rho(rho), checked_delta(delta)
    with localcontext(_context()):
        r = _decimal(exact_rho, ROUND_CEILING)
        log_term = _decimal(1 / exact_delta, ROUND_CEILING).ln()
        value = r + 2 * (r * log_term).sqrt()
        return _float_up(value * (1 + _SLACK))


def epsilon_cks(rho: Fraction | int | str, delta: Fraction | int | str) -> float:
    """Convert rho to epsilon by the optimised Renyi conversion.

    - `rho`, >= 0.
    - `delta`, in (0, 1).
    - Returns: rounded up, hence a valid epsilon; 0 if even epsilon = 0 has a smaller delta.

    Raises `ConfigError` if an argument is a float or out of range.

    Notes
    -----
    Canonne, Kamath and Steinke (2020), Corollary 13. With ``t = alpha - 1`` and ``L = ln(1/delta)`` every
    t > 0 gives the valid ``rho (1 + t) + ln(t / (1 + t)) + (L - ln(1 + t)) / t``, whose derivative has the
    sign of ``rho t^2 + ln(1 + t) - L``: one root, one minimum.

    Examples
    --------
    >>> round(epsilon_cks("293764/114921", "1e-10"), 2)
    17.14
    """
    exact_rho, exact_delta = _checked_rho(rho), checked_delta(delta)
    if exact_rho == 0:
        return 0.0
    with localcontext(_context()):
        r = _decimal(exact_rho, ROUND_CEILING)
        log_term = _decimal(1 / exact_delta, ROUND_CEILING).ln()
        low = min(log_term / 2, (log_term / (2 * r)).sqrt())
        high = (log_term / r).sqrt()
        t = _root(lambda x: r * x * x + (1 + x).ln() - log_term, min(low, high), high)
        terms = (r, r * t, -(1 + 1 / t).ln(), log_term / t, -(1 + t).ln() / t)
        value = _sum_up(terms)
        return max(0.0, _float_up(value))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of the (epsilon, delta) curve of a rho.

    `cks`, `bun_steinke`: valid epsilons at this delta.
    """

    delta: Fraction
    cks: float
    bun_steinke: float


def epsilon_curve(
    rho: Fraction | int | str, deltas: Iterable[Fraction | int | str]
) -> tuple[CurvePoint, ...]:
    """Return the epsilons of one rho at several deltas.

    - `rho`, >= 0.
    - `deltas`, in (0, 1).
    - Returns: in the order of ``deltas``.
    """
    points = (checked_delta(delta) for delta in deltas)
    return tuple(CurvePoint(d, epsilon_cks(rho, d), epsilon_bun_steinke(rho, d)) for d in points)


FORMULAS: Mapping[str, Callable[[Fraction, Fraction], float]] = MappingProxyType(
    {"cks": epsilon_cks, "bun-steinke": epsilon_bun_steinke}
)


@dataclass(frozen=True, slots=True)
class Account:
    """The (epsilon, delta) guarantees of a rho.

    - `rho`, >= 0: total loss of the accounted change. Text and integers are read exactly.
    - `delta`, in (0, 1): where epsilon is quoted.

    Raises `ConfigError` if an argument is a float or out of range.

    Examples
    --------
    >>> round(Account("1.05", "1e-10").epsilon(), 2)
    10.31
    """

    rho: Fraction
    delta: Fraction = Fraction(1, 10**10)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", _checked_rho(self.rho))
        object.__setattr__(self, "delta", checked_delta(self.delta))

    def epsilon(self, formula: str = "cks") -> float:
        """Return epsilon at ``delta`` by a named formula, rounded up.

        `formula`, one of "cks", "bun-steinke".

        Raises `ConfigError` if the formula is unknown.
        """
        if formula not in FORMULAS:
            raise ConfigError(
                f"There is no conversion formula {formula!r}; the formulas are {', '.join(sorted(FORMULAS))}."
            )
        return FORMULAS[formula](self.rho, self.delta)

    def as_json(self) -> dict[str, object]:
        """Return the JSON values of ``opendas account``: rho exact, delta and epsilons as floats."""
        return {
            "rho": format_fraction(self.rho),
            "delta": float(self.delta),
            "epsilon": {name: self.epsilon(name) for name in FORMULAS},
        }


@dataclass(frozen=True, slots=True)
class PureAccount:
    """The guarantees of a pure epsilon.

    `pure_epsilon`, >= 0: total loss under pure differential privacy (delta = 0).

    Raises `ConfigError` if the argument is a float or negative.
    """

    pure_epsilon: Fraction

    def __post_init__(self) -> None:
        exact = parse_fraction(self.pure_epsilon, "epsilon")
        if exact < 0:
            raise ConfigError(f"epsilon is {format_fraction(exact)}; it must not be negative.")
        object.__setattr__(self, "pure_epsilon", exact)

    @property
    def implied_rho(self) -> Fraction:
        """``epsilon^2 / 2``, the rho implied by epsilon-DP (Bun and Steinke 2016, Proposition 1.4).

        A weaker statement than the epsilon, so quoted with it and never instead of it.
        """
        return self.pure_epsilon**2 / 2

    def epsilon(self, formula: str = "pure") -> float:
        """Return the epsilon as a float, rounded up. The only formula is ``"pure"``."""
        if formula != "pure":
            raise ConfigError(f"A pure epsilon needs no conversion formula; {formula!r} was asked for.")
        with localcontext(_context()):
            return _float_up(_decimal(self.pure_epsilon, ROUND_CEILING))

    def as_json(self) -> dict[str, object]:
        """Return strict JSON values: ``rho`` is null, ``implied_rho`` the rho it implies."""
        return {
            "rho": None,
            "delta": 0.0,
            "epsilon": {"pure": self.epsilon()},
            "implied_rho": format_fraction(self.implied_rho),
        }
