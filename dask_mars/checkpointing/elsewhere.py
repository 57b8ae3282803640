"""Files in fsspec's file systems and Zarr's stores: their locations and fingerprints."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from dask_mars.graph.callables import package_of
from dask_mars.optimize.known import FILE_SYSTEM_STORES

#: Fields of file systems that change with a file's content: checksums, versions, times; only their letters are
#: compared.
_TELLING = frozenset(
    {
        *("etag", "md5", "md5hash", "contentmd5", "digest", "checksum", "crc", "crc32c", "sha", "sha256"),
        *("generation", "version", "versionid"),
        *("mtime", "modified", "lastmodified", "modificationtime", "lastwritetime", "modify", "updated"),
        *("created", "creationtime", "datetime"),
    }
)
#: Most nested file systems and wrappers.
_DEEPEST = 8
#: Most files of one array to fingerprint; a request lists about a thousand.
_MOST_FILES = 100_000
#: Most concurrent requests for single files.
_AT_ONCE = 16
#: Matches possible secrets in an address: user names, passwords, queries.
_SECRETS = re.compile(r"(?<=//)[^/@]*@|[?#].*$")
#: Zarr's stores in local directories, on fsspec's file systems, in single files, and in memory.
_DIRECTORY_STORES = frozenset({"LocalStore", "DirectoryStore", "NestedDirectoryStore"})
_FILE_STORES = frozenset({"ZipStore", "SQLiteStore", "DBMStore", "LMDBStore"})
_MEMORY_STORES = frozenset({"MemoryStore", "ManagedMemoryStore", "GpuMemoryStore", "dict", "KVStore"})


class Elsewhere(NamedTuple):
    """A file, or a directory of files, that is not on a local disk.

    Attributes
    ----------
    name : str
        Its address without secrets, for messages.
    filesystem : fsspec.AbstractFileSystem or None
        The file system; None if there is none to query.
    path : str
        Path in the file system.
    is_file : bool
        Whether it is one file.
    """

    name: str
    filesystem: Any = None
    path: str = ""
    is_file: bool = False

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elsewhere) and self.name == other.name


#: A source: a path on a local disk, or a file elsewhere.
Source = Path | Elsewhere


def source_at(filesystem: Any, path: str, is_file: bool) -> Source:
    """Return the source at a path of fsspec's; for copies, archives and subdirectories their original."""
    for _ in range(_DEEPEST):
        archive = getattr(filesystem, "of", None)
        names = {kind.__name__ for kind in type(filesystem).__mro__}
        if "AsyncFileSystemWrapper" in names:
            filesystem = filesystem.sync_fs
        elif archive is not None and hasattr(archive, "fs") and hasattr(archive, "path"):
            filesystem, path, is_file = archive.fs, archive.path, True
        elif "DirFileSystem" in names:
            filesystem, path = filesystem.fs, f"{filesystem.path}/{path}"
        elif "CachingFileSystem" in names:
            filesystem = filesystem.fs
        else:
            break
    protocols = _protocols(filesystem)
    if "file" in protocols:
        return Path(path)
    if "://" not in path:
        path_name = f"{protocols[0] if protocols else type(filesystem).__name__}://{path.lstrip('/')}"
    else:
        path_name = path
    return Elsewhere(_SECRETS.sub("", path_name), filesystem, path, is_file)


def source_named(address: str) -> Source | None:
    """Return the source that an address, as ``s3://bucket/table.csv``, or a path names; None if it is neither."""
    if "://" not in address:
        # Few strings are paths.
        path = Path(address)
        try:
            return path if path.exists() else None
        except (OSError, ValueError):
            return None
    try:
        filesystem, path = import_module("fsspec.core").url_to_fs(address)
        return source_at(filesystem, path, is_file=True)
    except Exception:
        # A database's address perhaps, or one that needs a package that is not installed.
        return Elsewhere(_SECRETS.sub("", address))


def zarr_source(array: Any) -> Source | None:
    """Return the source of a Zarr array; None for arrays in memory, and for other objects."""
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
    if root is not None and kind in _DIRECTORY_STORES:
        return Path(root) / inside
    if root is not None and kind in _FILE_STORES:
        return Path(root)
    if root is not None and kind in FILE_SYSTEM_STORES:
        found = source_at(store.fs, f"{str(root).rstrip('/')}/{inside}".rstrip("/"), is_file=False)
        if isinstance(found, Elsewhere) and getattr(array, "nchunks", 0) > _MOST_FILES:
            return Elsewhere(found.name)
        return found
    return Elsewhere(f"{kind} {inside}".strip())


def known_of(sources: Iterable[Elsewhere]) -> dict[str, str | None]:
    """Return the fingerprint of each source by name; None if there is none."""
    found: dict[str, str | None] = {}
    files: list[Elsewhere] = []
    for source in sources:
        if source.is_file and getattr(source.filesystem, "async_impl", False):
            files.append(source)
        else:
            found[source.name] = _known_of(source)
    if files:
        # Each is a round trip through the network.
        with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
            found.update(zip([file.name for file in files], pool.map(_known_of, files), strict=True))
    return found


def _known_of(source: Elsewhere) -> str | None:
    is_web = "http" in _protocols(source.filesystem)
    if source.filesystem is None or (is_web and not source.is_file):
        # HTTP directories are listings in pages, which have only names.
        return None
    try:
        filesystem = _synchronous(source.filesystem)
        # The file system's cache may be out of date.
        filesystem.invalidate_cache(filesystem._parent(source.path))
        entries = {source.path: filesystem.info(source.path)} if source.is_file else {}
        if not source.is_file or entries[source.path].get("type") == "directory":
            filesystem.invalidate_cache(source.path)
            entries = filesystem.find(source.path, detail=True)
    except Exception:
        # The task that reads it will report the reason.
        return None
    told = {name: _telling(filesystem, name, entry) for name, entry in entries.items()}
    if not told or None in told.values():
        return None
    return hashlib.sha256(repr(sorted(told.items())).encode(errors="replace")).hexdigest()[:32]


def _telling(filesystem: Any, name: str, entry: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Return the fields that change with a file's content, and its size; None if there are no such fields."""
    found = [
        (key, str(value))
        for key, value in sorted(entry.items())
        if value is not None and "".join(filter(str.isalnum, key)).lower() in _TELLING
    ]
    if "memory" in _protocols(filesystem):
        found.append(("modified", str(filesystem.modified(name))))
    return [*found, ("size", str(entry.get("size")))] if found else None


def _synchronous(filesystem: Any) -> Any:
    """Return a file system for calls from any thread; those of Zarr's are asynchronous."""
    if not getattr(filesystem, "asynchronous", False):
        return filesystem
    fields = json.loads(filesystem.to_json())
    fields["asynchronous"] = False
    return sys.modules["fsspec"].AbstractFileSystem.from_json(json.dumps(fields))


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = getattr(filesystem, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else tuple(protocol or ())


__all__ = ["Elsewhere", "Source", "known_of", "source_at", "source_named", "zarr_source"]
