"""Dask's tasks as programs: one compiler for the tasks of a graph and for the templates of its layers.

Tasks that differ only in inputs and literals have the same program, and so the same operand.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from types import MethodType
from typing import Any

from dask_mars.dask_api.core import (
    ORIGINALS,
    Alias,
    DataNode,
    Dict,
    GraphNode,
    List,
    ProhibitReuse,
    Set,
    Task,
    TaskRef,
    Tuple,
    _execute_subgraph,
    convert_legacy_task,
    is_dask_future,
    original_of,
)
from dask_mars.graph.callables import is_parquet_reader
from dask_mars.graph.chunks import Constant, Key, Operand, Subprogram
from dask_mars.graph.functions import path_of
from dask_mars.lazy_numpy import np
from dask_mars.optimize.client_only import (
    assembles_result,
    is_client_store,
    is_locked_store,
    stores_chunk,
    stores_in_client,
    target_key,
)
from dask_mars.optimize.fronts.base import LazyLayer, LazyLayers
from dask_mars.optimize.programs import (
    BoundSubprogram,
    Program,
    call_node,
    finish_operand,
    identity,
    make_dict,
    make_list,
    make_set,
    make_tuple,
    name_of,
    token_of,
)
from dask_mars.optimize.shapes import MAY_BE_KEYS, PLAIN, TaskShapes
from dask_mars.store.persisted import PersistedChunk, PersistedNode, as_data, holds_persisted, persisted_exist

#: Size from which literals become chunks of their own, stored once and shared by their readers, in bytes.
LARGE_LITERAL_BYTES = 1 << 16

#: Maximum steps of an inner graph shared by blocks that are inlined into each block's program.
_LONGEST_INLINED = 30

# Types in which legacy tasks may hold keys or tasks, their subclasses included.
_READ_BY_DASK = (GraphNode, dict, list, tuple, set, frozenset, int, float, str)

_CONTAINERS: dict[type, Callable[..., Any]] = {List: make_list, Tuple: make_tuple, Set: make_set, Dict: make_dict}


# Python's own containers as Dask passes them on, and their constructors.
_MAY_HOLD: dict[type, Callable[..., Any]] = {list: make_list, tuple: make_tuple, set: make_set, dict: make_dict}


class _Pattern:
    """Facts about equal programs: whether they store chunks, and their operands by location."""

    __slots__ = ("operands", "stores")

    def __init__(self, stores: bool) -> None:
        self.stores = stores
        self.operands: dict[bool, int] = {}


class Compiler:
    """Turns the tasks of one Dask graph into programs, and programs into operands."""

    def __init__(
        self,
        dsk: Mapping[Key, Any],
        layers: Iterable[LazyLayer] = (),
        split_locked_stores: bool = False,
        asked_for: Collection[Key] = (),
    ) -> None:
        layers = list(layers)
        self._split_locked_stores = split_locked_stores
        # A proxy, to avoid a cycle: the graph's data, perhaps large, are freed together with the compiler.
        proxy = weakref.proxy(self)
        self.layers = LazyLayers(layers, proxy, asked_for)
        self.operands: list[Operand] = []
        #: Nodes besides those of Dask's graph: large literals and the halves of split tasks.
        self.extra: dict[Key, Any] = {}
        #: Keys of tasks that make the targets of stores.
        self.targets: set[Key | None] = set()
        self._dsk = dsk
        #: All values that legacy tasks may mean as keys.
        self._known_keys: Container[Any] = _KnownKeys(dsk, self.layers) if layers else dsk
        self._patterns: dict[Any, _Pattern] = {}
        self._seen_inner: dict[tuple[int, Key], Subprogram | None] = {}
        # Types whose values are always literals.
        self._literal_types = {*PLAIN, *(() if persisted_exist() else _MAY_HOLD)}
        self.shapes = TaskShapes(
            lambda function: proxy._same_function(function),
            lambda value: proxy._stays_literal(value),
            self._literal_types,
            self._known_keys,
            self.layers.has_block,
        )
        self._functions: dict[Any, Callable[..., Any]] = {}
        # Partial functions, each with one of Dask's functions in place of copies, by the first's id.
        self._originals: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        # How to emit each callable met as a literal, by its id.
        self._callables: dict[int, Constant | None] = {}
        # Constants that hold literals of subprograms, by the literals' ids.
        self._held: dict[int, Constant] = {}
        # Functions made here, kept alive because programs are compared by the ids of their functions.
        self._keep: list[Any] = []

    def emit_result(self, program: Program, node: GraphNode, local: dict[Key, int]) -> None:
        """Add the steps of a node whose value is the program's result."""
        code = self._emit_node(program, node, local)
        if not program.steps or code != 2 * len(program.steps) - 1:
            program.step(identity, (code,))

    # -- one node ---------------------------------------------------------------------------------------------

    def emit_argument(self, program: Program, argument: Any, local: dict[Key, int]) -> int:
        """Emit the steps of an argument and return the code of its value; `local` has the codes of keys."""
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
            # A future: its key need not be in the graph.
            self.extra.setdefault(argument.key, DataNode(argument.key, argument))
            code = local.get(argument.key) if local else None
            return program.input(argument.key) if code is None else code
        return self._emit_literal(program, argument)

    def _emit_literal(self, program: Program, value: Any) -> int:
        if issubclass(type(value), np.ndarray) and value.nbytes >= LARGE_LITERAL_BYTES:
            key = ("mars-literal", id(value))
            self.extra[key] = DataNode(key, value)
            return program.input(key)
        if type(value) is PersistedChunk:
            key = ("mars-persisted", id(value))
            self.extra[key] = DataNode(key, value)
            return program.input(key)
        if type(value) in _MAY_HOLD:
            # Containers do not count as literals: the next one may hold a persisted chunk.
            return self._emit_container(program, value) if holds_persisted(value) else program.literal(value)
        if not callable(value):
            if not issubclass(type(value), np.ndarray):
                self._literal_types.add(type(value))
            return program.literal(value)
        held = self._constant_for(value)
        return program.literal(value) if held is None else program.step(held, ())

    def _stays_literal(self, value: Any) -> bool:
        """Return whether `_emit_literal` certainly makes a value a literal."""
        kind = type(value)
        if kind in _MAY_HOLD:
            return not holds_persisted(value)
        if kind is np.ndarray:
            return bool(value.nbytes < LARGE_LITERAL_BYTES)
        return kind in self._literal_types or self._callables.get(id(value), value) is None

    def _emit_container(self, program: Program, value: Any) -> int:
        """Emit a container that holds persisted chunks: its items become values of their own."""
        kind = type(value)
        items = itertools.chain.from_iterable(value.items()) if kind is dict else value
        return program.step(_MAY_HOLD[kind], tuple([self._emit_literal(program, item) for item in items]))

    def _same_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return one function for all equal ones: some layers make a new one for each block."""
        kind = type(function)
        if kind is not partial and kind is not MethodType and not is_parquet_reader(kind):
            return original_of(function) if ORIGINALS else function
        if self._functions.get(id(function)) is function:
            return function
        if ORIGINALS:
            known = self._originals.get(id(function))
            if known is None:
                known = self._originals[id(function)] = function, original_of(function)
            function = known[1]
        # The function keeps alive the objects whose ids identify it.
        chosen = self._functions.setdefault(token_of(function), function)
        self._functions[id(chosen)] = chosen
        return chosen

    def _constant_for(self, function: Callable[..., Any]) -> Constant | None:
        """Return a step that returns a callable, or None if the callable may be a literal."""
        try:
            return self._callables[id(function)]
        except KeyError:
            pass
        # Such a callable travels as a path anyway.
        self._callables[id(function)] = None if path_of(function) is not None else Constant(function)
        self._keep.append(function)
        # So far only this chunk has it, which does not justify an operand.
        return None

    def _emit_node(self, program: Program, node: GraphNode, local: dict[Key, int]) -> int:
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
        if kind is PersistedNode:
            return self._emit_literal(program, node.value)
        constructor = _CONTAINERS.get(kind)
        if constructor is not None:
            emit = self.emit_argument
            return program.step(constructor, tuple([emit(program, argument, local) for argument in node.args]))
        if isinstance(node, Alias):
            return self.emit_argument(program, TaskRef(node.target), local)
        if isinstance(node, DataNode):
            return self._emit_literal(program, node.value)
        # An unknown kind of node, such as a subclass of Task: Dask's own call runs it whole.
        keys = tuple(sorted(node.dependencies, key=repr))
        codes = (
            program.literal(node),
            program.literal(keys),
            *[self.emit_argument(program, TaskRef(key), local) for key in keys],
        )
        return program.step(call_node, codes)

    def _emit_subgraph(self, program: Program, node: Task, local: dict[Key, int]) -> int:
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
            return self._emit_subprogram(program, shared, codes)
        self._seen_inner[identity_of_inner] = None
        self._keep.append(inner)
        inner_local = dict(zip(inkeys, codes, strict=False))
        return self._emit_inner(program, inner, outkey, inner_local)

    def _emit_subprogram(self, program: Program, shared: Subprogram, codes: list[int]) -> int:
        """Inline the steps of a subprogram, so that expressions include them; call a long one."""
        operand = shared.operand
        if type(shared) is not Subprogram or len(operand.steps) > _LONGEST_INLINED:
            return program.step(shared, tuple(codes))
        known = list(codes)
        for value in shared.literals:
            held = self.shared_constant(value)
            known.append(program.literal(value) if held is None else program.step(held, ()))
        for step in operand.steps:
            taken = tuple([known[slot] for slot in step.slots])
            known.append(program.step(operand.functions[step.function], taken, step.keywords))
        return known[-1]

    def shared_constant(self, value: Any) -> Constant | None:
        """Return a literal as a constant of the operand, which travels once; None for plain ones."""
        return None if _is_plain(value) else self._held.setdefault(id(value), Constant(value))

    def _emit_inner(self, program: Program, inner: Mapping[Key, Any], outkey: Key, local: dict[Key, int]) -> int:
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
                    # In the graph's order: the order of a set would vary the programs of equal tasks.
                    waiting.sort(key=list(inner).index)
                stack.extend(waiting)
                continue
            stack.pop()
            local[key] = self.emit_argument(program, node, local)
        return local[outkey]

    def _subprogram(self, inner: Mapping[Key, Any], outkey: Key, inkeys: Iterable[Key]) -> Subprogram:
        program = Program()
        local = {key: program.input(key) for key in inkeys}
        passed = len(program.input_keys)
        code = self._emit_inner(program, inner, outkey, local)
        if not program.steps or code != 2 * len(program.steps) - 1:
            program.step(identity, (code,))
        operand = finish_operand(program, name_of(program.functions))
        subprogram = Subprogram(operand, tuple(program.literals))
        # A large literal inside would be an input without a value; it stays inside instead.
        missing = program.input_keys[passed:]
        if missing:
            values = tuple(self.extra[key].value for key in missing)
            subprogram = BoundSubprogram(operand, tuple(program.literals), values)
        self._keep.append(subprogram)
        return subprogram

    # -- one chunk --------------------------------------------------------------------------------------------

    def program_of(self, key: Key, value: Any) -> Program | DataNode | Alias:
        """Compile the node of one key, or return it if there is nothing to run."""
        if isinstance(value, GraphNode):
            node: Any = value
        else:
            if type(value) is tuple and value and callable(value[0]):
                program = Program()
                if self._legacy(program, value) is not None:
                    return program
            node = convert_legacy_task(key, value, self._known_keys)
            if not isinstance(node, GraphNode):
                return DataNode(key, node)
        node = as_data(key, _unwrapped(node))
        if isinstance(node, (DataNode, Alias)):
            return node
        if type(node) is Task:
            if node.func is _execute_subgraph:
                node = self._split_store(key, node)
            elif is_client_store(node, {}, {}, self._dsk):
                self.targets.add(target_key(node, {}, {}))
        program = Program()
        self.emit_result(program, node, {})
        return program

    def _legacy(self, program: Program, task: tuple[Any, ...]) -> int | None:
        """Compile a legacy task as `convert_legacy_task` would read it, or return None where only that can."""
        codes = []
        for argument in task[1:]:
            code = self._legacy_argument(program, argument)
            if code is None:
                return None
            codes.append(code)
        return program.step(self._same_function(task[0]), tuple(codes))

    def _legacy_argument(self, program: Program, argument: Any) -> int | None:
        kind = type(argument)
        if kind in MAY_BE_KEYS:
            if argument in self._known_keys:
                return program.input(argument)
            return program.literal(argument)
        if kind is tuple:
            if argument and callable(argument[0]):
                return self._legacy(program, argument)
            if self.shapes.is_key(argument):
                return program.input(argument)
            return program.literal(argument) if all(map(self.shapes.is_literal, argument)) else None
        if kind is list:
            code = self._list_of_keys(program, argument)
            if code is not None:
                return code
            if all(map(self.shapes.is_literal, argument)):
                # A task may change its list, and this one is the user's.
                return program.literal(argument.copy())
            codes = [self._legacy_argument(program, item) for item in argument]
            return None if None in codes else program.step(make_list, tuple(codes))  # type: ignore[arg-type]
        if kind in PLAIN:
            return program.literal(argument)
        if isinstance(argument, _READ_BY_DASK) or is_dask_future(argument):
            return None
        return self._emit_literal(program, argument)

    def _list_of_keys(self, program: Program, items: list[Any]) -> int | None:
        """Compile a list of keys of blocks, as in tree reductions; return None for other lists."""
        known = self._known_keys
        codes = []
        for item in items:
            try:
                # Checked for a name, because a tuple that begins with a callable is a task.
                if type(item) is not tuple or type(item[0]) is not str or item not in known:
                    return None
            except (IndexError, TypeError):
                return None
            codes.append(program.input(item))
        return program.step(make_list, tuple(codes)) if codes else None

    def _split_store(self, key: Key, node: Task) -> Task:
        """Cut a fused task in two where it writes into the user's own memory, or under a lock."""
        # A worker computes the source. The write and its successors stay in the client, or have the lock to
        # themselves.
        inner, outkey, inkeys, *dependencies = (
            argument.value if isinstance(argument, DataNode) else argument for argument in node.args
        )
        outer = dict(zip(inkeys, dependencies, strict=False))
        for store_key, store in inner.items():
            if is_client_store(store, inner, outer, self._dsk):
                self.targets.add(target_key(store, inner, outer))
            elif not (self._split_locked_stores and is_locked_store(store)):
                continue
            source = store.args[0]
            source_key = source.key if isinstance(source, TaskRef) else getattr(source, "target", None)
            if source_key not in inner or source_key == store_key:
                return node
            upper_key = ("mars-source", key)
            upper = {name: task for name, task in inner.items() if name != store_key}
            self.extra[upper_key] = Task(upper_key, _execute_subgraph, upper, source_key, inkeys, *dependencies)
            rest = dict(inner)
            del rest[source_key]
            return Task(
                key, _execute_subgraph, rest, outkey, (*inkeys, source_key), *dependencies, TaskRef(upper_key)
            )
        return node

    def operand_of(self, key: Key, program: Program) -> int:
        """Return the number of the operand of all chunks with the same program."""
        pattern = (len(program.input_keys), len(program.literals), tuple(program.steps))
        known = self._patterns.get(pattern)
        if known is None:
            known = self._patterns[pattern] = _Pattern(stores_chunk(program.functions))
        in_client = assembles_result(key) or (
            known.stores and stores_in_client(program.functions, program.literals, program.input_keys, self._dsk)
        )
        operand_id = known.operands.get(in_client)
        if operand_id is None:
            # A signal handler of the user's may raise anywhere: no number must stay without its operand.
            self.operands.append(finish_operand(program, name_of(program.functions), in_client))
            operand_id = known.operands[in_client] = len(self.operands) - 1
        return operand_id


class _KnownKeys:
    """`key in …` for arbitrary values, without building a set of all keys."""

    __slots__ = ("_dsk", "_layers")

    def __init__(self, dsk: Mapping[Key, Any], layers: LazyLayers) -> None:
        self._dsk = dsk
        self._layers = layers

    def __contains__(self, key: Any) -> bool:
        return key in self._dsk or key in self._layers


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in PLAIN or (kind is tuple and all(map(_is_plain, value)))


def _unwrapped(node: GraphNode) -> GraphNode:
    """Unwrap the call by which Dask keeps delayed values from sharing tasks."""
    while type(node) is Task and node.func is ProhibitReuse._identity and isinstance(node.args[0], GraphNode):
        node = node.args[0]
    return node
