"""Estimators by name: our own, and those of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from opendas.arrays import Floats
from opendas.errors import ConfigError, EstimationError
from opendas.parts import ESTIMATORS, Origin, origin_of, outside_part
from opendas.topdown.family import TopDown, nearest_feasible
from opendas.topdown.family_data import Estimator, FamilyData
from opendas.topdown.informed import Informed
from opendas.topdown.model import BLOCK_BY_BLOCK, INFORMED, OWN_ESTIMATORS, POSTERIOR, TOPDOWN
from opendas.topdown.posterior import Posterior

OURS: Mapping[str, Estimator] = MappingProxyType(
    {
        TOPDOWN: TopDown(),
        INFORMED: Informed(),
        POSTERIOR: Posterior(),
        BLOCK_BY_BLOCK: TopDown(),  # each leaf is a family of its own
    }
)

MOST = float(1 << 39)
"""Largest value that is taken from an estimator: the rounder is exact below twice as much."""


NEAR = 1e-9
"""How far, relative to the largest value, an answer may be from a constraint that it satisfies."""


@dataclass(frozen=True, slots=True)
class RunEstimator:
    """The estimator of a run."""

    name: str
    fits: Estimator
    origin: Origin | None = None  # of a part that is not ours


@dataclass(frozen=True, slots=True)
class _Checked:
    """An estimator of another package: its answers are checked, and made feasible if they are not."""

    estimator: Estimator
    package: str = ""  # where it is installed; empty for an object of a program

    @property
    def name(self) -> str:
        return self.estimator.name

    def fit(self, data: FamilyData) -> Floats:
        shape = (len(data.family.tie_keys), len(data.family.support))
        try:
            answer = np.asarray(self.estimator.fit(data))
        except Exception as error:
            if not self.package:
                raise
            raise EstimationError(
                f"the estimator {self.name} of the package {self.package} failed with {type(error).__name__} "
                f"for family {data.family.label}. od.experiment on synthetic data, with an object of its "
                "class, shows the traceback."
            ) from error
        if answer.shape != shape or answer.dtype.kind not in "iuf" or not np.isfinite(answer).all():
            finite = answer.dtype.kind not in "iuf" or bool(np.isfinite(answer).all())
            raise EstimationError(
                f"the estimator {self.name} answers with {answer.dtype} of shape {answer.shape} for family "
                f"{data.family.label}{'' if finite else ', some of it infinite or NaN'}. It must answer with "
                f"finite real numbers of shape {shape}: the records of each child in each cell."
            )
        data.progress.methods.append(self.name)
        values = np.clip(answer.astype(np.float64), 0.0, _upper_bounds(data))
        if _is_feasible(data, values):
            return values
        return nearest_feasible(data.family, data.groups, values, data.progress, f"estimator {self.name}")


def _upper_bounds(data: FamilyData) -> Floats:
    """Return what no cell of a child can exceed, float64 (C, s)."""
    groups, parent = data.groups, data.family.parent
    most = np.where(groups.mask, MOST if parent is None else parent, 0.0)
    if groups.joint is not None:
        most = np.minimum(most, groups.joint.totals[groups.joint.group][:, None])
    for cells, upper in zip(groups.cells, groups.upper.T, strict=True):
        most[:, cells] = np.minimum(most[:, cells], upper[:, None])
    return most


def _is_feasible(data: FamilyData, values: Floats) -> bool:
    """Whether numbers that no cell forbids keep parent and constraints: only such can be rounded."""
    parent, groups = data.family.parent, data.groups
    near = NEAR * max(1.0, float(values.max(initial=0.0)))
    sums = values @ groups.cells.T
    kept = bool((sums >= groups.lower - near).all() and (sums <= groups.upper + near).all())
    if groups.linear is not None:
        kept &= bool((groups.linear.excess(values) <= 0.0).all())
    if parent is not None:
        kept &= bool((np.abs(values.sum(axis=0) - parent) <= near).all())
    if groups.joint is not None:
        together = np.bincount(groups.joint.group, weights=values.sum(axis=1))
        kept &= bool((np.abs(together - groups.joint.totals) <= near).all())
    if groups.fixed_rows is not None and groups.fixed is not None:
        rows = np.zeros(groups.fixed.shape)
        np.add.at(rows.T, groups.fixed_rows, values.T)
        kept &= bool((np.abs(rows - groups.fixed) <= near).all())
    return kept


def find_estimator(given: str | Estimator) -> RunEstimator:
    """Return an estimator by its name, or for an object that is one.

    `given`: a name: one of ours, or an entry point of another package in the group ``opendas.estimators``. Or
    an object with a name and a method ``fit``, for experiments.
    """
    if isinstance(given, str):
        if given in OWN_ESTIMATORS:
            return RunEstimator(given, OURS[given])
        part, origin = outside_part(ESTIMATORS, given, OWN_ESTIMATORS)
        return RunEstimator(given, _Checked(_estimator(part, given), origin.package), origin)
    if isinstance(given, type):
        raise ConfigError(f"the estimator {given.__name__} is a class. Give an object: {given.__name__}().")
    name = getattr(given, "name", None)
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise ConfigError("an estimator must have a name, one line of text, and a method fit.")
    if name in OWN_ESTIMATORS:
        raise ConfigError(
            f"{name!r} is the name of an estimator of OpenDAS. Give your estimator another name."
        )
    part = _estimator(given, name)
    return RunEstimator(name, _Checked(part), origin_of(ESTIMATORS, name, part))


def _estimator(part: Estimator, name: str) -> Estimator:
    if not callable(getattr(part, "fit", None)) or getattr(part, "name", None) != name:
        raise ConfigError(
            f"{name!r} is not an estimator: it needs name = {name!r} and a method fit(data), as "
            "opendas.topdown.family_data.Estimator explains."
        )
    return part
