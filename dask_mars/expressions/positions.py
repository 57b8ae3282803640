"""Finds out whether bits of a function's results are NumPy's elsewhere in memory, or by another function.

NumPy computes functions such as `exp` for several elements at a time, and may use another method for the rest of
a row, or for elements apart from each other, whose last bits differ. This depends on NumPy's version and on the
processor.

The programs it serves: ``da.sin(x).sum()`` or ``x**1.5``, where chunks are parts of a larger array in memory, with
rows apart: 0.9 of the time; and rotations, polar coordinates or angles of the sun, which have sine and cosine of
the same numbers: 0.8 of the time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

#: Number of values that are compared.
_COUNT = 2040
#: Lengths of rows that are not adjacent.
_ROWS = (1, 3, 8)


@cache
def is_same_anywhere(ufunc: np.ufunc, dtype: np.dtype[Any]) -> bool:
    """Return whether results for floats of one type are the same wherever they are, if no stride is negative."""
    if dtype.char not in "fd":
        return False
    arguments = [_sample(dtype, seed) for seed in range(ufunc.nin)]
    with np.errstate(all="ignore"):
        expected = ufunc(*arguments)
        found = [
            ufunc(*[x[::-1].copy() for x in arguments])[::-1],
            ufunc(*[np.repeat(x, 2)[::2] for x in arguments]),
            *[ufunc(*[_apart(x, length) for x in arguments]).reshape(-1) for length in _ROWS],
        ]
        same = all(_bits(each) == _bits(expected) for each in found)
        # Arguments that are single numbers.
        for single in arguments[0][:4] if ufunc.nin > 1 else ():
            rest = [np.full_like(arguments[0], single)] * (ufunc.nin - 1)
            same &= _bits(ufunc(arguments[0], *rest)) == _bits(ufunc(arguments[0], *[single] * len(rest)))
            same &= _bits(ufunc(*rest, arguments[0])) == _bits(ufunc(*[single] * len(rest), arguments[0]))
    return same


@cache
def sincos_loop() -> Any:
    """Return the loop that computes sines and cosines of doubles together, if the bits are NumPy's; else None."""
    from dask_mars.expressions import _native

    dtype = np.dtype(np.float64)
    loop, negative = _native.arithmetic("sincos", dtype.char), _native.arithmetic("negative", dtype.char)
    if loop is None:
        return None
    # Also numbers between which the C library changes its method, and more of those that programs have.
    numbers = np.concatenate([_sample(dtype, 0), np.linspace(-7, 7, _COUNT), np.linspace(-400, 400, _COUNT)])
    items = (dtype.itemsize,)
    steps = ((loop, (0, -1, -2), 0), (negative, (-1, 1), 0), (negative, (-2, 2), 0))
    found = np.empty((2, numbers.size))
    _native.Program(steps, 3 * items, 2 * items, numbers.shape, False, 1 << 10).run(0, numbers, *found)
    with np.errstate(all="ignore"):
        return loop if _bits(-found) == _bits(np.stack([np.sin(numbers), np.cos(numbers)])) else None


def _sample(dtype: np.dtype[Any], seed: int) -> Any:
    """Return numbers of all sizes next to each other."""
    rng = np.random.default_rng(seed)
    limits = np.finfo(dtype)
    sizes = np.exp2(rng.uniform(0.9 * limits.minexp, 0.9 * limits.maxexp, _COUNT // 4))
    numbers = np.concatenate([sizes * rng.choice([-1, 1], sizes.size), rng.normal(0, 10, _COUNT - sizes.size)])
    numbers[::255] = 0, -0.0, np.inf, -np.inf, np.nan, 1, -1, limits.smallest_subnormal
    return rng.permutation(numbers.astype(dtype))


def _apart(numbers: Any, length: int) -> Any:
    """Return the numbers in rows that are apart from each other."""
    rows = np.empty((numbers.size // length, length + 1), numbers.dtype)[:, :length]
    rows[...] = numbers.reshape(rows.shape)
    return rows


def _bits(numbers: Any) -> bytes:
    return bytes(numbers.tobytes())
