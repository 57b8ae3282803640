"""The client's side of a computation on several machines: cut it into subtasks, submit them to Dask, gather.

Chunks for the user's process run there in threads. After each of them, all subtasks that wait for no other go to
Dask in one batch.
"""

from __future__ import annotations

import contextlib
import copy
import uuid
import warnings
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client

from dask_mars import config
from dask_mars.client.backend import Work
from dask_mars.client.callbacks import Observer
from dask_mars.cluster.admission import register_once, unregister_once
from dask_mars.cluster.computation import ClusterComputation, DaskKey, SideEffects
from dask_mars.cluster.local_tasks import LocalTasks
from dask_mars.cluster.map_outputs import Selections, with_selections
from dask_mars.cluster.planning import AgentInfo, Cut, cut_for, expect, find_replicas, futures_of
from dask_mars.cluster.progress import ProgressReceiver
from dask_mars.cluster.requirements import Requirements
from dask_mars.cluster.shuffles import find_shuffles
from dask_mars.cluster.source import ClusterSource
from dask_mars.cluster.subtask_spec import Packer, Unsendable
from dask_mars.cluster.subtask_tasks import SubtaskTasks
from dask_mars.dask_api.core import Task
from dask_mars.graph.chunks import flatten
from dask_mars.graph.ids import GRAPH_LIMIT
from dask_mars.protocol import tracebacks
from dask_mars.protocol.context import Context
from dask_mars.scheduler.events import CLIENT

if TYPE_CHECKING:
    from dask_mars.cluster.saving import ClusterSaving


def run_on_cluster(
    client: Client,
    hosts: Sequence[AgentInfo],
    requirements: Requirements,
    work: Work,
    observer: Observer | None,
    effects: SideEffects,
    saving: ClusterSaving | None,
) -> dict[int, Any]:
    """Compute a chunk graph on a cluster."""
    # The result has the value of each output, or its future if it is persisted, without a wait.
    graph, options = work.graph, work.request.options
    retries = int(config.get("retries") if options.retries is None else options.retries)
    name = uuid.uuid4().hex
    # Ids have room for four bytes, enough for readers of logs; keys have the whole name.
    graph_id = int(name[:8], 16) % GRAPH_LIMIT
    fixed = graph.restrictions.keys() | graph.in_client | graph.chunks_for_client()
    graph, selections, new = with_selections(graph, [host.slots for host in hosts], fixed)
    requirements = requirements.renumbered(new)
    if requirements.threads:
        # A repeated submission needs the original literals.
        graph = copy.copy(graph)
        graph.literals = list(graph.literals)
    computation = ClusterComputation(
        client=client,
        graph=graph,
        hosts=hosts,
        name=name,
        retries=retries,
        threads=config.worker_count(options.num_workers or None),
        requirements=requirements,
        shuffles=find_shuffles(graph, requirements.threads, name),
        user_futures=futures_of(client, graph),
        record=work.record,
        effects=effects,
        observer=observer,
        saving=saving,
        persist=work.request.persist,
        output_keys={new[work.graph.ids[key]]: key for key in flatten(work.request.keys)},
    )
    values = _computed(computation, selections, graph_id)
    return {chunk: values[new[chunk]] for chunk in work.graph.outputs}


def _computed(computation: ClusterComputation, selections: Selections, graph_id: int) -> dict[int, Any]:
    """Cut the graph, and compute; cut it again while chunks turn out to be unsendable."""
    client, graph, hosts = computation.client, computation.graph, computation.hosts
    surroundings = Context()
    for text in surroundings.losses():
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    packer = Packer(graph, computation.retries, surroundings.portable())
    unsendable = packer.unsendable()
    replica_bytes = find_replicas(client, computation.user_futures, hosts)
    while True:
        cut = cut_for(
            graph,
            hosts,
            unsendable,
            replica_bytes,
            computation.requirements,
            computation.shuffles,
            selections,
            graph_id,
            client.cluster,
        )
        try:
            submission = _Submission(computation, packer, cut)
        except Unsendable as error:
            unsendable = unsendable.union(error.chunks)
        else:
            try:
                return submission.results()
            except Exception as error:
                tracebacks.restore(error)
                raise


