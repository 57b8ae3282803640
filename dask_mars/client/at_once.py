"""Computes small graphs of library code in one thread: to hand their chunks to several takes longer."""

from __future__ import annotations

import contextvars
import copy
import sys
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from dask_mars.client.lending import Lent, WritesIntoInputs, names_of
from dask_mars.client.local_tasks import raised_by
from dask_mars.engine.spare_threads import SpareThreads
from dask_mars.graph.callables import package_of
from dask_mars.graph.chunks import DATA, ChunkGraph, DeclaredSizes
from dask_mars.lazy_numpy import np
from dask_mars.optimize.library_code import FRAMES, code_origin
from dask_mars.protocol import tracebacks
from dask_mars.store.persisted import value_of
from dask_mars.store.store import bytes_to_store

#: Maximum number of chunks, and of declared bytes of all results; bytes from which the graph's data are not small.
_MOST_CHUNKS, _MOST_RESULT_BYTES, _MOST_BYTES = 64, 16 << 20, 4 << 20
#: Time after which the engine gets the chunks that are left, and that of a chunk that is better left to it.
_TIME_S, _SLOW_S = 0.01, 0.003
#: Longest single wait for chunks, in seconds.
_WAIT_S = 0.5

#: By functions of operands: number of computations since a chunk was quick.
_slow: dict[tuple[str, ...], int] = {}

#: Types of results that hold nothing of the user's arrays, besides arrays of numbers and pandas' objects.
_SCALARS = (int, float, complex, str, bytes, type(None))


def is_small(graph: ChunkGraph, with_frames: bool) -> bool:
    """Return whether a graph only reads small arrays and frames in memory, by functions of libraries."""
    if len(graph) > _MOST_CHUNKS or graph.retries or graph.restrictions or not graph.values:
        return False
    if not all(map(_is_plain, graph.values.values())):
        return False
    if sum(map(bytes_to_store, graph.values.values())) >= _MOST_BYTES:
        return False
    chunks = [chunk for chunk, operand in enumerate(graph.operand_of) if operand != DATA]
    # Sources may take as long as a file or a network does.
    if not all(graph.inputs[chunk] for chunk in chunks):
        return False
    sizes = DeclaredSizes(graph)
    # All results stay until the end, and no account knows of them.
    if sum([sizes[chunk] or 0 for chunk in chunks]) > _MOST_RESULT_BYTES:
        return False
    # All of them count the computation.
    if _slow and sum([_waits(names_of(operand)) for operand in graph.operands]):
        return False
    origin = code_origin(graph)
    return not origin.other and (with_frames or not any(name.startswith(FRAMES) for name in origin.modules))


def compute_at_once(graph: ChunkGraph, check: Callable[[], None], threads: SpareThreads, size: int) -> ChunkGraph:
    """Compute chunks one after the other until time is up; return the graph with their values as data."""
    # Most programs save nothing, but chunks that others have saved are left out in the same way.
    from dask_mars.checkpointing.restore import restored

    pool = threads.take(size)
    try:
        # Ctrl-C would wait for a chunk in this thread, whose own settings do not hold under Dask's threads.
        computing = pool.submit(contextvars.copy_context().run, _computed, graph, check)
    except RuntimeError:
        # The interpreter ends.
        return graph
    try:
        # Ctrl-C does not end a wait that is just beginning.
        while not wait([computing], _WAIT_S).done:
            pass
        return restored(graph, computing.result(), {}, value_of)
    finally:
        if computing.done():
            threads.give_back(size, pool)
        else:
            # As under Dask's threads, a running chunk continues.
            pool.shutdown(wait=False, cancel_futures=True)


def _computed(graph: ChunkGraph, check: Callable[[], None]) -> dict[int, Any]:
    lent, values, outputs = Lent(graph, set(), is_measured=False), dict(graph.values), set(graph.outputs)
    end_s, known = time.perf_counter() + _TIME_S, set[tuple[str, ...]]()
    for chunk, operand in enumerate(graph.operand_of):
        if operand == DATA:
            continue
        check()
        began_s = time.perf_counter()
        if began_s > end_s:
            break
        try:
            inputs = [values[source] for source in graph.inputs[chunk]]
            value = contextvars.copy_context().run(lent.run_reading, chunk, inputs)
        except WritesIntoInputs:
            # A list, for example, holds read-only views. The engine makes it anew.
            return {done: value for done, value in values.items() if _is_alone(value)}
        except Exception as error:
            tracebacks.add_note(error, raised_by(graph, chunk))
            raise
        is_slow = time.perf_counter() - began_s > _SLOW_S
        if is_slow or _slow:
            names = names_of(graph.operands[operand])
            if not is_slow:
                # The others had to wait, or to load code.
                _slow.pop(names, None)
            elif names not in known:
                _slow[names] = _slow.get(names, 0) + 1
            known.add(names)
        if chunk in outputs and not _is_alone(value):
            # It may hold parts of the user's arrays.
            try:
                value = copy.deepcopy(value)
            except Exception:
                break
        values[chunk] = value
    return values


def _waits(names: tuple[str, ...]) -> bool:
    """Return whether functions were slow, and are not to be tried again in this computation."""
    count = _slow.get(names, 0)
    # Tried when the count is a power of two: the machine may have been busy, or code had to be loaded.
    if count & (count - 1) == 0:
        return False
    _slow[names] = count + 1
    return True


def _is_alone(value: object) -> bool:
    """Return whether a result holds nothing of the user's arrays."""
    # Structured scalars are views.
    is_scalar = isinstance(value, (np.generic, *_SCALARS)) and not isinstance(value, np.void)
    return is_scalar or _is_plain(value)


def _is_plain(value: object) -> bool:
    if type(value) is np.ndarray:
        return not value.dtype.hasobject
    # Before pandas 3, parts of a frame change with it.
    return package_of(type(value)) == "pandas" and int(sys.modules["pandas"].__version__.partition(".")[0]) >= 3
