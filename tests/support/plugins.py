"""Packages with entry points, installed in a folder: a module and its metadata, as pip leaves them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from opendas.sampling.mechanisms import find_mechanism

ESTIMATOR = '''
"""Answers of the detailed query group, as they were measured, and the parent's mean where there are none."""

import numpy as np


class Plain:
    name = "plain"
    {proof}

    def fit(self, data):
        for query in data.answers:
            if query.name == "detailed":
                return query.values[:, query.compact].astype(float)
        if data.parent is None:
            return np.zeros(data.usable.shape)
        return np.tile(data.parent / len(data.usable), (len(data.usable), 1))
'''

MECHANISM = """
'''Binomial noise: as many of 64 bits as are set, less 32, times a whole number.'''

import math
from fractions import Fraction

import numpy as np


class Binomial:
    name = "binomial"
    definition = "zcdp"
    {proof}

    def spends(self, rho):
        return rho * {spends}

    def times(self, rho):
        return 1 + math.isqrt(int(1 / (2 * rho)) // 16)

    def variance(self, rho):
        return 16.0 * self.times(rho) ** 2

    def margin(self, rho, confidence):
        return 32 * self.times(rho)

    def answer(self, exact, rho, words):
        bits = np.bitwise_count(words(np.arange(len(exact)))).astype(np.int64)
        {fault}
        return exact + self.times(rho) * (bits - 32)
"""


def install_mechanism(
    folder: Path, *, proof: str = "", version: str = "3.0", spends: str = "1", fault: str = "pass"
) -> Path:
    """Install the package dummy-mechanism, which offers the mechanism ``binomial``."""
    text = MECHANISM.replace("{proof}", f"proof = {proof!r}" if proof else "")
    text = text.replace("{spends}", spends).replace("{fault}", fault)
    points = {"opendas.mechanisms": {"binomial": "dummy_mechanism:Binomial"}}
    return install(folder, "dummy-mechanism", version, {"dummy_mechanism": text}, points)


def install(
    folder: Path, package: str, version: str, modules: dict[str, str], points: dict[str, dict[str, str]]
) -> Path:
    """Install a package into a folder; `points` is group -> name -> object."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in names.items())
            for group, names in points.items()
        )
    )
    (info / "RECORD").write_text("".join(f"{name}.py,,\n" for name in modules))
    return folder


def install_estimator(folder: Path, *, proof: str = "", version: str = "1.2") -> Path:
    """Install the package dummy-estimator, which offers the estimator ``plain``."""
    text = ESTIMATOR.replace("{proof}", f"proof = {proof!r}" if proof else "")
    points = {"opendas.estimators": {"plain": "dummy_estimator:Plain"}}
    return install(folder, "dummy-estimator", version, {"dummy_estimator": text}, points)


def see(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put a folder of packages on the path of this process."""
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    find_mechanism.cache_clear()
    for path in folder.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
