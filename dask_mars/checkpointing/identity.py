"""By what computations and saved values are known again, in another process and on another day."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from dask_mars.graph.callables import full_name
from dask_mars.graph.chunks import DATA, ChunkGraph, Key, Operand, Subprogram, layer_of

#: What a key ends with that is another one in each run.
_RANDOM = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
#: How deep results may be assembled of what is assembled.
_DEEPEST = 4
#: Of how many keys a name is made: that of a directory need not tell all computations apart, as chunks have keys.
_MOST_KEYS = 512


def known_by(graph: ChunkGraph) -> tuple[str, bool]:
    """Return the name of a computation, and what `has_lasting_keys` says.

    The name is equal for those that are asked for the same chunks. What assembles a result has a key that is
    another one in each run; there the keys of what it assembles count.
    """
    lasting, others = _roots(graph)
    digest = hashlib.sha256()
    for root in sorted(map(repr, lasting or others)):
        digest.update(root.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32], bool(lasting)


def has_lasting_keys(graph: ChunkGraph) -> bool:
    """Say whether some of what is asked for may have the same keys when it is computed again."""
    return bool(_roots(graph)[0])


def _roots(graph: ChunkGraph) -> tuple[set[Key], set[Key]]:
    """Return the keys of what is asked for: those that may be the same again, and those that never are."""
    lasting: set[Key] = set()
    others: set[Key] = set()
    chunks = _some(graph.outputs)
    # Most of what is asked for is of one layer, or of a few.
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
    """Return chunks, of very many those at equal distances."""
    return chunks[:: max(1, len(chunks) // _MOST_KEYS)]


def _is_random(layer: str) -> bool:
    match = _RANDOM.search(layer)
    # Dask's own tokens have as many digits: by chance one in thirty-two looks like that, but for the dashes.
    return match is not None and (_is_assembly(layer) or "-" in match.group())


def _is_assembly(layer: str) -> bool:
    return layer.startswith("finalize-")


def form_of(graph: ChunkGraph, chunk: int) -> str:
    """Return what the value of a chunk is, besides what its key says.

    Optimisation may give a key to what is not that key's value alone, such as the tuple of what several reductions
    return. What is saved of one graph is not to be taken for the other in another.
    """
    number = graph.operand_of[chunk]
    if number == DATA:
        return "data"
    operand = graph.operands[number]
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


__all__ = ["form_of", "has_lasting_keys", "known_by"]
