"""Decides whether a chunk graph consists of code of well-known libraries alone.

Such code may run in threads of the user's process: it does not crash, does not hold the GIL for long, and ends.
So do functions of the user's without loops that only call libraries (`plain_functions.py`), which run there if
they read large arrays of the user's; others run in worker processes, which can be interrupted and ended.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import operator
import sys
from collections import deque
from collections.abc import Collection
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from dask.highlevelgraph import HighLevelGraph
from dask.utils import Dispatch, methodcaller

from dask_mars.entry_points import entry_points
from dask_mars.graph.callables import full_name, package_of
from dask_mars.graph.chunks import ChunkGraph, Constant, Operand, Subprogram
from dask_mars.graph.functions import path_of
from dask_mars.lazy_numpy import np
from dask_mars.optimize.known import DECODING_PACKAGES, LIBRARIES, LOADED_PACKAGES, RUNNING_CODE
from dask_mars.optimize.plain_functions import code_of, writes_and_draws
from dask_mars.store.persisted import PersistedChunk
from dask_mars.store.store import bytes_to_store

#: Entry points of packages whose functions may run in threads: their names are top-level modules.
GROUP = "dask_mars.libraries"
_PLAIN = frozenset(
    {type(None), type(Ellipsis), bool, int, float, complex, str, bytes, range}
    | {datetime.date, datetime.datetime, datetime.timedelta, decimal.Decimal}
)
_CALLERS = frozenset({operator.itemgetter, operator.methodcaller, operator.attrgetter, methodcaller})
_CONTAINERS = frozenset({tuple, list, set, frozenset})
_EMPTY = CellType()
#: Module of the functions of Dask's frames, whose sizes are not declared.
FRAMES = "dask.dataframe"
_MAPS_PARTITIONS = f"{FRAMES}.core.apply_and_enforce"
#: Maximum depth of literals, and maximum size of a graph that is inspected.
_DEPTH = 16
MOST_CHUNKS = 4096
#: Minimum size of the user's arrays in a graph whose plain functions may run in threads. Copies of fewer bytes
#: take less time than such functions may lose to the GIL.
MUCH_BYTES = 1 << 25
#: Dtypes of pandas whose values are numbers, times or text.
_DATA_DTYPES = frozenset({"ArrowDtype", "BooleanDtype", "DatetimeTZDtype", "PeriodDtype", "StringDtype"}) | {
    f"{kind}{bits}Dtype" for kind in ("Float", "Int", "UInt") for bits in (8, 16, 32, 64)
}
#: Names that pandas infers for columns of objects that hold text, numbers and the like.
_DATA_OBJECTS = frozenset(
    {"boolean", "bytes", "date", "datetime", "datetime64", "decimal", "empty", "floating"}
) | {"integer", "mixed-integer-float", "string", "timedelta", "timedelta64"}
#: Maximum number of objects to inspect, which takes 10 ms.
_MOST_OBJECTS = 1 << 20


class CodeOrigin(NamedTuple):
    """The origin of a graph's code."""

    #: Modules of libraries that the tasks import.
    modules: set[str]
    #: Why it is not all library code, in words; empty if it is.
    other: str


def is_library_code(graph: ChunkGraph) -> bool:
    """Return whether a graph has only functions and objects of well-known libraries; False for large graphs."""
    return not code_origin(graph).other


def code_origin(graph: ChunkGraph) -> CodeOrigin:
    """Return the modules of a graph's functions and objects, and what is not a library's."""
    if len(graph) > MOST_CHUNKS:
        return CodeOrigin(set(), f"a graph has {len(graph)} chunks, more than {MOST_CHUNKS}")
    look = _Look(allows_plain=sum(map(bytes_to_store, graph.values.values())) >= MUCH_BYTES)
    known = (
        all(map(look.are_called, graph.operands))
        and all(look.is_plain(value) for value in graph.values.values() if type(value) is not PersistedChunk)
        and all(look.are_literals_plain(graph, chunk) for chunk in range(len(graph)))
    )
    return CodeOrigin(look.modules, "" if known else f"{look.other or 'some object'} is not a library's")


def count_other_calls(graph: ChunkGraph) -> list[int]:
    """Return how many functions that are not a library's a chunk of each operand calls."""
    look = _Look()

    def count(operand: Operand) -> int:
        calls = [
            count(function.operand) if type(function) is Subprogram else not look.is_known(function)
            for function in operand.functions
        ]
        return sum([calls[step.function] for step in operand.steps])

    return list(map(count, graph.operands))


