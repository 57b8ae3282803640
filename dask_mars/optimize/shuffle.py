"""Shuffles through the store, in place of Dask's shuffles through files and between workers.

Without a cluster each partition of a dataframe or bag appends its rows to files for the others, and each new
partition reads its files once all have done so. With one the partitions of dataframes send rows to Dask's workers
("p2p"), in threads and buffers that no quota covers. Here a map operand leaves one map output in the store, and
each reducer reads its part: M + R operands that are retried, counted and spilled like all others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import getitem
from types import FunctionType
from typing import Any, NamedTuple

import dask

from dask_mars.dask_api.core import Alias, DataNode
from dask_mars.graph.callables import package_of
from dask_mars.graph.chunks import ChunkGraph, Constant, Key
from dask_mars.import_locks import is_loaded
from dask_mars.optimize.programs import Program, call_node, make_list
from dask_mars.worker.shuffle import MAPS, map_bag, map_frame, pieces, reduce_bag, reduce_frame, split_frame

_LIST = id(make_list)
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


class _NewStep(NamedTuple):
    """A call in place of a step of a program."""

    function: Callable[..., Any]
    #: Codes of the program's values, literals as data nodes, and calls.
    arguments: Iterable[Any]
    keywords: tuple[str, ...] = ()
    #: Keys of the maps that a reducer reads, as further arguments.
    maps: Sequence[Key] = ()


#: Returns the call in place of a step, given its function, its program and the codes of its arguments; None for no
#: change.
Replacement = Callable[[Callable[..., Any], Program, tuple[int, ...], ProgramOf], "_NewStep | None"]


class Shuffles:
    """Finds the steps of Dask's shuffles in programs, and replaces them."""

    def __init__(self) -> None:
        #: Functions that return the replacement of a step, by the id of the function that it calls.
        self.replacements: dict[int, Replacement] = {}
        for kind in _kinds():
            for function in (kind.partition, kind.collect):
                self.replacements[id(function)] = partial(self._step, kind)
        if "dask.dataframe.dask_expr" in sys.modules:
            _ByTasks(self.replacements)
        # Dask imports it for the graph of such a shuffle.
        if is_loaded("distributed.shuffle._shuffle"):
            _BetweenWorkers(self.replacements)
        #: Keys of maps, by the key of the files; None for an unknown form of shuffle.
        self._maps_of: dict[Key, list[Key] | None] = {}
        #: Keys of maps, of reducers, and of the maps that these read.
        self._maps: set[Key] = set()
        self._reducers: set[Key] = set()
        self._read: set[Key] = set()
        #: Empty frames of reducers, by id.
        self._metas: dict[int, Constant] = {}

    def replace(self, key: Key, program: Program, program_of: ProgramOf) -> Program:
        """Return the program of a key, with the steps of a shuffle replaced."""
        replacements = self.replacements
        for function_id, _, _ in program.steps:
            # Most programs with lists have no part in a shuffle.
            if function_id in replacements and function_id != _LIST:
                break
        else:
            return program
        replaced = Program()
        codes_of: list[int] = []

        def emit(argument: Any) -> int:
            if type(argument) is _NewStep:
                if id(argument.function) in MAPS:
                    self._maps.add(key)
                if argument.maps:
                    self._reducers.add(key)
                    self._read.update(argument.maps)
                given = [*map(emit, argument.arguments), *map(replaced.input, argument.maps)]
                return replaced.step(argument.function, tuple(given), argument.keywords)
            if type(argument) is DataNode:
                return replaced.literal(argument.value)
            if argument < 0:
                return replaced.literal(program.literals[~argument])
            return codes_of[argument >> 1] if argument & 1 else replaced.input(program.input_keys[argument >> 1])

        for function, (function_id, codes, keywords) in zip(program.functions, program.steps, strict=True):
            call = None
            if function_id in replacements and not keywords:
                call = replacements[function_id](function, program, codes, program_of)
            codes_of.append(emit(call or _NewStep(function, codes, keywords)))
        replaced.hold_literals(self._meta_constant)
        return replaced

    def _meta_constant(self, value: Any) -> Constant | None:
        """Return an empty frame as a part of the operand, which travels once for all reducers."""
        if package_of(type(value)) != "pandas":
            return None
        return self._metas.setdefault(id(value), Constant(value))

    def are_whole(self, graph: ChunkGraph) -> bool:
        """Return whether all steps of shuffles are replaced, and reducers alone read maps."""
        if not (self._maps or self._reducers):
            return True
        maps, reducers, read = (
            {graph.ids[key] for key in keys} for keys in (self._maps, self._reducers, self._read)
        )
        return (
            maps == read
            and maps.isdisjoint(graph.outputs)
            and all(chunk in reducers or maps.isdisjoint(inputs) for chunk, inputs in enumerate(graph.inputs))
        )

    def _step(
        self,
        kind: _Kind,
        function: Callable[..., Any],
        program: Program,
        codes: tuple[int, ...],
        program_of: ProgramOf,
    ) -> _NewStep | None:
        """Return the call in place of a step of a shuffle through files; None for no change."""
        if function is kind.partition:
            files = _input_key(program, codes, kind.partition_files)
            if self._maps_of.get(files) is None:
                return None
            return _NewStep(kind.map, _without(codes, kind.partition_files))
        files = _input_key(program, codes, kind.collect_files)
        barrier = _input_key(program, codes, kind.collect_barrier)
        if files is None or barrier is None:
            return None
        if files not in self._maps_of:
            self._maps_of[files] = _maps_behind(kind, files, barrier, program_of)
        maps = self._maps_of[files]
        if maps is None:
            return None
        return _NewStep(kind.reduce, _without(codes, kind.collect_files, kind.collect_barrier), maps=maps)


