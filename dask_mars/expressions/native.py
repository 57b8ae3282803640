"""Plans as native programs: NumPy's own inner loops, called from C on blocks that stay in the first-level cache.

`numpy.ufunc._get_strided_loop` returns the loops, and is documented for this use. Casts and `where`, for which it
has none, have loops of our own (`_loops.c`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from dask_mars.expressions.functions import Bound, Unsupported
from dask_mars.expressions.positions import is_same_anywhere, sincos_loop

try:
    from dask_mars.expressions import _native
except ImportError:
    AVAILABLE = False
    group_sums = histogram = moments = rest = table_sum = None
else:
    AVAILABLE = hasattr(np.ufunc, "_get_strided_loop")
    group_sums = _native.group_sums
    histogram = _native.histogram
    moments = _native.moments
    rest = _native.rest
    table_sum = _native.table_sum

#: Bytes for the buffers of one block: about a quarter of a first-level cache. The arrays need the rest, for this
#: block and the next.
CACHE_BYTES = 1 << 13
#: Minimum and maximum elements of a block. Shorter blocks cost more calls than they save.
LEAST_BLOCK, MOST_BLOCK = 1 << 10, 1 << 12


class Chain(NamedTuple):
    """The computation, in slots as `EvaluationPlan` numbers them."""

    #: Shape of every step's result.
    shape: tuple[int, ...]
    #: Whether the arrays are in Fortran order.
    transposed: bool
    #: Type and shape of each slot.
    types: Mapping[int, Any]
    shapes: Mapping[int, tuple[int, ...]]
    #: By slot, in order: the function, and the slots of its arguments.
    steps: Mapping[int, tuple[Bound, tuple[int, ...]]]
    #: Slots whose results are returned.
    written: Sequence[int]
    #: Reductions at the ends.
    reductions: Sequence[Reduced]
    #: The inputs; only exponents are read.
    values: tuple[Any, ...]
    #: Inputs that a source makes block by block.
    made: Collection[int] = ()


class Reduced(NamedTuple):
    """A reduction: its slot, the slot it reduces, and the shape of the result with all axes kept."""

    slot: int
    source: int
    ufunc: np.ufunc
    #: Dtype argument of the reduction, or None.
    given_dtype: Any
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Slot(NamedTuple):
    """A slot, and a dtype."""

    slot: int
    dtype: np.dtype[Any] | None


# Named tuples of their own would cost half a millisecond each at import.
class _Read(_Slot):
    """An array that blocks are read from: a slot's value, converted if there is a dtype."""


class _Made(_Slot):
    """An input that a source makes block by block."""


class _Written(_Slot):
    """An array for the result of a slot."""


class _Total(NamedTuple):
    """An array for a reduction's result, and the initial value of its elements."""

    reduced: Reduced
    initial: np.ndarray[Any, Any]


_Array: TypeAlias = _Read | _Made | _Written | _Total | np.ndarray[Any, Any]


class _Step(NamedTuple):
    loop: Any
    #: References to arrays, or, negative, to buffers. A step writes the last one, a reduction the first.
    references: tuple[int, ...]
    flags: int

    def inputs(self) -> tuple[int, ...]:
        """Return references to what the step reads."""
        return self.references[1:] if self.flags & _native.REDUCTION else self.references[:-1]


