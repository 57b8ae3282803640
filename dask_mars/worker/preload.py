"""Loads `dask.array` without xarray, numbagg and SciPy.

Where they are installed `dask.array` imports them, and with them pandas and numba: most of a process's initial
memory and start-up time. It needs xarray and SciPy only to recognise their arrays, and numbagg for medians and
quantiles.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

from packaging.version import Version

#: Minimum version that `dask.array` uses.
_NUMBAGG = Version("0.8.0")
#: Packages with arrays that `dask.array` recognises, which import SciPy.
_WITH_SCIPY = ("sparse", "cupy")


class _Lazy:
    """Stands for a module, which is imported at the first use of an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


class _Xarray(_Lazy):
    """Stands for xarray in `dask.array`: without the module there are no instances of its classes."""

    @property
    def DataArray(self) -> Any:  # noqa: N802
        """Return the class, or an empty tuple while it is not loaded; another thread may be loading it."""
        return getattr(sys.modules.get("xarray"), "DataArray", ())


class _SparseType(type):
    """Makes a class whose subclasses are SciPy's sparse arrays, of which there are none before it loads."""

    def __subclasscheck__(cls, subclass: type) -> bool:
        sparse = sys.modules.get("scipy.sparse")
        kinds = tuple(filter(None, [getattr(sparse, name, None) for name in ("spmatrix", "sparray")]))
        return issubclass(subclass, kinds)

    def __instancecheck__(cls, instance: Any) -> bool:
        return issubclass(type(instance), cls)


class _Sparse(metaclass=_SparseType):
    """Stands for SciPy's sparse arrays in `dask.array`."""


def load_dask_array() -> None:
    """Import `dask.array`, but not xarray, numbagg and SciPy, which tasks may import like any other module."""
    # Call it before there are threads that may import one of them.
    if "dask.array" in sys.modules:
        return
    # Imports of modules that are None here fail.
    needs_scipy = any(map(importlib.util.find_spec, _WITH_SCIPY))
    hidden = ("xarray", "numbagg") if needs_scipy else ("xarray", "numbagg", "scipy")
    absent: list[str] = [name for name in hidden if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        array = importlib.import_module("dask.array")
    finally:
        for name in absent:
            del sys.modules[name]
    if "xarray" in absent:
        array.core.xr = _Xarray("xarray")
    if "numbagg" in absent:
        _have_numbagg(array.reductions)
    if "scipy" in absent:
        array.fft.scipy = _Lazy("scipy")
        array.chunk_types.register_chunk_type(_Sparse)


def _have_numbagg(reductions: ModuleType) -> None:
    """Let reductions call numbagg as if they had imported it."""
    try:
        version = Version(metadata.version("numbagg"))
    except metadata.PackageNotFoundError:
        return
    reductions.numbagg = _Lazy("numbagg")  # type: ignore[attr-defined]
    reductions.HAS_NUMBAGG = version >= _NUMBAGG  # type: ignore[attr-defined]


def load_what_arrays_need() -> None:
    """Import the modules that the first operand of an array would wait for."""
    load_dask_array()
    importlib.import_module("dask_mars.expressions.rewrite")
