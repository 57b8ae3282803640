"""The scheduler's side, which nobody needs: exact places and priorities of subtasks, also when hosts come and go.

Without it Dask's scheduler treats what the client has planned as a wish, and gives subtasks of a host that is gone
to whoever has least to do, workers included that are none of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed import SchedulerPlugin
from distributed.comm import get_address_host

from dask_mars.scheduler.hashing import score

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState

#: How workers say that they are agents, and annotations that a task is ours.
MARK = "dask-mars"
#: How agents say which one they are: at the same address there may be another one later.
IDENTITY = "dask-mars-id"
#: A host has at most so many times its share of a computation's subtasks that follow no data.
_CROWDED = 1.25


class Plan(NamedTuple):
    """What the client says of a subtask, by way of its annotations.

    Attributes
    ----------
    computation : str
        Which it is a part of.
    subtask : int
        Its number in that.
    operands : int
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
    operands: int
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
        self._plans: dict[Any, Plan] = {}
        #: Addresses of all agents. Subtasks in queues have this very set as that of their workers, which so comes
        #: to hold agents that join later.
        self._agents: set[str] = set()
        self._names: dict[str, str] = {}
        #: Subtasks without inputs, by computation and the address that they were sent to.
        self._sent: Counter[tuple[str, str]] = Counter()
        self._sent_to: dict[Any, str] = {}
        for address in scheduler.workers:
            self.add_worker(scheduler, address)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Count a worker among the agents, if it is one, and give it a share of what has not begun."""
        if MARK not in scheduler.workers[worker].extra:
            return
        self._agents.add(worker)
        self._name_agents()
        for key, plan in list(self._plans.items()):
            task = scheduler.tasks.get(key)
            if task is None or plan.bound:
                continue
            if task.state == "processing":
                self._offer(task, plan, worker)
            elif task.state == "no-worker":
                self._place(task, plan)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Find other places for what was to run on an agent that is gone."""
        if worker not in self._agents:
            return
        self._agents.discard(worker)
        self._name_agents()
        for key, plan in list(self._plans.items()):
            task = scheduler.tasks.get(key)
            if task is not None and not plan.bound and task.worker_restrictions == {worker}:
                self._place(task, plan)

    def _name_agents(self) -> None:
        workers = self._scheduler.workers
        self._names = names_in_hashes(
            {address: workers[address].name for address in self._agents & workers.keys()}
        )

    def update_graph(
        self, scheduler: Scheduler, *, annotations: Mapping[str, Mapping[Any, Any]], **kwargs: Any
    ) -> None:
        """Take note of new subtasks, before any of them is sent anywhere."""
        for key, facts in annotations.get(MARK, {}).items():
            if not isinstance(facts, Mapping):
                continue
            task = scheduler.tasks[key]
            plan = self._plans[key] = Plan(*[facts[name] for name in Plan._fields])
            task.priority = plan.priority[0], task.priority[1], plan.priority[1]
            if plan.bound:
                continue
            task.loose_restrictions = False
            planned = task.worker_restrictions or set()
            if planned <= self._agents:
                self._note(task, plan, *planned)
            else:
                self._place(task, plan)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Let agents steal what is in the queue of another, and find a place for what is to be computed again."""
        plan = self._plans.get(key)
        if plan is None:
            return
        if finish == "forgotten":
            del self._plans[key]
            self._note(None, plan, self._sent_to.pop(key, None))
        elif not plan.bound:
            task = self._scheduler.tasks[key]
            if finish == "processing":
                task.worker_restrictions = self._agents
            elif finish == "waiting" and not self._is_planned(task):
                self._place(task, plan)

    def _is_planned(self, task: TaskState) -> bool:
        """Say whether a subtask is to be computed for the first time, and by whom that was planned."""
        planned = task.worker_restrictions
        return planned is not self._agents and bool(planned) and planned <= self._scheduler.workers.keys()

    def _place(self, task: TaskState, plan: Plan) -> None:
        """Find a place for a subtask whose planned host is gone, or that is to be computed again."""
        # An agent that is gone has left the scheduler's list before anybody is told.
        there = [address for address in self._agents if address in self._scheduler.workers]
        if task.dependencies or not there:
            task.worker_restrictions = self._agents or task.worker_restrictions
            return
        address = self._owner(plan, there)
        task.worker_restrictions = {address}
        self._note(task, plan, address)

    def _owner(self, plan: Plan, there: Collection[str]) -> str:
        """Return the host that a subtask's place belongs to, among those that do not have enough already."""
        workers = self._scheduler.workers
        slots = {address: workers[address].nthreads for address in there}
        count = sum([self._sent[plan.computation, address] for address in there]) + 1
        fair = _CROWDED * count / sum(slots.values())
        free = [address for address in there if self._sent[plan.computation, address] < fair * slots[address]]
        return max(
            free or there, key=lambda address: (score(plan.place, self._names[address], slots[address]), address)
        )

    def _note(self, task: TaskState | None, plan: Plan, address: str | None) -> None:
        """Count a subtask without inputs where it was sent to, or, given no task, no more."""
        if task is None:
            if address is not None:
                self._sent[plan.computation, address] -= 1
                if not self._sent[plan.computation, address]:
                    del self._sent[plan.computation, address]
            return
        if not task.dependencies:
            self._note(None, plan, self._sent_to.get(task.key))
            self._sent_to[task.key] = str(address)
            self._sent[plan.computation, str(address)] += 1

    def _offer(self, task: TaskState, plan: Plan, newcomer: str) -> None:
        """Move a subtask to an agent that has just come, if its place belongs to that and it has not begun."""
        stealing = self._scheduler.extensions.get("stealing")
        if stealing is None or task.dependencies or self._owner(plan, self._agents) != newcomer:
            return
        # The agent that has it is asked, and keeps it if it has begun.
        stealing.move_task_request(task, task.processing_on, self._scheduler.workers[newcomer])
        self._note(task, plan, newcomer)


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


__all__ = ["IDENTITY", "MARK", "Placement", "Plan", "install", "names_in_hashes"]
