"""Converts Dask's low-level graph to a chunk graph, in one walk.

The walk starts at the requested keys and numbers chunks as it leaves them. Culling, ordering, detection of cycles
and of missing keys, and the dense ids thus all come from the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, NoReturn

from dask_mars.dask_api.core import Alias, DataNode, TaskRef
from dask_mars.graph.chunks import DATA, ChunkGraph, Key, refuse_unhashable
from dask_mars.optimize.compiler import Compiler
from dask_mars.optimize.fronts.base import ChunkRecord, LazyLayer
from dask_mars.optimize.programs import Program
from dask_mars.optimize.shuffle import Shuffles, may_be_there

_MISSING = object()
#: Number of keys between two checks that the graph is not cancelled.
_KEYS_BETWEEN_CHECKPOINTS = 20_000


class _Entered(NamedTuple):
    """A compiled entry that waits for its inputs, in place of its key."""

    key: Key
    entry: ChunkRecord | Alias | DataNode


class Converter:
    """Turns one Dask graph into a `ChunkGraph`."""

    def __init__(
        self,
        dsk: Mapping[Key, Any],
        layers: Iterable[LazyLayer] = (),
        resolve_missing: Callable[[Key], Any] | None = None,
        split_locked_stores: bool = False,
        asked_for: Collection[Key] = (),
        keep_file_shuffles: bool = False,
        checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self._dsk = dsk
        self._checkpoint = checkpoint
        self._resolve_missing = resolve_missing
        self._compiler = Compiler(dsk, layers, split_locked_stores, asked_for)
        self._graph = ChunkGraph(operands=self._compiler.operands)
        self._shuffles = Shuffles() if may_be_there() and not keep_file_shuffles else None

    def convert(self, wanted: Sequence[Key]) -> ChunkGraph:
        """Walk from the requested keys."""
        graph, ids = self._graph, self._graph.ids
        for key in wanted:
            refuse_unhashable(key)
        #: Compiled entries that wait for their inputs, each needed by the one before.
        entered: dict[Key, ChunkRecord | Alias | DataNode] = {}
        stack: list[Any] = [*reversed(wanted)]
        while stack:
            self._checkpoint()
            self._walk(stack, entered)
        graph.outputs = sorted({ids[key] for key in wanted})
        graph.in_client.update(ids[key] for key in self._compiler.targets if key in ids)
        graph.in_client -= graph.values.keys()
        return graph

    def _walk(self, stack: list[Any], entered: dict[Key, ChunkRecord | Alias | DataNode]) -> None:
        """Continue the walk until the next checkpoint."""
        graph, enter = self._graph, self._enter
        ids, find_id, add_key = graph.ids, graph.ids.get, graph.keys.append
        add_operand, add_literals, add_inputs = graph.operand_of.append, graph.literals.append, graph.inputs.append
        for _ in repeat(None, _KEYS_BETWEEN_CHECKPOINTS):
            if not stack:
                return
            entry: Any
            key = stack[-1]
            if type(key) is _Entered:
                key, entry = key
                del entered[key]
            elif key in ids:
                stack.pop()
                continue
            else:
                entry = enter(key, entered)
            needed: Sequence[Key] = ()
            if type(entry) is ChunkRecord:
                operand, literals, needed = entry
            elif isinstance(entry, Alias):
                needed = (entry.target,)
            # Many have no inputs, where even an empty comprehension costs measurable time.
            sources = tuple([find_id(source) for source in needed]) if needed else ()
            if None in sources:
                waiting = [source for source, known in zip(needed, sources, strict=True) if known is None]
                entered[key] = entry
                for source in waiting:
                    if source in entered:
                        self._raise_cycle(source, entered)
                stack[-1] = _Entered(key, entry)
                waiting.reverse()
                stack += waiting
                continue
            stack.pop()
            if type(entry) is ChunkRecord:
                ids[key] = len(graph.keys)
                add_key(key)
                add_operand(operand)
                add_literals(literals)
                add_inputs(sources)  # type: ignore[arg-type]
            elif isinstance(entry, Alias):
                ids[key] = sources[0]  # type: ignore[assignment]
            else:
                self._add_value(key, entry.value)

    def beyond(self) -> set[Key]:
        """Return blocks outside layers' bounds that tasks did not take for keys, and that exist after all."""
        return self._compiler.layers.beyond & self._graph.ids.keys()

    def _add_value(self, key: Key, value: Any) -> None:
        graph = self._graph
        chunk = graph.ids[key] = len(graph.keys)
        graph.keys.append(key)
        graph.operand_of.append(DATA)
        graph.literals.append(())
        graph.inputs.append(())
        graph.values[chunk] = value

    def _enter(self, key: Key, wanted_by: Iterable[Key]) -> ChunkRecord | Alias | DataNode:
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
            return DataNode(key, node)
        program = compiler.program_of(key, node)
        if isinstance(program, Program):
            if self._shuffles is not None:
                program = self._shuffles.replace(program, self._program_of)
            return ChunkRecord(compiler.operand_of(key, program), tuple(program.literals), program.input_keys)
        return program

    def _program_of(self, key: Key) -> Program | None:
        node = self._dsk.get(key)
        program = None if node is None else self._compiler.program_of(key, node)
        return program if isinstance(program, Program) else None

    def _other_node(self, key: Key, wanted_by: Iterable[Key]) -> Any:
        for scope in (self._compiler.extra, self._compiler.layers.materialised):
            if key in scope:
                return scope[key]
        if self._resolve_missing is not None and (found := self._resolve_missing(key)) is not None:
            return found
        *_, dependent = (None, *wanted_by)
        if dependent is None:
            raise KeyError(key)
        raise ValueError(f"Missing dependency {key} for dependents {{{dependent!r}}}") from None

    def _raise_cycle(self, key: Key, entered: Iterable[Key]) -> NoReturn:
        """Raise an error with the keys of a cycle: each entered key waits for the next."""
        path = list(entered)
        circle = [*path[path.index(key) :], key]
        steps = "\n  -> ".join(str(step) for step in circle if step not in self._compiler.extra)
        raise RuntimeError(f"Cycle detected between the following keys:\n  -> {steps}")


def convert(
    dsk: Mapping[Key, Any],
    wanted: Iterable[Key],
    layers: Iterable[LazyLayer] = (),
    resolve_missing: Callable[[Key], Any] | None = None,
    split_locked_stores: bool = False,
    keep_file_shuffles: bool = False,
    checkpoint: Callable[[], None] = lambda: None,
) -> ChunkGraph:
    """Turn a Dask graph into a chunk graph that computes the requested keys."""
    layers, wanted = list(layers), list(wanted)
    make = partial(
        Converter,
        dsk,
        layers,
        resolve_missing,
        split_locked_stores,
        keep_file_shuffles=keep_file_shuffles,
        checkpoint=checkpoint,
    )
    converter = make()
    graph = converter.convert(wanted)
    # An array with empty chunks has more blocks than its layer. Dask makes them on request, also in tasks whose
    # tuple may not be a key.
    if asked_for := converter.beyond():
        return make(asked_for=asked_for).convert(wanted)
    return graph
