"""Assembly of arrays in the user's process: chunks in memory are read in place, spilled ones one by one.

The program that copying in several threads serves: ``(x + 1).compute()``, whose result takes as long to copy as to
compute, mostly for fresh pages.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

from dask import is_dask_collection

from dask_mars.dask_api.loaded import arrays
from dask_mars.graph.chunks import Operand
from dask_mars.lazy_numpy import np
from dask_mars.optimize.programs import make_list
from dask_mars.protocol.object_ref import ObjectRef, array_type, is_pickled, is_spilled
from dask_mars.store.store import Store

#: Minimum size of an array that several threads copy. Starting them takes as long as copying a megabyte.
_LARGE_BYTES = 32 << 20
#: Calls functions in several threads, and returns when all have ended.
CallAll = Callable[[Sequence[Callable[[], None]]], None]


def is_assembly(operand: Operand) -> bool:
    """Return whether an operand only assembles its inputs and copies them, so that `input_to_assemble` suits."""
    return operand.functions[-1] is arrays.finalize


def is_xarrays_assembly(operand: Operand, literals: Sequence[Any]) -> bool:
    """Return whether an operand assembles Dask's arrays into an object of xarray, and copies its inputs."""
    xarray: Any = sys.modules.get("xarray")
    last = operand.functions[-1]
    if type(last) is not MethodType or not hasattr(xarray, "Dataset"):
        return False
    # A data array passes the method of a dataset.
    methods = literals if last.__self__ is xarray.DataArray else [last]
    for method in methods:
        dataset: Any = method.__self__ if type(method) is MethodType else None
        if type(dataset) is xarray.Dataset and method == dataset.__dask_postcompute__()[0]:
            variables = filter(is_dask_collection, dataset.variables.values())
            return all(variable.__dask_postcompute__()[1][:1] == (arrays.finalize,) for variable in variables)
    return False


def is_large_assembly(operand: Operand, inputs: Sequence[Any]) -> bool:
    """Return whether an operand only copies plain arrays into a large one."""
    return (
        _is_plain(operand)
        and all(type(value) is np.ndarray for value in inputs)
        and len({value.dtype for value in inputs}) == 1
        and not inputs[0].dtype.hasobject
        and sum(value.nbytes for value in inputs) >= _LARGE_BYTES
    )


def in_threads(operand: Operand, call_all: CallAll) -> Operand:
    """Return an assembly that copies its arrays in several threads."""
    functions = [
        partial(_assembled, call_all) if function is arrays.finalize else function
        for function in operand.functions
    ]
    return operand.replaced(functions, operand.steps)


def _is_plain(operand: Operand) -> bool:
    # A single input is asked for its own copy, and other functions may use any attribute.
    return operand.input_count > 1 and set(operand.functions) == {make_list, arrays.finalize}


def _assembled(call_all: CallAll, results: Any) -> Any:
    """Return nested lists of arrays as one, or let Dask do so if they are no regular grid."""
    grid: dict[tuple[int, ...], Any] = {}
    _collect(results, (), grid)
    depth = len(next(iter(grid)))
    if any(len(place) != depth or array.ndim != depth for place, array in grid.items()):
        return arrays.finalize(results)
    # Along each axis, those of the arrays at its edge.
    lengths = [
        [array.shape[axis] for place, array in grid.items() if not any(place[:axis] + place[axis + 1 :])]
        for axis in range(depth)
    ]
    ends = [list(itertools.accumulate(each, initial=0)) for each in lengths]
    places = {
        place: tuple([slice(*ends[axis][index : index + 2]) for axis, index in enumerate(place)])
        for place in itertools.product(*map(range, map(len, lengths)))
    }
    if places.keys() != grid.keys() or any(
        array.shape != tuple([part.stop - part.start for part in places[place]]) for place, array in grid.items()
    ):
        return arrays.finalize(results)
    result = np.empty(tuple([each[-1] for each in ends]), next(iter(grid.values())).dtype)
    call_all([partial(result.__setitem__, places[place], array) for place, array in grid.items()])
    return result


def _collect(results: Any, place: tuple[int, ...], grid: dict[tuple[int, ...], Any]) -> None:
    if type(results) is list:
        for index, each in enumerate(results):
            _collect(each, (*place, index), grid)
    else:
        grid[place] = results


def input_to_assemble(store: Store, ref: ObjectRef, operand: Operand) -> Any:
    """Return an input of an assembly: the value, or for a spilled array a stand-in that loads on copy."""
    if _is_plain(operand) and is_spilled(ref) and (known := array_type(ref)) is not None:
        return _OnDisk(store, ref, *known)
    value = store.load(ref)
    if is_pickled(ref) and not _is_copied_whole(value):
        return store.load_copy(ref)
    return value


def _is_copied_whole(value: Any) -> bool:
    """Return whether assembly copies all of an array, and keeps no reference to its memory."""
    return type(value) is np.ndarray or (type(value) is np.ma.MaskedArray and not vars(value)["_optinfo"])


class _OnDisk:
    """The attributes of an array that Dask reads before it copies the array into its result."""

    def __init__(self, store: Store, ref: ObjectRef, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.ndim = len(shape)
        self._store = store
        self._ref = ref

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self._store.load(self._ref)
        return np.asarray(array, dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.__array__()[index]
