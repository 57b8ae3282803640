"""Loads `dask.array` without xarray, numbagg and SciPy.

Where they are installed `dask.array` imports them, and with them pandas and numba: most of a process's initial
memory and start-up time. It needs xarray and SciPy only to recognise their arrays, and numbagg for medians and
quantiles.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Collection, Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
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


class _Hidden(MetaPathFinder):
    """Lets imports of some modules fail in this thread; others may import them meanwhile."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing, and raise an error for these modules."""
        if fullname in self._names and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def load_dask_array() -> None:
    """Import `dask.array`, but not xarray, numbagg and SciPy, which tasks may import like any other module."""
    if "dask.array" in sys.modules:
        # Another thread may be importing it.
        importlib.import_module("dask.array")
        return
    needs_scipy = any(map(importlib.util.find_spec, _WITH_SCIPY))
    names = ("xarray", "numbagg") if needs_scipy else ("xarray", "numbagg", "scipy")
    absent = [name for name in names if name not in sys.modules]
    hidden = _Hidden(absent)
    sys.meta_path.insert(0, hidden)
    try:
        array = importlib.import_module("dask.array")
    finally:
        sys.meta_path.remove(hidden)
    if "xarray" in absent:
        array.core.xr = _Xarray("xarray")
    if "scipy" in absent:
        array.fft.scipy = _Lazy("scipy")
        array.chunk_types.register_chunk_type(_Sparse)
    if "numbagg" in absent:
        _have_numbagg(array.reductions)


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
