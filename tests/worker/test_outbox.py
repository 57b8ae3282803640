"""What a worker says reaches the engine whole and in order, whatever is said while it is being sent."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dask_mars.protocol import channel, messages
from dask_mars.worker.outbox import Outbox, OutputStream


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


FIRST, SECOND = messages.Ready(1), messages.Ready(2)


def received(connection: socket.socket) -> list[Any]:
    reader = channel.FrameReader()
    found: list[Any] = []
    while (data := channel.receive(connection, wait=False)) is not None:
        for payload in reader.feed(data):
            found += map(messages.for_engine, pickle.loads(payload))
    return found


class Says:
    """Says something when it is pickled, as a finalizer may at any moment."""

    def __init__(self, say: Any) -> None:
        self.say = say

    def __reduce__(self) -> Any:
        self.say()
        return str, ("said",)


@pytest.mark.parametrize("now", [False, True])
def test_what_is_said_while_something_is_sent_comes_behind_it(now: bool, ends: Any) -> None:
    outbox = Outbox(ends[0])
    say = outbox.send_now if now else outbox.send
    outbox.outgoing.append(messages.Warning(1, Says(lambda: say(SECOND))))
    outbox.flush(0.0)
    assert received(ends[1]) == [messages.Warning(1, "said"), SECOND]
    outbox.flush(0.0)
    assert received(ends[1]) == []


class Talkative:
    """A connection on which something is said in the middle of sending, in the same thread."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.say: Any = None

    def sendall(self, data: bytes) -> None:
        self.connection.sendall(data[:5])
        if self.say is not None:
            say, self.say = self.say, None
            say()
        self.connection.sendall(data[5:])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("own", [True, False])
def test_a_finalizer_that_prints_in_the_middle_of_a_message(own: bool, ends: Any) -> None:
    connection: Any = Talkative(ends[0])
    outbox = Outbox(connection)
    output = OutputStream(lambda name, text: outbox.send_now(messages.Output(1, name, text)), "stdout", None)
    connection.say = lambda: output.write("from a finalizer\n")

    def send() -> None:
        outbox.send_now(FIRST)

    if own:
        send()
    else:
        thread = threading.Thread(target=send)
        thread.start()
        thread.join()
        outbox.flush(0.0)
    assert received(ends[1]) == [FIRST, messages.Output(1, "stdout", "from a finalizer\n")]


@pytest.mark.timeout(300)
def test_threads_may_say_something_at_any_time(ends: Any) -> None:
    outbox = Outbox(ends[0])
    found: list[Any] = []
    total = 2000

    def read() -> None:
        reader = channel.FrameReader()
        while len(found) < 4 * total:
            for payload in reader.feed(channel.receive(ends[1], wait=True) or b""):
                found.extend(map(messages.for_engine, pickle.loads(payload)))

    def talk(graph_id: int) -> None:
        for count in range(total):
            outbox.send_now(messages.Output(graph_id, "", str(count)))

    threads = [threading.Thread(target=read), *[threading.Thread(target=talk, args=(at,)) for at in range(3)]]
    for thread in threads:
        thread.start()
    talk(3)
    for thread in threads:
        thread.join()
    for graph_id in range(4):
        counts = [int(message.text) for message in found if message.graph == graph_id]
        assert counts == list(range(total))