class _Submission:
    """One submission of a computation. Its constructor packs subtasks, and sends nothing."""

    def __init__(self, computation: ClusterComputation, packer: Packer, cut: Cut) -> None:
        client, graph, observer = computation.client, computation.graph, computation.observer
        self._client = client
        self._graph = graph
        self._computation = computation
        self._subtasks, self._sizes = cut
        if computation.saving is not None:
            computation.saving.cut(graph, self._subtasks)
        self._progress: ProgressReceiver | None = None
        self._source = ClusterSource(client, graph, observer)
        took = None
        if computation.record.is_submitted and not computation.persist:
            # The user holds a handle, and may request the progress.
            observer, took = self._source, self._source.took
        if observer is not None and observer.wants_tasks:
            self._progress = ProgressReceiver(client, computation.name, graph, self._subtasks, observer, took)
        self._local_tasks = LocalTasks(computation, self._progress)
        self._tasks = SubtaskTasks(computation, packer, cut, self._local_tasks)
        #: Indices of subtasks that were not submitted.
        self._waiting = list(range(len(self._subtasks)))
        #: Number of subtasks that must start only once and are registered with the scheduler.
        self._allowed = 0
        self._batch = self._next_batch()

    def results(self) -> dict[int, Any]:
        """Compute, and return the value of each output."""
        try:
            if self._progress is not None:
                self._progress.open()
            self._computation.record.run(self._source, self._stop)
            while True:
                self._send()
                # A cancellation during `_send` may have missed the new tasks.
                self._computation.record.raise_if_cancelled()
                self._begin_local()
                if not self._local_tasks.is_busy:
                    break
                if self._local_tasks.step():
                    self._batch = self._next_batch()
            return self._futures_of_outputs() if self._computation.persist else self._values()
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
            unregister_once(self._client, self._tasks.once)

    def _begin_local(self) -> None:
        """Start all subtasks of this process whose inputs are computed or in progress."""
        still = []
        for index in self._waiting:
            subtask = self._subtasks[index]
            if subtask.host == CLIENT and self._local_tasks.can_begin(subtask):
                self._local_tasks.begin(subtask)
            else:
                still.append(index)
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
        if self._tasks.once:
            # `unregister_once` follows: tasks that must start only once have to end before.
            local_tasks.wait([local_tasks.futures[key] for key in self._tasks.persisted_keys.values()])
        host_of = {chunk: subtask.host for subtask in self._subtasks for chunk in subtask.outputs}
        found = {}
        for chunk in self._graph.outputs:
            if chunk in local_tasks.values:
                found[chunk] = local_tasks.values[chunk]
            elif chunk in self._tasks.persisted_keys:
                found[chunk] = local_tasks.futures.pop(self._tasks.persisted_keys[chunk])
                expect(found[chunk], self._computation.hosts[host_of[chunk]], self._sizes[chunk])
            else:
                found[chunk] = local_tasks.future(local_tasks.result_of[chunk][0])
        return found

    # -- subtasks for the cluster -----------------------------------------------------------------------------

    def _next_batch(self) -> dict[DaskKey, tuple[Task, int]]:
        """Return Dask's tasks of all subtasks that wait for nothing in this process, each with its index."""
        first = len(self._waiting) == len(self._subtasks)
        batch: dict[DaskKey, tuple[Task, int]] = {}
        still = []
        early = self._too_early()
        for index in self._waiting:
            subtask = self._subtasks[index]
            if (
                subtask.host == CLIENT
                or not all(map(self._local_tasks.is_known, subtask.inputs))
                or index in early
            ):
                still.append(index)
                continue
            try:
                batch.update(self._tasks.of(index, subtask))
            except Unsendable:
                if first or not self._computation.requirements.files.keys().isdisjoint(subtask.chunks):
                    raise
                # Another cut is no longer possible: the subtask runs here instead.
                still.append(index)
        self._waiting = still
        return batch

    def _too_early(self) -> set[int]:
        """Return subtasks that must wait until the barrier of their shuffle can be sent with them."""
        barriers_of = self._computation.shuffles.barriers_of
        if not barriers_of:
            return set()
        coming: set[int] = set()
        for index in self._waiting:
            subtask = self._subtasks[index]
            if subtask.host != CLIENT and all(
                at in coming or self._local_tasks.is_known(at) for at in subtask.inputs
            ):
                coming.update(subtask.outputs)
        return {
            index
            for index in self._waiting
            if not coming.issuperset(barriers_of.get(self._subtasks[index].chunks[0], ()))
        }

    def _send(self) -> None:
        """Submit a batch to Dask."""
        batch, self._batch = self._batch, {}
        if not batch:
            return
        sent = {index for _, index in batch.values()}
        mark = {} if self._progress is None else self._progress.mark
        by_key = {key: self._tasks.annotated(task, index, mark) for key, (task, index) in batch.items()}
        annotations = {
            name: {key: known[name] for key, known in by_key.items()}.__getitem__
            for name in next(iter(by_key.values()))
        }
        register_once(self._client, self._tasks.once[self._allowed :])
        once = self._computation.requirements.once
        firsts = [self._subtasks[index].chunks[0] for index in sorted(sent)]
        self._computation.effects.sent += [str(self._graph.keys[chunk]) for chunk in firsts if chunk in once]
        self._allowed = len(self._tasks.once)
        requested = self._requested(batch, sent)
        if not requested:
            return
        with dask.annotate(**annotations):
            graph = {key: task for key, (task, _) in batch.items()}
            # The methods of the client itself may be ours.
            futures = type(self._client).get(self._client, graph, requested, sync=False)
        self._local_tasks.futures.update(zip(requested, futures, strict=True))

    def _requested(self, batch: Collection[DaskKey], sent: set[int]) -> list[DaskKey]:
        """Return the tasks whose results are needed here, or by later subtasks."""
        local_tasks = self._local_tasks
        readers, outputs = self._tasks.readers, frozenset(self._graph.outputs)
        requested: dict[DaskKey, None] = {}
        for index in sorted(sent):
            subtask = self._subtasks[index]
            for chunk in subtask.outputs:
                if chunk in self._tasks.persisted_keys:
                    requested[self._tasks.persisted_keys[chunk]] = None
                is_fetched = chunk in outputs and not self._computation.persist
                if is_fetched or not sent.issuperset(readers[chunk]):
                    requested[local_tasks.result_of[chunk][0]] = None
            for chunk in subtask.inputs:
                key, _ = local_tasks.result_of.get(chunk, (None, None))
                if chunk in local_tasks.values and key in batch and not sent.issuperset(readers[chunk]):
                    requested[key] = None
        return list(requested)
