"""Chunks that threads of the user's process compute beside worker processes: those that read its memory.

A process would need a copy of every array and frame that such a chunk reads, which may take longer than the chunk.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from dask_mars.client.local_tasks import local_literals, run_chunk
from dask_mars.config import Settings
from dask_mars.graph.callables import full_name, package_of
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes, Operand
from dask_mars.lazy_numpy import np
from dask_mars.optimize.known import unfolded
from dask_mars.optimize.library_code import MOST_CHUNKS, MUCH_BYTES, library_chunks
from dask_mars.optimize.plain_functions import writes_of
from dask_mars.store.array_memory import byte_bounds, copy_as_it_lies
from dask_mars.store.persisted import PersistedChunk

#: Minimum bytes of the user's memory that a chunk reads; copies of fewer cost less than another thread's turn.
_LEAST_BYTES = 1 << 20
#: Maximum share of its input's size that a chunk's result has; larger ones would have to be copied in turn.
_MOST_RESULT = 0.5
#: Share of their time that functions may lose to the GIL, and the time after which that is known, in seconds.
_MOST_LOST, _KNOWN_S = 0.4, 0.1
#: Time of functions after which it is not measured any more: each reading of the counters waits for the GIL.
_SETTLED_S = 0.5
_COUNTERS, _COUNTERS_BYTES = "/proc/self/task/{}/schedstat", 128
#: Divisor of a worker's share of the memory limit: threads compute no larger chunks.
_CHUNK_SHARE = 16
#: Divisor of the memory limit: results of threads that run beside processes take no more.
_RESULTS_SHARE = 4
#: Smallest memory limit for frames in threads, in bytes. Frames declare no sizes, so there must be ample room.
FRAMES_LIMIT_BYTES = 1 << 33
#: Ends of the names of functions that multiply matrices. BLAS computes each in threads of its own, which wait for
#: one another if several call it; in processes it has one.
_PRODUCTS = "._matmul", "._tensordot"
#: Size below which arrays are combined by the graph's own functions.
_SMALL_BYTES = 1 << 16
#: Types of values that no task can change.
_FIXED = frozenset(
    {type(None), type(Ellipsis), bool, int, float, complex, str, bytes, range, slice, type}
    | {BuiltinFunctionType, FunctionType}
)


class _Losses:
    """Time of functions in threads, and the part in which their thread neither ran nor waited for a processor."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, ...], tuple[float, float]] = {}

    def add(self, functions: tuple[str, ...], total_s: float, lost_s: float) -> None:
        """Add one run."""
        total, lost = self._times.get(functions, (0.0, 0.0))
        self._times[functions] = total + total_s, lost + lost_s

    def are_high(self, functions: tuple[str, ...]) -> bool:
        """Return whether processes would compute these functions faster, copies included."""
        total_s, lost_s = self._times.get(functions, (0.0, 0.0))
        return total_s >= _KNOWN_S and lost_s > _MOST_LOST * total_s

    def are_settled(self, functions: tuple[str, ...]) -> bool:
        """Return whether enough is known of these functions."""
        return functions in self._times and self._times[functions][0] >= _SETTLED_S


losses = _Losses()


