"""The optional scheduler plugin: exact placement and priorities of subtasks.

Without it Dask's scheduler treats the client's plan as a preference, and gives subtasks of a lost host to the
least busy worker, even one that is not an agent.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
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
    from distributed.scheduler import TaskState

logger = logging.getLogger(__name__)

#: States of agents that take no work.
LEAVING = frozenset({Status.closing_gracefully, Status.closing, Status.closed, Status.failed, Status.paused})


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
    """The memory of an agent as Dask's pages show it.

    Dask's scheduler fails tasks that read more than its worker's memory. An agent reads in place, and from disk.
    """

    def __lt__(self, other: object) -> bool:
        """Return False, for any size: Python calls this for ``>`` with a plain number on the left."""
        return False


class Placement(SchedulerPlugin):  # type: ignore[misc]
    """Places subtasks on their planned hosts, in their planned order.

    A subtask starts on its planned host, unless that is gone, or the real sizes of its inputs, the host's memory
    or its queue make another host better. When agents come and go, the assigner divides the remaining subtasks
    without inputs; any other goes to an agent that has its inputs. Idle agents may steal queued subtasks, as
    Dask's scheduler decides.
    """

    name = "dask-mars-placement"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._plans: dict[Any, SubtaskAnnotation] = {}
        #: Addresses of all agents. Queued subtasks have this very set as worker restrictions, so that it includes
        #: later agents.
        self._agents: set[str] = set()
        #: By computation, the agents at the last division, and the divided subtasks.
        self._assigned: dict[str, tuple[frozenset[str], dict[Any, str]]] = {}
        #: Number of subtasks by computation.
        self._counts: defaultdict[str, int] = defaultdict(int)
        for address in scheduler.workers:
            self.add_worker(scheduler, address)

    # -- what Dask calls --------------------------------------------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Add a worker to the agents, if it is one, and give it a share of the waiting subtasks."""
        agent = scheduler.workers[worker]
        if MARK not in agent.extra:
            return
        self._agents.add(worker)
        if MEMORY_LIMIT in agent.metrics:
            limit = AgentMemory(agent.metrics[MEMORY_LIMIT])
            scheduler.total_memory += limit - agent.memory_limit
            agent.memory_limit = limit
        for task, plan in self._unbound():
            if task.state == "processing":
                if self._assignment(plan.computation).get(task.key) == worker:
                    self._offer(task, worker)
            elif task.state in ("waiting", "no-worker") and not self._is_planned(task):
                self._place(task, plan)
        self._resume()

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Place the subtasks of a lost agent anew."""
        if worker not in self._agents:
            return
        self._agents.discard(worker)
        for task, plan in self._unbound():
            if task.worker_restrictions == {worker}:
                self._place(task, plan)
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
            self._counts[plan.computation] += 1
            task.priority = plan.priority[0], task.priority[1], plan.priority[1]
            if plan.bound:
                continue
            task.loose_restrictions = False
            if not self._is_planned(task):
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
        if finish == "forgotten":
            del self._plans[key]
            self._counts[plan.computation] -= 1
            if not self._counts[plan.computation]:
                del self._counts[plan.computation]
                self._assigned.pop(plan.computation, None)
        elif not plan.bound:
            task = self._scheduler.tasks[key]
            if finish == "processing":
                task.worker_restrictions = self._agents
            elif finish == "waiting" and not self._is_planned(task):
                self._place(task, plan)
            elif finish == "no-worker":
                self._place(task, plan)
                # Not within Dask's own transitions.
                self._scheduler.loop.add_callback(self._resume)

    # -- places -----------------------------------------------------------------------------------------------

    def _unbound(self) -> list[tuple[TaskState, SubtaskAnnotation]]:
        """Return the subtasks that this plugin places."""
        tasks = self._scheduler.tasks
        return [(tasks[key], plan) for key, plan in self._plans.items() if not plan.bound and key in tasks]

    def _there(self) -> list[str]:
        """Return the agents that take work."""
        # A lost agent leaves the scheduler's list before `remove_worker` is called.
        workers = self._scheduler.workers
        return [
            address for address in self._agents if address in workers and workers[address].status not in LEAVING
        ]

    def _is_planned(self, task: TaskState) -> bool:
        """Return whether a subtask has its planned host, and that host takes work."""
        planned = task.worker_restrictions
        return planned is not self._agents and bool(planned) and planned <= set(self._there())

    def _place(self, task: TaskState, plan: SubtaskAnnotation) -> None:
        """Place a subtask whose planned host is gone, or that is computed again."""
        there = self._there()
        workers = self._scheduler.workers
        needed = task.resource_restrictions or {}
        if needed and not any(has_resources(workers[address].resources, needed.items()) for address in there):
            # The restriction is loose: other hosts may run it.
            task.resource_restrictions = {}
        if not there:
            # Wait for an agent.
            return
        if task.dependencies:
            task.worker_restrictions = self._agents
            return
        task.worker_restrictions = {self._assignment(plan.computation, task.key).get(task.key, there[0])}

    def _is_placed_by_us(self, task: TaskState) -> bool:
        plan = self._plans.get(task.key)
        return plan is not None and not plan.bound and self._is_planned(task)

    def _follow_inputs(self, task: TaskState) -> None:
        """Move a subtask whose inputs are all computed from its planned host to a better one."""
        (planned,) = task.worker_restrictions
        needed = (task.resource_restrictions or {}).items()
        workers = self._scheduler.workers
        held: defaultdict[str, int] = defaultdict(int)
        total = 0
        for source in task.dependencies:
            size_bytes = source.get_nbytes()
            total += size_bytes
            for worker in source.who_has:
                held[worker.address] += size_bytes
        hosts = {}
        for address in self._there():
            worker = workers[address]
            if not has_resources(worker.resources, needed):
                continue
            # Dask's memory limit of an agent includes its disk.
            limit = worker.metrics.get(STORE_LIMIT)
            free = None if limit is None else max(limit - worker.metrics[STORED], 0)
            hosts[address] = HostState(held[address], worker.occupancy / max(worker.nthreads, 1), free)
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
            task.worker_restrictions = {chosen}

    def _assignment(self, computation: str, key: Any = None) -> dict[Any, str]:
        """Return the assigner's hosts for a computation's remaining subtasks without inputs.

        The assigner runs again when the agents change, or for an unassigned subtask.
        """
        there = frozenset(self._there())
        agents, assigned = self._assigned.get(computation, (None, {}))
        if agents != there or (key is not None and key not in assigned):
            assigned = self._assign(computation, sorted(there)) if there else {}
            self._assigned[computation] = there, assigned
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
        members.sort(key=lambda task: task.priority)
        keys = {task.key for task in members}
        waiting = {task.key: sum(source.key in keys for source in task.dependencies) for task in members}
        queue = deque(task for task in members if not waiting[task.key])
        found = []
        while queue:
            task = queue.popleft()
            found.append(task)
            for follower in sorted(task.dependents, key=lambda task: task.priority):
                if follower.key in waiting:
                    waiting[follower.key] -= 1
                    if not waiting[follower.key]:
                        queue.append(follower)
        return found

    def _resume(self) -> None:
        """Start subtasks that Dask found no worker for; Dask retries only when a worker joins."""
        scheduler = self._scheduler
        found = [
            task.key for task in scheduler.unrunnable if task.key in self._plans and scheduler.valid_workers(task)
        ]
        if found:
            scheduler.transitions(dict.fromkeys(found, "processing"), stimulus_id=f"dask-mars-resume-{time()}")

    def _offer(self, task: TaskState, newcomer: str) -> None:
        """Try to move a subtask that has not started to a new agent: Dask's stealing asks the other one for it."""
        stealing = self._scheduler.extensions.get("stealing")
        present = task.processing_on
        if stealing is not None and not task.dependencies and present is not None:
            stealing.move_task_request(task, present, self._scheduler.workers[newcomer])


def has_resources(resources: Mapping[str, float], needed: Iterable[tuple[str, float]]) -> bool:
    """Return whether there is enough of each needed resource."""
    return all(resources.get(name, 0) >= amount for name, amount in needed)


def install(scheduler: Scheduler) -> None:
    """Add the plugin to a scheduler, unless it is there already."""
    if Placement.name not in scheduler.plugins:
        scheduler.add_plugin(Placement(scheduler), name=Placement.name)
