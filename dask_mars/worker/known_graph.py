"""A worker's knowledge of each graph: operands, and the locations of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_mars.graph.chunks import Operand
from dask_mars.protocol.columns import PackedOperand
from dask_mars.protocol.object_ref import ObjectRef


class KnownGraph:
    """A worker's knowledge of one graph."""

    __slots__ = (
        "borrowed",
        "fast_operands",
        "id",
        "main_names",
        "needs_client",
        "needs_copies",
        "operands",
        "peaks",
        "restores",
        "values",
    )

    def __init__(self, id: int) -> None:
        self.id = id
        #: Operands by id; packed until first used.
        self.operands: dict[int, Operand | PackedOperand] = {}
        #: Known values by chunk: (object, None) for small ones made here, else (None, reference).
        self.values: dict[int, tuple[Any, ObjectRef | None]] = {}
        #: Chunks whose values are the user's own arrays, read in place, which the user may write to.
        self.borrowed: set[int] = set()
        #: Operands that took next to no time in their last run here.
        self.fast_operands: set[int] = set()
        #: Largest number of bytes of the arena that each operand took while it ran.
        self.peaks: dict[int, int] = {}
        #: Chunks to put into the store when they are read from disk.
        self.restores: set[int] = set()
        #: Operands that have tried to write into their inputs.
        self.needs_copies: set[int] = set()
        #: Operands that need the user's process: its arrays, files or ``__main__``.
        self.needs_client: set[int] = set()
        #: Names of the user's ``__main__`` that have arrived.
        self.main_names: dict[str, Any] = {}


def is_source(value: Any) -> bool:
    """Return whether a value is a source of arrays, such as those of zarr and Xarray, and no array itself."""
    kind = type(value)
    return (
        hasattr(kind, "shape")
        and hasattr(kind, "dtype")
        and hasattr(kind, "__getitem__")
        # Tasks may write into arrays and pandas objects.
        and not hasattr(kind, "__array_ufunc__")
        and not hasattr(kind, "__array_function__")
        and not issubclass(kind, np.generic)
    )
