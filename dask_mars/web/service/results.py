"""Results as files: frames, and a header with all facts that the front needs for other formats."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dask_mars.client.handles import describe
from dask_mars.client.records import ValueDescription
from dask_mars.web import wire
from dask_mars.web.monitor import Json
from dask_mars.web.pickles import pack, read_frames, unpack
from dask_mars.web.service.store import SPARE_BYTES, sync_directory

#: Limits of results in JSON: elements, and bytes.
_JSON_ELEMENTS = 10_000
_JSON_BYTES = 256 << 10
#: Largest array in the header, in bytes; its bytes also stay in the pickle.
_INLINE_BYTES = 1 << 17
#: Bytes to write between two checks for a cancellation.
_PIECE_BYTES = 64 << 20


def write(
    value: Any, is_tuple: bool, incoming: Path, target: Path, checkpoint: Callable[[], None] = lambda: None
) -> tuple[ValueDescription, int]:
    """Write a result, and return its description and the size of the file."""
    if is_tuple and isinstance(value, tuple) and len(value) == 1:
        shown = _contiguous(value[0])
        value = (shown,)
    else:
        shown = value = _contiguous(value)
    frames = pack(value)
    description = describe(shown)
    header = {
        "frames": [frame.nbytes for frame in frames],
        "npy": _npy(shown, frames),
        "json": _as_json(shown, description),
    }
    need_bytes = sum([frame.nbytes for frame in frames])
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < need_bytes + SPARE_BYTES:
        text = (
            f"the result has {need_bytes:,} bytes, and the service's disk has {free_bytes:,} left, of which "
            f"{SPARE_BYTES:,} are kept free"
        )
        raise OSError(errno.ENOSPC, text)
    with incoming.open("wb", buffering=0) as file:
        _write_all(file.fileno(), memoryview(wire.encode_header(header)), checkpoint)
        for frame in frames:
            _write_all(file.fileno(), frame.cast("B"), checkpoint)
        os.fsync(file.fileno())
        size_bytes = file.tell()
    incoming.rename(target)
    sync_directory(target.parent)
    return description, size_bytes


def _write_all(descriptor: int, view: memoryview, checkpoint: Callable[[], None]) -> None:
    while view:
        checkpoint()
        view = view[os.write(descriptor, view[:_PIECE_BYTES]) :]


def read(path: Path) -> tuple[Json, Any]:
    """Return the header and the value of a result, or of a submission."""
    with path.open("rb", buffering=0) as file:

        def fill(target: Any) -> None:
            left = memoryview(target)
            while left:
                count = file.readinto(left)
                if not count:
                    raise EOFError("the file is shorter than its header says")
                left = left[count:]

        header, frames = read_frames(fill)
        return header, unpack(frames)


def _contiguous(value: Any) -> Any:
    """Return a contiguous array: others are copied into their pickle."""
    if type(value) is np.ndarray and not value.flags.forc and not value.dtype.hasobject:
        return np.ascontiguousarray(value)
    return value


def _npy(value: Any, frames: Sequence[memoryview]) -> Json | None:
    """Return the parts of a file of `numpy.save`: its header, and the number of the frame, or all of it."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if type(value) is not np.ndarray or value.dtype.hasobject:
        return None
    with io.BytesIO() as file:
        if value.nbytes <= _INLINE_BYTES and len(frames) == 1:
            np.save(file, value, allow_pickle=False)
            return {"text": base64.b64encode(file.getvalue()).decode()}
        if len(frames) != 2 or frames[1].nbytes != value.nbytes:
            return None
        np.lib.format.write_array_header_2_0(file, np.lib.format.header_data_from_array_1_0(value))
        return {"text": base64.b64encode(file.getvalue()).decode(), "frame": 1}


def _as_json(value: Any, description: ValueDescription) -> str | None:
    """Return a small result as JSON, None if it is too large or has no form there."""
    plain = value
    if isinstance(value, (np.ndarray, np.generic)):
        if value.size > _JSON_ELEMENTS or value.dtype.kind not in "biufSUM":
            return None
        plain = value.astype(str).tolist() if value.dtype.kind in "SM" else value.tolist()
    elif not isinstance(value, (bool, int, float, str, list, tuple, dict, type(None))):
        return None
    try:
        # Other readers than Python do not accept NaN.
        text = json.dumps({**description, "value": plain}, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= _JSON_BYTES else None
