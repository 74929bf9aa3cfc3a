"""Builds a small release on disk: real writers, real noise, the given counts as their own estimate."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np

from opendas.budget.allocation import Budget
from opendas.constraints.table import bound_table
from opendas.custody.account import AccountFacts
from opendas.custody.folders import write_atomic
from opendas.engines.outputs import Solved
from opendas.files.geography_files import write_constraints, write_frame, write_spine
from opendas.files.nmf.reading import Answers, measurement_metadata
from opendas.files.nmf.writing import MeasurementWriter
from opendas.geography.partitions import standard_spine
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.noisy import NoisyMeasurements, measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.report.certificate import issue, read_runs
from opendas.runs.config.released import toml_value
from opendas.runs.context.facts import estimated_facts, measured_facts
from opendas.sampling.noise import NoiseSource
from opendas.schema.provenance import Domain, Provenance
from support.mdf import write_mdf
from support.spine_shares import multiple

QUERIES = {
    "persons": {
        "total": Fraction(1, 2),
        "cenrace": Fraction(1, 8),
        "hhgq": Fraction(1, 8),
        "votingage * hispanic": Fraction(1, 8),
        "detailed": Fraction(1, 8),
    },
    "dhc-persons": {"total": Fraction(1, 2), "sex * age_18_64_116": Fraction(1, 2)},
    "units": {"detailed": Fraction(1)},
    "wards": {"total": Fraction(1, 3), "age * broad": Fraction(1, 3), "detailed": Fraction(1, 3)},
}


def level_shares(names):
    """Return shares that grow from level to level."""
    return {name: Fraction(k + 1, len(names) * (len(names) + 1) // 2) for k, name in enumerate(names)}


def domain_of(product):
    """Return a domain of which nothing was read from records."""
    labels = dict.fromkeys(product.schema.names, Provenance.CODE_BOOK)
    return Domain(labels, Provenance.PUBLIC, Provenance.PUBLIC)


def toml_of(plan, domain) -> str:
    budget = plan.budget
    lines = ["[run]", f'mechanism = "{budget.mechanism.value}"', f'neighbours = "{budget.neighbours.value}"']
    lines += ["[budget]", f'rho = "{budget.total}"', "[budget.geolevels]"]
    lines += [f'{name} = "{share}"' for name, share in budget.geolevels.items()]
    for level, shares in budget.queries.items():
        lines += [f"[budget.queries.{level}]", *(f'"{query}" = "{s}"' for query, s in shares.items())]
    lines += ["[input]", 'reader = "histogram"']
    lines += ["[domain]", *(f"{name} = {toml_value(value)}" for name, value in domain.to_dict().items())]
    return "\n".join(lines) + "\n"


def add_product(release, example, *, stamps=(), estimated=True, fmt="parquet", spine=None):
    """Write everything of one product and return the facts of its certificate."""
    product, frame = example.product, example.frame
    spine = spine or standard_spine(frame)
    shares = level_shares(spine.names)
    neighbours = "bounded" if product.invariants else "unbounded"
    budget = Budget("discrete-gaussian", neighbours, Fraction(5, 2), shares, {"*": QUERIES[product.layout]})
    plan = MeasurementPlan(product, spine, budget)
    write_frame(release / "geography" / f"{product.name}.parquet", frame, product)
    folder = release / "measurements" / product.name
    write_spine(folder / "spine.parquet", spine)
    counts = example.estimate.take(spine.leaf_order)
    table = bound_table(product, frame, spine, declared_invariants(product, counts, spine))
    write_constraints(folder / "constraints.parquet", product, spine, table)
    write_measurements(folder, plan, counts)
    records = 0
    if estimated:
        records = write_mdf(release / "mdf" / product.layout, product, frame, example.estimate, fmt=fmt)
    write_atomic(release / "run" / f"{product.name}.toml", toml_of(plan, domain_of(product)).encode())
    resolved = SimpleNamespace(
        estimator="topdown", dropped=(), budget=SimpleNamespace(source=None), published=None
    )
    run = SimpleNamespace(
        product=product,
        resolved=resolved,
        plan=plan,
        budget=plan.budget,
        frame=frame,
        parts=(),
        measuring_parts=(),
    )
    facts = measured_facts(run, ProtectionMap.of(plan, frame, table), stamps, (), domain_of(product), "full")
    return (
        estimated_facts(facts, run, Solved(0, 0, ()), records, example.estimate.take) if estimated else facts
    )


def write_measurements(folder, plan, counts):
    levels = measured_levels(plan)
    tables = {n: counts.aggregate(plan.spine.leaf_starts(n)) for n in range(len(levels))}
    noisy = NoisyMeasurements(levels, tables, dict.fromkeys(tables, 0), NoiseSource(bytes(range(32))))
    for number, level in enumerate(plan.spine.levels):
        values = noisy.full(number, 0, len(level))
        keep = levels[number].budgets(0, len(level)) >= 0
        multiples = [multiple(plan.spine, number, i) for i in np.flatnonzero(keep)]
        answers = {
            planned.query.name: Answers.full(
                value[keep], np.array([plan.distribution(number, planned, m).variance for m in multiples])
            )
            for planned, value in zip(plan.levels[number].queries, values, strict=True)
        }
        metadata = measurement_metadata(plan, number, stored="full")
        with MeasurementWriter(folder / f"{level.name}.parquet", metadata) as writer:
            writer.write(level.geocodes[keep], answers)


def issue_release(release, facts):
    """Certify runs beside those that are certified already, each an act of the folder's own account."""
    names = dict.fromkeys(run.product for run in (*read_runs(release), *facts))
    places = {name: number for number, name in enumerate(names, 1)}
    account = AccountFacts(False, len(places), places, 0)
    issue(release, tuple(facts), account, version="0.0.test", commit="unknown")
