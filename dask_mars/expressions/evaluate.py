"""A region as a function: planned once for each combination of shapes and dtypes, then run block by block.

If a region cannot be evaluated like this, because of a subclass, a dtype or an error, its steps run one after the
other: a region never has results, errors or warnings of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from dask_mars.expressions.draws import Draw
from dask_mars.expressions.functions import Elementwise, Reduction, Unsupported
from dask_mars.expressions.planning import DTYPES, EvaluationPlan, is_supported
from dask_mars.graph.chunks import Operand

#: Size in elements below which arrays fit the cache as they are.
SMALL = 1 << 15
#: Maximum number of type combinations for which a region keeps its plans.
_MOST_PLANS = 64
#: Maximum number of a region's joined programs, and of the programs with which a function is not recorded again.
MOST_PROGRAMS = 256
#: Number of failures after which a plan is not tried again.
_MOST_FAILURES = 2
_ARRAYS = frozenset({np.ndarray, Draw})
_NUMBERS = frozenset({bool, int, float, complex})


class Pending:
    """The result of a program that has not run; the region that reads it may compute it with its own steps."""

    def __init__(self, program: Any, arrays: list[Any], call: Callable[[], Any]) -> None:
        self.program = program
        self.arrays = arrays
        #: Number of dimensions.
        self.ndim: int = program.ndim
        #: Computes the result.
        self.array = call

    def compute_within(self, region: RegionFunction, values: tuple[Any, ...]) -> Any:
        """Return the outputs of a region that reads the result; None if the result has to be computed first."""
        programs = tuple([value.program if type(value) is Pending else None for value in values])
        if programs not in region.joined:
            if len(region.joined) == MOST_PROGRAMS:
                return None
            region.joined[programs] = self.program.joined_with(region, programs)
        given = [value.arrays if type(value) is Pending else [value] for value in values]
        return region.joined[programs].run(list(chain.from_iterable(given)))


class Joinable:
    """A function that can also be called for a pending result."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Return the result."""
        raise NotImplementedError

    def lazily(self, *args: Any, **keywords: Any) -> Any:
        """Return the result, or a pending one."""
        raise NotImplementedError


def transposed(value: Any, axes: Any) -> Any:
    """Return `numpy.transpose` of a value; a pending one stays pending where that changes nothing."""
    if isinstance(value, Pending):
        are_plain = type(axes) in (tuple, list) and all(type(axis) is int for axis in axes)
        if are_plain and list(axes) == list(range(value.ndim)):
            return value
    return np.transpose(_computed(value), axes)


class RegionFunction:
    """A region as a function of its inputs."""

    __name__ = "region"

    def __init__(
        self,
        program: Operand,
        known: Sequence[Elementwise | Reduction],
        outputs: tuple[int, ...],
        parts: Sequence[tuple[RegionFunction, Sequence[int]]] = (),
    ) -> None:
        #: Functions of independent parts, with the places of their inputs. Together they have the same outputs.
        self._parts = parts
        self.program = program
        self._known = known
        self.outputs = outputs
        self._parameters = _parameters(program, known)
        self._plans: dict[Hashable, EvaluationPlan | None] = {}
        #: Programs that compute pending inputs and then the outputs, by the programs of the inputs.
        self.joined: dict[Hashable, Any] = {}
        #: Whether to raise `Unsupported` for large arrays instead of running the steps one after the other.
        self.is_strict = False

    def write_into(self, array: np.ndarray, index: Any, *values: Any) -> Any:
        """Write the only output into a part of an array, and return the array."""
        part = array[index]
        result = self._call(values, part)
        if result is not part:
            array[index] = result
        return array

    def __call__(self, *values: Any) -> Any:
        """Compute the outputs."""
        return self._call(values)

    def _call(self, values: tuple[Any, ...], into: Any = None) -> Any:
        size = 0
        for value in values:
            if type(value) in _ARRAYS:
                size = max(size, value.size)
            elif isinstance(value, Pending):
                results = value.compute_within(self, values)
                return results if results is not None else self._call(tuple(map(_computed, values)))
        if size >= SMALL:
            try:
                key = tuple([self._type_of(slot, value) for slot, value in enumerate(values)])
                plan = self._plans[key]
            except KeyError:
                plan = self._plan(key, values)
            except (TypeError, Unsupported):
                plan = None
            if plan is not None:
                results = None
                # The plain calls report a value out of range, for example, in NumPy's own way.
                with suppress(Exception):
                    results = plan.run(values, into if into is not None and plan.fits(into) else None)
                if results is not None:
                    return results
                plan.failures += 1
                if plan.failures > _MOST_FAILURES:
                    self._plans[key] = None
            if self.is_strict:
                raise Unsupported
        return self._one_by_one(values)

    def _one_by_one(self, values: tuple[Any, ...]) -> Any:
        if self._parts:
            found: list[Any] = []
            for function, places in self._parts:
                result = function(*[values[place] for place in places])
                found += result if len(function.outputs) > 1 else [result]
            return tuple(found)
        arrays = [value.array() if type(value) is Draw else value for value in values]
        results = self.program.run_all(arrays, self.outputs)
        return results[0] if len(results) == 1 else tuple(results)

    def _type_of(self, slot: int, value: Any) -> Hashable:
        kind = type(value)
        if kind is np.ndarray:
            if not is_supported(value.dtype):
                raise Unsupported
            return value.dtype, value.shape, value.strides
        if kind is Draw:
            if slot in self._parameters:
                raise Unsupported
            return Draw, value.dtype, value.shape
        if slot in self._parameters:
            hash(value)
            return kind, value
        if kind in _NUMBERS:
            return (kind,)
        if issubclass(kind, np.generic) and value.dtype.char in DTYPES:
            dtype: Hashable = value.dtype
            return dtype
        raise Unsupported

    def _plan(self, key: Hashable, values: tuple[Any, ...]) -> EvaluationPlan | None:
        plan: EvaluationPlan | None
        try:
            plan = EvaluationPlan(self.program, self._known, self.outputs, values)
        except Exception:
            # NumPy also raises for types that a function does not support.
            plan = None
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan


def _computed(value: Any) -> Any:
    return value.array() if isinstance(value, Pending) else value


def _parameters(program: Operand, known: Sequence[Elementwise | Reduction]) -> frozenset[int]:
    """Return the slots whose values a plan depends on."""
    found: set[int] = set()
    for step, what in zip(program.steps, known, strict=True):
        if isinstance(what, Reduction):
            found.update(step.slots[1:])
        else:
            found.update(step.slots[position] for position in what.parameters)
    return frozenset(found)
