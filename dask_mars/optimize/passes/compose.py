"""Composing: chunks that form a single chain become one chunk.

Mars's rule: two operands are merged if the first has one consumer and the second one input, so that no branch
leaves or enters between them. ``(a + b).sum()`` becomes one operand of ADD and SUM, and the operands that make
``a`` and ``b`` stay apart. A requested chunk ends its chain.

Programs are joined once for each pair of operands, that is, for each pair of layers; a chunk costs one look-up. If
a chain begins by reading a slice of a source and slices the result again, the two slices become one, so that no
more is read than necessary.
"""

from __future__ import annotations

from typing import NamedTuple

from dask_mars.graph.chunks import DATA
from dask_mars.optimize.passes.edit import GraphEdit, Limits
from dask_mars.optimize.passes.slices import Slicer, join_slices
from dask_mars.optimize.passes.splice import LONGEST, splice


class _Joined(NamedTuple):
    """The result of joining a pair of operands."""

    operand: int
    #: The operand with slices combined, and the function for its literals.
    sliced: tuple[int, Slicer] | None


def compose(edit: GraphEdit, limits: Limits) -> None:
    """Merge single chains; a merged chunk has the key of its chain's last."""
    graph, fixed, removed = edit.graph, edit.fixed, edit.removed
    operand_of, literals, inputs, operands = graph.operand_of, graph.literals, graph.inputs, graph.operands
    uses = edit.count_uses()
    joined: dict[tuple[int, int], _Joined] = {}
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
        together = None
        if pair.sliced is not None:
            together = pair.sliced[1](literals[source], literals[chunk])
            if together is not None:
                operand_of[chunk] = pair.sliced[0]
        if together is None:
            together = literals[source] + literals[chunk]
            operand_of[chunk] = pair.operand
        literals[chunk] = together
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
    return _Joined(operand, None if found is None else (edit.add_operand(found[0]), found[1]))
