"""Pickles datasets of HDF5 files that are open read-only: by file and name, without data."""

from __future__ import annotations

import importlib
import os
import sys
import uuid
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

#: Codes of HDF5's own filters, which every installation has; and of h5py's.
_OWN_FILTERS, _LZF = range(256), 32000

#: Datasets that this process has sent, by id, and the token of this process. A process can open a file in one way
#: only.
_sent: WeakValueDictionary[int, Any] = WeakValueDictionary()
_PROCESS = uuid.uuid4().hex


def _identity(stat: os.stat_result) -> tuple[int, int, int]:
    """Return what identifies a file, also for hosts that mount it elsewhere."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def reduce_dataset(dataset: Any) -> tuple[Any, ...] | None:
    """Return a reduction that opens a dataset in another process; None if only this one can read it."""
    h5py = sys.modules["h5py"]
    try:
        file = dataset.file
        path = Path(os.fsdecode(file.filename)).absolute()
        # Unflushed writes may not be in the file yet, and a file in memory has no place on disk.
        is_read = file.mode == "r" and not file.swmr_mode and file.driver == "sec2"
        if not is_read or not dataset.name or not _is_plain(h5py, dataset):
            return None
        identity = _identity(os.fstat(file.id.get_vfd_handle()))
        if _identity(path.stat()) != identity:
            return None
    except Exception:
        return None
    _sent[id(dataset)] = dataset
    return open_dataset, (_PROCESS, id(dataset), str(path), identity, dataset.name)


def _is_plain(h5py: Any, dataset: Any) -> bool:
    """Return whether a dataset is readable wherever h5py is installed, and its data can be pickled."""
    dtype = dataset.dtype
    if dtype.hasobject and h5py.check_string_dtype(dtype) is None:
        return False
    if dataset.is_virtual or dataset.external:
        return False
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    return all(code in _OWN_FILTERS or code == _LZF for code in filters)


def open_dataset(process: str, place: int, path: str, identity: tuple[int, int, int], name: str) -> Any:
    """Open a dataset from the arguments of `reduce_dataset`."""
    found = _sent.get(place) if process == _PROCESS else None
    # The id may belong to another dataset by now.
    if found is not None and found.name == name and str(Path(os.fsdecode(found.file.filename)).absolute()) == path:
        return found
    h5py = importlib.import_module("h5py")
    if _identity(Path(path).stat()) != identity:
        raise OSError(f"{path} has changed since it was opened")
    # No lock: the user may close the file and write to it once the results are computed.
    return h5py.File(path, "r", locking=False)[name]
