"""Tasks by their shape: those that differ only in inputs and plain literals share an operand.

The first task of a shape is compiled. Later ones cost a look-up, and no program of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from dask_mars.dask_api.core import Alias, DataNode, Dict, List, Set, Task, TaskRef, Tuple, _execute_subgraph
from dask_mars.graph.chunks import Key
from dask_mars.lazy_numpy import np
from dask_mars.optimize.client_only import assembles_result, stores_chunk
from dask_mars.optimize.fronts.base import ChunkRecord
from dask_mars.optimize.programs import Program

#: Literals that a legacy task may mean as keys: True is the key 1.
MAY_BE_KEYS = frozenset({int, float, str, bool})
#: Literal types so frequent that an `isinstance` for each would cost too much.
PLAIN: frozenset[type] = frozenset({int, float, str, bool, bytes, slice, type(None), complex})
# Callables that equal no other one.
_UNIQUE = frozenset({FunctionType, BuiltinFunctionType, type})
_CONTAINERS = frozenset({List, Tuple, Set, Dict})
# Code of a literal; those of inputs are their numbers, and those of calls tuples.
_LITERAL = -1

_Code = int | tuple[Any, ...]


class TaskShape:
    """One task's shape, inputs and literals."""

    __slots__ = ("code", "inputs", "literals")

    def __init__(self) -> None:
        self.code: _Code | None = None
        self.inputs: dict[Key, int] = {}
        self.literals: list[Any] = []


class TaskShapes:
    """The operands of tasks, by shape."""

    def __init__(
        self,
        same_function: Callable[[Any], Any],
        stays_literal: Callable[[Any], bool],
        literal_types: Collection[type],
        known_keys: Container[Any],
        has_block: Mapping[Any, Callable[[Any], bool]],
    ) -> None:
        self._same_function = same_function
        self._stays_literal = stays_literal
        self._literal_types = literal_types
        self._known_keys = known_keys
        self._has_block = has_block
        # For each callable that may equal others: it, kept alive, and the id of the first of them.
        self._functions: dict[int, tuple[Any, int]] = {}
        # With each operand a task of that shape, to keep alive the functions whose ids are in the code.
        self._operands: dict[_Code, tuple[int, Any]] = {}

    def of(self, node: Any) -> TaskShape | None:
        """Return the shape of a task, or None if the task has to be compiled to find its operand."""
        shape = TaskShape()
        try:
            if type(node) is Task:
                shape.code = self._task(node, shape)
            elif type(node) is tuple and node and callable(node[0]):
                shape.code = self._legacy(node, shape)
        except TypeError:
            # Something is unhashable that might be a key.
            return None
        return None if shape.code is None else shape

    def record(self, key: Key, shape: TaskShape) -> ChunkRecord | None:
        """Return the record of a task, None if its shape is new."""
        known = self._operands.get(shape.code)  # type: ignore[arg-type]
        if known is None or (type(key) is str and assembles_result(key)):
            return None
        return known[0], tuple(shape.literals), list(shape.inputs)

    def add(self, key: Key, node: Any, shape: TaskShape, program: Program, operand: int) -> None:
        """Record the operand of a shape, unless the operand depends on more than the shape."""
        if (
            program.input_keys == [*shape.inputs]
            and [*map(type, program.literals)] == [*map(type, shape.literals)]
            and not assembles_result(key)
            and not stores_chunk(program.functions)
        ):
            self._operands[shape.code] = operand, node  # type: ignore[index]

    def _function(self, function: Any) -> int:
        if type(function) in _UNIQUE or type(function) is np.ufunc:
            return id(function)
        known = self._functions.get(id(function))
        if known is None:
            known = self._functions[id(function)] = function, id(self._same_function(function))
        return known[1]

    def _task(self, node: Task, shape: TaskShape) -> _Code | None:
        if node.func is _execute_subgraph:
            return None
        function = self._function(node.func)
        if not node.kwargs:
            return self._call(function, node.args, shape)
        return self._call((function, *node.kwargs), (*node.args, *node.kwargs.values()), shape)

    def _call(self, head: Any, arguments: Iterable[Any], shape: TaskShape) -> _Code | None:
        inputs, literal_types = shape.inputs, self._literal_types
        codes = [head]
        for argument in arguments:
            kind = type(argument)
            if kind is TaskRef:
                codes.append(inputs.setdefault(argument.key, len(inputs)))
            elif kind in literal_types:
                shape.literals.append(argument)
                codes.append(_LITERAL)
            else:
                code = self._other(argument, kind, shape)
                if code is None:
                    return None
                codes.append(code)
        return tuple(codes)

    def _other(self, argument: Any, kind: type, shape: TaskShape) -> _Code | None:
        if kind is Alias:
            return shape.inputs.setdefault(argument.target, len(shape.inputs))
        if kind is Task:
            return self._task(argument, shape)
        if kind in _CONTAINERS:
            return self._call(kind, argument.args, shape)
        if kind is DataNode:
            argument = argument.value
        if not self._stays_literal(argument):
            return None
        shape.literals.append(argument)
        return _LITERAL

    def _legacy(self, task: tuple[Any, ...], shape: TaskShape) -> _Code | None:
        codes = self._legacy_arguments(task[1:], shape)
        return None if None in codes else (self._function(task[0]), *codes)

    def _legacy_arguments(self, arguments: Iterable[Any], shape: TaskShape) -> list[_Code | None]:
        inputs, has_block, codes = shape.inputs, self._has_block, list[_Code | None]()
        for argument in arguments:
            # Most are blocks of layers.
            if type(argument) is tuple and argument and type(argument[0]) is str:
                is_block = has_block.get(argument[0])
                if (is_block is not None and is_block(argument)) or argument in self._known_keys:
                    codes.append(inputs.setdefault(argument, len(inputs)))
                    continue
            codes.append(self._legacy_argument(argument, shape))
        return codes

    def _legacy_argument(self, argument: Any, shape: TaskShape) -> _Code | None:
        kind = type(argument)
        if kind is list:
            codes = self._legacy_arguments(argument, shape)
            # A list of literals alone is copied.
            return (list, *codes) if codes and None not in codes and _LITERAL not in codes else None
        if kind is tuple:
            if argument and callable(argument[0]):
                return self._legacy(argument, shape)
        elif kind not in PLAIN:
            return None
        if (kind is tuple or kind in MAY_BE_KEYS) and self.is_key(argument):
            return shape.inputs.setdefault(argument, len(shape.inputs))
        if kind is tuple and not all(map(self.is_literal, argument)):
            return None
        shape.literals.append(argument)
        return _LITERAL

    def is_key(self, value: Any) -> bool:
        """Return whether a legacy task may mean a value as a key."""
        if slice.__hash__ is None and type(value) is tuple and slice in map(type, value):
            # As below, without the exception: indices are frequent.
            return False
        try:
            return value in self._known_keys
        except TypeError:
            # Unhashable values, such as slices and lists, cannot be parts of a key.
            return False

    def is_literal(self, value: Any) -> bool:
        """Return whether an element of a legacy container certainly holds neither keys nor tasks."""
        kind = type(value)
        if kind is tuple:
            if (value and callable(value[0])) or self.is_key(value):
                return False
            return all(map(self.is_literal, value))
        return kind in PLAIN and not (kind in MAY_BE_KEYS and value in self._known_keys)
