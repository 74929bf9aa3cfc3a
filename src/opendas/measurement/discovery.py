"""Private discovery of a domain, apart from any plan of a run: which values of the records may be shown.

Every record adds one to at most one bin of each histogram: its label of an attribute, its path down to a
level. A value is shown if its count, with exact noise, exceeds a threshold that a value of one record alone
passes with a probability of delta at most, in all histograms together. Argument:
docs/proofs/domain-discovery.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from opendas.arrays import Ints
from opendas.errors import ConfigError, PrivacyError
from opendas.privacy.exact import canonical_json
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian
from opendas.sampling.noise import NoiseSource
from opendas.schema.provenance import Discovery

_FORMAT = "opendas domain discovery 1"
_MOST_HISTOGRAMS = 1 << 8
_SPARE_BITS = 64


@dataclass(frozen=True)
class DiscoveryPlan:
    """What is counted, and with what noise.

    Parameters
    ----------
    discovery : Discovery
        Name and loss of the act: rho is that of replacing one record.
    histograms : tuple of str
        What each counts, in words; k of them.

    Raises
    ------
    ConfigError
        If rho or delta are out of range, or there are no histograms, or more than 256.
    """

    discovery: Discovery
    histograms: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.discovery.rho <= 0:
            raise ConfigError("rho of a discovery must be positive.")
        if not 0 < self.discovery.delta < 1:
            raise ConfigError("delta of a discovery must lie between 0 and 1, neither of them included.")
        if not 0 < len(self.histograms) <= _MOST_HISTOGRAMS:
            raise ConfigError(f"a discovery counts in 1 to {_MOST_HISTOGRAMS} histograms.")

    @property
    def sigma2(self) -> Fraction:
        """Variance parameter of the noise, in squared counts: k / rho.

        Two inputs that differ by one replaced record differ by one in at most two bins of each histogram, so
        that the squared distance is 2 k, and the loss 2 k / (2 sigma2).
        """
        return Fraction(len(self.histograms)) / self.discovery.rho

    @cached_property
    def threshold(self) -> int:
        """The least tau >= 1, in counts, with ``k P(noise >= tau) <= delta``.

        A count of 1 with its noise exceeds tau just where the noise is at least tau. Decided by integers:
        ``P(noise > j)`` is below ``(floor + 1) / 2**bits``.
        """
        delta = self.discovery.delta
        bits = _SPARE_BITS + (delta.denominator // delta.numerator).bit_length()
        allowed = delta * 2**bits / len(self.histograms)
        floors = DiscreteGaussian(self.sigma2).tail_floors(bits)
        return next(j + 1 for j, floor in enumerate(floors) if floor + 1 <= allowed)

    def found_from(self, confidence: Fraction = Fraction(9, 10)) -> int:
        """Return from how many records on a value is found with a probability of `confidence` at least."""
        return self.threshold + 1 + DiscreteGaussian(self.sigma2).margin(2 * confidence - 1)

    def digest(self) -> str:
        """Return the SHA-256 of everything that the draws depend on, beside input and key. Public."""
        document = {"format": _FORMAT, **self.discovery.to_dict(), "histograms": list(self.histograms)}
        return hashlib.sha256(canonical_json(document)).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """The bins of a histogram that may be shown.

    Parameters
    ----------
    bins : int64 (p,)
        Their positions, ascending.
    noisy : int64 (p,)
        Their noisy counts.
    """

    bins: Ints
    noisy: Ints


def discover(counts: Sequence[Ints], plan: DiscoveryPlan, key: bytes) -> list[Passed]:
    """Draw, and return which bins pass. Call it once only, after the act stands in a ledger.

    Parameters
    ----------
    counts : sequence of int64 (n,)
        Of each histogram, its bins with at least one record. No record is counted in two bins of one.
    plan : DiscoveryPlan
    key : bytes, 32 of them
        Of this act alone.

    Raises
    ------
    PrivacyError
        If a bin without records is among them, the histograms are not those of the plan, or the noise is too
        wide. Nothing is drawn then.

    Notes
    -----
    Bun and Steinke (2016), section 8 (approximate zCDP); Canonne, Kamath and Steinke (2020), section 2.
    """
    if len(counts) != len(plan.histograms):
        raise PrivacyError("The histograms of a discovery are not those of its plan. Nothing was drawn.")
    if any(len(each) and int(each.min()) < 1 for each in counts):
        raise PrivacyError("A value that no record has is no candidate. Nothing was drawn.")
    table = SamplerTable.build(DiscreteGaussian(plan.sigma2))
    requests = [(table, 0, number, np.arange(len(each))) for number, each in enumerate(counts)]
    found = []
    for each, noise in zip(counts, NoiseSource(key).draw_many(0, requests), strict=True):
        noisy = each + noise
        bins = np.flatnonzero(noisy > plan.threshold)
        found.append(Passed(bins, noisy[bins]))
    return found
