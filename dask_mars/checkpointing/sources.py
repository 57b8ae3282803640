"""The files that a computation reads, and their changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from dask_mars.checkpointing.elsewhere import Elsewhere, Source, known_of, source_at, source_named, zarr_source
from dask_mars.checkpointing.stores import store_calls, target_slots
from dask_mars.graph.callables import package_of
from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.optimize.known import TELLING_PACKAGES, is_reader, reads_files, unfolded

#: Attributes by which objects that read files refer to each other, in xarray's adapters, its files, and HDF5's.
_INSIDE = ("array", "_array", "datastore", "_manager", "_args", "file", "func", "__self__")
_DEEPEST = 12
#: Most files in the directory of a source to fingerprint.
_MOST_FILES = 1_000_000
_PLAIN = frozenset({int, float, bool, bytes, slice, type(None), complex, type, str, np.ndarray, np.dtype})
_FUNCTIONS = frozenset({BuiltinFunctionType, FunctionType, partial})


def sources_of(graph: ChunkGraph) -> set[Source]:
    """Return the files and Zarr directories that a graph reads, as far as they can be found."""
    found: set[Source] = set()
    seen: set[int] = set()
    plain = set(_PLAIN)

    def look(value: Any, depth: int = 0) -> None:
        kind: Any = type(value)
        if kind in plain or id(value) in seen:
            return
        if kind is not tuple and kind is not list and not _tells(kind):
            # Most types name no files: skip them from now on.
            plain.add(kind)
            return
        seen.add(id(value))
        if kind is not tuple and kind is not list:
            found.update(_read_by(value, depth))
        elif depth < _DEEPEST:
            # Sequences may be long, such as seeds for the random numbers of each chunk.
            for item in value[:_DEEPEST]:
                if type(item) not in plain:
                    look(item, depth + 1)

    targets = [target_slots(operand) for operand in graph.operands]
    readers = {number for number, operand in enumerate(graph.operands) if reads_files(operand)}
    for operand, (inputs, given_literals) in zip(graph.operands, targets, strict=True):
        # The object that a store step has for all of its chunks is its target.
        for held in () if store_calls(operand) and not (inputs or given_literals) else unfolded(operand.functions):
            look(held)
    read: set[int] = set()
    kinds = {type(literal) for literals in graph.literals for literal in literals}
    # Bags are mapped by functions in their arguments.
    given = (
        {
            literal
            for literals in graph.literals
            for literal in literals
            if type(literal) in _FUNCTIONS and is_reader(literal)
        }
        if not kinds.isdisjoint(_FUNCTIONS)
        else set()
    )
    # Most graphs have no objects that name files.
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
        if number in readers or (
            given and any(type(literal) in _FUNCTIONS and literal in given for literal in literals)
        ):
            found.update(_named_in(literals))
        if not plain.issuperset(map(type, literals)):
            for at, literal in enumerate(literals):
                if at not in of_literals:
                    look(literal)
    for chunk, value in graph.values.items():
        if chunk in read or chunk in graph.outputs:
            look(value)
    return {source.absolute() if isinstance(source, Path) else source for source in found}


def _named_in(values: Any, depth: int = 0) -> Iterator[Source]:
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
                yield source_at(filesystem, named, is_file=True)
            elif (source := source_named(named)) is not None:
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


def _read_by(value: Any, depth: int) -> Iterator[Source]:
    """Yield the sources that an object names."""
    if depth > _DEEPEST or value is None:
        return
    kind = type(value)
    if isinstance(value, np.memmap):
        if value.filename is not None:
            yield Path(value.filename)
        return
    if kind in _PLAIN:
        return
    module = package_of(kind)
    if module == "zarr":
        source = zarr_source(value)
        if source is not None:
            yield source
    elif module == "h5py":
        name = getattr(getattr(value, "file", None), "filename", None)
        # h5py gives names like "<_io.BytesIO ...>" to files of Python's.
        if name and not str(name).startswith("<"):
            yield Path(name)
    elif _is_of_fsspec(kind):
        path, filesystem = getattr(value, "path", None), getattr(value, "fs", None)
        is_read = filesystem is not None and "r" in str(getattr(value, "mode", "r"))
        # File systems within others also have a path.
        if is_read and isinstance(path, str) and not hasattr(value, "find"):
            yield source_at(filesystem, path, is_file=True)
    elif kind.__name__ == "CachingFileManager":
        for argument in getattr(value, "_args", ()):
            if isinstance(argument, str | os.PathLike) and Path(argument).is_file():
                yield Path(argument)
    elif module == "xarray":
        for name in _INSIDE:
            yield from _read_by(getattr(value, name, None), depth + 1)
    elif kind in (tuple, list):
        for item in value[:_DEEPEST]:
            yield from _read_by(item, depth + 1)


def fingerprints(sources: Collection[Source]) -> dict[str, str | None]:
    """Return the fingerprint of each source by name; None if there is none."""
    found = {str(source): fingerprint(source) for source in sources if isinstance(source, Path)}
    elsewhere = [source for source in sources if isinstance(source, Elsewhere)]
    return found | known_of(elsewhere) if elsewhere else found


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


class Comparison(NamedTuple):
    """Changes of sources.

    Attributes
    ----------
    changed : list of str
        Sources with another fingerprint than before, or without an earlier one.
    untold : list of str
        Sources without a fingerprint, now or before.
    """

    changed: list[str]
    untold: list[str]


def compared(before: Mapping[str, str | None], now: Mapping[str, str | None]) -> Comparison:
    """Compare the fingerprints of sources with earlier ones."""
    untold = [name for name, known in now.items() if name in before and None in (known, before[name])]
    others = [name for name, known in now.items() if name not in before or before[name] != known]
    return Comparison(sorted(set(others).difference(untold)), sorted(untold))


__all__ = ["Comparison", "compared", "fingerprint", "fingerprints", "sources_of"]
