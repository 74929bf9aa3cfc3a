"""Probe B: whether the noises of the coordinates that one moved person touches are independent.

A person who moves from one block to another, in another state, and changes every characteristic, touches two
answers of each query group at each geolevel: about 130 coordinates. Were a word of noise used for two of
them, their residuals would be nearly proportional; were one of them left without noise, its residual would
be 0. With K samples the correlation of two independent coordinates has a standard error of ``1 / sqrt(K)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from audit.subject import Subject, declared_sigma2
from opendas.custody.run_key import RunKey

__all__ = ["Covariance", "Moved", "covariance", "moved_person"]


@dataclass(frozen=True)
class Moved:
    """The coordinates of one moved person.

    Parameters
    ----------
    names : list of str
        Geolevel, query group and side of each coordinate.
    sigma2 : float64 (d,)
        Declared variance parameters.
    before, after : int
        The person's cell in the first and in the second block.
    """

    names: list[str]
    sigma2: npt.NDArray[np.float64]
    before: int
    after: int

    def residuals(self, subject: Subject, run_key: RunKey, moved: bool) -> npt.NDArray[np.int64]:
        """Measure all pairs of chains under one key, int64 (pairs, d), less the person's own presence.

        Pair ``p`` is chains ``2p`` (the person's first place) and ``2p + 1`` (the second). The person is in
        the second with `moved`.
        """
        cells = np.full((subject.chains, 1), -1, dtype=np.int64)
        cells[int(moved) :: 2, 0] = self.after if moved else self.before
        counts = subject.counts(cells)
        measured = subject.measure(subject.noise_key(run_key, counts), counts)
        support = np.array(sorted((self.before, self.after)), dtype=np.int32)
        columns = []
        for level in range(len(subject.levels)):
            for answer in measured.family(level, 0, subject.chains, support).queries:
                for side, cell in ((0, self.before), (1, self.after)):
                    column = int(np.searchsorted(answer.rows, subject.row_of_cell(answer.name)[cell]))
                    columns.append(answer.values[side::2, column] - int(side == int(moved)))
        return np.stack(columns, axis=1)


def moved_person(subject: Subject) -> Moved:
    """Choose two cells that differ in every attribute, and list the coordinates they touch."""
    shape = subject.plan.product.schema.shape
    before = int(np.ravel_multi_index((0, 0, 0, 5), shape))
    after = int(np.ravel_multi_index((5, 1, 1, 17), shape))
    names, sigma2 = [], []
    for level in subject.levels:
        for query in level.queries:
            for side in ("left", "joined"):
                names.append(f"{level.geolevel}: {query.name} ({side})")
                sigma2.append(float(declared_sigma2(level.geolevel, query.name)))
    return Moved(names, np.array(sigma2), before, after)


@dataclass(frozen=True)
class Covariance:
    """What the correlations of all pairs of coordinates say.

    Parameters
    ----------
    samples, coordinates : int
    largest, largest_of_squares : float
        Largest correlation of two coordinates, in standard errors, of residuals and of their squares.
    pair : str
        Where the largest is.
    variance_z : float
        Largest departure of a coordinate's variance from the declared one, in standard errors.
    """

    samples: int
    coordinates: int
    largest: float
    largest_of_squares: float
    pair: str
    variance_z: float

    @property
    def correlation_bound(self) -> float:
        """No correlation of two coordinates is larger, with confidence above 1 - 2e-6 for all pairs."""
        return (self.largest + 6.5) / math.sqrt(self.samples)

    @property
    def scale_bound(self) -> float:
        """No coordinate's noise scale is off by a larger fraction, with confidence above 1 - 3e-7 for all."""
        return (self.variance_z + 6) / math.sqrt(2 * self.samples)

    def problems(self) -> list[str]:
        """Say what does not fit. With 8,385 pairs a normal exceeds 6.5 by chance once in 10**6 audits."""
        found = []
        if self.largest > 6.5:
            found.append(f"correlation of {self.largest:.1f} standard errors: {self.pair}")
        if self.largest_of_squares > 11:
            found.append(f"correlation of squares of {self.largest_of_squares:.1f} standard errors")
        if self.variance_z > 6:
            found.append(f"a variance {self.variance_z:.1f} standard errors off")
        return found


def _samples(subject: Subject, moved: Moved, keys: range) -> Iterator[npt.NDArray[np.float64]]:
    scale = np.sqrt(moved.sigma2)
    for number in keys:
        yield moved.residuals(subject, RunKey.seeded(number), number % 2 == 1) / scale


def covariance(subject: Subject, keys: range) -> Covariance:
    """Correlate the coordinates over keys and pairs of chains."""
    moved = moved_person(subject)
    d = len(moved.names)
    sums = np.zeros((2, d, d))
    n = 0
    batch: list[npt.NDArray[np.float64]] = []
    for residuals in _samples(subject, moved, keys):
        batch.append(residuals)
        n += len(residuals)
        if len(batch) * len(residuals) >= 4096:
            sums += _products(np.concatenate(batch))
            batch = []
    if batch:
        sums += _products(np.concatenate(batch))
    plain, squared = sums / n
    variances = _variances(moved.sigma2)
    plain_z = np.abs(_correlation(plain, variances)) * math.sqrt(n)
    squared_z = np.abs(_correlation(squared, np.diag(squared))) * math.sqrt(n)
    off = ~np.eye(d, dtype=bool)
    i, j = np.unravel_index(np.argmax(np.where(off, plain_z, 0)), plain_z.shape)
    variance_z = np.abs(np.diag(plain) / variances - 1) * math.sqrt(n / 2)
    return Covariance(
        n,
        d,
        float(plain_z[i, j]),
        float(squared_z[off].max()),
        f"{moved.names[i]} with {moved.names[j]}",
        float(variance_z.max()),
    )


def _variances(sigma2: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Variance of the discrete Gaussian over its parameter; below 1 where the noise is small."""
    values = np.arange(-2000, 2001, dtype=np.float64)
    ratios = np.ones(len(sigma2))
    for i in np.flatnonzero(sigma2 < 5000):
        weights = np.exp(-(values**2) / (2 * sigma2[i]))
        ratios[i] = (weights @ values**2) / weights.sum() / sigma2[i]
    return ratios


def _products(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    squares = x * x - 1
    return np.stack([x.T @ x, squares.T @ squares])


def _correlation(
    products: npt.NDArray[np.float64], variances: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = products / np.sqrt(np.outer(variances, variances))
    return np.nan_to_num(found, nan=1.0, posinf=1.0)
