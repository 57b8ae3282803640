"""The optional scheduler plugin: exact placement and priorities of subtasks.

Without it Dask's scheduler treats what the client has planned as a wish, and gives subtasks of a host that is gone
to whoever has least to do, workers included that are none of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed import SchedulerPlugin, Status
from distributed.comm import get_address_host

from dask_mars.cluster.marks import MARK
from dask_mars.cluster.partition.hashing import score

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState

#: States of agents that take no work.
LEAVING = frozenset({Status.closing_gracefully, Status.closing, Status.closed, Status.failed, Status.paused})
#: A host has at most so many times its share of a computation's subtasks that follow no data.
_CROWDED = 1.25


class SubtaskAnnotation(NamedTuple):
    """What the client says of a subtask, by way of its annotations.

    Attributes
    ----------
    computation : str
        Which it is a part of.
    subtask : int
        Its number in that.
    chunks : int
        Chunks that it computes; 0 for a task that takes its result apart.
    place : str
        What its host is found by, if it follows no data.
    priority : tuple of float
        That of the user, negative, and its place in the graph's order: smaller comes first.
    bound : bool
        The client has said where it may run, and be it anywhere.
    """

    computation: str
    subtask: int
    chunks: int
    place: str
    priority: tuple[float, float]
    bound: bool


class Placement(SchedulerPlugin):  # type: ignore[misc]
    """Sees to it that subtasks go where they are meant to go, and in which order.

    A subtask begins at the host that the client has planned, as long as that is there. If it is not, one that
    reads nothing goes where the hash of its place sends it, and any other to an agent that has its inputs. What
    waits in an agent's queue may be stolen by another agent that has nothing to do, as Dask's scheduler decides.

    Parameters
    ----------
    scheduler : Scheduler
        Whose plugin it is.
    """

    name = "dask-mars-placement"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._plans: dict[Any, SubtaskAnnotation] = {}
        #: Addresses of all agents. Subtasks in queues have this very set as that of their workers, which so comes
        #: to hold agents that join later.
        self._agents: set[str] = set()
        self._names: dict[str, str] = {}
        #: Subtasks without inputs, by computation and the address that they were sent to.
        self._sent: Counter[tuple[str, str]] = Counter()
        self._sent_to: dict[Any, str] = {}
        for address in scheduler.workers:
            self.add_worker(scheduler, address)

    # -- what Dask calls --------------------------------------------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Count a worker among the agents, if it is one, and give it a share of what has not begun."""
        if MARK not in scheduler.workers[worker].extra:
            return
        self._agents.add(worker)
        self._name_agents()
        for task, plan in self._unbound():
            if task.state == "processing":
                self._offer(task, plan, worker)
            elif task.state in ("waiting", "no-worker") and not self._is_planned(task):
                self._place(task, plan)
        self._resume()

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Find other places for what was to run on an agent that is gone."""
        if worker not in self._agents:
            return
        self._agents.discard(worker)
        self._name_agents()
        for task, plan in self._unbound():
            if task.worker_restrictions == {worker}:
                self._place(task, plan)
        self._resume()

    def update_graph(
        self, scheduler: Scheduler, *, annotations: Mapping[str, Mapping[Any, Any]], **kwargs: Any
    ) -> None:
        """Take note of new subtasks, before any of them is sent anywhere."""
        for key, facts in annotations.get(MARK, {}).items():
            # A client of another version may say something else.
            if not isinstance(facts, Mapping) or not facts.keys() >= set(SubtaskAnnotation._fields):
                continue
            task = scheduler.tasks[key]
            plan = self._plans[key] = SubtaskAnnotation(*[facts[name] for name in SubtaskAnnotation._fields])
            task.priority = plan.priority[0], task.priority[1], plan.priority[1]
            if plan.bound:
                continue
            task.loose_restrictions = False
            if self._is_planned(task):
                (address,) = task.worker_restrictions
                self._note(task, plan, address)
            else:
                self._place(task, plan)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Let agents steal what is in the queue of another, and find a place for what is to be computed again."""
        plan = self._plans.get(key)
        if plan is None:
            return
        if finish == "forgotten":
            del self._plans[key]
            self._forget(key, plan)
        elif not plan.bound:
            task = self._scheduler.tasks[key]
            if finish == "processing":
                task.worker_restrictions = self._agents
            elif finish == "waiting" and not self._is_planned(task):
                self._place(task, plan)
            elif finish == "no-worker":
                self._place(task, plan)
                # Not in the middle of Dask's own transitions.
                self._scheduler.loop.add_callback(self._resume)

    # -- places -----------------------------------------------------------------------------------------------

    def _name_agents(self) -> None:
        workers = self._scheduler.workers
        there = self._agents & workers.keys()
        self._names = names_in_hashes({address: workers[address].name for address in there})

    def _unbound(self) -> list[tuple[TaskState, SubtaskAnnotation]]:
        """Return the subtasks whose places are ours to find."""
        tasks = self._scheduler.tasks
        return [(tasks[key], plan) for key, plan in self._plans.items() if not plan.bound and key in tasks]

    def _there(self) -> list[str]:
        """Return the agents that take work."""
        # One that is gone has left the scheduler's list before anybody is told.
        workers = self._scheduler.workers
        return [
            address for address in self._agents if address in workers and workers[address].status not in LEAVING
        ]

    def _is_planned(self, task: TaskState) -> bool:
        """Say whether a subtask is to be computed for the first time, and by an agent that takes work."""
        planned = task.worker_restrictions
        return planned is not self._agents and bool(planned) and planned <= set(self._there())

    def _place(self, task: TaskState, plan: SubtaskAnnotation) -> None:
        """Find a place for a subtask whose planned host is gone, or that is to be computed again."""
        there = self._there()
        workers = self._scheduler.workers
        needed = task.resource_restrictions or {}
        if needed and not any(has_resources(workers[address].resources, needed.items()) for address in there):
            # The user has said that others will do.
            task.resource_restrictions = {}
        if not there:
            # Until somebody comes.
            return
        if task.dependencies:
            task.worker_restrictions = self._agents
            return
        address = self._owner(plan, there)
        task.worker_restrictions = {address}
        self._note(task, plan, address)

    def _resume(self) -> None:
        """Have Dask begin subtasks that it had found nobody for: it looks again only when a worker comes."""
        scheduler = self._scheduler
        found = [
            task.key for task in scheduler.unrunnable if task.key in self._plans and scheduler.valid_workers(task)
        ]
        if found:
            scheduler.transitions(dict.fromkeys(found, "processing"), stimulus_id=f"dask-mars-resume-{time()}")

    def _owner(self, plan: SubtaskAnnotation, there: Collection[str]) -> str:
        """Return the host that a subtask's place belongs to, among those that do not have enough already."""
        free = [address for address in there if not self._is_crowded(plan, address, there)]
        return max(free or there, key=lambda address: (self._score(plan, address), address))

    def _score(self, plan: SubtaskAnnotation, address: str) -> float:
        return score(plan.place, self._names[address], self._scheduler.workers[address].nthreads)

    def _is_crowded(self, plan: SubtaskAnnotation, address: str, there: Collection[str]) -> bool:
        workers = self._scheduler.workers
        slots = sum([workers[other].nthreads for other in there])
        count = sum([self._sent[plan.computation, other] for other in there]) + 1
        fair = _CROWDED * count * workers[address].nthreads / slots
        return bool(self._sent[plan.computation, address] >= fair)

    def _offer(self, task: TaskState, plan: SubtaskAnnotation, newcomer: str) -> None:
        """Move a subtask to an agent that has just come, if its place belongs to that and it has not begun."""
        stealing = self._scheduler.extensions.get("stealing")
        present = task.processing_on
        if stealing is None or task.dependencies or present is None or present.address not in self._names:
            return
        # Of all others it is known that they want it less.
        if self._score(plan, newcomer) <= self._score(plan, present.address):
            return
        if not self._is_crowded(plan, newcomer, self._names):
            # The agent that has it is asked, and keeps it if it has begun.
            stealing.move_task_request(task, present, self._scheduler.workers[newcomer])
            self._note(task, plan, newcomer)

    def _note(self, task: TaskState, plan: SubtaskAnnotation, address: str) -> None:
        """Count a subtask without inputs where it was sent to."""
        if not task.dependencies:
            self._forget(task.key, plan)
            self._sent_to[task.key] = address
            self._sent[plan.computation, address] += 1

    def _forget(self, key: Any, plan: SubtaskAnnotation) -> None:
        """Count a subtask no more."""
        address = self._sent_to.pop(key, None)
        if address is not None:
            self._sent[plan.computation, address] -= 1
            if not self._sent[plan.computation, address]:
                del self._sent[plan.computation, address]


def has_resources(resources: Mapping[str, float], needed: Iterable[tuple[str, float]]) -> bool:
    """Say whether there is so much of each resource that is needed."""
    return all(resources.get(name, 0) >= amount for name, amount in needed)


def names_in_hashes(agents: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands for agents in hashes: the same when one leaves and joins again, as far as that can be.

    Parameters
    ----------
    agents : mapping
        Address to the name that Dask knows a worker by.

    Returns
    -------
    dict
        By address: the name that the user has given, or the host; where several share that, the address.
    """
    names = {
        address: get_address_host(address) if name in (address, None) else str(name)
        for address, name in agents.items()
    }
    shared = Counter(names.values())
    return {address: name if shared[name] == 1 else address for address, name in names.items()}


def install(scheduler: Scheduler) -> None:
    """Add the plugin to a scheduler, unless it is there already."""
    if Placement.name not in scheduler.plugins:
        scheduler.add_plugin(Placement(scheduler), name=Placement.name)


__all__ = ["LEAVING", "Placement", "SubtaskAnnotation", "has_resources", "install", "names_in_hashes"]
