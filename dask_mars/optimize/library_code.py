"""Says whether a chunk graph consists of code of well-known libraries alone.

Such code may run in threads of the user's process: it does not crash, does not hold the interpreter's lock for
long, and comes to an end. Functions of the user's run in worker processes, which can be interrupted and ended.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import operator
import sys
from collections import deque
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.utils import Dispatch, methodcaller

from dask_mars.graph.callables import package_of
from dask_mars.graph.chunks import ChunkGraph, Constant, Subprogram
from dask_mars.graph.functions import path_of
from dask_mars.store.persisted import PersistedChunk

#: Of packages whose functions may run in the user's process: those that every worker has, or can import at once.
_LOADED = frozenset(
    {"_functools", "_operator", "builtins", "collections", "cytoolz", "dask", "dask_mars", "functools"}
    | {"itertools", "math", "numpy", "operator", "pathlib", "tlz", "toolz"}
)
#: All packages whose functions may.
_LIBRARIES = _LOADED | {
    *("flox", "numbagg", "numpy_groupies", "pandas", "pyarrow", "scipy", "xarray", "zarr"),
}
#: Packages whose objects read and decode, whatever they hold.
_READERS = frozenset({"adlfs", "fsspec", "gcsfs", "h5py", "numcodecs", "s3fs"})
#: Of them, what runs whatever it is given.
_NOT = frozenset({"builtins:eval", "builtins:exec", "builtins:compile", "builtins:__import__", "builtins:open"})
_PLAIN = frozenset(
    {type(None), type(Ellipsis), bool, int, float, complex, str, bytes, range}
    | {datetime.date, datetime.datetime, datetime.timedelta, decimal.Decimal}
)
_CALLERS = frozenset({operator.itemgetter, operator.methodcaller, operator.attrgetter, methodcaller})
_CONTAINERS = frozenset({tuple, list, set, frozenset})
_EMPTY = CellType()
#: Where functions of Dask's frames are from. Of these nobody declares how large they are.
FRAMES = "dask.dataframe"
#: How deep literals are looked into, and how many of a graph.
_DEPTH = 16
_MOST_CHUNKS = 4096
#: Of pandas: what is in columns of these is numbers, times or text.
_DATA_DTYPES = frozenset({"ArrowDtype", "BooleanDtype", "DatetimeTZDtype", "PeriodDtype", "StringDtype"}) | {
    f"{kind}{bits}Dtype" for kind in ("Float", "Int", "UInt") for bits in (8, 16, 32, 64)
}
#: What pandas calls columns of objects that are text, numbers and such, as it was used to have them.
_DATA_OBJECTS = frozenset(
    {"boolean", "bytes", "date", "datetime", "datetime64", "decimal", "empty", "floating"}
) | {
    "integer",
    "mixed-integer-float",
    "string",
    "timedelta",
    "timedelta64",
}
#: A look at so many takes 10 ms.
_MOST_OBJECTS = 1 << 20
#: Objects of these are what they were made of, and no code of anybody's.
_DATA = (np.generic, np.dtype, np.random.SeedSequence, np.random.BitGenerator, np.random.Generator)


def is_library_code(graph: ChunkGraph) -> bool:
    """Say whether all functions of a graph, and all objects among its literals, are those of well-known libraries.

    Parameters
    ----------
    graph : ChunkGraph
        Large ones are not looked at, and said not to be: they are worth starting processes for.
    """
    return library_modules(graph) is not None


def library_modules(graph: ChunkGraph) -> set[str] | None:
    """Return the modules of a graph's functions and objects if all are those of well-known libraries, else None.

    Parameters
    ----------
    graph : ChunkGraph
        As of `is_library_code`.
    """
    if len(graph) > _MOST_CHUNKS:
        return None
    look = _Look()
    known = (
        all(look.is_known(function) for operand in graph.operands for function in operand.functions)
        and all(look.is_plain(value) for value in graph.values.values() if type(value) is not PersistedChunk)
        and all(look.is_plain(literal) for literals in graph.literals for literal in literals)
    )
    return look.modules if known else None


class _Look:
    """One look at a graph; it remembers what it has seen."""

    def __init__(self) -> None:
        #: What it has found of functions and of other objects, by identity; kept, so that no two have the same.
        self._functions: dict[int, tuple[Any, bool]] = {}
        self._objects: dict[int, tuple[Any, bool]] = {}
        #: Where what it has seen is from, but for what every worker has.
        self.modules: set[str] = set()
        #: At how many objects of pandas' it may look.
        self._objects_left = _MOST_OBJECTS

    def is_known(self, function: Any, depth: int = _DEPTH) -> bool:
        """Say whether a callable is one of a library's, with nothing of the user's in it."""
        kind = type(function)
        if not depth:
            return False
        if kind is functools.partial or (kind.__name__ == "curry" and self._is_library(kind.__module__)):
            return (
                self.is_known(function.func, depth - 1)
                and all(self.is_plain(value, depth - 1) for value in function.args)
                and all(self.is_plain(value, depth - 1) for value in function.keywords.values())
            )
        if kind is Subprogram:
            return all(self.is_known(inner, depth - 1) for inner in function.operand.functions) and all(
                self.is_plain(value, depth - 1) for value in function.literals
            )
        if kind in _CALLERS:
            # Of a method, what it is called of is data too, or of a library's class.
            return all(self.is_plain(item, depth - 1) for item in function.__reduce__()[1])
        if kind is Constant:
            return self.is_plain(function.value, depth - 1)
        if kind is MethodType:
            # Of a class, say, as those by which Dask's frames reduce.
            return self.is_known(function.__func__, depth - 1) and self.is_plain(function.__self__, depth - 1)
        if kind is Dispatch:
            # What it calls goes by the classes of data, which come from libraries too.
            return True
        if kind.__name__ == "Compose" and self._is_library(kind.__module__):
            return all(self.is_known(inner, depth - 1) for inner in (function.first, *function.funcs))
        if id(function) not in self._functions:
            # Not again for what leads back to it.
            self._functions[id(function)] = function, True
            self._functions[id(function)] = function, self._is_library_function(function, kind, depth)
        return self._functions[id(function)][1]

    def _is_library_function(self, function: Any, kind: type, depth: int) -> bool:
        if kind is FunctionType:
            # Its module's name may be that of another function, whose wrapper it is.
            module = function.__globals__.get("__name__", "")
            cells = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
            inside = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            return self._is_library(module) and all(self.is_plain(value, depth - 1) for value in inside)
        path = path_of(function)
        if path is not None:
            return path not in _NOT and self._is_library(path.partition(":")[0])
        # An object that can be called, such as what makes a part of Dask's example frames.
        return not issubclass(kind, type) and self._is_library_object(function, kind, depth)

    def is_plain(self, value: Any, depth: int = _DEPTH) -> bool:
        """Say whether a value is data, a library's function, or a container of such."""
        kind = type(value)
        if kind in _PLAIN:
            return True
        if not depth:
            return False
        if kind in _CONTAINERS:
            return all(self.is_plain(item, depth - 1) for item in value)
        if kind is slice:
            return all(self.is_plain(item, depth - 1) for item in (value.start, value.stop, value.step))
        if kind is dict:
            return all(self.is_plain(key, depth - 1) and self.is_plain(value[key], depth - 1) for key in value)
        if kind is np.ndarray:
            return not value.dtype.hasobject
        if package_of(kind) == "pandas" and hasattr(value, "dtypes"):
            # A frame, a series, or an index of groups, say.
            self.modules.add("pandas")
            return self._is_plain_frame(value, depth)
        if issubclass(kind, _DATA) and kind.__module__.startswith("numpy."):
            return True
        if kind is HighLevelGraph:
            # Xarray puts results together by a method of what is not computed yet. Tasks call nothing in there.
            return True
        if callable(value):
            return self.is_known(value, depth - 1)
        return self._is_library_object(value, kind, depth)

    def _is_plain_frame(self, value: Any, depth: int) -> bool:
        """Say whether what pandas has is data alone, labels included."""
        labels = getattr(value, "index", None)
        if labels is not None:
            self.modules.add(FRAMES)
        if value.ndim == 1:
            return self._holds_data(value) and (labels is None or self.is_plain(labels, depth - 1))
        names = value.columns
        are_plain = self.is_plain(names, depth - 1) or all(self.is_plain(name, depth - 1) for name in names)
        if not (are_plain and self.is_plain(labels, depth - 1)):
            return False
        return all(_is_data(dtype) or self._holds_data(value.iloc[:, at]) for at, dtype in enumerate(value.dtypes))

    def _holds_data(self, column: Any) -> bool:
        """Say whether a column, or an index, has data alone; among objects that takes a look at each."""
        if _is_data(column.dtype):
            return True
        if type(column.dtype).__name__ == "CategoricalDtype":
            categories = column.dtype.categories
            return categories is None or self._holds_data(categories)
        if column.dtype != object or len(column) > self._objects_left:
            return False
        self._objects_left -= len(column)
        types: Any = sys.modules["pandas.api.types"]
        return types.infer_dtype(column, skipna=True) in _DATA_OBJECTS

    def _is_library_object(self, value: Any, kind: type, depth: int) -> bool:
        """Say whether an object, such as a zarr array, is of a library's class, and all that it holds."""
        found = self._objects.get(id(value))
        if found is not None:
            return found[1]
        # What leads back to it does not make it otherwise.
        self._objects[id(value)] = value, True
        known = self._is_library(kind.__module__)
        if known and package_of(kind) not in _READERS:
            state = [getattr(value, name) for name in _slots(kind) if hasattr(value, name)]
            state += list(getattr(value, "__dict__", {}).values())
            if issubclass(kind, dict):
                state += [*value.keys(), *value.values(), getattr(value, "default_factory", None)]
            elif issubclass(kind, (tuple, list, set, frozenset, deque)):
                state += value
            known = all(self.is_plain(item, depth - 1) for item in state)
        self._objects[id(value)] = value, known
        return known

    def _is_library(self, module: Any) -> bool:
        if type(module) is not str:
            return False
        root = module.partition(".")[0]
        if root not in _LIBRARIES and root not in _READERS:
            return False
        if root not in _LOADED or module.startswith(FRAMES):
            self.modules.add(module)
        return True


def _is_data(dtype: Any) -> bool:
    """Say whether values of a dtype, NumPy's or pandas', cannot be objects of the user's."""
    if isinstance(dtype, np.dtype):
        return not dtype.hasobject
    return type(dtype).__name__ in _DATA_DTYPES and package_of(type(dtype)) == "pandas"


def _slots(kind: type) -> list[str]:
    """Return the names of what objects of a class hold besides their dictionary."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


__all__ = ["FRAMES", "is_library_code", "library_modules"]
