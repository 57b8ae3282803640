"""Plans the evaluation of a region for inputs of known types: shapes, dtypes, and who computes it."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dask_mars.expressions.draws import Draw
from dask_mars.expressions.functions import Bound, Elementwise, Reduction, Unsupported
from dask_mars.expressions.native import Chain, NativePlan, Reduced
from dask_mars.expressions.numexprs import NumexprPlan
from dask_mars.expressions.tables import TableSum
from dask_mars.graph.chunks import Operand

#: Maximum length of rows that are added up faster here than by NumPy.
_SHORT_ROW = 1 << 9
#: Characters of the dtypes that regions support.
DTYPES = frozenset("?bhilqBHILQefdgFDG")


class Reducing(NamedTuple):
    """A pass of a reduction, and whether its result keeps the reduced axes."""

    reduced: Reduced
    keepdims: bool


class Finishing(NamedTuple):
    """A reduction whose result is computed from those of its passes."""

    slot: int
    parts: tuple[int, ...]
    reduction: Reduction
    dtype: np.dtype[Any]
    keywords: dict[str, Any]


class EvaluationPlan:
    """A plan for evaluating a region with inputs of known types."""

    # Slots number the region's values: its inputs first, then the result of each step. It raises `Unsupported` if
    # there is none, and NumPy's own errors for the types.

    def __init__(
        self,
        program: Operand,
        known: Sequence[Elementwise | Reduction],
        outputs: tuple[int, ...],
        values: tuple[Any, ...],
    ) -> None:
        #: Number of failed evaluations by this plan.
        self.failures = 0
        self.count = program.input_count
        #: Slots that are returned.
        self.outputs = [self.count + step for step in outputs]
        #: Dtype of each slot, or the type of a Python number; and its shape.
        self.types: dict[int, Any] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        for slot, value in enumerate(values):
            self.types[slot] = argument_type(value)
            self.shapes[slot] = value.shape if isinstance(value, (np.ndarray, Draw)) else ()
        #: For each elementwise step: its function for these types, and the slots of its arguments.
        self.bound: dict[int, Bound] = {}
        self.slots: dict[int, tuple[int, ...]] = {}
        reductions = self._resolve(program, known, values)
        shapes = set(self.shapes.values())
        #: Largest shape; slots of this shape are computed by the kernel, smaller ones before.
        self.shape = max(shapes, key=lambda shape: (len(shape), math.prod(shape)))
        if any(np.broadcast_shapes(shape, self.shape) != self.shape for shape in shapes):
            raise Unsupported
        #: Slots of random numbers that the kernel draws.
        self.draws = [
            slot
            for slot, value in enumerate(values)
            if isinstance(value, Draw) and self.shapes[slot] == self.shape
        ]
        #: Whether the arrays are in Fortran order.
        self.transposed = self._layout(values)
        self.slot_count = self.count + len(program.steps)
        #: Passes of reductions. Their slots, and those of their preparations, follow those of the steps.
        self.reductions: list[Reducing] = []
        #: Reductions computed from these passes.
        self.finishing: list[Finishing] = []
        self._prepare_reductions(program, reductions, values)
        chain = [slot for slot in self.bound if self.shapes[slot] == self.shape]
        #: Slots that are computed before the kernel runs.
        self.before = [slot for slot in self.bound if slot not in set(chain)]
        #: Computes the chain of steps of the largest shape, and passes of reductions.
        self.kernel = self._kernel(chain, values, self.count + len(program.steps))

    def _kernel(self, steps: list[int], values: tuple[Any, ...], end: int) -> TableSum | NativePlan | NumexprPlan:
        chain = self._chain(steps, values)
        if not steps and not self._pays():
            return TableSum(chain)
        # Steps from `end` on prepare reductions.
        if not any(slot < end for slot in steps) and self._rounds_otherwise():
            raise Unsupported
        try:
            return NativePlan(chain)
        except Unsupported:
            return NumexprPlan(chain)

    def _chain(self, steps: list[int], values: tuple[Any, ...]) -> Chain:
        return Chain(
            self.shape,
            self.transposed,
            self.types,
            self.shapes,
            {slot: (self.bound[slot], self.slots[slot]) for slot in steps},
            [slot for slot in steps if slot in self.outputs],
            [reducing.reduced for reducing in self.reductions],
            values,
            self.draws,
        )

    def _resolve(
        self, program: Operand, known: Sequence[Elementwise | Reduction], values: tuple[Any, ...]
    ) -> list[tuple[int, Reduction]]:
        """Find type and shape of every step's result; return the reductions."""
        reductions = []
        for index, (step, what) in enumerate(zip(program.steps, known, strict=True)):
            slot = self.count + index
            if isinstance(what, Reduction):
                reductions.append((index, what))
                continue
            types = [self.types[source] for source in step.slots]
            given = [values[source] if source < self.count else None for source in step.slots]
            bound = what.bind(types, given)
            if not is_supported(bound.dtype):
                raise Unsupported
            self.bound[slot] = bound
            self.slots[slot] = tuple([step.slots[position] for position in bound.arguments])
            self.types[slot] = bound.dtype
            shapes = {self.shapes[source] for source in self.slots[slot]} - {()}
            self.shapes[slot] = next(iter(shapes)) if len(shapes) == 1 else np.broadcast_shapes(*shapes)
            if not self.shapes[slot]:
                # Scalars, Python's and NumPy's, have rules and warnings of their own.
                raise Unsupported
        return reductions

    def _prepare_reductions(
        self, program: Operand, reductions: list[tuple[int, Reduction]], values: tuple[Any, ...]
    ) -> None:
        """Find the passes of the reductions, and add steps for their preparations."""
        dimensions = len(self.shape)
        prepared: dict[Any, int] = {}
        for index, what in reductions:
            step = program.steps[index]
            source = step.slots[0]
            if self.shapes[source] != self.shape:
                raise Unsupported
            keywords = dict(zip(step.keywords, [values[slot] for slot in step.slots[1:]], strict=True))
            axes = _axes(keywords["axis"], dimensions)
            if type(keywords.get("keepdims", False)) is not bool:
                raise Unsupported
            parts = []
            for part in what.parts:
                reduced = source
                if part.prepare is not None:
                    key = part.prepare, source
                    if key not in prepared:
                        prepared[key] = self._add_step(part.prepare, source)
                    reduced = prepared[key]
                parts.append(self._new_slot())
                if self.types[reduced].kind == "c" and np.dtype(part.dtype or "D").kind not in "bc":
                    # NumPy warns of lost imaginary parts, also in the next line.
                    raise Unsupported
                dtype = part.ufunc.reduce(np.ones(1, self.types[reduced]), dtype=part.dtype).dtype
                shape = tuple([1 if a in axes else length for a, length in enumerate(self.shape)])
                call = Reduced(parts[-1], reduced, part.ufunc, part.dtype, axes, shape, dtype)
                self.reductions.append(Reducing(call, bool(keywords.get("keepdims"))))
            self.finishing.append(Finishing(self.count + index, tuple(parts), what, self.types[source], keywords))

    def _pays(self) -> bool:
        """Return whether reductions alone are slower in NumPy, which reads the array for each of them."""
        if self.draws or len(self.reductions) > 1:
            return True
        ((reduced, _),) = self.reductions
        return reduced.ufunc is np.add and reduced.dtype.char == "d" and self._has_short_rows(reduced)

    def _rounds_otherwise(self) -> bool:
        """Return whether sums in single precision add up in another order than NumPy's."""
        # Both orders are equally accurate, but near zero they share few digits, so NumPy computes plain sums of
        # this kind. Along adjacent axes the order is NumPy's, or blocks are added up pairwise.
        return any(
            reduced.ufunc is np.add
            and reduced.dtype.char in "fF"
            and any(after - before > 1 for before, after in itertools.pairwise(reduced.axes))
            for reduced, _ in self.reductions
        )

    def _has_short_rows(self, reduced: Reduced) -> bool:
        """Return whether rows are so short that NumPy spends more time on starting its loop than in it."""
        rows = [(length, axis in reduced.axes) for axis, length in enumerate(self.shape)]
        if self.transposed:
            rows.reverse()
        inner = list(itertools.takewhile(operator.itemgetter(1), reversed(rows)))
        return len(inner) < len(rows) and 1 < math.prod(length for length, _ in inner) <= _SHORT_ROW

    def _new_slot(self) -> int:
        self.slot_count += 1
        return self.slot_count - 1

    def _add_step(self, what: Elementwise, source: int) -> int:
        slot = self._new_slot()
        bound = self.bound[slot] = what.bind([self.types[source]], [None])
        self.slots[slot] = (source,) * len(bound.arguments)
        self.types[slot] = bound.dtype
        self.shapes[slot] = self.shapes[source]
        return slot

    def _layout(self, values: tuple[Any, ...]) -> bool:
        """Return whether results are in Fortran order; raise `Unsupported` if NumPy has another one than here."""
        arrays = [value for slot, value in enumerate(values) if self.shapes[slot] and slot not in self.draws]
        full = [value for value in arrays if value.shape == self.shape]
        has_casts = any(bound.name == "astype" for bound in self.bound.values())
        if all(in_c_order(value, has_casts) for value in arrays):
            return False
        # NumPy compares strides along axes that an array does not repeat; C order wins.
        are_plain = not any(map(_is_repeated, arrays)) and all(
            any(self.shapes[source] == self.shapes[slot] for source in sources)
            for slot, sources in self.slots.items()
        )
        if are_plain and all(map(in_c_order, full)):
            return False
        if are_plain and not self.draws and all(in_c_order(value.T) for value in arrays):
            return True
        raise Unsupported

    def run(self, inputs: tuple[Any, ...], into: np.ndarray | None = None) -> Any:
        """Return the outputs, a single one in `into` if given; None if NumPy has to compute them."""
        errors = raised_errors()
        with np.errstate(**errors):  # type: ignore[arg-type]
            results = self._run(inputs, errors, into)
        return results[0] if results is not None and len(results) == 1 else results

    def fits(self, array: np.ndarray) -> bool:
        """Return whether the only output can be written into an array."""
        (slot,) = self.outputs
        same = array.shape == self.shape == self.shapes[slot] and array.dtype == self.types[slot]
        # NumPy's loops may take a negative stride of their result for a positive one: NumPy never passes any.
        in_rows = same and array.strides[-1] == array.itemsize and min(array.strides) > 0
        return in_rows and slot in self.bound and type(self.kernel) is NativePlan

    def _run(
        self, inputs: tuple[Any, ...], errors: dict[str, str], into: np.ndarray | None
    ) -> tuple[Any, ...] | None:
        values: list[Any] = [*inputs, *[None] * (self.slot_count - len(inputs))]
        for slot, value in enumerate(inputs):
            if type(value) is Draw and slot not in self.draws:
                values[slot] = value.array()
        order = "F" if self.transposed else "C"
        for slot in self.before:
            arguments = [values[source] for source in self.slots[slot]]
            bound = self.bound[slot]
            values[slot] = bound.compute(arguments, partial(np.empty, self.shapes[slot], bound.dtype, order))
        sources = {slot: inputs[slot].source() for slot in self.draws}
        # Only native plans take an array to write into, and `fits` refuses others.
        target = () if into is None else (into,)
        done = self.kernel.run(values, errors, sources, *target)
        if done is None:
            return None
        results, totals = done
        results.update((slot, values[slot]) for slot in self.before)
        for reduced, keepdims in self.reductions:
            if not keepdims:
                kept = [length for axis, length in enumerate(reduced.shape) if axis not in reduced.axes]
                totals[reduced.slot] = totals[reduced.slot].reshape(kept)[()]
        for slot, parts, reduction, dtype, keywords in self.finishing:
            results[slot] = reduction.finish([totals[part] for part in parts], self.shape, dtype, keywords)
        return tuple([results[slot] for slot in self.outputs])


