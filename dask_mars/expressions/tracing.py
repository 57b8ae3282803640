"""Functions of the user's as programs, whose chains of elementwise steps run block by block, without temporaries.

Examples are ``x.map_overlap(lambda b: b[2:] - 2 * b[1:-1] + b[:-2], depth=1)``, and `map_blocks` or `apply_ufunc`
with a formula. A function is called once for each combination of shapes and dtypes, with stand-ins for its arrays
that record its steps. Functions that cannot be recorded are called as usual, and so are those that would raise or
warn.
"""

from __future__ import annotations

import operator
import pickle
import sys
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import FunctionType
from typing import Any

import numpy as np

from dask_mars.expressions import functions
from dask_mars.expressions.adjacent import view_of, whole
from dask_mars.expressions.evaluate import MOST_PROGRAMS, SMALL, Joinable, Pending, RegionFunction
from dask_mars.expressions.planning import raised_errors
from dask_mars.expressions.recording import RECORDING, RaisesErrors, Trace, assigned, copied, is_known
from dask_mars.expressions.rewrite import with_expressions
from dask_mars.expressions.straight_code import NotStraight, StraightCode, is_constant
from dask_mars.graph.chunks import Constant, Operand, Step
from dask_mars.graph.splice import with_makers

#: Recorded steps, besides elementwise ones, whose results do not depend on the layout of arrays.
_LAYOUT_FREE = frozenset({operator.getitem, assigned, copied})
#: Maximum number of recordings of a function between two runs of programs that exist.
_MOST_TRACES = 16
#: Maximum number of failures of a program, and of recordings before the first that succeeds.
_MOST_FAILURES = 2


