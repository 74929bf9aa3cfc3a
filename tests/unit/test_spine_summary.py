"""A spine in numbers, against counting by hand."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from support.random_land import random_frame
from support.spine_shares import multiple

from opendas.geography.block_groups import block_groups
from opendas.geography.bypass import bypass_only_children
from opendas.geography.off_spine_distance import entity_distances
from opendas.geography.partitions import official_partitions, standard_spine
from opendas.geography.spine import Spine
from opendas.geography.summary import PERCENTS, SpineSummary, summarise


def regrouped(seed: int) -> tuple[Spine, object]:
    frame = random_frame(seed)
    key = np.unique(frame.entities["place"], return_inverse=True)[1].astype(np.int64)
    spine = block_groups(official_partitions(frame), key, fanout_cutoff=2).spine()
    share = Fraction(1, len(spine.levels))
    return bypass_only_children(spine, [share] * len(spine.levels)), frame


@pytest.mark.parametrize("seed", range(6))
def test_levels_are_what_one_counts(seed: int) -> None:
    spine, frame = regrouped(seed)
    found = summarise(spine, frame)
    assert [level.geolevel for level in found.levels] == list(spine.names)
    for number, level in enumerate(found.levels):
        geounits = range(len(spine.levels[number]))
        assert level.geounits == len(geounits)
        assert level.official == (level.geolevel != "block_group")
        assert level.bypassed == sum(multiple(spine, number, i) == 0 for i in geounits)
        if number + 1 == len(spine.levels):
            assert (level.max_fanout, level.single_child_parents, level.fanouts) == (0, 0, ())
            continue
        children = Counter(spine.levels[number + 1].parent.tolist())
        fanouts = sorted(children[i] for i in geounits)
        assert level.max_fanout == fanouts[-1]
        assert level.single_child_parents == fanouts.count(1)
        # The percentile is the value below which at most that part of the others lies.
        assert level.fanouts == tuple(fanouts[(len(fanouts) - 1) * p // 100] for p in PERCENTS)


@pytest.mark.parametrize("seed", range(6))
def test_distances_stand_beside_those_of_the_official_spine(seed: int) -> None:
    spine, frame = regrouped(seed)
    found = {entity.category: entity for entity in summarise(spine, frame).entities}
    present = [name for name, codes in frame.entities.items() if (codes != b"").any()]
    assert list(found) == present
    for name, entity in found.items():
        used = entity_distances(spine, frame.entities[name])
        before = entity_distances(standard_spine(frame), frame.entities[name])
        assert entity.count == len(set(frame.entities[name].tolist()) - {b""})
        assert (entity.mean_distance, entity.max_distance) == (used.mean, used.maximum)
        assert (entity.standard_mean, entity.standard_max) == (before.mean, before.maximum)
        assert entity.distances[-1] == entity.max_distance
        assert entity.standard[0] == int(before.distance.min())


def test_a_summary_survives_json() -> None:
    spine, frame = regrouped(1)
    found = summarise(spine, frame)
    record = found.to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert SpineSummary.from_dict(json.loads(json.dumps(record))) == found
