"""Memory of NumPy arrays: where it lies, views of it as bytes, copies that keep its layout."""

from __future__ import annotations

from typing import Any

from dask_mars.lazy_numpy import np
from dask_mars.store.arena import Bytes

#: Short names of dtypes, cached because NumPy creates them on each access, and pickling repeats each new string.
_names: dict[np.dtype[Any], str] = {}


def portable(dtype: np.dtype[Any]) -> Any:
    """Return the form of a dtype in messages: its short name if that is complete."""
    if dtype.kind in "biufcmM" and dtype.metadata is None:
        name = _names.get(dtype)
        if name is None:
            name = _names[dtype] = dtype.str
        return name
    return dtype


def byte_bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the byte after its last."""
    low = high = int(array.__array_interface__["data"][0])
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize


class _Memory:
    """Exposes raw memory of an array through the array interface, and keeps the array alive."""

    def __init__(self, address: int, size_bytes: int, keep: Any) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }
        self.keep = keep


def is_users(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array has come in a message, and is read-only because it is the user's."""
    owner: Any = array
    while issubclass(type(owner), np.ndarray):
        owner = owner.base
    return type(owner) is bytes


def raw(address: int, size_bytes: int, keep: Any) -> Bytes:
    """Return memory as bytes that keep its owner alive."""
    return np.asarray(_Memory(address, size_bytes, keep))


def copy_as_it_lies(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy an array; a broadcast one stays broadcast, as under Dask's own schedulers."""
    low, high = byte_bounds(view)
    if high - low >= view.nbytes:
        return np.copy(view, order="K")
    memory = raw(low, high - low, view).copy()
    position = int(view.__array_interface__["data"][0]) - low
    return np.ndarray(view.shape, view.dtype, buffer=memory, offset=position, strides=view.strides)
