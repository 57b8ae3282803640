"""A worker that is a thread of the user's process: it computes library code until worker processes are up.

It has an arena as a process has, which a process takes over once the thread has ended.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import time
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

import dask
import numpy as np

from dask_mars import process_role
from dask_mars.protocol.control import ControlPage
from dask_mars.protocol.messages import Start
from dask_mars.store.arena import Arena
from dask_mars.store.in_place_sealing import make_heap
from dask_mars.store.store import Store
from dask_mars.worker.known_graph import KnownGraph
from dask_mars.worker.loop import WorkerProcess, overflow_files


class IdleTime:
    """Time for which a thread has had nothing to do; other threads may read it at any moment."""

    def __init__(self) -> None:
        #: Seconds without work up to the last work, and start of the present idle time, None while busy. One
        #: tuple, so that readers see both at once.
        self._state: tuple[float, float | None] = (0.0, time.monotonic())

    def begin(self) -> None:
        """Record that there is nothing to do."""
        self._state = (self._state[0], time.monotonic())

    def end(self) -> None:
        """Record that there is work."""
        self._state = (self.until(time.monotonic()), None)

    def until(self, now_s: float) -> float:
        """Return the seconds without work up to now."""
        total_s, since_s = self._state
        return total_s if since_s is None else total_s + now_s - since_s


class WorkerThread(WorkerProcess):
    """The loop of a worker that is a thread.

    Its tasks run in the user's own directory, environment and settings, which it leaves alone.
    """

    #: Sockets release the GIL, and regaining it means waiting for the engine or other workers. Readers of results
    #: usually share these queues.
    flush_s = 0.004
    #: Is informed of waits for work.
    idle_time: IdleTime
    #: Returns the user's array that is a chunk of a graph.
    borrowed_array: Callable[[int, int], Any]
    #: Returns the context variables of the thread that submitted a graph.
    variables_of: Callable[[int], Context]
    #: Variables that this thread sets in the context of each graph: NumPy's allocator is one.
    own_variables: list[tuple[ContextVar[Any], Any]]

    def _wait_for_messages(self) -> bool:
        self.idle_time.begin()
        goes_on = super()._wait_for_messages()
        self.idle_time.end()
        return goes_on

    def _borrow(self, number: int, graph: KnownGraph, chunks: list[int]) -> None:
        for chunk in chunks:
            # If the computation has ended meanwhile, no reader is left.
            with contextlib.suppress(KeyError):
                array = self.borrowed_array(number, chunk)
                alias = array.view(np.ndarray)
                alias.flags.writeable = False
                graph.values[chunk] = (alias, None)
                if array.flags.writeable:
                    graph.borrowed.add(chunk)

    def finish(self) -> None:
        """Report all results before the end."""
        self._outbox.flush(time.perf_counter())

    def _enter(self, number: int) -> None:
        payload = self._contexts.get(number)
        if self._context != number and payload is not None:
            self._context = number
            self._writable_inputs = bool(dask.config.get("dask-mars.writable-inputs", False))

    def _restore_context(self) -> None:
        self._graph = 0

    def _turn_to(self, number: int) -> None:
        super()._turn_to(number)
        try:
            self._variables = self.variables_of(number).copy()
        except KeyError:
            # The computation has ended meanwhile.
            self._variables = copy_context()
        for variable, value in self.own_variables:
            self._variables.run(variable.set, value)

    def _variables_of(self, number: int) -> Context:
        return self._variables

    def _collect_garbage(self) -> None:
        # The user's process has more objects to search, and collects on its own.
        pass

    def _close_garbage(self) -> None:
        # Descriptors of the user's process say nothing about this thread.
        pass

    def _trim(self) -> None:
        self._trimmed = True
        self._store.trim()


def serve(
    connection: socket.socket,
    idle_time: IdleTime,
    start: Start,
    arenas: list[Arena],
    page: ControlPage,
    borrowed_array: Callable[[int, int], Any],
    variables_of: Callable[[int], Context],
) -> list[tuple[int, int]]:
    """Compute in this thread until the engine says EXIT or is gone.

    Returns
    -------
    list of (int, int)
        Offset and size in bytes of blocks of its arena that arrays of this process still use, for example in a
        library's cache: no other worker may take them.
    """
    process_role.enter_engine()
    arena = arenas[start.number]
    before = copy_context()
    heap = make_heap(arena, start.live, start.arena_threshold_bytes)
    store = Store(arenas, start.number, start.live, start.inline_bytes, heap)
    overflow = partial(overflow_files, page)
    worker = WorkerThread(connection, store, page.part_of(start.number), start.idle_trim_s, overflow)
    worker.idle_time = idle_time
    worker.borrowed_array = borrowed_array
    worker.variables_of = variables_of
    worker.own_variables = [
        (variable, value) for variable, value in copy_context().items() if before.get(variable) is not value
    ]
    try:
        worker.serve()
        worker.finish()
    except (BrokenPipeError, ConnectionResetError):
        # The engine has ended, and with it the arena.
        return []
    finally:
        connection.close()
    del worker
    if heap is None:
        return []
    # Copies of its contexts may live on in other threads, and the next process has the arena.
    heap.close()

    def in_arrays() -> list[tuple[int, int]]:
        return [(at, size) for at, size in heap.used.items() if heap.array_block(arena.address + at) is not None]

    if in_arrays():
        # Exceptions and their frames form cycles, which may hold arrays.
        gc.collect()
    return in_arrays()


__all__ = ["IdleTime", "serve"]
