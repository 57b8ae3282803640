"""Reading a slice of a slice as one slice.

`da.from_array` reads a block of its source with a `getter`; indexing the array then slices that block. Unmerged,
this reads the whole block from disk for a corner of it. The rules for merging are those of Dask's own array
optimizer; sources without fancy indexing get only slices without steps, as under Dask.

An element that is read as such becomes an array without axes; one of a block is a scalar of NumPy, or any object.
Dask reads an element as such where it fuses the two tasks, and then forgets ``asarray=False``. Elsewhere the
element is taken from a block of one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

from dask_mars.dask_api import NameGone
from dask_mars.dask_api.loaded import arrays
from dask_mars.graph.chunks import Operand
from dask_mars.lazy_numpy import np

#: Takes the literals of a reading and of a slicing step, and returns those of both, or None.
Slicer = Callable[[tuple[Any, ...], tuple[Any, ...]], "tuple[Any, ...] | None"]


class JoinedSlices(NamedTuple):
    """The operands and literals that combine the slices of a pair of operands."""

    #: Reads the slice in one step.
    operand: Operand
    #: The same with the reader's default for `asarray`, as Dask fuses it.
    of_dask: Operand
    #: Returns the literals of either.
    combined: Slicer
    #: Returns the literals of both steps with which they take an element of a block, None for all other slices.
    of_element: Slicer


def join_slices(reader: Operand, slicer: Operand, joined: Operand) -> JoinedSlices | None:
    """Combine the slices of a pair of operands in `joined`; return None if the pair reads and slices nothing."""
    reading = reading_step(reader, with_items=True)
    slicing = _slicing_step(slicer)
    if reading is None or slicing is None:
        return None
    read_function, read_index = reading
    position, slice_index = slicing
    at_reader = len(reader.steps) - 1
    at_slicer = at_reader + 1 + position
    # The reading step now returns the slice, so the slicing step is removed.
    offset = joined.input_count + joined.literal_count
    same = {offset + at_slicer: offset + at_reader}
    steps = [step._replace(slots=tuple([same.get(slot, slot) for slot in step.slots])) for step in joined.steps]
    functions = joined.functions
    if read_function is arrays.getter_inline:
        steps[at_reader] = steps[at_reader]._replace(function=len(functions))
        functions = (*functions, arrays.getter)
    joined = joined.reordered(functions, steps, [at for at in range(len(steps)) if at != at_slicer])
    if read_function is arrays.getitem:
        return JoinedSlices(joined, joined, partial(_item_literals, read_index, slice_index), _none)
    no_fancy = read_function is arrays.getter_nofancy
    return JoinedSlices(
        joined,
        _without_asarray(joined, at_reader),
        partial(_slice_literals, read_index, slice_index, no_fancy),
        partial(_element_literals, read_index, slice_index),
    )


def _none(read: tuple[Any, ...], sliced: tuple[Any, ...]) -> None:
    return None


def _without_asarray(operand: Operand, at: int) -> Operand:
    step = operand.steps[at]
    if "asarray" not in step.keywords:
        return operand
    positional = len(step.slots) - len(step.keywords)
    kept = [pair for pair in zip(step.keywords, step.slots[positional:], strict=True) if pair[0] != "asarray"]
    slots = (*step.slots[:positional], *[slot for _, slot in kept])
    step = step._replace(slots=slots, keywords=tuple([name for name, _ in kept]))
    return operand.replaced(operand.functions, (*operand.steps[:at], step, *operand.steps[at + 1 :]))


def reading_step(operand: Operand, with_items: bool = False) -> tuple[Callable[..., Any], int] | None:
    """Return function and index literal of an operand's last step if it calls a getter, or gets items."""
    getters: tuple[Any, ...] = (arrays.getter, arrays.getter_nofancy, arrays.getter_inline)
    functions = (*getters, arrays.getitem) if with_items else getters
    step = operand.steps[-1]
    function = operand.functions[step.function]
    positional = len(step.slots) - len(step.keywords)
    # The index is the second argument of a getter, whatever follows.
    if not any(function is known for known in functions) or positional < 2:
        return None
    literal = step.slots[1] - operand.input_count
    if not 0 <= literal < operand.literal_count or _uses(operand, step.slots[1]) != 1:
        return None
    return function, literal


def _slicing_step(operand: Operand) -> tuple[int, int] | None:
    """Return position and index literal of the step that slices the only input, if no other reads it."""
    users = [index for index, step in enumerate(operand.steps) if 0 in step.slots]
    if operand.input_count != 1 or len(users) != 1:
        return None
    step = operand.steps[users[0]]
    if operand.functions[step.function] is not arrays.getitem or step.keywords or len(step.slots) != 2:
        return None
    if step.slots[0] != 0:
        return None
    literal = step.slots[1] - operand.input_count
    if not 0 <= literal < operand.literal_count or _uses(operand, step.slots[1]) != 1:
        return None
    return users[0], literal


def _uses(operand: Operand, slot: int) -> int:
    return sum(step.slots.count(slot) for step in operand.steps)


def _item_literals(
    read_index: int, slice_index: int, read: tuple[Any, ...], sliced: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Return the literals of both where an item becomes an array again, else None."""
    # An item of an array of objects may be any object, which takes no index. Under Dask, too, it is never alone.
    outer, inner = read[read_index], sliced[slice_index]
    if type(outer) is not tuple or type(inner) is not tuple or len(outer) != len(inner):
        return None
    if not all(isinstance(index, Integral) for index in outer) or any(index is not None for index in inner):
        return None
    return (*read[:read_index], outer + inner, *read[read_index + 1 :], *sliced)


def _is_contiguous(index: Any) -> bool:
    """Return whether an index is a slice without a step, which all of Dask's sources support."""
    return type(index) is slice and index.step in (None, 1)


def _slice_literals(
    read_index: int, slice_index: int, no_fancy: bool, read: tuple[Any, ...], sliced: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Return the literals of both with a single slice, or None where the slices cannot be combined."""
    outer, inner = read[read_index], sliced[slice_index]
    if (type(outer) is tuple) != (type(inner) is tuple):
        return None
    indices = outer + inner if type(outer) is tuple else (outer, inner)
    if any(index is None for index in indices):
        return None
    fancy = [index for index in indices if isinstance(index, list | np.ndarray)]
    if fancy:
        # Lists change meaning beside other lists or integers, and masks have the length of the array they index.
        alone = len(fancy) == 1 and not any(isinstance(index, Integral) for index in indices)
        if not alone or np.asarray(fancy[0]).dtype == bool:
            return None
    if no_fancy and not all(map(_is_contiguous, indices)):
        return None
    try:
        fused = arrays.fuse_slice(outer, inner)
    except (NameGone, NotImplementedError, IndexError, TypeError):
        # `fuse_slice` does not support every kind of index.
        return None
    return (*read[:read_index], fused, *read[read_index + 1 :], *sliced)


def _element_literals(
    read_index: int, slice_index: int, read: tuple[Any, ...], sliced: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Return the literals of both that take an element of a block of one, None for all other slices."""
    outer, inner = read[read_index], sliced[slice_index]
    if type(inner) is not tuple or not all(isinstance(index, Integral) for index in inner):
        return None
    if len(inner) != sum(type(index) is slice for index in outer):
        return None
    fused = arrays.fuse_slice(outer, inner)
    block = [slice(at, at + 1) if type(was) is slice else at for was, at in zip(outer, fused, strict=True)]
    return (
        *(*read[:read_index], tuple(block), *read[read_index + 1 :]),
        *(*sliced[:slice_index], (0,) * len(inner), *sliced[slice_index + 1 :]),
    )
