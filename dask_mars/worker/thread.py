"""A worker that is a thread of the user's process: it computes library code until worker processes have started.

It has an arena as a process has, which a process takes over once the thread has ended.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import time
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

import numpy as np

from dask_mars import process_role
from dask_mars.graph.chunks import Operand
from dask_mars.protocol.control import ControlPage
from dask_mars.protocol.messages import Start
from dask_mars.store.arena import Arena
from dask_mars.store.in_place_sealing import make_heap
from dask_mars.store.store import Store
from dask_mars.worker.fast_operands import made_fast
from dask_mars.worker.known_graph import KnownGraph
from dask_mars.worker.loop import WorkerProcess, overflow_files
from dask_mars.worker.surroundings import Surroundings
from dask_mars.worker.trimmer import Trimmer


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


class ThreadSurroundings(Surroundings):
    """Leaves the user's own directory, environment and settings alone."""

    def __init__(self, variables_of: Callable[[int], Context], own: list[tuple[ContextVar[Any], Any]]) -> None:
        super().__init__()
        #: Returns the context variables of the thread that submitted a graph.
        self._variables_of = variables_of
        #: Variables that this thread sets in the context of each graph: NumPy's allocator is one.
        self._own = own

    def _apply(self, payload: bytes) -> None:
        pass

    def turn_to(self, graph: KnownGraph) -> list[str]:
        self.graph = graph.id
        try:
            self.variables = self._variables_of(graph.id).copy()
        except KeyError:
            # The computation has ended meanwhile.
            self.variables = copy_context()
        for variable, value in self._own:
            self.variables.run(variable.set, value)
        return []

    def restore(self) -> None:
        self.graph = 0


class ThreadTrimmer(Trimmer):
    """Leaves the user's garbage and descriptors alone; that process collects on its own."""

    def trim(self) -> None:
        self.is_due = False
        self._store.trim()

    def collect_garbage(self) -> None:
        pass

    def close_garbage(self) -> None:
        pass


class BorrowedOperands(dict[int, Any]):
    """Operands of a graph of this process, which all threads make fast only once."""

    def __init__(self, operands: Sequence[Operand], fast: dict[int, Operand]) -> None:
        super().__init__()
        self._operands, self._fast = operands, fast

    def __missing__(self, id: int) -> Operand:
        operand = self._fast.get(id)
        if operand is None:
            operand = self._fast[id] = made_fast(self._operands[id])
        self[id] = operand
        return operand


class WorkerThread(WorkerProcess):
    """The loop of a worker that is a thread."""

    #: Sockets release the GIL, and regaining it means waiting for the engine or other workers. Readers of results
    #: usually share these queues.
    flush_s = 0.004
    #: Is informed of waits for work.
    idle_time: IdleTime
    #: Returns the user's array or frame that is a chunk of a graph.
    borrowed_value: Callable[[int, int], Any]
    #: Returns the operands of a graph, and those that a thread has made fast.
    operands_of: Callable[[int], tuple[Sequence[Operand], dict[int, Operand]]]

    def _wait_for_messages(self) -> bool:
        self.idle_time.begin()
        goes_on = super()._wait_for_messages()
        self.idle_time.end()
        return goes_on

    def _new_graph(self, id: int) -> KnownGraph:
        graph = KnownGraph(id)
        graph.operands = BorrowedOperands(*self.operands_of(id))
        return graph

    def _borrow(self, graph: KnownGraph, chunks: list[int]) -> None:
        for chunk in chunks:
            # If the computation has ended meanwhile, no reader is left.
            with contextlib.suppress(KeyError):
                value = self.borrowed_value(graph.id, chunk)
                if not isinstance(value, np.ndarray):
                    # A frame: Dask's threads read it as it is, too.
                    graph.values[chunk] = (value, None)
                    continue
                alias = value.view(np.ndarray)
                alias.flags.writeable = False
                graph.values[chunk] = (alias, None)
                if value.flags.writeable:
                    graph.borrowed.add(chunk)

    def finish(self) -> None:
        """Report all results before the end."""
        self._outbox.flush(time.perf_counter())


def serve(
    connection: socket.socket,
    idle_time: IdleTime,
    start: Start,
    arenas: list[Arena],
    page: ControlPage,
    borrowed_value: Callable[[int, int], Any],
    operands_of: Callable[[int], tuple[Sequence[Operand], dict[int, Operand]]],
    variables_of: Callable[[int], Context],
) -> list[tuple[int, int]]:
    """Compute in this thread until the engine says EXIT or is gone; return blocks that are still in use."""
    # By offset and size in bytes: arrays of this process use them, for example in a library's cache.
    process_role.enter_engine()
    arena = arenas[start.worker]
    before = copy_context()
    heap = make_heap(arena, start.live, start.arena_threshold_bytes)
    # A list of its own, to which it appends temporary arenas.
    store = Store(arenas[:], start.worker, start.live, start.inline_bytes, heap)
    overflow = partial(overflow_files, page)
    own = [(variable, value) for variable, value in copy_context().items() if before.get(variable) is not value]
    surroundings, trimmer = ThreadSurroundings(variables_of, own), ThreadTrimmer(store)
    part = page.part_of(start.worker)
    worker = WorkerThread(connection, store, part, start.idle_trim_s, overflow, surroundings, trimmer)
    worker.idle_time = idle_time
    worker.borrowed_value, worker.operands_of = borrowed_value, operands_of
    try:
        worker.serve()
        worker.finish()
    except (BrokenPipeError, ConnectionResetError):
        # The engine has ended, and with it the arena.
        return []
    finally:
        connection.close()
    del worker, surroundings, trimmer
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
