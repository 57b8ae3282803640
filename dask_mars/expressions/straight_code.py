"""Finds functions of the user's that only calculate with arrays, so that tracing them sees all that they do.

Such a function has no effects, handles no exceptions, and refers to nothing but NumPy, numbers, arrays and other
such functions. It cannot tell arrays from stand-ins, and calling it twice changes nothing.
"""

from __future__ import annotations

import builtins
import dis
import inspect
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from dask_mars.graph.callables import look_up

#: Maximum size of a function's bytecode, in bytes.
_MOST_BYTES = 2000
#: Maximum depth of calls of functions by functions.
_DEPTH = 4
#: Prefixes of the names of instructions that only calculate, in Python 3.11 to 3.14.
_CALCULATING = (
    ("BINARY_", "BUILD_SLICE", "BUILD_STRING", "BUILD_TUPLE", "CACHE", "CALL", "COMPARE_OP", "CONTAINS_OP")
    + ("CONVERT_VALUE", "COPY", "DELETE_FAST", "END_FOR", "EXTENDED_ARG", "FORMAT_", "FOR_ITER", "GET_ITER")
    + ("JUMP_", "KW_NAMES", "LOAD_ASSERTION_ERROR", "LOAD_ATTR", "LOAD_COMMON_CONSTANT", "LOAD_CONST")
    + ("LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SMALL_INT", "NOP", "NOT_TAKEN")
    + ("POP_ITER", "POP_JUMP_", "POP_TOP", "PRECALL", "PUSH_NULL", "RAISE_VARARGS", "RESUME", "RETURN_CONST")
    + ("RETURN_VALUE", "STORE_FAST", "STORE_SLICE", "STORE_SUBSCR", "SWAP", "TO_BOOL", "UNARY_")
    + ("UNPACK_SEQUENCE",)
    # Of `with` statements; the handlers of `try` statements have others, too.
    + ("BEFORE_WITH", "LOAD_SPECIAL", "POP_EXCEPT", "PUSH_EXC_INFO", "RERAISE", "WITH_EXCEPT_START")
)
#: Exceptions to these prefixes: calls with `*args`, and the interpreter's internal functions.
_REFUSED = ("CALL_FUNCTION_EX", "CALL_INTRINSIC")
#: Arguments of `numpy.errstate` by which steps of numbers would have effects in each call.
_TELLING = frozenset({"call", "log", "print"})
_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: NumPy functions that return a new array or a number, whose shape and dtype do not depend on values of elements.
MAKING = frozenset(
    {"all", "amax", "amin", "any", "clip", "copy", "cumprod", "cumsum", "empty_like", "full_like", "max", "mean"}
    | {"min", "ones_like", "prod", "roll", "std", "sum", "var", "where", "zeros_like"}
)
#: Others that may return a view of their argument.
VIEWING = frozenset({"diff", "expand_dims", "flip", "reshape", "round", "squeeze"})
_TYPES = frozenset({"bool_", "complex64", "complex128", "float16", "float32", "float64"}) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
#: Attributes of arrays, constants and context manager of NumPy that a function may use.
_ATTRIBUTES = frozenset(
    {"astype", "dtype", "e", "errstate", "inf", "kind", "nan", "ndim", "newaxis", "pi", "shape", "size"}
)
#: NumPy's own functions and types by name. Programs may put others in their place.
_NUMPY = {
    name: value
    for name, value in vars(np).items()
    if type(value) is np.ufunc
    or name in _TYPES | _ATTRIBUTES
    or (name in MAKING | VIEWING and type(value).__name__ == "_ArrayFunctionDispatcher")
}
#: Names after a dot that a function may use.
_NAMES = _ATTRIBUTES.union(_NUMPY)
#: Functions and classes that a function may refer to, besides ufuncs.
_FUNCTIONS = dict.fromkeys(
    [abs, bool, complex, enumerate, float, int, len, max, min, np.errstate, pow, range, slice, zip]
    + [IndexError, NotImplementedError, RuntimeError, TypeError, ValueError]
    + [getattr(np, name) for name in MAKING | VIEWING | _TYPES],
    True,
)
_PLAIN = frozenset({type(None), type(Ellipsis), bool, int, float, complex, str})
#: NumPy's scalar types. Subclasses are left out, since their operators may do anything.
_NUMBERS = frozenset([np.dtype(char).type for char in "?bhilqBHILQefdgFDG"])
_MISSING = object()


class Reference(NamedTuple):
    """A value that a function depends on, and where it was found."""

    #: A namespace, a function, or the cell of a variable of an enclosing function.
    place: Any
    #: The key in the namespace or the function's attribute; None for a cell.
    name: str | None
    value: Any
    #: Shape, dtype and strides of an array, which may change in place; None for other values.
    layout: Any

    def holds(self) -> bool:
        """Return whether the name still refers to the value."""
        value = self.value
        is_same = _current_value(self.place, self.name) is value
        return is_same and (self.layout is None or _layout(value) == self.layout)


