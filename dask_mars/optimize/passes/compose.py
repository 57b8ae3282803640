"""Composing: chunks that form a single chain become one chunk.

Mars's rule: two operands are merged if the first has one consumer and the second one input, so that no branch
leaves or enters between them. ``(a + b).sum()`` becomes one operand of ADD and SUM, and the operands that make
``a`` and ``b`` stay apart. A requested chunk ends its chain.

Programs are joined once for each pair of operands, that is, for each pair of layers; a chunk costs one look-up. If
a chain begins by reading a slice of a source and slices the result again, the two slices become one, so that no
more is read than necessary.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.graph.splice import LONGEST, splice
from dask_mars.optimize.passes.edit import GraphEdit, Limits
from dask_mars.optimize.passes.slices import JoinedSlices, join_slices


class _Joined(NamedTuple):
    """The result of joining a pair of operands."""

    operand: int
    #: The operands with slices combined, and how to do that.
    sliced: int = DATA
    of_dask: int = DATA
    slices: JoinedSlices | None = None


def compose(edit: GraphEdit, limits: Limits) -> None:
    """Merge single chains; a merged chunk has the key of its chain's last."""
    graph, fixed, removed = edit.graph, edit.fixed, edit.removed
    operand_of, literals, inputs, operands = graph.operand_of, graph.literals, graph.inputs, graph.operands
    uses = edit.count_uses()
    joined: dict[tuple[int, int], _Joined] = {}
    #: Chunks with combined slices: Dask combines only the first with what is read.
    slice_readers: set[int] = set()
    is_fused = _fused_by_dask(graph)
    for chunk, sources in enumerate(inputs):
        if len(sources) != 1:
            continue
        source = sources[0]
        first, second = operand_of[source], operand_of[chunk]
        if uses[source] != 1 or first == DATA or (fixed and (source in fixed or chunk in fixed)):
            continue
        pair = joined.get((first, second))
        if pair is None:
            if operands[first].in_client or operands[second].in_client:
                continue
            if len(operands[first].steps) + len(operands[second].steps) > LONGEST:
                continue
            pair = joined[first, second] = _join(edit, first, second)
        operand, both = pair.operand, literals[source] + literals[chunk]
        if pair.slices is not None:
            together = pair.slices.combined(literals[source], literals[chunk])
            if together is not None:
                element = pair.slices.of_element(literals[source], literals[chunk])
                needs_choice = element is not None or pair.sliced != pair.of_dask
                may_be_fused = edit.fuses_slices and needs_choice and source not in slice_readers
                if may_be_fused and is_fused(source, chunk):
                    operand, both = pair.of_dask, together
                elif element is None:
                    operand, both = pair.sliced, together
                else:
                    both = element
                slice_readers.add(chunk)
        operand_of[chunk] = operand
        literals[chunk] = both
        inputs[chunk] = inputs[source]
        # As `GraphEdit.remove`, which would cost a call for each chunk.
        operand_of[source], inputs[source] = DATA, ()
        removed[source] = 1


def _join(edit: GraphEdit, first: int, second: int) -> _Joined:
    reader, slicer = edit.graph.operands[first], edit.graph.operands[second]
    joined = splice(
        [(reader, range(reader.input_count)), (slicer, (~0,))], reader.input_count, f"{reader.name}-{slicer.name}"
    )
    operand = edit.add_operand(joined)
    found = join_slices(reader, slicer, joined)
    if found is None:
        return _Joined(operand)
    sliced = edit.add_operand(found.operand)
    of_dask = sliced if found.of_dask is found.operand else edit.add_operand(found.of_dask)
    return _Joined(operand, sliced, of_dask, found)


def _fused_by_dask(graph: ChunkGraph) -> Callable[[int, int], bool]:
    """Return a function that tells whether Dask combines the slices of a task and its only source."""

    # Dask fuses chains from their last task on, until it meets one that others read, too, or that is requested:
    # it leaves that one alone. The function is for chunks that have not been merged.
    @functools.cache
    def found() -> tuple[dict[int, set[int]], set[int], set[int]]:
        readers: dict[int, set[int]] = defaultdict(set)
        for chunk, sources in enumerate(graph.inputs):
            for source in sources:
                readers[source].add(chunk)
        with_alias = {chunk for key, chunk in graph.ids.items() if key != graph.keys[chunk]}
        return readers, with_alias, set(graph.outputs)

    def is_fused(source: int, chunk: int) -> bool:
        readers, with_alias, requested = found()
        if source in with_alias:
            # Dask does not look behind it.
            return False
        ends_chain = any(len(set(graph.inputs[reader])) == 1 for reader in readers[chunk])
        if chunk not in requested:
            return len(readers[chunk]) < 2 or not ends_chain
        return not readers[chunk] if chunk in with_alias else not ends_chain

    return is_fused
