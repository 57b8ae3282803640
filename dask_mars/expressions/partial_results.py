"""Functions with several results: unread results, and results that exist already, are not computed.

`da.linalg.svd` without its vectors, and `da.linalg.qr` with only R, factor each block by NumPy's `qr`, and take R.
Computing Q costs more than all the rest. Where mean and variance of a chunk are computed, the moments contain the
sum that the mean needs.

The programs it serves: ``da.linalg.svd(x)[1]``, and ``(x - x.mean(axis=0)) / x.std(axis=0)``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_mars.dask_api.arrays import _wrapped_qr, numel
from dask_mars.expressions.draws import Draw
from dask_mars.expressions.functions import is_mean, is_second_moment, leaves_out_nan
from dask_mars.expressions.triangular import triangular_factor
from dask_mars.graph.chunks import Operand, Step


class RItem:
    """An item of the result of a QR decomposition, without computing Q if the item is R."""

    __name__ = "qr_item"

    def __init__(self, qr: Callable[[Any], Any], exact: bool) -> None:
        self._qr = qr
        self._exact = exact

    def __call__(self, values: Any, place: Any) -> Any:
        """Return Q or R, by the place."""
        if type(place) is int and place == 1 and type(values) is np.ndarray and values.ndim == 2 and len(values):
            found = None if self._exact else triangular_factor(values)
            # NumPy's comes from the same call of LAPACK.
            return np.linalg.qr(values, mode="r") if found is None else found
        return self._qr(values)[place]


_QR = (np.linalg.qr, _wrapped_qr)


def without_unread(operand: Operand, reductions: bool) -> Operand:
    """Return an operand that computes the same, without results that no step reads."""
    pairs = _pairs(operand)
    if not pairs:
        return operand
    before = operand.input_count + operand.literal_count
    functions, steps = list(operand.functions), list(operand.steps)
    for index, step in enumerate(steps):
        source = step.slots[0] - before if step.slots else -1
        if source in pairs:
            # The step that reads the only item calls the function instead.
            call = operand.steps[source]
            functions.append(RItem(operand.functions[call.function], exact=not reductions))
            steps[index] = Step(len(functions) - 1, (call.slots[0], step.slots[1]), ())
    return operand.reordered(functions, steps, [index for index in range(len(steps)) if index not in pairs])


def _pairs(operand: Operand) -> frozenset[int]:
    """Return the `qr` steps whose result is read only once, by `getitem`."""
    before = operand.input_count + operand.literal_count
    known = {place for place, function in enumerate(operand.functions) if any(function is qr for qr in _QR)}
    if not known:
        return frozenset()
    calls = {
        before + index
        for index, step in enumerate(operand.steps[:-1])
        if step.function in known and len(step.slots) == 1 and not step.keywords
    }
    for step in operand.steps:
        reads_item = operand.functions[step.function] is operator.getitem and len(step.slots) == 2
        for slot in step.slots if not reads_item or step.slots[0] == step.slots[1] else step.slots[1:]:
            calls.discard(slot)
    read = [step.slots[0] for step in operand.steps if step.slots]
    return frozenset([slot - before for slot in calls if read.count(slot) == 1])


class MeanOfMoments:
    """Dask's `mean_chunk`, with the sum taken from the moments of the same array."""

    __name__ = "mean_chunk"

    def __init__(self, function: Any) -> None:
        self._function = function
        self._dtype = function.keywords.get("dtype", "f8")
        self._leaves_out_nan = leaves_out_nan(function)

    def __call__(
        self, values: Any, axis: Any, keepdims: Any, moments: Any, other_axis: Any, other_keepdims: Any
    ) -> Any:
        """Return count and sum."""
        drawn = type(values) is Draw
        plain = drawn or type(values) is np.ndarray
        alike = plain and axis == other_axis and keepdims is True and other_keepdims is True
        if alike and type(moments) is dict and getattr(moments.get("total"), "dtype", None) == self._dtype:
            if self._leaves_out_nan:
                count = moments["n"].astype(self._dtype)
            else:
                count = numel(values, dtype=self._dtype, axis=axis, keepdims=keepdims)
            return {"n": count, "total": moments["total"]}
        return self._function(values.array() if drawn else values, axis=axis, keepdims=keepdims)


def with_means_of_moments(operand: Operand) -> Operand:
    """Return an operand that computes the same, without sums that its moments contain."""
    known = [
        index
        for index, step in enumerate(operand.steps)
        if step.keywords == ("axis", "keepdims") and len(step.slots) == 3
    ]
    if len(known) < 2:
        return operand
    before = operand.input_count + operand.literal_count
    called = {index: operand.functions[operand.steps[index].function] for index in known}
    moments: dict[tuple[int, bool], int] = {}
    for index in known:
        # Literals are available whichever of the two comes first.
        if is_second_moment(called[index]) and max(operand.steps[index].slots[1:]) < before:
            moments.setdefault((operand.steps[index].slots[0], leaves_out_nan(called[index])), index)
    means = {
        index: moments[source]
        for index in known
        if is_mean(called[index])
        and (source := (operand.steps[index].slots[0], leaves_out_nan(called[index]))) in moments
    }
    if not means:
        return operand
    functions, steps = list(operand.functions), list(operand.steps)
    order: list[int] = []
    for index, step in enumerate(operand.steps):
        if index in means:
            moment = means[index]
            functions.append(MeanOfMoments(called[index]))
            slots = (*step.slots, before + moment, *operand.steps[moment].slots[1:])
            steps[index] = Step(len(functions) - 1, slots, ())
            if moment > index:
                order.append(moment)
        order.append(index)
    return operand.reordered(functions, steps, dict.fromkeys(order))
