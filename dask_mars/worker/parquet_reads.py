"""Local files of Parquet, which Arrow opens itself.

Dask opens them in Python, so that Arrow asks Python for each part of a file: with the GIL, and with one more copy.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from dask_mars.graph.callables import attribute, is_of, is_parquet_reader, package_of


def native_reads(function: Any) -> Any:
    """Return a reader of Parquet that opens local files by Arrow, or the function itself."""
    kind = type(function)
    if not is_parquet_reader(kind) or "pyarrow" not in sys.modules:
        return function
    engine, file_system, options = [attribute(function, name) for name in ("engine", "fs", "common_kwargs")]
    read = options.get("read", {}) if type(options) is dict else None
    is_known = is_of(engine, "dask.", "ArrowDatasetEngine")
    if not is_known or type(file_system).__name__ != "LocalFileSystem" or type(read) is not dict:
        return function
    # The user may have options of their own for opening files.
    if read.get("open_file_options") or package_of(type(file_system)) != "fsspec":
        return function
    arrow: Any = sys.modules["pyarrow"]
    opening = {"open_file_func": arrow.OSFile}
    return _NativeReader(function, {**options, "read": {**read, "open_file_options": opening}})


class _NativeReader:
    """Dask's reader with other options; if that fails, with its own, so that errors are Dask's."""

    def __init__(self, reader: Any, options: dict[str, Any]) -> None:
        self._reader = reader
        self._native = copy.copy(reader)
        self._native.common_kwargs = options

    def __call__(self, part: Any) -> Any:
        """Return a partition's frame."""
        try:
            return self._native(part)
        except (OSError, ValueError):
            pass
        return self._reader(part)
