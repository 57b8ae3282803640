"""Subtasks in the form sent to agents: self-contained parts of the chunk graph."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.sizeof import sizeof
from distributed import Worker, get_worker

from dask_mars.cluster.admission import claim_once, hold_locks
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.stored_result import item_of, plain
from dask_mars.dask_api.core import Task
from dask_mars.errors import FilesLost
from dask_mars.graph.chunks import DATA, ChunkGraph, Operand
from dask_mars.protocol.context import unpack_portable, with_variables
from dask_mars.protocol.pickling import dumps, loads

if TYPE_CHECKING:
    from dask_mars.cluster.saving import ClusterSaving, SaveOrder

#: Size from which known values are sent to the cluster once, instead of with each subtask, in bytes.
_LARGE_BYTES = 1 << 16


@dataclass(slots=True)
class SubtaskGraph(ChunkGraph):
    """A chunk graph with sizes from another process."""

    sizes: Sequence[int | None] = ()

    def declared_bytes(self, chunk: int) -> int | None:
        """Return the declared bytes of a chunk, None if it has no declared size."""
        return self.sizes[chunk]


@dataclass(frozen=True, slots=True)
class Constraints:
    """Conditions under which an agent may compute a subtask."""

    #: Tokens of the locks to hold on all hosts.
    locks: frozenset[str] = frozenset()
    #: Name of the scheduler's token, if it must not start twice.
    once: str | None = None
    #: The only agent that may compute it, because it has the needed files.
    required_agent: str | None = None
    #: Whether a Dask thread must compute it.
    in_thread: bool = False


@dataclass(frozen=True, slots=True)
class SubtaskSpec:
    """A subtask for an agent."""

    id: bytes
    #: Its chunks, renumbered, its inputs first; without operands, and with values of known inputs only.
    chunks: SubtaskGraph
    #: Pickles of the operands.
    operands: list[bytes]
    #: For each input from another subtask: the number of the argument, and of the item in it; None for the whole
    #: argument.
    sources: dict[int, tuple[int, int | None]]
    #: Its outputs, grouped by destination.
    output_groups: list[list[int]]
    #: Retries of chunks without their own.
    default_retries: int
    constraints: Constraints = Constraints()
    saving: SaveOrder | None = None
    #: Result of `Context.portable` in the submitting process.
    surroundings: bytes | None = None

    def graph(self, arguments: Sequence[Any]) -> SubtaskGraph:
        """Return the chunk graph, given the subtask's inputs."""
        graph = copy.copy(self.chunks)
        read = {chunk: item_of(arguments[place], item) for chunk, (place, item) in self.sources.items()}
        graph.values = graph.values | read
        graph.operands = list(map(_operand, self.operands))
        graph.ids = {key: chunk for chunk, key in enumerate(graph.keys)}
        if self.surroundings is not None:
            graph.surroundings = unpack_portable(self.surroundings)
        return graph

    def __call__(self, *arguments: Any) -> Any:
        """Compute the subtask: by an agent's engine, on other workers one chunk after the other."""
        worker = get_worker()
        # Only agents have it, whose module stock workers need not import.
        if (compute := getattr(worker, "compute_subtask", None)) is not None:
            return compute(self, arguments)
        with admitted(self, worker):
            return self.compute_in_thread(arguments)

    def compute_in_thread(self, arguments: Sequence[Any]) -> Any:
        """Compute the subtask in this thread; the result is that of a call."""
        graph = self.graph(arguments)
        # Threads of this process share its configuration, but not its context variables.
        found = with_variables(graph.surroundings or {}).run(_run, graph)
        output_groups = [[found[chunk] for chunk in group] for group in self.output_groups]
        return output_groups[0] if len(output_groups) == 1 else output_groups

    @property
    def name(self) -> str:
        """The key of its last chunk, for messages."""
        return str(self.chunks.keys[-1])


