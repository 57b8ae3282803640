"""The client's side of a computation on several machines: cut it into subtasks, hand them to Dask, gather.

What must run in the user's process runs here, between batches of subtasks: each batch is all that does not wait
for such a task.
"""

from __future__ import annotations

import contextlib
import operator
import os
import pickle
import uuid
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import dask
from dask._task_spec import Task, TaskRef
from distributed import Client, Future

from dask_mars import config
from dask_mars.client import raised_by
from dask_mars.cluster.demands import Demands, find_demands
from dask_mars.cluster.guards import allow_no_more, allow_once, holding, watch
from dask_mars.cluster.pieces import Packer, Terms, Unsendable, task_of_large
from dask_mars.cluster.planning import Host, cut_for, futures_of, held_by
from dask_mars.cluster.plugin import MARK
from dask_mars.cluster.progress import Watch
from dask_mars.cluster.shuffles import Shuffles, barrier_task, find_shuffles
from dask_mars.cluster.wishes import Wishes
from dask_mars.graph import ChunkGraph
from dask_mars.observer import Observer
from dask_mars.persisted import value_of
from dask_mars.scheduler.events import CLIENT
from dask_mars.scheduler.subtasks import Subtask
from dask_mars.worker.locks import interprocess

#: Beyond this results of a subtask travel apart.
_PARCEL_BYTES = 1 << 25

#: Key of a task of Dask's, ours or the user's.
DaskKey = Hashable


