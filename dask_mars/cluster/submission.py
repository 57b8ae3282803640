"""The client's side of a computation on several machines: cut it into subtasks, hand them to Dask, gather.

What must run in the user's process runs here, between batches of subtasks: each batch is all that does not wait
for such a task.
"""

from __future__ import annotations

import operator
import pickle
import uuid
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
from dask._task_spec import Task, TaskRef
from dask.sizeof import sizeof
from distributed import Client, Future

from dask_mars import config
from dask_mars.client import raised_by
from dask_mars.cluster.agent import MARK
from dask_mars.cluster.pieces import Packer, Unsendable
from dask_mars.errors import NoAgents
from dask_mars.graph import ChunkGraph
from dask_mars.persisted import value_of
from dask_mars.scheduler.assigner import assign
from dask_mars.scheduler.events import CLIENT, GraphPlan
from dask_mars.scheduler.subtasks import Subtask, cut, place
from dask_mars.worker.locks import interprocess

#: Known values of at least this many bytes go to the cluster once, and not with each subtask that reads them.
_SCATTER_BYTES = 1 << 16

#: Beyond this results of a subtask travel apart.
_PARCEL_BYTES = 1 << 25

#: Key of a task of Dask's, ours or the user's.
DaskKey = Hashable


@dataclass(frozen=True, slots=True)
class Host:
    """An agent, as Dask's scheduler knows it.

    Attributes
    ----------
    address : str
        Of its worker.
    slots : int
        Subtasks that it computes at the same time.
    """

    address: str
    slots: int


