"""What a computation reads from local disks, and whether that has changed since."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dask_mars.checkpointing.stores import store_calls, target_slots, zarr_directory
from dask_mars.graph.chunks import DATA, ChunkGraph, Constant, Operand, Subprogram

#: What objects that read files have of each other: xarray's adapters, its files, HDF5's.
_INSIDE = ("array", "_array", "datastore", "_manager", "_args", "file", "func", "__self__")
_DEEPEST = 12
#: Of how many files in the directory of a source is looked at most.
_MOST_FILES = 100_000
_PLAIN = frozenset({int, float, bool, bytes, slice, type(None), complex, type, str, np.ndarray, np.dtype})
#: Packages whose objects tell what they read, and classes that do wherever they are from.
_TELLING_PACKAGES = frozenset({"fsspec", "h5py", "xarray", "zarr"})
_TELLING_NAMES = frozenset({"CachingFileManager", "LocalFileOpener", "OpenFile"})
#: Functions that read the files that their arguments name, by their modules, which need not be loaded.
_READERS = {
    "numpy": ("fromfile", "genfromtxt", "load", "loadtxt"),
    "pandas": ("read_",),
    "xarray": ("load_da", "open_da", "open_zarr"),
}


def sources_of(graph: ChunkGraph) -> set[Path]:
    """Return the files, and the directories of Zarr arrays, that a graph reads and that can be told of."""
    found: set[Path] = set()
    seen: set[int] = set()
    plain = set(_PLAIN)

    def look(value: Any, depth: int = 0) -> None:
        kind = type(value)
        if kind in plain or id(value) in seen:
            return
        if kind is not tuple and kind is not list and not _tells(kind):
            # Of most types there is nothing to be told: they are not looked at again.
            plain.add(kind)
            return
        seen.add(id(value))
        if kind is not tuple and kind is not list:
            found.update(_paths(value, depth))
        elif depth < _DEEPEST:
            # There may be many of them, such as what each chunk's random numbers begin with.
            for item in value[:_DEEPEST]:
                if type(item) not in plain:
                    look(item, depth + 1)

    targets = [target_slots(operand) for operand in graph.operands]
    readers = {number for number, operand in enumerate(graph.operands) if _reads_named(operand)}
    for operand, (inputs, literal_numbers) in zip(graph.operands, targets, strict=True):
        # What a store holds for all of its chunks is its target.
        for held in () if store_calls(operand) and not (inputs or literal_numbers) else _held(operand):
            look(held)
    read: set[int] = set()
    kinds = {type(literal) for literals in graph.literals for literal in literals}
    # Most graphs read nothing of which there is anything to be told.
    is_looked_at = graph.values or readers or not kinds <= plain
    for chunk, number in enumerate(graph.operand_of) if is_looked_at else ():
        if number == DATA:
            continue
        of_inputs, of_literals = targets[number]
        if of_inputs:
            read.update([source for at, source in enumerate(graph.inputs[chunk]) if at not in of_inputs])
        else:
            read.update(graph.inputs[chunk])
        literals = graph.literals[chunk]
        if number in readers:
            named = [Path(literal) for literal in literals if isinstance(literal, str | os.PathLike)]
            found.update([path for path in named if path.exists()])
        if not plain.issuperset(map(type, literals)):
            for at, literal in enumerate(literals):
                if at not in of_literals:
                    look(literal)
    for chunk, value in graph.values.items():
        if chunk in read or chunk in graph.outputs:
            look(value)
    return {path.absolute() for path in found}


def _reads_named(operand: Operand) -> bool:
    for function in operand.functions:
        called = getattr(function, "func", function)
        package = str(getattr(called, "__module__", "")).partition(".")[0]
        if str(getattr(called, "__qualname__", "")).startswith(_READERS.get(package, "\0")):
            return True
    return False


def _held(operand: Operand) -> Iterator[Any]:
    for function in operand.functions:
        if isinstance(function, Subprogram):
            yield from _held(function.operand)
            yield from function.literals
        elif isinstance(function, Constant):
            yield function.value


def _tells(kind: type) -> bool:
    """Say whether objects of a type may tell what they read, as `_paths` asks them."""
    return (
        kind.__module__.partition(".")[0] in _TELLING_PACKAGES
        or kind.__name__ in _TELLING_NAMES
        or issubclass(kind, np.memmap)
    )


def _paths(value: Any, depth: int) -> Iterator[Path]:
    """Yield the files that an object reads, as far as it tells."""
    if depth > _DEEPEST or value is None:
        return
    kind = type(value)
    if isinstance(value, np.memmap):
        if value.filename is not None:
            yield Path(value.filename)
        return
    if kind in _PLAIN:
        return
    module = kind.__module__.partition(".")[0]
    if module == "zarr":
        directory = zarr_directory(value)
        if directory is not None:
            yield directory
        return
    if module == "h5py":
        name = getattr(getattr(value, "file", None), "filename", None)
        if name:
            yield Path(name)
        return
    if module == "fsspec" or kind.__name__ in ("OpenFile", "LocalFileOpener"):
        path = getattr(value, "path", None)
        if isinstance(path, str) and "r" in str(getattr(value, "mode", "r")) and Path(path).is_file():
            yield Path(path)
        return
    if kind.__name__ == "CachingFileManager":
        for argument in getattr(value, "_args", ()):
            if isinstance(argument, str | os.PathLike) and Path(argument).is_file():
                yield Path(argument)
        return
    if module == "xarray":
        for name in _INSIDE:
            yield from _paths(getattr(value, name, None), depth + 1)
    elif kind in (tuple, list):
        for item in value[:_DEEPEST]:
            yield from _paths(item, depth + 1)


def fingerprint(path: Path) -> str:
    """Return what changes when a file, or what is in a directory, does: names, sizes and times."""
    digest = hashlib.sha256()
    left = _MOST_FILES
    stack = [str(path)]
    try:
        if not path.is_dir():
            found = path.stat()
            return f"{found.st_size} {found.st_mtime_ns}"
        while stack and left > 0:
            directory = stack.pop()
            with os.scandir(directory) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                        continue
                    known = entry.stat()
                    digest.update(f"{entry.path}\0{known.st_size}\0{known.st_mtime_ns}\0".encode(errors="replace"))
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return digest.hexdigest()[:32]


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the sources of which something else was known before, or nothing."""
    return sorted([path for path, known in now.items() if before.get(path) != known])


__all__ = ["changed", "fingerprint", "sources_of"]
