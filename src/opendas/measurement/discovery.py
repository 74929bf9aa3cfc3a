"""Discover privately which values of the records may be published; apart from the plan of a run.

Each record counts in at most one bin of each histogram: its label of an attribute, or its path down to a
level. A value is published if its noisy count exceeds a threshold. A value of a single record exceeds it with
probability at most delta over all histograms. Argument: docs/proofs/domain-discovery.md.
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
    """Histograms of a discovery, and their noise."""

    discovery: Discovery  # name and loss of the act: rho is that of replacing one record
    histograms: tuple[str, ...]  # description of each of the k histograms

    def __post_init__(self) -> None:
        if self.discovery.rho <= 0:
            raise ConfigError("rho of a discovery must be positive.")
        if not 0 < self.discovery.delta < 1:
            raise ConfigError("delta of a discovery must lie strictly between 0 and 1.")
        if not 0 < len(self.histograms) <= _MOST_HISTOGRAMS:
            raise ConfigError(f"a discovery counts in 1 to {_MOST_HISTOGRAMS} histograms.")

    @property
    def sigma2(self) -> Fraction:
        """Variance parameter of the noise, in squared counts: k / rho.

        A replaced record changes at most two bins of each histogram by one, so the squared distance is 2 k
        and the loss 2 k / (2 sigma2).
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
        """Return the least number of records with which a value is found with probability `confidence`."""
        return self.threshold + 1 + DiscreteGaussian(self.sigma2).margin(2 * confidence - 1)

    def digest(self) -> str:
        """Return the SHA-256 of everything that determines the draws besides input and key. Public."""
        document = {"format": _FORMAT, **self.discovery.to_dict(), "histograms": list(self.histograms)}
        return hashlib.sha256(canonical_json(document)).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """The bins of a histogram that may be published."""

    bins: Ints  # (p,): their positions, ascending
    noisy: Ints  # (p,): their noisy counts


def discover(counts: Sequence[Ints], plan: DiscoveryPlan, key: bytes) -> list[Passed]:
    """Draw noise and return the bins that pass. Call it once, after a ledger records the act.

    - `counts` (n,): for each histogram, its bins with at least one record. A record counts in one bin of each
      at most.
    - `key`, 32 bytes: key of this act alone.

    Notes
    -----
    Bun and Steinke (2016), section 8 (approximate zCDP); Canonne, Kamath and Steinke (2020), section 2.
    """
    if len(counts) != len(plan.histograms):
        raise PrivacyError("The histograms of a discovery are not those of its plan. Nothing was drawn.")
    if any(len(each) and int(each.min()) < 1 for each in counts):
        raise PrivacyError("A value that no record has cannot be a candidate. Nothing was drawn.")
    table = SamplerTable.build(DiscreteGaussian(plan.sigma2))
    requests = [(table, 0, number, np.arange(len(each))) for number, each in enumerate(counts)]
    found = []
    for each, noise in zip(counts, NoiseSource(key).draw_many(0, requests), strict=True):
        noisy = each + noise
        bins = np.flatnonzero(noisy > plan.threshold)
        found.append(Passed(bins, noisy[bins]))
    return found