class Traced(Joinable):
    """A function of the user's that runs as a program if it only calculates and its arrays are large."""

    def __init__(self, function: FunctionType) -> None:
        self.__name__ = function.__name__
        self._function = function
        # The code and its programs. Threads replace both at once.
        self._recorded: tuple[StraightCode | None, dict[Hashable, _Program | None]] = None, {}
        self._traces_left = _MOST_TRACES

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the function, or run its program."""
        read, program = self._prepared(args, keywords)
        result = None if program is None else program.run(_arrays(read, keywords))
        return self._function(*map(whole, args), **keywords) if result is None else result

    def lazily(self, *args: Any, **keywords: Any) -> Any:
        """Return the result, or a pending one."""
        read, program = self._prepared(args, keywords)
        if program is None or not program.ends_in_chain:
            return self(*args, **keywords)
        return Pending(program, _arrays(read, keywords), partial(self, *args, **keywords))

    def _prepared(
        self, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], _Program | None]:
        """Return the arguments that a program reads, and the program for these, or None."""
        read = tuple(map(view_of, args))
        program = self._program(read, keywords)
        if program is not None and not program.ignores_layout and any(map(operator.is_not, read, args)):
            read = tuple(map(whole, args))
            program = self._program(read, keywords)
        return read, program

    def _program(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> _Program | None:
        """Return the program for some arguments, or None."""
        # A debugger would show stand-ins, and stop once for many chunks.
        if sys.gettrace() is not None or (not self._traces_left and not self._recorded[1]):
            return None
        # Most calls have small arguments; reading the code of such a function would take longer than they do.
        if not any(map(_is_large, args)) and not any(map(_is_large, keywords.values())):
            return None
        key = _key(args, keywords)
        if key is None:
            return None
        code, programs = self._recorded
        if code is None or not code.holds():
            if not self._traces_left:
                return None
            try:
                code, programs = self._recorded = StraightCode(self._function), {}
            except NotStraight:
                self._recorded, self._traces_left = (None, {}), 0
                return None
        if key not in programs:
            if not self._traces_left:
                return None
            self._traces_left -= 1
            programs[key] = _trace(code, args, keywords)
            if not any(programs.values()):
                # A recording takes as long as a call, and more will hardly succeed.
                self._traces_left = min(self._traces_left, _MOST_FAILURES)
        elif programs[key] is not None and len(programs) < MOST_PROGRAMS:
            # Chunks at edges have shapes of their own, 26 in three dimensions.
            self._traces_left = min(self._traces_left + 1, _MOST_TRACES)
        return programs[key]


def _is_large(value: Any) -> bool:
    return type(value) is np.ndarray and value.size >= SMALL


def _key(args: tuple[Any, ...], keywords: dict[str, Any]) -> Hashable | None:
    """Return the key of the program for some arguments, or None if no program takes such arguments."""
    types: list[Hashable] = []
    for value in [*args, *keywords.values()]:
        if type(value) is np.ndarray and is_known(value.dtype):
            types.append((value.dtype.char, value.shape, value.strides))
        elif is_constant(value):
            # Equal numbers, such as 1 and True, 0.0 and -0.0, or NaN and -NaN, may have other results.
            types.append(pickle.dumps(value))
        else:
            return None
    return (*types, *keywords)


class _Program:
    """The program of a function for one combination of shapes and dtypes."""

    def __init__(
        self,
        operand: Operand,
        literals: tuple[Any, ...],
        reductions: bool,
        ndim: int = 0,
        ignored: Collection[str] = (),
    ) -> None:
        #: The steps as they were recorded.
        self.operand = operand
        #: Number of dimensions of the result of a function that may be pending.
        self.ndim = ndim
        self.literals = literals
        fast = with_expressions(operand, reductions)
        regions = [function for function in fast.functions if type(function) is RegionFunction]
        for region in regions:
            region.is_strict = True
        #: Whether there are chains of elementwise steps, for which a program is faster.
        self.gains = bool(regions)
        #: Whether the region that reads the result can continue it: it is that of a chain, and ignores no errors.
        last = operand.steps[-1]
        is_chain = functions.elementwise(operand.functions[last.function], last.keywords) is not None
        self.ends_in_chain = is_chain and not ignored
        #: Whether the results are the same, to the last bit, for arrays whose rows do not lie one after another.
        self.ignores_layout = all(
            _ignores_layout(operand.functions[step.function], step.keywords) for step in operand.steps
        )
        self._fast = _assigning_directly(fast)
        self._failures = 0
        self._ignored = dict.fromkeys(ignored, "ignore")

    def run(self, arrays: list[Any]) -> Any:
        """Return the result, or None if the function itself has to be called, for example to warn."""
        if self._failures > _MOST_FAILURES:
            return None
        with suppress(Exception), np.errstate(**{**raised_errors(), **self._ignored}):  # type: ignore[arg-type]
            return self._fast.run(arrays, self.literals)
        self._failures += 1
        return None

    def joined_with(self, region: RegionFunction, programs: Sequence[_Program | None]) -> _Program:
        """Return a program that computes the inputs of a region that have programs, and then the region."""
        joined = with_makers(
            region.program, [None if program is None else program.operand for program in programs]
        )
        # The outputs need not be the last steps.
        end = joined.input_count + joined.literal_count + len(joined.steps)
        results = tuple([end - len(region.program.steps) + output for output in region.outputs])
        packing = Step(len(joined.functions), results, ())
        literals = chain.from_iterable(program.literals for program in programs if program is not None)
        operand = joined.replaced((*joined.functions, _outputs), (*joined.steps, packing))
        return _Program(operand, tuple(literals), True)


def _outputs(*results: Any) -> Any:
    return results[0] if len(results) == 1 else results


def _arrays(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    """Return the arrays among arguments, in the order in which `_trace` numbers the inputs."""
    return [value for value in [*args, *keywords.values()] if type(value) is np.ndarray]


def _trace(code: StraightCode, args: tuple[Any, ...], keywords: dict[str, Any]) -> _Program | None:
    """Record a call of a function; return its program, or None if it has none that is faster."""
    trace = Trace()
    # Operations on numbers alone are not recorded, so their warnings would be lost.
    with suppress(Exception), np.errstate(all=RECORDING, call=RaisesErrors()):
        given = [trace.input(value) if type(value) is np.ndarray else value for value in args]
        named = {
            name: trace.input(value) if type(value) is np.ndarray else value for name, value in keywords.items()
        }
        result = code.with_arrays(trace.literal)(*given, **named)
        operand = trace.operand(result)
        if operand is not None:
            # Regions without reductions: NumPy adds up sums, in the same order as in the function.
            ndim, ignored = getattr(result, "ndim", 0), trace.ignored_errors or ()
            program = _Program(operand, tuple(trace.literals), reductions=False, ndim=ndim, ignored=ignored)
            return program if program.gains else None
    return None


def _ignores_layout(function: Any, keywords: tuple[str, ...]) -> bool:
    """Return whether a recorded step adds up nothing, in an order that would depend on the layout of an array."""
    if type(function) is partial:
        return getattr(function.func, "__name__", "").endswith("_like")
    return function in _LAYOUT_FREE or functions.elementwise(function, keywords) is not None


def _assigning_directly(operand: Operand) -> Operand:
    """Return an operand whose regions write straight into assigned parts, which are not copied before."""
    before = operand.input_count + operand.literal_count
    readers = Counter(slot for step in operand.steps for slot in step.slots)
    called, steps = list(operand.functions), list(operand.steps)

    def replace(number: int, function: Any, slots: tuple[int, ...]) -> None:
        steps[number] = Step(len(called), slots, ())
        called.append(function)

    for number, step in enumerate(operand.steps):
        if operand.functions[step.function] is not assigned:
            continue
        array, index, source = step.slots
        makes = called[steps[array - before].function]
        if makes is copied and readers[array] == 1:
            replace(array - before, _copied_around, (*steps[array - before].slots, index))
        computes = called[steps[source - before].function] if source >= before else None
        if type(computes) is RegionFunction and readers[source] == 1:
            replace(number, computes.write_into, (array, index, *steps[source - before].slots))
            # This placeholder keeps the slots of later steps.
            replace(source - before, Constant(None), ())
    return operand.replaced(called, steps)


def _copied_around(array: np.ndarray, index: Any) -> np.ndarray:
    """Return a copy of an array in which a part that will be assigned is left empty."""
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
