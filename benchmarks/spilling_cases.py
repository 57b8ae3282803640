"""Cases of more data than memory, which has to leave memory in time: in chunks that are small beside the limit."""

from __future__ import annotations

import importlib
import math
from functools import partial
from typing import Any

import dask
import dask.array

from benchmarks.functions import add, angles, column_total, counting, norm, register, table, total
from benchmarks.memory_case import (
    CHUNKS_IN_LIMIT,
    ITEM_BYTES,
    Case,
    array_length,
    chunk_length,
    random_array,
)
from benchmarks.peers import Get
from benchmarks.report import MIB
from benchmarks.workload import near

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

_LIMIT_BYTES = 1024 * MIB


# -- sources that outrun sinks ------------------------------------------------------------------------------------

_SOURCES = 3 * CHUNKS_IN_LIMIT


def _outrun(get: Get, limit_bytes: int, seed: int) -> float:
    # Each source has two consumers, as blocks with neighbours have: it cannot be fused with one of them.
    source, sink = _dask.delayed(angles, pure=False), _dask.delayed(norm, pure=False)
    sources = [source(chunk_length(limit_bytes), seed + number) for number in range(_SOURCES)]
    sinks = [sink(*pair) for pair in zip(sources, sources[1:] + sources[:1], strict=True)]
    return float(_dask.delayed(sum)(sinks).compute(scheduler=get))


def _outrun_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _SOURCES * chunk_length(limit_bytes)
    # What a float can tell of angles that are some hundred turns on.
    return near(length, 1e-6 * length)


# -- an array that is needed twice --------------------------------------------------------------------------------


def centre(get: Get, limit_bytes: int, seed: int, *, limits: float) -> float:
    """Compute the variance of an array by its definition, which takes the array twice.

    Parameters
    ----------
    get
        The scheduler.
    limit_bytes
        The limit.
    seed
        Of the array's numbers.
    limits
        How many times the limit the array takes.
    """
    x = random_array(limits, limit_bytes, seed)
    return float(((x - x.mean()) ** 2).mean().compute(scheduler=get))


def centre_bounds(limit_bytes: int, *, limits: float) -> tuple[float, float]:
    """Return the bounds of `centre`, given the same sizes."""
    # The variance of uniform random numbers, and ten times what that is off by.
    return near(1 / 12, 10 / math.sqrt(180 * array_length(limits, limit_bytes)))


# -- rows to columns ----------------------------------------------------------------------------------------------


