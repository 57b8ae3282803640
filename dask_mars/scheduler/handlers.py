"""Applies events to the states of chunks, the ledger of objects, and the queues of workers.

A part of the state machine, and pure. The dispatcher's decisions follow when an event has been applied.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dask_mars.scheduler import events
from dask_mars.scheduler.bookkeeping import (
    CANCELLED,
    CANCELLING,
    FATAL,
    FINISHED,
    FREED,
    READY,
    RUNNING,
    UNSCHEDULED,
    Graph,
)
from dask_mars.scheduler.dispatch import Dispatcher
from dask_mars.scheduler.parameters import Parameters
from dask_mars.scheduler.policies import POLICIES


class Handlers:
    """Applies events."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.graphs: dict[int, Graph] = {}
        self.out: list[events.Instruction] = []
        self.dispatcher = Dispatcher(parameters, self.graphs, self.out.append)
        self._workforce = self.dispatcher.workforce
        self._memory = self.dispatcher.admission.memory
        self._objects = self.dispatcher.admission.objects
        # Heap of (due, graph, chunk): READY chunks that wait for the delay of their retry.
        self.delayed: list[tuple[float, int, int]] = []
        self._now_s = 0.0
        #: Time at which a failed disk is tried again.
        self._disk_due_s = math.inf

    def apply(self, event: events.Event, now_s: float) -> None:
        """Apply one event, and the timers that are due."""
        self._now_s = self._workforce.now_s = now_s
        _HANDLERS[type(event)](self, event)
        while self.delayed and self.delayed[0][0] <= now_s:
            _, id, chunk = heapq.heappop(self.delayed)
            graph = self.graphs.get(id)
            if graph is not None:
                graph.queues.delayed.discard(chunk)
                if graph.state[chunk] == READY:
                    graph.push(chunk)
        if now_s >= self._disk_due_s:
            self._memory.can_spill = True
            self._disk_due_s = math.inf

    # -- events -----------------------------------------------------------------------------------------------

    def _graph_submitted(self, event: events.GraphSubmitted) -> None:
        plan = event.plan
        parameters = self._parameters
        limit = plan.worker_limit or parameters.num_workers
        slots = dict.fromkeys(range(min(limit, parameters.num_workers)), 1)
        make_policy = partial(POLICIES[parameters.policy], assignment=parameters.assignment)
        # Where the engine measures chunks as they run, false declarations do no harm.
        credible_bytes = parameters.memory_limit if parameters.quota_slack_bytes is not None else None
        graph = self.graphs[event.graph] = Graph(event.graph, plan, make_policy, slots, credible_bytes)
        state = graph.state
        finished = []
        initial = []
        for chunk, operand in enumerate(plan.operand_of):
            if operand < 0:
                finished.append(chunk)
            elif not plan.inputs[chunk]:
                state[chunk] = READY
                initial.append(chunk)
        graph.queues.push_all(initial)
        for chunk in finished:
            # Values that came with the graph were never computed: they start as FINISHED.
            state[chunk] = FINISHED
            graph.mark_dispatched(chunk)
        for chunk, id in plan.objects.items():
            self._objects.add_reader(graph, chunk, id)
        if plan.copied_bytes and self._memory.is_limited:
            self._objects.add_copies(graph, plan.copied_bytes)
        for chunk in finished:
            graph.after_finish(chunk)
        if not graph.unfinished_outputs:
            self.out.append(events.FinishGraph(graph.id))

    def _chunks_finished(self, event: events.ChunksFinished) -> None:
        graph = self.graphs.get(event.graph)
        if graph is None:
            return
        chunks = event.chunks
        self._take_back(event.worker, graph, chunks)
        self._learn(graph, event)
        outputs_before = graph.unfinished_outputs
        if freed := self._finish(graph, chunks):
            if graph.objects:
                for chunk in freed:
                    self._objects.remove_reader(graph, chunk)
            self.out.append(events.Free(graph.id, freed))
        if outputs_before and not graph.unfinished_outputs and not graph.stopping:
            self.out.append(events.FinishGraph(graph.id))
        self._maybe_forget(graph)

    def _take_back(self, worker: int, graph: Graph, chunks: Sequence[int]) -> None:
        """Take chunks that a worker has reported."""
        if worker != events.CLIENT:
            self._workforce.record_report(worker)
        self.dispatcher.remove_from_worker(worker, graph, chunks)

    def _learn(self, graph: Graph, event: events.ChunksFinished) -> None:
        """Record the durations, the sizes and the makers of chunks."""
        # Attributes of events are read once: they cost more than those of what is compiled.
        worker, sizes = event.worker, event.sizes
        if worker == events.CLIENT:
            graph.client.learn(event.durations_s)
            self._objects.add_copies(graph, sizes)
        else:
            graph.estimates.learn_durations(event.chunks, event.durations_s)
            if sizes:
                self._objects.add(graph, sizes, event.map_outputs)
                for chunk in event.on_disk:
                    self._objects.moved_to_disk(graph.objects[chunk])
            if self._memory.is_limited:
                self.dispatcher.quotas.learn_sizes(graph, event)
        if sizes and graph.queues.chooses_workers:
            makers = graph.makers
            for chunk in sizes:
                makers[chunk] = worker

    def _finish(self, graph: Graph, chunks: Sequence[int]) -> list[int]:
        """Move computed chunks to their next states; return chunks whose data nothing reads any more."""
        freed: list[int] = []
        state, all_inputs, is_output = graph.state, graph.plan.inputs, graph.is_output
        unfinished_consumers = graph.unfinished_consumers
        for chunk in chunks:
            if state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
                # Results of dispatched chunks behind it may share its memory, which is freed with the graph.
                if not any(state[successor] == CANCELLING for successor in graph.successors[chunk]):
                    freed.append(chunk)
                continue
            graph.move(chunk, FINISHED)
            graph.after_finish(chunk)
            for source in all_inputs[chunk]:
                unfinished_consumers[source] -= 1
                if not unfinished_consumers[source] and not is_output[source]:
                    graph.move(source, FREED)
                    freed.append(source)
            if not unfinished_consumers[chunk] and not is_output[chunk]:
                graph.move(chunk, FREED)
                freed.append(chunk)
        return freed

    def _chunk_failed(self, event: events.ChunkFailed) -> None:
        graph = self.graphs.get(event.graph)
        if graph is None:
            return
        self._take_back(event.worker, graph, (event.chunk,))
        chunk = event.chunk
        if graph.state[chunk] == CANCELLING:
            graph.move(chunk, CANCELLED)
            self._maybe_forget(graph)
            return
        failures = graph.failures[chunk] = graph.failures.get(chunk, 0) + 1
        allowed = graph.plan.retries.get(chunk, graph.plan.default_retries)
        if event.final or failures > allowed or not graph.plan.is_repeatable(chunk):
            self._fail(graph, chunk)
        else:
            self._delay(graph, chunk, failures)

    def _delay(self, graph: Graph, chunk: int, attempt: int) -> None:
        parameters = self._parameters
        if not graph.reschedule(chunk):
            # An input that the same worker computed has to be computed again first.
            return
        # The bound on the exponent keeps a thousand retries from overflowing a float.
        graph.queues.delayed.add(chunk)
        delay = min(parameters.retry_delay_s * 2.0 ** min(attempt - 1, 60), parameters.retry_delay_limit_s)
        heapq.heappush(self.delayed, (self._now_s + delay, graph.id, chunk))

    def _chunks_returned(self, event: events.ChunksReturned) -> None:
        graph = self.graphs.get(event.graph)
        if graph is None:
            return
        self.dispatcher.remove_from_worker(event.worker, graph, event.chunks)
        for chunk in event.chunks:
            if graph.state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
                continue
            if event.to_client:
                graph.client.is_needed[chunk] = 1
            if graph.reschedule(chunk):
                graph.push(chunk)
        self._maybe_forget(graph)

    def _worker_started(self, event: events.WorkerStarted) -> None:
        self._workforce.start(event.worker, event.is_thread)
        self._memory.changed.add(event.worker)

    def _worker_lost(self, event: events.WorkerLost) -> None:
        dispatched = self.dispatcher.remove_worker(event.worker)
        for id, chunk in dispatched:
            graph = self.graphs[id]
            graph.dispatched_count -= 1
            if graph.state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
            elif event.was_up and not graph.plan.is_repeatable(chunk):
                # It may have finished without a report.
                self._fail(graph, chunk)
            elif (id, chunk) != event.running:
                # It had not started, so its worker's death does not count against it.
                if graph.reschedule(chunk):
                    graph.push(chunk)
            elif event.over_limit:
                if (id, chunk) in self.dispatcher.to_run_alone:
                    self._fail(graph, chunk)
                else:
                    self.dispatcher.to_run_alone[id, chunk] = None
                    if graph.reschedule(chunk):
                        graph.push(chunk)
            else:
                losses = graph.losses[chunk] = graph.losses.get(chunk, 0) + 1
                if losses > self._parameters.allowed_losses(event.crashed):
                    self._fail(graph, chunk)
                else:
                    self._delay(graph, chunk, losses)
        for id in dict.fromkeys(id for id, _ in dispatched):
            if id in self.graphs:
                self._maybe_forget(self.graphs[id])

    def _worker_retired(self, event: events.WorkerRetired) -> None:
        # It begins none of the chunks that it may still have.
        self._worker_lost(events.WorkerLost(event.worker, None, was_up=False))

    def _graph_cancelled(self, event: events.GraphCancelled) -> None:
        graph = self.graphs.get(event.graph)
        if graph is None:
            return
        graph.results_taken = True
        self._stop(graph, force=True)
        self._maybe_forget(graph)

    def _results_taken(self, event: events.ResultsTaken) -> None:
        graph = self.graphs.get(event.graph)
        if graph is None:
            return
        for chunk in event.persisted:
            self._objects.persist((graph.id, chunk))
        graph.results_taken = True
        if not graph.stopping:
            # All outputs are available, so nothing needs the remaining chunks.
            self._stop(graph, force=False)
        self._maybe_forget(graph)

    def _objects_put(self, event: events.ObjectsPut) -> None:
        for id, size_bytes in event.sizes.items():
            self._objects.persist(id, size_bytes, id in event.map_outputs)

    def _objects_released(self, event: events.ObjectsReleased) -> None:
        if released := [id for id in event.objects if self._objects.release(id)]:
            self.out.append(events.ForgetObjects(released))

    def _object_spilled(self, event: events.ObjectSpilled) -> None:
        self._memory.spill_ended(event.size_bytes)
        found = self._objects.get(event.object)
        if not event.written:
            self._memory.can_spill = False
            self._disk_due_s = self._now_s + self._parameters.disk_delay_s
        elif found is not None and not found.is_copy:
            self._memory.can_spill = True
        if found is None:
            return
        found.is_spilling = False
        if event.written and not found.is_pinned:
            self._objects.moved_to_disk(found)
            # The instruction below frees these bytes; until the next measurement this estimate holds.
            self._memory.stored_bytes -= found.size_bytes
            self.out.append(events.UseSpilled(found.id, found.read_as()))

    def _chunks_restored(self, event: events.ChunksRestored) -> None:
        graph = self.graphs[event.graph]
        for chunk in event.chunks:
            found, restored = graph.objects[chunk], (graph.id, chunk)
            self._objects.moved_to_memory(found)
            for successor in graph.successors[chunk]:
                # Only this worker's chunks: others may be reading the value into private memory.
                if (graph.id, successor) in self._workforce.by_id[event.worker].dispatched:
                    self._memory.consume_reservation(graph.id, successor, found.size_bytes)
            others = [place for place in found.read_as() if place != restored]
            if others or found.is_persisted:
                self.out.append(events.UseRestored(found.id, restored, others))

    def _quota_requested(self, event: events.QuotaRequested) -> None:
        graph = self.graphs.get(event.graph)
        worker = self._workforce.by_id.get(event.worker)
        if graph is not None and worker is not None and (event.graph, event.chunk) in worker.dispatched:
            self.dispatcher.quotas.request(event.worker, graph, event.chunk, event.growth_bytes)

    def _private_measured(self, event: events.PrivateMeasured) -> None:
        self.dispatcher.quotas.learn_private(event.growths)
        for id in event.over_share:
            worker = self._workforce.by_id.get(id)
            if worker is not None and id not in self._workforce.over_share and len(worker.dispatched) > 1:
                # Other workers can begin the queued chunks.
                self.out.append(events.RecallQueued(id))
        self._workforce.set_over_share(event.over_share)

    def _workers_renewed(self, event: events.WorkersRenewed) -> None:
        self.dispatcher.quotas.is_renewed = True

    def refuse(self, refusal: events.Refuse) -> None:
        """Fail a graph, of which one chunk needs more memory than there can be."""
        self.out.append(refusal)
        self._fail(self.graphs[refusal.graph], refusal.chunk)

    # -- stopping ---------------------------------------------------------------------------------------------

    def _fail(self, graph: Graph, chunk: int) -> None:
        """Make a chunk and all its dependents FATAL, and stop the rest of its graph."""
        state = graph.state
        graph.move(chunk, FATAL)
        stack = [chunk]
        behind: set[int] = set()
        while stack:
            for successor in graph.successors[stack.pop()]:
                if state[successor] == UNSCHEDULED:
                    graph.move(successor, FATAL)
                    stack.append(successor)
                elif state[successor] == RUNNING and successor not in behind:
                    # The dependent stands in a queue, and will be returned.
                    behind.add(successor)
                    stack.append(successor)
        self.out.append(events.FailGraph(graph.id, chunk))
        # As under Dask's threads, other running chunks may finish, though nothing waits for them.
        self._stop(graph, force=False)
        graph.results_taken = not graph.plan.keeps_data_on_failure
        self._maybe_forget(graph)

    def _stop(self, graph: Graph, force: bool) -> None:
        graph.stopping = True
        graph.queues.clear()
        state = graph.state
        # Counting bytes is a thousand times faster than a loop, and most graphs end with nothing to stop.
        if not any(state.count(live) for live in (UNSCHEDULED, READY, RUNNING)):
            return
        for chunk, current in enumerate(list(state)):
            if current in (UNSCHEDULED, READY):
                graph.move(chunk, CANCELLED)
            elif current == RUNNING:
                graph.move(chunk, CANCELLING)
        for worker in sorted({worker for held in graph.holders.values() for worker in held.values()}):
            self.out.append(events.Interrupt(worker, graph.id, force))

    def _maybe_forget(self, graph: Graph) -> None:
        """Forget a graph that the user is done with once none of its chunks is dispatched."""
        if graph.results_taken and graph.stopping and not graph.dispatched_count and graph.id in self.graphs:
            del self.graphs[graph.id]
            self._objects.forget_reader(graph)
            graph.forget_policy()
            self.dispatcher.quotas.forget()
            self.out.append(events.ForgetGraph(graph.id))


