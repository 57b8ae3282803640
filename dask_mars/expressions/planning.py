"""Plans the evaluation of a region for inputs of known types: shapes, tiles, buffers and calls."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dask_mars.expressions import numexprs
from dask_mars.expressions.draws import Draw
from dask_mars.expressions.functions import Bound, Elementwise, Reduction, Unsupported
from dask_mars.expressions.native import Chain, NativePlan, Reduced
from dask_mars.expressions.tiling import on_grid, tile_index, tiles
from dask_mars.graph.chunks import Operand

#: Bytes of a tile: three of them, an operation's inputs and output, fit a second-level cache.
TILE_BYTES = 1 << 18
#: Maximum length of rows that are added up faster here than by NumPy.
_SHORT_ROW = 1 << 9
#: Characters of the dtypes that regions support.
DTYPES = frozenset("?bhilqBHILQefdgFDG")


class Call(NamedTuple):
    """One call for each tile."""

    function: Callable[..., Any]
    arguments: Callable[[list[Any]], tuple[Any, ...]]
    #: Slot of the array for the result, written or returned.
    result: int
    takes_out: bool


class Reducing(NamedTuple):
    """A pass of a reduction, which combines the results of tiles."""

    slot: int
    source: int
    ufunc: np.ufunc
    #: Dtype argument of the reduction, or None.
    given_dtype: Any
    axes: tuple[int, ...]
    keepdims: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Finishing(NamedTuple):
    """A reduction whose result is computed from those of its passes."""

    slot: int
    parts: tuple[int, ...]
    reduction: Reduction
    dtype: np.dtype[Any]
    keywords: dict[str, Any]


class EvaluationPlan:
    """A plan for evaluating a region with inputs of known types.

    Slots number the region's values: its inputs first, then the result of each step.

    Parameters
    ----------
    program, known, outputs, evaluator
        As for `RegionFunction`.
    values : tuple
        Inputs of the types that the plan is for.

    Attributes
    ----------
    types, shapes : dict
        For each slot: its dtype, or the type of a Python number; and its shape.
    shape : tuple of int
        Largest shape; slots of this shape are computed tile by tile, smaller ones before.
    transposed : bool
        Whether the arrays are in Fortran order, and viewed with their axes reversed.
    flat : bool
        Whether the arrays are viewed as one row of elements.
    bound, slots : dict
        For each elementwise step: its function for these types, and the slots of its arguments.
    before : list of int
        Slots that are computed before the tiles.
    native : NativePlan or None
        Plan of a single native call, if possible; the attributes below then exist only after `cut_into_tiles`.
    whole : tuple of int
        The shape as viewed.
    tiles, arrays
        The tiles, and for each array that they read the index of each tile in it.
    draws : list of int
        Slots of random numbers that are drawn tile by tile, into their buffers.
    calls : list of Call
        Calls for each tile.
    buffers : dict
        Slot to number and dtype of the buffer for its result.
    written, outputs : list of int
        Slots whose results are written as wholes, and slots that are returned.
    reductions : list of Reducing
        Passes of reductions. Their slots, and those of their preparations, follow those of the steps.
    finishing : list of Finishing
        Reductions computed from these passes.
    slot_count : int
        Number of all slots.
    compiled : CompiledTile or None
        The call, if it is numexpr's.
    failures : int
        How often the plan turned out to be unusable.

    Raises
    ------
    Unsupported
        There is no such plan. NumPy's own errors for these types are raised as well.
    """

    def __init__(
        self,
        program: Operand,
        known: Sequence[Elementwise | Reduction],
        outputs: tuple[int, ...],
        evaluator: str,
        values: tuple[Any, ...],
    ) -> None:
        self.failures = 0
        self.count = program.input_count
        self.outputs = [self.count + step for step in outputs]
        self.types: dict[int, Any] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        for slot, value in enumerate(values):
            self.types[slot] = _type(value)
            self.shapes[slot] = value.shape if isinstance(value, (np.ndarray, Draw)) else ()
        self.bound: dict[int, Bound] = {}
        self.slots: dict[int, tuple[int, ...]] = {}
        reductions = self._resolve(program, known, values)
        shapes = set(self.shapes.values())
        self.shape = max(shapes, key=lambda shape: (len(shape), math.prod(shape)))
        if any(np.broadcast_shapes(shape, self.shape) != self.shape for shape in shapes):
            raise Unsupported
        self.draws = [
            slot
            for slot, value in enumerate(values)
            if isinstance(value, Draw) and self.shapes[slot] == self.shape
        ]
        self.transposed = self._layout(values)
        self.slot_count = self.count + len(program.steps)
        self.reductions: list[Reducing] = []
        self.finishing: list[Finishing] = []
        self._prepare_reductions(program, reductions, values)
        self.flat = self._can_be_flat(values)
        tiled = self._tiled = [slot for slot in self.bound if self.shapes[slot] == self.shape]
        self.before = [slot for slot in self.bound if slot not in set(tiled)]
        if not tiled and not self._pays():
            raise Unsupported
        if not any(slot < self.count + len(program.steps) for slot in tiled) and self._rounds_otherwise():
            raise Unsupported
        self._roots = sorted(
            {slot for slot in self.outputs if slot in self.bound} & set(tiled)
            | {r.source for r in self.reductions}
        )
        self.written = [slot for slot in self._roots if slot in self.outputs]
        self._evaluator = evaluator
        self.native: NativePlan | None = None
        if evaluator == "auto":
            with suppress(Unsupported):
                self.native = NativePlan(self._chain(tiled, values))
        if self.native is None:
            self.cut_into_tiles()

    def _chain(self, tiled: list[int], values: tuple[Any, ...]) -> Chain:
        return Chain(
            self.shape,
            self.transposed,
            self.types,
            self.shapes,
            {slot: (self.bound[slot], self.slots[slot]) for slot in tiled},
            self.written,
            [Reduced(r.slot, r.source, r.ufunc, r.shape, r.dtype) for r in self.reductions],
            values,
            self.draws,
        )

    def cut_into_tiles(self) -> None:
        """Plan the evaluation tile by tile, by NumPy's functions or numexpr."""
        if not self._tiled and not self.draws:
            raise Unsupported
        whole = (math.prod(self.shape),) if self.flat else self.oriented(self.shape)
        self.whole = whole
        tiled_types = [bound.dtype for bound in self.bound.values()]
        largest = max(dtype.itemsize for dtype in [*tiled_types, *[self.types[slot] for slot in self.draws]])
        self.tiles = tiles(whole, max(1, TILE_BYTES // largest))
        if any(self.bound[slot].positional for slot in self._tiled) and not on_grid(whole, self.tiles[0]):
            raise Unsupported
        self.arrays = {
            slot: [tile_index(tile, shape, whole) for tile in self.tiles]
            for slot, shape in self._read(self._tiled)
        }
        self._kernel(self._tiled, self._evaluator)
        self.native = None

    def _resolve(
        self, program: Operand, known: Sequence[Elementwise | Reduction], values: tuple[Any, ...]
    ) -> list[tuple[int, Reduction]]:
        """Find type and shape of every step's result; return the reductions."""
        reductions = []
        for number, (step, what) in enumerate(zip(program.steps, known, strict=True)):
            slot = self.count + number
            if isinstance(what, Reduction):
                reductions.append((number, what))
                continue
            types = [self.types[source] for source in step.slots]
            given = [values[source] if source < self.count else None for source in step.slots]
            bound = what.bind(types, given)
            if bound.dtype.char not in DTYPES:
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
        for number, what in reductions:
            step = program.steps[number]
            source = step.slots[0]
            if self.shapes[source] != self.shape:
                raise Unsupported
            keywords = dict(zip(step.keywords, [values[slot] for slot in step.slots[1:]], strict=True))
            axis = keywords["axis"]
            axes = tuple(range(dimensions)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
            axes = tuple(sorted({operator.index(a) % dimensions for a in axes}))
            parts = []
            for part in what.parts:
                reduced = source
                if part.prepare is not None:
                    key = part.prepare, source
                    if key not in prepared:
                        prepared[key] = self._add_step(part.prepare, source)
                    reduced = prepared[key]
                parts.append(self._new_slot())
                dtype = part.ufunc.reduce(np.ones(1, self.types[reduced]), dtype=part.dtype).dtype
                self.reductions.append(
                    Reducing(
                        parts[-1],
                        reduced,
                        part.ufunc,
                        part.dtype,
                        tuple(sorted(dimensions - 1 - a for a in axes)) if self.transposed else axes,
                        bool(keywords.get("keepdims")),
                        tuple([1 if a in axes else length for a, length in enumerate(self.shape)]),
                        dtype,
                    )
                )
            self.finishing.append(Finishing(self.count + number, tuple(parts), what, self.types[source], keywords))

    def _pays(self) -> bool:
        """Return whether reductions alone are slower in NumPy, which reads the array for each of them."""
        if self.draws or len(self.reductions) > 1:
            return True
        (reducing,) = self.reductions
        return reducing.ufunc is np.add and reducing.dtype.char == "d" and self._has_short_rows(reducing)

    def _rounds_otherwise(self) -> bool:
        """Return whether sums in single precision add up in another order than NumPy's.

        Both orders are equally accurate, but near zero they share few digits, so NumPy computes plain sums of this
        kind. Along adjacent axes the order is NumPy's, or blocks are added up pairwise.
        """
        return any(
            reducing.ufunc is np.add
            and reducing.dtype.char in "fF"
            and any(after - before > 1 for before, after in itertools.pairwise(reducing.axes))
            for reducing in self.reductions
        )

    def _has_short_rows(self, reducing: Reducing) -> bool:
        """Return whether rows are so short that NumPy spends more time on starting its loop than in it."""
        rows = self.oriented(self.shape)
        kept = [axis for axis in range(len(rows)) if axis not in reducing.axes]
        return bool(kept) and 1 < math.prod(rows[kept[-1] + 1 :]) <= _SHORT_ROW

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
        """Return whether the arrays are in Fortran order; raise `Unsupported` if they disagree."""
        full = [
            value
            for slot, value in enumerate(values)
            if self.shapes[slot] == self.shape and slot not in self.draws
        ]
        if all(_in_c_order(value) for value in full):
            return False
        if not self.draws and all(_in_c_order(value.T) for value in full):
            return True
        raise Unsupported

    def _can_be_flat(self, values: tuple[Any, ...]) -> bool:
        """Return whether the arrays may be viewed as one row of elements."""
        dimensions = len(self.shape)
        if any(len(reducing.axes) != dimensions for reducing in self.reductions):
            return False
        for slot, shape in self.shapes.items():
            if slot >= self.count:
                if shape != self.shape:
                    return False
            elif slot in self.draws:
                continue
            elif shape == self.shape:
                flags = values[slot].flags
                if not (flags.f_contiguous if self.transposed else flags.c_contiguous):
                    return False
            elif math.prod(shape) != 1:
                return False
        return True

    def oriented(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape, broadcast to the plan's number of axes, as viewed."""
        shape = (1,) * (len(self.shape) - len(shape)) + shape
        return shape[::-1] if self.transposed else shape

    def _read(self, tiled: list[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Return slot and shape of every array that tiles read."""
        used = {source for slot in tiled for source in self.slots[slot]}
        produced = {*tiled, *self.draws}
        return [
            (
                slot,
                (1,)
                if self.flat and self.shapes[slot] != self.shape
                else self.whole
                if self.flat
                else self.oriented(self.shapes[slot]),
            )
            for slot in sorted(used - produced)
            if self.shapes[slot] != ()
        ]

    def _kernel(self, tiled: list[int], evaluator: str) -> None:
        """Choose the calls and buffers that compute a tile."""
        roots = self._roots
        self.compiled: numexprs.CompiledTile | None = None
        compiled = None
        if len(roots) == 1 and roots[0] in self.bound and evaluator != "tiled":
            compiled = numexprs.compile_tile(
                {slot: (self.bound[slot], self.slots[slot]) for slot in tiled},
                roots[0],
                self.types,
                evaluator == "numexpr",
            )
        if compiled is not None:
            function, arguments = compiled
            self.buffers = {} if roots[0] in self.written else {roots[0]: (0, self.types[roots[0]])}
            self.buffers.update((slot, (1 + at, self.types[slot])) for at, slot in enumerate(self.draws))
            self.calls = [Call(function, _getter(arguments), roots[0], True)]
            self.compiled = function
            return
        self.calls = []
        self.buffers = self._assign_buffers(tiled, set(roots))
        for slot in tiled:
            bound = self.bound[slot]
            arguments = self.slots[slot]
            self.calls.append(Call(bound.call, _getter(arguments), slot, bound.takes_out))

    def _assign_buffers(self, tiled: list[int], roots: set[int]) -> dict[int, tuple[int, np.dtype[Any]]]:
        """Assign as few buffers as possible to results that are written into one."""
        last_use: dict[int, int] = {}
        for slot in tiled:
            for source in self.slots[slot]:
                last_use[source] = slot
        free: dict[np.dtype[Any], list[int]] = {}
        buffers: dict[int, tuple[int, np.dtype[Any]]] = {}
        count = 0
        for slot in self.draws:
            buffers[slot] = (count, self.types[slot])
            count += 1
        for slot in tiled:
            bound = self.bound[slot]
            ends = [s for s in set(self.slots[slot]) if s in buffers and s not in roots and last_use[s] == slot]
            if bound.in_place:
                for source in ends:
                    free.setdefault(buffers[source][1], []).append(buffers[source][0])
            if bound.takes_out and slot not in self.written:
                available = free.get(bound.dtype)
                if available:
                    buffers[slot] = (available.pop(), bound.dtype)
                else:
                    buffers[slot] = (count, bound.dtype)
                    count += 1
            if not bound.in_place:
                for source in ends:
                    free.setdefault(buffers[source][1], []).append(buffers[source][0])
        return buffers


def _type(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic, Draw)):
        return value.dtype
    # NumPy treats Python's bool as its own; Python's other numbers take the dtype of their partner.
    return np.dtype(bool) if type(value) is bool else type(value)


def _getter(slots: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(slots) == 1:
        (only,) = slots
        return lambda values: (values[only],)
    return operator.itemgetter(*slots)


def _in_c_order(array: Any) -> bool:
    """Return whether strides decrease in C order."""
    strides = [abs(stride) for stride, length in zip(array.strides, array.shape, strict=True) if length > 1]
    return all(outer >= inner for outer, inner in itertools.pairwise(strides))