def _square(limit_bytes: int) -> tuple[int, int]:
    """Return the side of a square of twice the limit, and how many of its rows make a chunk."""
    rows = max(1, math.isqrt(array_length(2, limit_bytes)) // (2 * CHUNKS_IN_LIMIT))
    return rows * 2 * CHUNKS_IN_LIMIT, rows


def rechunk(get: Get, limit_bytes: int, seed: int) -> float:
    """Turn chunks of rows into chunks of columns, and return the largest sum of a column.

    Parameters
    ----------
    get
        The scheduler.
    limit_bytes
        Half of what the array takes.
    seed
        Of its numbers.
    """
    side, rows = _square(limit_bytes)
    x = da.random.default_rng(seed).random((side, side), chunks=(rows, side))
    return float(x.rechunk((side, rows)).sum(axis=0).max().compute(scheduler=get))


def rechunk_bounds(limit_bytes: int) -> tuple[float, float]:
    """Return the bounds of `rechunk`, given the same limit."""
    side, _ = _square(limit_bytes)
    return side / 2, side / 2 + 7 * math.sqrt(side / 12)


# -- a tree -------------------------------------------------------------------------------------------------------

_LEAVES = 4 * CHUNKS_IN_LIMIT


def _tree(get: Get, limit_bytes: int, seed: int) -> float:
    length = chunk_length(limit_bytes)
    level = [_dask.delayed(counting, pure=False)(length, number * length) for number in range(_LEAVES)]
    while len(level) > 1:
        level = [_dask.delayed(add)(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return float(_dask.delayed(total)(level[0]).compute(scheduler=get))


def _tree_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _LEAVES * chunk_length(limit_bytes)
    expected = length * (length - 1) / 2
    return near(expected, 1e-12 * expected)


# -- a persisted array --------------------------------------------------------------------------------------------


def _persisted(get: Get, limit_bytes: int, seed: int) -> float:
    x = random_array(1.5, limit_bytes, seed).persist(scheduler=get)
    first, second = (float(x.sum().compute(scheduler=get)) for _ in range(2))
    return first if math.isclose(first, second, rel_tol=1e-12) else math.nan


def _persisted_bounds(limit_bytes: int) -> tuple[float, float]:
    length = array_length(1.5, limit_bytes)
    return near(length / 2, 10 * math.sqrt(length / 12))


# -- a dataframe that is shuffled ---------------------------------------------------------------------------------

_PARTITIONS = 80
_COLUMNS = 8


def _rows(limit_bytes: int) -> int:
    """Return the rows of a partition: 80 of them take two and a half times the limit."""
    return max(8, limit_bytes * 5 // (2 * _PARTITIONS) // (_COLUMNS * ITEM_BYTES))


def _shuffle(get: Get, limit_bytes: int, seed: int) -> float:
    frames: Any = importlib.import_module("dask.dataframe")
    numbers = range(seed, seed + _PARTITIONS)
    frame = frames.from_map(table, numbers, rows=_rows(limit_bytes), meta=table(0, 1), enforce_metadata=False)
    totals = frame.shuffle("key").map_partitions(column_total, meta={"total": "f8"})
    return float(totals.compute(scheduler=get)["total"].sum())


def _shuffle_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _PARTITIONS * _rows(limit_bytes)
    return near(length / 2, 10 * math.sqrt(length / 12))


# -- two dataframes that are merged -------------------------------------------------------------------------------


def _merge(get: Get, limit_bytes: int, seed: int) -> float:
    frames: Any = importlib.import_module("dask.dataframe")
    count = _PARTITIONS // 2
    rows = _rows(limit_bytes)
    options = {"rows": rows, "enforce_metadata": False}
    left = frames.from_map(table, range(seed, seed + count), keys=count * rows, meta=table(0, 1), **options)
    right = frames.from_map(register, range(count), meta=register(0, 1), **options)
    # Each row of the left one has its row in the right one.
    totals = left.merge(right, on="key").map_partitions(column_total, meta={"total": "f8"})
    return float(totals.compute(scheduler=get)["total"].sum())


def _merge_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _PARTITIONS // 2 * _rows(limit_bytes)
    return near(length / 2, 10 * math.sqrt(length / 12))


CASES = (
    Case("outrun", "sources that outrun sinks, 3 times the limit", _outrun, _outrun_bounds, _LIMIT_BYTES),
    Case(
        "centre",
        "x - x.mean(), x 3 times the limit, then its mean square",
        partial(centre, limits=3),
        partial(centre_bounds, limits=3),
        _LIMIT_BYTES,
    ),
    Case("rechunk", "rows to columns, 2 times the limit, then sums", rechunk, rechunk_bounds, _LIMIT_BYTES),
    Case("tree", "a tree that adds leaves of 4 times the limit", _tree, _tree_bounds, _LIMIT_BYTES),
    Case(
        "persisted",
        "1.5 times the limit, persisted and summed twice",
        _persisted,
        _persisted_bounds,
        _LIMIT_BYTES,
    ),
    Case(
        "shuffle",
        "a dataframe of 2.5 times the limit, shuffled by a column",
        _shuffle,
        _shuffle_bounds,
        _LIMIT_BYTES,
    ),
    Case(
        "merge",
        "two dataframes, each of 1.25 times the limit, merged by a column",
        _merge,
        _merge_bounds,
        _LIMIT_BYTES,
    ),
)
