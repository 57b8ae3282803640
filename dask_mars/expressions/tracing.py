"""Functions of the user's as programs, whose chains of elementwise steps run block by block, without temporaries.

The programs it serves: ``x.map_overlap(lambda b: b[2:] - 2 * b[1:-1] + b[:-2], depth=1)``, and `map_blocks` or
`apply_ufunc` with a formula. A function is called once for each combination of shapes and dtypes, with stand-ins
for its arrays that record what it does with them. What cannot be recorded is left to the function itself, and so
are errors and warnings.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dask_mars.dask_api.arrays import astype
from dask_mars.expressions import functions
from dask_mars.expressions.evaluate import SMALL, Joinable, Pending, RegionFunction
from dask_mars.expressions.functions import Unsupported
from dask_mars.expressions.planning import DTYPES, in_c_order
from dask_mars.expressions.rewrite import with_expressions
from dask_mars.expressions.straight_code import MAKING, VIEWING, NotStraight, StraightCode, is_constant
from dask_mars.graph.chunks import Constant, Operand, Step

#: Maximum number of recordings of a function, of steps in one, and of failures of a program.
_MOST_TRACES = 16
_MOST_STEPS = 200
_MOST_FAILURES = 2


def traced(function: FunctionType) -> Any:
    """Return a function of the user's as one that runs as a program, if it only calculates; itself otherwise."""
    try:
        return Traced(function, StraightCode(function))
    except NotStraight:
        return function


class Traced(Joinable):
    """A function of the user's that runs as a program where that gives the same."""

    def __init__(self, function: FunctionType, code: StraightCode) -> None:
        self.__name__ = function.__name__
        self._function = function
        self._code = code
        self._programs: dict[Hashable, _Program | None] = {}
        self._traces_left = _MOST_TRACES

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the function, or run its program."""
        program = self._program(args, keywords)
        result = None if program is None else program.run(_arrays(args, keywords))
        return self._function(*args, **keywords) if result is None else result

    def lazily(self, *args: Any, **keywords: Any) -> Any:
        """Return the result, or a pending one."""
        program = self._program(args, keywords)
        if program is None or not program.ends_in_chain:
            return self(*args, **keywords)
        return _PendingResult(program, _arrays(args, keywords), partial(self, *args, **keywords))

    def _program(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> _Program | None:
        """Return the program for some arguments, or None."""
        size, types = 0, list[Hashable]()
        for value in [*args, *keywords.values()]:
            if type(value) is np.ndarray and value.dtype.char in DTYPES and value.dtype.isnative:
                size = max(size, value.size)
                types.append((value.dtype, value.shape, value.strides))
            elif is_constant(value):
                # Equal numbers, such as 1 and True, or 0.0 and -0.0, may have other results.
                types.append((type(value), repr(value)))
            else:
                return None
        if size < SMALL:
            return None
        key = (*types, *keywords)
        if key not in self._programs or not all(each.holds() for each in self._code.references):
            if not self._traces_left:
                return None
            self._traces_left -= 1
            if not all(each.holds() for each in self._code.references):
                self._programs.clear()
                self._code = StraightCode(self._function)
            self._programs[key] = _trace(self._code, args, keywords)
            if not any(self._programs.values()):
                # Recording takes as long as the function's own loops.
                self._traces_left = min(self._traces_left, _MOST_FAILURES)
        return self._programs[key]


class _Program:
    """The program of a function for one combination of shapes and dtypes."""

    def __init__(self, operand: Operand, literals: tuple[Any, ...], reductions: bool, ndim: int = 0) -> None:
        #: The steps as they were recorded, and the dimensions of a function's result.
        self.operand = operand
        self.ndim = ndim
        self.literals = literals
        fast = with_expressions(operand, reductions)
        regions = [function for function in fast.functions if type(function) is RegionFunction]
        for region in regions:
            region.is_strict = True
        #: Whether there are chains of elementwise steps, and whether the result is that of one.
        self.gains = bool(regions)
        last = operand.steps[-1]
        self.ends_in_chain = functions.elementwise(operand.functions[last.function], last.keywords) is not None
        self._fast = _assigning_directly(fast)
        self._failures = 0

    def run(self, arrays: list[Any]) -> Any:
        """Return the result, or None if the function itself has to be called, for example to warn."""
        if self._failures > _MOST_FAILURES:
            return None
        errors = {kind: how if how == "ignore" else "raise" for kind, how in np.geterr().items()}
        with suppress(Exception), np.errstate(**errors):  # type: ignore[arg-type]
            return self._fast.run(arrays, self.literals)
        self._failures += 1
        return None


class _PendingResult(Pending):
    """The result of a program that has not run."""

    def __init__(self, program: _Program, arrays: list[Any], call: Callable[[], Any]) -> None:
        self.program = program
        self.arrays = arrays
        self.array = call  # type: ignore[method-assign]
        self.ndim = program.ndim

    def joined(self, region: RegionFunction, values: tuple[Any, ...]) -> Any:
        """Return the region's outputs for such values; None if the result has to be computed before."""
        programs = tuple([value.program if type(value) is _PendingResult else None for value in values])
        if programs not in region.joined:
            if len(region.joined) == _MOST_TRACES:
                return None
            region.joined[programs] = _join(region, programs)
        given = [value.arrays if type(value) is _PendingResult else [value] for value in values]
        return region.joined[programs].run(list(chain.from_iterable(given)))


