"""The plugin of Dask's scheduler: subtasks go where they were meant to go, also when agents come and go."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from dask._task_spec import Task, TaskRef
from distributed import SchedulerPlugin, Status, Worker
from distributed.utils_test import async_poll_for, captured_logger, gen_cluster

from dask_mars.cluster.marks import MARK
from dask_mars.cluster.metrics import MEMORY_LIMIT
from dask_mars.cluster.partition.hashing import share_out
from dask_mars.cluster.partition.placement import choose_host
from dask_mars.cluster.planning import names_in_hashes
from dask_mars.cluster.scheduler_plugin import Placement, SubtaskAnnotation

PLUGIN = {"preload": ["dask_mars.scheduler"]}
#: Workers that say that they are agents; what runs on them does not need an engine.
AGENTS = {"startup_information": {MARK: lambda worker: "1"}}


#: Workers are in this process.
go = threading.Event()


@pytest.fixture(autouse=True)
def stop() -> Iterator[None]:
    """Have tasks wait until a test lets them go."""
    go.clear()
    yield
    go.set()


def wait(*_: Any) -> str:
    """Wait until the test says so."""
    go.wait(100)
    return "gone"


noted: list[int] = []


def take_note(number: int) -> None:
    noted.append(number)


def submit(
    client: Any,
    tasks: Sequence[Task],
    planned: Callable[[Any], str],
    order: Sequence[Any] = (),
    bound: bool = False,
    chunks: int = 1,
) -> dict[Any, Any]:
    """Submit tasks as subtasks of a computation; return futures of all of them."""
    keys = [task.key for task in tasks]
    annotations = {
        "workers": {key: [planned(key)] for key in keys}.__getitem__,
        "allow_other_workers": not bound,
        MARK: {
            key: SubtaskAnnotation(
                "computation", 0, chunks, (0.0, float((order or keys).index(key))), bound
            )._asdict()
            for key in keys
        }.__getitem__,
    }
    with dask.annotate(**annotations):
        futures = client.get({task.key: task for task in tasks}, keys, sync=False)
    return dict(zip(keys, futures, strict=True))


def waiting(count: int) -> list[Task]:
    return [Task(f"wait-{number}", wait) for number in range(count)]


def places(scheduler: Any, keys: Any) -> dict[Any, str]:
    tasks = [scheduler.tasks[key] for key in keys if key in scheduler.tasks]
    return {task.key: task.processing_on.address for task in tasks if task.processing_on}


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    scheduler_kwargs=PLUGIN,
    worker_kwargs=AGENTS,
    config={"distributed.scheduler.work-stealing": False},
)
async def test_subtasks_begin_where_and_when_they_were_planned(client, scheduler, a, b):
    noted.clear()
    blocker = client.submit(wait, workers=[a.address], key="blocker")
    await async_poll_for(lambda: a.state.executing_count == 1, timeout=10)
    tasks = [Task(f"note-{number}", take_note, number) for number in range(6)]
    order = [f"note-{number}" for number in (3, 1, 5, 0, 2, 4)]
    futures = submit(client, tasks, lambda key: a.address, order)
    await async_poll_for(lambda: len(places(scheduler, futures)) == 6, timeout=10)
    assert set(places(scheduler, futures).values()) == {a.address}
    go.set()
    await client.gather([blocker, *futures.values()])
    assert noted == [3, 1, 5, 0, 2, 4]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], scheduler_kwargs=PLUGIN, worker_kwargs=AGENTS)
async def test_an_adaptive_cluster_grows_as_for_single_chunks(client, scheduler, a):
    # 8 times 50 chunks of half a second, which Dask takes for unknown durations, are 200 seconds.
    futures = submit(client, waiting(8), lambda key: a.address, chunks=50)
    await async_poll_for(lambda: a.state.executing_count == 1, timeout=10)
    assert scheduler.adaptive_target(target_duration=50) == 4
    go.set()
    await client.gather(list(futures.values()))
    # The guess is gone.
    assert scheduler.task_prefixes["wait"].duration_average < 5


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3, scheduler_kwargs=PLUGIN, worker_kwargs=AGENTS)
async def test_what_an_agent_leaves_is_divided_by_the_assigner(client, scheduler, a, b, c):
    async with Worker(scheduler.address, nthreads=8, name="stock") as stock:
        tasks = waiting(12)
        # What follows from them was planned for the same agent.
        following = Task("after", wait, TaskRef("wait-0"), TaskRef("wait-1"))
        futures = submit(client, [*tasks, following], lambda key: a.address)
        await async_poll_for(lambda: len(places(scheduler, futures)) == 12, timeout=10)
        await a.close(executor_wait=False)
        await async_poll_for(lambda: len(places(scheduler, futures)) == 12, timeout=10)
        counts = Counter(places(scheduler, futures).values())
        assert set(counts) == {b.address, c.address}
        assert min(counts.values()) >= 3
        go.set()
        assert await client.gather(list(futures.values())) == ["gone"] * 13
        assert not stock.data
    for future in futures.values():
        future.release()
    await async_poll_for(lambda: not scheduler.tasks, timeout=10)
    plugin = scheduler.plugins[Placement.name]
    assert not any([plugin._plans, plugin._assigned, plugin._places, plugin._placed_at])


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    scheduler_kwargs=PLUGIN,
    worker_kwargs=AGENTS,
    # Dask's own balancing would do the same.
    config={"distributed.scheduler.work-stealing-interval": "1 hour"},
)
async def test_an_agent_that_joins_gets_its_share(client, scheduler, a):
    futures = submit(client, waiting(16), lambda key: a.address)
    await async_poll_for(lambda: a.state.executing_count == 1, timeout=10)
    async with Worker(scheduler.address, nthreads=1, **AGENTS) as b:
        await async_poll_for(lambda: Counter(places(scheduler, futures).values())[b.address] >= 4, timeout=10)
        go.set()
        assert await client.gather(list(futures.values())) == ["gone"] * 16


def two_stages() -> list[Task]:
    return [Task("first", wait), Task("second", wait, TaskRef("first"))]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, scheduler_kwargs=PLUGIN, worker_kwargs=AGENTS)
async def test_an_agent_that_is_about_to_leave_gets_nothing(client, scheduler, a, b):
    planned = {"first": b.address, "second": a.address}
    futures = submit(client, two_stages(), planned.__getitem__)
    await async_poll_for(lambda: b.state.executing_count == 1, timeout=10)
    await scheduler.retire_workers(workers=[a.address], close_workers=False, remove=False)
    go.set()
    assert await client.gather(list(futures.values())) == ["gone"] * 2
    assert "second" in b.data


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, scheduler_kwargs=PLUGIN, worker_kwargs=AGENTS)
async def test_what_was_planned_for_a_lost_agent_runs_where_its_inputs_are(client, scheduler, a, b):
    futures = submit(client, two_stages(), lambda key: b.address if key == "first" else a.address)
    await async_poll_for(lambda: b.state.executing_count == 1, timeout=10)
    await a.close(executor_wait=False)
    assert scheduler.tasks["second"].worker_restrictions == {b.address}
    go.set()
    assert await client.gather(list(futures.values())) == ["gone"] * 2


def make(size: int) -> bytes:
    return bytes(size)


def joined(sizes: Sequence[int]) -> list[Task]:
    """Return tasks whose results have the given sizes, and one that reads all of them."""
    made = [Task(f"made-{number}", make, size) for number, size in enumerate(sizes)]
    return [*made, Task("join", lambda *parts: sum(map(len, parts)), *[TaskRef(task.key) for task in made])]


def at(*workers: Any) -> Callable[[Any], str]:
    """Plan the first tasks for workers in turn, and the one that joins them for the last of these."""
    return lambda key: workers[-1 if key == "join" else int(key.split("-")[1])].address


THREE = {
    "client": True,
    "nthreads": [("127.0.0.1", 1)] * 3,
    "scheduler_kwargs": PLUGIN,
    "worker_kwargs": AGENTS,
    "config": {"distributed.scheduler.work-stealing": False},
}


@gen_cluster(**THREE)
async def test_a_subtask_goes_where_most_bytes_of_its_inputs_are(client, scheduler, a, b, c):
    with captured_logger("dask_mars.cluster.scheduler_plugin", level=logging.INFO) as log:
        futures = submit(client, joined([20_000_000, 100, 100]), at(a, b, c))
        assert await futures["join"] == 20_000_200
    assert "join" in a.data
    assert f"join goes to {a.address}, which has 200000" in log.getvalue()
    assert f"and not to {c.address}" in log.getvalue()


@gen_cluster(**THREE)
async def test_a_host_that_is_short_of_memory_gets_no_more(client, scheduler, a, b, c):
    scheduler.add_plugin(ShortOfMemory(scheduler, c.address))
    futures = submit(client, joined([1_000_000, 1_000_100, 100]), at(a, b, c))
    assert await futures["join"] == 2_000_200
    assert "join" in b.data


class ShortOfMemory(SchedulerPlugin):
    """Has an agent report that it has next to no memory left, whenever something happens."""

    def __init__(self, scheduler: Any, address: str) -> None:
        self.worker = scheduler.workers[address]

    def transition(self, *_: Any, **__: Any) -> None:
        self.worker.metrics |= {"mars_store_limit_bytes": 10**9, "mars_stored_bytes": 999_900_000}


@gen_cluster(**THREE)
async def test_the_user_has_the_last_word(client, scheduler, a, b, c):
    futures = submit(client, joined([20_000_000, 100, 100]), at(a, b, c), bound=True)
    assert await futures["join"] == 20_000_200
    assert "join" in c.data


@gen_cluster(**THREE)
async def test_neighbours_of_what_is_there_go_to_the_same_agent(client, scheduler, a, b, c):
    # Pairs are joined; of each pair an agent that stays has one half, and the other was planned for one that goes.
    pairs = [(Task(f"kept-{n}", wait), Task(f"lost-{n}", wait)) for n in range(2)]
    joins = [Task(f"join-{n}", wait, TaskRef(f"kept-{n}"), TaskRef(f"lost-{n}")) for n in range(2)]
    kept_by = {"kept-0": a, "kept-1": b}
    futures = submit(client, [*pairs[0], *pairs[1], *joins], lambda key: kept_by.get(key, c).address)
    await async_poll_for(lambda: len(places(scheduler, futures)) == 4, timeout=10)
    await c.close(executor_wait=False)
    expected = {"kept-0": a, "lost-0": a, "kept-1": b, "lost-1": b}
    await async_poll_for(
        lambda: places(scheduler, futures) == {key: agent.address for key, agent in expected.items()}, timeout=10
    )
    go.set()
    assert await client.gather(list(futures.values())) == ["gone"] * 6


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], scheduler_kwargs=PLUGIN, worker_kwargs=AGENTS)
async def test_agents_steal_from_each_other_and_others_do_not(client, scheduler, a):
    futures = submit(client, waiting(8), lambda key: a.address)
    async with Worker(scheduler.address, nthreads=4, name="stock"):
        await async_poll_for(lambda: len(places(scheduler, futures)) == 8, timeout=10)
        assert all(task.worker_restrictions == {a.address} for task in map(scheduler.tasks.get, futures))
        assert not any(task.loose_restrictions for task in map(scheduler.tasks.get, futures))
        async with Worker(scheduler.address, nthreads=1, **AGENTS) as b:
            assert all(
                task.worker_restrictions == {a.address, b.address} for task in map(scheduler.tasks.get, futures)
            )
        go.set()
        await client.gather(list(futures.values()))


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, scheduler_kwargs=PLUGIN, worker_kwargs=AGENTS)
async def test_what_the_user_has_bound_stays_bound(client, scheduler, a, b):
    go.set()
    futures = submit(client, waiting(2), lambda key: a.address, bound=True)
    await client.gather(list(futures.values()))
    await a.close(executor_wait=False)
    await async_poll_for(lambda: {scheduler.tasks[key].state for key in futures} == {"no-worker"}, timeout=10)
    assert all(scheduler.tasks[key].worker_restrictions == {a.address} for key in futures)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], scheduler_kwargs=PLUGIN, worker_kwargs=AGENTS)
async def test_clients_of_other_versions_are_left_alone(client, scheduler, a):
    with dask.annotate(**{MARK: {"computation": "another", "operands": 1}}):
        (future,) = client.get({"x": Task("x", wait)}, ["x"], sync=False)
    go.set()
    assert await future == "gone"


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], worker_kwargs=AGENTS)
async def test_it_is_installed_once_and_knows_who_is_there(client, scheduler, a):
    from dask_mars.scheduler import dask_setup

    dask_setup(scheduler)
    first = scheduler.plugins[Placement.name]
    dask_setup(scheduler)
    assert scheduler.plugins[Placement.name] is first
    assert first._agents == {a.address}


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    worker_kwargs={**AGENTS, "metrics": {MEMORY_LIMIT: lambda worker: 1000}},
)
async def test_memory_of_agents_is_shown_as_memory_and_refuses_nothing(client, scheduler, a):
    from dask_mars.scheduler import dask_setup

    dask_setup(scheduler)
    (agent,) = scheduler.workers.values()
    assert agent.memory_limit == scheduler.total_memory == 1000
    told = await client.scheduler.identity()
    assert told["workers"][a.address]["memory_limit"] == 1000
    # Dask's scheduler fails what reads more than the memory of its worker; an agent can have it on disk.
    large = client.submit(bytes, 2000)
    assert await client.submit(len, large) == 2000
    await a.close()
    assert scheduler.total_memory == 0


class ManyAgents:
    """What the plugin knows of a scheduler, with many agents; it counts the tasks that are asked for."""

    def __init__(self, count: int) -> None:
        self.extensions: dict[str, Any] = {"stealing": SimpleNamespace(in_flight={}, in_flight_tasks={})}
        self.workers: dict[str, Any] = {}
        self.unrunnable: list[Any] = []
        self.bandwidth, self.total_memory = 100e6, 0
        self.tasks = CountingDict()
        for number in range(count):
            self.add(f"tcp://10.0.0.1:{number:04}")
        self.idle = dict(self.workers)

    def add(self, address: str) -> str:
        self.workers[address] = Facts(
            address=address, extra={MARK: "1"}, metrics={}, status=Status.running, resources={}, nthreads=1,
            occupancy=0.0, processing={},
        )  # fmt: skip
        return address

    def submit(self, plugin: Placement, key: Any, planned: str, *dependencies: Any) -> Any:
        task = Facts(
            key=key, state="waiting", worker_restrictions={planned}, resource_restrictions=None,
            loose_restrictions=True, dependencies=set(dependencies), dependents=set(), waiting_on=set(),
            priority=(0, 0, 0), prefix=Facts(name="x", duration_average=1.0),
        )  # fmt: skip
        self.tasks[key] = task
        annotation = SubtaskAnnotation("computation", 0, 1, (0.0, 0.0), bound=False)._asdict()
        plugin.update_graph(self, annotations={MARK: {key: annotation}})
        return task


class CountingDict(dict):
    asked = 0

    def __getitem__(self, key: Any) -> Any:
        self.asked += 1
        return super().__getitem__(key)


class Facts(SimpleNamespace):
    __eq__, __hash__ = object.__eq__, object.__hash__


@dataclass(eq=False)
class Computed:
    """A computed task, and the workers that have it."""

    size: int
    who_has: set[Any]

    def get_nbytes(self) -> int:
        return self.size


def test_few_hosts_are_compared_however_many_there_are(monkeypatch):
    compared: list[dict[str, Any]] = []

    def choose(planned: str, hosts: dict[str, Any], *of: Any) -> str:
        compared.append(dict(hosts))
        return choose_host(planned, hosts, *of)

    monkeypatch.setattr("dask_mars.cluster.scheduler_plugin.choose_host", choose)
    scheduler = ManyAgents(300)
    plugin = Placement(scheduler)
    *others, planned = scheduler.workers
    inputs = [Computed(10 + number, {scheduler.workers[address]}) for number, address in enumerate(others)]
    everywhere = Computed(1000, {scheduler.workers[address] for address in others})
    task = scheduler.submit(plugin, "reads", planned, everywhere, *inputs)
    scheduler.tasks["made"] = SimpleNamespace(dependents={task})
    plugin.transition("made", "processing", "memory")
    (hosts,) = compared
    assert len(hosts) <= 10
    assert hosts[planned].held_bytes == 0
    # The host that has most, the common input included.
    assert hosts[others[-1]].held_bytes == 1000 + 10 + 298
    # The first of the idle ones.
    assert others[0] in hosts


def test_an_agent_that_joins_costs_what_it_brings():
    scheduler = ManyAgents(100)
    plugin = Placement(scheduler)
    for number, address in enumerate([*scheduler.workers] * 20):
        scheduler.submit(plugin, number, address)
    scheduler.tasks.asked = 0
    for number in range(10):
        plugin.add_worker(scheduler, scheduler.add(f"tcp://10.0.0.2:{number}"))
    assert scheduler.tasks.asked == 0
    lost = next(iter(scheduler.workers))
    del scheduler.workers[lost]
    plugin._assign = lambda computation, agents: dict.fromkeys(range(2000), agents[-1])
    plugin.remove_worker(scheduler, lost)
    assert sum(task.worker_restrictions == {"tcp://10.0.0.2:9"} for task in scheduler.tasks.values()) == 20
    assert scheduler.tasks.asked <= 2 * 20


def test_names_are_those_of_the_user_or_the_host():
    assert names_in_hashes({"tcp://10.0.0.1:1": "tcp://10.0.0.1:1", "tcp://10.0.0.2:2": "second"}) == {
        "tcp://10.0.0.1:1": "10.0.0.1",
        "tcp://10.0.0.2:2": "second",
    }
    shared = {f"tcp://10.0.0.1:{port}": f"tcp://10.0.0.1:{port}" for port in (1, 2)}
    assert names_in_hashes(shared) == {address: address for address in shared}
    assert share_out(["x"], {0: "a"}, {0: 1}) == [0]
