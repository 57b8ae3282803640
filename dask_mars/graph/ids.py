"""Ids of subtasks: twelve bytes that identify computation, stage and subtask.

The layout is Mars's: task, four bytes; stage, two; subtask, six; each little endian. Such an id is composed, not
random: it needs no registry to be unique and no look-up to be understood.

Within an engine a task is a graph, a stage the depth of a chunk in its graph, and a subtask a chunk. On clusters a
subtask is a region of a graph.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

#: Length of an id, in bytes.
SUBTASK_ID_BYTES = 12
#: Represents the absence of a subtask. No id is equal to it.
NO_SUBTASK = b"\xff" * SUBTASK_ID_BYTES
#: Upper limit of task ids, so that the first four bytes of an id differ from those of `NO_SUBTASK`.
GRAPH_LIMIT = 2**32 - 1
STAGE_LIMIT = 2**16
NUMBER_LIMIT = 2**48

# `struct` has no six-byte integer, so the subtask's number has two parts.
_LAYOUT = struct.Struct("<IHHI")


class SubtaskId(NamedTuple):
    """The parts of an id."""

    graph: int
    stage: int
    number: int


def subtask_id(graph: int, stage: int, number: int) -> bytes:
    """Compose an id."""
    if 0 <= graph < GRAPH_LIMIT and 0 <= stage < STAGE_LIMIT and 0 <= number < NUMBER_LIMIT:
        return _LAYOUT.pack(graph, stage, number & 0xFFFF, number >> 16)
    limits = f"{GRAPH_LIMIT - 1}, {STAGE_LIMIT - 1} and {NUMBER_LIMIT - 1}"
    raise ValueError(f"task {graph}, stage {stage} and subtask {number} are not between 0 and {limits}")


def write_subtask_id(buffer: Any, graph: int, stage: int, number: int) -> None:
    """Compose an id at the start of a writable buffer."""
    # The last bytes are written last: if a process ends in the middle of writing over `NO_SUBTASK`, the id left
    # there has a number larger than any graph has chunks.
    _LAYOUT.pack_into(buffer, 0, graph, stage, number & 0xFFFF, number >> 16)


def decode_subtask_id(data: bytes | memoryview) -> SubtaskId:
    """Return the parts of an id."""
    if len(data) != SUBTASK_ID_BYTES:
        raise ValueError(f"a subtask id has {SUBTASK_ID_BYTES} bytes, not {len(data)}")
    graph, stage, low, high = _LAYOUT.unpack(data)
    if graph == GRAPH_LIMIT:
        raise ValueError("these bytes stand for no subtask")
    return SubtaskId(graph, stage, low | high << 16)


def depths_of(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest distance of each chunk from a chunk without inputs, in steps."""
    depths = [0] * len(inputs)
    for chunk, sources in enumerate(inputs):
        if sources:
            # Most chunks of many graphs have one input.
            depths[chunk] = 1 + (depths[sources[0]] if len(sources) == 1 else max([depths[s] for s in sources]))
    return depths


class SubtaskIds:
    """The ids of a graph's chunks. The first request, in any thread, computes the depths."""

    __slots__ = ("_depths", "_graph", "_inputs")

    def __init__(self, graph: int, inputs: Sequence[Sequence[int]]) -> None:
        self._graph = graph
        self._inputs = inputs
        self._depths: list[int] | None = None

    def __getitem__(self, chunk: int) -> bytes:
        """Return the id of a chunk. Depths beyond two bytes share the largest stage."""
        depths = self._depths
        if depths is None:
            # Two threads that arrive at once compute the same.
            depths = self._depths = depths_of(self._inputs)
        return subtask_id(self._graph, min(depths[chunk], STAGE_LIMIT - 1), chunk)