class StraightCode:
    """A function that only calculates with arrays; raises `NotStraight` for others."""

    def __init__(self, function: FunctionType, depth: int = _DEPTH) -> None:
        code = function.__code__
        if not depth or len(code.co_code) > _MOST_BYTES:
            raise NotStraight
        if code.co_flags & (_VARIADIC | _SUSPENDABLE) or not _TELLING.isdisjoint(code.co_consts):
            raise NotStraight
        if type(function.__globals__) is not dict or getattr(function, "__builtins__", None) is not vars(builtins):
            raise NotStraight
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if not all(map(is_constant, defaults)):
            raise NotStraight
        self._function = function
        #: References to globals and to variables of enclosing functions.
        self._names = list(_references(function))
        #: The functions among their values, by id.
        self._inner = {
            id(each.value): StraightCode(each.value, depth - 1)
            for each in self._names
            if type(each.value) is FunctionType
        }
        if not all(id(each.value) in self._inner or _is_usable(each.value) for each in self._names):
            raise NotStraight
        references = [*self._names, *_definition(function), *_of_numpy(code)]
        for inner in self._inner.values():
            references += inner._references
        #: All references of the function and of those that it calls.
        self._references: list[Reference] = list(
            {(id(each.place), each.name): each for each in references}.values()
        )
        # The program may have replaced a name of NumPy's before.
        if not self.holds():
            raise NotStraight

    def holds(self) -> bool:
        """Return whether the function is the same, and all names refer to the same values."""
        return all(map(Reference.holds, self._references))

    def with_arrays(self, wrap: Callable[[np.ndarray], Any]) -> FunctionType:
        """Return a copy of the function that refers to `wrap(array)` in place of each array."""
        # By name for globals, by id for cells.
        changed: dict[Any, Any] = {}
        for place, name, value, _ in self._names:
            if id(value) in self._inner:
                value = self._inner[id(value)].with_arrays(wrap)
            elif type(value) is np.ndarray:
                value = wrap(value)
            changed[name or id(place)] = value
        function = self._function
        cells = tuple([CellType(changed[id(cell)]) for cell in function.__closure__ or ()])
        names = {name: value for name, value in changed.items() if type(name) is str}
        # `warnings.warn` raises if this is not a dict, so that a warning ends the recording.
        names["__warningregistry__"] = 0
        copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
        copied.__kwdefaults__ = function.__kwdefaults__
        return copied


class NotStraight(Exception):
    """The function may do more than calculate with arrays."""


def is_constant(value: Any) -> bool:
    """Return whether a value is immutable plain data."""
    kind = type(value)
    if kind is tuple:
        return all(map(is_constant, value))
    if kind is slice:
        return all(map(is_constant, (value.start, value.stop, value.step)))
    is_plain_dtype = issubclass(kind, np.dtype) and value.type in _NUMBERS and value.metadata is None
    return kind in _PLAIN or kind in _NUMBERS or is_plain_dtype


def _references(function: FunctionType) -> Iterator[Reference]:
    """Yield references to a function's globals and cells; raise `NotStraight` for other code."""
    code, before = function.__code__, ""
    for instruction in dis.get_instructions(code):
        kind, argument = instruction.opname, instruction.argval
        if kind.startswith(_REFUSED) or not kind.startswith(_CALCULATING):
            raise NotStraight
        if before == "PUSH_EXC_INFO" and kind != "WITH_EXCEPT_START":
            # A `try` statement.
            raise NotStraight
        before = kind
        if kind in ("LOAD_ATTR", "LOAD_METHOD") and argument not in _NAMES:
            raise NotStraight
        if kind == "LOAD_GLOBAL":
            yield _reference(function.__globals__, argument)
    for cell in function.__closure__ or ():
        yield _reference(cell, None)


def _definition(function: FunctionType) -> Iterator[Reference]:
    """Yield references to a function's code and defaults, which programs may assign."""
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        yield _reference(function, name)
    for name in function.__kwdefaults__ or ():
        yield _reference(function.__kwdefaults__, name)


def _of_numpy(code: CodeType) -> list[Reference]:
    """Return references to the values in NumPy of all names in a function's code."""
    return [Reference(vars(np), name, _NUMPY[name], None) for name in code.co_names if name in _NUMPY]


def _reference(place: Any, name: str | None) -> Reference:
    value = _current_value(place, name)
    return Reference(place, name, value, _layout(value))


def _layout(value: Any) -> Any:
    return (value.shape, value.dtype, value.strides) if type(value) is np.ndarray else None


def _current_value(place: Any, name: str | None) -> Any:
    """Return the value of a name in a place, or of a cell."""
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
        # Ufuncs of objects alone, such as those of `numpy.frompyfunc`, call Python functions.
        return not all("O" in types for types in value.types)
    if type(value) is np.ndarray:
        return value.dtype.kind in "biufc"
    return look_up(_FUNCTIONS, value, False) or is_constant(value)
