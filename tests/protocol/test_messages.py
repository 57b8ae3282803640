"""Messages between engine and workers: records in memory, plain tuples on the wire."""

from __future__ import annotations

import pickle
import typing

import pytest

from dask_mars.protocol import messages
from dask_mars.protocol.messages import as_plain, for_engine, for_worker, joined

DIRECTIONS = [(kind, for_worker) for kind in typing.get_args(messages.ToWorker)] + [
    (kind, for_engine) for kind in typing.get_args(messages.ToEngine)
]


@pytest.mark.parametrize(("kind", "made"), DIRECTIONS, ids=lambda value: value.__name__)
def test_messages_travel_as_plain_tuples(kind, made):
    message = kind(*range(len(kind._fields)))
    plain = as_plain(message)
    assert type(plain) is tuple
    assert type(plain[0]) is int
    travelled = made(pickle.loads(pickle.dumps(plain)))
    assert type(travelled) is kind
    assert travelled == message


@pytest.mark.parametrize("made", [for_worker, for_engine])
@pytest.mark.parametrize("plain", [(), (99,), (-1, 1, {}), (0, *range(20)), ("no code", 1), 3, None])
def test_what_is_no_message_is_refused(made, plain):
    with pytest.raises((TypeError, LookupError, ValueError)):
        made(plain)


def finished(graph, *chunks, peaks=None, steps_s=()):
    refs = [("at", chunk) for chunk in chunks]
    return as_plain(messages.Finished(graph, [*chunks], refs, [0.5] * len(chunks), peaks or {}, [*steps_s]))


def test_reports_of_one_graph_that_follow_each_other_are_one():
    other = as_plain(messages.Retained([(0, 0, 8)]))
    first, second = finished(1, 2, 3, peaks={0: 5, 1: 7}), finished(1, 4, peaks={0: 6, 2: 1})
    assert joined([first, second, finished(2, 0)]) == [
        finished(1, 2, 3, 4, peaks={0: 6, 1: 7, 2: 1}),
        finished(2, 0),
    ]
    # The engine must learn of retained blocks before the report behind them.
    assert joined([first, other, second, second[:3]]) == [first, other, second, second[:3]]
    # Either all chunks of a report have times, or none.
    assert joined([first, finished(1, 4, steps_s=[(1.0, 2.0, 3.0)])])[0] == first
    assert joined([]) == []


@pytest.mark.parametrize(
    "spoiled", [None, 3, "text", (), (3, 1, [2], 5, [0.5], {}, []), (3, 1, "2", [], [], {}, [])]
)
def test_what_is_no_report_is_left_alone(spoiled):
    assert joined([finished(1, 2), spoiled, finished(1, 3)]) == [finished(1, 2), spoiled, finished(1, 3)]
