"""Mechanisms that draw the noisy answers of a query group: ours, and those of other packages.

A mechanism states the loss of its answers. Ours draw many geounits at once, by :mod:`opendas.sampling.noise`;
the bytes are those of :meth:`AnswerMechanism.answer`, geounit by geounit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import ConfigError, PrivacyError
from opendas.parts import MECHANISMS, Origin, outside_part
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace, Noise

Stated = TypeVar("Stated")


class KeyedWords(Protocol):
    """Random bits under the key of a run, of one query group at one geounit."""

    def __call__(self, numbers: Ints, refinement: int = 0, /) -> npt.NDArray[np.uint64]:
        """Return 64 bits for each number, uint64 (k,): always the same for the same number and refinement.

        `numbers`, int64 (k,), are below 2**48, `refinement` below 2**16. Different ones have independent
        bits.
        """
        ...


class AnswerMechanism(Protocol):
    """Draws the noisy answers of one query group at one geounit, and states what they cost.

    ``definition`` is ``"zcdp"`` or ``"pure-dp"``. ``loss`` is the exact loss that the run grants an answer:
    rho for each unit of squared L2 distance between two vectors of true answers, or epsilon for each unit of
    L1 distance. A part of another package has the definition ``"zcdp"``; ``proof`` may name the argument.
    """

    @property
    def name(self) -> str:
        """Its name in run files."""
        ...

    @property
    def definition(self) -> str:
        """Privacy definition of its loss."""
        ...

    def spends(self, loss: Fraction, /) -> Fraction:
        """Return the part of a loss that it spends, exactly; at most `loss`."""
        ...

    def variance(self, loss: Fraction, /) -> float:
        """Return the variance of one answer, in squared counts; the same whatever the true answers are."""
        ...

    def margin(self, loss: Fraction, confidence: Fraction, /) -> int:
        """Return a half-width, in counts, that the noise of one answer keeps with this probability."""
        ...

    def answer(self, exact: Ints, loss: Fraction, words: KeyedWords, /) -> Ints:
        """Return noisy answers, int64 (m,), of mean `exact`, int64 (m,): all random numbers are `words`."""
        ...


def _drawn(law: Noise, exact: Ints, words: KeyedWords) -> Ints:
    """Add a draw of a law to each answer: that of the word with the answer's number."""
    from opendas.sampling.inverse_cdf import SamplerTable  # compiled: status does without

    numbers = np.arange(len(exact), dtype=np.int64)
    return exact + SamplerTable.build(law).draw(
        words(numbers), lambda i, r: int(words(numbers[i : i + 1], r)[0])
    )


class _OwnAnswers:
    """Independent noise of a law that the loss determines; all of the loss is spent."""

    def law(self, loss: Fraction) -> Noise:
        """Return the law of an answer's noise."""
        raise NotImplementedError

    def spends(self, loss: Fraction) -> Fraction:
        """Return all of it."""
        return loss

    def variance(self, loss: Fraction) -> float:
        """Return the variance of the law."""
        return self.law(loss).variance

    def margin(self, loss: Fraction, confidence: Fraction) -> int:
        """Return the margin of the law, decided exactly."""
        return self.law(loss).margin(confidence)

    def answer(self, exact: Ints, loss: Fraction, words: KeyedWords) -> Ints:
        """Return answers with independent noise."""
        return _drawn(self.law(loss), exact, words)


class GaussianAnswers(_OwnAnswers):
    """Discrete Gaussian noise of parameter ``1 / (2 rho)``."""

    name, definition = "discrete-gaussian", "zcdp"

    def law(self, loss: Fraction) -> Noise:
        """Return the law of an answer's noise."""
        return DiscreteGaussian(1 / (2 * loss))


class LaplaceAnswers(_OwnAnswers):
    """Discrete Laplace noise, the two-sided geometric law, of scale ``1 / epsilon``."""

    name, definition = "discrete-laplace", "pure-dp"

    def law(self, loss: Fraction) -> Noise:
        """Return the law of an answer's noise."""
        return DiscreteLaplace(1 / loss)


OWN_MECHANISMS: Mapping[str, AnswerMechanism] = MappingProxyType(
    {each.name: each for each in (GaussianAnswers(), LaplaceAnswers())}
)

_STATED = re.compile(r"zcdp:(?P<name>[\w.-]+) \((?P<package>[\w.-]+) (?P<version>[\w.+!-]+)\)")


def is_stated(mechanism: str) -> bool:
    """Whether a word of a certificate names a mechanism of another package, with its version."""
    return _STATED.fullmatch(mechanism) is not None


