"""Tasks with side effects on several hosts: nothing is lost or spoilt, or the computation fails and says why."""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from dask.callbacks import Callback
from dask.utils import SerializableLock
from distributed import Client, get_worker
from distributed.utils_test import gen_cluster

import dask_mars
from dask_mars.cluster.admission import NoLongerNeeded, claim_once, hold_locks, register_once, unregister_once
from dask_mars.cluster.client_methods import switch
from dask_mars.cluster.requirements import RequirementsFinder, find_requirements
from dask_mars.errors import BegunBefore, FilesLost, LockLost
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.known import APPENDING
from dask_mars.optimize.passes import Limits
from dask_mars.optimize.prepare import PrepareOptions, prepare
from studies.graphs import handed_over
from tests.background import in_background
from tests.cluster.conftest import nothing_is_left
from tests.cluster.test_cluster import pids
from tests.conftest import cluster_of_agents, eventually
from tests.tasks import alone, die_first, fail_first, held_by, linger, note, note_name, notes, pid_of

pytestmark = pytest.mark.usefixtures("by_value")
Get = Callable[..., Any]


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    """Return the current client: Dask then shuffles between workers."""
    with Client(cluster) as client:
        yield client
        scheduler = cluster.scheduler
        assert eventually(lambda: not scheduler.extensions["queues"].queues, 5)
    assert eventually(lambda: nothing_is_left(cluster), 5)


@pytest.fixture
def get(client: Client) -> Get:
    return dask_mars.get


@pytest.fixture
def through_files() -> Iterator[None]:
    """Have shuffles go through files: whoever says how to compress them wants files."""
    with dask.config.set({"dataframe.shuffle.compression": "BZ2"}):
        yield


def cluster_graph(*collections: Any) -> ChunkGraph:
    finder = RequirementsFinder()
    limits = Limits(workers=1, consumers_per_worker=2)
    graph = prepare(*handed_over(*collections), PrepareOptions(limits, None, finder.select_unmergeable))
    # What was found before chunks were merged is what would be found now.
    assert finder.of(graph) == find_requirements(graph)
    return graph


def frame(partitions: int = 4) -> Any:
    numbers = np.arange(120)
    return dd.from_pandas(pd.DataFrame({"a": numbers % 7, "b": numbers * 1.0, "k": numbers}), partitions)


# -- what is known before anything runs -----------------------------------------------------------------------


def names(graph: ChunkGraph, chunks: Any) -> set[str]:
    return {graph.operands[graph.operand_of[chunk]].name for chunk in chunks}


def test_locks_are_found_and_what_is_computed_is_not_computed_under_them(zarr, tmp_path):
    target = zarr.open(str(tmp_path / "a.zarr"), mode="w", shape=(20,), chunks=(10,), dtype="f8")
    lock = SerializableLock("one of a kind")
    graph = cluster_graph(da.store(da.ones(20, chunks=10) + 1, target, lock=lock, compute=False))
    found = find_requirements(graph)
    assert set(found.locks.values()) == {frozenset({"one of a kind"})}
    assert names(graph, found.locks) == {"load_store_chunk"}
    read = cluster_graph((da.from_array(np.arange(20), chunks=10, lock=lock) + 1).sum())
    assert names(read, find_requirements(read).locks) == {"getter"}


def test_what_is_demanded_is_still_known_when_others_are_merged():
    read = da.from_array(np.arange(20), chunks=5, lock=True)
    made = da.random.default_rng(1).random(20, chunks=5) + da.random.default_rng(2).random(20, chunks=5)
    finder, sizes = RequirementsFinder(), []

    def select_unmergeable(graph: ChunkGraph) -> Collection[int]:
        sizes.append(len(graph))
        return finder.select_unmergeable(graph)

    options = PrepareOptions(Limits(workers=1, consumers_per_worker=2), None, select_unmergeable)
    graph = prepare(*handed_over((made + 1 + read).sum()), options)
    assert len(graph) < sizes[-1]
    found = finder.of(graph)
    assert found == find_requirements(graph)
    assert names(graph, found.locks) == {"getter"}


@pytest.mark.parametrize(
    "held",
    [
        lambda lock: lock,
        lambda lock: [1, (lock, 2)],
        lambda lock: {"lock": lock},
        lambda lock: partial(operator.add, lock),
        lambda lock: CombinedLock([lock]),
    ],
    ids=["itself", "list", "dict", "partial", "combined"],
)
def test_locks_are_found_wherever_they_are_visible(held):
    lock = SerializableLock("found")
    graph = cluster_graph(dask.delayed(id)(held(lock)))
    assert find_requirements(graph).locks == {len(graph) - 1: frozenset({"found"})}


class CombinedLock:
    """As Xarray's."""

    def __init__(self, locks: list[Any]) -> None:
        self.locks = tuple(set(locks))