class NativePlan:
    """A chain as a native program."""

    # It raises `Unsupported` if a step has no suitable loop for these types.

    def __init__(self, chain: Chain) -> None:
        if not AVAILABLE:
            raise Unsupported
        builder = _Builder(chain)
        steps, buffer_items = _share_buffers(_before_sums(builder.steps), builder.buffers)
        block = MOST_BLOCK
        while block > LEAST_BLOCK and block * sum(buffer_items) > CACHE_BYTES:
            block //= 2
        self._shape = chain.shape
        self._order: Literal["C", "F"] = "F" if chain.transposed else "C"
        self._arrays = builder.arrays
        try:
            self._program = _native.Program(
                tuple([tuple(step) for step in steps]),
                tuple(builder.items),
                buffer_items,
                chain.shape[::-1] if chain.transposed else chain.shape,
                chain.transposed,
                block,
            )
        except ValueError:
            # A loop needs Python, or the program exceeds a limit.
            raise Unsupported from None

    def run(
        self,
        values: list[Any],
        errors: dict[str, str],
        sources: Mapping[int, Any] = MappingProxyType({}),
        into: np.ndarray[Any, Any] | None = None,
    ) -> tuple[dict[int, Any], dict[int, Any]] | None:
        """Compute the written arrays and the totals of reductions, by slot; return None if NumPy has to do it."""
        written: dict[int, Any] = {}
        totals: dict[int, Any] = {}
        arrays = []
        for kind in self._arrays:
            if type(kind) is _Read:
                value = values[kind.slot]
                arrays.append(value if kind.dtype is None else np.asarray(value, kind.dtype))
            elif type(kind) is _Made:
                arrays.append(sources[kind.slot])
            elif type(kind) is _Written:
                # Callers that give an array have a single result.
                written[kind.slot] = np.empty(self._shape, kind.dtype, self._order) if into is None else into
                arrays.append(written[kind.slot])
            elif type(kind) is _Total:
                total = totals[kind.reduced.slot] = np.empty(kind.reduced.shape, kind.reduced.dtype, self._order)
                total.fill(kind.initial)
                arrays.append(total)
            else:
                arrays.append(kind)
        watched = 0
        for name, flag in _FLAGS.items():
            if errors[name] != "ignore":
                watched |= flag
        return (written, totals) if self._program.run(watched, *arrays) else None