def _kinds() -> list[_Kind]:
    """Return the kinds of shuffles that may occur, which is those of imported modules."""
    # There can be none before the library that writes the files is imported. Users who set a compression want
    # files.
    if "partd" not in sys.modules or dask.config.get("dataframe.shuffle.compression", None) is not None:
        return []
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
    if waits is None or not any(function is kind.barrier for function in waits.functions):
        return None
    for key in waits.input_keys:
        appends = program_of(key)
        if appends is None or not any(
            function is kind.partition and _input_key(appends, codes, kind.partition_files) == files
            for function, (_, codes, _) in zip(appends.functions, appends.steps, strict=True)
        ):
            return None
    return list(waits.input_keys)


def _input_key(program: Program, codes: tuple[int, ...], place: int) -> Key | None:
    """Return the key of an argument, None if it is not an input."""
    if place >= len(codes):
        return None
    code = codes[place]
    return program.input_keys[code >> 1] if code >= 0 and not code & 1 else None


def _without(codes: tuple[int, ...], *places: int) -> list[int]:
    return [code for place, code in enumerate(codes) if place not in places]


class _ByTasks:
    """Finds shuffles of dataframes by tasks: each partition becomes a dict, from which tasks take frames."""

    # The store would pickle the dict as a whole, and each reader load all of it.

    def __init__(self, replacements: dict[int, Replacement]) -> None:
        from dask_mars.dask_api import frames

        self._group = frames.SimpleShuffle._shuffle_group
        replacements[id(self._group)] = self._split
        # In a step before this one its frames become a list.
        replacements[id(frames._concat)] = lambda *_: None
        replacements[_LIST] = self._pieces

    def _split(self, _: Callable[..., Any], __: Program, codes: tuple[int, ...], ___: ProgramOf) -> _NewStep:
        """Return the call in place of the task of an old partition."""
        return _NewStep(split_frame, codes)

    def _pieces(
        self, _: Callable[..., Any], program: Program, codes: tuple[int, ...], program_of: ProgramOf
    ) -> _NewStep | None:
        """Return the call in place of a list of frames that are taken out of dicts."""
        maps, reducers = [], set()
        for place in range(len(codes)):
            taken = _input_key(program, codes, place)
            takes = None if taken is None else program_of(taken)
            if takes is None or takes.functions != [getitem]:
                return None
            codes_of_take = takes.steps[0][1]
            source, reducer = _input_key(takes, codes_of_take, 0), _literal(takes, codes_of_take[1])
            splits = None if source is None or type(reducer) is not int else program_of(source)
            if splits is None or splits.functions[-1:] != [self._group]:
                return None
            maps.append(source)
            reducers.add(reducer)
        if len(reducers) != 1:
            return None
        return _NewStep(pieces, [DataNode(None, reducers.pop())], maps=maps)


#: Module and name of the functions, made anew for each join, that send the rows of one side to workers.
_JOIN = "create_assign_index_merge_transfer.<locals>.assign_index_merge_transfer"
_JOIN_OF = "dask.dataframe.dask_expr._merge", _JOIN
#: Arguments of joins after the barriers.
_JOIN_ARGUMENTS = (
    "how",
    "left_on",
    "right_on",
    "result_meta",
    "suffixes",
    "left_index",
    "right_index",
    "indicator",
)


class _Exchange(NamedTuple):
    """A shuffle between workers."""

    column: Any
    reducers: Any
    #: Empty frame of the rows, without the column.
    meta: Any
    #: Keys of its maps, in the order of the partitions.
    maps: list[Key]

    def reduced(self, part: int) -> _NewStep:
        """Return the call of a reducer."""
        return _NewStep(reduce_frame, [part, DataNode(None, self.meta)], maps=self.maps)


