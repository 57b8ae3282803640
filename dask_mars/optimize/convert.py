"""Converts Dask's low-level graph to a chunk graph, in one walk.

The walk starts at the requested keys and numbers chunks as it leaves them. Culling, ordering, detection of cycles
and of missing keys, and the dense ids thus all come from the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NoReturn

from dask_mars.dask_api.core import Alias, DataNode, TaskRef
from dask_mars.graph.chunks import DATA, ChunkGraph, Key, refuse_unhashable
from dask_mars.optimize.compiler import Compiler
from dask_mars.optimize.fronts.base import ALIAS, ChunkRecord, LazyLayer
from dask_mars.optimize.programs import Program
from dask_mars.optimize.shuffle import Shuffles

_MISSING = object()
#: In place of the key of an entry that waits for its inputs.
_WAITING = object()
#: In place of the chunk of such a key.
_ENTERED = -1
#: Number of keys between two checks that the graph is not cancelled.
_KEYS_BETWEEN_CHECKPOINTS = 20_000


class Converter:
    """Turns one Dask graph into a `ChunkGraph`."""

    def __init__(
        self,
        dsk: Mapping[Key, Any],
        layers: Iterable[LazyLayer] = (),
        resolve_missing: Callable[[Key], Any] | None = None,
        split_locked_stores: bool = False,
        asked_for: Collection[Key] = (),
        keep_shuffles: bool = False,
        checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self._dsk = dsk
        self._checkpoint = checkpoint
        self._resolve_missing = resolve_missing
        self._compiler = Compiler(dsk, layers, split_locked_stores, asked_for)
        self._graph = ChunkGraph(operands=self._compiler.operands)
        shuffles = Shuffles()
        self._shuffles = shuffles if shuffles.replacements and not keep_shuffles else None

    def convert(self, wanted: Sequence[Key]) -> ChunkGraph:
        """Walk from the requested keys."""
        graph, ids = self._graph, self._graph.ids
        for key in wanted:
            refuse_unhashable(key)
        #: Compiled entries that wait for their inputs, each needed by the one before.
        entered: list[tuple[Key, ChunkRecord]] = []
        stack: list[Any] = [*reversed(wanted)]
        while stack:
            self._checkpoint()
            self._walk(stack, entered)
        graph.outputs = sorted({ids[key] for key in wanted})
        graph.in_client.update(ids[key] for key in self._compiler.targets if key in ids)
        graph.in_client -= graph.values.keys()
        return graph

    def _walk(self, stack: list[Any], entered: list[tuple[Key, ChunkRecord]]) -> None:
        """Continue the walk until the next checkpoint."""
        graph, enter = self._graph, self._enter
        ids, find_id, add_key = graph.ids, graph.ids.get, graph.keys.append
        add_operand, add_literals, add_inputs = graph.operand_of.append, graph.literals.append, graph.inputs.append
        for _ in repeat(None, _KEYS_BETWEEN_CHECKPOINTS):
            if not stack:
                return
            key = stack[-1]
            if key is _WAITING:
                key, entry = entered.pop()
            elif key in ids:
                stack.pop()
                continue
            else:
                entry = enter(key, entered)
            operand, literals, needed = entry
            # Many have no inputs.
            sources: Any = tuple(map(find_id, needed)) if needed else ()
            if _ENTERED in sources:
                self._raise_cycle(needed[sources.index(_ENTERED)], [*entered, (key, entry)])
            if None in sources:
                ids[key] = _ENTERED
                entered.append((key, entry))
                stack[-1] = _WAITING
                waiting = [source for source, known in zip(needed, sources) if known is None]  # noqa: B905
                waiting.reverse()
                stack += waiting
                continue
            stack.pop()
            if operand == ALIAS:
                (ids[key],) = sources
                continue
            chunk = ids[key] = len(graph.keys)
            add_key(key)
            add_operand(operand)
            add_inputs(sources)
            if operand == DATA:
                (graph.values[chunk],) = literals
                literals = ()
            add_literals(literals)

    def beyond(self) -> set[Key]:
        """Return blocks outside layers' bounds that tasks did not take for keys, and that exist after all."""
        return self._compiler.layers.beyond & self._graph.ids.keys()

    def has_parts_of_shuffles(self) -> bool:
        """Return whether some steps of a shuffle have been replaced and others have not."""
        return self._shuffles is not None and not self._shuffles.are_whole(self._graph)

    def _enter(self, key: Key, wanted_by: Sequence[tuple[Key, ChunkRecord]]) -> ChunkRecord:
        """Compile the node of a key; an error names the last of `wanted_by`."""
        compiler = self._compiler
        node = self._dsk.get(key, _MISSING)
        if node is _MISSING:
            record = compiler.layers.record(key)
            if record is not None:
                return record
            node = self._other_node(key, wanted_by)
        if isinstance(node, TaskRef) and type(node) is not TaskRef:
            # A future, whose value is elsewhere.
            return DATA, (node,), ()
        if type(node) is tuple and node and not callable(node[0]) and compiler.shapes.is_key(node):
            return ALIAS, (), (node,)
        shape = compiler.shapes.of(node)
        if shape is not None and (record := compiler.shapes.record(key, shape)) is not None:
            return record
        program = compiled = compiler.program_of(key, node)
        if isinstance(program, Alias):
            return ALIAS, (), (program.target,)
        if isinstance(program, DataNode):
            return DATA, (program.value,), ()
        if self._shuffles is not None:
            program = self._shuffles.replace(key, program, self._program_of)
        operand = compiler.operand_of(key, program)
        if shape is not None and program is compiled:
            compiler.shapes.add(key, node, shape, program, operand)
        return operand, tuple(program.literals), program.input_keys

    def _program_of(self, key: Key) -> Program | None:
        node = self._dsk.get(key)
        program = None if node is None else self._compiler.program_of(key, node)
        return program if isinstance(program, Program) else None

    def _other_node(self, key: Key, wanted_by: Sequence[tuple[Key, ChunkRecord]]) -> Any:
        for scope in (self._compiler.extra, self._compiler.layers.materialised):
            if key in scope:
                return scope[key]
        if self._resolve_missing is not None and (found := self._resolve_missing(key)) is not None:
            return found
        if not wanted_by:
            raise KeyError(key)
        dependent, _ = wanted_by[-1]
        raise ValueError(f"Missing dependency {key} for dependents {{{dependent!r}}}") from None

    def _raise_cycle(self, key: Key, entered: Sequence[tuple[Key, ChunkRecord]]) -> NoReturn:
        """Raise an error with the keys of a cycle: each entered key waits for the next."""
        path = [known for known, _ in entered]
        circle = [*path[path.index(key) :], key]
        steps = "\n  -> ".join(str(step) for step in circle if step not in self._compiler.extra)
        raise RuntimeError(f"Cycle detected between the following keys:\n  -> {steps}")


def convert(
    dsk: Mapping[Key, Any],
    wanted: Iterable[Key],
    layers: Iterable[LazyLayer] = (),
    resolve_missing: Callable[[Key], Any] | None = None,
    split_locked_stores: bool = False,
    keep_shuffles: bool = False,
    checkpoint: Callable[[], None] = lambda: None,
) -> ChunkGraph:
    """Turn a Dask graph into a chunk graph that computes the requested keys."""
    layers, wanted = list(layers), list(wanted)
    make = partial(Converter, dsk, layers, resolve_missing, split_locked_stores, checkpoint=checkpoint)
    converter = make(keep_shuffles=keep_shuffles)
    graph = converter.convert(wanted)
    # An array with empty chunks has more blocks than its layer. Dask makes them on request, also in tasks whose
    # tuple may not be a key.
    if asked_for := converter.beyond():
        converter = make(asked_for=asked_for, keep_shuffles=keep_shuffles)
        graph = converter.convert(wanted)
    # The user may want a task inside a shuffle, too.
    if converter.has_parts_of_shuffles():
        return make(asked_for=asked_for, keep_shuffles=True).convert(wanted)
    return graph