def is_supported(dtype: np.dtype[Any]) -> bool:
    """Return whether regions support a dtype."""
    return dtype.char in DTYPES and dtype.isnative


def raised_errors() -> dict[str, str]:
    """Return arguments for `numpy.errstate` that raise the floating point errors that are not ignored."""
    return {kind: how if how == "ignore" else "raise" for kind, how in np.geterr().items()}


def argument_type(value: Any) -> Any:
    """Return the dtype of an array or a scalar, or the type of a Python number."""
    if isinstance(value, (np.ndarray, np.generic, Draw)):
        return value.dtype
    # NumPy treats Python's bool as its own; Python's other numbers take the dtype of their partner.
    return np.dtype(bool) if type(value) is bool else type(value)


def _axes(axis: Any, dimensions: int) -> tuple[int, ...]:
    """Return the numbers of reduced axes; raise `Unsupported` for those that NumPy may refuse."""
    if axis is None:
        return tuple(range(dimensions))
    given = axis if type(axis) is tuple else (axis,)
    if not all(type(each) is int and -dimensions <= each < dimensions for each in given):
        raise Unsupported
    found = {each % dimensions for each in given}
    if len(found) < len(given):
        raise Unsupported
    return tuple(sorted(found))


def in_c_order(array: Any, with_repeated: bool = True) -> bool:
    """Return whether strides decrease in C order, with or without axes that repeat numbers."""
    axes = zip(array.strides, array.shape, strict=True)
    strides = [abs(stride) for stride, length in axes if length > 1 and (stride or with_repeated)]
    return all(outer >= inner for outer, inner in itertools.pairwise(strides))


def _is_repeated(array: Any) -> bool:
    """Return whether an array repeats numbers along an axis."""
    return any(not stride and length > 1 for stride, length in zip(array.strides, array.shape, strict=True))
