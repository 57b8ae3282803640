"""What a computation reads, and whether that has changed since."""

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
from dask_mars.graph.callables import full_name, module_of, package_of
from dask_mars.graph.chunks import DATA, ChunkGraph, Constant, Operand, Subprogram

#: What objects that read files have of each other: xarray's adapters, its files, HDF5's.
_INSIDE = ("array", "_array", "datastore", "_manager", "_args", "file", "func", "__self__")
_DEEPEST = 12
#: Of how many files in the directory of a source is looked at most.
_MOST_FILES = 1_000_000
_PLAIN = frozenset({int, float, bool, bytes, slice, type(None), complex, type, str, np.ndarray, np.dtype})
_FUNCTIONS = frozenset({BuiltinFunctionType, FunctionType, partial})
#: Packages whose objects tell what they read, and classes that do wherever they are from.
_TELLING_PACKAGES = frozenset({"h5py", "xarray", "zarr"})
#: Functions that read the files that their arguments name, by their packages, which need not be loaded.
_READERS = {
    "PIL": ("open",),
    "dask": ("_read_orc",),
    "geopandas": ("read_",),
    "imageio": ("imread", "volread"),
    "numpy": ("fromfile", "genfromtxt", "load", "loadtxt"),
    "pandas": ("read_",),
    "polars": ("read_",),
    "pyarrow": ("read_",),
    "scipy": ("loadmat", "mmread"),
    "skimage": ("imread",),
    "tifffile": ("imread",),
    "xarray": ("load_da", "open_da", "open_zarr"),
}


def sources_of(graph: ChunkGraph) -> set[Source]:
    """Return the files, and the directories of Zarr arrays, that a graph reads and that can be told of."""
    found: set[Source] = set()
    seen: set[int] = set()
    plain = set(_PLAIN)

    def look(value: Any, depth: int = 0) -> None:
        kind: Any = type(value)
        if kind in plain or id(value) in seen:
            return
        if kind is not tuple and kind is not list and not _tells(kind):
            # Of most types there is nothing to be told: they are not looked at again.
            plain.add(kind)
            return
        seen.add(id(value))
        if kind is not tuple and kind is not list:
            found.update(_read_by(value, depth))
        elif depth < _DEEPEST:
            # There may be many of them, such as what each chunk's random numbers begin with.
            for item in value[:_DEEPEST]:
                if type(item) not in plain:
                    look(item, depth + 1)

    targets = [target_slots(operand) for operand in graph.operands]
    readers = {number for number, operand in enumerate(graph.operands) if _has_reader(operand)}
    for operand, (inputs, literal_numbers) in zip(graph.operands, targets, strict=True):
        # What a store holds for all of its chunks is its target.
        for held in () if store_calls(operand) and not (inputs or literal_numbers) else _held(operand):
            look(held)
    read: set[int] = set()
    kinds = {type(literal) for literals in graph.literals for literal in literals}
    # Bags are mapped by functions that are arguments.
    given = (
        {
            literal
            for literals in graph.literals
            for literal in literals
            if type(literal) in _FUNCTIONS and _is_reader(literal)
        }
        if not kinds.isdisjoint(_FUNCTIONS)
        else set()
    )
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


def _has_reader(operand: Operand) -> bool:
    return any(_is_reader(function) for function in operand.functions)


def _is_reader(function: Any) -> bool:
    """Say whether something is a function that reads the files that its arguments name."""
    if isinstance(function, Subprogram):
        return _has_reader(function.operand)
    module = module_of(function)
    name = full_name(function).removeprefix(f"{module}.")
    return name.startswith(_READERS.get(module.partition(".")[0], "\0"))


def _named_in(values: Any, depth: int = 0) -> Iterator[Source]:
    """Yield the files that arguments of a function that reads are the names of."""
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


def _held(operand: Operand) -> Iterator[Any]:
    for function in operand.functions:
        if isinstance(function, Subprogram):
            yield from _held(function.operand)
            yield from function.literals
        elif isinstance(function, Constant):
            yield function.value


@lru_cache(maxsize=1024)
def _tells(kind: type) -> bool:
    """Say whether objects of a type may tell what they read, as `_read_by` asks them."""
    return (
        package_of(kind) in _TELLING_PACKAGES
        or kind.__name__ == "CachingFileManager"
        or _is_of_fsspec(kind)
        or issubclass(kind, np.memmap)
    )


def _is_of_fsspec(kind: type) -> bool:
    """Say whether objects of a type are open files, or such as can be opened, of a file system of fsspec's."""
    return any(package_of(base) == "fsspec" for base in kind.__mro__)


def _read_by(value: Any, depth: int) -> Iterator[Source]:
    """Yield what an object reads, as far as it tells."""
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
        # Python's own open files have no names there that say where they are.
        if name and not str(name).startswith("<"):
            yield Path(name)
    elif _is_of_fsspec(kind):
        path, filesystem = getattr(value, "path", None), getattr(value, "fs", None)
        is_read = filesystem is not None and "r" in str(getattr(value, "mode", "r"))
        # File systems within others have paths, too.
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
    """Return by name what is another when a source is; None where that cannot be told."""
    found = {str(source): fingerprint(source) for source in sources if isinstance(source, Path)}
    elsewhere = [source for source in sources if isinstance(source, Elsewhere)]
    return found | known_of(elsewhere) if elsewhere else found


def fingerprint(path: Path) -> str | None:
    """Return what changes when a file, or what is in a directory, does: names, sizes and times.

    None if it cannot be read, or there are very many files in it.
    """
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
    """What has become of sources.

    Attributes
    ----------
    changed : list of str
        Those of which something else was known before, or which were not read.
    untold : list of str
        Those of which nothing is known, or was.
    """

    changed: list[str]
    untold: list[str]


def compared(before: Mapping[str, str | None], now: Mapping[str, str | None]) -> Comparison:
    """Compare what is known of sources with what was."""
    untold = [name for name, known in now.items() if name in before and None in (known, before[name])]
    others = [name for name, known in now.items() if name not in before or before[name] != known]
    return Comparison(sorted(set(others).difference(untold)), sorted(untold))


__all__ = ["Comparison", "compared", "fingerprint", "fingerprints", "sources_of"]
