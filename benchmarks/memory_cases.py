"""What is computed in the benchmarks of memory, and between which bounds a right answer lies.

Sizes follow from the limit of memory, so that a smoke test walks the same paths: every chunk is a 64th of it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask
import dask.array

from benchmarks.functions import add, angles, column_total, counting, norm, table, total
from benchmarks.peers import Get
from benchmarks.workloads import near

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

_ITEM_BYTES = 8
#: How many chunks are as large as the limit.
_CHUNKS_IN_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A computation on more data than fits into the limit."""

    name: str
    #: One line for people.
    summary: str
    #: Given a scheduler, the limit in bytes and a seed.
    run: Callable[[Get, int, int], float]
    #: Given the limit, the range in which the answer must lie.
    bounds: Callable[[int], tuple[float, float]]


def _chunk_length(limit_bytes: int) -> int:
    return max(1, limit_bytes // _CHUNKS_IN_LIMIT // _ITEM_BYTES)


def _length(limits: float, limit_bytes: int) -> int:
    """Return the elements of an array of so many times the limit."""
    return round(limits * _CHUNKS_IN_LIMIT) * _chunk_length(limit_bytes)


def _random(limits: float, limit_bytes: int, seed: int) -> Any:
    shape, chunks = _length(limits, limit_bytes), _chunk_length(limit_bytes)
    return da.random.default_rng(seed).random(shape, chunks=chunks)


# -- sources that outrun sinks ------------------------------------------------------------------------------------

_SOURCES = 3 * _CHUNKS_IN_LIMIT


def _outrun(get: Get, limit_bytes: int, seed: int) -> float:
    # Each source has two consumers, as blocks with neighbours have: it cannot be fused with one of them.
    source, sink = _dask.delayed(angles, pure=False), _dask.delayed(norm, pure=False)
    sources = [source(_chunk_length(limit_bytes), seed + number) for number in range(_SOURCES)]
    sinks = [sink(*pair) for pair in zip(sources, sources[1:] + sources[:1], strict=True)]
    return float(_dask.delayed(sum)(sinks).compute(scheduler=get))


def _outrun_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _SOURCES * _chunk_length(limit_bytes)
    # What a float can tell of angles that are some hundred turns on.
    return near(length, 1e-6 * length)


# -- an array that is needed twice --------------------------------------------------------------------------------


def _centre(get: Get, limit_bytes: int, seed: int) -> float:
    x = _random(3, limit_bytes, seed)
    return float(((x - x.mean()) ** 2).mean().compute(scheduler=get))


def _centre_bounds(limit_bytes: int) -> tuple[float, float]:
    # The variance of uniform random numbers, and ten times what that is off by.
    return near(1 / 12, 10 / math.sqrt(180 * _length(3, limit_bytes)))


# -- rows to columns ----------------------------------------------------------------------------------------------


def _square(limit_bytes: int) -> tuple[int, int]:
    """Return the side of a square of twice the limit, and how many of its rows make a chunk."""
    rows = max(1, math.isqrt(_length(2, limit_bytes)) // (2 * _CHUNKS_IN_LIMIT))
    return rows * 2 * _CHUNKS_IN_LIMIT, rows


def _rechunk(get: Get, limit_bytes: int, seed: int) -> float:
    side, rows = _square(limit_bytes)
    x = da.random.default_rng(seed).random((side, side), chunks=(rows, side))
    return float(x.rechunk((side, rows)).sum(axis=0).max().compute(scheduler=get))


def _rechunk_bounds(limit_bytes: int) -> tuple[float, float]:
    side, _ = _square(limit_bytes)
    return side / 2, side / 2 + 7 * math.sqrt(side / 12)


# -- a tree -------------------------------------------------------------------------------------------------------

_LEAVES = 4 * _CHUNKS_IN_LIMIT


def _tree(get: Get, limit_bytes: int, seed: int) -> float:
    length = _chunk_length(limit_bytes)
    level = [_dask.delayed(counting, pure=False)(length, number * length) for number in range(_LEAVES)]
    while len(level) > 1:
        level = [_dask.delayed(add)(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return float(_dask.delayed(total)(level[0]).compute(scheduler=get))


def _tree_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _LEAVES * _chunk_length(limit_bytes)
    expected = length * (length - 1) / 2
    return near(expected, 1e-12 * expected)


# -- a persisted array --------------------------------------------------------------------------------------------


def _persisted(get: Get, limit_bytes: int, seed: int) -> float:
    x = _random(1.5, limit_bytes, seed).persist(scheduler=get)
    first, second = (float(x.sum().compute(scheduler=get)) for _ in range(2))
    return first if math.isclose(first, second, rel_tol=1e-12) else math.nan


def _persisted_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _length(1.5, limit_bytes)
    return near(length / 2, 10 * math.sqrt(length / 12))


# -- a dataframe that is shuffled ---------------------------------------------------------------------------------

_PARTITIONS = 80
_COLUMNS = 8


def _rows(limit_bytes: int) -> int:
    """Return the rows of a partition: 80 of them take two and a half times the limit."""
    return max(8, limit_bytes * 5 // (2 * _PARTITIONS) // (_COLUMNS * _ITEM_BYTES))


def _shuffle(get: Get, limit_bytes: int, seed: int) -> float:
    frames: Any = importlib.import_module("dask.dataframe")
    numbers = range(seed, seed + _PARTITIONS)
    frame = frames.from_map(table, numbers, rows=_rows(limit_bytes), meta=table(0, 1), enforce_metadata=False)
    totals = frame.shuffle("key").map_partitions(column_total, meta={"total": "f8"})
    return float(totals.compute(scheduler=get)["total"].sum())


def _shuffle_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _PARTITIONS * _rows(limit_bytes)
    return near(length / 2, 10 * math.sqrt(length / 12))


#: Every case by name, in the order of the report.
CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("outrun", "sources that outrun sinks, 3 times the limit", _outrun, _outrun_bounds),
        Case("centre", "x - x.mean(), x 3 times the limit, then its mean square", _centre, _centre_bounds),
        Case("rechunk", "rows to columns, 2 times the limit, then sums", _rechunk, _rechunk_bounds),
        Case("tree", "a tree that adds leaves of 4 times the limit", _tree, _tree_bounds),
        Case("persisted", "1.5 times the limit, persisted and summed twice", _persisted, _persisted_bounds),
        Case("shuffle", "a dataframe of 2.5 times the limit, shuffled by a column", _shuffle, _shuffle_bounds),
    )
}
