"""Cuts arrays into tiles: blocks of consecutive elements that stay in the processor's cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

Index = tuple[slice, ...]

#: Alignment of tiles, in elements. NumPy processes groups of elements in one instruction and the rest singly. Some
#: functions then differ in the last bit, so tiles must not split groups.
GRID = 64


class Tile(NamedTuple):
    """A block of an array.

    Attributes
    ----------
    where : tuple of slice
        Its position along the leading axes; it spans the others.
    shape : tuple of int
        Its shape, with as many dimensions as the array.
    """

    where: Index
    shape: tuple[int, ...]


def tiles(shape: Sequence[int], most: int) -> list[Tile]:
    """Cut an array in C order, without empty axes, into tiles of at most about `most` elements."""
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= most)
    rest = tuple(shape[axis + 1 :])
    row = math.prod(rest)
    count = -(-shape[axis] // max(1, most // row))
    # Tiles of nearly the same length: a short one at the end would cost as many calls as a long one.
    length = -(-shape[axis] // count)
    step = GRID // math.gcd(GRID, row)
    length = -(-length // step) * step
    runs = [slice(start, min(start + length, shape[axis])) for start in range(0, shape[axis], length)]
    leading = itertools.product(*[[slice(at, at + 1) for at in range(size)] for size in shape[:axis]])
    ones = (1,) * axis
    return [Tile((*lead, run), (*ones, run.stop - run.start, *rest)) for lead in leading for run in runs]


def on_grid(shape: Sequence[int], tile: Tile) -> bool:
    """Return whether the tiles made by `tiles` begin at multiples of `GRID` elements."""
    axis = len(tile.where) - 1
    return math.prod(shape[:axis]) == 1 or math.prod(shape[axis:]) % GRID == 0


def tile_index(tile: Tile, shape: Sequence[int], whole: Sequence[int]) -> Index:
    """Return the index of a tile's part in an array that is broadcast.

    Parameters
    ----------
    tile : Tile
        One of the tiles of the broadcast shape.
    shape : sequence of int
        The array's own shape, with as many dimensions.
    whole : sequence of int
        The broadcast shape.
    """
    everything = slice(None)
    return tuple([everything if shape[axis] != whole[axis] else at for axis, at in enumerate(tile.where)])
