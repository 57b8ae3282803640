"""Runs regions tile by tile, by their plans."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_mars.expressions.draws import Draw
from dask_mars.expressions.functions import Unsupported
from dask_mars.expressions.planning import EvaluationPlan, Reducing
from dask_mars.expressions.tiling import Index, Tile


def run(plan: EvaluationPlan, inputs: tuple[Any, ...]) -> Any:
    """Evaluate, raising the floating point errors for which NumPy would warn or raise."""
    errors = {kind: how if how == "ignore" else "raise" for kind, how in np.geterr().items()}
    with np.errstate(**errors):  # type: ignore[arg-type]
        results = _run(plan, inputs, errors)
    return results[0] if len(results) == 1 else tuple(results)


def _run(plan: EvaluationPlan, inputs: tuple[Any, ...], errors: dict[str, str]) -> list[Any]:
    values: list[Any] = [*inputs, *[None] * (plan.slot_count - len(inputs))]
    for slot, value in enumerate(inputs):
        if type(value) is Draw and slot not in plan.draws:
            values[slot] = value.array()
    for slot in plan.before:
        bound = plan.bound[slot]
        arguments = [values[source] for source in plan.slots[slot]]
        if bound.takes_out:
            values[slot] = np.empty(plan.shapes[slot], bound.dtype)
            bound.call(*arguments, out=values[slot])
        else:
            values[slot] = bound.call(*arguments)
    results = {slot: values[slot] for slot in plan.before}
    native = plan.native
    sources = {} if native is None else {slot: inputs[slot].source() for slot in plan.draws}
    done = None if native is None else native.run(values, errors, sources)
    if done is None:
        if native is not None:
            plan.cut_into_tiles()
        done = _run_tiles(plan, values, errors)
    written, totals = done
    results.update(written)
    totals = {reducing.slot: _as_asked(plan, reducing, totals[reducing.slot]) for reducing in plan.reductions}
    for slot, parts, reduction, dtype, keywords in plan.finishing:
        results[slot] = reduction.finish([totals[part] for part in parts], plan.shape, dtype, keywords)
    return [results[slot] for slot in plan.outputs]


def _run_tiles(
    plan: EvaluationPlan, values: list[Any], errors: dict[str, str]
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return the written arrays and the totals of reductions, by slot."""
    if plan.compiled is not None:
        plan.compiled.watch(errors)
    # Tiles are consecutive, as random numbers are.
    drawing = [(slot, values[slot].begin()) for slot in plan.draws]
    reading = [(slot, _orient(plan, values[slot]), indices) for slot, indices in plan.arrays.items()]
    written = {slot: np.empty(plan.whole, plan.types[slot]) for slot in plan.written}
    totals = {
        reducing.slot: np.empty((1,) if plan.flat else plan.oriented(reducing.shape), reducing.dtype)
        for reducing in plan.reductions
    }
    memory = {
        number: np.empty(max(int(np.prod(tile.shape)) for tile in plan.tiles), dtype)
        for number, dtype in set(plan.buffers.values())
    }
    current = None
    for number, tile in enumerate(plan.tiles):
        if tile.shape != current:
            current = tile.shape
            size = int(np.prod(current))
            for slot, (buffer, _) in plan.buffers.items():
                values[slot] = memory[buffer][:size].reshape(current)
        for slot, fill in drawing:
            fill(values[slot])
        for slot, array, indices in reading:
            values[slot] = array[indices[number]]
        for slot, array in written.items():
            values[slot] = array[tile.where]
        _call(plan, tile, values, written)
        for reducing in plan.reductions:
            _reduce(plan, reducing, tile, values[reducing.source], totals[reducing.slot])
    return (
        {slot: _restore(plan, array) for slot, array in written.items()},
        {
            reducing.slot: total.reshape(reducing.shape) if plan.flat else total.T if plan.transposed else total
            for reducing, total in zip(plan.reductions, totals.values(), strict=True)
        },
    )


def _call(plan: EvaluationPlan, tile: Tile, values: list[Any], written: dict[int, Any]) -> None:
    """Compute the steps of one tile."""
    for function, arguments_of, result, takes_out in plan.calls:
        if takes_out:
            function(*arguments_of(values), out=values[result])
        else:
            returned = values[result] = function(*arguments_of(values))
            if returned.dtype != plan.types[result]:
                # NumPy's result type differs from the plan's.
                raise Unsupported
            if result in written:
                written[result][tile.where] = returned


def _orient(plan: EvaluationPlan, array: Any) -> Any:
    if plan.flat:
        return array.ravel(order="F") if plan.transposed else array.reshape(-1)
    array = array.reshape((1,) * (len(plan.shape) - array.ndim) + array.shape)
    return array.T if plan.transposed else array


def _restore(plan: EvaluationPlan, array: Any) -> Any:
    if plan.flat:
        return array.reshape(plan.shape, order="F" if plan.transposed else "C")
    return array.T if plan.transposed else array


def _reduce(plan: EvaluationPlan, reducing: Reducing, tile: Tile, values: Any, total: Any) -> None:
    ufunc, dtype = reducing.ufunc, reducing.given_dtype
    axes = (0,) if plan.flat else reducing.axes
    at: Index = tuple([slice(None) if axis in axes else run for axis, run in enumerate(tile.where)])
    reduced = ufunc.reduce(values, axis=axes, dtype=dtype, keepdims=True)
    if all(run.start == 0 for axis, run in enumerate(tile.where) if axis in axes):
        total[at] = reduced
    else:
        ufunc(total[at], reduced, out=total[at])


def _as_asked(plan: EvaluationPlan, reducing: Reducing, total: Any) -> Any:
    """Remove the reduced axes unless the reduction keeps them."""
    if not reducing.keepdims:
        axes = {axis for axis, length in enumerate(reducing.shape) if axis in _reduced_axes(plan, reducing)}
        total = total.reshape([length for axis, length in enumerate(reducing.shape) if axis not in axes])
        if total.ndim == 0:
            total = total[()]
    return total


def _reduced_axes(plan: EvaluationPlan, reducing: Reducing) -> set[int]:
    dimensions = len(plan.shape)
    return {dimensions - 1 - axis for axis in reducing.axes} if plan.transposed else set(reducing.axes)