class _Builder:
    """Collects the steps of a program, and the arrays and buffers they use."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.steps: list[_Step] = []
        self.arrays: list[_Array] = []
        #: Item sizes of the arrays.
        self.items: list[int] = []
        self.buffers: list[np.dtype[Any]] = []
        self._places: dict[tuple[int, Any], int] = {}
        sines, cosines = self._by_argument(np.sin), self._by_argument(np.cos)
        both = sines.keys() & cosines.keys()
        loop = sincos_loop() if both else None
        for slot, (bound, sources) in chain.steps.items():
            if loop is None or bound.call not in _SINCOS or sources not in both:
                self._add(slot, bound, sources)
            elif (slot, bound.dtype) not in self._places:
                self._add_both(loop, (sines[sources], cosines[sources]), sources[0], bound.dtype)
        for reduced in chain.reductions:
            self._add_reduction(reduced)

    def _add(self, slot: int, bound: Bound, sources: tuple[int, ...]) -> None:
        """Add a step, and the casts that it needs."""
        chain = self._chain
        ufunc, loop, dtypes = self._loop(bound, sources)
        # A short cut for a power has no exponent.
        arguments = list(zip(sources[: len(dtypes)], dtypes, strict=True))
        references = tuple([self._value(source, dtype) for source, dtype in arguments])
        flags = 0
        same = bound.positional and self._is_same_anywhere(ufunc, {*dtypes, bound.dtype})
        if same and not (ufunc in _POWERS and self._is_repeated(sources[1])):
            flags = _native.FORWARD
        elif bound.positional:
            flags = _native.POSITIONAL
            if any(chain.types[source] != dtype for source, dtype in arguments if chain.shapes[source]):
                # NumPy casts through buffers, whose ends affect the grouping of elements.
                flags |= _native.CAST_BEFORE
        if slot in chain.written:
            result = self._array(_Written(slot, bound.dtype), bound.dtype)
        else:
            result = self._buffer(bound.dtype)
        self._places[slot, bound.dtype] = result
        self.steps.append(_Step(loop, (*references, result), flags))

    def _by_argument(self, ufunc: np.ufunc) -> dict[tuple[int, ...], int]:
        """Return the slots of a function of doubles whose results stay in buffers, by its argument."""
        chain = self._chain
        return {
            sources: slot
            for slot, (bound, sources) in chain.steps.items()
            if bound.call is ufunc and chain.types[sources[0]] == np.float64 and slot not in chain.written
        }

    def _add_both(self, loop: Any, slots: tuple[int, int], source: int, dtype: np.dtype[Any]) -> None:
        """Add a step with two results."""
        argument, results = self._value(source, dtype), (self._buffer(dtype), self._buffer(dtype))
        self._places.update(zip([(slot, dtype) for slot in slots], results, strict=True))
        self.steps.append(_Step(loop, (argument, *results), _native.PAIR))

    def _add_reduction(self, reduced: Reduced) -> None:
        dtype = reduced.dtype
        initial = np.array(_initial(reduced.ufunc, dtype), dtype)
        dtypes, loop = _inner_loop(reduced.ufunc, (None, dtype, None), reduction=True)
        if set(dtypes) != {dtype}:
            raise Unsupported
        source = self._value(reduced.source, dtype)
        total = self._array(_Total(reduced, initial), dtype)
        flags = _native.REDUCTION
        if reduced.ufunc is np.add and dtype.char == "d":
            flags |= _native.SUM
        if reduced.ufunc is np.add and dtype.kind in "fc":
            flags |= _native.PAIRWISE
        self.steps.append(_Step(loop, (total, source, self._array(initial, dtype)), flags))

    def _is_same_anywhere(self, ufunc: np.ufunc | None, dtypes: set[np.dtype[Any]]) -> bool:
        """Return whether the last bits of results do not depend on neighbours; False if unneeded."""
        arrays = [value for value in self._chain.values if type(value) is np.ndarray]
        if ufunc is None or len(dtypes) != 1 or all(array.flags.forc for array in arrays):
            return False
        return is_same_anywhere(ufunc, *dtypes)

    def _is_repeated(self, slot: int) -> bool:
        """Return whether numbers are repeated along axes: loops of powers look for one exponent of a whole run."""
        shape = self._chain.shapes[slot]
        if shape in ((), self._chain.shape):
            value = self._chain.values[slot] if slot < len(self._chain.values) else None
            strides = value.strides if type(value) is np.ndarray else ()
            return any(not stride and length > 1 for stride, length in zip(strides, shape, strict=False))
        return True

    def _loop(
        self, bound: Bound, sources: tuple[int, ...]
    ) -> tuple[np.ufunc | None, Any, tuple[np.dtype[Any], ...]]:
        """Return a step's ufunc, if it is one, its inner loop, and the dtypes of its arguments."""
        types = [self._chain.types[source] for source in sources]
        if bound.name == "astype":
            return None, _cast(types[0], bound.dtype), (types[0],)
        if bound.name == "without_nan":
            return None, _native.without_nan(bound.dtype.char), (types[0],)
        if bound.name == "where":
            return None, _native.select(bound.dtype.itemsize), (types[0], bound.dtype, bound.dtype)
        ufunc: Any = bound.call
        if bound.name == "power":
            ufunc = self._power(types, sources[1])
        elif bound.name == "clip":
            ufunc = _CLIP
        dtypes, loop = _inner_loop(ufunc, (*types[: ufunc.nin], None))
        if dtypes[-1] != bound.dtype:
            raise Unsupported
        if ufunc in _ARITHMETIC and len(set(dtypes)) == 1:
            loop = _native.arithmetic(ufunc.__name__, bound.dtype.char) or loop
        return ufunc, loop, dtypes[:-1]

    def _power(self, types: list[Any], exponent: int) -> np.ufunc:
        """Return the ufunc that NumPy's operator calls."""
        if self._chain.shapes[exponent]:
            return np.power
        value = self._chain.values[exponent]
        if not isinstance(types[0], np.dtype) or type(value) not in (int, float):
            raise Unsupported
        if types[0].kind in "iu" and type(value) is int:
            return np.square if value == 2 else np.power
        # For these exponents NumPy has short cuts, which differ between versions.
        if value not in (-1, 0, 0.5, 1, 2):
            return np.power
        if value == 0.5 and types[0].kind == "f":
            return _square_root(types[0])
        raise Unsupported

    def _value(self, slot: int, dtype: np.dtype[Any]) -> int:
        """Return a reference to a slot's value in a dtype."""
        place = self._places.get((slot, dtype))
        if place is not None:
            return place
        own, shape = self._chain.types[slot], self._chain.shapes[slot]
        if own != dtype and shape == self._chain.shape:
            source = self._value(slot, own)
            place = self._buffer(dtype)
            self.steps.append(_Step(_cast(own, dtype), (source, place), 0))
        elif slot in self._chain.made and shape == self._chain.shape:
            place = self._array(_Made(slot, dtype), dtype)
        else:
            plain = own == dtype and shape != ()
            place = self._array(_Read(slot, None if plain else dtype), dtype)
        self._places[slot, dtype] = place
        return place

    def _array(self, kind: _Array, dtype: np.dtype[Any]) -> int:
        self.arrays.append(kind)
        self.items.append(dtype.itemsize)
        return len(self.arrays) - 1

    def _buffer(self, dtype: np.dtype[Any]) -> int:
        self.buffers.append(dtype)
        return -len(self.buffers)


