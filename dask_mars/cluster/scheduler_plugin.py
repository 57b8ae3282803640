"""The optional scheduler plugin: exact placement and priorities of subtasks.

Without it Dask's scheduler treats the client's plan as a preference, and gives subtasks of a lost host to the
least busy worker, even one that is not an agent.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from heapq import nlargest
from itertools import chain, islice
from operator import attrgetter, itemgetter
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed import SchedulerPlugin, Status

from dask_mars.cluster.marks import MARK
from dask_mars.cluster.metrics import MEMORY_LIMIT, STORE_LIMIT, STORED
from dask_mars.cluster.partition.placement import HostState, choose_host
from dask_mars.scheduler.assigner import GraphProgress, assign
from dask_mars.scheduler.events import GraphPlan

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState

logger = logging.getLogger(__name__)

#: States of agents that take no work.
LEAVING = frozenset({Status.closing_gracefully, Status.closing, Status.closed, Status.failed, Status.paused})

#: Number of holders of inputs, and of idle agents, that are compared with a subtask's planned host.
_COMPARED = 4
#: Number of holders of an input above which these are not counted one by one.
_COMMON = 8


class SubtaskAnnotation(NamedTuple):
    """The client's annotation of a subtask."""

    computation: str
    subtask: int
    #: Number of chunks; 0 for a task that takes its result apart.
    chunks: int
    #: The user's priority, negated, and the place in the graph's order: smaller comes first.
    priority: tuple[float, float]
    #: Whether the client has restricted its hosts, perhaps to all of them.
    bound: bool


class AgentMemory(int):
    """The memory of an agent as Dask's pages show it."""

    # Dask's scheduler fails tasks that read more than its worker's memory. An agent reads in place, and from
    # disk.

    def __lt__(self, other: object) -> bool:
        """Return False, for any size: Python calls this for ``>`` with a plain number on the left."""
        return False


