"""Assembly of arrays in the user's process: chunks in memory are read in place, spilled ones one by one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MethodType
from typing import Any

from dask import is_dask_collection

from dask_mars.dask_api.loaded import arrays
from dask_mars.graph.chunks import Operand
from dask_mars.lazy_numpy import np
from dask_mars.optimize.programs import make_list
from dask_mars.protocol.object_ref import ObjectRef, array_type, is_pickled, is_spilled
from dask_mars.store.store import Store


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


def input_to_assemble(store: Store, ref: ObjectRef, operand: Operand) -> Any:
    """Return an input of an assembly: the value, or for a spilled array a stand-in that loads on copy."""
    # A single input is asked for its own copy, and other functions may use any attribute.
    plain = operand.input_count > 1 and set(operand.functions) == {make_list, arrays.finalize}
    if plain and is_spilled(ref) and (known := array_type(ref)) is not None:
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
