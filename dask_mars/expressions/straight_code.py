"""Finds functions of the user's that only calculate with arrays, so that tracing them sees all that they do.

Such a function has no effects, handles no exceptions, and refers to nothing but NumPy, numbers, arrays and other
such functions. It cannot tell arrays from stand-ins, and calling it twice changes nothing.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from dask_mars.graph.callables import look_up

#: Maximum size of the code in bytes, and maximum depth of calls.
_MOST_BYTES = 2000
_DEPTH = 4
#: Instructions that only calculate, by how their names begin, in Python 3.11 to 3.14.
_CALCULATING = (
    ("BINARY_", "BUILD_SLICE", "BUILD_TUPLE", "CACHE", "CALL", "COMPARE_OP", "COPY", "END_FOR", "EXTENDED_ARG")
    + ("FOR_ITER", "GET_ITER", "JUMP_", "KW_NAMES", "LOAD_ATTR", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST")
    + ("LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SMALL_INT", "NOP", "NOT_TAKEN", "POP_ITER", "POP_JUMP_", "POP_TOP")
    + ("PRECALL", "PUSH_NULL", "RESUME", "RETURN_CONST", "RETURN_VALUE", "STORE_FAST", "STORE_SLICE")
    + ("STORE_SUBSCR", "SWAP", "TO_BOOL", "UNARY_", "UNPACK_SEQUENCE")
)
_REFUSED = ("CALL_FUNCTION_EX", "CALL_INTRINSIC")
#: Flags of code with `*args` or `**kwargs`, and of generators and coroutines.
_REFUSED_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x200
#: Functions of NumPy that return a new array, or a number, and others that may return a view. The shape and dtype
#: of a result depend only on those of the arguments.
MAKING = frozenset(
    {"all", "amax", "amin", "any", "clip", "copy", "cumprod", "cumsum", "empty_like", "full_like", "max", "mean"}
    | {"min", "ones_like", "prod", "roll", "std", "sum", "var", "where", "zeros_like"}
)
VIEWING = frozenset({"diff", "expand_dims", "flip", "reshape", "round", "squeeze"})
_TYPES = frozenset({"bool_", "complex64", "complex128", "float16", "float32", "float64"}) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
#: Names of arrays' attributes, and of NumPy's numbers, that a function may use.
_ATTRIBUTES = frozenset({"astype", "dtype", "e", "inf", "nan", "ndim", "newaxis", "pi", "shape", "size"})
#: NumPy's own functions and types by name. Programs may put others in their place.
_OWN = {
    name: value
    for name, value in vars(np).items()
    if type(value) is np.ufunc
    or name in _TYPES | _ATTRIBUTES
    or (name in MAKING | VIEWING and type(value).__name__ == "_ArrayFunctionDispatcher")
}
#: Names of NumPy's module and arrays that a function may use.
_NAMES = _ATTRIBUTES.union(_OWN)
#: Functions and classes that a function may refer to.
_FUNCTIONS = dict.fromkeys(
    [
        abs,
        bool,
        complex,
        enumerate,
        float,
        int,
        len,
        max,
        min,
        pow,
        range,
        slice,
        zip,
        *(getattr(np, name) for name in MAKING | VIEWING | _TYPES),
    ],
    True,
)
_PLAIN = frozenset({type(None), type(Ellipsis), bool, int, float, complex, str})
#: NumPy's classes of numbers; classes derived from them may do anything.
_NUMBERS = frozenset([np.dtype(char).type for char in "?bhilqBHILQefdgFDG"])
_MISSING = object()


class Reference(NamedTuple):
    """A value that a function refers to by a name, or that a function is made of."""

    #: A namespace or function and the name there, or the cell of a variable of an enclosing function.
    place: Any
    name: str | None
    value: Any
    #: Shape, dtype and strides of an array, all of which may be assigned.
    layout: Any

    def holds(self) -> bool:
        """Return whether the name still refers to the value."""
        value = self.value
        return _found(self.place, self.name) is value and (self.layout is None or _layout(value) == self.layout)


class StraightCode:
    """A function that only calculates with arrays; raises `NotStraight` for others."""

    def __init__(self, function: FunctionType, depth: int = _DEPTH) -> None:
        code = function.__code__
        is_short = depth and len(code.co_code) <= _MOST_BYTES
        if not is_short or code.co_flags & _REFUSED_FLAGS or code.co_exceptiontable:
            raise NotStraight
        if type(function.__globals__) is not dict or getattr(function, "__builtins__", None) is not vars(builtins):
            raise NotStraight
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if not all(map(is_constant, defaults)):
            raise NotStraight
        self._function = function
        self._own = list(_references(function))
        self._inner = {
            id(each.value): StraightCode(each.value, depth - 1)
            for each in self._own
            if type(each.value) is FunctionType
        }
        if not all(id(each.value) in self._inner or _is_usable(each.value) for each in self._own):
            raise NotStraight
        #: All that it and the functions that it calls refer to, and consist of.
        references = [*self._own, *_definition(function), *_of_numpy(code)]
        for inner in self._inner.values():
            references += inner._references
        self._references: list[Reference] = list(
            {(id(each.place), each.name): each for each in references}.values()
        )
        if not self.holds():
            raise NotStraight

    def holds(self) -> bool:
        """Return whether the function is the same, and all names refer to the same values."""
        return all(map(Reference.holds, self._references))

    def with_arrays(self, wrap: Callable[[np.ndarray], Any]) -> FunctionType:
        """Return a copy of the function that refers to something else in place of each array."""
        changed: dict[Any, Any] = {}
        for place, name, value, _ in self._own:
            if id(value) in self._inner:
                value = self._inner[id(value)].with_arrays(wrap)
            elif type(value) is np.ndarray:
                value = wrap(value)
            changed[name or id(place)] = value
        function = self._function
        cells = tuple([CellType(changed[id(cell)]) for cell in function.__closure__ or ()])
        names = {name: value for name, value in changed.items() if type(name) is str}
        # Warnings of its lines are errors: `warnings` raises for such a registry.
        names["__warningregistry__"] = 0
        copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
        copied.__kwdefaults__ = function.__kwdefaults__
        return copied


class NotStraight(Exception):
    """The function may do more than calculate with arrays."""


def is_constant(value: Any) -> bool:
    """Return whether a value is plain data that nothing can change."""
    kind = type(value)
    if kind is tuple:
        return all(map(is_constant, value))
    if kind is slice:
        return all(map(is_constant, (value.start, value.stop, value.step)))
    is_plain_dtype = issubclass(kind, np.dtype) and value.type in _NUMBERS and value.metadata is None
    return kind in _PLAIN or kind in _NUMBERS or is_plain_dtype


def _references(function: FunctionType) -> Iterator[Reference]:
    code = function.__code__
    for instruction in dis.get_instructions(code):
        kind, argument = instruction.opname, instruction.argval
        if kind.startswith(_REFUSED) or not kind.startswith(_CALCULATING):
            raise NotStraight
        if kind in ("LOAD_ATTR", "LOAD_METHOD") and argument not in _NAMES:
            raise NotStraight
        if kind == "LOAD_GLOBAL":
            yield _reference(function.__globals__, argument)
    for cell in function.__closure__ or ():
        yield _reference(cell, None)


def _definition(function: FunctionType) -> Iterator[Reference]:
    """Return references to what a function consists of."""
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        yield _reference(function, name)
    for name in function.__kwdefaults__ or ():
        yield _reference(function.__kwdefaults__, name)


def _of_numpy(code: CodeType) -> list[Reference]:
    """Return references to what the names of attributes in a function's code stand for in NumPy."""
    return [Reference(vars(np), name, _OWN[name], None) for name in code.co_names if name in _OWN]


def _reference(place: Any, name: str | None) -> Reference:
    value = _found(place, name)
    return Reference(place, name, value, _layout(value))


def _layout(value: Any) -> Any:
    return (value.shape, value.dtype, value.strides) if type(value) is np.ndarray else None


def _found(place: Any, name: str | None) -> Any:
    """Return what a name refers to, or a cell holds."""
    if type(place) is dict:
        return place[name] if name in place else getattr(builtins, str(name), _MISSING)
    try:
        return place.cell_contents if name is None else getattr(place, name)
    except ValueError:
        return _MISSING


def _is_usable(value: Any) -> bool:
    """Return whether a function may refer to a value."""
    if value is np:
        return True
    if type(value) is np.ufunc:
        # Those of objects call functions of Python's.
        return not all("O" in types for types in value.types)
    if type(value) is np.ndarray:
        return value.dtype.kind in "biufc"
    return look_up(_FUNCTIONS, value, False) or is_constant(value)
