"""Sums and means of the elements that a mask selects, without an array of them.

NumPy copies the selection ``x[x > 0]`` run by run, which takes ten times as long as adding it up, and holds the
GIL. A sum with zeros in place of the other elements is the same.

The programs it serves: ``x[x > 0].mean()`` and the like.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dask_mars.dask_api.arrays import _enforce_dtype, getitem
from dask_mars.expressions import functions, native
from dask_mars.expressions.evaluate import SMALL, RegionFunction
from dask_mars.graph.callables import look_up
from dask_mars.graph.chunks import Operand, Step

_where: Callable[..., Any] = np.where
_ITEMS = (operator.getitem, getitem)
#: Functions that select, with the names of their arguments besides array and mask; and arguments of reductions.
_SELECTS: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys(_ITEMS, ()),
    _enforce_dtype: ("enforce_dtype", "enforce_dtype_function"),
}
_REDUCES = ("axis", "keepdims")


class SelectedSum:
    """A reduction by addition over the elements that a mask selects."""

    __name__ = "selected_sum"

    def __init__(self, select: Callable[..., Any], reduce: Callable[..., Any]) -> None:
        self._select, self._reduce = select, reduce
        self._names = _SELECTS[select]
        known = functions.reduction(reduce, _REDUCES)
        choice = functions.elementwise(_where, ())
        assert known is not None
        assert choice is not None
        self._finish = known.finish
        (part,) = known.parts
        total = functions.Reduction((part,), _as_it_is)
        steps = (Step(0, (0, 1, 2), ()), Step(1, (5, 3, 4), _REDUCES))
        program = Operand("selected sum", (_where, partial(np.sum, dtype=part.dtype)), steps, 5, 0)
        self._sum = RegionFunction(program, [choice, total], (1,))

    def __call__(self, values: Any, mask: Any, *rest: Any) -> Any:
        """Return the reduction's result; `rest` has the keyword arguments of both functions."""
        given = dict(zip((*self._names, *_REDUCES), rest, strict=True))
        axis, keepdims = given.pop("axis"), given.pop("keepdims")
        count = int(np.count_nonzero(mask)) if self._is_known(values, mask, given, axis, keepdims) else 0
        if not count:
            return self._reduce(self._select(values, mask, **given), axis=axis, keepdims=keepdims)
        # Adding this zero changes no sum, not even one of negative zeros.
        zero = values.dtype.type(-0.0 if values.dtype.kind == "f" else 0)
        total = self._sum(mask.reshape(-1), values.reshape(-1), zero, 0, True)
        return self._finish([total], (count,), values.dtype, {"axis": axis, "keepdims": keepdims})

    def _is_known(self, values: Any, mask: Any, given: dict[str, Any], axis: Any, keepdims: Any) -> bool:
        return (
            type(values) is np.ndarray
            and type(mask) is np.ndarray
            and mask.dtype == np.bool_
            and mask.shape == values.shape
            and values.size >= SMALL
            and values.dtype.kind in "fiu"
            and values.flags.c_contiguous
            and mask.flags.c_contiguous
            # A selection has one axis.
            and axis in (0, (0,))
            and keepdims is True
            and given.get("enforce_dtype", values.dtype) == values.dtype
            and given.get("enforce_dtype_function", operator.getitem) in _ITEMS
        )


def with_selected_sums(operand: Operand) -> Operand:
    """Return an operand that computes the same, without arrays of selections that are only added up."""
    if not native.AVAILABLE:
        return operand
    selects = {
        index
        for index, step in enumerate(operand.steps)
        if _names_of(operand.functions[step.function]) == step.keywords
        and len(step.slots) == 2 + len(step.keywords)
    }
    if not selects:
        return operand
    before = operand.input_count + operand.literal_count
    read = [slot for step in operand.steps for slot in step.slots]
    functions_, steps = list(operand.functions), list(operand.steps)
    unused = set()
    for index, step in enumerate(operand.steps):
        source = step.slots[0] - before if step.slots else -1
        function = operand.functions[step.function]
        if source not in selects or read.count(step.slots[0]) != 1 or not _adds(function, step):
            continue
        select = operand.steps[source]
        functions_.append(SelectedSum(operand.functions[select.function], function))
        steps[index] = Step(len(functions_) - 1, (*select.slots, *step.slots[1:]), ())
        unused.add(source)
    if not unused:
        return operand
    return operand.reordered(functions_, steps, [index for index in range(len(steps)) if index not in unused])


def _as_it_is(results: Sequence[Any], *_: Any) -> Any:
    return results[0]


def _names_of(function: Any) -> tuple[str, ...] | None:
    names: tuple[str, ...] | None = look_up(_SELECTS, function)
    return names


def _adds(function: Callable[..., Any], step: Step) -> bool:
    if step.keywords != _REDUCES or len(step.slots) != 3:
        return False
    known = functions.reduction(function, step.keywords)
    return known is not None and [(part.prepare, part.ufunc) for part in known.parts] == [(None, np.add)]
