"""Where values are: the plain tuples that travel in messages.

* ``(VALUE, value)``: a scalar, as it is;
* ``(PICKLE, data)``: small, pickled, in the message itself;
* ``(SMALL, dtype, shape, order, writeable, data)``: a small NumPy array, in the message itself; a NumPy scalar if
  its shape is None. ``writeable`` is None of an array of the user's that is read-only elsewhere;
* ``(ARRAY, blocks, dtype, shape, strides, position, writeable)``: one NumPy array in an arena;
* ``(OBJECT, blocks, header, parts)``: a pickle whose buffers lie in arenas; ``parts`` lists (block, position,
  size) of each, and ``header`` is the pickle itself, or None where it is the last part;
* ``(SPILLED, (), file, location)``: on disk; the file has a part for each of the blocks that the location names.

``blocks`` is a tuple of (arena, offset, size in bytes): the allocations that must stay while the value lives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_mars.protocol.pickling import loads

VALUE, PICKLE, SMALL, ARRAY, OBJECT, SPILLED = range(6)

#: (arena, offset, size in bytes) of an allocation.
Block = tuple[int, int, int]
ObjectRef = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SpilledFile:
    """What is to be known of a file to read it back.

    Attributes
    ----------
    path : str
        Where it is.
    size_bytes : int
        Its size.
    checksum : int
        Of all its bytes as they stand in it.
    compression : str
        The codec's name; empty for none.
    parts : tuple of int
        Size of each buffer.
    blocks : tuple of int
        Size of each compressed block as it stands in the file.
    owner : int
        Whose it is, by the system's number of the user.
    """

    path: str
    size_bytes: int
    checksum: int
    compression: str
    parts: tuple[int, ...]
    blocks: tuple[int, ...] = ()
    owner: int = -1


def blocks_of(location: ObjectRef) -> tuple[Block, ...]:
    """Return the blocks that a location refers to."""
    return location[1] if location[0] >= ARRAY else ()


def extents(location: ObjectRef) -> list[tuple[int, int]]:
    """Return what a value needs of each of its blocks: from which byte of the block to which."""
    if location[0] == ARRAY:
        _, ((_, _, block_bytes),), dtype, shape, strides, position, _ = location
        item_bytes = np.dtype(dtype).itemsize
        if math.prod(shape) * item_bytes == block_bytes and 0 not in strides:
            return [(0, block_bytes)]
        steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
        low = position + sum([step for step in steps if step < 0])
        high = position + sum([step for step in steps if step > 0])
        return [(low, high + item_bytes)]
    found = [(size, 0) for _, _, size in blocks_of(location)]
    for number, at, size in location[3] if location[0] == OBJECT else ():
        low, high = found[number]
        found[number] = min(low, at), max(high, at + size)
    return found


def needed_bytes(location: ObjectRef) -> int:
    """Return how many bytes a value takes that is not in blocks which others need as well."""
    size = sum([high - low for low, high in extents(location)])
    return min(size, size_of(location)) if location[0] == ARRAY else size


def spilled_file(location: ObjectRef) -> SpilledFile:
    """Return the file that a value on disk is in."""
    file = location[2]
    assert isinstance(file, SpilledFile)
    return file


def assembled(location: ObjectRef, blocks: Sequence[Any]) -> Any:
    """Return a value, given the memory of each of the blocks that its location names."""
    if location[0] == ARRAY:
        _, _, dtype, shape, strides, position, _ = location
        return np.ndarray(shape, dtype, buffer=blocks[0], offset=position, strides=strides)
    header, views = pickle_of(location, blocks)
    return loads(header, buffers=views)


def pickle_of(location: ObjectRef, blocks: Sequence[Any]) -> tuple[Any, list[memoryview]]:
    """Return the pickle that a value lies in arenas as, and its buffers, given the memory of each block."""
    _, _, header, parts = location
    views = [memoryview(blocks[number])[at : at + size] for number, at, size in parts]
    return (views.pop() if header is None else header), views


def size_of(location: ObjectRef) -> int:
    """Return the bytes that a location's value takes, roughly."""
    kind = location[0]
    if kind == VALUE:
        return 32
    if kind < ARRAY:
        return len(location[-1])
    if kind == SPILLED:
        return size_of(location[3])
    if kind == ARRAY:
        return math.prod(location[3]) * np.dtype(location[2]).itemsize
    return sum(size for _, _, size in location[3])


def relocated(location: ObjectRef, own: int, moved: dict[int, tuple[int, int, int]]) -> ObjectRef:
    """Return where a value is after blocks of the own arena were copied, as `InPlaceSealing.settle` says."""
    blocks = []
    shifts = []
    for arena, offset, size in location[1]:
        copy, copied, first = moved.get(offset, (offset, size, 0)) if arena == own else (offset, size, 0)
        blocks.append((arena, copy, copied))
        shifts.append(first)
    if location[0] == ARRAY:
        *_, dtype, shape, strides, position, writeable = location
        return (ARRAY, tuple(blocks), dtype, shape, strides, position - shifts[0], writeable)
    _, _, header, parts = location
    return (
        OBJECT,
        tuple(blocks),
        header,
        tuple((number, at - shifts[number], size) for number, at, size in parts),
    )