def test_what_uses_distributed_is_found():
    def inner() -> Any:
        return distributed.get_client()

    def with_import() -> Any:
        from distributed import secede

        return secede

    def plain(value: int) -> int:
        return value + 1

    for function, needs in [
        (name_of_worker, True),
        (calls_name_of_worker, True),
        (inner, True),
        (with_import, True),
        (lambda: (lambda: inner())(), True),
        (partial(name_of_worker), True),
        (plain, False),
        (np.sum, False),
        (nested_sum, False),
    ]:
        graph = cluster_graph(dask.delayed(function)())
        assert bool(find_requirements(graph).threads) == needs, function
    lock = distributed.Lock("x")
    assert find_requirements(cluster_graph(dask.delayed(str)(lock))).threads


def name_of_worker(*_: Any) -> str:
    return str(get_worker().address)


def calls_name_of_worker(*_: Any) -> str:
    return name_of_worker()


def nested_sum(count: int = 10) -> int:
    return int(da.arange(count, chunks=5).sum().compute())


# -- locks ----------------------------------------------------------------------------------------------------


def test_a_lock_locks_on_all_hosts(get, cluster, tmp_path):
    def without_locking(lock: Any, number: int) -> int:
        # Agents of one process have one file for the locks of their worker processes: that is not to help here.
        return alone(tmp_path / "log", contextlib.nullcontext(), number)

    # Both are to be up before it begins.
    db.range(4, npartitions=4).map(pid_of).compute(scheduler=get)
    lock = SerializableLock()
    used = dask.compute(*[dask.delayed(without_locking)(lock, number) for number in range(12)], scheduler=get)
    assert all(own.intersection(used) for own in pids(cluster))
    lines = notes(tmp_path / "log")
    assert len(lines) == 24
    assert lines[::2] == lines[1::2]


def test_a_lock_is_given_back_when_a_task_raises(get):
    lock = SerializableLock()
    with pytest.raises(ZeroDivisionError):
        dask.delayed(lambda lock: 1 // 0)(lock).compute(scheduler=get)
    assert dask.delayed(held_by)(lock).compute(scheduler=get) == 1


def test_a_wait_for_a_lock_can_be_cancelled(client, cluster):
    lock = SerializableLock()
    with hold_locks([str(lock.token)], client):
        task = dask.delayed(held_by)(lock).persist(scheduler=dask_mars.get)
        (future,) = distributed.futures_of(task)
        assert eventually(lambda: any(agent._subtasks for agent in cluster.workers.values()), 10)
        client.cancel([future], force=True)
        del task, future
        assert eventually(lambda: not any(agent._subtasks for agent in cluster.workers.values()), 10)
    with pytest.raises(NoLongerNeeded), hold_locks(["x"], client, lambda: False):
        pass


@pytest.fixture
def short_leases() -> Iterator[None]:
    with dask.config.set(
        {
            "distributed.scheduler.locks.lease-timeout": "0.5s",
            "distributed.scheduler.locks.lease-validation-interval": "0.1s",
        }
    ):
        yield


def test_a_lock_that_was_lost_is_told(client, short_leases, monkeypatch):
    monkeypatch.setattr("dask_mars.cluster.admission._ClusterLock._refresh_leases", no_refresh)
    with pytest.raises(LockLost, match="lease-timeout") as caught, hold_locks(["lost"], client):
        time.sleep(0.6)
    assert caught.value.token == "lost"


async def no_refresh(self: Any) -> None:
    """Say nothing to the scheduler, as a host that is cut off does."""


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    config={
        "distributed.scheduler.locks.lease-timeout": "0.5s",
        "distributed.scheduler.locks.lease-validation-interval": "0.1s",
    },
)
async def test_the_lock_of_a_host_that_is_gone_is_given_to_others(client, scheduler, first, second):
    from dask_mars.cluster.admission import _ClusterLock

    lost, next_one = _ClusterLock("x", first), _ClusterLock("x", second)
    assert await lost.acquire(timeout=1)
    assert not await next_one.acquire(timeout=0)
    # It falls silent.
    lost.refresh_callback.stop()
    assert await next_one.acquire(timeout=20)
    await next_one.release()


# -- what must not be begun twice -----------------------------------------------------------------------------


def shuffled(folder: Path, action: Callable[..., Any], *arguments: Any) -> Any:
    """Return a bag whose shuffle appends to files, and does something in the middle of that."""

    def grouper(item: int) -> int:
        if item == 5:
            action(folder / "begun", *arguments, item)
        return item % 2

    return db.from_sequence(range(8), npartitions=2).groupby(grouper, shuffle="disk")