class Placement(SchedulerPlugin):  # type: ignore[misc]
    """Places subtasks on their planned hosts, in their planned order.

    A subtask starts on its planned host, unless that is gone, or the real sizes of its inputs, the host's memory
    or its queue make another host better: one that has inputs, or an idle one. When an agent leaves, the assigner
    divides its subtasks without inputs; any other goes to an agent that has its inputs. One that comes takes a
    share of the queues. Idle agents may steal queued subtasks, as Dask's scheduler decides.

    No step for a subtask is linear in the number of agents, and none for an agent in the number of subtasks.
    """

    name = "dask-mars-placement"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._plans: dict[Any, SubtaskAnnotation] = {}
        #: Addresses of all agents. Queued subtasks have this very set as worker restrictions, so that it includes
        #: later agents.
        self._agents: set[str] = set()
        #: The agent that each placed subtask is restricted to, and the reverse; "" where there was no agent.
        self._places: dict[Any, str] = {}
        self._placed_at: defaultdict[str, set[Any]] = defaultdict(set)
        #: Number of changes of the agents.
        self._changes = 0
        #: By computation, the number of changes at its last division, and the divided subtasks.
        self._assigned: dict[str, tuple[int, dict[Any, str]]] = {}
        #: Durations, by Dask's prefix of keys, that are guesses until a subtask has ended.
        self._guesses: dict[str, float] = {}
        for address in scheduler.workers:
            self.add_worker(scheduler, address)

    # -- what Dask calls --------------------------------------------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Add a worker to the agents, if it is one, and give it a share of the waiting subtasks."""
        agent = scheduler.workers[worker]
        if MARK not in agent.extra:
            return
        self._agents.add(worker)
        self._changes += 1
        if MEMORY_LIMIT in agent.metrics:
            limit = AgentMemory(agent.metrics[MEMORY_LIMIT])
            scheduler.total_memory += limit - agent.memory_limit
            agent.memory_limit = limit
        self._place_again("")
        self._share_queues_with(agent)
        self._resume()

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Place the subtasks of a lost agent anew."""
        if worker not in self._agents:
            return
        self._agents.discard(worker)
        self._changes += 1
        self._place_again(worker)
        self._resume()

    def update_graph(
        self, scheduler: Scheduler, *, annotations: Mapping[str, Mapping[Any, Any]], **kwargs: Any
    ) -> None:
        """Add new subtasks, before Dask places them."""
        for key, facts in annotations.get(MARK, {}).items():
            # A client of another version may send other facts.
            if not isinstance(facts, Mapping) or not facts.keys() >= set(SubtaskAnnotation._fields):
                continue
            task = scheduler.tasks[key]
            plan = self._plans[key] = SubtaskAnnotation(*[facts[name] for name in SubtaskAnnotation._fields])
            task.priority = plan.priority[0], task.priority[1], plan.priority[1]
            if not task.dependencies:
                self._guess_duration(task, plan.chunks)
            if plan.bound:
                continue
            task.loose_restrictions = False
            if self._is_planned(task):
                self._restrict(task, *task.worker_restrictions)
            else:
                self._place(task, plan)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Allow stealing of queued subtasks, and place subtasks that are ready now."""
        if finish == "memory" and self._plans:
            # Dask places tasks that waited only for this one right after this call.
            for task in self._scheduler.tasks[key].dependents:
                if not task.waiting_on and task.state == "waiting" and self._is_placed_by_us(task):
                    self._follow_inputs(task)
        plan = self._plans.get(key)
        if plan is None:
            return
        if finish == "memory" and self._guesses:
            prefix = self._scheduler.tasks[key].prefix
            if (guess_s := self._guesses.pop(prefix.name, None)) is not None:
                # Dask has taken the mean of both.
                prefix.duration_average = max(2 * prefix.duration_average - guess_s, 0.0)
        if finish == "forgotten":
            del self._plans[key]
            self._drop(key)
            if not self._plans:
                self._assigned.clear()
        elif not plan.bound:
            task = self._scheduler.tasks[key]
            if finish == "processing":
                self._release(task)
            elif finish == "waiting" and not self._is_planned(task):
                self._place(task, plan)
            elif finish == "no-worker":
                self._place(task, plan)
                # Not within Dask's own transitions.
                self._scheduler.loop.add_callback(self._resume)

    def _guess_duration(self, task: TaskState, chunks: int) -> None:
        """Estimate an unknown duration as that of as many tasks of Dask's, by which an adaptive cluster grows."""
        # Other subtasks read data. A guess for these would outweigh the time to fetch it.
        prefix = task.prefix
        if prefix.duration_average < 0 or prefix.name in self._guesses:
            duration_s = max(chunks * self._scheduler.UNKNOWN_TASK_DURATION, self._guesses.get(prefix.name, 0.0))
            prefix.duration_average = self._guesses[prefix.name] = duration_s

    # -- places -----------------------------------------------------------------------------------------------

    def _restrict(self, task: TaskState, address: str) -> None:
        """Restrict a subtask to an agent."""
        self._record(task.key, address)
        task.worker_restrictions = {address}

    def _record(self, key: Any, address: str) -> None:
        self._drop(key)
        self._places[key] = address
        self._placed_at[address].add(key)

    def _release(self, task: TaskState) -> None:
        """Allow all agents, those that come later too, to run a subtask."""
        self._drop(task.key)
        task.worker_restrictions = self._agents

    def _drop(self, key: Any) -> None:
        address = self._places.pop(key, None)
        if address is not None:
            members = self._placed_at[address]
            members.discard(key)
            if not members:
                del self._placed_at[address]

    def _place_again(self, address: str) -> None:
        """Place the subtasks that are restricted to a lost agent; under "", those that wait for the first one."""
        tasks = self._scheduler.tasks
        for key in list(self._placed_at.get(address, ())):
            if key in tasks and not self._is_planned(tasks[key]):
                self._place(tasks[key], self._plans[key])

    def _takes_work(self, address: str) -> bool:
        """Return whether an agent is there and takes work."""
        # A lost agent leaves the scheduler's list before `remove_worker` is called.
        worker = self._scheduler.workers.get(address)
        return address in self._agents and worker is not None and worker.status not in LEAVING

    def _there(self) -> Iterator[str]:
        """Yield the agents that take work."""
        return filter(self._takes_work, self._agents)

    def _is_planned(self, task: TaskState) -> bool:
        """Return whether a subtask has its planned host, and that host takes work."""
        planned = task.worker_restrictions
        return planned is not self._agents and bool(planned) and all(map(self._takes_work, planned))

    def _place(self, task: TaskState, plan: SubtaskAnnotation) -> None:
        """Place a subtask whose planned host is gone, or that is computed again."""
        workers = self._scheduler.workers
        needed = (task.resource_restrictions or {}).items()
        if needed and not any(has_resources(workers[address].resources, needed) for address in self._there()):
            # The restriction is loose: other hosts may run it.
            task.resource_restrictions = {}
        first = next(self._there(), None)
        if first is None:
            # Wait for an agent.
            self._record(task.key, "")
        elif task.dependencies:
            self._release(task)
        else:
            self._restrict(task, self._assignment(plan.computation, task.key).get(task.key, first))

    def _is_placed_by_us(self, task: TaskState) -> bool:
        plan = self._plans.get(task.key)
        return plan is not None and not plan.bound and self._is_planned(task)

    def _follow_inputs(self, task: TaskState) -> None:
        """Move a subtask whose inputs are all computed from its planned host to a better one."""
        (planned,) = task.worker_restrictions
        needed = (task.resource_restrictions or {}).items()
        workers = self._scheduler.workers
        held: defaultdict[str, int] = defaultdict(int)
        #: Inputs that many hosts have.
        common: list[tuple[set[Any], int]] = []
        total = 0
        for source in task.dependencies:
            size_bytes = source.get_nbytes()
            total += size_bytes
            if len(source.who_has) > _COMMON:
                common.append((source.who_has, size_bytes))
                continue
            for worker in source.who_has:
                held[worker.address] += size_bytes
        near = [planned, *nlargest(_COMPARED, held, key=held.__getitem__)]
        if common and len(held) < _COMPARED:
            holders, _ = max(common, key=itemgetter(1))
            near += [worker.address for worker in islice(holders, _COMPARED)]
        hosts = {}
        for address in chain(near, islice(filter(self._takes_work, self._scheduler.idle), _COMPARED)):
            if address in hosts or not self._takes_work(address):
                continue
            worker = workers[address]
            if not has_resources(worker.resources, needed):
                continue
            # Dask's memory limit of an agent includes its disk.
            limit = worker.metrics.get(STORE_LIMIT)
            free = None if limit is None else max(limit - worker.metrics[STORED], 0)
            held_bytes = held.get(address, 0) + sum([size for holders, size in common if worker in holders])
            hosts[address] = HostState(held_bytes, worker.occupancy / max(worker.nthreads, 1), free)
        if planned not in hosts or len(hosts) < 2:
            return
        chosen = choose_host(planned, hosts, total, self._scheduler.bandwidth)
        if chosen != planned:
            logger.info(
                "%s goes to %s, which has %d of the %d bytes that it reads, and not to %s, which has %d",
                task.key,
                chosen,
                hosts[chosen].held_bytes,
                total,
                planned,
                hosts[planned].held_bytes,
            )
            self._restrict(task, chosen)

    def _assignment(self, computation: str, key: Any) -> dict[Any, str]:
        """Return the assigner's hosts for a computation's remaining subtasks without inputs."""
        # The assigner runs again when the agents change, or for an unassigned subtask.
        changes, assigned = self._assigned.get(computation, (-1, {}))
        if changes != self._changes or not self._takes_work(assigned.get(key, "")):
            there = sorted(self._there())
            assigned = self._assign(computation, there) if there else {}
            # Divisions before the last change are of no use.
            self._assigned = {name: known for name, known in self._assigned.items() if known[0] == self._changes}
            self._assigned[computation] = self._changes, assigned
        return assigned

    def _assign(self, computation: str, agents: list[str]) -> dict[Any, str]:
        """Divide a computation's remaining subtasks among agents."""
        workers = self._scheduler.workers
        agent_ids = {address: agent_id for agent_id, address in enumerate(agents)}
        tasks = self._in_order(computation)
        places = {task.key: index for index, task in enumerate(tasks)}
        inputs = [tuple([places[at.key] for at in task.dependencies if at.key in places]) for task in tasks]
        finished, dispatched, replicas = [], {}, {}
        begun: defaultdict[str, int] = defaultdict(int)
        for index, task in enumerate(tasks):
            if task.state == "memory":
                finished.append(index)
                held = {agent_ids[at.address]: task.get_nbytes() for at in task.who_has if at.address in agent_ids}
                replicas[index] = held
            elif task.state == "processing" and task.processing_on.address in agent_ids:
                address = task.processing_on.address
                # The first of its queue have started, or are about to.
                if task.dependencies or begun[address] < workers[address].nthreads:
                    dispatched[index] = agent_ids[address]
                begun[address] += 1
        bound = frozenset(index for index, task in enumerate(tasks) if self._plans[task.key].bound)
        plan = GraphPlan(inputs=inputs, outputs=[], operand_of=[0] * len(tasks), in_client=bound)
        slots = {agent_id: max(workers[address].nthreads, 1) for agent_id, address in enumerate(agents)}
        found = assign(plan, slots, progress=GraphProgress(finished, dispatched, replicas))
        return {tasks[index].key: agents[host] for index, host in found.items()}

    def _in_order(self, computation: str) -> list[TaskState]:
        """Return the subtasks of a computation by priority, each after its inputs."""
        tasks = self._scheduler.tasks
        members = [
            tasks[key] for key, plan in self._plans.items() if plan.computation == computation and key in tasks
        ]
        members.sort(key=attrgetter("priority"))
        among = set(members)
        inputs = {task: [source for source in task.dependencies if source in among] for task in members}
        return list(TopologicalSorter(inputs).static_order())

    def _resume(self) -> None:
        """Start subtasks that Dask found no worker for; Dask retries only when a worker joins."""
        scheduler = self._scheduler
        found = [
            task.key for task in scheduler.unrunnable if task.key in self._plans and scheduler.valid_workers(task)
        ]
        if found:
            scheduler.transitions(dict.fromkeys(found, "processing"), stimulus_id=f"dask-mars-resume-{time()}")

    def _share_queues_with(self, newcomer: WorkerState) -> None:
        """Ask the agents with the longest queues for a newcomer's share of what has not started."""
        stealing = self._scheduler.extensions.get("stealing")
        if stealing is None:
            return
        workers = self._scheduler.workers
        others = [workers[address] for address in self._there() if address != newcomer.address]
        # What other newcomers have asked for is in the queue until its agent answers; the first have started.
        asked = stealing.in_flight_tasks
        lengths = [len(agent.processing) + asked.get(agent, 0) - agent.nthreads for agent in others]
        slots = sum([agent.nthreads for agent in others]) + newcomer.nthreads
        each = sum([length for length in lengths if length > 0]) // max(slots, 1)
        left = each * newcomer.nthreads
        for length, agent in nlargest(left, zip(lengths, others, strict=True), key=itemgetter(0)):
            count = min(left, max(length - each * agent.nthreads, 1))
            for task in self._last_of_queue(agent, count):
                stealing.move_task_request(task, agent, newcomer)
                left -= 1
            if left <= 0:
                break

    def _last_of_queue(self, agent: WorkerState, count: int) -> list[TaskState]:
        """Return queued subtasks without inputs that this plugin places, the last ones of an agent."""
        in_flight = self._scheduler.extensions["stealing"].in_flight
        found = [
            task
            for task in agent.processing
            if not task.dependencies
            and task not in in_flight
            and (plan := self._plans.get(task.key)) is not None
            and not plan.bound
        ]
        return nlargest(count, found, key=attrgetter("priority"))


def has_resources(resources: Mapping[str, float], needed: Iterable[tuple[str, float]]) -> bool:
    """Return whether there is enough of each needed resource."""
    return all(resources.get(name, 0) >= amount for name, amount in needed)


def install(scheduler: Scheduler) -> None:
    """Add the plugin to a scheduler, unless it is there already."""
    if Placement.name not in scheduler.plugins:
        scheduler.add_plugin(Placement(scheduler), name=Placement.name)
