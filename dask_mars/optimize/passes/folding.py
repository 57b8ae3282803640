"""Folding: initial chunks with a single consumer are computed with it, even where it has other inputs.

Composing leaves such chunks apart, because a branch enters at their consumer. Folded in, they need no operand, no
object in the store and no message of their own, but they no longer run in parallel. So folding needs many equal
consumers: a sum over 20,000 chunks becomes a quarter as many operands, a sum over four stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dask_mars.graph.chunks import DATA, Operand
from dask_mars.graph.splice import LONGEST, with_makers
from dask_mars.optimize.passes.edit import GraphEdit, Limits

#: The operands of the inputs that are folded in, by position; None for inputs that stay.
Initial = tuple["int | None", ...]


def fold_initial(edit: GraphEdit, limits: Limits) -> None:
    """Fold initial chunks into their only consumers where enough of these are equal."""
    if limits.workers is not None:
        _fold(edit, limits.consumers_per_worker * limits.workers, range(len(edit.graph)))


def fold_into_fused(edit: GraphEdit, limits: Limits) -> None:
    """Fold initial chunks into fused ones that alone need them, if all workers have room for them."""
    graph, fewest = edit.graph, limits.fewest_groups
    if fewest is None or limits.workers is None or not graph.joined_bytes:
        return
    share = (0 if limits.resident_bytes is None else limits.resident_bytes()) // limits.workers
    _fold(edit, fewest, sorted(c for c in graph.joined_bytes if edit.total_bytes(graph.inputs[c]) <= share))


class Folder:
    """Folds chunks into their readers, with one operand for each pattern."""

    def __init__(self, edit: GraphEdit) -> None:
        self._edit = edit
        self._known: dict[tuple[int, Initial], int | None] = {}

    def fold(self, chunk: int, initial: Initial) -> bool:
        """Let a chunk compute the inputs with an operand itself; return whether that is short enough."""
        graph = self._edit.graph
        pattern = graph.operand_of[chunk], initial
        if pattern not in self._known:
            operand = folded(graph.operands, *pattern)
            self._known[pattern] = None if len(operand.steps) > LONGEST else self._edit.add_operand(operand)
        found = self._known[pattern]
        if found is None:
            return False
        graph.operand_of[chunk] = found
        given: list[Any] = []
        kept: list[int] = []
        for source, operand_id in zip(graph.inputs[chunk], initial):  # noqa: B905
            if operand_id is None:
                kept.append(source)
            else:
                given += graph.literals[source]
                kept += graph.inputs[source]
        graph.literals[chunk] = (*given, *graph.literals[chunk])
        graph.inputs[chunk] = tuple(kept)
        return True


def folded(operands: list[Operand], consumer: int, initial: Initial) -> Operand:
    """Return the operand that computes those of inputs and passes their results to a consumer."""
    return with_makers(operands[consumer], [None if operand is None else operands[operand] for operand in initial])


def _fold(edit: GraphEdit, fewest: int, among: Iterable[int]) -> None:
    """Fold into those chunks of which at least `fewest` are equal."""
    if len(edit) < 2 * fewest:
        return
    patterns = _patterns(edit, among)
    counts = Counter(patterns.values())
    folder = Folder(edit)
    for chunk, pattern in patterns.items():
        sources = edit.graph.inputs[chunk]
        if counts[pattern] >= fewest and folder.fold(chunk, pattern[1]):
            for source, operand in zip(sources, pattern[1], strict=True):
                if operand is not None:
                    edit.remove(source)


def _patterns(edit: GraphEdit, among: Iterable[int]) -> dict[int, tuple[int, Initial]]:
    """Return, for every chunk that others could be folded into, its operand and theirs."""
    graph, fixed, operand_of = edit.graph, edit.fixed, edit.graph.operand_of
    client_operands = {operand_id for operand_id, operand in enumerate(graph.operands) if operand.in_client}
    initial = [
        operand if not sources and used == 1 and operand != DATA else None
        for operand, sources, used in zip(operand_of, graph.inputs, edit.count_uses(), strict=True)
    ]
    for chunk in fixed:
        initial[chunk] = None
    patterns = {}
    for chunk in among:
        sources = graph.inputs[chunk]
        if len(sources) < 2 or operand_of[chunk] in client_operands or (fixed and chunk in fixed):
            continue
        found = tuple([initial[source] for source in sources])
        if found.count(None) < len(found) and client_operands.isdisjoint(found):
            patterns[chunk] = (operand_of[chunk], found)
    return patterns
