"""Finds functions of the user's that only calculate with arrays, so that tracing them sees all that they do.

Such a function has no effects, handles no exceptions, and refers to nothing but NumPy, numbers, arrays and other
such functions. It cannot tell arrays from stand-ins, and calling it twice changes nothing.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from dask_mars.graph.callables import look_up

#: Maximum size of the code in bytes, and maximum depth of calls.
_MOST_BYTES = 2000
_DEPTH = 4
#: Instructions that only calculate, by how their names begin, in Python 3.11 to 3.14.
_CALCULATING = (
    ("BINARY_", "BUILD_SLICE", "BUILD_TUPLE", "CACHE", "CALL", "COMPARE_OP", "COPY", "END_FOR", "EXTENDED_ARG")
    + ("FOR_ITER", "GET_ITER", "IS_OP", "JUMP_", "KW_NAMES", "LOAD_ATTR", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST")
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
#: Names of NumPy's module and arrays that a function may use.
_NAMES = (
    MAKING
    | VIEWING
    | _TYPES
    | {name for name, value in vars(np).items() if type(value) is np.ufunc}
    | {"astype", "dtype", "e", "inf", "nan", "ndim", "newaxis", "pi", "shape", "size"}
)
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


class Reference(NamedTuple):
    """A value that a function refers to by a name."""

    #: The namespace and the name there, or the cell of a variable of an enclosing function.
    place: Any
    name: str | None
    value: Any

    def holds(self) -> bool:
        """Return whether the name still refers to the value."""
        return _found(self.place, self.name) is self.value


class StraightCode:
    """A function that only calculates with arrays; raises `NotStraight` for others."""

    def __init__(self, function: FunctionType, depth: int = _DEPTH) -> None:
        code = function.__code__
        is_short = depth and len(code.co_code) <= _MOST_BYTES
        if not is_short or code.co_flags & _REFUSED_FLAGS or code.co_exceptiontable:
            raise NotStraight
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if not all(map(is_constant, defaults)):
            raise NotStraight
        self._function = function
        self._own = list(_references(function))
        self._inner = {
            id(value): StraightCode(value, depth - 1) for *_, value in self._own if type(value) is FunctionType
        }
        if not all(id(value) in self._inner or _is_usable(value) for *_, value in self._own):
            raise NotStraight
        #: All that it and the functions that it calls refer to.
        self.references: list[Reference] = self._own + [
            each for inner in self._inner.values() for each in inner.references
        ]

    def with_arrays(self, wrap: Callable[[np.ndarray], Any]) -> FunctionType:
        """Return a copy of the function that refers to something else in place of each array."""
        changed: dict[Any, Any] = {}
        for place, name, value in self._own:
            if id(value) in self._inner:
                value = self._inner[id(value)].with_arrays(wrap)
            elif type(value) is np.ndarray:
                value = wrap(value)
            changed[name or id(place)] = value
        function = self._function
        cells = tuple([CellType(changed[id(cell)]) for cell in function.__closure__ or ()])
        names = {name: value for name, value in changed.items() if type(name) is str}
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
    is_number = issubclass(kind, np.generic) and value.dtype.kind in "biufc"
    return kind in _PLAIN or is_number or issubclass(kind, np.dtype)


def _references(function: FunctionType) -> Iterator[Reference]:
    code = function.__code__
    for instruction in dis.get_instructions(code):
        kind, argument = instruction.opname, instruction.argval
        if kind.startswith(_REFUSED) or not kind.startswith(_CALCULATING):
            raise NotStraight
        if kind in ("LOAD_ATTR", "LOAD_METHOD") and argument not in _NAMES:
            raise NotStraight
        if kind == "LOAD_GLOBAL":
            yield Reference(function.__globals__, argument, _found(function.__globals__, argument))
    for cell in function.__closure__ or ():
        yield Reference(cell, None, _found(cell, None))


def _found(place: Any, name: str | None) -> Any:
    """Return what a name refers to, or a cell holds."""
    try:
        if name is None:
            return place.cell_contents
        return place[name] if name in place else getattr(builtins, name)
    except (AttributeError, ValueError):
        raise NotStraight from None


def _is_usable(value: Any) -> bool:
    """Return whether a function may refer to a value."""
    if value is np or type(value) is np.ufunc:
        return True
    if type(value) is np.ndarray:
        return value.dtype.kind in "biufc"
    return look_up(_FUNCTIONS, value, False) or is_constant(value)
