"""Types of unit: whoever is of a type that a leaf does not have gets another one, and the tie stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.mini import mini_frame

from opendas.errors import DataError
from opendas.files.mdf.unit_types import UnitTypes
from opendas.schema.dhc_persons import GQ_CODES, GQ_TYPES, RELATIONSHIPS, dhc_persons
from opendas.schema.histogram import Histogram

PEOPLE = 99_999


def tied_product():
    product = dhc_persons()
    assert product.tie is not None
    return replace(product, tie=replace(product.tie, microdata="ab" * 32))


PRODUCT = tied_product()
ROWS = PRODUCT.workload.group(PRODUCT.tie.query).row_of_cell
POSSIBLE = np.flatnonzero(PRODUCT.possible)
MAJOR = [min(int(code[0]), 7) for code in GQ_CODES]


def types_of(units):
    """Types of unit of a frame with these facilities, (leaves, 24)."""
    frame = mini_frame().take(np.arange(len(units)))
    columns = {f"gq{code}": np.asarray(units)[:, k] for k, code in enumerate(GQ_CODES)}
    return UnitTypes.of(PRODUCT, replace(frame, units={**frame.units, **columns}))


def world(rng, leaves=6, entries=60):
    """People in random cells, and facilities that their redistricting counts leave room for."""
    leaf = rng.integers(0, leaves, entries)
    relgq, *_ = PRODUCT.schema.codes(POSSIBLE)
    chosen = POSSIBLE[np.where(relgq >= len(RELATIONSHIPS))[0]]
    cells = np.concatenate([rng.choice(chosen, entries - 10), rng.choice(POSSIBLE, 10)])
    counts = Histogram.from_entries(leaf, cells, rng.integers(1, 4, entries), shape=(leaves, len(ROWS)))
    units = np.zeros((leaves, len(GQ_CODES)), dtype=np.int64)
    major = np.array(MAJOR)
    held = types_of(units)._held(counts)
    for row in range(leaves):
        for kind in np.unique(major):
            people = int(held[row, major == kind].sum())
            if people:
                inside = rng.choice(np.flatnonzero(major == kind), rng.integers(1, min(people, 3) + 1))
                np.add.at(units[row], inside, 1)
    return counts, units


def tied(counts):
    leaf = np.repeat(np.arange(counts.rows), np.diff(counts.indptr))
    return Histogram.from_entries(
        leaf, ROWS[counts.cells], counts.counts, shape=(counts.rows, ROWS.max() + 1)
    )


@pytest.mark.parametrize("seed", range(8))
def test_every_bound_holds_and_nothing_else_changes(seed):
    counts, units = world(np.random.default_rng(seed))
    types = types_of(units)
    places = np.arange(counts.rows)
    types.check(tied(counts))
    found = types.mended(places, counts)
    held = types._held(found)
    assert (held >= units).all()
    assert (held[units == 0] == 0).all()
    assert not len(tied(found).unlike(tied(counts)))
    assert PRODUCT.possible[found.cells].all()
    sexes = [np.bincount(PRODUCT.schema.codes(h.cells)[1], h.counts, 2).tolist() for h in (found, counts)]
    assert sexes[0] == sexes[1]
    households = [
        h.counts[PRODUCT.schema.codes(h.cells)[0] < len(RELATIONSHIPS)].sum() for h in (found, counts)
    ]
    assert households[0] == households[1]
    # Asked for leaf by leaf it is the same, and what is right stays as it is.
    again = types_of(units)
    for place in places:
        assert not len(
            again.mended(places[[place]], counts.take(places[[place]])).unlike(found.take(places[[place]]))
        )
    assert again.moved == types.moved
    assert sum(types.moved.values()) > 0
    assert types.mended(places, found) is found


def test_no_more_people_are_moved_than_must_be():
    """By counting: those of absent types, and what present ones lack."""
    for seed in range(8):
        counts, units = world(np.random.default_rng(100 + seed))
        types = types_of(units)
        types.mended(np.arange(counts.rows), counts)
        held = types._held(counts)
        absent = np.where(units == 0, held, 0)
        lacking = np.maximum(units - held, 0)
        most = 0
        for kind in set(MAJOR):
            inside = np.array(MAJOR) == kind
            most += int(np.maximum(absent[:, inside].sum(axis=1), lacking[:, inside].sum(axis=1)).sum())
        assert sum(types.moved.values()) == most


def test_bounds_are_met_where_they_bind():
    """As many people as facilities, of several types: each gets one; and two facilities cannot hold more."""
    cell = int(PRODUCT.schema.cells([np.array([k]) for k in (len(RELATIONSHIPS), 0, 40, 0, 0)])[0])
    counts = Histogram.from_entries(np.zeros(1, int), np.array([cell]), np.array([3]), shape=(1, len(ROWS)))
    units = np.zeros((1, len(GQ_CODES)), dtype=np.int64)
    units[0, [1, 2, 5]] = 1
    types = types_of(units)
    types.check(tied(counts))
    assert types._held(types.mended(np.arange(1), counts))[0, [1, 2, 5]].tolist() == [1, 1, 1]
    assert types.moved == {0: 3}
    for people, _change in ((2, 0), (3 * PEOPLE + 1, 0)):
        other = Histogram.from_entries(
            np.zeros(1, int), np.array([cell]), np.array([people]), shape=(1, len(ROWS))
        )
        with pytest.raises(DataError, match="has 3 units of the types gq101_federal_detention"):
            types.check(tied(other))
    full = Histogram.from_entries(
        np.zeros(1, int), np.array([cell]), np.array([3 * PEOPLE]), shape=(1, len(ROWS))
    )
    types.check(tied(full))
    assert types._held(types.mended(np.arange(1), full))[0, [1, 2, 5]].tolist() == [PEOPLE] * 3


def test_any_person_can_be_of_any_type_of_the_same_major_type():
    """So that counts which leave people for the facilities can always be mended: every cell, every type."""
    types = types_of(np.zeros((1, len(GQ_CODES)), dtype=np.int64))
    relgq, sex, _age, hispanic, race = PRODUCT.schema.codes(POSSIBLE)
    here = POSSIBLE[(relgq >= len(RELATIONSHIPS)) & (sex == 0) & (hispanic == 0) & (race == 0)]
    for cell in here.tolist():
        old = int(PRODUCT.schema.codes(np.array([cell]))[0][0]) - len(RELATIONSHIPS)
        for new in (k for k, major in enumerate(MAJOR) if major == MAJOR[old]):
            other = types._other(cell, new + len(RELATIONSHIPS))
            assert PRODUCT.possible[other]
            assert ROWS[other] == ROWS[cell]
            codes = [[int(c[0]) for c in PRODUCT.schema.codes(np.array([x]))] for x in (cell, other)]
            assert codes[1][0] == new + len(RELATIONSHIPS)
            assert [codes[1][k] for k in (1, 3, 4)] == [codes[0][k] for k in (1, 3, 4)]
            same = PRODUCT.schema.cells([np.array([k]) for k in (codes[1][0], *codes[0][1:])])
            if PRODUCT.possible[same[0]]:
                assert codes[1][2] == codes[0][2]


def test_a_frame_without_the_columns_says_nothing_of_types():
    assert UnitTypes.of(PRODUCT, mini_frame()) is None
    assert UnitTypes.of(dhc_persons(), mini_frame()) is None
    assert len(PRODUCT.tie.units) == len(GQ_TYPES) == 24
