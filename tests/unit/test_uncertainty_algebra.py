"""Attribute bases and blocks: small where they can be, and always the same quadratic forms."""

from __future__ import annotations

import numpy as np
import pytest

from opendas.errors import ConfigError
from opendas.gls import blocks as module
from opendas.gls.blocks import Partition, attribute_basis, build_algebra
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.query_groups import Workload


def partition(*of_level: int, groups: int | None = None) -> Partition:
    return Partition(np.array(of_level), groups or max(of_level) + 1)


CROSSING = [partition(0, 0, 0, 1, 1, 1), partition(0, 1, 2, 0, 1, 2), partition(0, 0, 1, 1, 1, 1)]


def test_a_basis_is_orthonormal_and_starts_with_the_constant() -> None:
    basis = attribute_basis(6, CROSSING)
    assert np.allclose(basis.vectors.T @ basis.vectors, np.eye(basis.vectors.shape[1]))
    assert np.allclose(basis.vectors[:, 0], 6**-0.5)
    assert basis.inside + basis.vectors.shape[1] == 6


@pytest.mark.parametrize("asked", [*CROSSING, Partition.total(6), partition(0, 1, 2, 3, 4, 5)])
def test_partitions_act_only_within_the_basis(asked: Partition) -> None:
    """Q'Q of a partition, written back to levels, is the matrix that its indicators give."""
    basis = attribute_basis(6, CROSSING)
    full = np.hstack([basis.vectors, np.linalg.svd(basis.vectors)[0][:, basis.vectors.shape[1] :]])
    matrix = np.zeros((6, 6))
    r = basis.vectors.shape[1]
    small = basis.matrix(asked)
    matrix[:r, :r] = small[:r, :r]
    if basis.inside:
        matrix[r:, r:] = small[r, r] * np.eye(basis.inside)
    assert np.allclose(full @ matrix @ full.T, asked.indicators.T @ asked.indicators)


def test_any_partition_keeps_its_length_in_coordinates() -> None:
    unseen = partition(0, 1, 1, 2, 0, 3)
    found = attribute_basis(6, CROSSING[:1]).coefficients(unseen)
    assert np.allclose((found**2).sum(axis=1), np.bincount(unseen.of_level))


def test_equal_groups_couple_nothing_and_unequal_ones_little() -> None:
    attribute = Attribute("a", tuple("uvwxyz"))
    equal = Recode("r", "a", (("1", ("u", "v")), ("2", ("w", "x")), ("3", ("y", "z"))))
    unequal = Recode("r", "a", (("1", ("u",)), ("2", ("v", "w")), ("3", ("x", "y", "z"))))
    pair = Recode("r", "a", (("1", ("u",)), ("2", ("v",)), ("3", ("w", "x", "y", "z"))))
    sizes = {}
    for name, recode in {"equal": equal, "unequal": unequal, "pair": pair}.items():
        schema = Schema((attribute,))
        groups = Workload(schema, (recode,)).groups(("total", "r", "detailed"))
        sizes[name] = [b.coordinates.shape[1] for b in build_algebra(schema, (recode,), groups).blocks]
    assert sizes == {"equal": [1], "unequal": [1, 3], "pair": [1, 2]}


def test_nested_recodes_of_the_same_shape_split_by_symmetry() -> None:
    levels = tuple("abcdefgh")
    halves = Recode("h", "a", (("1", levels[:4]), ("2", levels[4:])))
    parts = Recode("p", "a", (("1", levels[:1]), ("2", levels[1:4]), ("3", levels[4:5]), ("4", levels[5:])))
    schema = Schema((Attribute("a", levels),))
    groups = Workload(schema, (halves, parts)).groups(("total", "h", "p", "detailed"))
    blocks = build_algebra(schema, (halves, parts), groups).blocks
    assert [(b.coordinates.shape[1], len(b.coordinates)) for b in blocks] == [(1, 1), (2, 2)]


def test_the_persons_table_has_ten_distinct_blocks() -> None:
    """2,016 cells; 13 scalars merge into nine, and the three groups of hhinstlevels hang together."""
    product = pl94_persons()
    algebra = build_algebra(product.schema, product.recodes, product.workload.groups(product.query_names))
    assert [b.matrices.shape for b in algebra.blocks] == [(11, 9, 1, 1), (11, 1, 3, 3)]
    units = pl94_units()
    algebra = build_algebra(units.schema, units.recodes, units.workload.groups(units.query_names))
    assert [b.matrices.shape for b in algebra.blocks] == [(len(units.query_names), 2, 1, 1)]


@pytest.mark.parametrize("name", ["total", "cenrace", "hhinstlevels", "votingage * cenrace", "detailed"])
def test_a_row_keeps_its_length(name: str) -> None:
    """The traces over all blocks add up to the number of cells that a row counts."""
    product = pl94_persons()
    algebra = build_algebra(product.schema, product.recodes, product.workload.groups(product.query_names[:3]))
    query = product.workload.group(name)
    rows = algebra.rows(query)
    lengths = sum(np.trace(stack, axis1=2, axis2=3).sum(axis=1) for stack in rows.outer)
    assert np.allclose(lengths[rows.of_row], np.bincount(query.row_of_cell, minlength=query.size))


def test_a_group_without_levels_has_no_variance() -> None:
    schema = Schema((Attribute("a", tuple("xyz")),))
    recode = Recode("r", "a", (("some", ("x", "y")), ("rest", ("z",)), ("none", ())))
    workload = Workload(schema, (recode,))
    algebra = build_algebra(schema, (recode,), workload.groups(("r", "detailed")))
    covariance = algebra.information(np.array([[1.0, 0.5]])).dual()
    rows = algebra.rows(workload.group("r"))
    assert rows.variances(covariance)[0, rows.of_row][2] == 0.0


def test_recodes_that_cross_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_BLOCK", 2)
    schema = Schema((Attribute("a", tuple("xyz")),))
    recode = Recode("r", "a", (("some", ("x", "y")), ("rest", ("z",))))
    other = Recode("s", "a", (("some", ("x",)), ("rest", ("z", "y"))))
    with pytest.raises(ConfigError, match="are coupled"):
        build_algebra(
            schema, (recode, other), Workload(schema, (recode, other)).groups(("r", "s", "detailed"))
        )