@pytest.mark.usefixtures("through_files")
def test_a_shuffle_by_files_stays_on_one_host(get, cluster, tmp_path):
    pairs = shuffled(tmp_path, note).map(lambda pair: (pair[0], sorted(pair[1]), pid_of()))
    graph = cluster_graph(pairs)
    found = find_requirements(graph)
    assert names(graph, found.once) >= {"partition"}
    groups = pairs.compute(scheduler=get)
    assert sorted(group[:2] for group in groups) == [(0, [0, 2, 4, 6]), (1, [1, 3, 5, 7])]
    assert any(own.issuperset(group[2] for group in groups) for own in pids(cluster))


@pytest.mark.usefixtures("through_files")
def test_a_worker_process_that_dies_while_it_appends_fails_the_computation(get, tmp_path):
    with pytest.raises(Exception, match="would be there twice"):
        shuffled(tmp_path, die_first, 1).compute(scheduler=get)
    assert len(notes(tmp_path / "begun")) == 1


@pytest.mark.usefixtures("through_files")
def test_appending_is_not_tried_again(get, tmp_path):
    with dask.annotate(retries=3), pytest.raises(OSError, match="failure 1"):
        shuffled(tmp_path, fail_first, 1).compute(scheduler=get, retries=3)
    assert len(notes(tmp_path / "begun")) == 1


def test_files_that_several_tasks_append_to(get, tmp_path):
    frame().to_csv(tmp_path / "all.csv", single_file=True, index=False, compute_kwargs={"scheduler": get})
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "all.csv"), frame().compute(scheduler="sync"))


def test_once_is_once(client, cluster):
    agents = list(cluster.workers.values())
    register_once(client, ["first", "second"])
    claim_once(agents[0], "first", "key")
    for agent in agents:
        with pytest.raises(BegunBefore, match="twice"):
            claim_once(agent, "first", "key")
    unregister_once(client, ["first", "second"])
    assert eventually(lambda: not cluster.scheduler.extensions["queues"].queues, 5)
    with pytest.raises(BegunBefore):
        claim_once(agents[0], "second", "key")


def lost_in_the_middle(cluster: Any, folder: Path, make: Callable[[Path], Any]) -> Any:
    """Take away the agent that is in the middle of a task, and return the result or error of the computation."""
    assert eventually(lambda: len(cluster.scheduler.workers) == len(cluster.workers) == 2)
    folder.mkdir()
    computing = in_background(lambda: make(folder).compute(scheduler=dask_mars.get))
    assert eventually(lambda: notes(folder / "begun"), 30)
    pid = int(notes(folder / "begun")[0])
    (agent,) = [agent for agent in cluster.workers.values() if pid in agent.engine.worker_pids()]
    cluster.sync(cluster.scheduler.remove_worker, agent.address, stimulus_id="test", close=False)
    (folder / "again").touch()
    result = computing.exception(60) or computing.result()
    (folder / "end").touch()
    assert eventually(lambda: agent not in cluster.workers.values())
    return result


def append_and_linger(folder: Path) -> Any:
    appended = dask.delayed(note_name)(folder / "table", "row")
    return dask.delayed(linger)(folder / "begun", folder / "again", appended)


@pytest.mark.slow
def test_agents_that_are_lost_in_the_middle(tmp_path, monkeypatch):
    monkeypatch.setattr("dask_mars.optimize.known.APPENDING", APPENDING | {"tests.tasks.note_name"})
    with cluster_of_agents(2) as cluster, Client(cluster):
        # What has appended is not begun again, nor made again when its result is lost.
        # A setting for compression asks for files.
        with dask.config.set({"dataframe.shuffle.compression": "BZ2"}):
            error = lost_in_the_middle(
                cluster, tmp_path / "appending", lambda folder: shuffled(folder, linger, folder / "end")
            )
        assert isinstance(error, (BegunBefore, FilesLost))
        assert len(notes(tmp_path / "appending" / "begun")) == 1
        assert isinstance(lost_in_the_middle(cluster, tmp_path / "appended", append_and_linger), BegunBefore)
        assert notes(tmp_path / "appended" / "table") == ["row"]
        # A shuffle through the store survives it.
        groups = lost_in_the_middle(
            cluster, tmp_path / "stored", lambda folder: shuffled(folder, linger, folder / "again")
        )
        assert {key: sorted(items) for key, items in groups} == {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}


# -- shuffles through the store -------------------------------------------------------------------------------


