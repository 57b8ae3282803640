"""The client's side of a computation on several machines: cut it into subtasks, submit them to Dask, gather.

Chunks for the user's process run there in threads. After each of them, all subtasks that wait for no other go to
Dask in one batch.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import pickle
import uuid
import warnings
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client, Future

from dask_mars import config
from dask_mars.client.callbacks import Observer
from dask_mars.client.records import Record
from dask_mars.cluster.admission import register_once, unregister_once
from dask_mars.cluster.annotations import TaskAnnotations
from dask_mars.cluster.computation import ClusterComputation, DaskKey
from dask_mars.cluster.local_tasks import LocalTasks
from dask_mars.cluster.map_outputs import with_selections
from dask_mars.cluster.marks import MARK
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.planning import AgentInfo, Cut, cut_for, find_replicas, futures_of
from dask_mars.cluster.progress import ProgressReceiver
from dask_mars.cluster.requirements import Requirements
from dask_mars.cluster.shuffles import barrier_task, find_shuffles
from dask_mars.cluster.source import ClusterSource
from dask_mars.cluster.subtask_spec import Constraints, Packer, Unsendable, task_of_large
from dask_mars.dask_api.core import Task, TaskRef
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.graph.ids import GRAPH_LIMIT
from dask_mars.labels import label_of
from dask_mars.protocol import tracebacks
from dask_mars.protocol.context import Context
from dask_mars.scheduler.events import CLIENT

if TYPE_CHECKING:
    from dask_mars.cluster.saving import ClusterSaving

#: Size limits of result groups, in bytes: for groups that other hosts read, and for groups that travel only if
#: another host takes over their readers.
_GROUP_BYTES = 1 << 25
_STAYING_GROUP_BYTES = 1 << 27


def run_on_cluster(
    client: Client,
    graph: ChunkGraph,
    hosts: Sequence[AgentInfo],
    requirements: Requirements,
    retries: int | None = None,
    persist: bool = False,
    observer: Observer | None = None,
    record: Record | None = None,
    effects: SideEffects | None = None,
    saving: ClusterSaving | None = None,
    num_workers: int | None = None,
) -> dict[int, Any]:
    """Compute a chunk graph on a cluster.

    Parameters
    ----------
    client : Client
        A client connected to the cluster.
    graph : ChunkGraph
        What to compute.
    hosts : sequence of AgentInfo
        Its agents.
    requirements : Requirements
        Requirements of the graph's chunks.
    retries : int, optional
        Retries of a failed task.
    persist : bool, optional
        Leave outputs on the cluster, and return their futures without waiting.
    observer : Observer, optional
        Receives the progress of chunks; not together with `persist`.
    record : Record, optional
        The record of the computation, which can cancel it.
    effects : SideEffects, optional
        Records tasks that must not start again after a failure.
    saving : ClusterSaving, optional
        Decides what agents save.
    num_workers : int, optional
        Most concurrent tasks in this process.

    Returns
    -------
    dict
        Value of each output.

    Raises
    ------
    NoHostAllowed
        The user restricts a chunk to hosts that do not exist.
    Exception
        Any exception of a task.
    """
    retries = int(config.get("retries") if retries is None else retries)
    name = uuid.uuid4().hex
    # Ids have room for four bytes, enough for readers of logs; keys have the whole name.
    number = int(name[:8], 16) % GRAPH_LIMIT
    fixed = graph.restrictions.keys() | graph.in_client | graph.chunks_for_client()
    given_outputs = graph.outputs
    record = record or Record()
    graph, selections, new = with_selections(graph, [host.slots for host in hosts], fixed)
    requirements = requirements.renumbered(new)
    if requirements.threads:
        # A repeated submission needs the original literals.
        graph = copy.copy(graph)
        graph.literals = list(graph.literals)
    shuffles = find_shuffles(graph, requirements.threads, name)
    user_futures = futures_of(client, graph)
    threads = config.worker_count(num_workers or None)
    computation = ClusterComputation(
        client, graph, hosts, name, retries, threads, requirements, shuffles, user_futures
    )
    surroundings = Context()
    for text in surroundings.losses():
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    packer = Packer(graph, retries, surroundings.portable())
    unsendable = packer.unsendable()
    replica_bytes = find_replicas(client, user_futures, hosts)
    while True:
        found = cut_for(graph, hosts, unsendable, replica_bytes, requirements, shuffles, selections, number)
        try:
            submission = _Submission(computation, packer, found, persist, observer, record, effects, saving)
        except Unsendable as error:
            unsendable = unsendable.union(error.chunks)
        else:
            try:
                values = submission.results()
            except Exception as error:
                tracebacks.restore(error)
                raise
            return {chunk: values[new[chunk]] for chunk in given_outputs}


@dataclass(slots=True)
class SideEffects:
    """Side effects of a computation that must not happen twice.

    Attributes
    ----------
    sent, begun_here : list of str
        Keys of appending tasks that may have started on the cluster, and that have started in this process.
    """

    sent: list[str] = field(default_factory=list)
    begun_here: list[str] = field(default_factory=list)


class _Submission:
    """One submission of a computation. Its constructor packs subtasks, and sends nothing.

    Parameters
    ----------
    computation : ClusterComputation
        The computation.
    packer : Packer
        Packs subtasks of its graph.
    found : Cut
        The subtasks that the graph is cut into.
    persist, observer, record, effects, saving
        As `run_on_cluster` takes them.

    Raises
    ------
    Unsendable
        Further chunks have to run in this process.
    """

    def __init__(
        self,
        computation: ClusterComputation,
        packer: Packer,
        found: Cut,
        persist: bool,
        observer: Observer | None,
        record: Record,
        effects: SideEffects | None = None,
        saving: ClusterSaving | None = None,
    ) -> None:
        client, graph = computation.client, computation.graph
        self._client = client
        self._graph = graph
        self._hosts = computation.hosts
        self._name = computation.name
        self._requirements = computation.requirements
        self._shuffles = computation.shuffles
        self._packer = packer
        self._subtasks, self._sizes = found
        self._annotations = TaskAnnotations(computation, self._subtasks)
        self._requested = frozenset(graph.outputs)
        self._persist = persist
        self._record = record
        self._effects = effects = effects or SideEffects()
        self._saving = saving
        if saving is not None:
            saving.cut(graph, self._subtasks)
        self._progress: ProgressReceiver | None = None
        self._source = ClusterSource(client, graph, observer)
        took = None
        if record.is_submitted and not persist:
            # The user holds a handle, and may request the progress.
            observer, took = self._source, self._source.took
        if observer is not None and observer.wants_tasks:
            self._progress = ProgressReceiver(client, self._name, graph, self._subtasks, observer, took)
        self._local_tasks = LocalTasks(computation, self._progress, effects.begun_here)
        #: Subtasks that read each chunk.
        self._readers: dict[int, list[int]] = defaultdict(list)
        for number, subtask in enumerate(self._subtasks):
            for chunk in subtask.inputs:
                self._readers[chunk].append(number)
        #: Keys of the tasks that compute subtasks; other tasks take their results apart.
        self._own_keys: dict[int, DaskKey] = {}
        #: Key of the task for each requested chunk that stays on the cluster.
        self._persisted_keys: dict[int, DaskKey] = {}
        #: Requested chunks that the user has persisted before.
        self._persisted_before: dict[int, Future] = {}
        if persist:
            named = {chunk: client.futures.get(graph.keys[chunk]) for chunk in graph.outputs}
            good = [chunk for chunk, state in named.items() if state and state.status in ("pending", "finished")]
            self._persisted_before = {chunk: Future(graph.keys[chunk], client) for chunk in good}
        #: Numbers of subtasks that were not submitted.
        self._waiting = list(range(len(self._subtasks)))
        #: Names of subtasks that must start only once.
        self._once: list[str] = []
        #: Number of those names that are registered with the scheduler.
        self._allowed = 0
        self._batch = self._next_batch()

    def results(self) -> dict[int, Any]:
        """Compute, and return the value of each output."""
        try:
            if self._progress is not None:
                self._progress.open()
            self._record.run(self._source, self._stop)
            while True:
                self._send()
                # A cancellation during `_send` may have missed the new tasks.
                self._record.checkpoint()
                self._begin_local()
                if not self._local_tasks.is_busy:
                    break
                if self._local_tasks.step():
                    self._batch = self._next_batch()
            return self._futures_of_outputs() if self._persist else self._values()
        except BaseException:
            # A client that was closed meanwhile raises; the first error counts.
            with contextlib.suppress(Exception):
                self._client.cancel(list(self._local_tasks.futures.values()))
            raise
        finally:
            self._local_tasks.close()
            if self._progress is not None:
                self._progress.close()
            for future in self._local_tasks.futures.values():
                future.release()
            unregister_once(self._client, self._once)

    def _begin_local(self) -> None:
        """Start all subtasks of this process whose inputs are computed or in progress."""
        still = []
        for number in self._waiting:
            subtask = self._subtasks[number]
            if subtask.host == CLIENT and self._local_tasks.can_begin(subtask):
                self._local_tasks.begin(subtask)
            else:
                still.append(number)
        if still and not self._local_tasks.is_busy:
            # A subtask that could not be pickled for the cluster.
            self._local_tasks.begin(self._subtasks[still.pop(0)])
        self._waiting = still

    def _stop(self) -> bool:
        """Cancel the tasks at Dask, from any thread; waiting threads see their futures cancelled."""
        futures = list(self._local_tasks.futures.copy().values())
        # No wait: the scheduler may be unreachable.
        self._client.loop.add_callback(partial(self._client.cancel, futures, asynchronous=True))
        return True

    def _values(self) -> dict[int, Any]:
        """Return the value of each output."""
        outputs = self._graph.outputs
        self._local_tasks.fetch(outputs)
        if self._progress is not None:
            self._progress.finish()
        return self._local_tasks.values_of(outputs)

    def _futures_of_outputs(self) -> dict[int, Any]:
        """Return the future of each output, or its value if it is in this process."""
        local_tasks = self._local_tasks
        if self._once:
            # `unregister_once` follows: tasks that must start only once have to end before.
            local_tasks.wait([local_tasks.futures[key] for key in self._persisted_keys.values()])
        found = {}
        for chunk in self._graph.outputs:
            if chunk in local_tasks.values:
                found[chunk] = local_tasks.values[chunk]
            elif chunk in self._persisted_before:
                found[chunk] = self._persisted_before[chunk]
            elif chunk in self._persisted_keys:
                found[chunk] = local_tasks.futures.pop(self._persisted_keys[chunk])
            else:
                found[chunk] = local_tasks.future(local_tasks.result_of[chunk][0])
        return found

    # -- subtasks for the cluster -----------------------------------------------------------------------------

    def _next_batch(self) -> dict[DaskKey, tuple[Task, int]]:
        """Return Dask's tasks of all subtasks that wait for nothing in this process, each with its number."""
        first = len(self._waiting) == len(self._subtasks)
        batch: dict[DaskKey, tuple[Task, int]] = {}
        still = []
        early = self._too_early()
        for number in self._waiting:
            subtask = self._subtasks[number]
            if (
                subtask.host == CLIENT
                or not all(map(self._local_tasks.is_known, subtask.inputs))
                or number in early
            ):
                still.append(number)
                continue
            try:
                batch.update(self._tasks_of(number, subtask))
            except Unsendable:
                if first or not self._requirements.files.keys().isdisjoint(subtask.chunks):
                    raise
                # Another cut is no longer possible: the subtask runs here instead.
                still.append(number)
        self._waiting = still
        return batch

    def _too_early(self) -> set[int]:
        """Return subtasks that must wait until the barrier of their shuffle can be sent with them."""
        barriers_of = self._shuffles.barriers_of
        if not barriers_of:
            return set()
        coming: set[int] = set()
        for number in self._waiting:
            subtask = self._subtasks[number]
            if subtask.host != CLIENT and all(
                at in coming or self._local_tasks.is_known(at) for at in subtask.inputs
            ):
                coming.update(subtask.outputs)
        return {
            number
            for number in self._waiting
            if not coming.issuperset(barriers_of.get(self._subtasks[number].chunks[0], ()))
        }

    def _tasks_of(self, number: int, subtask: Subtask) -> dict[DaskKey, tuple[Task, int]]:
        """Return the tasks that compute a subtask and take its result apart."""
        local_tasks = self._local_tasks
        values, found, tasks = {}, {}, {}
        for chunk in subtask.inputs:
            if chunk not in local_tasks.values or chunk in local_tasks.result_of:
                found[chunk] = local_tasks.result_of[chunk]
                continue
            own: DaskKey = (f"mars-data-{self._name}", chunk)
            task = task_of_large(own, local_tasks.values[chunk])
            if task is None:
                values[chunk] = local_tasks.values[chunk]
            else:
                tasks[own] = task, number
                found[chunk] = own, None
        arguments = list(dict.fromkeys([key for key, _ in found.values()]))
        places = {key: place for place, key in enumerate(arguments)}
        sources = {chunk: (places[key], item) for chunk, (key, item) in found.items()}
        output_groups = self._output_groups(subtask)
        packed = self._packer.pack(
            subtask, output_groups, sources, values, self._constraints(number, subtask), self._saving
        )
        local_tasks.result_of.update(found)
        # The task uses only the standard library, so that Dask's scheduler needs no code of ours or of the user.
        call = operator.call, Task(None, pickle.loads, packed), *map(TaskRef, arguments)
        spec = self._shuffles.barriers.get(subtask.chunks[0])
        # Dask's scheduler groups durations and colours by the part before the hash.
        layer = label_of(self._graph.layer_of((subtask.outputs or subtask.chunks)[-1]))
        own_key = f"{layer}-{self._name}", subtask.id.hex()
        task = Task(own_key, *call) if spec is None else barrier_task(spec, *call)
        key = self._own_keys[number] = task.key
        tasks[key] = task, number
        for place_of_group, group in enumerate(output_groups):
            part = key
            if len(output_groups) > 1:
                part = f"mars-part-{self._name}", number, place_of_group
                tasks[part] = Task(part, operator.getitem, TaskRef(key), place_of_group), number
            local_tasks.result_of.update({chunk: (part, item) for item, chunk in enumerate(group)})
            for item, chunk in enumerate(group if self._persist else ()):
                if chunk in self._requested and chunk not in self._persisted_before:
                    # The key is the one in the user's collection.
                    own = self._persisted_keys[chunk] = self._graph.keys[chunk]
                    tasks[own] = Task(own, operator.getitem, TaskRef(part), item), number
        return tasks

    def _constraints(self, number: int, subtask: Subtask) -> Constraints:
        """Return the constraints of a subtask, whose chunks are of one kind."""
        requirements, first = self._requirements, subtask.chunks[0]
        once = None
        if first in requirements.once:
            once = f"mars-once-{self._name}-{number}"
            self._once.append(once)
        required_agent = None
        if self._annotations.needs_files(number):
            required_agent = self._hosts[subtask.host].id
            self._local_tasks.agents_with_files[required_agent] = str(self._graph.keys[subtask.chunks[-1]])
        return Constraints(
            requirements.locks.get(first, frozenset()), once, required_agent, self._annotations.in_thread(number)
        )

    def _output_groups(self, subtask: Subtask) -> list[list[int]]:
        """Group the outputs of a subtask by the hosts that read them.

        A group travels as one, through the agent's own memory, so that large groups are divided.
        """
        output_groups: dict[tuple[frozenset[int], int, int], list[int]] = {}
        #: Number of full groups for each set of hosts, and the size of the last group.
        filled: dict[frozenset[int], tuple[int, int]] = {}
        for chunk in subtask.outputs:
            readers = self._readers[chunk]
            hosts = {self._subtasks[reader].host for reader in readers}
            if chunk in self._requested:
                hosts.add(CLIENT)
            # A thread of Dask's gets copies of the whole group, so its inputs form groups of their own.
            alone = any(map(self._annotations.in_thread, readers))
            wanted_by = frozenset(hosts)
            limit = _STAYING_GROUP_BYTES if hosts == {subtask.host} else _GROUP_BYTES
            number, size = filled.get(wanted_by, (0, 0))
            if size and size + self._sizes[chunk] > limit:
                number, size = number + 1, 0
            filled[wanted_by] = number, size + self._sizes[chunk]
            output_groups.setdefault((wanted_by, number, chunk if alone else -1), []).append(chunk)
        return list(output_groups.values())

    def _send(self) -> None:
        """Submit a batch to Dask."""
        batch, self._batch = self._batch, {}
        if not batch:
            return
        sent = {number for _, number in batch.values()}
        by_key = {key: self._annotated(task, number) for key, (task, number) in batch.items()}
        annotations = {
            name: {key: known[name] for key, known in by_key.items()}.__getitem__
            for name in next(iter(by_key.values()))
        }
        register_once(self._client, self._once[self._allowed :])
        firsts = {number: self._subtasks[number].chunks[0] for number in sorted(sent)}
        self._effects.sent += [
            str(self._graph.keys[chunk]) for chunk in firsts.values() if chunk in self._requirements.once
        ]
        self._allowed = len(self._once)
        wanted = self._wanted(batch, sent)
        if not wanted:
            return
        with dask.annotate(**annotations):
            graph = {key: task for key, (task, _) in batch.items()}
            futures = self._client.get(graph, wanted, sync=False)
        self._local_tasks.futures.update(zip(wanted, futures, strict=True))

    def _wanted(self, batch: Collection[DaskKey], sent: set[int]) -> list[DaskKey]:
        """Return the tasks whose results are needed here, or by later subtasks."""
        local_tasks = self._local_tasks
        wanted: dict[DaskKey, None] = {}
        for number in sorted(sent):
            subtask = self._subtasks[number]
            for chunk in subtask.outputs:
                if chunk in self._persisted_keys:
                    wanted[self._persisted_keys[chunk]] = None
                if (chunk in self._requested and not self._persist) or not sent.issuperset(self._readers[chunk]):
                    wanted[local_tasks.result_of[chunk][0]] = None
            for chunk in subtask.inputs:
                key, _ = local_tasks.result_of.get(chunk, (None, None))
                if chunk in local_tasks.values and key in batch and not sent.issuperset(self._readers[chunk]):
                    wanted[key] = None
        return list(wanted)

    def _annotated(self, task: Task, number: int) -> dict[str, Any]:
        annotations: dict[str, Any] = self._annotations.of_task(task, number, task.key == self._own_keys[number])
        if self._progress is not None:
            annotations[MARK] |= self._progress.mark
        if self._record.is_submitted:
            # Viewers of the cluster see the user's name for it.
            annotations[MARK] |= {"id": self._record.id, "title": self._record.name}
        return annotations


__all__ = ["SideEffects", "run_on_cluster"]