_HANDLERS: dict[type[Any], Callable[[Handlers, Any], None]] = {
    events.GraphSubmitted: Handlers._graph_submitted,
    events.ChunksFinished: Handlers._chunks_finished,
    events.ChunkFailed: Handlers._chunk_failed,
    events.ChunksReturned: Handlers._chunks_returned,
    events.WorkerStarted: Handlers._worker_started,
    events.WorkerLost: Handlers._worker_lost,
    events.WorkerRetired: Handlers._worker_retired,
    events.GraphCancelled: Handlers._graph_cancelled,
    events.ResultsTaken: Handlers._results_taken,
    events.ObjectsPut: Handlers._objects_put,
    events.ObjectsReleased: Handlers._objects_released,
    events.ObjectSpilled: Handlers._object_spilled,
    events.ChunksRestored: Handlers._chunks_restored,
    events.QuotaRequested: Handlers._quota_requested,
    events.PrivateMeasured: Handlers._private_measured,
    events.WorkersRenewed: Handlers._workers_renewed,
    events.ReservationRequested: lambda self, event: self.dispatcher.admission.request(
        event.reservation, event.size_bytes
    ),
    events.ReservationReleased: lambda self, event: self.dispatcher.admission.release(event.reservation),
    events.TimePassed: lambda handlers, event: None,
}
