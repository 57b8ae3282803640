"""Records the steps of a function that is called with stand-ins for its arrays, as in JAX."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dask_mars.dask_api.arrays import astype
from dask_mars.expressions import functions
from dask_mars.expressions.functions import Unsupported
from dask_mars.expressions.planning import argument_type, in_c_order, is_supported
from dask_mars.expressions.straight_code import MAKING, VIEWING, is_constant
from dask_mars.graph.chunks import Operand, Step

#: Maximum number of steps of a function.
_MOST_STEPS = 200
#: NumPy's state of floating point errors while a function is recorded, unless it sets another.
RECORDING: Literal["log"] = "log"
#: `warnings.warn` raises if this is not a dict, so that a warning of NumPy's ends the recording or the run.
__warningregistry__ = 0


class RaisesErrors:
    """Handler of floating point errors in steps of numbers, which end a recording."""

    def write(self, text: str) -> None:
        """Raise the error."""
        raise FloatingPointError(text)


class _Untraceable(Exception):
    """The function does something that a program cannot repeat exactly."""


class _Recorded(NamedTuple):
    """A recorded step."""

    function: Any
    #: For each argument: "input", "literal" or "step", and its number.
    arguments: list[tuple[str, int]]
    keywords: tuple[str, ...]


class Trace:
    """The steps of a function, as they are recorded."""

    def __init__(self) -> None:
        self._inputs: list[np.ndarray] = []
        self.literals: list[Any] = []
        self._steps: list[_Recorded] = []
        #: Kinds of floating point errors that the function ignores; None before the first step that may have any.
        self.ignored_errors: frozenset[str] | None = None

    def input(self, array: np.ndarray) -> StandIn:
        """Return a stand-in for an argument."""
        self._inputs.append(_ordered(array))
        return StandIn(self, ("input", len(self._inputs) - 1), array, False)

    def literal(self, array: np.ndarray) -> StandIn:
        """Return a stand-in for an array that the function refers to."""
        self.literals.append(_ordered(array))
        return StandIn(self, ("literal", len(self.literals) - 1), array, False)

    def step(
        self, function: Any, arguments: Sequence[Any], result: Any, is_new: bool, keywords: tuple[str, ...] = ()
    ) -> StandIn:
        """Record a step; only shape and dtype of the result matter."""
        is_array = type(result) is np.ndarray or issubclass(type(result), np.generic)
        if not is_array or not is_known(result.dtype) or len(self._steps) == _MOST_STEPS:
            raise _Untraceable
        if type(result) is np.ndarray:
            _ordered(result)
        if not _is_without_errors(function, arguments, result.dtype):
            ignored = _ignored_errors()
            if ignored != (ignored if self.ignored_errors is None else self.ignored_errors):
                # A program ignores the same errors in all steps.
                raise _Untraceable
            self.ignored_errors = ignored
        self._steps.append(_Recorded(function, [self._place(argument) for argument in arguments], keywords))
        return StandIn(self, ("step", len(self._steps) - 1), result, is_new)

    def elementwise(self, function: Any, arguments: Sequence[Any], keywords: tuple[str, ...] = ()) -> StandIn:
        """Record a step that works element by element; raise `Unsupported` if it is not known as one."""
        arrays = [_array(argument) for argument in arguments]
        if not any(map(np.ndim, arrays)):
            # Regions leave numbers to NumPy: they do not recognise the function within `partial`.
            with np.errstate(all="ignore"):
                result = function(*arrays)
            if type(function) is np.ufunc and _operators_differ(*arrays, result):
                raise _Untraceable
            return self.step(partial(function), arguments, result, True)
        known = functions.elementwise(function, keywords)
        if known is None:
            raise Unsupported
        dtype = known.bind(list(map(argument_type, arrays)), arrays).dtype
        shape = np.broadcast_shapes(*map(np.shape, arrays))
        return self.step(function, arguments, np.broadcast_to(np.ones((), dtype), shape), True, keywords)

    def operand(self, result: Any) -> Operand | None:
        """Return an operand that computes the result, or None if the result is not that of all steps."""
        if type(result) is tuple and all(type(each) is StandIn for each in result):
            result = self.step(_packed, result, result[0].array, False)
        if type(result) is not StandIn or result.place != ("step", len(self._steps) - 1):
            return None
        used = {result.place}
        for number, step in reversed(list(enumerate(self._steps))):
            if ("step", number) not in used:
                # Steps that the result does not need may still warn.
                return None
            used.update(step.arguments)
        before = len(self._inputs) + len(self.literals)
        first = {"input": 0, "literal": len(self._inputs), "step": before}
        steps = [
            Step(number, tuple([first[kind] + at for kind, at in step.arguments]), step.keywords)
            for number, step in enumerate(self._steps)
        ]
        called = tuple([step.function for step in self._steps])
        return Operand("traced", called, tuple(steps), len(self._inputs), len(self.literals))

    def _place(self, argument: Any) -> tuple[str, int]:
        """Return the place of a stand-in, or of a constant, which becomes a literal."""
        if type(argument) is StandIn:
            argument.is_read = True
            return argument.place
        if not is_constant(argument):
            raise _Untraceable
        self.literals.append(argument)
        return "literal", len(self.literals) - 1


class StandIn(NDArrayOperatorsMixin):
    """Stands for an array or a NumPy scalar, and records the operations on it."""

    def __init__(self, trace: Trace, place: tuple[str, int], array: Any, is_new: bool) -> None:
        self._trace = trace
        #: The input, literal or step that it stands for: "input", "literal" or "step", and its number.
        self.place = place
        #: An array or scalar of its shape and dtype. Elements of steps' results may be arbitrary.
        self.array = array
        #: Whether the function made the array, so that nothing else sees what it writes there.
        self._is_new = is_new
        #: Whether a step reads it, and whether it has views.
        self.is_read = False
        self._is_viewed = False

    # NumPy's protocols for arrays of other libraries.

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> StandIn:
        """Record a call of a ufunc, which may write into an array of the function's."""
        (target,) = keywords.pop("out", (None,))
        if method != "__call__" or keywords:
            raise _Untraceable
        result = self._trace.elementwise(ufunc, inputs)
        if target is None or not isinstance(target.array, np.ndarray):
            # Scalars are immutable: `number += 1` makes another.
            return result
        return target._replaced(result)  # type: ignore[no-any-return]

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Record a call of a NumPy function."""
        name = function.__name__
        if name not in MAKING | VIEWING or len(args) > 3:
            raise _Untraceable
        if function in (np.where, np.clip):
            if not keywords and len(args) == 3:
                with suppress(Unsupported):
                    return self._trace.elementwise(function, args)
        elif any(type(argument) is StandIn for argument in args[1:]):
            raise _Untraceable
        return self._record_call(partial(function, **keywords), args, keywords, name in MAKING)

    def __array__(self, *args: Any, **keywords: Any) -> Any:
        """Refuse a conversion to an array, on which operations would not be recorded."""
        raise _Untraceable

    # Methods and attributes of arrays.

    def __repr__(self) -> str:
        raise _Untraceable

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the array's shape."""
        return self.array.shape  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """Return the number of its dimensions."""
        return self.array.ndim  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """Return the number of its elements."""
        return self.array.size  # type: ignore[no-any-return]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return its dtype."""
        return self.array.dtype  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        """Return a method that is recorded when it is called."""
        if name not in MAKING | VIEWING or not hasattr(self.array, name):
            raise _Untraceable
        return partial(self._method, name)

    def _method(self, name: str, *args: Any, **keywords: Any) -> StandIn:
        if name == "clip" and not keywords and len(args) == 2:
            with suppress(Unsupported):
                return self._trace.elementwise(np.clip, (self, *args))
        if not all(map(is_constant, args)) or len(args) > 2:
            raise _Untraceable
        if name == "copy" and not args and not keywords:
            return self._record_call(copied, (self,), {}, True)
        called = operator.methodcaller(name, *args, **keywords)
        return self._record_call(called, (self,), {**keywords, "args": args}, name in MAKING)

    def astype(self, dtype: Any) -> StandIn:
        """Record a cast."""
        if self.dtype.kind == "c" and np.dtype(dtype).kind not in "bc":
            # Casts that drop imaginary parts warn.
            raise _Untraceable
        return self._trace.elementwise(astype, (self, np.dtype(dtype)), ("astype_dtype",))

    def __len__(self) -> int:
        return len(self.array)

    def __bool__(self) -> bool:
        raise _Untraceable

    def __iter__(self) -> Any:
        raise _Untraceable

    def __pow__(self, other: Any) -> StandIn:
        return self._trace.elementwise(operator.pow, (self, other))

    def __rpow__(self, other: Any) -> StandIn:
        return self._trace.elementwise(operator.pow, (other, self))

    def __ipow__(self, other: Any) -> StandIn:
        raise _Untraceable

    def __getitem__(self, index: Any) -> StandIn:
        if not _is_basic(index):
            raise _Untraceable
        self._is_viewed = True
        return self._trace.step(operator.getitem, (self, index), self.array[index], False)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is StandIn:
            if index.dtype != bool or index.shape != self.shape or type(value) not in (bool, int, float):
                raise _Untraceable
            self._replaced(self._trace.elementwise(np.where, (index, value, self)))
            return
        # The step writes into the array itself, so earlier steps must not have read it.
        number = _array(value)
        if not _is_basic(index) or self.is_read or (np.iscomplexobj(number) and self.dtype.kind != "c"):
            raise _Untraceable
        self._replaced(self._trace.step(assigned, (self, index, value), self.array, True))

    def _record_call(
        self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], is_new: bool
    ) -> StandIn:
        """Call a function that regions do not know, to find its result's shape and dtype, and record the call."""
        arrays = [argument.array for argument in args if type(argument) is StandIn]
        fewest = min([length for array in arrays for length in array.shape], default=1)
        degrees = keywords.get("ddof", 0)
        constants = [argument for argument in (*args, *keywords.values()) if type(argument) is not StandIn]
        if not all(map(is_constant, keywords.values())) or type(degrees) is not int or degrees >= fewest:
            # Means of no elements warn.
            raise _Untraceable
        if any(map(np.iscomplexobj, [*arrays, *constants])) and not all(map(_is_axis_or_flag, constants)):
            # Casts of complex numbers may warn.
            raise _Untraceable
        for argument in () if is_new else args:
            if type(argument) is StandIn:
                argument._is_viewed = True
        with np.errstate(all="ignore"):
            result = function(*map(_array, args))
        return self._trace.step(function, args, result, is_new)

    def _replaced(self, result: StandIn) -> StandIn:
        """Let the stand-in stand for the result of a step that wrote into its array."""
        # Results of ufuncs without dimensions are scalars, not arrays.
        same = result.shape == self.shape != () and result.dtype == self.dtype
        if not (same and self._is_new and not self._is_viewed):
            raise _Untraceable
        self.place, self.is_read = result.place, False
        return self