@pytest.fixture
def through_store(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Return what computes where Dask knows of no cluster, and shuffles through files without us."""
    with Client(cluster, set_as_default=False) as client:
        yield lambda collection, **options: collection.compute(scheduler=dask_mars.get, client=client, **options)
    assert eventually(lambda: nothing_is_left(cluster), 5)


@pytest.mark.parametrize(
    "name", ["merge", *[pytest.param(name, marks=pytest.mark.slow) for name in ("set_index", "fewer")]]
)
def test_shuffles_through_the_store(through_store, name):
    same_frames(through_store(shuffles("disk")[name]), shuffles_by_tasks(name))


def test_hosts_get_what_their_reducers_read(through_store, cluster):
    """Seed 003, shuffle: map outputs stay, and reducers fetch their part."""
    rows = 60_000
    numbers = np.arange(rows)
    big = dd.from_pandas(pd.DataFrame({"a": numbers % 97, "b": numbers * 1.0}), 8)

    def moved() -> int:
        before = moved_bytes(cluster)
        parts = through_store(big.shuffle("a", npartitions=8, shuffle_method="disk").map_partitions(len))
        assert sum(parts) == rows
        return moved_bytes(cluster) - before

    # Rows of 24 bytes, and half of them for the other host, unless that had no time for its share.
    assert any(moved() < 24 * rows * 0.7 for _ in range(4))


def moved_bytes(cluster: Any) -> int:
    return sum([entry["total"] for agent in cluster.workers.values() for entry in agent.transfer_incoming_log])


def test_a_shuffle_of_which_a_worker_process_dies(through_store, tmp_path):
    def grouper(item: int) -> int:
        if item == 5:
            die_first(tmp_path / "begun", 1, item)
        return item % 2

    groups = through_store(db.from_sequence(range(8), npartitions=2).groupby(grouper, shuffle="disk"))
    assert {key: sorted(items) for key, items in groups} == {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
    assert len(notes(tmp_path / "begun")) == 3


# -- shuffles between workers ---------------------------------------------------------------------------------


def shuffles(method: str) -> dict[str, Any]:
    other = dd.from_pandas(pd.DataFrame({"c": range(0, 14, 2), "d": range(7)}), npartitions=3)
    return {
        "merge": frame().merge(other, left_on="a", right_on="c", shuffle_method=method),
        "set_index": frame().set_index("b"),
        "twice": frame().shuffle("a", npartitions=9).shuffle("k"),
        "fewer": frame().shuffle("a", npartitions=2),
    }


@pytest.mark.parametrize("name", ["merge", pytest.param("twice", marks=pytest.mark.slow)])
def test_shuffles_between_workers_go_through_the_store(client, monkeypatch, name):
    switch(client)
    collection = shuffles("p2p")[name]
    assert collection.optimize().dask
    # What sends rows asks for it, in the agents, which are in this process.
    monkeypatch.setattr("distributed.shuffle._shuffle.get_worker_plugin", None)
    for found in (collection.compute(), collection.persist().compute(), client.compute(collection).result()):
        same_frames(found, shuffles_by_tasks(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["merge", "twice"])
def test_shuffles_between_workers(get, name):
    # Callbacks for single tasks see Dask's own.
    with Callback(posttask=lambda *_: None):
        found = shuffles("p2p")[name].compute(scheduler=get)
    same_frames(found, shuffles_by_tasks(name))


def shuffles_by_tasks(name: str) -> Any:
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        return shuffles("tasks")[name].compute(scheduler="sync")


def same_frames(ours: Any, theirs: Any) -> None:
    if isinstance(ours, float):
        assert ours == theirs
        return
    ours, theirs = (found.reset_index() for found in (ours, theirs))
    by = list(map(str, ours.columns))
    ours.columns, theirs.columns = by, list(map(str, theirs.columns))
    pd.testing.assert_frame_equal(
        ours.sort_values(by, ignore_index=True), theirs.sort_values(by, ignore_index=True)
    )


# -- in Dask's own threads ------------------------------------------------------------------------------------


def test_tasks_that_use_distributed_run_in_the_agent(get, cluster):
    def submits(value: int) -> int:
        with distributed.worker_client() as own:
            return int(own.submit(operator.add, value, 1).result())

    addresses = [agent.address for agent in cluster.workers.values()]
    assert dask.delayed(name_of_worker)().compute(scheduler=get) in addresses
    assert dask.delayed(submits)(4).compute(scheduler=get) == 5
    values = db.range(6, npartitions=3).map(name_of_worker).compute(scheduler=get)
    assert set(values) <= set(addresses)


def test_hidden_uses_of_distributed_fail_and_say_why(get):
    with pytest.raises(ValueError, match="No worker found") as caught:
        dask.delayed(operator.methodcaller("hide"))(Hidden()).compute(scheduler=get)
    assert any("names what it uses" in note for note in caught.value.__notes__)


class Hidden:
    """Has a method that is not looked into."""

    def hide(self) -> Any:
        return get_worker()


def test_nested_computations_stay_where_they_are(get, cluster):
    def nested() -> tuple[int, int]:
        return nested_sum(20), pid_of()

    total, pid = dask.delayed(nested)().compute(scheduler=get)
    assert total == 190
    assert pid in set.union(*pids(cluster))
    with dask.config.set(scheduler="threads"):
        assert dask.delayed(nested)().compute(scheduler=get)[0] == 190