def _join(region: RegionFunction, programs: Sequence[_Program | None]) -> _Program:
    """Return a program that computes the inputs of a region first, where they have programs."""
    operands = [program.operand if program is not None else None for program in programs]
    inputs = sum([1 if operand is None else operand.input_count for operand in operands])
    literals = list(chain.from_iterable(program.literals for program in programs if program is not None))
    called: list[Any] = []
    steps: list[Step] = []

    def add(operand: Operand, slots: list[int]) -> list[int]:
        """Add an operand's steps, whose first slots are given."""
        slots = slots.copy()
        for step in operand.steps:
            slots.append(inputs + len(literals) + len(steps))
            steps.append(Step(len(called), tuple([slots[slot] for slot in step.slots]), step.keywords))
            called.append(operand.functions[step.function])
        return slots

    arguments: list[int] = []
    first, literal = 0, inputs
    for operand in operands:
        if operand is None:
            arguments.append(first)
            first += 1
        else:
            ends = first + operand.input_count, literal + operand.literal_count
            arguments.append(add(operand, [*range(first, ends[0]), *range(literal, ends[1])])[-1])
            first, literal = ends
    slots = add(region.program, arguments)
    # The outputs need not be the last steps.
    results = tuple([slots[region.program.input_count + output] for output in region.outputs])
    steps.append(Step(len(called), results, ()))
    called.append(_outputs)
    return _Program(Operand("joined", tuple(called), tuple(steps), inputs, len(literals)), tuple(literals), True)


def _outputs(*results: Any) -> Any:
    return results[0] if len(results) == 1 else results


