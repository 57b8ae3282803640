"""Cases of tasks that take much of the memory limit, or more than all of it, without anybody having said so.

Errors are among the outcomes: a task that takes three times the limit can have no other. What the user's process
gets is a number, because results count there as well, except in the case that is about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dask
import dask.array

from benchmarks import functions
from benchmarks.memory_case import ITEM_BYTES, Case
from benchmarks.peers import Get
from benchmarks.report import MIB
from benchmarks.spilling_cases import centre, centre_bounds, rechunk, rechunk_bounds
from benchmarks.workload import near

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

_MB = 1_000_000
_LIMIT_BYTES = 500 * MIB
#: Where tasks load more than NumPy, or nothing but bytes.
_LARGER_LIMIT_BYTES = 700 * MIB


# -- one task -----------------------------------------------------------------------------------------------------


def _count(limits: float, limit_bytes: int) -> int:
    """Return the items of eight bytes that take so many times the limit."""
    return int(limits * limit_bytes) // ITEM_BYTES


_RESULT = 1600 * _MB / _LIMIT_BYTES


def _result(get: Get, limit_bytes: int, seed: int) -> float:
    source = _dask.delayed(functions.filled, pure=False)(_count(_RESULT, limit_bytes), seed)
    return functions.total(source.compute(scheduler=get)) - seed / 2


def _result_bounds(limit_bytes: int) -> tuple[float, float]:
    return near(_count(_RESULT, limit_bytes), 1e-6)


_TEMPORARY = 400 * _MB / _LIMIT_BYTES


def _temporaries(get: Get, limit_bytes: int, seed: int) -> float:
    task = _dask.delayed(functions.total_of_filled, pure=False)
    totals = [task(_count(_TEMPORARY, limit_bytes), seed) for _ in range(2)]
    return float(_dask.delayed(sum)(totals).compute(scheduler=get)) - seed


def _temporaries_bounds(limit_bytes: int) -> tuple[float, float]:
    return near(2 * _count(_TEMPORARY, limit_bytes), 1e-6)


_BYTES = 500 * _MB / _LARGER_LIMIT_BYTES


def _bytearrays(get: Get, limit_bytes: int, seed: int) -> float:
    task = _dask.delayed(functions.length_of_bytes, pure=False)
    lengths = [task(int(_BYTES * limit_bytes)) for _ in range(2)]
    return float(_dask.delayed(sum)(lengths).compute(scheduler=get))


def _bytearrays_bounds(limit_bytes: int) -> tuple[float, float]:
    return near(2 * int(_BYTES * limit_bytes), 0.5)


#: Where three interpreters leave little more than two fifths of the limit.
_SMALL_LIMIT_BYTES = 300 * MIB
#: Of a number, a string of up to seven digits, and their place in a dict.
_ENTRY_BYTES = 32 + 56 + 62


def _entry_count(limit_bytes: int) -> int:
    return int(0.2 * limit_bytes) // _ENTRY_BYTES


def _objects(get: Get, limit_bytes: int, seed: int) -> float:
    task = _dask.delayed(functions.entries, pure=False)
    lengths = [task(_entry_count(limit_bytes)) for _ in range(4)]
    return float(_dask.delayed(sum)(lengths).compute(scheduler=get))


def _objects_bounds(limit_bytes: int) -> tuple[float, float]:
    return near(4 * _entry_count(limit_bytes), 0.5)


# -- results that are needed twice --------------------------------------------------------------------------------

_SOURCES = 6


def _twice(get: Get, source: Callable[..., Any], measure: Callable[[Any], float], count: int) -> float:
    """Return the sum of what six results measure.

    Each result is measured once more after all of them have been, so that none can go before all are there.
    """
    make, part = _dask.delayed(source, pure=False), _dask.delayed(functions.part)
    sources = [make(count, number * count) for number in range(_SOURCES)]
    whole = _dask.delayed(sum)([_dask.delayed(measure)(source) for source in sources])
    parts = [part(measure, source, whole) for source in sources]
    return float((whole * _dask.delayed(sum)(parts)).compute(scheduler=get))


_RESULTS = 200 * _MB / _LIMIT_BYTES


def _results(get: Get, limit_bytes: int, seed: int) -> float:
    return _twice(get, functions.counting, functions.total, _count(_RESULTS, limit_bytes))


def _results_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _SOURCES * _count(_RESULTS, limit_bytes)
    expected = length * (length - 1) / 2
    return near(expected, 1e-12 * expected)


#: Of a string of 32 characters, and of the reference to it.
_STRING_BYTES = 49 + 32 + 8


def _string_count(limit_bytes: int) -> int:
    return int(0.3 * limit_bytes) // _STRING_BYTES


def _strings(get: Get, limit_bytes: int, seed: int) -> float:
    return _twice(get, functions.strings, functions.characters, _string_count(limit_bytes))


def _strings_bounds(limit_bytes: int) -> tuple[float, float]:
    return near(32 * _SOURCES * _string_count(limit_bytes), 0.5)


#: Of a number, and of its eight digits and where they begin.
_ROW_BYTES = 8 + 8 + 4


def _row_count(limit_bytes: int) -> int:
    return int(0.3 * limit_bytes) // _ROW_BYTES


def _arrow(get: Get, limit_bytes: int, seed: int) -> float:
    return _twice(get, functions.arrow_table, functions.arrow_total, _row_count(limit_bytes))


def _arrow_bounds(limit_bytes: int) -> tuple[float, float]:
    length = _SOURCES * _row_count(limit_bytes)
    # Numbers from the first of eight digits on, and eight characters each.
    expected = length * (length - 1) / 2 + length * (functions.FIRST_OF_EIGHT_DIGITS + 8)
    return near(expected, 1e-12 * expected)


# -- temporaries of libraries -------------------------------------------------------------------------------------

#: Of two workers, each with its chunk and copies of it.
_LARGE_CHUNKS_IN_LIMIT = 16
_LARGE_CHUNKS = 3 * _LARGE_CHUNKS_IN_LIMIT


def _side(limit_bytes: int) -> int:
    """Return the side of a square that is a sixteenth of the limit."""
    return math.isqrt(limit_bytes // _LARGE_CHUNKS_IN_LIMIT // ITEM_BYTES)


def _elements(limit_bytes: int) -> int:
    return _LARGE_CHUNKS * _side(limit_bytes) ** 2


def _squares(limit_bytes: int, seed: int) -> Any:
    """Return an array of uniform random numbers of three times the limit, in square chunks one upon the other."""
    side = _side(limit_bytes)
    return da.random.default_rng(seed).random((_LARGE_CHUNKS * side, side), chunks=(side, side))


def _sort(get: Get, limit_bytes: int, seed: int) -> float:
    ranked = _squares(limit_bytes, seed).map_blocks(functions.sorted_rows)
    return float((ranked * da.linspace(0, 1, _side(limit_bytes))).mean().compute(scheduler=get))


def _sort_bounds(limit_bytes: int) -> tuple[float, float]:
    # The mean of the square of where a number stands, which is about its value; ends count for a little more.
    return near(1 / 3, 10 / math.sqrt(12 * _elements(limit_bytes)) + 1 / _side(limit_bytes))


def _fft(get: Get, limit_bytes: int, seed: int) -> float:
    power = abs(da.fft.fft(_squares(limit_bytes, seed))) ** 2
    return float(power.mean().compute(scheduler=get)) / _side(limit_bytes)


def _fft_bounds(limit_bytes: int) -> tuple[float, float]:
    # By Parseval the mean square of the numbers, and ten times what that is off by.
    return near(1 / 3, 10 * math.sqrt(4 / 45 / _elements(limit_bytes)))


def _convolve(get: Get, limit_bytes: int, seed: int) -> float:
    x = _squares(limit_bytes, seed)
    smooth = x.map_overlap(functions.smooth, depth=1, boundary="periodic", dtype=x.dtype)
    return float(((smooth - 0.5) ** 2).mean().compute(scheduler=get))


def _convolve_bounds(limit_bytes: int) -> tuple[float, float]:
    # The variance of means of nine numbers. Neighbours share most of theirs, so it is off by more.
    return near(1 / 108, 10 / 108 * math.sqrt(2 * 9 / _elements(limit_bytes)))


# -- many computations --------------------------------------------------------------------------------------------

_COMPUTATIONS = 30
_OF_EACH = 1 / 3


def _concurrent(get: Get, limit_bytes: int, seed: int) -> float:
    def compute(number: int) -> float:
        return centre(get, limit_bytes, _COMPUTATIONS * seed + number, limits=_OF_EACH)

    with ThreadPoolExecutor(_COMPUTATIONS) as pool:
        answers = list(pool.map(compute, range(_COMPUTATIONS)))
    low, high = _concurrent_bounds(limit_bytes)
    return sum(answers) / len(answers) if all(low <= answer <= high for answer in answers) else math.nan


def _concurrent_bounds(limit_bytes: int) -> tuple[float, float]:
    return centre_bounds(limit_bytes, limits=_OF_EACH)


CASES = (
    Case("result", "a delayed result of 3 times the limit, for the user", _result, _result_bounds, _LIMIT_BYTES),
    Case(
        "temporaries",
        "two tasks with NumPy temporaries of three quarters of the limit",
        _temporaries,
        _temporaries_bounds,
        _LIMIT_BYTES,
    ),
    Case(
        "results",
        "six delayed results of two fifths of the limit, each needed twice",
        _results,
        _results_bounds,
        _LIMIT_BYTES,
    ),
    Case(
        "bytearrays",
        "two tasks with a bytearray of two thirds of the limit",
        _bytearrays,
        _bytearrays_bounds,
        _LARGER_LIMIT_BYTES,
    ),
    Case(
        "objects",
        "four tasks with a dict of numbers and strings of a fifth of the limit",
        _objects,
        _objects_bounds,
        _SMALL_LIMIT_BYTES,
    ),
    Case(
        "strings",
        "six series of Python strings, each 0.3 of the limit and needed twice",
        _strings,
        _strings_bounds,
        _LARGER_LIMIT_BYTES,
    ),
    Case(
        "arrow",
        "six Arrow tables, each 0.3 of the limit and needed twice",
        _arrow,
        _arrow_bounds,
        _LARGER_LIMIT_BYTES,
    ),
    Case("sort", "np.sort on 3 times the limit, in chunks of a sixteenth", _sort, _sort_bounds, _LIMIT_BYTES),
    Case("fft", "da.fft.fft of 3 times the limit, in chunks of a sixteenth", _fft, _fft_bounds, _LIMIT_BYTES),
    Case(
        "convolve",
        "SciPy's fftconvolve with overlap on 3 times the limit, in chunks of a sixteenth",
        _convolve,
        _convolve_bounds,
        _LARGER_LIMIT_BYTES,
    ),
    Case(
        "rechunk-128",
        "rows to columns, 2 times a limit of 128 MiB, less than idle processes take",
        rechunk,
        rechunk_bounds,
        128 * MIB,
    ),
    Case(
        "centre-10",
        "x - x.mean(), x 10 times the limit, then its mean square",
        partial(centre, limits=10),
        partial(centre_bounds, limits=10),
        _LIMIT_BYTES,
    ),
    Case(
        "concurrent",
        "30 threads of the user, each x - x.mean() of a third of the limit, on one runtime",
        _concurrent,
        _concurrent_bounds,
        _LIMIT_BYTES,
    ),
    Case(
        "control-group",
        "x - x.mean() of 3 times the limit of a control group, of which nobody is told",
        partial(centre, limits=3),
        partial(centre_bounds, limits=3),
        1024 * MIB,
        in_control_group=True,
    ),
)