def stated_mechanism(name: str) -> str:
    """Return the word for a mechanism of a run file: its name, and for one of another package its version.

    The version is part of the measurement plan, so that one key never serves two versions.
    """
    if name in OWN_MECHANISMS:
        return name
    part, origin = outside_part(MECHANISMS, name, OWN_MECHANISMS)
    word = f"zcdp:{name} ({origin.package} {origin.version})"
    methods = ("spends", "variance", "margin", "answer")
    if getattr(part, "name", None) != name or not all(
        callable(getattr(part, each, None)) for each in methods
    ):
        raise ConfigError(
            f"{name!r} is not a mechanism: it needs name = {name!r} and the methods {', '.join(methods)}."
        )
    if getattr(part, "definition", None) != "zcdp":
        raise ConfigError(
            f"the mechanism {name!r} is not a zCDP mechanism: it needs definition = 'zcdp'. Pure "
            "epsilon-differential privacy is zCDP with rho = epsilon ** 2 / 2."
        )
    if not is_stated(word):
        raise ConfigError(
            f"{word!r} does not fit into a certificate: name, package and version must each be one word."
        )
    return word


@lru_cache(maxsize=64)
def find_mechanism(word: str) -> tuple[AnswerMechanism, Origin]:
    """Return the mechanism of another package that a plan was made with."""
    found = _STATED.fullmatch(word)
    if found is None:
        raise ConfigError(f"{word!r} does not name a mechanism of another package.")
    part, origin = outside_part(MECHANISMS, found["name"], OWN_MECHANISMS)
    if stated_mechanism(found["name"]) != word:
        raise ConfigError(
            f"the plan was made with {found['name']} of the package {found['package']} {found['version']}, "
            f"but {origin.package} {origin.version} is installed. Install the version of the plan."
        )
    return part, origin


@dataclass(frozen=True, slots=True)
class StatedNoise:
    """The noise of a mechanism of another package, as it states it; its law is not known."""

    # > 0: ``1 / (2 rho)``, in squared counts: the parameter of the discrete Gaussian of the same loss.
    sigma2: Fraction
    mechanism: str  # as :func:`stated_mechanism` words it

    @property
    def name(self) -> str:
        """Name written into messages."""
        return self.mechanism

    @property
    def parameter(self) -> Fraction:
        """The parameter that identifies the noise."""
        return self.sigma2

    @property
    def rho(self) -> Fraction:
        """Loss for each unit of squared distance."""
        return 1 / (2 * self.sigma2)

    @property
    def variance(self) -> float:
        """As its package states."""
        value = self._stated("variance", float)
        if not 0 < value < float("inf"):
            raise PrivacyError(
                f"{self.mechanism} states a variance of {value}; it must be positive and finite."
            )
        return value

    def margin(self, confidence: Fraction) -> int:
        """As its package states."""
        value = self._stated("margin", int, confidence)
        if value < 0:
            raise PrivacyError(f"{self.mechanism} states a margin of {value}; it must not be negative.")
        return value

    def _stated(self, method: str, kind: Callable[[Any], Stated], *arguments: Fraction) -> Stated:
        """Return what a method of the mechanism states of its loss."""
        part = find_mechanism(self.mechanism)[0]
        try:
            return kind(getattr(part, method)(self.rho, *arguments))
        except Exception as error:
            raise PrivacyError(f"{self.mechanism}: {method} failed with {type(error).__name__}.") from error

    def tail_length(self, bits: int) -> int:
        """Return 0: its draws need no table of ours."""
        return 0

    def check(self) -> None:
        """Refuse what its package states of loss, variance and margin, before a key exists."""
        spent = self._stated("spends", lambda value: value)
        if not isinstance(spent, Fraction | int) or isinstance(spent, bool) or not 0 < spent <= self.rho:
            raise PrivacyError(
                f"{self.mechanism} states that it spends {spent} of rho {self.rho}; it must state an "
                "exact number above 0 and not above what it is granted."
            )
        _ = self.variance, self.margin(Fraction(9, 10))

    def answers(self, exact: Ints, words: KeyedWords) -> Ints:
        """Return the noisy answers of one query group at one geounit, int64 (m,)."""
        part = find_mechanism(self.mechanism)[0]
        given = exact.copy()
        given.flags.writeable = False
        try:
            found = np.asarray(part.answer(given, self.rho, words))
        except Exception as error:
            raise PrivacyError(f"{self.mechanism} failed with {type(error).__name__}.") from None
        if found.shape != exact.shape or found.dtype != np.int64:
            raise PrivacyError(
                f"{self.mechanism} answers with {found.dtype} of shape {found.shape}; it must answer with "
                f"int64 of shape {exact.shape}."
            )
        return found


AnyNoise = Noise | StatedNoise
"""Noise of an answer: a law of ours, or what another package states."""