def find_hosts(client: Client) -> list[Host]:
    """Return the agents of a cluster, in the order of their addresses."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [
        Host(address, told["nthreads"])
        for address, told in sorted(workers.items())
        if MARK in told and told["status"] == "running"
    ]


def run_on_cluster(
    client: Client, graph: ChunkGraph, retries: int | None = None, keep: bool = False
) -> dict[int, Any]:
    """Compute a chunk graph on a cluster.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    graph : ChunkGraph
        What to compute.
    retries : int, optional
        How often a task that raises is tried again.
    keep : bool, optional
        Leave outputs on the cluster, and return futures of those that are there, without waiting for them.

    Returns
    -------
    dict
        Value of each output.

    Raises
    ------
    NoAgents
        There is no worker of ours.
    Exception
        Whatever a task raises.
    """
    hosts = find_hosts(client)
    if not hosts:
        raise NoAgents(client.scheduler.address)
    retries = int(config.get("retries") if retries is None else retries)
    packer = Packer(graph, retries)
    here = packer.unsendable()
    while True:
        try:
            submission = _Submission(client, graph, hosts, packer, here, retries, keep)
        except Unsendable as error:
            here = here.union(error.chunks)
        else:
            return submission.results()


class _Submission:
    """One computation on its way. Making it cuts and packs, and sends nothing.

    Parameters
    ----------
    client, graph, hosts
        As given.
    packer : Packer
        Of the graph.
    here : collection of int
        Chunks that have to run in this process, besides those of which the graph says so.
    retries, keep
        As given.

    Raises
    ------
    Unsendable
        More chunks have to.
    """

    def __init__(
        self,
        client: Client,
        graph: ChunkGraph,
        hosts: Sequence[Host],
        packer: Packer,
        here: Collection[int],
        retries: int,
        keep: bool,
    ) -> None:
        self._client = client
        self._graph = graph
        self._hosts = hosts
        self._packer = packer
        self._subtasks = _cut(graph, hosts, here)
        self._name = uuid.uuid4().hex
        self._requested = frozenset(graph.outputs)
        self._retries = retries
        self._keep = keep
        #: Values of chunks that are in this process.
        self._values: dict[int, Any] = {}
        #: The user's own futures.
        self._given: dict[DaskKey, Future] = {}
        #: Which subtasks read a chunk.
        self._readers: dict[int, list[int]] = defaultdict(list)
        for number, subtask in enumerate(self._subtasks):
            for chunk in subtask.inputs:
                self._readers[chunk].append(number)
        #: Of each chunk that a task of Dask's has among its results: which task, and the item.
        self._whereabouts: dict[int, tuple[DaskKey, int | None]] = {}
        #: Of requested chunks that are to stay on the cluster: key of the task that stands for it alone.
        self._kept: dict[int, DaskKey] = {}
        for chunk, value in graph.values.items():
            if isinstance(value, Future) and value.client is client:
                self._given[value.key] = value
                self._whereabouts[chunk] = value.key, None
            else:
                self._values[chunk] = value_of(value)
        #: Numbers of subtasks that nobody has been told of.
        self._waiting = list(range(len(self._subtasks)))
        #: What Dask is to keep until all is done.
        self._futures: dict[DaskKey, Future] = {}
        #: Results that are here because some of their items are yet to be used.
        self._gathered: dict[DaskKey, Any] = {}
        self._batch = self._next_batch()

    def results(self) -> dict[int, Any]:
        """Compute, and return the value of each output."""
        try:
            while True:
                self._send()
                if not self._waiting:
                    break
                self._run_here(self._subtasks[self._waiting.pop(0)])
                self._batch = self._next_batch()
            outputs = self._graph.outputs
            if self._keep:
                return {chunk: self._stand_in(chunk) for chunk in outputs}
            self._gather(outputs)
            return {chunk: self._value(chunk) for chunk in outputs}
        except BaseException:
            self._client.cancel(list(self._futures.values()))
            raise
        finally:
            for future in self._futures.values():
                future.release()

    def _stand_in(self, chunk: int) -> Any:
        """Return the future of an output, or its value if that is here."""
        if chunk in self._values:
            return self._values[chunk]
        if chunk in self._kept:
            return self._futures.pop(self._kept[chunk])
        return self._given[self._whereabouts[chunk][0]]

    # -- subtasks for the cluster -----------------------------------------------------------------------------

    def _next_batch(self) -> dict[DaskKey, tuple[Task, int]]:
        """Make Dask's tasks of all subtasks that wait for nothing in this process, each with its number."""
        first = len(self._waiting) == len(self._subtasks)
        batch: dict[DaskKey, tuple[Task, int]] = {}
        still = []
        for number in self._waiting:
            subtask = self._subtasks[number]
            if subtask.host == CLIENT or not all(map(self._is_somewhere, subtask.inputs)):
                still.append(number)
                continue
            try:
                batch.update(self._tasks_of(number, subtask))
            except Unsendable:
                if first:
                    raise
                # It is too late to cut in another way: it comes to run here.
                still.append(number)
        self._waiting = still
        return batch

    def _is_somewhere(self, chunk: int) -> bool:
        return chunk in self._values or chunk in self._whereabouts

    def _tasks_of(self, number: int, subtask: Subtask) -> dict[DaskKey, tuple[Task, int]]:
        """Make the task that computes a subtask, and those that take its result apart."""
        values = {}
        for chunk in subtask.inputs:
            if chunk in self._values and chunk not in self._whereabouts:
                value = self._values[chunk]
                if sizeof(value) < _SCATTER_BYTES:
                    values[chunk] = value
                else:
                    self._whereabouts[chunk] = (f"mars-data-{self._name}", chunk), None
        found = {chunk: self._whereabouts[chunk] for chunk in subtask.inputs if chunk not in values}
        arguments = list(dict.fromkeys([key for key, _ in found.values()]))
        places = {key: place for place, key in enumerate(arguments)}
        sources = {chunk: (places[key], item) for chunk, (key, item) in found.items()}
        parcels = self._parcels(subtask)
        packed = self._packer.pack(subtask, parcels, sources, values)
        key: DaskKey = f"mars-subtask-{self._name}", number
        # None of this is ours or the user's, so that Dask's scheduler can do without both.
        unpack = Task(None, pickle.loads, packed)
        tasks = {key: (Task(key, operator.call, unpack, *map(TaskRef, arguments)), number)}
        for place_of_parcel, parcel in enumerate(parcels):
            part = key
            if len(parcels) > 1:
                part = f"mars-part-{self._name}", number, place_of_parcel
                tasks[part] = Task(part, operator.getitem, TaskRef(key), place_of_parcel), number
            self._whereabouts.update({chunk: (part, item) for item, chunk in enumerate(parcel)})
            for item, chunk in enumerate(parcel if self._keep else ()):
                if chunk in self._requested:
                    # Under the name that it has in the user's collection.
                    own = self._kept[chunk] = self._graph.keys[chunk]
                    tasks[own] = Task(own, operator.getitem, TaskRef(part), item), number
        return tasks

    def _parcels(self, subtask: Subtask) -> list[list[int]]:
        """Group the outputs of a subtask by the hosts that want them: each group travels as one.

        Large groups are divided, since a parcel is in an agent's own memory until all of it has come.
        """
        parcels: dict[tuple[frozenset[int], int], list[int]] = {}
        sizes: dict[frozenset[int], int] = defaultdict(int)
        for chunk in subtask.outputs:
            hosts = {self._subtasks[reader].host for reader in self._readers[chunk]}
            if chunk in self._requested:
                hosts.add(CLIENT)
            wanted_by = frozenset(hosts)
            stays = hosts == {subtask.host}
            number = 0 if stays else sizes[wanted_by] // _PARCEL_BYTES
            sizes[wanted_by] += self._graph.declared_bytes(chunk) or 0
            parcels.setdefault((wanted_by, number), []).append(chunk)
        return list(parcels.values())

    def _send(self) -> None:
        """Hand a batch to Dask."""
        batch, self._batch = self._batch, {}
        if not batch:
            return
        sent = {number for _, number in batch.values()}
        self._scatter(sent)
        workers = {key: [self._address(number)] for key, (_, number) in batch.items()}
        priorities = {key: self._priority(number) for key, (_, number) in batch.items()}
        annotations = {
            "workers": workers.__getitem__,
            "priority": priorities.__getitem__,
            "allow_other_workers": True,
            MARK: True,
        }
        wanted = self._wanted(sent)
        with dask.annotate(**annotations):
            graph = {key: task for key, (task, _) in batch.items()}
            futures = self._client.get(graph, wanted, sync=False)
        self._futures.update(zip(wanted, futures, strict=True))

    def _scatter(self, numbers: Collection[int]) -> None:
        """Send the large known values that subtasks read."""
        data = {}
        for number in numbers:
            for chunk in self._subtasks[number].inputs:
                if chunk in self._values and chunk in self._whereabouts:
                    key, _ = self._whereabouts[chunk]
                    if key not in self._futures:
                        data[key] = self._values[chunk]
        if data:
            addresses = [host.address for host in self._hosts]
            self._futures.update(self._client.scatter(data, workers=addresses, hash=False))

    def _wanted(self, sent: set[int]) -> list[DaskKey]:
        """Return the tasks whose results are needed here, or by subtasks that are not sent yet."""
        wanted: dict[DaskKey, None] = {}
        for number in sorted(sent):
            for chunk in self._subtasks[number].outputs:
                if chunk in self._kept:
                    wanted[self._kept[chunk]] = None
                if (chunk in self._requested and not self._keep) or not sent.issuperset(self._readers[chunk]):
                    wanted[self._whereabouts[chunk][0]] = None
        return list(wanted)

    def _priority(self, number: int) -> float:
        """Return the user's priority, and among equals that of the graph: what comes early frees what is there."""
        of_user = self._graph.priorities
        chunks = self._subtasks[number].chunks
        highest = max([of_user.get(chunk, 0) for chunk in chunks]) if of_user else 0
        return highest * len(self._graph) - chunks[0]

    def _address(self, number: int) -> str:
        return self._hosts[self._subtasks[number].host].address

    # -- what runs here ---------------------------------------------------------------------------------------

    def _run_here(self, subtask: Subtask) -> None:
        """Compute a subtask in this process."""
        graph = self._graph
        for chunk in subtask.chunks:
            sources = graph.inputs[chunk]
            self._gather(sources)
            operand = graph.operands[graph.operand_of[chunk]]
            literals = tuple([interprocess(literal) for literal in graph.literals[chunk]])
            left = graph.retries.get(chunk, self._retries)
            while True:
                try:
                    self._values[chunk] = operand.run([self._value(source) for source in sources], literals)
                    break
                except Exception as error:
                    if not left:
                        error.add_note(raised_by(graph, chunk))
                        raise
                    left -= 1

    def _gather(self, chunks: Collection[int]) -> None:
        """Fetch the results that chunks are in, in place of those fetched before."""
        needed = {self._whereabouts[chunk][0]: None for chunk in chunks if chunk not in self._values}
        missing = [key for key in needed if key not in self._gathered]
        futures = [self._futures.get(key) or self._given[key] for key in missing]
        found = self._client.gather(futures) if missing else []
        self._gathered = {key: self._gathered[key] for key in needed if key in self._gathered}
        self._gathered.update(zip(missing, found, strict=True))

    def _value(self, chunk: int) -> Any:
        if chunk in self._values:
            return self._values[chunk]
        key, item = self._whereabouts[chunk]
        return self._gathered[key] if item is None else self._gathered[key][item]


def _cut(graph: ChunkGraph, hosts: Sequence[Host], here: Collection[int]) -> list[Subtask]:
    """Cut a graph for hosts, which are known by their place in the list."""
    plan = GraphPlan(
        inputs=graph.inputs,
        outputs=graph.outputs,
        operand_of=graph.operand_of,
        in_client=frozenset(graph.chunks_for_client().union(graph.in_client, here)),
        declared_bytes=graph.declared_bytes,
    )
    slots = {number: host.slots for number, host in enumerate(hosts)}
    initial = assign(plan, slots, config.get("assignment"))
    return cut(plan, place(plan, initial, slots), slots)


__all__ = ["Host", "find_hosts", "run_on_cluster"]
