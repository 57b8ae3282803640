"""Operands rewritten so that their regions are evaluated block by block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from dask_mars.dask_api.arrays import nannumel, numel
from dask_mars.expressions import draws, functions, histograms, moments, native
from dask_mars.expressions.adjacent import with_views
from dask_mars.expressions.evaluate import SMALL, Joinable, RegionFunction, transposed
from dask_mars.expressions.partial_results import MeanOfMoments, with_means_of_moments, without_unread
from dask_mars.expressions.regions import Kind, Region, find_regions
from dask_mars.expressions.selections import SelectedSum, with_selected_sums
from dask_mars.graph.chunks import Operand, Step

#: Maximum number of readers that each draw the same random numbers again, instead of storing them.
_MOST_READERS = 3


def with_expressions(operand: Operand, reductions: bool = True) -> Operand:
    """Return an operand that computes the same, with its regions as single steps."""
    operand = with_views(without_unread(operand, reductions))
    if reductions:
        operand = with_selected_sums(with_means_of_moments(operand))
    known = [_known(operand.functions[step.function], step, reductions) for step in operand.steps]
    kinds = [_kind(what) for what in known]
    regions = find_regions(operand, kinds)
    replaced = _block_steps(operand, reductions)
    sources = _sources(kinds)
    if sources:
        lazy = _lazy_sources(operand, sources, regions, replaced)
        # A single step gains nothing unless one of its inputs is never an array.
        before = operand.input_count + operand.literal_count
        regions = [
            region
            for region in regions
            if len(region.steps) > 1
            or kinds[region.steps[0]] is Kind.REDUCTION
            or any(slot - before in lazy for slot in region.inputs)
        ]
        for index in sources:
            replaced[index] = draws.lazy_random_chunk if index in lazy else draws.random_chunk
    # Only now, since these functions need arrays: a lazy source cannot be among their arguments.
    replaced.update(_pending_steps(operand, regions))
    if not regions and not replaced:
        return operand
    return _Rewriter(operand, known, regions, replaced).operand()


def never_stored(operand: Operand, reductions: bool) -> bool:
    """Return whether the readers in an operand draw all its random numbers block by block."""
    kinds = [_kind(_known(operand.functions[step.function], step, reductions)) for step in operand.steps]
    by_blocks = _block_steps(operand, reductions)
    sources = _sources(kinds)
    return _lazy_sources(operand, sources, find_regions(operand, kinds), by_blocks) == sources


def make_ns(operand: Operand, literals: tuple[Any, ...]) -> float | None:
    """Return the nanoseconds per element of a chunk, or None if the chunk is not drawn block by block."""
    (step,) = operand.steps
    if operand.functions[0] is not draws.DASK_FUNCTION or len(step.slots) != 6 or step.keywords:
        return None
    return draws.make_ns(*[literals[slot] for slot in step.slots], fewest=SMALL)


def _sources(kinds: Sequence[Kind]) -> set[int]:
    return {index for index, kind in enumerate(kinds) if kind is Kind.SOURCE}


def _known(function: Callable[..., Any], step: Step, reductions: bool) -> Any:
    if function is draws.DASK_FUNCTION and len(step.slots) == 6 and not step.keywords:
        return Kind.SOURCE
    if type(function) is SelectedSum:
        # The cache of known functions would keep it, and its plans hold memory of the store.
        return None
    found: Any = functions.elementwise(function, step.keywords)
    if found is None and reductions and len(step.slots) == 1 + len(step.keywords):
        found = functions.reduction(function, step.keywords)
    return found


def _kind(known: Any) -> Kind:
    if known is None:
        return Kind.OPAQUE
    if known is Kind.SOURCE:
        return Kind.SOURCE
    if isinstance(known, functions.Reduction):
        return Kind.REDUCTION
    return Kind.ELEMENTWISE


def _lazy_sources(
    operand: Operand, sources: set[int], regions: list[Region], by_blocks: Collection[int]
) -> set[int]:
    """Return the sources that are never needed as arrays: their readers draw the elements one block at a time."""
    if not native.AVAILABLE:
        return set()
    before = operand.input_count + operand.literal_count
    region_of = {step: place for place, region in enumerate(regions) for step in region.steps}
    readers: dict[int, set[Any]] = {index: set() for index in sources}
    lazy = sources - {len(operand.steps) - 1}
    for index, step in enumerate(operand.steps):
        for place, slot in enumerate(step.slots):
            if slot - before not in sources:
                continue
            readers[slot - before].add(region_of.get(index, -1 - index))
            if index not in region_of and not (index in by_blocks and place == 0):
                lazy.discard(slot - before)
    return {index for index in lazy if len(readers[index]) <= _MOST_READERS}


def _pending_steps(operand: Operand, regions: list[Region]) -> dict[int, Callable[..., Any]]:
    """Return, for joinable steps whose results a single region reads, functions for pending results."""
    before = operand.input_count + operand.literal_count
    readers: dict[int, list[int]] = {}
    for index, step in enumerate(operand.steps):
        for slot in set(step.slots):
            readers.setdefault(slot - before, []).append(index)
    found: dict[int, Callable[..., Any]] = {}
    for index, step in enumerate(operand.steps):
        function = operand.functions[step.function]
        if not isinstance(function, Joinable):
            continue
        last, read, lazy = index, readers.get(index, []), {index: function.lazily}
        if len(read) == 1 and _is_transposition(operand, operand.steps[read[0]], before + index):
            # `apply_gufunc` transposes all results, though most axes stay in place.
            last = read[0]
            read, lazy[last] = readers.get(last, []), transposed
        if any(set(read) <= set(region.steps) and before + last in region.inputs for region in regions):
            found.update(lazy)
    return found


def _is_transposition(operand: Operand, step: Step, slot: int) -> bool:
    """Return whether a step transposes the array in a slot to given axes."""
    has_axes = len(step.slots) == 2 and step.slots[0] == slot != step.slots[1] and step.keywords in ((), ("axes",))
    return has_axes and operand.functions[step.function] is np.transpose


def _block_steps(operand: Operand, reductions: bool) -> dict[int, Callable[..., Any]]:
    """Return, for the steps that read their chunk in parts, the functions that do so."""
    found: dict[int, Callable[..., Any]] = _moment_steps(operand) if reductions else {}
    for index, step in enumerate(operand.steps):
        function = operand.functions[step.function]
        if histograms.is_histogram(function, step.slots, step.keywords):
            found[index] = histograms.block_histogram
        elif type(function) is MeanOfMoments:
            # Usually such a step needs only the shape of the chunk.
            found[index] = function
    return found


def _moment_steps(operand: Operand) -> dict[int, Callable[..., Any]]:
    """Return, for the steps that compute second moments, functions without temporaries."""
    found: dict[int, Callable[..., Any]] = {}
    for index, step in enumerate(operand.steps):
        function = operand.functions[step.function]
        if (
            functions.is_second_moment(function)
            and set(step.keywords) == {"axis", "keepdims"}
            and len(step.slots) == 3
        ):
            found[index] = Moments(function)
    return found


class _Rewriter:
    """Reassembles a program with its regions as single steps."""

    def __init__(
        self, operand: Operand, known: list[Any], regions: list[Region], replaced: dict[int, Callable[..., Any]]
    ) -> None:
        self._old = operand
        self._known = known
        self._replaced = replaced
        self._before = operand.input_count + operand.literal_count
        self._region_of = {step: region for region in regions for step in region.steps}
        self._functions: list[Callable[..., Any]] = []
        self._steps: list[Step] = []
        #: New slot of each old one.
        self._slots: dict[int, int] = {slot: slot for slot in range(self._before)}

    def operand(self) -> Operand:
        """Return the new operand."""
        self._emit(len(self._old.steps) - 1)
        return self._old.replaced(self._functions, self._steps)

    def _emit(self, last: int) -> None:
        """Emit a step after its inputs, each region as a whole."""
        stack = [last]
        while stack:
            index = stack[-1]
            if self._before + index in self._slots:
                stack.pop()
                continue
            region = self._region_of.get(index)
            needed = region.inputs if region is not None else self._old.steps[index].slots
            waiting = [slot - self._before for slot in needed if slot not in self._slots]
            if waiting:
                stack.extend(sorted(waiting, reverse=True))
                continue
            stack.pop()
            if region is not None:
                self._emit_region(region)
            else:
                step = self._old.steps[index]
                function = self._replaced.get(index, self._old.functions[step.function])
                slots = tuple([self._slots[slot] for slot in step.slots])
                self._slots[self._before + index] = self._add(function, slots, step.keywords)

    def _add(self, function: Callable[..., Any], slots: tuple[int, ...], keywords: tuple[str, ...] = ()) -> int:
        self._functions.append(function)
        self._steps.append(Step(len(self._functions) - 1, slots, keywords))
        return self._before + len(self._steps) - 1

    def _emit_region(self, region: Region) -> None:
        result = self._add(self._function(region), tuple([self._slots[slot] for slot in region.inputs]))
        if len(region.outputs) == 1:
            self._slots[self._before + region.outputs[0]] = result
            return
        for place, index in enumerate(region.outputs):
            self._slots[self._before + index] = self._add(partial(_pick, place), (result,))

    def _function(self, region: Region) -> RegionFunction:
        old, before = self._old, self._before
        inner = {slot: place for place, slot in enumerate(region.inputs)}
        for place, index in enumerate(region.steps):
            inner[before + index] = len(region.inputs) + place
        program = Operand(
            old.name,
            old.functions,
            tuple(
                [
                    Step(step.function, tuple([inner[slot] for slot in step.slots]), step.keywords)
                    for step in (old.steps[index] for index in region.steps)
                ]
            ),
            len(region.inputs),
            0,
        )
        outputs = tuple([region.steps.index(index) for index in region.outputs])
        known = [self._known[index] for index in region.steps]
        parts = [(self._function(part), [inner[slot] for slot in part.inputs]) for part in region.parts]
        return RegionFunction(program, known, outputs, parts)


def _pick(place: int, values: tuple[Any, ...]) -> Any:
    return values[place]


class Moments:
    """Dask's `moment_chunk` for the second moment, with no temporary as large as the chunk."""

    __name__ = "moment_chunk"

    def __init__(self, function: partial[Any]) -> None:
        self._function = function
        dtype = function.keywords.get("dtype", "f8")
        self._dtype = dtype
        self._totals = _nan_totals(dtype) if functions.leaves_out_nan(function) else None
        total = partial(np.sum if self._totals is None else np.nansum, dtype=dtype)
        steps = (Step(0, (0, 1), ()), Step(1, (5, 2), ()), Step(2, (6, 3, 4), ("axis", "keepdims")))
        program = Operand("moment", (_subtract, _power, total), steps, 5, 0)
        known = [_known(f, step, True) for f, step in zip(program.functions, steps, strict=True)]
        self._squares = RegionFunction(program, known, (2,))

    def __call__(self, values: Any, axis: Any, keepdims: bool) -> Any:
        """Return count, sum and sum of squared differences to the mean."""
        drawn = type(values) is draws.Draw
        # Random numbers are never NaN. Arrays of other libraries may have no size, or a method of that name.
        is_known = drawn or (self._totals is None and type(values) is np.ndarray)
        if keepdims and is_known and values.size >= SMALL:
            found = moments.by_columns(values, axis, self._dtype)
            if found is not None:
                count = numel(values, axis=axis, keepdims=True).astype(np.int64)
                return {"total": found[0], "n": count, "M": found[1][..., np.newaxis]}
        if drawn:
            values = values.array()
        if self._totals is not None:
            return self._of_numbers(values, axis, keepdims)
        if not (type(values) is np.ndarray and values.size >= SMALL and values.dtype.kind in "fiub" and keepdims):
            return self._function(values, axis=axis, keepdims=keepdims)
        count = numel(values, axis=axis, keepdims=keepdims).astype(np.int64)
        total = np.sum(values, dtype=self._dtype, axis=axis, keepdims=keepdims)
        return self._with_squares(values, total, count, axis, keepdims)

    def _of_numbers(self, values: Any, axis: Any, keepdims: bool) -> Any:
        """Return the moments of all elements but NaN."""
        assert self._totals is not None
        if not (type(values) is np.ndarray and values.size >= SMALL and values.dtype.char in "fd" and keepdims):
            return self._function(values, axis=axis, keepdims=keepdims)
        total, count = self._totals(values, axis, keepdims)
        return self._with_squares(values, total, count, axis, keepdims)

    def _with_squares(self, values: Any, total: Any, count: Any, axis: Any, keepdims: bool) -> dict[str, Any]:
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / count
        squares = self._squares(values, mean, 2, axis, keepdims)
        return {"total": total, "n": count, "M": np.stack([squares], axis=-1)}


def _nan_totals(dtype: Any) -> RegionFunction:
    """Return a function for sum and count of the elements that are not NaN."""
    program = Operand(
        "totals", (partial(_total_and_count, dtype=dtype),), (Step(0, (0, 1, 2), ("axis", "keepdims")),), 3, 0
    )
    return RegionFunction(program, [functions.total_and_count(dtype)], (0,))


def _total_and_count(values: Any, dtype: Any, **keywords: Any) -> tuple[Any, Any]:
    return np.nansum(values, dtype=dtype, **keywords), nannumel(values, **keywords).astype(np.int64)


_subtract: Callable[..., Any] = np.subtract
_power: Callable[..., Any] = pow