def run_on_cluster(
    client: Client,
    graph: ChunkGraph,
    hosts: Sequence[Host],
    retries: int | None = None,
    keep: bool = False,
    observer: Observer | None = None,
) -> dict[int, Any]:
    """Compute a chunk graph on a cluster.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    graph : ChunkGraph
        What to compute.
    hosts : sequence of Host
        Its agents.
    retries : int, optional
        How often a task that raises is tried again.
    keep : bool, optional
        Leave outputs on the cluster, and return futures of those that are there, without waiting for them.
    observer : Observer, optional
        Told what becomes of chunks; not together with `keep`.

    Returns
    -------
    dict
        Value of each output.

    Raises
    ------
    NoHostAllowed
        The user wants a chunk to be computed where there is nobody.
    Exception
        Whatever a task raises.
    """
    retries = int(config.get("retries") if retries is None else retries)
    name = uuid.uuid4().hex
    demands = find_demands(graph)
    shuffles = find_shuffles(graph, demands.threads, name)
    packer = Packer(graph, retries)
    here = packer.unsendable()
    given = futures_of(client, graph)
    held_bytes = held_by(client, given, hosts)
    while True:
        try:
            subtasks, sizes = cut_for(graph, hosts, here, held_bytes, demands, shuffles)
            submission = _Submission(
                client,
                graph,
                hosts,
                packer,
                subtasks,
                given,
                retries,
                keep,
                observer,
                name,
                demands,
                shuffles,
                sizes,
            )
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
    subtasks : sequence of Subtask
        That the graph is cut into.
    given : mapping
        The user's own futures, by chunk.
    retries, keep, observer
        As given.
    name : str
        Of the computation.
    demands : Demands
        Of the graph's chunks.
    shuffles : Shuffles
        Those of the graph.
    sizes : sequence of int
        Bytes of its chunks.

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
        subtasks: Sequence[Subtask],
        given: Mapping[int, Future],
        retries: int,
        keep: bool,
        observer: Observer | None,
        name: str,
        demands: Demands,
        shuffles: Shuffles,
        sizes: Sequence[int],
    ) -> None:
        self._client = client
        self._graph = graph
        self._hosts = hosts
        self._packer = packer
        self._subtasks = subtasks
        self._demands = demands
        self._shuffles = shuffles
        self._sizes = sizes
        self._wishes = Wishes(name, graph, hosts, subtasks, demands, shuffles, retries)
        self._name = name
        self._requested = frozenset(graph.outputs)
        self._retries = retries
        self._keep = keep
        self._watch: Watch | None = None
        if observer is not None and observer.wants_tasks:
            self._watch = Watch(client, self._name, graph, self._subtasks, observer)
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
        #: Keys of the tasks that compute subtasks; others take their results apart.
        self._own_keys: dict[int, DaskKey] = {}
        #: Of requested chunks that are to stay on the cluster: key of the task that stands for it alone.
        self._kept: dict[int, DaskKey] = {}
        #: Requested chunks that are on the cluster already, or on their way: the user has persisted them before.
        self._already: dict[int, Future] = {}
        if keep:
            named = {chunk: client.futures.get(graph.keys[chunk]) for chunk in graph.outputs}
            good = [chunk for chunk, state in named.items() if state and state.status in ("pending", "finished")]
            self._already = {chunk: Future(graph.keys[chunk], client) for chunk in good}
        for chunk, value in graph.values.items():
            if chunk in given:
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
        #: Names of subtasks that may be begun once.
        self._once: list[str] = []
        #: How many of them the scheduler has been told of.
        self._allowed = 0
        #: Agents that have files which subtasks need, and the key of one such.
        self._homes: dict[str, str] = {}
        self._batch = self._next_batch()

    def results(self) -> dict[int, Any]:
        """Compute, and return the value of each output."""
        watch = self._watch
        try:
            if watch is not None:
                watch.open()
            while True:
                self._send()
                if not self._waiting:
                    break
                self._run_here(self._subtasks[self._waiting.pop(0)])
                self._batch = self._next_batch()
            outputs = self._graph.outputs
            if self._keep:
                if self._once:
                    # What may be begun once must have ended before that is forgotten.
                    self._wait([self._futures[key] for key in self._kept.values()])
                return {chunk: self._stand_in(chunk) for chunk in outputs}
            self._gather(outputs)
            if watch is not None:
                watch.finish()
            return {chunk: self._value(chunk) for chunk in outputs}
        except BaseException:
            # A client that has been closed meanwhile has nothing to say to what comes first.
            with contextlib.suppress(Exception):
                self._client.cancel(list(self._futures.values()))
            raise
        finally:
            if watch is not None:
                watch.close()
            for future in self._futures.values():
                future.release()
            allow_no_more(self._client, self._once)

    def _stand_in(self, chunk: int) -> Any:
        """Return the future of an output, or its value if that is here."""
        if chunk in self._values:
            return self._values[chunk]
        if chunk in self._already:
            return self._already[chunk]
        if chunk in self._kept:
            return self._futures.pop(self._kept[chunk])
        return self._given[self._whereabouts[chunk][0]]

    # -- subtasks for the cluster -----------------------------------------------------------------------------

    def _next_batch(self) -> dict[DaskKey, tuple[Task, int]]:
        """Make Dask's tasks of all subtasks that wait for nothing in this process, each with its number."""
        first = len(self._waiting) == len(self._subtasks)
        batch: dict[DaskKey, tuple[Task, int]] = {}
        still = []
        early = self._too_early()
        for number in self._waiting:
            subtask = self._subtasks[number]
            if subtask.host == CLIENT or not all(map(self._is_somewhere, subtask.inputs)) or number in early:
                still.append(number)
                continue
            try:
                batch.update(self._tasks_of(number, subtask))
            except Unsendable:
                if first or not self._demands.files.keys().isdisjoint(subtask.chunks):
                    raise
                # It is too late to cut in another way: it comes to run here.
                still.append(number)
        self._waiting = still
        return batch

    def _too_early(self) -> set[int]:
        """Return subtasks that must wait until the barrier of their shuffle can be sent along with them."""
        barriers_of = self._shuffles.barriers_of
        if not barriers_of:
            return set()
        coming: set[int] = set()
        for number in self._waiting:
            subtask = self._subtasks[number]
            if subtask.host != CLIENT and all(at in coming or self._is_somewhere(at) for at in subtask.inputs):
                coming.update(subtask.outputs)
        return {
            number
            for number in self._waiting
            if not coming.issuperset(barriers_of.get(self._subtasks[number].chunks[0], ()))
        }

    def _is_somewhere(self, chunk: int) -> bool:
        return chunk in self._values or chunk in self._whereabouts

    def _tasks_of(self, number: int, subtask: Subtask) -> dict[DaskKey, tuple[Task, int]]:
        """Make the task that computes a subtask, and those that take its result apart."""
        values, found, tasks = {}, {}, {}
        for chunk in subtask.inputs:
            if chunk not in self._values or chunk in self._whereabouts:
                found[chunk] = self._whereabouts[chunk]
                continue
            own: DaskKey = (f"mars-data-{self._name}", chunk)
            task = task_of_large(own, self._values[chunk])
            if task is None:
                values[chunk] = self._values[chunk]
            else:
                tasks[own] = task, number
                found[chunk] = own, None
        arguments = list(dict.fromkeys([key for key, _ in found.values()]))
        places = {key: place for place, key in enumerate(arguments)}
        sources = {chunk: (places[key], item) for chunk, (key, item) in found.items()}
        parcels = self._parcels(subtask)
        packed = self._packer.pack(subtask, parcels, sources, values, self._terms(number, subtask))
        self._whereabouts.update(found)
        # None of this is ours or the user's, so that Dask's scheduler can do without both.
        call = operator.call, Task(None, pickle.loads, packed), *map(TaskRef, arguments)
        spec = self._shuffles.barriers.get(subtask.chunks[0])
        task = Task((f"mars-subtask-{self._name}", number), *call) if spec is None else barrier_task(spec, *call)
        key = self._own_keys[number] = task.key
        tasks[key] = task, number
        for place_of_parcel, parcel in enumerate(parcels):
            part = key
            if len(parcels) > 1:
                part = f"mars-part-{self._name}", number, place_of_parcel
                tasks[part] = Task(part, operator.getitem, TaskRef(key), place_of_parcel), number
            self._whereabouts.update({chunk: (part, item) for item, chunk in enumerate(parcel)})
            for item, chunk in enumerate(parcel if self._keep else ()):
                if chunk in self._requested and chunk not in self._already:
                    # Under the name that it has in the user's collection.
                    own = self._kept[chunk] = self._graph.keys[chunk]
                    tasks[own] = Task(own, operator.getitem, TaskRef(part), item), number
        return tasks

    def _terms(self, number: int, subtask: Subtask) -> Terms:
        """Return on what terms a subtask may be computed; its chunks are of one kind."""
        demands, first = self._demands, subtask.chunks[0]
        once = None
        if first in demands.once:
            once = f"mars-once-{self._name}-{number}"
            self._once.append(once)
        home = None
        if self._wishes.needs_files(number):
            home = self._hosts[subtask.host].id
            self._homes[home] = str(self._graph.keys[subtask.chunks[-1]])
        return Terms(demands.locks.get(first, frozenset()), once, home, first in demands.threads)

    def _parcels(self, subtask: Subtask) -> list[list[int]]:
        """Group the outputs of a subtask by the hosts that want them: each group travels as one.

        Large groups are divided, since a parcel is in an agent's own memory until all of it has come.
        """
        parcels: dict[tuple[frozenset[int], int, int], list[int]] = {}
        sizes: dict[frozenset[int], int] = defaultdict(int)
        for chunk in subtask.outputs:
            readers = self._readers[chunk]
            hosts = {self._subtasks[reader].host for reader in readers}
            if chunk in self._requested:
                hosts.add(CLIENT)
            # A thread of Dask's gets copies of all that comes with what it reads.
            alone = any(self._subtasks[reader].chunks[0] in self._demands.threads for reader in readers)
            wanted_by = frozenset(hosts)
            stays = hosts == {subtask.host}
            number = 0 if stays else sizes[wanted_by] // _PARCEL_BYTES
            sizes[wanted_by] += self._sizes[chunk]
            parcels.setdefault((wanted_by, number, chunk if alone else -1), []).append(chunk)
        return list(parcels.values())

    def _send(self) -> None:
        """Hand a batch to Dask."""
        batch, self._batch = self._batch, {}
        if not batch:
            return
        sent = {number for _, number in batch.values()}
        wishes = {key: self._wish(task, number) for key, (task, number) in batch.items()}
        annotations = {
            name: {key: wish[name] for key, wish in wishes.items()}.__getitem__
            for name in next(iter(wishes.values()))
        }
        allow_once(self._client, self._once[self._allowed :])
        self._allowed = len(self._once)
        wanted = self._wanted(batch, sent)
        if not wanted:
            return
        with dask.annotate(**annotations):
            graph = {key: task for key, (task, _) in batch.items()}
            futures = self._client.get(graph, wanted, sync=False)
        self._futures.update(zip(wanted, futures, strict=True))

    def _wanted(self, batch: Collection[DaskKey], sent: set[int]) -> list[DaskKey]:
        """Return the tasks whose results are needed here, or by subtasks that are not sent yet."""
        wanted: dict[DaskKey, None] = {}
        for number in sorted(sent):
            subtask = self._subtasks[number]
            for chunk in subtask.outputs:
                if chunk in self._kept:
                    wanted[self._kept[chunk]] = None
                if (chunk in self._requested and not self._keep) or not sent.issuperset(self._readers[chunk]):
                    wanted[self._whereabouts[chunk][0]] = None
            for chunk in subtask.inputs:
                key, _ = self._whereabouts.get(chunk, (None, None))
                if chunk in self._values and key in batch and not sent.issuperset(self._readers[chunk]):
                    wanted[key] = None
        return list(wanted)

    def _wish(self, task: Task, number: int) -> dict[str, Any]:
        wish: dict[str, Any] = self._wishes.of_task(task, number, task.key == self._own_keys[number])
        if self._watch is not None:
            wish[MARK] |= self._watch.mark
        return wish

    # -- what runs here ---------------------------------------------------------------------------------------

    def _run_here(self, subtask: Subtask) -> None:
        """Compute a subtask in this process."""
        tokens: frozenset[str] = frozenset()
        with contextlib.ExitStack() as locks:
            for chunk in subtask.chunks:
                wanted = self._demands.locks.get(chunk, frozenset())
                sources = self._graph.inputs[chunk]
                if tokens and (tokens != wanted or not self._can_be_gathered(sources)):
                    # Nobody is to wait for others while it holds a lock.
                    locks.close()
                    tokens = frozenset()
                self._gather(sources)
                if tokens != wanted:
                    locks.enter_context(holding(wanted, self._client))
                    tokens = wanted
                if self._watch is not None:
                    self._watch.begin(chunk)
                self._values[chunk] = self._computed_here(chunk)
                if self._watch is not None:
                    self._watch.end(chunk, self._values[chunk], f"process {os.getpid()}")

    def _computed_here(self, chunk: int) -> Any:
        graph = self._graph
        operand = graph.operands[graph.operand_of[chunk]]
        literals = tuple([interprocess(literal) for literal in graph.literals[chunk]])
        left = 0 if chunk in self._demands.once else graph.retries.get(chunk, self._retries)
        while True:
            try:
                return operand.run([self._value(source) for source in graph.inputs[chunk]], literals)
            except Exception as error:
                if not left:
                    error.add_note(raised_by(graph, chunk))
                    raise
                left -= 1

    def _can_be_gathered(self, chunks: Collection[int]) -> bool:
        """Say whether results are there, here or elsewhere."""
        keys = {self._whereabouts[chunk][0] for chunk in chunks if chunk not in self._values}
        missing = keys.difference(self._gathered)
        return all((self._futures.get(key) or self._given[key]).done() for key in missing)

    def _gather(self, chunks: Collection[int]) -> None:
        """Fetch the results that chunks are in, in place of those fetched before."""
        needed = {self._whereabouts[chunk][0]: None for chunk in chunks if chunk not in self._values}
        missing = [key for key in needed if key not in self._gathered]
        futures = [self._futures.get(key) or self._given[key] for key in missing]
        if self._homes:
            self._wait(futures)
        gather = self._client.gather if self._watch is None else self._watch.gather
        found = gather(futures) if missing else []
        self._gathered = {key: self._gathered[key] for key in needed if key in self._gathered}
        self._gathered.update(zip(missing, found, strict=True))

    def _wait(self, futures: Collection[Future]) -> None:
        if self._watch is None:
            watch(self._client, futures, self._homes)
        else:
            watch(self._client, futures, self._homes, self._watch.catch_up)

    def _value(self, chunk: int) -> Any:
        if chunk in self._values:
            return self._values[chunk]
        key, item = self._whereabouts[chunk]
        return self._gathered[key] if item is None else self._gathered[key][item]


__all__ = ["run_on_cluster"]
