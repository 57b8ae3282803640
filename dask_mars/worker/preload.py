"""Loading `dask.array` without xarray.

Where xarray is installed `dask.array` imports it, and with it pandas: half of the memory that a process would
start with, and most of the time, only to ask of what it is given whether it is one of xarray's arrays.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


class _Xarray:
    """Stands for xarray in `dask.array`: of what nobody has loaded there are no instances."""

    @property
    def DataArray(self) -> Any:  # noqa: N802
        """The class, or what nothing is an instance of. One thread may be loading it while another asks."""
        return getattr(sys.modules.get("xarray"), "DataArray", ())

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("xarray"), name)


def load_dask_array() -> None:
    """Import `dask.array`, but not xarray, which tasks may import like any other module.

    To be called before there are threads that may import either.
    """
    if "xarray" in sys.modules or "dask.array" in sys.modules:
        importlib.import_module("dask.array")
        return
    # What is None here is not found.
    sys.modules["xarray"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("dask.array").core.xr = _Xarray()
    finally:
        del sys.modules["xarray"]


__all__ = ["load_dask_array"]
