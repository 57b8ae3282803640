"""Pickles for a service: submissions of users, and results of a runner."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask.utils import SerializableLock

from dask_mars.graph.callables import package_of
from dask_mars.protocol import pickling
from dask_mars.web import wire

#: Smallest buffer outside the pickle, in bytes, and maximum number of such buffers: headers list them.
_BUFFER_BYTES = 1 << 16
_MOST_BUFFERS = 10_000


class _DownloadPickler(pickling._Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # In the service another process's engine replaces it by an interprocess lock.
        kind = type(obj)
        if kind is SerializableLock:
            return SerializableLock, (obj.token,)
        if kind.__name__ == "LocalStore" and package_of(kind) == "zarr" and not obj.root.is_absolute():
            # Relative to another working directory it would be another store, and an empty one.
            moved = copy.copy(obj)
            moved.root = obj.root.absolute()
            return moved.__reduce_ex__(5)
        return super().reducer_override(obj)


def pack(value: Any) -> list[memoryview]:
    """Return a pickle and its out-of-band buffers."""
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _BUFFER_BYTES or len(buffers) >= _MOST_BUFFERS:
            return True
        buffers.append(view)
        return False

    with io.BytesIO() as file:
        try:
            _DownloadPickler(file, protocol=5, buffer_callback=keep).dump(value)
        except MemoryError:
            raise
        except Exception as error:
            # Objects that cannot be pickled may raise any exception.
            raise pickle.PicklingError(f"this cannot go to another process: {error}") from error
        return [memoryview(file.getvalue()), *buffers]


def unpack(frames: Sequence[Any]) -> Any:
    """Return the packed value; it uses the memory of all frames but the first."""
    return pickle.loads(frames[0], buffers=frames[1:])


def read_frames(fill: Callable[[Any], object]) -> tuple[dict[str, Any], list[Any]]:
    """Return the header and the frames of a submission or a result, each in memory that `fill` fills."""
    prefix = bytearray(wire.PREFIX_BYTES)
    fill(prefix)
    text = bytearray(wire.header_bytes(bytes(prefix)))
    fill(text)
    header = wire.decode_header(bytes(text))
    # Unlike a bytearray, NumPy's memory is not zeroed first.
    frames = [np.empty(size, np.uint8).data for size in header["frames"]]
    for frame in frames:
        fill(frame)
    return header, frames
