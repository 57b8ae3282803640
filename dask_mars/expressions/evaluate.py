"""A region at work: planned once for each combination of shapes and dtypes, then run tile by tile.

Where a region cannot be evaluated so, because of a subclass, a dtype or an error, its steps are called one after
the other as they stand: a region never has results, errors or warnings of its own.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_mars.expressions import numexprs
from dask_mars.expressions.functions import Bound, Elementwise, Reduction, Unsupported
from dask_mars.expressions.tiling import Index, Tile, on_grid, part, tiles
from dask_mars.graph import Operand

#: Bytes of a tile: with three of them, what an operation reads and writes stays in a second-level cache.
TILE_BYTES = 1 << 18
#: Arrays below this many elements are in the cache as they are.
SMALL = 1 << 15
#: Combinations of types for which a region keeps its plans.
_MOST_PLANS = 64
_NUMBERS = frozenset({bool, int, float, complex})
_DTYPES = frozenset("?bhilqBHILQefdgFDG")


class RegionFunction:
    """A region as a function of its inputs.

    Parameters
    ----------
    program : Operand
        The region's steps. All that comes from outside are inputs.
    known : sequence
        What each of the steps is.
    outputs : tuple of int
        Steps whose results are returned: the result if it is one, else a tuple of them.
    evaluator : {"auto", "tiled", "numexpr"}
        How tiles are computed; "auto" goes by the table of costs.
    """

    __name__ = "region"

    def __init__(
        self,
        program: Operand,
        known: Sequence[Elementwise | Reduction],
        outputs: tuple[int, ...],
        evaluator: str,
    ) -> None:
        self._program = program
        self._known = known
        self._outputs = outputs
        self._evaluator = evaluator
        self._parameters = _parameters(program, known)
        self._plans: dict[Hashable, _TiledPlan | None] = {}

    def __call__(self, *values: Any) -> Any:
        """Compute the outputs."""
        size = 0
        for value in values:
            if type(value) is np.ndarray and value.size > size:
                size = value.size
        if size >= SMALL:
            try:
                key = tuple([self._type_of(slot, value) for slot, value in enumerate(values)])
                plan = self._plans[key]
            except KeyError:
                plan = self._plan(key, values)
            except (TypeError, Unsupported):
                plan = None
            if plan is not None:
                try:
                    return plan.run(values)
                except Exception:
                    # Of a value that is out of range, say. The plain calls tell it in NumPy's own way; and what
                    # failed once is likely to fail again.
                    plan.failures += 1
                    if plan.failures > 2:
                        self._plans[key] = None
        return self._one_by_one(values)

    def _one_by_one(self, values: tuple[Any, ...]) -> Any:
        results = self._program.run_all(list(values), self._outputs)
        return results[0] if len(results) == 1 else tuple(results)

    def _type_of(self, slot: int, value: Any) -> Hashable:
        kind = type(value)
        if kind is np.ndarray:
            if value.dtype.char not in _DTYPES or not value.dtype.isnative:
                raise Unsupported
            return value.dtype, value.shape, value.strides
        if slot in self._parameters:
            hash(value)
            return kind, value
        if kind in _NUMBERS:
            return (kind,)
        if isinstance(value, np.generic) and value.dtype.char in _DTYPES:
            return value.dtype
        raise Unsupported

    def _plan(self, key: Hashable, values: tuple[Any, ...]) -> _TiledPlan | None:
        plan: _TiledPlan | None
        try:
            plan = _TiledPlan(self._program, self._known, self._outputs, self._evaluator, values)
        except Exception:
            # Also what NumPy raises for types that a function does not take.
            plan = None
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan


def _parameters(program: Operand, known: Sequence[Elementwise | Reduction]) -> frozenset[int]:
    """Return the slots whose values a plan depends on."""
    found: set[int] = set()
    for step, what in zip(program.steps, known, strict=True):
        if isinstance(what, Reduction):
            found.update(step.slots[1:])
        else:
            found.update(step.slots[position] for position in what.parameters)
    return frozenset(found)


class _Call(NamedTuple):
    """One call for each tile."""

    function: Callable[..., Any]
    arguments: Callable[[list[Any]], tuple[Any, ...]]
    #: Slot of the array for the result, or where the result goes if it is returned.
    result: int
    takes_out: bool


class _Reducing(NamedTuple):
    """A reduction whose parts are combined."""

    slot: int
    source: int
    reduction: Reduction
    axes: tuple[int, ...]
    keepdims: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    keywords: dict[str, Any]


class _TiledPlan:
    """How to evaluate a region for inputs of known types.

    Raises `Unsupported`, or what NumPy raises for the types, if there is no such way.
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
        self._count = program.input_count
        self._outputs = [self._count + step for step in outputs]
        #: By slot: dtype, or the type of a Python number; and the shape.
        self._types: dict[int, Any] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        for slot, value in enumerate(values):
            self._types[slot] = _type(value)
            self._shapes[slot] = np.shape(value) if isinstance(value, np.ndarray) else ()
        self._bound: dict[int, Bound] = {}
        self._slots: dict[int, tuple[int, ...]] = {}
        reductions = self._resolve(program, known, values)
        self._shape = max(self._shapes.values(), key=lambda shape: (len(shape), int(np.prod(shape))))
        if any(np.broadcast_shapes(shape, self._shape) != self._shape for shape in self._shapes.values()):
            raise Unsupported
        self._transposed = self._layout(values)
        self._reductions = self._prepare_reductions(program, reductions, values)
        self._flat = self._can_be_flat(values)
        whole = (int(np.prod(self._shape)),) if self._flat else self._oriented(self._shape)
        self._whole = whole
        largest = max(bound.dtype.itemsize for bound in self._bound.values())
        self._tiles = tiles(whole, max(1, TILE_BYTES // largest))
        tiled = [slot for slot in self._bound if self._shapes[slot] == self._shape]
        if any(self._bound[slot].positional for slot in tiled) and not on_grid(whole, self._tiles[0]):
            raise Unsupported
        self._before = [slot for slot in self._bound if slot not in set(tiled)]
        if not tiled:
            raise Unsupported
        self._arrays = {
            slot: [part(tile, shape, whole) for tile in self._tiles] for slot, shape in self._read(tiled)
        }
        self._kernel(tiled, evaluator)

    # -- planning ---------------------------------------------------------------------------------------------

    def _resolve(
        self, program: Operand, known: Sequence[Elementwise | Reduction], values: tuple[Any, ...]
    ) -> list[tuple[int, Reduction]]:
        """Find the type and shape of every step's result; return the reductions."""
        reductions = []
        for number, (step, what) in enumerate(zip(program.steps, known, strict=True)):
            slot = self._count + number
            if isinstance(what, Reduction):
                reductions.append((number, what))
                continue
            types = [self._types[source] for source in step.slots]
            given = [values[source] if source < self._count else None for source in step.slots]
            bound = what.bind(types, given)
            if bound.dtype.char not in _DTYPES:
                raise Unsupported
            self._bound[slot] = bound
            self._slots[slot] = tuple([step.slots[position] for position in bound.arguments])
            self._types[slot] = bound.dtype
            self._shapes[slot] = np.broadcast_shapes(*[self._shapes[source] for source in self._slots[slot]])
            if not self._shapes[slot]:
                # Numbers, Python's and NumPy's, have rules and warnings of their own.
                raise Unsupported
        return reductions

    def _prepare_reductions(
        self, program: Operand, reductions: list[tuple[int, Reduction]], values: tuple[Any, ...]
    ) -> list[_Reducing]:
        prepared = []
        dimensions = len(self._shape)
        for number, what in reductions:
            step = program.steps[number]
            source = step.slots[0]
            if self._shapes[source] != self._shape:
                raise Unsupported
            keywords = dict(zip(step.keywords, [values[slot] for slot in step.slots[1:]], strict=True))
            axis = keywords["axis"]
            axes = tuple(range(dimensions)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
            axes = tuple(sorted({operator.index(a) % dimensions for a in axes}))
            dtype = what.ufunc.reduce(np.empty((1,), self._types[source]), dtype=what.dtype).dtype
            prepared.append(
                _Reducing(
                    self._count + number,
                    source,
                    what,
                    tuple(sorted(dimensions - 1 - a for a in axes)) if self._transposed else axes,
                    bool(keywords.get("keepdims")),
                    tuple([1 if a in axes else length for a, length in enumerate(self._shape)]),
                    dtype,
                    keywords,
                )
            )
        return prepared

    def _layout(self, values: tuple[Any, ...]) -> bool:
        """Say whether the arrays are in Fortran order, and make sure that they agree on it."""
        full = [value for slot, value in enumerate(values) if self._shapes[slot] == self._shape]
        if all(_in_c_order(value) for value in full):
            return False
        if all(_in_c_order(value.T) for value in full):
            return True
        raise Unsupported

    def _can_be_flat(self, values: tuple[Any, ...]) -> bool:
        """Say whether the arrays may be taken as one row of elements."""
        dimensions = len(self._shape)
        if any(len(reducing.axes) != dimensions for reducing in self._reductions):
            return False
        for slot, shape in self._shapes.items():
            if slot >= self._count:
                if shape != self._shape:
                    return False
            elif shape == self._shape:
                flags = values[slot].flags
                if not (flags.f_contiguous if self._transposed else flags.c_contiguous):
                    return False
            elif int(np.prod(shape)) != 1:
                return False
        return True

    def _oriented(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        shape = (1,) * (len(self._shape) - len(shape)) + shape
        return shape[::-1] if self._transposed else shape

    def _read(self, tiled: list[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Return slot and shape of every array that tiles are read from."""
        used = {source for slot in tiled for source in self._slots[slot]}
        produced = set(tiled)
        return [
            (
                slot,
                (1,)
                if self._flat and self._shapes[slot] != self._shape
                else self._whole
                if self._flat
                else self._oriented(self._shapes[slot]),
            )
            for slot in sorted(used - produced)
            if self._shapes[slot] != ()
        ]

    def _kernel(self, tiled: list[int], evaluator: str) -> None:
        """Decide how a tile is computed, and into which buffers."""
        roots = sorted(
            {slot for slot in self._outputs if slot in self._bound} & set(tiled)
            | {r.source for r in self._reductions}
        )
        self._written = [slot for slot in roots if slot in self._outputs]
        self._compiled: numexprs.CompiledTile | None = None
        compiled = None
        if len(roots) == 1 and evaluator != "tiled":
            compiled = numexprs.compile_tile(
                {slot: (self._bound[slot], self._slots[slot]) for slot in tiled},
                roots[0],
                self._types,
                evaluator == "numexpr",
            )
        if compiled is not None:
            function, arguments = compiled
            self._buffers = {} if roots[0] in self._written else {roots[0]: (0, self._types[roots[0]])}
            self._calls = [_Call(function, _getter(arguments), roots[0], True)]
            self._compiled = function
            return
        self._calls = []
        self._buffers = self._assign_buffers(tiled, set(roots))
        for slot in tiled:
            bound = self._bound[slot]
            arguments = self._slots[slot]
            self._calls.append(_Call(bound.call, _getter(arguments), slot, bound.takes_out))

    def _assign_buffers(self, tiled: list[int], roots: set[int]) -> dict[int, tuple[int, np.dtype[Any]]]:
        """Give each result that is written into a buffer the number of one, as few as will do."""
        last_use: dict[int, int] = {}
        for slot in tiled:
            for source in self._slots[slot]:
                last_use[source] = slot
        free: dict[np.dtype[Any], list[int]] = {}
        buffers: dict[int, tuple[int, np.dtype[Any]]] = {}
        count = 0
        for slot in tiled:
            bound = self._bound[slot]
            ends = [s for s in set(self._slots[slot]) if s in buffers and s not in roots and last_use[s] == slot]
            if bound.in_place:
                for source in ends:
                    free.setdefault(buffers[source][1], []).append(buffers[source][0])
            if bound.takes_out and slot not in self._written:
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

    # -- running ----------------------------------------------------------------------------------------------

    def run(self, inputs: tuple[Any, ...]) -> Any:
        """Evaluate, with floating point errors raised that NumPy would warn of or raise."""
        errors = {kind: how if how == "ignore" else "raise" for kind, how in np.geterr().items()}
        with np.errstate(**errors):  # type: ignore[arg-type]
            if self._compiled is not None:
                self._compiled.watch(errors)
            results = self._run(inputs)
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, inputs: tuple[Any, ...]) -> list[Any]:
        values: list[Any] = [*inputs, *[None] * (len(self._bound) + len(self._reductions))]
        for slot in self._before:
            bound = self._bound[slot]
            arguments = [values[source] for source in self._slots[slot]]
            if bound.takes_out:
                values[slot] = np.empty(self._shapes[slot], bound.dtype)
                bound.call(*arguments, out=values[slot])
            else:
                values[slot] = bound.call(*arguments)
        hoisted = {slot: values[slot] for slot in self._before}
        reading = [(slot, self._orient(values[slot]), indices) for slot, indices in self._arrays.items()]
        written = {slot: np.empty(self._whole, self._types[slot]) for slot in self._written}
        totals = {
            reducing.slot: np.empty((1,) if self._flat else self._oriented(reducing.shape), reducing.dtype)
            for reducing in self._reductions
        }
        memory = {
            number: np.empty(max(int(np.prod(tile.shape)) for tile in self._tiles), dtype)
            for number, dtype in set(self._buffers.values())
        }
        current = None
        for number, tile in enumerate(self._tiles):
            if tile.shape != current:
                current = tile.shape
                size = int(np.prod(current))
                for slot, (buffer, _) in self._buffers.items():
                    values[slot] = memory[buffer][:size].reshape(current)
            for slot, array, indices in reading:
                values[slot] = array[indices[number]]
            for slot, array in written.items():
                values[slot] = array[tile.where]
            for function, arguments_of, result, takes_out in self._calls:
                if takes_out:
                    function(*arguments_of(values), out=values[result])
                else:
                    returned = values[result] = function(*arguments_of(values))
                    if returned.dtype != self._types[result]:
                        # What NumPy does with these types is not what was thought.
                        raise Unsupported
                    if result in written:
                        written[result][tile.where] = returned
            for reducing in self._reductions:
                self._reduce(reducing, tile, values[reducing.source], totals[reducing.slot])
        results = {**hoisted, **{slot: self._restore(array) for slot, array in written.items()}}
        for reducing in self._reductions:
            results[reducing.slot] = self._finish(reducing, totals[reducing.slot])
        return [results[slot] for slot in self._outputs]

    def _orient(self, array: Any) -> Any:
        if self._flat:
            return array.ravel(order="F") if self._transposed else array.reshape(-1)
        array = array.reshape((1,) * (len(self._shape) - array.ndim) + array.shape)
        return array.T if self._transposed else array

    def _restore(self, array: Any) -> Any:
        if self._flat:
            return array.reshape(self._shape, order="F" if self._transposed else "C")
        return array.T if self._transposed else array

    def _reduce(self, reducing: _Reducing, tile: Tile, values: Any, total: Any) -> None:
        ufunc, dtype = reducing.reduction.ufunc, reducing.reduction.dtype
        axes = (0,) if self._flat else reducing.axes
        at: Index = tuple([slice(None) if axis in axes else run for axis, run in enumerate(tile.where)])
        reduced = ufunc.reduce(values, axis=axes, dtype=dtype, keepdims=True)
        if all(run.start == 0 for axis, run in enumerate(tile.where) if axis in axes):
            total[at] = reduced
        else:
            ufunc(total[at], reduced, out=total[at])

    def _finish(self, reducing: _Reducing, total: Any) -> Any:
        if self._flat:
            total = total.reshape(reducing.shape)
        elif self._transposed:
            total = total.T
        if not reducing.keepdims:
            axes = {axis for axis, length in enumerate(reducing.shape) if axis in self._reduced_axes(reducing)}
            total = total.reshape([length for axis, length in enumerate(reducing.shape) if axis not in axes])
            if total.ndim == 0:
                total = total[()]
        return reducing.reduction.finish(total, self._shape, self._types[reducing.source], reducing.keywords)

    def _reduced_axes(self, reducing: _Reducing) -> set[int]:
        dimensions = len(self._shape)
        return {dimensions - 1 - axis for axis in reducing.axes} if self._transposed else set(reducing.axes)


def _type(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype
    # Python's bool is NumPy's to NumPy; its other numbers take on the dtype of what they are combined with.
    return np.dtype(bool) if type(value) is bool else type(value)


def _getter(slots: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(slots) == 1:
        (only,) = slots
        return lambda values: (values[only],)
    return operator.itemgetter(*slots)


def _in_c_order(array: Any) -> bool:
    """Say whether a walk in C order never steps back over more than it goes on."""
    strides = [abs(stride) for stride, length in zip(array.strides, array.shape, strict=True) if length > 1]
    return all(outer >= inner for outer, inner in itertools.pairwise(strides))
