"""Dispatches READY chunks, and those that may run ahead, to workers with short queues.

A part of the state machine, and pure.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection

from dask_mars.scheduler.admission import Admission, Blocked, OperandCost
from dask_mars.scheduler.bookkeeping import FINISHED, READY, RUNNING, UNSCHEDULED, Graph
from dask_mars.scheduler.events import (
    CLIENT,
    Instruction,
    Offer,
    RecallQueued,
    Refuse,
    Resources,
    Run,
    WithdrawOffer,
)
from dask_mars.scheduler.parameters import Parameters
from dask_mars.scheduler.quotas import Quotas
from dask_mars.scheduler.recall import Recalls
from dask_mars.scheduler.workforce import Worker, Workforce


class Dispatcher:
    """Hands chunks out, and takes them back."""

    def __init__(
        self, parameters: Parameters, graphs: dict[int, Graph], emit: Callable[[Instruction], None]
    ) -> None:
        self._parameters = parameters
        self._graphs = graphs
        self._emit = emit
        self.workforce = Workforce(parameters.window_s, parameters.silence_s)
        self.admission = Admission(parameters, self.workforce, emit)
        self.quotas = Quotas(self.admission, self.workforce, graphs, emit)
        self._recalls = Recalls(self.workforce, self.admission, graphs, parameters.silence_s)
        #: Graph and chunk of each chunk in the user's process.
        self.client_chunks: set[tuple[int, int]] = set()
        self._client_bytes = 0
        #: Amount of each resource that no dispatched chunk takes.
        self.free_resources = dict(parameters.resources)
        #: Graph and chunk of each chunk that took a worker past the memory limit, and is tried once more alone.
        self.to_run_alone: dict[tuple[int, int], None] = {}

    def dispatch(self) -> Refuse | None:
        """Dispatch all chunks that can run; return a chunk that never can."""
        admission, quotas = self.admission, self.quotas
        self.workforce.drop_silent()
        if quotas.growing:
            quotas.let_grow()
        if self.to_run_alone and (alone := self._next_alone()) is not None:
            self._dispatch_alone(*alone)
        else:
            self._dispatch_all()
        for worker in self._recalls.take_due():
            self._emit(RecallQueued(worker))
        refusal = None
        if admission.blocked is not None:
            admission.is_short = True
            refusal = self._make_room_for(admission.blocked)
        else:
            admission.spill_excess()
        admission.spill_ahead()
        if self._parameters.quota_slack_bytes is not None:
            quotas.grant(self._parameters.quota_slack_bytes)
        return refusal

    def next_recall_s(self) -> float | None:
        """Return the time of the next recall, if no worker reports before."""
        return self._recalls.next_s()

    # -- dispatched chunks ------------------------------------------------------------------------------------

    def remove_from_worker(self, id: int, graph: Graph, chunks: Collection[int]) -> None:
        """Record that a worker no longer has chunks."""
        self.admission.memory.release(graph.id, chunks)
        if self.quotas.growing:
            self.quotas.withdraw_for(id, graph, chunks)
        graph.dispatched_count -= len(chunks)
        if id == CLIENT:
            graph.client.count -= len(chunks)
            for chunk in chunks:
                self.client_chunks.remove((graph.id, chunk))
                self._client_bytes -= graph.client.bytes.pop(chunk)
            return
        self._give_back(graph, chunks)
        worker = self.workforce.by_id[id]
        worker.remove(graph.id, chunks)
        graph.unhold(chunks)
        self.workforce.place(worker)
        self._recalls.watch(worker)

    def remove_worker(self, id: int) -> list[tuple[int, int]]:
        """Forget a worker and return its chunks; their graphs still count them."""
        worker = self.workforce.remove(id)
        self.quotas.withdraw(id)
        if worker is None:
            return []
        for owner, chunk in worker.dispatched:
            graph = self._graphs[owner]
            self.admission.memory.release(owner, (chunk,))
            self._give_back(graph, (chunk,))
            graph.unhold((chunk,))
        for graph in self._graphs.values():
            graph.queues.followers.pop(id, None)
        self.admission.objects.forget_worker(id)
        return list(worker.dispatched)

    def _are_free(self, taken: Resources) -> bool:
        """Return whether the given amount of each resource is free."""
        return all(amount <= self.free_resources.get(name, 0.0) for name, amount in taken)

    def _give_back(self, graph: Graph, chunks: Collection[int]) -> None:
        if graph.plan.resources:
            for chunk in chunks:
                for name, amount in graph.plan.resources.get(chunk, ()):
                    self.free_resources[name] += amount

    def _hand_over(self, worker: Worker, graph: Graph, chunk: int, cost_s: float) -> list[int]:
        """Count a chunk as dispatched to a worker; return the successors whose inputs are all dispatched now."""
        if graph.queues.shared_offers:
            self._withdraw_offer(graph, chunk, worker.id)
        complete = graph.dispatch(chunk)
        graph.hold(chunk, worker.id)
        worker.add(graph.id, chunk, cost_s, self.workforce.now_s)
        if resources := graph.plan.resources:
            for name, amount in resources.get(chunk, ()):
                self.free_resources[name] -= amount
            # A chunk with resources must not wait in a worker's queue while it holds them.
            complete = [successor for successor in complete if successor not in resources]
        return complete

    def _make_offers(self, graph: Graph) -> None:
        """Emit the new offers to several workers."""
        queues = graph.queues
        for chunk in queues.new_offers:
            if workers := queues.shared_offers.get(chunk):
                self._emit(Offer(graph.id, chunk, workers))
        queues.new_offers.clear()

    def _withdraw_offer(self, graph: Graph, chunk: int, taker: int) -> None:
        """Withdraw a chunk that one worker takes from the others that it was offered to."""
        self._make_offers(graph)
        others = [worker for worker in graph.queues.shared_offers.pop(chunk, ()) if worker != taker]
        if others:
            self._emit(WithdrawOffer(graph.id, chunk, others))

    # -- dispatch to workers ----------------------------------------------------------------------------------

    def _dispatch_all(self) -> None:
        self.admission.blocked = None
        self._dispatch_to_clients()
        # Graphs take turns, so that a large one does not hold up a small one.
        given = True
        while given:
            given = False
            for graph in list(self._graphs.values()):
                if graph.queues.has_queued and self._dispatch_graph(graph):
                    given = True
                    # To the end of the line, so that the next event serves other graphs first.
                    self._graphs[graph.id] = self._graphs.pop(graph.id)
        # Reservations come last: chunks give memory back in the end, and reservations could take all of it.
        self.admission.grant_requested()

    def _dispatch_graph(self, graph: Graph) -> bool:
        """Give each worker with room a share of the graph's READY chunks and their successors."""
        queues, workforce = graph.queues, self.workforce
        if queues.new_offers:
            self._make_offers(graph)
        places = workforce.open_to(graph.plan)
        if not places:
            return False
        served: list[Worker] = []
        position, count = 0, len(places)
        while position < count:
            worker = workforce.by_id[places[position][2]]
            has_followers = worker.id in queues.followers
            if queues.is_divided:
                share = self._parameters.batch_limit
            else:
                share = -(-len(queues.ready) // (count - position))
            chunks = self._fill(graph, worker, share) if share or has_followers else []
            position += 1
            if chunks:
                served.append(worker)
                self._emit(Run(worker.id, graph.id, chunks, graph.restores(worker.id, chunks)))
            elif not has_followers and not queues.offered:
                # The others have more load: they could not take these chunks either.
                position = workforce.next_position(places, position, queues.followers)
            elif not queues.has_queued:
                break
        for worker in served:
            workforce.place(worker)
            self._recalls.watch(worker)
        if served and self.quotas.is_renewed:
            self.quotas.is_renewed = False
        return bool(served)

    def _fill(self, graph: Graph, worker: Worker, share: int) -> list[int]:
        """Fill a worker's window with up to `share` READY chunks and the successors that can follow them."""
        parameters, admission, queues, plan = self._parameters, self.admission, graph.queues, graph.plan
        operand_of, resources, followers = plan.operand_of, plan.resources, queues.followers.pop(worker.id, [])
        costs: dict[int, OperandCost] = {}
        chunks: list[int] = []
        passed: list[tuple[list[int], int]] = []
        while len(chunks) < parameters.batch_limit:
            ready = queues.ready
            if queues.offered or resources:
                ready = queues.queue_for(worker.id, not worker.dispatched, self._are_free)
            follows = bool(followers) and not (share and ready and ready[0] < followers[0])
            if not follows and not (share and ready):
                break
            queue = followers if follows else ready
            chunk = queues.chunk_of(queue[0])
            if not (self._can_follow(graph, worker, chunk) if follows else queues.is_next(chunk)):
                heapq.heappop(queue)
                continue
            operand = operand_of[chunk]
            if (cost := costs.get(operand)) is None:
                cost = costs[operand] = admission.cost(graph, chunk)
            left = 0 if follows or ready is not queues.ready else len(ready)
            if worker.dispatched and self.workforce.has_enough(worker, plan, cost[0], left):
                break
            if (demand := admission.demand(graph, chunk, cost)) is not None:
                if not admission.has_room(graph, chunk, demand):
                    if follows or len(passed) > parameters.look_ahead:
                        break
                    if not passed:
                        # Nothing is spilled for later ones: the first may only wait until its operand is measured.
                        admission.block(graph, chunk, demand)
                    passed.append((ready, heapq.heappop(ready)))
                    continue
                if passed and queues.passes >= parameters.pass_limit:
                    break
                admission.reserve(graph, chunk, demand[0], worker.id)
                queues.passes = queues.passes + 1 if passed else 0
            heapq.heappop(queue)
            share -= not follows
            complete = self._hand_over(worker, graph, chunk, cost[0])
            chunks.append(chunk)
            if graph.run_ahead:
                for successor in complete:
                    queues.on_ready(successor, chunk)
                    heapq.heappush(followers, queues.key_of(successor))
        for queue, key in passed:
            heapq.heappush(queue, key)
        if followers:
            queues.followers[worker.id] = followers
        return chunks

    def _can_follow(self, graph: Graph, worker: Worker, chunk: int) -> bool:
        """Return whether a worker would have a chunk's inputs by the time it reaches the chunk."""
        if graph.state[chunk] != UNSCHEDULED or graph.client.is_needed[chunk]:
            return False
        if self.to_run_alone and (graph.id, chunk) in self.to_run_alone:
            return False
        state, id, dispatched = graph.state, graph.id, worker.dispatched
        return all(state[source] == FINISHED or (id, source) in dispatched for source in graph.plan.inputs[chunk])

    # -- dispatch to the user's process -----------------------------------------------------------------------

    def _dispatch_to_clients(self) -> None:
        for graph in self._graphs.values():
            if graph.queues.client:
                self._dispatch_to_client(graph)

    def _dispatch_to_client(self, graph: Graph) -> None:
        """Keep the threads of the user's process busy within the memory limit."""
        parameters, memory = self._parameters, self.admission.memory
        client, queue = graph.client, graph.queues.client
        threads = graph.plan.worker_limit or parameters.num_workers
        most = threads * (1 + graph.plan.lends)
        if client.mean_s is not None:
            # Small chunks go in batches, or threads would mostly wait for them.
            window = threads * parameters.window_s / max(client.mean_s, 1e-6)
            most = max(most, min(int(window), parameters.batch_limit))
        chunks = []
        while queue and client.count < most:
            chunk = graph.queues.chunk_of(queue[0])
            if graph.is_next(chunk):
                taken_bytes = self._bytes_in_client(graph, chunk) if memory.is_limited else 0
                if client.count and taken_bytes and not memory.admits(self._client_bytes + taken_bytes):
                    if missing := memory.missing_bytes(self._client_bytes + taken_bytes):
                        self.admission.spill(missing, set(graph.objects_of(graph.inputs(chunk))))
                    break
                if graph.queues.shared_offers:
                    self._withdraw_offer(graph, chunk, CLIENT)
                graph.dispatch(chunk)
                client.add(chunk, taken_bytes)
                self._client_bytes += taken_bytes
                self.client_chunks.add((graph.id, chunk))
                chunks.append(chunk)
            heapq.heappop(queue)
        if chunks:
            self._emit(Run(CLIENT, graph.id, chunks, is_alone=graph.is_alone))

    def _bytes_in_client(self, graph: Graph, chunk: int) -> int:
        """Return the bytes that a chunk takes in the user's process, copies of stored inputs included."""
        taken_bytes = graph.client.bytes.get(chunk)
        if taken_bytes is None:
            stored = [found.size_bytes for found in graph.objects_of(graph.inputs(chunk)) if not found.is_copy]
            taken_bytes = graph.client.bytes[chunk] = graph.taken_bytes(chunk) + sum(stored)
        return taken_bytes

    # -- chunks that run alone --------------------------------------------------------------------------------

    def _next_alone(self) -> tuple[Graph, int] | None:
        """Return the first chunk that has to run alone and is runnable or running."""
        for id, chunk in list(self.to_run_alone):
            graph = self._graphs.get(id)
            if graph is None or graph.stopping or graph.state[chunk] not in (UNSCHEDULED, READY, RUNNING):
                del self.to_run_alone[id, chunk]
            elif graph.state[chunk] == RUNNING or graph.is_next(chunk):
                return graph, chunk
        return None

    def _dispatch_alone(self, graph: Graph, chunk: int) -> None:
        """Dispatch a chunk once no worker has another and all that can be spilled is on disk."""
        memory, worker = self.admission.memory, self.workforce.first_for(graph.plan)
        self.admission.blocked = None
        self._dispatch_to_clients()
        if self.workforce.busy_count:
            return
        self.admission.spill(memory.stored_bytes, set(graph.objects_of(graph.inputs(chunk))))
        if memory.spilling_bytes or worker is None or not self.quotas.are_renewed(is_strict=True):
            return
        room_bytes = max(memory.hard_limit_bytes - memory.stored_bytes, 0)
        self._hand_out(worker, graph, chunk, min(graph.required_bytes(chunk), room_bytes))

    def _make_room_for(self, blocked: Blocked) -> Refuse | None:
        """Spill objects for the blocked chunk or reservation; if that cannot help, run it alone or refuse it."""
        memory = self.admission.memory
        self.admission.spill_for(*blocked)
        if memory.spilling_bytes or self.admission.reservations:
            return None
        if any(graph.dispatched_count or graph.results_pending for graph in self._graphs.values()):
            return None
        limit_bytes = memory.hard_limit_bytes - memory.stored_bytes
        if blocked.graph is not None:
            return self._run_alone(blocked.graph, blocked.id, blocked.required_bytes, limit_bytes)
        self.admission.settle(blocked, limit_bytes)
        return None

    def _run_alone(self, graph: Graph, chunk: int, required_bytes: int, limit_bytes: int) -> Refuse | None:
        worker = self.workforce.first_for(graph.plan)
        if worker is None:
            return None
        if self._parameters.quota_slack_bytes is not None and not self.quotas.are_renewed(is_strict=False):
            return None
        self.admission.blocked = None
        if required_bytes > limit_bytes and self._move_to_client(graph, chunk, required_bytes, limit_bytes):
            return None
        estimates = graph.estimates
        result_bytes, result_limit = estimates.expected_bytes(chunk), self._parameters.result_limit
        # Neither unaccounted allocations nor guesses are certain needs.
        least_bytes = estimates.required_bytes(chunk) - estimates.private_bytes(chunk) + graph.disk_bytes(chunk)
        refusal = None
        if result_limit is not None and result_bytes > result_limit:
            refusal = Refuse(graph.id, chunk, result_bytes, result_limit, is_result=True)
        elif least_bytes > limit_bytes and self.admission.is_certain(graph, chunk, limit_bytes):
            refusal = Refuse(graph.id, chunk, least_bytes, limit_bytes)
        if refusal is None:
            self._hand_out(worker, graph, chunk, min(required_bytes, limit_bytes))
        else:
            graph.queues.withdraw({chunk})
        return refusal

    def _hand_out(self, worker: Worker, graph: Graph, chunk: int, required_bytes: int) -> None:
        """Give a worker a single chunk out of turn."""
        graph.queues.withdraw({chunk})
        self.admission.reserve(graph, chunk, required_bytes, worker.id)
        self._hand_over(worker, graph, chunk, self._parameters.window_s)
        self.workforce.place(worker)
        self._emit(Run(worker.id, graph.id, [chunk], graph.restores(worker.id, [chunk])))

    def _move_to_client(self, graph: Graph, chunk: int, required_bytes: int, limit_bytes: int) -> bool:
        """Move a chunk to the user's process if only copies of that process's values lack room; return whether."""
        # Other readers of a value that is too large to copy move there as well.
        copies = {found for found in graph.objects_of(graph.inputs(chunk)) if found.is_copy}
        if required_bytes - limit_bytes > sum([found.size_bytes for found in copies]):
            return False
        chunks = {chunk}
        for _, source in [found.id for found in copies if found.size_bytes > limit_bytes]:
            chunks.update(
                [other for other in graph.successors[source] if graph.state[other] in (UNSCHEDULED, READY)]
            )
        graph.move_to_client(chunks)
        self._dispatch_to_client(graph)
        return True

    # -- invariants -------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold."""
        self.workforce.validate()
        self.admission.objects.validate()
        workers = self.workforce.by_id.values()
        for worker in workers:
            for id, chunk in worker.dispatched:
                graph = self._graphs[id]
                assert graph.holders[graph.plan.operand_of[chunk]][chunk] == worker.id, (id, chunk)
        assert all(self._graphs[id].is_dispatched(chunk) for id, chunk in self.client_chunks)
        in_client = Counter(id for id, _ in self.client_chunks)
        for graph in self._graphs.values():
            assert graph.client.count == in_client[graph.id]
            assert all(graph.state[chunk] == READY for chunk in graph.queues.shared_offers), "not withdrawn"
            waiting = any(graph.is_next(graph.queues.chunk_of(key)) for key in graph.queues.client)
            assert graph.client.count or not waiting, "the user's process could run something"
        assert self._client_bytes == sum(self._graphs[id].client.bytes[chunk] for id, chunk in self.client_chunks)
        free = dict(self._parameters.resources)
        for worker in workers:
            for id, chunk in worker.dispatched:
                for name, amount in self._graphs[id].plan.resources.get(chunk, ()):
                    free[name] -= amount
        assert all(
            abs(free[name] - amount) < 1e-6 and amount > -1e-6 for name, amount in self.free_resources.items()
        )
        handed = sum(len(worker.dispatched) for worker in workers)
        assert handed + len(self.client_chunks) == sum(graph.dispatched_count for graph in self._graphs.values())