def _arrays(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    return [value for value in [*args, *keywords.values()] if type(value) is np.ndarray]


def _trace(code: StraightCode, args: tuple[Any, ...], keywords: dict[str, Any]) -> _Program | None:
    """Record what a function does with such arguments; return None if its program would gain nothing."""
    trace = _Trace()
    with suppress(Exception), np.errstate(all="ignore"):
        given = [trace.input(value) if type(value) is np.ndarray else value for value in args]
        named = {
            name: trace.input(value) if type(value) is np.ndarray else value for name, value in keywords.items()
        }
        return trace.program(code.with_arrays(trace.literal)(*given, **named))
    return None


class _Untraceable(Exception):
    """Something that cannot be recorded."""


class _Recorded(NamedTuple):
    """A step, whose arguments are inputs, literals or results of steps, by number."""

    function: Any
    arguments: list[tuple[str, int]]
    keywords: tuple[str, ...]


class _Trace:
    """The steps of a function, as they are recorded."""

    def __init__(self) -> None:
        self._inputs: list[np.ndarray] = []
        self._literals: list[Any] = []
        self._steps: list[_Recorded] = []

    def input(self, array: np.ndarray) -> _StandIn:
        """Return a stand-in for an argument."""
        self._inputs.append(_ordered(array))
        return _StandIn(self, ("input", len(self._inputs) - 1), array, False)

    def literal(self, array: np.ndarray) -> _StandIn:
        """Return a stand-in for an array that the function refers to."""
        self._literals.append(_ordered(array))
        return _StandIn(self, ("literal", len(self._literals) - 1), array, False)

    def step(
        self, function: Any, arguments: Sequence[Any], result: Any, is_made: bool, keywords: tuple[str, ...] = ()
    ) -> _StandIn:
        """Record a step with a result of this shape and dtype."""
        is_array = type(result) is np.ndarray or issubclass(type(result), np.generic)
        if not is_array or result.dtype.char not in DTYPES or len(self._steps) == _MOST_STEPS:
            raise _Untraceable
        self._steps.append(_Recorded(function, [self._place(argument) for argument in arguments], keywords))
        return _StandIn(self, ("step", len(self._steps) - 1), result, is_made)

    def elementwise(self, function: Any, arguments: Sequence[Any], keywords: tuple[str, ...] = ()) -> _StandIn:
        """Record a step that works element by element; raise `Unsupported` if it is not known as one."""
        arrays = [_array(argument) for argument in arguments]
        if not any(map(np.ndim, arrays)):
            # Regions leave single numbers to NumPy; a partial function is none that they know.
            return self.step(partial(function), arguments, function(*arrays), True)
        known = functions.elementwise(function, keywords)
        if known is None:
            raise Unsupported
        dtype = known.bind([_type(array) for array in arrays], arrays).dtype
        shape = np.broadcast_shapes(*map(np.shape, arrays))
        return self.step(function, arguments, np.broadcast_to(np.ones((), dtype), shape), True, keywords)

    def program(self, result: Any) -> _Program | None:
        """Return the program that ends with a result; None if it has no chain of elementwise steps."""
        if type(result) is tuple and all(type(each) is _StandIn for each in result):
            result = self.step(_outputs, result, result[0].array, False)
        if type(result) is not _StandIn or result.place != ("step", len(self._steps) - 1):
            return None
        used = {result.place}
        for number, step in reversed(list(enumerate(self._steps))):
            if ("step", number) not in used:
                # What the result does not need may still warn.
                return None
            used.update(step.arguments)
        before = len(self._inputs) + len(self._literals)
        first = {"input": 0, "literal": len(self._inputs), "step": before}
        steps = [
            Step(number, tuple([first[kind] + at for kind, at in step.arguments]), step.keywords)
            for number, step in enumerate(self._steps)
        ]
        called = tuple([step.function for step in self._steps])
        operand = Operand("traced", called, tuple(steps), len(self._inputs), len(self._literals))
        # Sums are added up in NumPy's order, as the function would.
        found = _Program(operand, tuple(self._literals), reductions=False, ndim=result.ndim)
        return found if found.gains else None

    def _place(self, argument: Any) -> tuple[str, int]:
        if type(argument) is _StandIn:
            argument.is_read = True
            return argument.place
        if not is_constant(argument):
            raise _Untraceable
        self._literals.append(argument)
        return "literal", len(self._literals) - 1


def _assigning_directly(operand: Operand) -> Operand:
    """Let regions write into the parts of arrays that are assigned; what these held before is not copied."""
    before = operand.input_count + operand.literal_count
    readers = Counter(slot for step in operand.steps for slot in step.slots)
    called, steps = list(operand.functions), list(operand.steps)

    def replace(number: int, function: Any, slots: tuple[int, ...]) -> None:
        steps[number] = Step(len(called), slots, ())
        called.append(function)

    for number, step in enumerate(operand.steps):
        if operand.functions[step.function] is not _assigned:
            continue
        array, index, source = step.slots
        makes = called[steps[array - before].function]
        if makes is _copied and readers[array] == 1:
            replace(array - before, _copied_around, (*steps[array - before].slots, index))
        computes = called[steps[source - before].function] if source >= before else None
        if type(computes) is RegionFunction and readers[source] == 1:
            replace(number, computes.write_into, (array, index, *steps[source - before].slots))
            # It stays as a step that nothing needs.
            replace(source - before, Constant(None), ())
    return Operand(operand.name, tuple(called), tuple(steps), operand.input_count, operand.literal_count)


def _copied(array: np.ndarray) -> np.ndarray:
    return array.copy()


def _copied_around(array: np.ndarray, index: Any) -> np.ndarray:
    """Return a copy of an array without the elements of a part, which will be assigned."""
    parts = index if type(index) is tuple else (index,)
    ranges = [part.indices(n) for part, n in zip(parts, array.shape, strict=False) if type(part) is slice]
    if len(ranges) < len(parts) or any(step != 1 for *_, step in ranges):
        return array.copy()
    copy = np.empty(array.shape, array.dtype)
    for axis, (start, stop, _) in enumerate(ranges):
        inside = tuple([slice(*each) for each in ranges[:axis]])
        for around in (slice(0, start), slice(max(start, stop), None)):
            copy[*inside, around] = array[*inside, around]
    return copy


class _StandIn(NDArrayOperatorsMixin):
    """A stand-in for an array, or for a number of NumPy's, that records what is done with it."""

    def __init__(self, trace: _Trace, place: tuple[str, int], array: Any, is_made: bool) -> None:
        self._trace = trace
        #: The input, literal or step that it stands for, by number.
        self.place = place
        #: An array of its shape and dtype.
        self.array = array
        #: Whether it is a new array of the function's, whether a step reads it, and whether it has views.
        self._is_made = is_made
        self.is_read = False
        self._is_viewed = False

    # What NumPy asks of other libraries' arrays.

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> _StandIn:
        """Record a call of a ufunc, which may write into an array of the function's."""
        (target,) = keywords.pop("out", (None,))
        if method != "__call__" or keywords:
            raise _Untraceable
        result = self._trace.elementwise(ufunc, inputs)
        if target is None or not isinstance(target.array, np.ndarray):
            # Numbers do not change: `number += 1` is another one.
            return result
        return target._replaced(result)  # type: ignore[no-any-return]

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Record a call of a function of NumPy's."""
        name = function.__name__
        if name not in MAKING | VIEWING or len(args) > 3:
            raise _Untraceable
        if function in (np.where, np.clip):
            if not keywords and len(args) == 3:
                with suppress(Unsupported):
                    return self._trace.elementwise(function, args)
        elif any(type(argument) is _StandIn for argument in args[1:]):
            raise _Untraceable
        return self._called(partial(function, **keywords), args, keywords, name in MAKING)

    def __array__(self, *args: Any, **keywords: Any) -> Any:
        """Refuse to be an array, whose elements nothing would record."""
        raise _Untraceable

    # What an array does.

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

    def _method(self, name: str, *args: Any, **keywords: Any) -> _StandIn:
        if name == "clip" and not keywords and len(args) == 2:
            with suppress(Unsupported):
                return self._trace.elementwise(np.clip, (self, *args))
        if not all(map(is_constant, args)) or len(args) > 2:
            raise _Untraceable
        if name == "copy" and not args and not keywords:
            return self._called(_copied, (self,), {}, True)
        return self._called(operator.methodcaller(name, *args, **keywords), (self,), keywords, name in MAKING)

    def astype(self, dtype: Any) -> _StandIn:
        """Record a cast."""
        return self._trace.elementwise(astype, (self, np.dtype(dtype)), ("astype_dtype",))

    def __len__(self) -> int:
        return len(self.array)

    def __bool__(self) -> bool:
        raise _Untraceable

    def __iter__(self) -> Any:
        raise _Untraceable

    def __pow__(self, other: Any) -> _StandIn:
        return self._trace.elementwise(operator.pow, (self, other))

    def __rpow__(self, other: Any) -> _StandIn:
        return self._trace.elementwise(operator.pow, (other, self))

    def __ipow__(self, other: Any) -> _StandIn:
        raise _Untraceable

    def __getitem__(self, index: Any) -> _StandIn:
        if not _is_basic(index):
            raise _Untraceable
        self._is_viewed = True
        return self._trace.step(operator.getitem, (self, index), self.array[index], False)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is _StandIn:
            if index.dtype != bool or index.shape != self.shape or type(value) not in (bool, int, float):
                raise _Untraceable
            self._replaced(self._trace.elementwise(np.where, (index, value, self)))
            return
        # The array itself changes: nothing may have read it before, nor read it now.
        number = _array(value)
        if not _is_basic(index) or self.is_read or (np.iscomplexobj(number) and self.dtype.kind != "c"):
            raise _Untraceable
        self._replaced(self._trace.step(_assigned, (self, index, value), self.array, True))

    def _called(self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], is_made: bool) -> _StandIn:
        """Record a call of NumPy's that a region does not know."""
        arrays = [argument.array for argument in args if type(argument) is _StandIn]
        fewest = min([length for array in arrays for length in array.shape], default=1)
        degrees = keywords.get("ddof", 0)
        if not all(map(is_constant, keywords.values())) or type(degrees) is not int or degrees >= fewest:
            # Means of nothing warn.
            raise _Untraceable
        for argument in () if is_made else args:
            if type(argument) is _StandIn:
                argument._is_viewed = True
        return self._trace.step(function, args, function(*map(_array, args)), is_made)

    def _replaced(self, result: _StandIn) -> _StandIn:
        """Become the result of a step that wrote into the array."""
        same = result.shape == self.shape and result.dtype == self.dtype
        if not (same and self._is_made and not self._is_viewed):
            raise _Untraceable
        self.place, self.is_read = result.place, False
        return self


def _ordered(array: np.ndarray) -> np.ndarray:
    """Return an array in C order; for other orders NumPy's results depend on which arrays are temporary."""
    if not in_c_order(array):
        raise _Untraceable
    return array


def _array(argument: Any) -> Any:
    return argument.array if type(argument) is _StandIn else argument


def _type(array: Any) -> Any:
    """Return an argument's dtype, or the type of a Python number."""
    if isinstance(array, (np.ndarray, np.generic)):
        return array.dtype
    return np.dtype(bool) if type(array) is bool else type(array)


def _is_basic(index: Any) -> bool:
    """Return whether an index selects a view, or a single number."""
    if type(index) is tuple:
        return all(map(_is_basic, index))
    if type(index) is slice:
        return is_constant(index)
    return index is None or index is Ellipsis or type(index) is int


def _assigned(array: np.ndarray, index: Any, value: Any) -> np.ndarray:
    array[index] = value
    return array
