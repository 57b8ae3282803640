"""Messages between engine and workers: records in memory, plain tuples on the wire."""

from __future__ import annotations

import pickle
import typing

import pytest

from dask_mars.protocol import messages
from dask_mars.protocol.messages import as_plain, for_engine, for_worker

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


def test_each_direction_has_codes_of_its_own():
    for kinds in (messages._TO_WORKER, messages._TO_ENGINE):
        assert [messages._CODES[kind] for kind in kinds] == [*range(len(kinds))]
