"""Names by which computations and saved values are found again, in later runs."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from dask_mars.graph.callables import full_name
from dask_mars.graph.chunks import DATA, ChunkGraph, Key, Operand, Subprogram, layer_of

#: Matches the end of a key that differs in each run: a UUID.
_RANDOM = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
#: Maximum nesting of steps that assemble results.
_DEEPEST = 4
#: Maximum number of keys in a name. Names of directories may collide, as chunks are found by key.
_MOST_KEYS = 512


def known_by(graph: ChunkGraph) -> tuple[str, bool]:
    """Return the name of a computation, and the value of `has_lasting_keys`."""
    # Requests for the same chunks have the same name. The keys of assemblies differ in each run; their inputs
    # count instead.
    lasting, others = _roots(graph)
    digest = hashlib.sha256()
    for root in sorted(map(repr, lasting or others)):
        digest.update(root.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32], bool(lasting)


def has_lasting_keys(graph: ChunkGraph) -> bool:
    """Return whether some requested chunks may have the same keys in another run."""
    return bool(_roots(graph)[0])


def _roots(graph: ChunkGraph) -> tuple[set[Key], set[Key]]:
    """Return the keys of requested chunks that may recur in another run, and those that never do."""
    lasting: set[Key] = set()
    others: set[Key] = set()
    chunks = _some(graph.outputs)
    # Most requests are for chunks of one layer, or of a few.
    random: dict[str, bool] = {}
    for depth in range(_DEEPEST):
        deeper: list[int] = []
        for chunk in chunks:
            key = graph.keys[chunk]
            layer = layer_of(key)
            if layer not in random:
                random[layer] = _is_random(layer)
            if not random[layer]:
                lasting.add(key)
            elif depth + 1 < _DEEPEST and graph.inputs[chunk] and _is_assembly(layer):
                deeper += graph.inputs[chunk]
            else:
                others.add(key)
        chunks = _some(deeper)
    return lasting, others


def _some(chunks: list[int]) -> list[int]:
    """Return chunks, sampled at equal distances if there are very many."""
    return chunks[:: max(1, len(chunks) // _MOST_KEYS)]


def _is_random(layer: str) -> bool:
    match = _RANDOM.search(layer)
    # One in thirty-two of Dask's own tokens looks like a UUID, but without the dashes.
    return match is not None and (_is_assembly(layer) or "-" in match.group())


def _is_assembly(layer: str) -> bool:
    return layer.startswith(("finalize-", "finalizecomputearray-"))


def form_of(graph: ChunkGraph, chunk: int) -> str:
    """Return what identifies a chunk's value besides its key."""
    # Optimization may give a key to other values, such as the tuple of several reductions, and graphs must not
    # mix them up.
    operand_id = graph.operand_of[chunk]
    if operand_id == DATA:
        return "data"
    operand = graph.operands[operand_id]
    if chunk in graph.joined_bytes:
        return f"joined {_signature(operand)}"
    return _path(operand.functions[operand.steps[-1].function])


def _signature(operand: Operand) -> str:
    parts = [*map(_path, operand.functions), repr(operand.steps), repr(operand.input_count)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _path(function: Any) -> str:
    if isinstance(function, Subprogram):
        inner = function.operand
        return _path(inner.functions[inner.steps[-1].function])
    return full_name(function)
