"""Loading `dask.array` without xarray and numbagg.

Where they are installed `dask.array` imports them, and with them pandas and numba: most of the memory that a
process would start with, and of the time. It asks of xarray whether what it is given is one of its arrays, and
calls numbagg for medians and quantiles.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

from packaging.version import Version

#: Older ones are not used by `dask.array`.
_NUMBAGG = Version("0.8.0")


class _Lazy:
    """Stands for a module, which is imported once something of it is wanted."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


class _Xarray(_Lazy):
    """Stands for xarray in `dask.array`: of what nobody has loaded there are no instances."""

    @property
    def DataArray(self) -> Any:  # noqa: N802
        """The class, or what nothing is an instance of. One thread may be loading it while another asks."""
        return getattr(sys.modules.get("xarray"), "DataArray", ())


def load_dask_array() -> None:
    """Import `dask.array`, but not xarray and numbagg, which tasks may import like any other module.

    To be called before there are threads that may import either.
    """
    if "dask.array" in sys.modules:
        return
    # What is None here is not found.
    absent: list[str] = [name for name in ("xarray", "numbagg") if name not in sys.modules]
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


def _have_numbagg(reductions: ModuleType) -> None:
    """Have reductions call numbagg as they would if they had imported it."""
    try:
        version = Version(metadata.version("numbagg"))
    except metadata.PackageNotFoundError:
        return
    reductions.numbagg = _Lazy("numbagg")  # type: ignore[attr-defined]
    reductions.HAS_NUMBAGG = version >= _NUMBAGG  # type: ignore[attr-defined]


__all__ = ["load_dask_array"]
