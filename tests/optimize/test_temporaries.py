"""What known functions take while they run: the table and NumPy's own account agree."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dask_mars.optimize.known import temporary_share

X = np.random.default_rng(0).random((300, 300))
SMALL = X[:3, :3]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (np.sort, (X, 0)),
        (np.concatenate, ([X, X],)),
        (np.median, (X, 0)),
        (np.percentile, (X, 50, 0)),
        (np.fft.fft, (X,)),
        (np.fft.fftn, (X,)),
        (np.fft.rfft, (X,)),
        (np.linalg.norm, (X, None, 0)),
        (np.linalg.svd, (X,)),
        (np.linalg.qr, (X,)),
        (np.linalg.pinv, (X,)),
        (np.linalg.lstsq, (X, X)),
        (np.std, (X, 0)),
        (np.nanvar, (X, 0)),
        (np.unique, (X,)),
        (np.isin, (X, X)),
        (np.bincount, ((10 * X.ravel()).astype(int),)),
        ("scipy.signal.fftconvolve", (X, SMALL, "same")),
        ("scipy.signal.welch", (X,)),
        ("scipy.signal.detrend", (X,)),
        ("scipy.ndimage.zoom", (X, 0.5)),
        ("scipy.ndimage.map_coordinates", (X, np.indices(X.shape))),
    ],
)
def test_the_table_says_no_less_than_numpy_takes(function: Callable[..., Any] | str, arguments: tuple[Any, ...]):
    if isinstance(function, str):
        # Its module takes a second to import, which collecting the tests need not.
        module, _, name = function.rpartition(".")
        function = getattr(pytest.importorskip(module), name)
    # What is made once is made now.
    function(*arguments)
    tracemalloc.start()
    try:
        result = function(*arguments)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    results = result if isinstance(result, tuple) else (result,)
    result_bytes = sum([value.nbytes for value in results if isinstance(value, np.ndarray)])
    largest = max(X.nbytes, result_bytes)
    assert (peak_bytes - result_bytes) / largest <= temporary_share([function]) + 0.2


def test_names_alone_are_not_enough():
    def fft(x: Any) -> Any:
        return x

    class Odd:
        __name__ = 3

        def __call__(self) -> None:
            """Do nothing."""

    assert temporary_share([fft, abs, Odd(), lambda x: x]) == 0
    assert temporary_share([fft, np.fft.fft]) == 1
    assert temporary_share([partial(partial(np.fft.fft), axis=0)]) == 1
    assert temporary_share([]) == 0


def test_dask_hands_them_on_as_they_are(runtime, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "dask_mars.optimize.known.temporary_share",
        lambda functions: seen.append(temporary_share(functions)) or seen[-1],
    )
    x = da.from_array(X, chunks=(150, 300))
    da.fft.fft(x, axis=1).compute(scheduler=runtime.get)
    assert 1.0 in seen
