"""What holds a file descriptor, in arguments, closures and results: it stays in the process that has opened it."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
from multiprocessing import shared_memory
from typing import Any

import dask

import dask_mars
from tests.cases.comparing import case, main

MESSAGE = b"from a task"


class Port(io.RawIOBase):
    """A device, as libraries for serial ports have them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor


@case
def pipe_as_argument() -> Any:
    # Many, so that some of their numbers name files of a worker.
    pipes = [multiprocessing.Pipe() for _ in range(8)]
    dask.compute(*[dask.delayed(lambda end: end.send_bytes(MESSAGE))(end) for _, end in pipes])
    return [end.recv_bytes() if end.poll(5) else "nothing came" for end, _ in pipes]


@case
def pipe_as_result() -> Any:
    ends = dask.delayed(multiprocessing.Pipe)()
    sent = dask.delayed(lambda ends: ends[1].send(MESSAGE) or ends)(ends)
    return sent.compute()[0].recv()


@case
def standard_input() -> Any:
    def ask(read: Any) -> Any:
        return read(), sys.stdin.isatty()

    found = []
    for read in (input, lambda: sys.stdin.read(), lambda: next(sys.stdin), lambda: [*sys.stdin]):
        before, sys.stdin = sys.stdin, io.StringIO("from the user\n")
        try:
            found += dask.compute(dask.delayed(ask)(read))
        finally:
            sys.stdin = before
    return found


@case
def port() -> Any:
    reader, writer = os.pipe()
    dask.delayed(lambda port: os.write(port.fileno(), MESSAGE))(Port(writer)).compute()
    received = os.read(reader, 100)
    os.close(reader)
    os.close(writer)
    return received


@case
def primitives() -> Any:
    event, value, queue = multiprocessing.Event(), multiprocessing.Value("i"), multiprocessing.SimpleQueue()

    def change() -> None:
        event.set()
        value.value += 1
        queue.put(MESSAGE)

    dask.delayed(change)().compute()
    return event.is_set(), value.value, queue.get()


@case
def shared_memory_by_name() -> Any:
    memory = shared_memory.SharedMemory(create=True, size=16)
    try:
        dask.delayed(lambda memory: memory.buf.__setitem__(0, 7))(memory).compute()
        return memory.buf[0]
    finally:
        memory.close()
        memory.unlink()


@case
def shared_memory_opened_by_a_task() -> Any:
    memory = shared_memory.SharedMemory(create=True, size=16)

    def write(name: str) -> str:
        opened = shared_memory.SharedMemory(name=name)
        opened.buf[0] = 7
        opened.close()
        own = shared_memory.SharedMemory(create=True, size=1)
        own.buf[0] = 8
        own.close()
        return own.name

    (made,) = dask.compute(dask.delayed(write)(memory.name))
    dask_mars.close()
    values = []
    for name in (memory.name, made):
        again = shared_memory.SharedMemory(name=name)
        values.append(again.buf[0])
        again.close()
        again.unlink()
    memory.close()
    return values


@case
def manager() -> Any:
    with multiprocessing.Manager() as started:
        shared, lock = started.dict(), started.Lock()

        def fill(number: int) -> None:
            with lock:
                shared[number] = number

        dask.compute(*[dask.delayed(fill)(number) for number in range(3)])
        return sorted(shared.items())


if __name__ == "__main__":
    main()
