"""Locations of files that chunks read or write: paths on a local disk, and names of anything else."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from dask_mars.graph.callables import package_of
from dask_mars.optimize.known import FILE_SYSTEM_STORES, LOCAL_STORES

#: Maximum number of nested wrappers of a store.
_DEEPEST = 8
#: Matches possible secrets in an address: user names, passwords, queries.
_SECRETS = re.compile(r"(?<=//)[^/@]*@|[?#].*$")
#: Zarr's stores in single files, and in memory.
_FILE_STORES = frozenset({"ZipStore", "SQLiteStore", "DBMStore", "LMDBStore"})
_MEMORY_STORES = frozenset({"MemoryStore", "ManagedMemoryStore", "GpuMemoryStore", "dict", "KVStore"})


class Remote(NamedTuple):
    """A location that is not on a local disk, such as one in an object store or an archive."""

    #: Its address without secrets, for messages.
    name: str


Location = Path | Remote


def location_at(filesystem: Any, path: str) -> Location:
    """Return the location of a path in one of fsspec's file systems."""
    # Zarr wraps synchronous file systems.
    filesystem = getattr(filesystem, "sync_fs", filesystem)
    protocol = getattr(filesystem, "protocol", ())
    protocols = (protocol,) if isinstance(protocol, str) else tuple(protocol or ())
    if "file" in protocols:
        return Path(path).absolute()
    if "://" not in path:
        path = f"{protocols[0] if protocols else type(filesystem).__name__}://{path.lstrip('/')}"
    return Remote(_SECRETS.sub("", path))


def location_named(address: str) -> Location | None:
    """Return the location that an address or an existing path names; None if it is neither."""
    if "://" not in address:
        # Few strings are paths.
        path = Path(address)
        try:
            return path.absolute() if path.exists() else None
        except (OSError, ValueError):
            return None
    try:
        return location_at(*import_module("fsspec.core").url_to_fs(address))
    except Exception:
        # A database's address perhaps, or one that needs a package that is not installed.
        return Remote(_SECRETS.sub("", address))


def zarr_location(array: Any) -> Location | None:
    """Return the location of a Zarr array; None for arrays in memory, and for other objects."""
    if package_of(type(array)) != "zarr":
        return None
    store = getattr(array, "store", None)
    for _ in range(_DEEPEST):
        # Wrappers that log or count the calls of another store.
        store = getattr(store, "_store", store)
    kind = type(store).__name__
    if store is None or kind in _MEMORY_STORES:
        return None
    inside = str(getattr(array, "path", "")).strip("/")
    root = getattr(store, "root", None) or getattr(store, "path", None)
    if root is None:
        return Remote(f"{kind} {inside}".strip())
    if kind in FILE_SYSTEM_STORES:
        return location_at(store.fs, f"{str(root).rstrip('/')}/{inside}".rstrip("/"))
    if kind in LOCAL_STORES:
        return Path(root).absolute() / inside
    return Path(root).absolute() if kind in _FILE_STORES else Remote(f"{kind} {root} {inside}".strip())


def zarr_directory(array: Any) -> Path | None:
    """Return the directory of a Zarr array on a local disk, which has a file for each of its chunks."""
    location = zarr_location(array)
    is_in_file = type(getattr(array, "store", None)).__name__ in _FILE_STORES
    return location if isinstance(location, Path) and not is_in_file else None