@contextlib.contextmanager
def admitted(spec: SubtaskSpec, worker: Worker, is_needed: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Enforce a subtask's constraints during the block."""
    constraints = spec.constraints
    if constraints.required_agent is not None and constraints.required_agent != worker.id:
        raise FilesLost(spec.name)
    with hold_locks(constraints.locks, worker, is_needed):
        if constraints.once is not None:
            claim_once(worker, constraints.once, spec.name)
        yield


def _run(graph: ChunkGraph) -> dict[int, Any]:
    # Inputs may be stored results.
    found = {chunk: plain(value) for chunk, value in graph.values.items()}
    for chunk, operand in enumerate(graph.operand_of):
        if operand != DATA:
            inputs = [found[source] for source in graph.inputs[chunk]]
            found[chunk] = graph.operands[operand].run(inputs, graph.literals[chunk])
    return found


@functools.lru_cache(256)
def _operand(data: bytes) -> Operand:
    """Return an operand; equal pickles are loaded once."""
    operand: Operand = loads(data)
    return operand


class Unsendable(Exception):
    """Internal: some chunks cannot be pickled."""

    def __init__(self, chunks: list[int]) -> None:
        super().__init__(chunks)
        self.chunks = chunks


class Packer:
    """Packs subtasks of one chunk graph."""

    def __init__(self, graph: ChunkGraph, default_retries: int, surroundings: bytes | None = None) -> None:
        self._graph = graph
        self._surroundings = surroundings
        self._default_retries = default_retries
        self._operands: list[bytes | None] = [_dump_operand(operand) for operand in graph.operands]

    def unsendable(self) -> set[int]:
        """Return the chunks whose operand cannot be pickled."""
        bad = {operand_id for operand_id, data in enumerate(self._operands) if data is None}
        return {chunk for chunk, operand in enumerate(self._graph.operand_of) if operand in bad} if bad else set()

    def pack(
        self,
        subtask: Subtask,
        output_groups: list[list[int]],
        sources: Mapping[int, tuple[int, int | None]],
        values: Mapping[int, Any],
        constraints: Constraints = Constraints(),
        saving: ClusterSaving | None = None,
    ) -> bytes:
        """Return the pickle of a subtask."""
        graph, chunks = self._graph, subtask.chunks
        members = [*subtask.inputs, *chunks]
        new = {chunk: new_id for new_id, chunk in enumerate(members)}
        operand_ids = list(dict.fromkeys([graph.operand_of[chunk] for chunk in chunks]))
        places = {operand_id: place for place, operand_id in enumerate(operand_ids)}
        known = len(subtask.inputs)
        part = SubtaskGraph(
            keys=[graph.keys[chunk] for chunk in members],
            operand_of=[DATA] * known + [places[graph.operand_of[chunk]] for chunk in chunks],
            literals=[()] * known + [graph.literals[chunk] for chunk in chunks],
            inputs=[()] * known + [tuple([new[source] for source in graph.inputs[chunk]]) for chunk in chunks],
            values={new[chunk]: values[chunk] for chunk in subtask.inputs if chunk in values},
            outputs=sorted({new[chunk] for group in output_groups for chunk in group}),
            retries={new[chunk]: graph.retries[chunk] for chunk in chunks if chunk in graph.retries},
            priorities={new[chunk]: graph.priorities[chunk] for chunk in chunks if chunk in graph.priorities},
            sizes=[None] * known + [graph.declared_bytes(chunk) for chunk in chunks],
        )
        if saving is not None:
            part.saves = {new[chunk]: graph.saves[chunk] for chunk in members if chunk in graph.saves}
            joined = graph.joined_bytes
            part.joined_bytes = {new[chunk]: joined[chunk] for chunk in members if chunk in joined}
        spec = SubtaskSpec(
            id=subtask.id,
            chunks=part,
            operands=[data for operand_id in operand_ids if (data := self._operands[operand_id]) is not None],
            sources={new[chunk]: sources[chunk] for chunk in subtask.inputs if chunk not in values},
            output_groups=[[new[chunk] for chunk in group] for group in output_groups],
            default_retries=self._default_retries,
            constraints=constraints,
            saving=None if saving is None else saving.order(members),
            surroundings=self._surroundings,
        )
        try:
            return dumps(spec)
        except Exception as error:
            bad = [chunk for chunk in chunks if not _is_picklable(graph.literals[chunk])]
            bad += [chunk for chunk in chunks if not _is_picklable([values.get(at) for at in graph.inputs[chunk]])]
            if not bad:
                raise
            raise Unsendable(bad) from error


def task_of_large(key: Hashable, value: Any) -> Task | None:
    """Return a task that returns a value of the user's; None for a small value, or one that cannot be pickled."""
    # A scattered value would be lost with its host, and its dependents with it; Dask's scheduler keeps tasks.
    if sizeof(value) < _LARGE_BYTES:
        return None
    if isinstance(value, np.memmap):
        # Its file may not exist on other hosts.
        value = np.asarray(value)
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = dumps(value, buffers.append)
    except Exception:
        # The chunks that read the value cannot be packed either, and run in the user's process.
        return None
    # Dask copies bytes at each step on their way, but not arrays.
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return Task(key, pickle.loads, data, buffers=arrays)


def _dump_operand(operand: Operand) -> bytes | None:
    if operand.in_client:
        return None
    try:
        return dumps(operand)
    except Exception:
        return None


def _is_picklable(value: Any) -> bool:
    try:
        pickle.loads(dumps(value))
    except Exception:
        return False
    return True
