"""Blocks of the user's array that lie side by side, read in place by programs instead of concatenated.

`map_overlap` concatenates each block with parts of its neighbours. Where all are views of one array, as those of
`from_array` are in threads, a view of this array has the same elements.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dask_mars.dask_api import arrays
from dask_mars.expressions.evaluate import SMALL, Joinable
from dask_mars.expressions.planning import in_c_order
from dask_mars.graph.chunks import Operand, Step


class Adjacent(NamedTuple):
    """Parts that have not been concatenated, and the view that has their elements."""

    view: np.ndarray[Any, Any]
    parts: list[Any]
    grid: tuple[int, ...]


def view_of(value: Any) -> Any:
    """Return the view of adjacent parts, and other values unchanged."""
    return value.view if type(value) is Adjacent else value


def whole(value: Any) -> Any:
    """Return the array that Dask makes of adjacent parts, and other values unchanged."""
    return arrays.concatenate_shaped(value.parts, value.grid) if type(value) is Adjacent else value


def with_views(operand: Operand) -> Operand:
    """Return an operand in which functions that can be recorded receive large adjacent parts as they are."""
    before = operand.input_count + operand.literal_count
    steps, called = list(operand.steps), list(operand.functions)
    for number, step in enumerate(operand.steps):
        if operand.functions[step.function] is not arrays.concatenate_shaped:
            continue
        readers = [other for other in operand.steps if before + number in other.slots]
        if readers and all(isinstance(operand.functions[reader.function], Joinable) for reader in readers):
            steps[number] = Step(len(called), step.slots, step.keywords)
            called.append(_joined)
    if len(called) == len(operand.functions):
        return operand
    return operand.replaced(called, steps)


def _joined(parts: list[Any], grid: tuple[int, ...]) -> Any:
    view = _common_view(parts, grid)
    return arrays.concatenate_shaped(parts, grid) if view is None else Adjacent(view, parts, grid)


def _common_view(parts: list[Any], grid: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """Return a view of the memory of all parts, None unless they lie in it as in their grid."""
    if not all(type(part) is np.ndarray and part.ndim == len(grid) and part.size for part in parts):
        return None
    first = parts[0]
    if not in_c_order(first) or any((part.strides, part.dtype) != (first.strides, first.dtype) for part in parts):
        return None
    # The lengths along each axis are those of the parts at its edge.
    steps = [prod(grid[axis + 1 :]) for axis in range(len(grid))]
    lengths = [[parts[at * step].shape[axis] for at in range(grid[axis])] for axis, step in enumerate(steps)]
    shape = tuple(map(sum, lengths))
    if prod(shape) < SMALL:
        return None
    begins = [[sum(each[:at]) for at in range(len(each))] for each in lengths]
    start = _address(first)
    for part, place in zip(parts, product(*map(range, grid)), strict=True):
        offsets = [begin[at] * stride for begin, at, stride in zip(begins, place, first.strides, strict=True)]
        if part.shape != tuple([each[at] for each, at in zip(lengths, place, strict=True)]):
            return None
        if _address(part) != start + sum(offsets):
            return None
    return np.lib.stride_tricks.as_strided(first, shape, first.strides, writeable=False)


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])
