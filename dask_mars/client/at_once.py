"""Computes small graphs of library code in the calling thread: to hand their chunks to others takes longer."""

from __future__ import annotations

import contextvars
import math
import sys
import time
from collections.abc import Callable

from dask_mars.client.lending import Lent, names_of
from dask_mars.client.local_tasks import raised_by
from dask_mars.graph.callables import package_of
from dask_mars.graph.chunks import DATA, ChunkGraph, DeclaredSizes
from dask_mars.lazy_numpy import np
from dask_mars.optimize.library_code import FRAMES, code_origin
from dask_mars.protocol import tracebacks
from dask_mars.store.store import bytes_to_store

#: Maximum number of chunks, and of declared bytes of all results; bytes from which the graph's data are not small.
_MOST_CHUNKS, _MOST_RESULT_BYTES, _MOST_BYTES = 64, 16 << 20, 4 << 20
#: Time after which the engine gets the chunks that are left; that of a chunk that is better left to it; and number
#: of computations after which that is known, as the first ones of a process load code.
_TIME_S, _SLOW_S, _KNOWN = 0.01, 0.003, 3

#: By functions of operands: number of computations in which a chunk was slow, and none was quick.
_slow: dict[tuple[str, ...], float] = {}

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
    if _slow and any(_slow.get(names_of(operand), 0) >= _KNOWN for operand in graph.operands):
        return False
    origin = code_origin(graph)
    return not origin.other and (with_frames or not any(name.startswith(FRAMES) for name in origin.modules))


def compute_at_once(graph: ChunkGraph, check: Callable[[], None]) -> None:
    """Compute chunks one after the other until time is up; their values become data of the graph."""
    lent, values, outputs = Lent(graph, set(), is_measured=False), graph.values, set(graph.outputs)
    end_s, slow = time.perf_counter() + _TIME_S, set[tuple[str, ...]]()
    for chunk, operand in enumerate(graph.operand_of):
        if operand == DATA:
            continue
        check()
        began_s = time.perf_counter()
        if began_s > end_s:
            return
        try:
            inputs = [values[source] for source in graph.inputs[chunk]]
            value = contextvars.copy_context().run(lent.run, chunk, inputs)
        except Exception as error:
            tracebacks.add_note(error, raised_by(graph, chunk))
            raise
        is_slow = time.perf_counter() - began_s > _SLOW_S
        if is_slow or _slow:
            names = names_of(graph.operands[operand])
            if not is_slow:
                # The others had to wait, or to load code.
                _slow[names] = -math.inf
            elif names not in slow:
                slow.add(names)
                _slow[names] = _slow.get(names, 0) + 1
        if chunk in outputs and not (isinstance(value, (np.generic, *_SCALARS)) or _is_plain(value)):
            # It may hold parts of the user's arrays. The engine computes it of copies.
            return
        values[chunk] = value
        graph.operand_of[chunk], graph.inputs[chunk], graph.literals[chunk] = DATA, (), ()


def _is_plain(value: object) -> bool:
    if type(value) is np.ndarray:
        return not value.dtype.hasobject
    # Before pandas 3, parts of a frame change with it.
    return package_of(type(value)) == "pandas" and int(sys.modules["pandas"].__version__.partition(".")[0]) >= 3