def library_chunks(graph: ChunkGraph, chunks: Collection[int], frames: bool) -> set[int]:
    """Return those of some chunks that are library code, with values they read; with `frames` also of pandas."""
    look = _Look(allows_plain=True)
    operands = {graph.operand_of[chunk] for chunk in chunks}
    known = {id for id in operands if look.are_called(graph.operands[id])}
    sources = {source for chunk in chunks for source in graph.inputs[chunk]}
    others = {source for source in sources & graph.values.keys() if not look.is_plain(graph.values[source])}
    if not frames and any(name.startswith((FRAMES, "pandas")) for name in look.modules):
        return set()
    return {
        chunk
        for chunk in chunks
        if graph.operand_of[chunk] in known
        and others.isdisjoint(graph.inputs[chunk])
        and look.are_literals_plain(graph, chunk)
    }


class _Look:
    """One inspection of a graph, with a memory of objects seen."""

    def __init__(self, allows_plain: bool = False) -> None:
        #: Whether tasks may call plain functions of the user's.
        self._allows_plain = allows_plain
        #: Findings on functions and on other objects, by identity; the objects are kept, so that ids stay unique.
        self._functions: dict[int, tuple[Any, bool]] = {}
        self._objects: dict[int, tuple[Any, bool]] = {}
        #: Findings on functions of the user's that tasks call.
        self._called: dict[int, tuple[Any, bool]] = {}
        #: Modules of the objects seen, except those that every worker has.
        self.modules: set[str] = set()
        #: The first function or class that is not a library's.
        self.other = ""
        #: Number of pandas' objects that may still be inspected.
        self._objects_left = _MOST_OBJECTS

    def are_called(self, operand: Operand, depth: int = _DEPTH) -> bool:
        """Return whether `is_called` holds for all functions of an operand."""
        first, functions = operand.input_count + operand.literal_count, list[Any](operand.functions)
        made_by = [operand.steps[slot - first].function for slot in _mapped_slots(operand) if slot >= first]
        for place in made_by:
            if type(functions[place]) is Constant:
                functions[place] = functions[place].value
        return all(self.is_called(function, depth) for function in functions)

    def are_literals_plain(self, graph: ChunkGraph, chunk: int) -> bool:
        """Return whether `is_plain` holds for a chunk's literals, and `is_called` for those that are called."""
        literals, called = graph.literals[chunk], list[int]()
        if FunctionType in map(type, literals):
            operand = graph.operands[graph.operand_of[chunk]]
            called = [slot - operand.input_count for slot in _mapped_slots(operand)]
        return all(
            self.is_called(literal) if at in called else self.is_plain(literal)
            for at, literal in enumerate(literals)
        )

    def is_called(self, function: Any, depth: int = _DEPTH) -> bool:
        """Return whether a function that a task calls is known, or a plain function of the user's."""
        kind = type(function)
        if kind is functools.partial and depth:
            inside = [*function.args, *function.keywords.values()]
            return self.is_called(function.func, depth - 1) and all(
                self.is_plain(value, depth - 1) for value in inside
            )
        if kind is Subprogram and depth:
            literals = all(self.is_plain(value, depth - 1) for value in function.literals)
            return literals and self.are_called(function.operand, depth - 1)
        is_library = kind is not FunctionType or self._is_library(function.__globals__.get("__name__", ""))
        if is_library or not self._allows_plain:
            return self.is_known(function, depth)
        found = self._called.get(id(function))
        if found is None:
            # A function that calls itself is a loop.
            self._called[id(function)] = function, False
            code = code_of(function) if depth else None
            is_plain = (
                code is not None
                and all(self._is_usable(value, depth - 1) for value in code.values)
                # One that writes into its input runs twice, with other numbers.
                and not all(writes_and_draws(function))
            )
            found = self._called[id(function)] = function, is_plain
            if not is_plain:
                self.other = self.other or full_name(function)
        return found[1]

    def _is_usable(self, value: Any, depth: int) -> bool:
        """Return whether a plain function may refer to a value."""
        if type(value) is ModuleType:
            return self._is_library(value.__name__)
        return self.is_called(value, depth) if type(value) is FunctionType else self.is_plain(value, depth)

    def is_known(self, function: Any, depth: int = _DEPTH) -> bool:
        """Return whether a callable is a library's and holds nothing of the user's."""
        kind = type(function)
        if not depth:
            return False
        if kind is functools.partial or (kind.__name__ == "curry" and self._is_library(kind.__module__)):
            return (
                self.is_known(function.func, depth - 1)
                and all(self.is_plain(value, depth - 1) for value in function.args)
                and all(self.is_plain(value, depth - 1) for value in function.keywords.values())
            )
        if kind in _CALLERS:
            # The object that a method is called on is data too, or of a library's class.
            return all(self.is_plain(item, depth - 1) for item in function.__reduce__()[1])
        if kind is Constant:
            return self.is_plain(function.value, depth - 1)
        if kind is MethodType:
            # Such as class methods by which Dask's frames reduce.
            return self.is_known(function.__func__, depth - 1) and self.is_plain(function.__self__, depth - 1)
        if kind is Dispatch:
            # It dispatches on the classes of data, which come from libraries too.
            return True
        if kind.__name__ == "Compose" and self._is_library(kind.__module__):
            return all(self.is_known(inner, depth - 1) for inner in (function.first, *function.funcs))
        if id(function) not in self._functions:
            # Ends recursion through references back to the function.
            self._functions[id(function)] = function, True
            known = self._is_library_function(function, kind, depth)
            self._functions[id(function)] = function, known
            if not known:
                self.other = self.other or full_name(function)
        return self._functions[id(function)][1]

    def _is_library_function(self, function: Any, kind: type, depth: int) -> bool:
        if kind is FunctionType:
            # `__module__` may name the function that this one wraps.
            module = function.__globals__.get("__name__", "")
            cells = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
            inside = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            return self._is_library(module) and all(self.is_plain(value, depth - 1) for value in inside)
        path = path_of(function)
        if path is not None:
            return path not in RUNNING_CODE and self._is_library(path.partition(":")[0])
        # A callable object, such as the one that makes parts of Dask's example frames.
        return not issubclass(kind, type) and self._is_library_object(function, kind, depth)

    def is_plain(self, value: Any, depth: int = _DEPTH) -> bool:
        """Return whether a value is data, a library's function, or a container of such."""
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
        if package_of(kind) == "pandas" and hasattr(kind, "dtypes"):
            # A frame, a series, or an index of groups, for example.
            self.modules.add("pandas")
            return self._is_plain_frame(value, depth)
        random = np.random
        data = np.generic, np.dtype, random.SeedSequence, random.BitGenerator, random.Generator
        if issubclass(kind, data) and kind.__module__.startswith("numpy."):
            return True
        if kind is HighLevelGraph:
            # Xarray assembles results by a method of a lazy object, whose graph no task runs.
            return True
        if callable(value):
            return self.is_known(value, depth - 1)
        return self._is_library_object(value, kind, depth)

    def _is_plain_frame(self, value: Any, depth: int) -> bool:
        """Return whether a pandas object holds only data, labels included."""
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
        """Return whether a column or an index holds only data; columns of objects are inspected."""
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
        """Return whether an object, such as a zarr array, and all that it holds are of libraries' classes."""
        found = self._objects.get(id(value))
        if found is not None:
            return found[1]
        # Ends recursion; references back to the object change nothing.
        self._objects[id(value)] = value, True
        known = self._is_library(kind.__module__)
        if known and package_of(kind) not in DECODING_PACKAGES:
            state = [getattr(value, name) for name in _slots(kind) if hasattr(value, name)]
            state += list(getattr(value, "__dict__", {}).values())
            if issubclass(kind, dict):
                state += [*value.keys(), *value.values(), getattr(value, "default_factory", None)]
            elif issubclass(kind, (tuple, list, set, frozenset, deque)):
                state += value
            known = all(self.is_plain(item, depth - 1) for item in state)
        self._objects[id(value)] = value, known
        if not known:
            self.other = self.other or full_name(kind)
        return known

    def _is_library(self, module: Any) -> bool:
        if type(module) is not str:
            return False
        root = module.partition(".")[0]
        if root not in LIBRARIES and root not in DECODING_PACKAGES and root not in _libraries_by_entry_point():
            return False
        if root not in LOADED_PACKAGES or module.startswith(FRAMES):
            self.modules.add(module)
        return True


def _mapped_slots(operand: Operand) -> list[int]:
    """Return the values of an operand that Dask calls with partitions of frames (`map_partitions`)."""
    return [
        step.slots[step.keywords.index("_func") - len(step.keywords)]
        for step in operand.steps
        if "_func" in step.keywords and full_name(operand.functions[step.function]) == _MAPS_PARTITIONS
    ]


@functools.cache
def _libraries_by_entry_point() -> frozenset[str]:
    return frozenset(entry_point.name for entry_point in entry_points(GROUP))


def _is_data(dtype: Any) -> bool:
    """Return whether values of a NumPy or pandas dtype cannot be the user's objects."""
    if isinstance(dtype, np.dtype):
        return not dtype.hasobject
    return type(dtype).__name__ in _DATA_DTYPES and package_of(type(dtype)) == "pandas"


def _slots(kind: type) -> list[str]:
    """Return the names of the slots of a class's instances."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]