def _before_sums(steps: list[_Step]) -> list[_Step]:
    """Move steps whose results only a sum reads before that sum, which may then replace them."""
    reads = Counter(reference for step in steps for reference in step.inputs())
    writers = {step.references[-1]: step for step in steps if not step.flags & (_native.REDUCTION | _native.PAIR)}
    moved: dict[int, _Step] = {}
    for step in steps:
        source = step.references[1]
        if step.flags & _native.SUM and source in writers and source < 0 and reads[source] == 1:
            moved[source] = writers[source]
    ordered = []
    for step in steps:
        if step.flags & _native.SUM and step.references[1] in moved:
            ordered.append(moved[step.references[1]])
            step = step._replace(flags=step.flags | _native.OF_RESULTS)
        elif step.references[-1] in moved:
            continue
        ordered.append(step)
    return ordered


def _share_buffers(steps: list[_Step], dtypes: list[np.dtype[Any]]) -> tuple[list[_Step], tuple[int, ...]]:
    """Let results with disjoint lifetimes share buffers; return the steps, and the buffers' item sizes."""
    last_use: dict[int, int] = {}
    for index, step in enumerate(steps):
        for reference in step.references:
            last_use[reference] = index
    shared: dict[int, int] = {}
    items: list[int] = []
    free: dict[np.dtype[Any], list[int]] = {}
    changed = []
    for index, step in enumerate(steps):
        # A loop may overwrite an argument of its result's type.
        for reference in set(step.references):
            if reference in shared and last_use[reference] == index:
                free.setdefault(dtypes[-1 - reference], []).append(shared[reference])
        for reference in step.references:
            if reference < 0 and reference not in shared:
                dtype = dtypes[-1 - reference]
                available = free.get(dtype)
                if available:
                    shared[reference] = available.pop()
                else:
                    items.append(dtype.itemsize)
                    shared[reference] = -len(items)
        references = tuple([shared.get(reference, reference) for reference in step.references])
        changed.append(_Step(step.loop, references, step.flags))
    return changed, tuple(items)


def _inner_loop(ufunc: Any, types: tuple[Any, ...], reduction: bool = False) -> tuple[tuple[Any, ...], Any]:
    """Return NumPy's dtypes for these types, and the loop for them."""
    dtypes, loop = ufunc._resolve_dtypes_and_context(types, reduction=reduction)
    ufunc._get_strided_loop(loop)
    return dtypes, loop


def _cast(own: np.dtype[Any], dtype: np.dtype[Any]) -> Any:
    loop = _native.cast(own.char, dtype.char)
    if loop is None:
        raise Unsupported
    return loop


@cache
def _square_root(dtype: np.dtype[Any]) -> np.ufunc:
    """Return the ufunc of `** 0.5`: for -0.0 the power is 0.0, but the square root is -0.0."""
    (zero,) = np.array([-0.0], dtype) ** 0.5
    return np.sqrt if np.signbit(zero) else np.power


def _initial(ufunc: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """Return a neutral initial value of a reduction."""
    if ufunc is np.add:
        if dtype.char == "e":
            # Each block's sum would be rounded.
            raise Unsupported
        # NumPy's versions differ in the sum of negative zeros.
        return ufunc.reduce(np.full(1, complex(-0.0, -0.0) if dtype.kind == "c" else -0.0).astype(dtype))
    if ufunc in (np.logical_or, np.logical_and):
        return ufunc.identity
    if ufunc in (np.fmin, np.fmax) and dtype.kind == "f":
        return np.nan
    largest = ufunc in (np.minimum, np.fmin)
    if dtype.kind == "b":
        return largest
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.max if largest else limits.min
    if dtype.kind == "f":
        return np.inf if largest else -np.inf
    raise Unsupported


#: Ufuncs with loops of our own for floats and doubles.
_ARITHMETIC = frozenset([np.absolute, np.add, np.divide, np.multiply, np.negative, np.square, np.subtract])
_POWERS = frozenset([np.power, np.float_power])
_SINCOS = frozenset([np.sin, np.cos])
#: The ufunc that `numpy.clip` calls.
_CLIP: Any = np.clip if not AVAILABLE else np._core.umath.clip  # type: ignore[attr-defined]
_FLAGS = (
    {"divide": _native.DIVIDE, "over": _native.OVER, "under": _native.UNDER, "invalid": _native.INVALID}
    if AVAILABLE
    else {}
)
