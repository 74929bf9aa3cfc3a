"""The privacy audit, reduced, on the production code path; and the mutants that each probe must catch.

Keys are seeds, so that every statistic here is a constant: a test fails when code changes, never by chance.

Power. (A) 10**6 residuals a query group: a noise scale 1 % off is 14.2 standard errors against a limit of 5.
(B) 12,000 samples: a word used twice gives a correlation near 1, that is 100 standard errors, against 6.5.
(C) 50,000 samples a side. It is nearly blind to single classes of noise: its part is the loss as a whole.
The full sizes are those of ``python -m audit.privacy_audit``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import opendas.measurement.noisy as noisy
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.custody.run_key import RunKey
from opendas.privacy.relations import Neighbours
from opendas.sampling.laws import DiscreteGaussian

sys.path.insert(0, str(Path(__file__).parents[2]))

from audit import privacy_audit
from audit.fit import GroupFit, fit_residuals
from audit.moved import covariance, moved_person
from audit.odds import exact_loss, rates
from audit.subject import LEVELS, RHO, Subject, declared_sigma2, make_subject

Patch = pytest.MonkeyPatch


@pytest.fixture(name="large", scope="module")
def _large() -> Subject:
    return make_subject(50_000)


@pytest.fixture(name="medium", scope="module")
def _medium() -> Subject:
    return make_subject(20_000)


def problems(groups: list[GroupFit]) -> dict[tuple[str, str], list[str]]:
    return {(g.geolevel, g.query): g.problems() for g in groups if g.problems()}


def test_the_plan_has_the_published_variances(large: Subject) -> None:
    for number, level in enumerate(large.plan.levels):
        for planned in level.queries:
            found = large.plan.distribution(number, planned)
            assert found == DiscreteGaussian(declared_sigma2(level.geolevel, planned.query.name))
    # One record replaced: two answers of each group change by one, and the parts add up to rho.
    spent = sum(
        1 / declared_sigma2(level.geolevel, q.query.name)
        for level in large.plan.levels
        for q in level.queries
    )
    assert spent == RHO


def test_residuals_follow_the_declared_law_at_every_level_and_query(large: Subject) -> None:
    groups = fit_residuals(large, range(20))
    assert len(groups) == 65
    assert all(group.n == 1_000_000 for group in groups)
    assert problems(groups) == {}


def test_a_scale_one_per_cent_off_is_seen_in_every_group() -> None:
    """The same residuals held against a scale 1 % larger are rejected: the power that is claimed."""
    rng = np.random.default_rng(0)
    for sigma2 in (1.209, 4.953, 1744.0, 7963.0):
        values = np.arange(-900, 901)
        law = np.exp(-(values**2) / (2 * sigma2))
        drawn = rng.choice(values, size=1_000_000, p=law / law.sum())
        for factor in (0.99, 1.0, 1.01):
            group = GroupFit("block", "total", sigma2 * factor**2)
            group.add(drawn)
            assert bool(group.problems()) == (factor != 1.0), (sigma2, factor)
            assert abs(group.variance_z()) < 5 if factor == 1 else abs(group.variance_z()) > 9
            low, high = group.scale_bounds()
            assert (low <= 1 <= high) == (factor == 1.0)
            assert low <= 1 / factor <= high, "the true scale is within the bounds"
            assert group.power() > 1 - 1e-12
            assert 0.5 < group.power(0.004) < 0.9, "what is hardly seen is said to be hardly seen"


def test_coordinates_of_a_moved_person_are_independent() -> None:
    found = covariance(make_subject(80), range(300))
    assert found.coordinates == 130
    assert found.samples == 12_000
    assert found.correlation_bound == pytest.approx((found.largest + 6.5) / 12_000**0.5)
    assert found.correlation_bound < 0.12
    assert found.scale_bound < 0.07
    assert found.problems() == []


def test_the_best_test_learns_what_the_plan_says(medium: Subject) -> None:
    law = exact_loss(moved_person(medium).sigma2.tolist())
    assert law.error < 0.01
    assert law.exceeds(law.threshold(1e-3)) == pytest.approx((0.2035, 0.2035), abs=1.5e-3)
    found = rates(medium, range(5), law)
    assert [rate.problems() for rate in found] == [[]] * 5
    assert found[0].observed[1] == pytest.approx(0.204, abs=0.01)


def test_the_loss_law_agrees_with_its_moments() -> None:
    """Mean rho and variance 2 rho, up to what small variances add: the twin of the convolution."""
    sigma2 = moved_person(make_subject(2)).sigma2
    mean = second = 0.0
    for value in sigma2:
        noise = np.arange(-1500, 1501)
        weights = np.exp(-(noise**2) / (2 * value))
        weights /= weights.sum()
        loss = (1 + 2 * noise) / (2 * value)
        mean += weights @ loss
        second += weights @ (loss - weights @ loss) ** 2
    law = exact_loss(sigma2.tolist())
    mass = -np.diff(law.above, prepend=1.0)
    grid = law.start + law.step * np.arange(len(mass))
    assert mass @ grid == pytest.approx(mean, abs=law.error)
    assert mass @ (grid - mass @ grid) ** 2 == pytest.approx(second, rel=1e-3)
    assert mean == pytest.approx(float(RHO), rel=1e-6)


def test_the_script_writes_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--residuals", "2000", "--keys", "20", "--pairs", "2", "--samples", "1000", "--bits", "18"]
    assert privacy_audit.main(["--out", str(tmp_path), *sizes]) == 0
    assert capsys.readouterr().out == "nothing found\n"
    result = json.loads((tmp_path / "privacy-audit.json").read_text())
    assert result["passed"]
    assert len(result["fit"]) == 65
    assert all(one["scale_bounds"][0] < 1 < one["scale_bounds"][1] for one in result["fit"])
    assert all(0 < one["power_at_1_per_cent"] < 0.1 for one in result["fit"]), "2,000 residuals see little"
    assert result["covariance"]["correlation_bound"] > 0.5, "nor do 40 samples"
    assert "## C." in (tmp_path / "privacy-audit.md").read_text()


# Mutants. Each breaks the production path in one place; the probe named by the test must see it.


def with_level(subject: Subject, geolevel: str, change: Callable[[noisy.MeasuredLevel], object]) -> Subject:
    levels = tuple(
        change(level) if level.geolevel == geolevel else level  # type: ignore[misc]
        for level in subject.levels
    )
    return replace(subject, levels=levels)


def test_mutant_one_class_of_noise_halved(medium: Subject) -> None:
    def halve(level: noisy.MeasuredLevel) -> noisy.MeasuredLevel:
        queries = tuple(
            replace(q, noise=(DiscreteGaussian(q.noise[0].sigma2 / 2),)) if q.name == "total" else q
            for q in level.queries
        )
        return replace(level, queries=queries)

    found = problems(fit_residuals(with_level(medium, "block", halve), range(3)))
    assert list(found) == [("block", "total")]


def test_mutant_a_record_counted_twice(medium: Subject, monkeypatch: Patch) -> None:
    genuine = noisy.sum_rows

    def twice(*arguments: object) -> None:
        genuine(*arguments)
        genuine(*arguments)

    monkeypatch.setattr(noisy, "sum_rows", twice)
    found = problems(fit_residuals(medium, range(3)))
    assert any("mean" in text for texts in found.values() for text in texts)


def test_mutant_the_wrong_relation() -> None:
    product = make_subject(2).plan.product
    spec = BudgetSpec(preset="us2020-persons", neighbours=Neighbours.UNBOUNDED)
    budget = resolve_budget(spec, LEVELS, product.workload.canonical)
    found = problems(fit_residuals(make_subject(5_000, budget), range(2)))
    assert len(found) == 65


def same_address(level: noisy.MeasuredLevel) -> noisy.MeasuredLevel:
    return replace(level, queries=tuple(replace(q, address=0) for q in level.queries))


def test_mutant_a_reused_word() -> None:
    mutant = with_level(make_subject(80), "tract", same_address)
    found = covariance(mutant, range(20))
    assert "correlation" in found.problems()[0]
    assert "tract" in found.pair
    assert found.largest > 20


def test_mutant_two_geolevels_share_words() -> None:
    subject = make_subject(80)
    mutant = with_level(subject, "county", lambda level: replace(level, level=1))
    # The number of a level also finds its exact counts; give the mutant those too.
    found = covariance(mutant, range(20))
    assert found.problems()
    assert "state" in found.pair
    assert "county" in found.pair


def noise_keys(subject: Subject, other: Subject) -> list[bytes]:
    """Noise keys of two plans, and of two inputs, under one run key."""
    run_key = RunKey.seeded(5)
    inputs = [subject.counts(np.full((subject.chains, 1), cell)) for cell in (3, 4)]
    return [s.noise_key(run_key, counts) for s in (subject, other) for counts in inputs]


def other_plan() -> Subject:
    product = make_subject(2).plan.product
    spec = BudgetSpec(preset="us2020-persons", rho=Fraction(3))
    return make_subject(2, resolve_budget(spec, LEVELS, product.workload.canonical))


def test_mutant_a_key_blind_to_the_plan(monkeypatch: Patch) -> None:
    assert len(set(noise_keys(make_subject(2), other_plan()))) == 4
    genuine = RunKey.derive

    def blind(self: RunKey, purpose: str, *fields: bytes) -> bytes:
        return genuine(self, purpose, *(fields[1:] if purpose.startswith("noise/") else fields))

    monkeypatch.setattr(RunKey, "derive", blind)
    assert len(set(noise_keys(make_subject(2), other_plan()))) == 2
