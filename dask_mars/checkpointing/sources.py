"""The files that a computation reads, and their changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from dask_mars.checkpointing.locations import Location, Remote, location_at, location_named, zarr_location
from dask_mars.checkpointing.stores import store_calls, target_slots
from dask_mars.graph.callables import package_of
from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.optimize.known import TELLING_PACKAGES, is_reader, reads_files, unfolded

#: Attributes by which objects that read files refer to each other, in xarray's adapters, its files, and HDF5's.
_INSIDE = ("array", "_array", "datastore", "_manager", "_args", "file", "func", "__self__")
_DEEPEST = 12
#: Maximum number of files in the directory of a source to fingerprint.
_MOST_FILES = 1_000_000
_PLAIN = frozenset({int, float, bool, bytes, slice, type(None), complex, type, str, np.ndarray, np.dtype})
_FUNCTIONS = frozenset({BuiltinFunctionType, FunctionType, partial})


def sources_of(graph: ChunkGraph) -> set[Location]:
    """Return the files and Zarr directories that a graph reads, as far as they can be found."""
    search = _Search()
    targets = [target_slots(operand) for operand in graph.operands]
    readers = {operand_id for operand_id, operand in enumerate(graph.operands) if reads_files(operand)}
    for operand, slots in zip(graph.operands, targets, strict=True):
        # If no argument is the target of a store step, the object that its operand holds is.
        for held in () if store_calls(operand) and not any(slots) else unfolded(operand.functions):
            search.look(held)
    read: set[int] = set()
    kinds = {type(literal) for literals in graph.literals for literal in literals}
    given = _given_readers(graph) if not kinds.isdisjoint(_FUNCTIONS) else set()
    # Most graphs have no objects that name files.
    is_looked_at = graph.values or readers or not kinds <= search.plain
    for chunk, operand_id in enumerate(graph.operand_of) if is_looked_at else ():
        if operand_id == DATA:
            continue
        of_inputs, of_literals = targets[operand_id]
        read.update([source for at, source in enumerate(graph.inputs[chunk]) if at not in of_inputs])
        literals = graph.literals[chunk]
        if operand_id in readers or (
            given and any(type(literal) in _FUNCTIONS and literal in given for literal in literals)
        ):
            search.found.update(_named_in(literals))
        if not search.plain.issuperset(map(type, literals)):
            for at, literal in enumerate(literals):
                if at not in of_literals:
                    search.look(literal)
    for chunk, value in graph.values.items():
        if chunk in read or chunk in graph.outputs:
            search.look(value)
    return search.found


class _Search:
    """Finds the sources that values name."""

    def __init__(self) -> None:
        self.found: set[Location] = set()
        #: Types whose objects name no files.
        self.plain: set[Any] = set(_PLAIN)
        self._seen: set[int] = set()

    def look(self, value: Any, depth: int = 0) -> None:
        """Add the sources that a value names."""
        kind: Any = type(value)
        if kind in self.plain or id(value) in self._seen:
            return
        is_sequence = kind is tuple or kind is list
        if not is_sequence and not _tells(kind):
            # Most types name no files: skip them from now on.
            self.plain.add(kind)
            return
        self._seen.add(id(value))
        if not is_sequence:
            self.found.update(_read_by(value, depth))
        elif depth < _DEEPEST:
            # Sequences may be long, such as seeds for the random numbers of each chunk.
            for item in value[:_DEEPEST]:
                if type(item) not in self.plain:
                    self.look(item, depth + 1)


def _given_readers(graph: ChunkGraph) -> set[Any]:
    """Return the reading functions among literals: bags are mapped by functions in their arguments."""
    return {
        literal
        for literals in graph.literals
        for literal in literals
        if type(literal) in _FUNCTIONS and is_reader(literal)
    }


def _named_in(values: Any, depth: int = 0) -> Iterator[Location]:
    """Yield the files that a reading function's arguments name."""
    filesystem = next((value for value in values if hasattr(value, "find") and hasattr(value, "info")), None)
    for value in values:
        if isinstance(value, list | tuple) and depth < _DEEPEST:
            yield from _named_in([*value, filesystem] if filesystem is not None else value, depth + 1)
        elif isinstance(value, str | os.PathLike):
            named = os.fspath(value)
            if not isinstance(named, str):
                continue
            if filesystem is not None and "://" not in named:
                yield location_at(filesystem, named)
            elif (source := location_named(named)) is not None:
                yield source


