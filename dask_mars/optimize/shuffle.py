"""Shuffles through the store, in place of Dask's shuffles through files.

Without a cluster each partition of a dataframe or bag appends its rows to files for the others, and each new
partition reads its files once all have done so. Here a map operand leaves one map output in the store, and each
reducer reads its part: M + R operands that are retried, counted and spilled like all others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import dask

from dask_mars.graph.callables import package_of
from dask_mars.graph.chunks import Constant, Key
from dask_mars.optimize.programs import Program
from dask_mars.worker.shuffle import map_bag, map_frame, reduce_bag, reduce_frame

#: Returns the program of a key, None if there is none.
ProgramOf = Callable[[Key], Program | None]


class _Kind(NamedTuple):
    """One of Dask's two shuffles through files."""

    #: Dask's functions: they append, wait and read.
    partition: Callable[..., Any]
    barrier: Callable[..., Any]
    collect: Callable[..., Any]
    #: Our functions.
    map: Callable[..., Any]
    reduce: Callable[..., Any]
    #: Positions of the files and the barrier among their arguments.
    partition_files: int
    collect_files: int
    collect_barrier: int


class Shuffles:
    """Finds the steps of shuffles through files in programs, and replaces them."""

    def __init__(self) -> None:
        self._by_function = {function: kind for kind in _kinds() for function in (kind.partition, kind.collect)}
        #: Keys of maps, by the key of the files; None for an unknown form of shuffle.
        self._maps: dict[Key, list[Key] | None] = {}
        #: Empty frames of reducers, by id.
        self._metas: dict[int, Constant] = {}

    def replace(self, program: Program, program_of: ProgramOf) -> Program:
        """Return a program with the steps of a shuffle through files replaced."""
        by_function = self._by_function
        if not any(function in by_function for function in program.functions if _is_plain(function)):
            return program
        replaced = Program()
        codes_of: list[int] = []

        def code_of(code: int) -> int:
            if code < 0:
                return replaced.literal(program.literals[~code])
            return codes_of[code >> 1] if code & 1 else replaced.input(program.input_keys[code >> 1])

        for function, (_, codes, keywords) in zip(program.functions, program.steps, strict=True):
            kind = by_function.get(function) if _is_plain(function) and not keywords else None
            step = None if kind is None else self._step(kind, function, program, codes, program_of)
            if step is None:
                codes_of.append(replaced.step(function, tuple(map(code_of, codes)), keywords))
            else:
                ours, kept, maps = step
                arguments = [*map(code_of, kept), *map(replaced.input, maps)]
                codes_of.append(replaced.step(ours, tuple(arguments)))
        replaced.hold_literals(self._meta_constant)
        return replaced

    def _meta_constant(self, value: Any) -> Constant | None:
        """Return an empty frame as a part of the operand, which travels once for all reducers."""
        if package_of(type(value)) != "pandas":
            return None
        return self._metas.setdefault(id(value), Constant(value))

    def _step(
        self,
        kind: _Kind,
        function: Callable[..., Any],
        program: Program,
        codes: tuple[int, ...],
        program_of: ProgramOf,
    ) -> tuple[Callable[..., Any], list[int], list[Key]] | None:
        """Return our function, the codes of its arguments and the maps it reads; None for no change."""
        if function is kind.partition:
            files = _input_key(program, codes, kind.partition_files)
            if self._maps.get(files) is None:
                return None
            return kind.map, _without(codes, kind.partition_files), []
        files = _input_key(program, codes, kind.collect_files)
        barrier = _input_key(program, codes, kind.collect_barrier)
        if files is None or barrier is None:
            return None
        if files not in self._maps:
            self._maps[files] = _maps_behind(kind, files, barrier, program_of)
        maps = self._maps[files]
        if maps is None:
            return None
        return kind.reduce, _without(codes, kind.collect_files, kind.collect_barrier), maps


def _kinds() -> list[_Kind]:
    """Return the kinds of shuffles that may occur, which is those of imported modules."""
    found = []
    if "dask.dataframe.dask_expr" in sys.modules:
        from dask_mars.dask_api import frames

        append = frames.DiskShuffle._shuffle_group
        found.append(_Kind(append, frames.barrier, frames.collect, map_frame, reduce_frame, 3, 0, 3))
    if "dask.bag.core" in sys.modules:
        from dask_mars.dask_api import bags

        found.append(_Kind(bags.partition, bags.barrier, bags.collect, map_bag, reduce_bag, 3, 2, 3))
    return found


def _maps_behind(kind: _Kind, files: Key, barrier: Key, program_of: ProgramOf) -> list[Key] | None:
    """Return the inputs of a barrier if all of them append to the files; otherwise None."""
    waits = program_of(barrier)
    if waits is None or kind.barrier not in [function for function in waits.functions if _is_plain(function)]:
        return None
    for key in waits.input_keys:
        appends = program_of(key)
        if appends is None or not any(
            function is kind.partition and _input_key(appends, codes, kind.partition_files) == files
            for function, (_, codes, _) in zip(appends.functions, appends.steps, strict=True)
        ):
            return None
    return list(waits.input_keys)


def may_be_there() -> bool:
    """Return whether there may be a shuffle through files to replace."""
    # There can be none before the library that writes the files is imported. Users who set a compression want
    # files.
    return "partd" in sys.modules and dask.config.get("dataframe.shuffle.compression", None) is None


def _is_plain(function: Any) -> bool:
    return type(function) is type(_is_plain)


def _input_key(program: Program, codes: tuple[int, ...], place: int) -> Key | None:
    """Return the key of an argument, None if it is not an input."""
    if place >= len(codes):
        return None
    code = codes[place]
    return program.input_keys[code >> 1] if code >= 0 and not code & 1 else None


def _without(codes: tuple[int, ...], *places: int) -> list[int]:
    return [code for place, code in enumerate(codes) if place not in places]
