"""Answers of which files hold some: read together, and looked up one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opendas.engines.measurement_source import _listed, _searched
from opendas.errors import FormatError
from opendas.files.nmf.reading import Answers


def listed(lists: list[list[int]]) -> Answers:
    """Return answers to some rows of each geounit; the value tells geounit and row."""
    offsets = np.cumsum([0, *(len(rows) for rows in lists)]).astype(np.int64)
    cells = np.array([row for rows in lists for row in rows], dtype=np.int64)
    values = np.array([100 * g + row for g, rows in enumerate(lists) for row in rows], dtype=np.int64)
    return Answers(values, offsets, cells, np.ones(len(lists)))


rows_of_a_geounit = st.sets(st.integers(0, 5), max_size=6).map(sorted)


@given(
    st.one_of(
        st.lists(rows_of_a_geounit, min_size=1, max_size=6),
        st.tuples(rows_of_a_geounit, st.integers(1, 6)).map(lambda pair: [pair[0]] * pair[1]),
    ),
    st.data(),
)
def test_both_ways_give_the_same(lists: list[list[int]], data: st.DataObject) -> None:
    answers = listed(lists)
    start = data.draw(st.integers(0, len(lists) - 1))
    stop = data.draw(st.integers(start, len(lists)))
    place = np.array(data.draw(st.permutations(range(start, stop)) | st.just(list(range(start, stop)))), int)
    wanted = lists[start] if data.draw(st.booleans()) else data.draw(rows_of_a_geounit)
    rows = np.array(wanted, dtype=np.int32)
    if all(set(wanted) <= set(lists[g]) for g in place.tolist()):
        expected = [[100 * g + row for row in wanted] for g in place.tolist()]
        for way in (_listed, _searched):
            found = way(answers, place, rows, "q")
            assert found.shape == (len(place), len(rows))
            assert found.tolist() == expected
    else:
        for way in (_listed, _searched):
            with pytest.raises(FormatError, match="not in the measurement files"):
                way(answers, place, rows, "q")