@lru_cache(maxsize=1024)
def _tells(kind: type) -> bool:
    """Return whether objects of a type may name the files that they read; see `_read_by`."""
    return (
        package_of(kind) in TELLING_PACKAGES
        or kind.__name__ == "CachingFileManager"
        or _is_of_fsspec(kind)
        or issubclass(kind, np.memmap)
    )


def _is_of_fsspec(kind: type) -> bool:
    """Return whether a type is one of fsspec's open files, or of files to open."""
    return any(package_of(base) == "fsspec" for base in kind.__mro__)


def _read_by(value: Any, depth: int) -> Iterator[Location]:
    """Yield the sources that an object names."""
    if depth > _DEEPEST or value is None:
        return
    kind = type(value)
    if isinstance(value, np.memmap):
        if value.filename is not None:
            yield Path(value.filename).absolute()
        return
    if kind in _PLAIN:
        return
    module = package_of(kind)
    if module == "zarr":
        source = zarr_location(value)
        if source is not None:
            yield source
    elif module == "h5py":
        name = getattr(getattr(value, "file", None), "filename", None)
        # h5py gives names like "<_io.BytesIO ...>" to files of Python's.
        if name and not str(name).startswith("<"):
            yield Path(name).absolute()
    elif _is_of_fsspec(kind):
        path, filesystem = getattr(value, "path", None), getattr(value, "fs", None)
        is_read = filesystem is not None and "r" in str(getattr(value, "mode", "r"))
        # File systems within others also have a path.
        if is_read and isinstance(path, str) and not hasattr(value, "find"):
            yield location_at(filesystem, path)
    elif kind.__name__ == "CachingFileManager":
        for argument in getattr(value, "_args", ()):
            if isinstance(argument, str | os.PathLike) and Path(argument).is_file():
                yield Path(argument).absolute()
    elif module == "xarray":
        for name in _INSIDE:
            yield from _read_by(getattr(value, name, None), depth + 1)
    elif kind in (tuple, list):
        for item in value[:_DEEPEST]:
            yield from _read_by(item, depth + 1)


def fingerprints(sources: Collection[Location], token: str | None) -> dict[str, str | None]:
    """Return the fingerprint of each source by name: the token for remote ones, None if there is none."""
    return {
        source.name if isinstance(source, Remote) else str(source): (
            token if isinstance(source, Remote) else fingerprint(source)
        )
        for source in sources
    }


def fingerprint(path: Path) -> str | None:
    """Return names, sizes and times of a file or directory as text; None if unreadable, or for too many files."""
    digest = hashlib.sha256()
    left = _MOST_FILES
    stack = [str(path)]
    try:
        if not path.is_dir():
            found = path.stat()
            return f"{found.st_size} {found.st_mtime_ns}"
        while stack:
            directory = stack.pop()
            with os.scandir(directory) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    left -= 1
                    if left < 0:
                        return None
                    if entry.is_dir():
                        stack.append(entry.path)
                        continue
                    known = entry.stat()
                    digest.update(f"{entry.path}\0{known.st_size}\0{known.st_mtime_ns}\0".encode(errors="replace"))
    except OSError:
        return None
    return digest.hexdigest()[:32]


def changed(before: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    """Return the names of sources that differ from earlier fingerprints, or whose changes cannot be detected."""
    return sorted([name for name, known in now.items() if known is None or before.get(name) != known])
