from __future__ import annotations

from dask_mars.client.layer_index import LayerIndex
from dask_mars.web.recorder import _digest, _Track


def test_reports_become_rows_by_worker_and_layer():
    track = _Track(LayerIndex([("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)], [0] * 5))
    track.batches.append((10.0, 0, [0, 1, 2], [1.0, 1.0, 2.0]))
    # Of another worker in between; the next one of the first goes on where that has ended.
    track.batches.append((10.0, 1, [3], [0.5]))
    track.batches.append((11.0, 0, [4], [1.0]))
    _digest(track)
    assert track.rows == [(0, 6.0, 8.0, 0, 2), (0, 8.0, 11.0, 1, 2), (1, 9.5, 10.0, 1, 1)]
    assert track.names == ["a", "b"]
    assert not track.batches


def test_rows_go_on_where_they_ended_when_somebody_asks_again():
    track = _Track(LayerIndex([("a", 0), ("a", 1)], [0, 0]))
    for number, ended in enumerate((1.0, 2.0)):
        track.batches.append((ended, 0, [number], [1.0]))
        _digest(track)
    assert track.rows == [(0, 0.0, 2.0, 0, 2)]
    assert all(type(value) in (int, float) for value in track.rows[0])


def test_no_row_ends_before_it_begins_when_the_engine_hears_late():
    track = _Track(LayerIndex([("a", 0), ("a", 1), ("b", 0)], [0] * 3))
    track.batches.append((10.0, 0, [0], [1.0]))
    # It was computed after the first one, which a busy engine has heard of at the same moment.
    track.batches.append((10.0, 0, [1, 2], [1.0, 4.0]))
    _digest(track)
    assert track.rows == [(0, 5.0, 10.0, 0, 2), (0, 6.0, 10.0, 1, 1)]
