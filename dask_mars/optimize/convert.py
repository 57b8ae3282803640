"""Dask's low-level graph to a chunk graph, in one walk.

The walk starts at the requested keys and numbers chunks as it leaves them, so that culling, ordering, detection of
cycles and of missing keys, and the dense ids all come from the same pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, NoReturn

import numpy as np
from dask._task_spec import (
    Alias,
    DataNode,
    Dict,
    GraphNode,
    List,
    Set,
    Task,
    TaskRef,
    Tuple,
    _execute_subgraph,
    _is_dask_future,
    convert_legacy_task,
)
from dask.utils import funcname

from dask_mars.graph import DATA, ChunkGraph, Held, Key, Operand, Step, Subprogram
from dask_mars.operands import path_of
from dask_mars.optimize.layers import LazyLayer, LazyLayers, Record
from dask_mars.optimize.placement import (
    assembles_result,
    is_client_store,
    stores_chunk,
    stores_in_client,
    target_key,
)

logger = logging.getLogger(__name__)

#: Literals at least this large become chunks of their own: stored once, shared by all that use them.
LARGE_LITERAL_BYTES = 1 << 16

_MISSING = object()

# Literals that a legacy task may mean as keys: True is the key 1.
_MAY_BE_KEYS = frozenset({int, float, str, bool})
# What legacy tasks may hold keys or tasks in, their subclasses included.
_READ_BY_DASK = (GraphNode, dict, list, tuple, set, frozenset, int, float, str)

# Literal types met so often that asking isinstance for each would show.
_PLAIN = frozenset({int, float, str, bool, bytes, slice, type(None), complex})


def make_list(*items: Any) -> list[Any]:
    """Build a list from computed items."""
    return list(items)


def make_tuple(*items: Any) -> tuple[Any, ...]:
    """Build a tuple from computed items."""
    return items


def make_set(*items: Any) -> set[Any]:
    """Build a set from computed items."""
    return set(items)


def make_dict(*items: Any) -> dict[Any, Any]:
    """Build a dict from alternating keys and values."""
    return dict(zip(items[::2], items[1::2], strict=True))


def identity(value: Any) -> Any:
    """Return the value."""
    return value


def call_node(node: GraphNode, keys: tuple[Key, ...], *values: Any) -> Any:
    """Run a kind of Dask node that we do not know in the way Dask would."""
    return node(dict(zip(keys, values, strict=True)))


_CONTAINERS: dict[type, Callable[..., Any]] = {
    List: make_list,
    Tuple: make_tuple,
    Set: make_set,
    Dict: make_dict,
}


class _Program:
    """A program under construction.

    Values get codes while their final numbers are unknown: ``~k`` for literal k, ``2 * i`` for input i,
    ``2 * s + 1`` for the result of step s.
    """

    __slots__ = ("functions", "input_keys", "inputs", "literals", "steps")

    def __init__(self) -> None:
        self.inputs: dict[Key, int] = {}
        self.input_keys: list[Key] = []
        self.literals: list[Any] = []
        self.steps: list[tuple[int, tuple[int, ...], tuple[str, ...]]] = []
        self.functions: list[Callable[..., Any]] = []

    def input(self, key: Key) -> int:
        code = self.inputs.get(key)
        if code is None:
            code = self.inputs[key] = 2 * len(self.input_keys)
            self.input_keys.append(key)
        return code

    def literal(self, value: Any) -> int:
        self.literals.append(value)
        return ~(len(self.literals) - 1)

    def step(self, function: Callable[..., Any], codes: tuple[int, ...], keywords: tuple[str, ...] = ()) -> int:
        self.functions.append(function)
        self.steps.append((id(function), codes, keywords))
        return 2 * len(self.steps) - 1


class _Pattern:
    """What is known of programs that are alike: whether they store chunks, and their operand by where it runs."""

    __slots__ = ("operands", "stores")

    def __init__(self, stores: bool) -> None:
        self.stores = stores
        self.operands: dict[bool, int] = {}


class Converter:
    """Turns one Dask graph into a `ChunkGraph`.

    Parameters
    ----------
    dsk : mapping
        A low-level Dask graph: key to `GraphNode`, legacy task or value.
    layers : iterable of LazyLayer
        Layers whose blocks belong to the graph as well; none of them needs to be materialised.
    """

    def __init__(self, dsk: Mapping[Key, Any], layers: Iterable[LazyLayer] = ()) -> None:
        self._dsk = dsk
        layers = list(layers)
        self._layers = LazyLayers(layers, self)
        self._find = dsk.get
        self._known_keys: Container[Any] = _KnownKeys(dsk, self._layers) if layers else dsk
        self._graph = ChunkGraph()
        self._patterns: dict[Any, _Pattern] = {}
        # Nodes that are not in Dask's graph: large literals and the halves of split tasks.
        self._extra: dict[Key, Any] = {}
        self._seen_inner: dict[tuple[int, Key], Subprogram | None] = {}
        # Types whose values are literals and nothing else.
        self._literal_types = set(_PLAIN)
        self._functions: dict[Any, Callable[..., Any]] = {}
        # What becomes of each callable that was met as a literal, by its id.
        self._callables: dict[int, Held | None] = {}
        # Keys of tasks that make the targets of stores.
        self._targets: set[Key | None] = set()
        # Functions made here, kept alive because programs are told apart by the ids of their functions.
        self._keep: list[Any] = []

    # -- for layers -------------------------------------------------------------------------------------------

    def new_program(self) -> _Program:
        """Return an empty program."""
        return _Program()

    def emit_list(self, program: _Program, codes: list[int]) -> int:
        """Add a step that makes a list of values."""
        return program.step(make_list, tuple(codes))

    def emit_result(self, program: _Program, node: GraphNode, local: dict[Key, int]) -> None:
        """Add the steps of a node whose value is the program's result."""
        code = self._emit_node(program, node, local)
        if not program.steps or code != 2 * len(program.steps) - 1:
            program.step(identity, (code,))

    # -- one node ---------------------------------------------------------------------------------------------

    def emit_argument(self, program: _Program, argument: Any, local: dict[Key, int]) -> int:
        """Return the code of an argument's value, with the steps that it takes; `local` knows codes of keys."""
        kind = type(argument)
        if kind is TaskRef:
            key = argument.key
            code = local.get(key) if local else None
            return program.input(key) if code is None else code
        if kind in self._literal_types:
            return program.literal(argument)
        if kind is Alias:
            key = argument.target
            code = local.get(key) if local else None
            return program.input(key) if code is None else code
        if isinstance(argument, DataNode):
            return self._emit_literal(program, argument.value)
        if isinstance(argument, GraphNode):
            return self._emit_node(program, argument, local)
        if isinstance(argument, TaskRef):
            code = local.get(argument.key) if local else None
            return program.input(argument.key) if code is None else code
        return self._emit_literal(program, argument)

    def _emit_literal(self, program: _Program, value: Any) -> int:
        if isinstance(value, np.ndarray) and value.nbytes >= LARGE_LITERAL_BYTES:
            key = ("mars-literal", id(value))
            self._extra[key] = DataNode(key, value)
            return program.input(key)
        if not callable(value):
            if not isinstance(value, np.ndarray):
                self._literal_types.add(type(value))
            return program.literal(value)
        held = self._held_callable(value)
        return program.literal(value) if held is None else program.step(held, ())

    def _same_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that stands for all that do the same, which some layers make anew for each block."""
        if type(function) is not partial and type(function) is not MethodType:
            return function
        if self._functions.get(id(function)) is function:
            return function
        # It keeps alive what it is told apart by.
        chosen = self._functions.setdefault(_identity(function), function)
        self._functions[id(chosen)] = chosen
        return chosen

    def _held_callable(self, function: Callable[..., Any]) -> Held | None:
        """Return a step that returns a callable, or None for one that may as well be a literal."""
        try:
            return self._callables[id(function)]
        except KeyError:
            pass
        # A path is all that would travel of it anyway.
        self._callables[id(function)] = None if path_of(function) is not None else Held(function)
        self._keep.append(function)
        # So far it may be this chunk's alone, and then would not be worth an operand.
        return None

    def _emit_node(self, program: _Program, node: GraphNode, local: dict[Key, int]) -> int:
        kind = type(node)
        if kind is Task:
            if node.func is _execute_subgraph:
                return self._emit_subgraph(program, node, local)
            emit = self.emit_argument
            codes = tuple([emit(program, argument, local) for argument in node.args])
            function = self._same_function(node.func)
            if node.kwargs:
                codes += tuple([emit(program, value, local) for value in node.kwargs.values()])
                return program.step(function, codes, tuple(node.kwargs))
            return program.step(function, codes)
        constructor = _CONTAINERS.get(kind)
        if constructor is not None:
            emit = self.emit_argument
            return program.step(constructor, tuple([emit(program, argument, local) for argument in node.args]))
        if isinstance(node, Alias):
            return self.emit_argument(program, TaskRef(node.target), local)
        if isinstance(node, DataNode):
            return self._emit_literal(program, node.value)
        # A kind of node we do not know, such as a subclass of Task: Dask's own call runs it whole.
        keys = tuple(sorted(node.dependencies, key=repr))
        codes = (
            program.literal(node),
            program.literal(keys),
            *[self.emit_argument(program, TaskRef(key), local) for key in keys],
        )
        return program.step(call_node, codes)

    def _emit_subgraph(self, program: _Program, node: Task, local: dict[Key, int]) -> int:
        inner, outkey, inkeys, *dependencies = (
            argument.value if isinstance(argument, DataNode) else argument for argument in node.args
        )
        codes = [self.emit_argument(program, argument, local) for argument in dependencies]
        identity_of_inner = (id(inner), outkey)
        shared = self._seen_inner.get(identity_of_inner)
        if shared is None and identity_of_inner in self._seen_inner:
            # Met a second time: Dask shares this inner graph between blocks, so it becomes one function.
            shared = self._seen_inner[identity_of_inner] = self._subprogram(inner, outkey, inkeys)
        if shared is not None:
            return program.step(shared, tuple(codes))
        self._seen_inner[identity_of_inner] = None
        self._keep.append(inner)
        inner_local = dict(zip(inkeys, codes, strict=False))
        return self._emit_inner(program, inner, outkey, inner_local)

    def _emit_inner(self, program: _Program, inner: Mapping[Key, Any], outkey: Key, local: dict[Key, int]) -> int:
        """Emit the tasks of an inner graph that its output needs, inputs before their users."""
        stack = [outkey]
        while stack:
            key = stack[-1]
            if key in local:
                stack.pop()
                continue
            node = inner[key]
            if not isinstance(node, GraphNode):
                node = convert_legacy_task(key, node, inner.keys() | local.keys())
            waiting = (
                [d for d in node.dependencies if d not in local and d in inner]
                if isinstance(node, GraphNode)
                else []
            )
            if waiting:
                if len(waiting) > 1:
                    # In the graph's order: that of a set would make other programs of tasks that are alike.
                    waiting.sort(key=list(inner).index)
                stack.extend(waiting)
                continue
            stack.pop()
            local[key] = self.emit_argument(program, node, local)
        return local[outkey]

    def _subprogram(self, inner: Mapping[Key, Any], outkey: Key, inkeys: Iterable[Key]) -> Subprogram:
        program = _Program()
        local = {key: program.input(key) for key in inkeys}
        passed = len(program.input_keys)
        code = self._emit_inner(program, inner, outkey, local)
        if not program.steps or code != 2 * len(program.steps) - 1:
            program.step(identity, (code,))
        operand = _finish_operand(program, _name_of(program.functions))
        subprogram = Subprogram(operand, tuple(program.literals))
        # A large literal inside would be an input that nobody passes; it stays inside instead.
        missing = program.input_keys[passed:]
        if missing:
            values = tuple(self._extra[key].value for key in missing)
            subprogram = _BoundSubprogram(operand, tuple(program.literals), values)
        self._keep.append(subprogram)
        return subprogram

    # -- one chunk --------------------------------------------------------------------------------------------

    def program_of(self, key: Key, value: Any) -> _Program | DataNode | Alias:
        """Compile the node of one key, or return it if there is nothing to run."""
        if isinstance(value, GraphNode):
            node: Any = value
        else:
            if type(value) is tuple and value and callable(value[0]):
                program = _Program()
                if self._legacy(program, value) is not None:
                    return program
            node = convert_legacy_task(key, value, self._known_keys)
            if not isinstance(node, GraphNode):
                return DataNode(key, node)
        if isinstance(node, (DataNode, Alias)):
            return node
        if type(node) is Task:
            if node.func is _execute_subgraph:
                node = self._split_store(key, node)
            elif is_client_store(node, {}, {}, self._dsk):
                self._targets.add(target_key(node, {}, {}))
        program = _Program()
        self.emit_result(program, node, {})
        return program

    def _legacy(self, program: _Program, task: tuple[Any, ...]) -> int | None:
        """Compile a legacy task as `convert_legacy_task` would read it, or return None where it knows more."""
        codes = []
        for argument in task[1:]:
            code = self._legacy_argument(program, argument)
            if code is None:
                return None
            codes.append(code)
        return program.step(self._same_function(task[0]), tuple(codes))

    def _legacy_argument(self, program: _Program, argument: Any) -> int | None:
        kind = type(argument)
        if kind in _MAY_BE_KEYS:
            if argument in self._known_keys:
                return program.input(argument)
            return program.literal(argument)
        if kind is tuple:
            if argument and callable(argument[0]):
                return self._legacy(program, argument)
            try:
                if argument in self._known_keys:
                    return program.input(argument)
            except TypeError:
                # Slices and lists are no part of any key.
                pass
            return program.literal(argument) if all(map(self._is_literal, argument)) else None
        if kind is list:
            if all(map(self._is_literal, argument)):
                # A task may change its list, and this one is the user's.
                return program.literal(argument.copy())
            codes = [self._legacy_argument(program, item) for item in argument]
            return None if None in codes else program.step(make_list, tuple(codes))  # type: ignore[arg-type]
        if kind in _PLAIN:
            return program.literal(argument)
        if isinstance(argument, _READ_BY_DASK) or _is_dask_future(argument):
            return None
        return self._emit_literal(program, argument)

    def _is_literal(self, value: Any) -> bool:
        """Say whether an element of a legacy container holds neither keys nor tasks, for certain."""
        kind = type(value)
        if kind in _MAY_BE_KEYS:
            return value not in self._known_keys
        if kind is tuple:
            if value and callable(value[0]):
                return False
            try:
                if value in self._known_keys:
                    return False
            except TypeError:
                pass
            return all(map(self._is_literal, value))
        return kind in _PLAIN

    def _split_store(self, key: Key, node: Task) -> Task:
        """Cut a fused task in two where it writes into the user's own memory.

        What is computed before the write goes to a worker; the write, and what follows it, stays in the client.
        """
        inner, outkey, inkeys, *dependencies = (
            argument.value if isinstance(argument, DataNode) else argument for argument in node.args
        )
        outer = dict(zip(inkeys, dependencies, strict=False))
        for store_key, store in inner.items():
            if not is_client_store(store, inner, outer, self._dsk):
                continue
            self._targets.add(target_key(store, inner, outer))
            source = store.args[0]
            source_key = source.key if isinstance(source, TaskRef) else getattr(source, "target", None)
            if source_key not in inner or source_key == store_key:
                return node
            upper_key = ("mars-source", key)
            upper = {name: task for name, task in inner.items() if name != store_key}
            self._extra[upper_key] = Task(upper_key, _execute_subgraph, upper, source_key, inkeys, *dependencies)
            rest = dict(inner)
            del rest[source_key]
            return Task(
                key, _execute_subgraph, rest, outkey, (*inkeys, source_key), *dependencies, TaskRef(upper_key)
            )
        return node

    def operand_of(self, key: Key, program: _Program) -> int:
        """Return the number of the operand of all chunks with the same program."""
        pattern = (len(program.input_keys), len(program.literals), tuple(program.steps))
        known = self._patterns.get(pattern)
        if known is None:
            known = self._patterns[pattern] = _Pattern(stores_chunk(program.functions))
        in_client = assembles_result(key) or (
            known.stores and stores_in_client(program.functions, program.literals, program.input_keys, self._dsk)
        )
        number = known.operands.get(in_client)
        if number is None:
            number = known.operands[in_client] = len(self._graph.operands)
            self._graph.operands.append(_finish_operand(program, _name_of(program.functions), in_client))
        return number

    # -- the walk ---------------------------------------------------------------------------------------------

    def _enter(self, key: Key, wanted_by: Iterable[Key]) -> _Program | Record | DataNode | Alias:
        """Compile the node of a key; of those that want it the last one counts."""
        node = self._find(key, _MISSING)
        if node is _MISSING:
            record = self._layers.record(key)
            if record is not None:
                return record
            node = self._other_node(key, wanted_by)
        return self.program_of(key, node)

    def _other_node(self, key: Key, wanted_by: Iterable[Key]) -> Any:
        for scope in (self._extra, self._layers.materialised):
            if key in scope:
                return scope[key]
        *_, dependent = (None, *wanted_by)
        if dependent is None:
            raise KeyError(key)
        raise ValueError(f"Missing dependency {key!r} for dependents {{{dependent!r}}}") from None

    def convert(self, wanted: Iterable[Key]) -> ChunkGraph:
        """Walk from the wanted keys.

        Raises
        ------
        TypeError
            A wanted key cannot be one.
        KeyError
            A wanted key is not in the graph.
        ValueError
            A task depends on a key that is not in the graph.
        RuntimeError
            The graph has a cycle.
        """
        graph = self._graph
        ids = graph.ids
        wanted = list(wanted)
        for key in wanted:
            _refuse_unhashable(key)
        #: What has been compiled and waits for its inputs, each wanted by the one before.
        entered: dict[Key, _Program | Record | DataNode | Alias] = {}
        stack = wanted[::-1]
        while stack:
            key = stack[-1]
            if key in ids:
                stack.pop()
                continue
            program = entered.pop(key, None)
            if program is None:
                program = self._enter(key, entered)
                dependencies: Sequence[Key] = ()
                if isinstance(program, (Record, _Program)):
                    dependencies = program.input_keys
                elif isinstance(program, Alias):
                    dependencies = (program.target,)
                waiting = [dependency for dependency in dependencies if dependency not in ids]
                if waiting:
                    entered[key] = program
                    for dependency in waiting:
                        if dependency in entered:
                            self._raise_cycle(dependency, entered)
                    waiting.reverse()
                    stack += waiting
                    continue
            stack.pop()
            self._leave(key, program)
        graph.outputs = sorted({ids[key] for key in wanted})
        graph.in_client.update(ids[key] for key in self._targets if key in ids)
        graph.in_client -= graph.values.keys()
        return graph

    def _leave(self, key: Key, program: _Program | Record | DataNode | Alias) -> None:
        """Give a chunk to a key whose inputs have theirs."""
        graph = self._graph
        ids = graph.ids
        if isinstance(program, Alias):
            ids[key] = ids[program.target]
            return
        chunk = ids[key] = len(graph.keys)
        graph.keys.append(key)
        if isinstance(program, Record):
            graph.operand_of.append(program.operand)
            graph.literals.append(program.literals)
        elif isinstance(program, _Program):
            graph.operand_of.append(self.operand_of(key, program))
            graph.literals.append(tuple(program.literals))
        else:
            graph.operand_of.append(DATA)
            graph.literals.append(())
            graph.inputs.append(())
            graph.values[chunk] = program.value
            return
        graph.inputs.append(tuple([ids[dependency] for dependency in program.input_keys]))

    def _raise_cycle(self, key: Key, entered: Iterable[Key]) -> NoReturn:
        """Name the keys from one to itself: of those that have been entered, each waits for the next."""
        path = list(entered)
        circle = [*path[path.index(key) :], key]
        steps = "\n  -> ".join(str(step) for step in circle if step not in self._extra)
        raise RuntimeError(f"Cycle detected between the following keys:\n  -> {steps}")


class _BoundSubprogram(Subprogram):
    """A subprogram with values for its last inputs."""

    __slots__ = ("values",)

    def __init__(self, operand: Operand, literals: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        super().__init__(operand, literals)
        self.values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return _BoundSubprogram, (self.operand, self.literals, self.values)

    def __call__(self, *inputs: Any) -> Any:
        return self.operand.run([*inputs, *self.values], self.literals)


class _KnownKeys:
    """`key in …` for arbitrary values, without building a set of all keys."""

    __slots__ = ("_dsk", "_layers")

    def __init__(self, dsk: Mapping[Key, Any], layers: LazyLayers) -> None:
        self._dsk = dsk
        self._layers = layers

    def __contains__(self, key: Any) -> bool:
        return key in self._dsk or key in self._layers


def _refuse_unhashable(key: Any) -> None:
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(f"Key {key!r} cannot be a key: {error}") from None


def _finish_operand(program: _Program, name: str, in_client: bool = False) -> Operand:
    """Give every value its final number and every function its place."""
    input_count, literal_count = len(program.input_keys), len(program.literals)
    first_step = input_count + literal_count
    places: dict[int, int] = {}
    functions: list[Callable[..., Any]] = []
    steps = []
    for function, (function_id, codes, keywords) in zip(program.functions, program.steps, strict=True):
        place = places.setdefault(function_id, len(functions))
        if place == len(functions):
            functions.append(function)
        slots = tuple(
            [
                input_count + ~code if code < 0 else code >> 1 if code & 1 == 0 else first_step + (code >> 1)
                for code in codes
            ]
        )
        steps.append(Step(place, slots, keywords))
    return Operand(name, tuple(functions), tuple(steps), input_count, literal_count, in_client)


def _identity(value: Any) -> Any:
    """Return what is the same of values that do the same, as far as is known."""
    kind = type(value)
    if kind is partial:
        keywords = tuple([(name, _identity(item)) for name, item in value.keywords.items()])
        return partial, _identity(value.func), tuple(map(_identity, value.args)), keywords
    if kind is MethodType:
        return MethodType, id(value.__self__), id(value.__func__)
    if kind is tuple:
        return tuple, tuple(map(_identity, value))
    if kind is int or kind is str or kind is bool:
        return kind, value
    return id(value)


def _name_of(functions: list[Callable[..., Any]]) -> str:
    called = [function for function in functions if type(function) is not Held]
    return "-".join(str(funcname(function)) for function in called[-4:])


def convert(dsk: Mapping[Key, Any], wanted: Iterable[Key], layers: Iterable[LazyLayer] = ()) -> ChunkGraph:
    """Turn a Dask graph into a chunk graph that computes the wanted keys."""
    return Converter(dsk, layers).convert(wanted)
