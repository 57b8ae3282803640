"""What rounds of the soak could leave behind: processes, descriptors, threads, chunks, memory, logged errors."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from dask_mars import Runtime
from dask_mars.engine.engine import Engine
from dask_mars.scheduler.events import CLIENT

#: What is left may take this long to go: a worker that is starting gives back what was cancelled when it is up,
#: which on a busy machine takes seconds.
_GRACE_S = 30.0


def _descriptors() -> dict[str, str]:
    found = {}
    for descriptor in Path("/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd").iterdir():
        with contextlib.suppress(OSError):
            found[descriptor.name] = str(descriptor.readlink())
    return found


def share_allocator() -> None:
    """Have all threads of this process allocate from one place."""
    # The system's own library gives each thread a part of its own, which keeps what is free between what is not:
    # with new threads in each round that grew by 100 MB in 400 computations, and by 20 so, as with Dask's
    # scheduler.
    with contextlib.suppress(AttributeError):
        # M_ARENA_MAX of glibc.
        ctypes.CDLL(None).mallopt(-8, 1)


def private_bytes() -> int:
    """Return the memory that this process shares with no other, without what its allocator holds in reserve."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        # The system's own library has it, if that is glibc.
        ctypes.CDLL(None).malloc_trim(0)
    if (pyarrow := sys.modules.get("pyarrow")) is not None:
        # What holds the texts of dataframes.
        pyarrow.default_memory_pool().release_unused()
    memory = psutil.Process().memory_info()
    return int(memory.rss) - int(getattr(memory, "shared", 0))


def _counted() -> int:
    # The one that serves as locks is opened once and stays.
    return sum(not name.startswith("/memfd:dask-mars-locks") for name in _descriptors().values())


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("dask-mars")}


class Surroundings:
    """What a round could leave behind."""

    def __init__(self) -> None:
        self._descriptors = _counted()
        self._children = _children()
        self._threads = _threads()

    def _added(self) -> dict[str, Any]:
        found = {
            "processes": _children() - self._children,
            "descriptors": _descriptors() if _counted() > self._descriptors else None,
            "threads": _threads() - self._threads,
        }
        return {name: what for name, what in found.items() if what}

    def left_over(self) -> dict[str, Any]:
        """Return what is there after some time for it to go."""
        deadline_s = time.monotonic() + _GRACE_S
        while (added := self._added()) and time.monotonic() < deadline_s:
            # Exceptions keep frames alive, and those what they refer to, such as mapped memory.
            gc.collect()
            time.sleep(0.05)
        return added


def left_in_engine(runtime: Runtime) -> dict[str, Any]:
    """Return what computations have left in a runtime that computes nothing, after some time for it to go."""
    engine = runtime.engine()
    deadline_s = time.monotonic() + _GRACE_S
    while True:
        blocks = engine._blocks.counts
        if not (blocks or engine._runs or engine._commands) or not engine.alive:
            return {}
        if time.monotonic() > deadline_s:
            return {"blocks": blocks, "commands": len(engine._commands), "graphs": _graphs_of(engine)}
        gc.collect()
        time.sleep(0.01)


def _graphs_of(engine: Engine) -> dict[int, Any]:
    """Return the states of each graph's chunks, and the chunks dispatched to each worker."""
    machine = engine._loop.machine
    dispatched = {worker: machine.dispatched_to(worker) for worker in (CLIENT, *engine._registry.workers)}
    return {
        graph: (
            {state: count for state, count in machine.counts(graph).items() if count},
            {
                worker: [chunk for owner, chunk in places if owner == graph]
                for worker, places in dispatched.items()
            },
            str(engine._runs[graph].graph.keys)[:500],
        )
        for graph in list(machine.graphs)
    }


class Errors(logging.Handler):
    """Keeps what is logged as an error, and nothing else of what is logged is of interest."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.messages.append(self.format(record))

    @contextlib.contextmanager
    def kept(self) -> Iterator[list[str]]:
        """Keep errors while the context is open."""
        logger = logging.getLogger("dask_mars")
        logger.addHandler(self)
        logger.propagate = False
        try:
            yield self.messages
        finally:
            logger.propagate = True
            logger.removeHandler(self)
