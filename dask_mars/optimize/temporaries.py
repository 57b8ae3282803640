"""Temporary memory of known functions of NumPy and SciPy, besides inputs and result.

The engine measures an operand once one of its chunks has run. Until then this table estimates it, so that the
first chunks of large transforms do not all begin at once. The values are multiples of the largest input or the
result, whichever is larger, measured with squares of 8 MB (NumPy 2.4, SciPy 1.17). Other functions take next to
nothing: elementwise functions, sorting, concatenating, astype and einsum write directly into the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dask_mars.graph.callables import attribute, called_by, module_of
from dask_mars.graph.chunks import Operand

_PACKAGES = ("numpy", "scipy")
_SHARES: dict[str, float] = {
    # A partially sorted copy.
    **dict.fromkeys(("median", "percentile", "quantile", "nanmedian", "nanpercentile", "nanquantile"), 1.0),
    # A complex copy.
    **dict.fromkeys(("fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "rfft2", "rfftn", "irfft2", "irfftn"), 1.0),
    "hilbert": 1.0,
    # LAPACK overwrites its inputs, and needs work arrays.
    **dict.fromkeys(("qr", "cholesky", "inv", "det", "slogdet", "lu", "solve_triangular"), 1.0),
    **dict.fromkeys(("solve", "eigh", "eigvalsh"), 2.0),
    **dict.fromkeys(("svd", "svdvals", "eig", "eigvals", "matrix_rank"), 3.0),
    # Values of NumPy 2.5; older versions take 2.0 and 3.0.
    "lstsq": 3.5,
    "pinv": 7.0,
    # Squares and differences.
    **dict.fromkeys(("norm", "std", "var", "cov", "corrcoef", "gradient", "diff", "interp"), 1.0),
    **dict.fromkeys(("nanstd", "nanvar", "nanmean", "nansum", "unique"), 1.5),
    "bincount": 2.0,
    "isin": 10.0,
    # Padded inputs and their transforms.
    **dict.fromkeys(("fftconvolve", "convolve", "correlate", "convolve2d", "oaconvolve"), 3.5),
    **dict.fromkeys(("welch", "periodogram", "spectrogram", "detrend"), 4.5),
    **dict.fromkeys(("gaussian_gradient_magnitude", "gaussian_laplace", "zoom"), 1.0),
    **dict.fromkeys(("map_coordinates", "distance_transform_edt"), 3.5),
}


def temporary_share(functions: Iterable[Callable[..., Any]]) -> float:
    """Return the temporary memory of functions as a multiple of the largest input or the result, 0 if unknown."""
    return max(map(_share_of, functions), default=0.0)


def temporaries_of(operands: Sequence[Operand]) -> dict[int, float]:
    """Return the known shares of `temporary_share` by the operands' numbers."""
    shares = {number: temporary_share(operand.functions) for number, operand in enumerate(operands)}
    return {number: share for number, share in shares.items() if share}


def _share_of(function: Callable[..., Any]) -> float:
    name = attribute(called_by(function), "__name__")
    if type(name) is not str or name not in _SHARES:
        return 0.0
    return _SHARES[name] if module_of(function).partition(".")[0] in _PACKAGES else 0.0


__all__ = ["temporaries_of", "temporary_share"]