def _is_without_errors(function: Any, arguments: Sequence[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether a step has no floating point errors."""
    if function is not np.where:
        return function in _WITHOUT_ERRORS
    _, *values = arguments
    arrays = [value.dtype for value in values if type(value) is StandIn]
    with suppress(ArithmeticError), np.errstate(all="raise"):
        np.array([value for value in values if type(value) is not StandIn]).astype(dtype)
        return all(each == dtype for each in arrays)
    return False


def _ignored_errors() -> frozenset[str]:
    """Return the kinds of floating point errors that the recorded function ignores; raise if it handles others."""
    handled = np.geterr()
    if not {*handled.values()} <= {RECORDING, "ignore"}:
        raise _Untraceable
    return frozenset([kind for kind, how in handled.items() if how == "ignore"])


def _ordered(array: np.ndarray) -> np.ndarray:
    """Return the array, or raise if it is not in C order."""
    # In other orders, the order of NumPy's results depends on which temporary arrays it reuses.
    if not in_c_order(array):
        raise _Untraceable
    return array


def is_known(dtype: np.dtype[Any]) -> bool:
    """Return whether regions support a dtype, and their results have all of it."""
    return is_supported(dtype) and dtype.metadata is None


def _operators_differ(*values: Any) -> bool:
    """Return whether operators of such scalars warn or round in another way than their ufuncs."""
    *numbers, result = [np.result_type(value) for value in values]
    return result.kind in "iuc" or any(number.char in "egFDG" for number in numbers)


def _array(argument: Any) -> Any:
    """Return the array that a stand-in stands for; other arguments unchanged."""
    return argument.array if type(argument) is StandIn else argument


def _is_basic(index: Any) -> bool:
    """Return whether an index has no arrays, lists or stand-ins, and so selects a view or a scalar."""
    if type(index) is tuple:
        return all(map(_is_basic, index))
    if type(index) is slice:
        return is_constant(index)
    return index is None or index is Ellipsis or type(index) is int


def _is_axis_or_flag(value: Any) -> bool:
    """Return whether an argument can only be an axis, a shape or a flag."""
    if type(value) is tuple:
        return all(map(_is_axis_or_flag, value))
    return value is None or type(value) in (int, bool)


def assigned(array: np.ndarray, index: Any, value: Any) -> np.ndarray:
    """Write a value into a part of an array, and return the array."""
    array[index] = value
    return array


def copied(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array."""
    return array.copy()


def _packed(*results: Any) -> tuple[Any, ...]:
    """Return several results as one step's."""
    return results


#: Functions of steps that have no floating point errors.
_WITHOUT_ERRORS = frozenset({operator.getitem, copied, np.isfinite, np.isinf, np.isnan, _packed}) | {
    np.bitwise_and,
    np.bitwise_or,
    np.invert,
    np.logical_and,
    np.logical_not,
    np.logical_or,
}