class _BetweenWorkers:
    """Finds shuffles of dataframes between Dask's workers, given what replaces steps, which it adds to."""

    def __init__(self, replacements: dict[int, Replacement]) -> None:
        from dask_mars.dask_api import frames

        self._frames, self._names = frames, frames.names_of_p2p()
        self._replacements = replacements
        #: The shuffles by id; None for an unknown form of shuffle.
        self._exchanges: dict[Any, _Exchange | None] = {}
        if self._names is not None:
            replacements[id(self._names.shuffle_unpack)] = self._unpack
            replacements[id(self._names.merge_unpack)] = self._merge

    def _unpack(
        self, _: Callable[..., Any], program: Program, codes: tuple[int, ...], program_of: ProgramOf
    ) -> _NewStep | None:
        """Return the call in place of the task of a new partition."""
        if len(codes) != 3:
            return None
        id, part, barrier = codes
        exchange = self._exchange(program, id, barrier, program_of)
        return None if exchange is None else exchange.reduced(part)

    def _merge(
        self, _: Callable[..., Any], program: Program, codes: tuple[int, ...], program_of: ProgramOf
    ) -> _NewStep | None:
        """Return the call in place of the task that joins new partitions."""
        names = _JOIN_ARGUMENTS[: len(codes) - 5]
        if len(codes) != 5 + len(names):
            return None
        left_id, right_id, part, left_barrier, right_barrier, *arguments = codes
        left = self._exchange(program, left_id, left_barrier, program_of)
        right = self._exchange(program, right_id, right_barrier, program_of)
        if left is None or right is None:
            return None
        return _NewStep(self._frames.merge_chunk, [left.reduced(part), right.reduced(part), *arguments], names)

    def _transfer(
        self, function: Callable[..., Any], program: Program, codes: tuple[int, ...], _: ProgramOf
    ) -> _NewStep | None:
        """Return the call in place of the task of an old partition."""
        exchange = self._exchanges.get(self._sent_to(function, program, codes)[0])
        if exchange is None:
            return None
        frame: Any = codes[0]
        meta = DataNode(None, exchange.meta)
        if len(codes) > 3:
            frame = _NewStep(self._frames.AssignPartitioningIndex.operation, [*codes[:4], meta, codes[6]])
        given = partial(DataNode, None)
        return _NewStep(map_frame, [frame, *map(given, (exchange.column, exchange.reducers, True))])

    def _sent_to(self, function: Callable[..., Any], program: Program, codes: tuple[int, ...]) -> tuple[Any, Any]:
        """Return the id of the shuffle to which a step sends rows and the partition's number, if it does."""
        if function is self._frames._shuffle_transfer:
            places = codes[1:3]
        elif type(function) is FunctionType and (function.__module__, function.__qualname__) == _JOIN_OF:
            places = codes[4:6]
        else:
            return None, None
        id, number = [_literal(program, code) for code in places]
        return id, number

    def _exchange(
        self, program: Program, id_code: int, barrier_code: int, program_of: ProgramOf
    ) -> _Exchange | None:
        id, barrier = _literal(program, id_code), _input_key(program, (barrier_code,), 0)
        if type(id) is not str or barrier is None:
            return None
        if id not in self._exchanges:
            self._exchanges[id] = self._exchange_behind(id, barrier, program_of)
        return self._exchanges[id]

    def _exchange_behind(self, id: str, barrier: Key, program_of: ProgramOf) -> _Exchange | None:
        """Return the shuffle of a barrier, if all of its tasks are as Dask makes them."""
        waits, names = program_of(barrier), self._names
        node = waits.literals[0] if waits is not None and waits.functions == [call_node] else None
        if node is None or type(node) is not names.P2PBarrierTask or node.func is not names.p2p_barrier:
            return None
        spec, (own_id, *sent) = node.spec, node.args
        if type(spec) is not names.DataFrameShuffleSpec or not spec.drop_column or {spec.id, own_id} != {id}:
            return None
        reducers = range(spec.parts_out) if type(spec.parts_out) is int else spec.parts_out
        # Dask's graph of some partitions of a join has wrong numbers.
        if max(reducers, default=0) >= spec.npartitions or any(type(reference) is not Alias for reference in sent):
            return None
        maps = [reference.target for reference in sent]
        for number, key in enumerate(maps):
            sends = program_of(key)
            if sends is None:
                return None
            for function, (function_id, codes, keywords) in zip(sends.functions, sends.steps, strict=True):
                if not keywords and self._sent_to(function, sends, codes) == (id, number):
                    self._replacements[function_id] = self._transfer
                    break
            else:
                return None
        return _Exchange(spec.column, reducers, spec.meta.drop(columns=spec.column), maps)


def _literal(program: Program, code: int) -> Any:
    """Return a literal by its code, None for other values."""
    return program.literals[~code] if code < 0 else None
