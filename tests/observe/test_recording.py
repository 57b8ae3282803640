"""Batches of chunks become rows by worker and layer, and costs by layer."""

from __future__ import annotations

from array import array
from typing import Any

from dask_mars.observe.layers import LayerIndex
from dask_mars.observe.recorded import recorded_of
from dask_mars.observe.recording import LayerCosts, Recording, Track, _Batch
from dask_mars.scheduler.events import CLIENT


def track_of(keys: list[Any], *batches: Any) -> Track:
    durations_s = array("f", [-1.0]) * len(keys)
    for _, _, chunks, took_s, *_ in batches:
        for chunk, duration_s in zip(chunks, took_s, strict=True):
            durations_s[chunk] = duration_s
    track = Track(1, 0.0, LayerIndex(keys, [0] * len(keys)), durations_s, array("q", [100] * len(keys)))
    track.batches.extend([_Batch(*batch) for batch in batches])
    return track


def test_reports_become_rows_by_worker_and_layer():
    track = track_of(
        [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)],
        (10.0, 0, [0, 1, 2], [1.0, 1.0, 2.0]),
        # Of another worker in between; the next one of the first goes on where that has ended.
        (10.0, 1, [3], [0.5]),
        (11.0, 0, [4], [1.0]),
    )
    track.digest()
    assert track.rows == [(0, 6.0, 8.0, 0, 2), (0, 8.0, 11.0, 1, 2), (1, 9.5, 10.0, 1, 1)]
    assert track.names == ["a", "b"]
    assert not track.batches


def test_rows_go_on_where_they_ended_when_somebody_asks_again():
    track = track_of([("a", 0), ("a", 1)])
    for number, ended in enumerate((1.0, 2.0)):
        track.batches.append(_Batch(ended, 0, [number], [1.0]))
        track.digest()
    assert track.rows == [(0, 0.0, 2.0, 0, 2)]
    assert all(type(value) in (int, float) for value in track.rows[0])


def test_no_row_ends_before_it_begins_when_the_engine_hears_late():
    # The second batch was computed after the first, which a busy engine has heard of at the same moment.
    batches = (10.0, 0, [0], [1.0]), (10.0, 0, [1, 2], [1.0, 4.0])
    track = track_of([("a", 0), ("a", 1), ("b", 0)], *batches)
    track.digest()
    assert track.rows == [(0, 5.0, 10.0, 0, 2), (0, 6.0, 10.0, 1, 1)]


def test_steps_say_when_chunks_ran_and_how_long_they_loaded_and_sealed():
    steps = [(0.0, 0.25, 1.5), (5.0, 5.25, 5.5), (6.0, 6.0, 7.0)]
    track = track_of([("a", 0), ("a", 1), ("b", 0), ("b", 1)], (9.0, 0, [0, 1, 2], [2.0, 1.0, 1.5], steps))
    track.failed[2] += 2
    track.is_over = True
    track.digest()
    assert track.rows == [(0, 0.0, 2.0, 0, 1), (0, 5.0, 6.0, 0, 1), (0, 6.0, 7.5, 1, 1)]
    costs = {"a": LayerCosts(2, 0.5, 1.5, 1.0, 200, 0), "b": LayerCosts(1, 0.0, 1.0, 0.5, 100, 2)}
    assert track.costs() == costs
    assert len(track.index.keys) == 0
    track.digest()
    assert track.costs() == costs


def test_computations_of_a_recording_are_shown_together():
    recording = Recording()
    # Threads of the user's process run side by side, and share a row of the page.
    side_by_side = [(10.0, 10.0, 12.0), (11.0, 11.0, 13.0)]
    first = track_of([("a", 0), ("b", 1)], (13.0, CLIENT, [0, 1], [2.0, 2.0], side_by_side))
    second = track_of(
        [("b", 0), ("a", 2)], (17.0, 0, [0, 1], [1.0, 1.0], [(15.0, 15.0, 16.0), (16.0, 16.0, 17.0)])
    )
    for number, (track, began_s) in enumerate([(first, 10.0), (second, 14.0)]):
        track.began_s = began_s
        recording.tracks[1, number] = track
    recorded = recorded_of(recording)
    assert list(recorded.layers) == ["a", "b"]
    assert recorded.rows == [(-1, 0.0, 2.0, 0, 1), (-1, 2.0, 3.0, 1, 1), (0, 5.0, 6.0, 1, 1), (0, 6.0, 7.0, 0, 1)]
    assert (recorded.length_s, recorded.chunks, recorded.layers["a"].stored_bytes) == (7.0, 4, 200)
    assert [one.began_s for one in recorded.computations] == [0.0, 4.0]
