"""Arrays of other libraries: Dask's functions compute them, whatever attributes they have or lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest


class Sizeless(np.lib.mixins.NDArrayOperatorsMixin):
    """An array by NumPy's protocols, without a size."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.shape, self.ndim, self.dtype = values.shape, values.ndim, values.dtype

    def _wrapped(self, found: Any) -> Any:
        return type(self)(found) if isinstance(found, np.ndarray) else found

    def __getitem__(self, index: Any) -> Any:
        return self._wrapped(self.values[_plain(index)])

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return self._wrapped(function(*_plain(arguments), **_plain(keywords)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        return self._wrapped(getattr(ufunc, method)(*_plain(inputs), **_plain(keywords)))

    def astype(self, dtype: Any, **keywords: Any) -> Any:
        return self._wrapped(self.values.astype(dtype, **keywords))

    def reshape(self, *shape: Any) -> Any:
        return self._wrapped(self.values.reshape(*shape))

    def sum(self, **keywords: Any) -> Any:
        return self._wrapped(self.values.sum(**keywords))


class WithMethod(Sizeless):
    """An array whose size is a method, as in PyTorch."""

    def size(self) -> Any:
        return self.shape


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_plain(item) for item in value])
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value.values if isinstance(value, Sizeless) else value


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "variance": lambda x: x.var(),
    "variances of rows": lambda x: x.var(axis=1, keepdims=True),
    "variance of numbers": da.nanvar,
    "standard scores": lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
    "moment": lambda x: x.moment(3),
    "mean of numbers": da.nanmean,
    "bins": lambda x: da.histogram(x, bins=10, range=(0, 1))[0],
    "edges": lambda x: da.histogram(x, bins=np.linspace(0, 1, 11))[0],
    "running sums": lambda x: da.cumsum(x, axis=0),
    "selection": lambda x: x[x > 0.5].sum(),
    "chain": lambda x: ((x * 2 + 1) ** 2).sum(axis=0),
}


@pytest.mark.parametrize("kind", [Sizeless, WithMethod])
@pytest.mark.parametrize("name", PROGRAMS)
def test_arrays_of_other_libraries_are_computed_by_dasks_functions(
    name: str, kind: type[Sizeless], get: Callable[..., Any]
) -> None:
    values = np.random.default_rng(0).random((400, 200))
    array = da.from_array(kind(values), chunks=200, asarray=False)
    ours, threads = [PROGRAMS[name](array).compute(scheduler=scheduler) for scheduler in (get, "threads")]
    assert type(ours) is type(threads)
    np.testing.assert_allclose(_plain(ours), _plain(threads), rtol=1e-12)
