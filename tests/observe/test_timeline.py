"""Rows along an axis of time, thinned out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_mars.observe.timeline import merged

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 3), st.integers(0, 2), st.integers(1, 5)),
    max_size=60,
)


@given(ROWS, st.integers(3, 70))
def test_what_is_thinned_out_covers_what_there_was(drawn, most):
    rows = [
        (worker, float(start), float(start + length), layer, chunks)
        for worker, start, length, layer, chunks in drawn
    ]
    found = merged(rows, most)
    assert len(found) <= max(most, len({row[0] for row in rows}))
    assert sum(row[4] for row in found) == sum(row[4] for row in rows)
    assert len(found) == len(rows) or len(rows) > most
    for worker, start, end, *_ in rows:
        assert any(row[0] == worker and row[1] <= start and end <= row[2] for row in found)


def test_smallest_gaps_of_one_layer_go_first():
    rows = [(0, 0.0, 1.0, 0, 1), (0, 1.0, 2.0, 1, 1), (0, 5.0, 6.0, 1, 1), (1, 6.0, 7.0, 1, 1)]
    assert merged(rows, 3) == [(0, 0.0, 1.0, 0, 1), (0, 1.0, 6.0, 1, 2), (1, 6.0, 7.0, 1, 1)]


def test_the_layer_that_took_longest_gives_its_name():
    rows = [(0, 0.0, 1.0, 0, 1), (0, 1.0, 4.0, 1, 1), (0, 4.0, 5.0, 0, 1)]
    assert merged(rows, 1) == [(0, 0.0, 5.0, 1, 3)]
    assert merged(rows, 3) == rows
    assert merged([], 1) == []