class Limits(NamedTuple):
    """Limits of computations by threads of the user's process."""

    #: Maximum bytes of a chunk, and of the results of a graph that are not spilled.
    chunk_bytes: int
    results_bytes: int
    allow_frames: bool

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Return what an engine's settings allow."""
        limit_bytes = settings.memory_limit
        chunk_bytes = limit_bytes // (_CHUNK_SHARE * settings.num_workers)
        return cls(chunk_bytes, limit_bytes // _RESULTS_SHARE, limit_bytes >= FRAMES_LIMIT_BYTES)


class WritesIntoInputs(Exception):
    """Internal: a chunk failed because its inputs are read-only."""


class Lent:
    """The lent chunks of a graph."""

    def __init__(self, graph: ChunkGraph, chunks: set[int], is_measured: bool = True) -> None:
        self._graph, self.chunks, self._is_measured = graph, chunks, is_measured
        self._operands: dict[int, Operand] = {}
        #: By operand: whether its functions may write into arrays. Those that have tried to are known to do so.
        self._may_write: dict[int, bool] = {}
        self._writing = set[int]()

    def run(self, chunk: int, inputs: list[Any]) -> Any:
        """Compute a chunk of inputs that are read-only; if it writes into them, again as Dask's threads do."""
        operand_id = self._graph.operand_of[chunk]
        if operand_id not in self._writing and self._is_repeatable(chunk, operand_id, inputs):
            with contextlib.suppress(WritesIntoInputs):
                return self.run_reading(chunk, inputs)
            self._writing.add(operand_id)
        return run_chunk(self._graph, chunk, inputs)

    def _is_repeatable(self, chunk: int, operand_id: int, inputs: list[Any]) -> bool:
        """Return whether a chunk that fails because it writes into an array has changed nothing else before."""
        functions = self._graph.operands[operand_id].functions
        may_write = self._may_write.get(operand_id)
        if may_write is None:
            may_write = self._may_write[operand_id] = writes_of(functions)
        others = *inputs, *self._graph.literals[chunk]
        return not (may_write and any(map(_may_change, (*others, *_held_by(functions)))))

    def run_reading(self, chunk: int, inputs: list[Any]) -> Any:
        """Compute a chunk of inputs that are read-only; raise `WritesIntoInputs` if it writes into them."""
        # Most graphs lend no chunks, and do not wait for these.
        from dask_mars.worker.fast_operands import made_fast
        from dask_mars.worker.reruns import is_about_writing

        literals = local_literals(self._graph, chunk)
        operand_id = self._graph.operand_of[chunk]
        operand = self._operands.get(operand_id)
        if operand is None and all(map(_is_small, inputs)):
            operand = self._graph.operands[operand_id]
        elif operand is None:
            operand = self._operands[operand_id] = made_fast(self._graph.operands[operand_id])
        names = names_of(self._graph.operands[operand_id])
        # What only combines results takes too little time to be measured.
        read_bytes = sum([value.nbytes for value in inputs if isinstance(value, np.ndarray)])
        takes_time = read_bytes >= _LEAST_BYTES or not self._graph.values.keys().isdisjoint(
            self._graph.inputs[chunk]
        )
        is_counted = self._is_measured and takes_time and not losses.are_settled(names)
        before_s, counted_s = time.perf_counter(), _counted_s() if is_counted else None
        try:
            result = operand.run(list(map(_read_only, inputs)), tuple(map(_read_only, literals)))
        except Exception as error:
            if not is_about_writing(error):
                raise
            raise WritesIntoInputs from error
        if counted_s is not None and (counted_after_s := _counted_s()) is not None:
            total_s = time.perf_counter() - before_s
            losses.add(names, total_s, total_s - (counted_after_s - counted_s))
        if type(result) is np.ndarray and not result.flags.writeable:
            # A view of the user's array, which may change later.
            low, high = byte_bounds(result)
            result = copy_as_it_lies(result)
            result.flags.writeable = high - low >= result.nbytes
            return result
        given = [value for value in (*inputs, *literals) if type(value) is np.ndarray]
        return _own(result, [byte_bounds(value) for value in given])


def lent_chunks(
    graph: ChunkGraph, copied_bytes: Mapping[int, int], limits: Limits, in_client: Collection[int], stores: bool
) -> Lent:
    """Return the chunks of library code that read the user's memory and results of such, and return less.

    Unless the graph `stores` its outputs, these are all chunks if they are library code and read much of it. Those
    `in_client` are computed in the user's process in any case.
    """
    if not stores and _reads_much(graph, copied_bytes, limits):
        everything = set(range(len(graph))).difference(graph.values, in_client)
        if not _has_large_products(graph) and _quick_chunks(graph, everything, limits.allow_frames) == everything:
            return Lent(graph, everything)
    lent = set[int]()
    for chunk in sorted(
        _quick_chunks(graph, _small_chunks(graph, copied_bytes, limits.chunk_bytes), limits.allow_frames)
    ):
        if all(at in graph.values or at in lent for at in graph.inputs[chunk]):
            lent.add(chunk)
    return Lent(graph, lent)


def _quick_chunks(graph: ChunkGraph, chunks: Collection[int], allow_frames: bool) -> set[int]:
    """Return those of some chunks that are library code and do not lose much time to the GIL."""
    known = library_chunks(graph, chunks, allow_frames)
    operands = {graph.operand_of[chunk] for chunk in known}
    quick = {id for id in operands if not losses.are_high(names_of(graph.operands[id]))}
    return {chunk for chunk in known if graph.operand_of[chunk] in quick}


def _reads_much(graph: ChunkGraph, copied_bytes: Mapping[int, int], limits: Limits) -> bool:
    """Return whether a graph reads mostly the user's memory, and makes no more than fits without spilling."""
    read_bytes = sum(copied_bytes.values())
    if read_bytes < MUCH_BYTES or len(graph) > MOST_CHUNKS or graph.restrictions:
        return False
    if any(type(value) is PersistedChunk for value in graph.values.values()):
        return False
    declared = DeclaredSizes(graph)
    sizes = [declared[chunk] for chunk in range(len(graph)) if chunk not in graph.values]
    # Of undeclared results, about five are there at a time, each at most as large as all inputs, as a rule.
    most_bytes = limits.results_bytes // (2 if None in sizes else 1)
    known = [size for size in sizes if size]
    fits = max(known, default=0) <= limits.chunk_bytes and sum(known) <= limits.results_bytes
    return fits and read_bytes <= most_bytes


def _has_large_products(graph: ChunkGraph) -> bool:
    """Return whether a graph multiplies matrices with results of at least half the size of what they read."""
    products = {
        id
        for id, operand in enumerate(graph.operands)
        if any(name.endswith(_PRODUCTS) for name in names_of(operand))
    }
    sizes = DeclaredSizes(graph)
    return any(
        (sizes[chunk] or 0) >= _MOST_RESULT * sum([sizes[at] or 0 for at in graph.inputs[chunk]])
        for chunk, operand_id in enumerate(graph.operand_of)
        if operand_id in products
    )


def _small_chunks(graph: ChunkGraph, copied_bytes: Mapping[int, int], most_bytes: int) -> set[int]:
    """Return the chunks that read the user's memory and results of such, and return less."""
    candidates, values, outputs = set[int](), graph.values, set(graph.outputs)
    sizes = DeclaredSizes(graph)
    for chunk, sources in enumerate(graph.inputs if copied_bytes else ()):
        made = [source for source in sources if source in candidates]
        read_bytes = sum([copied_bytes.get(source, 0) for source in sources])
        if not sources or chunk in graph.restrictions or not (made or read_bytes >= _LEAST_BYTES):
            continue
        made_bytes, size = [sizes[source] for source in made], sizes[chunk]
        if made and chunk not in outputs and (size is None or None in made_bytes):
            # Frames that are put together may be large. Outputs come to this process in any case.
            continue
        are_here = all(
            source in candidates or (source in values and type(values[source]) is not PersistedChunk)
            for source in sources
        )
        read_bytes += sum(filter(None, made_bytes))
        # An undeclared result is as large as what is read, at most, and chunks that read it may come much later.
        largest = read_bytes if size is None else size
        if are_here and largest <= most_bytes and (size or 0) <= _MOST_RESULT * read_bytes:
            candidates.add(chunk)
    return candidates


def names_of(operand: Operand) -> tuple[str, ...]:
    """Return the full names of an operand's functions."""
    return tuple([full_name(function) for function in operand.functions])


def _is_small(value: Any) -> bool:
    """Return whether a value is an array or a number that faster functions would not save time for."""
    return isinstance(value, np.ndarray | np.generic) and value.nbytes < _SMALL_BYTES


def _may_change(value: Any) -> bool:
    """Return whether a task may change a value, other than an array, which it gets read-only."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return any(map(_may_change, value))
    is_fixed = issubclass(kind, np.generic | np.dtype | np.ufunc) and kind is not np.void
    return not (is_fixed or kind is np.ndarray or kind in _FIXED)


def _held_by(functions: tuple[Any, ...]) -> Iterator[Any]:
    """Yield functions of an operand and the values that they hold."""
    for value in unfolded(functions):
        if type(value) is partial:
            yield from _held_by((value.func, *value.args, *value.keywords.values()))
        else:
            yield value


def _read_only(value: Any) -> Any:
    if type(value) is np.ndarray:
        value = value.view()
        value.flags.writeable = False
    return value


def _own(result: Any, bounds: list[tuple[int, int]]) -> Any:
    """Return a result with copies of the views of arrays that it holds, such as a tuple of slices."""
    from dask_mars.protocol.pickling import dumps, loads, plain_bytes

    if not bounds or type(result) is np.ndarray or plain_bytes(result) is not None:
        return result
    # A structured number is a view, and pandas copies blocks before `thaw` sees them.
    kinds: dict[int, type] = {}
    found = isinstance(result, np.void) or package_of(type(result)) == "pandas"

    def thaw(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        nonlocal found
        low, high = byte_bounds(array)
        if not any(start <= low and high <= stop for start, stop in bounds):
            return array
        found = True
        return copy_as_it_lies(array)

    buffers: list[Any] = []
    # What cannot be pickled stays in this process, as under Dask's threads.
    with contextlib.suppress(Exception):
        pickled = dumps(result, buffers.append, thaw, kinds)
        found = found or any(package_of(kind) == "pandas" for kind in kinds.values())
        return loads(pickled, buffers=buffers) if found else result
    return result


def _counted_s() -> float | None:
    """Return the seconds for which this thread has run or waited for a processor, None if unknown."""
    try:
        # Fewer system calls than by a file object, each of which gives up the GIL.
        descriptor = os.open(_COUNTERS.format(threading.get_native_id()), os.O_RDONLY | os.O_CLOEXEC)
        try:
            _, queued, _ = os.read(descriptor, _COUNTERS_BYTES).split()
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return time.thread_time() + int(queued) / 1e9
