"""The triangular factor of a matrix by LAPACK's `geqrt`, which also turns its panels into products of matrices.

NumPy calls `geqrf`, which factors panels of 32 columns column by column, so that each column of a tall matrix goes
through memory 32 times. The results agree except for rounding: reflections, and so signs, are those of `geqrf`.
The function comes from the library that NumPy itself calls, and is compared with NumPy before its first use.

The programs it serves: singular values and ``R`` of tall matrices, ``da.linalg.svd(x)[1]``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

#: Names under which NumPy's LAPACK may have the function for doubles.
_NAMES = ("scipy_dgeqrt_64_", "dgeqrt_64_", "dgeqrt_")
#: Minimum elements and columns; with fewer NumPy is as fast.
_FEWEST, _FEWEST_COLUMNS = 1 << 14, 8
#: Columns of a panel: normally, for wide matrices, and minimum columns of a wide matrix.
_PANEL, _WIDE_PANEL, _WIDE = 16, 32, 256
#: Maximum deviation of a sample's factor from NumPy's, relative to the largest element.
_TOLERANCE = 1e-12


def triangular_factor(matrix: np.ndarray) -> np.ndarray | None:
    """Return the factor R of a QR decomposition, or None where NumPy is as fast or has to decide."""
    if matrix.ndim != 2 or matrix.dtype != np.float64 or not matrix.dtype.isnative or matrix.size < _FEWEST:
        return None
    rows, columns = matrix.shape
    if not _FEWEST_COLUMNS <= columns <= rows:
        return None
    factor = _checked()
    return None if factor is None else factor(matrix)


@cache
def _checked() -> Callable[[np.ndarray], np.ndarray | None] | None:
    """Return a function that factors matrices, if it is available and agrees with NumPy."""
    # Integers are passed as eight bytes, whether the library reads all of them or the first four.
    geqrt = _geqrt() if sys.byteorder == "little" else None
    if geqrt is None:
        return None

    def factor(matrix: np.ndarray) -> np.ndarray | None:
        rows, columns = matrix.shape
        width = _PANEL if columns < _WIDE else _WIDE_PANEL
        width = min(width, columns)
        copy = np.array(matrix, order="F")
        reflections, memory = np.empty((columns, width)), np.empty((columns, width))
        sizes = (ctypes.c_int64 * 4)(rows, columns, width, 0)
        at = ctypes.addressof(sizes)
        geqrt(
            at,
            at + 8,
            at + 16,
            copy.ctypes.data,
            at,
            reflections.ctypes.data,
            at + 16,
            memory.ctypes.data,
            at + 24,
        )
        found = np.triu(copy[:columns])
        # NumPy decides on matrices that are not finite.
        return found if sizes[3] == 0 and np.isfinite(found).all() else None

    sample = np.random.default_rng(0).standard_normal((50, 40))
    expected, found = np.linalg.qr(sample, mode="r"), factor(sample)
    close = found is not None and np.abs(found - expected).max() <= _TOLERANCE * np.abs(expected).max()
    return factor if close else None


def _geqrt() -> Any:
    """Return the function of the library that NumPy calls, or None."""
    try:
        library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (AttributeError, OSError):
        return None
    for name in _NAMES:
        try:
            function = getattr(library, name)
        except AttributeError:
            continue
        function.argtypes, function.restype = [ctypes.c_void_p] * 9, None
        return function
    return None
