"""Computations on several agents, from `dask.compute` to the result."""

from __future__ import annotations

import decimal
import io
import operator
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import TaskRef
from dask.utils import key_split
from distributed import Client, LocalCluster, SchedulerPlugin, Security, futures_of, wait
from distributed.comm import connect
from distributed.utils_test import gen_cluster

import dask_mars
from dask_mars.client.records import Record
from dask_mars.cluster import backend, reconnection, requirements, submission
from dask_mars.cluster.admission import workers_of
from dask_mars.cluster.annotations import positions
from dask_mars.cluster.computation import ClusterComputation, SideEffects
from dask_mars.cluster.map_outputs import Selections
from dask_mars.cluster.metrics import SUBTASKS
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.planning import AgentInfo, Cut, cut_for, find_agents, find_replicas, slots_to_come
from dask_mars.cluster.requirements import Requirements
from dask_mars.cluster.shuffles import GraphShuffles
from dask_mars.cluster.subtask_spec import Packer
from dask_mars.diagnostics import decode_subtask_id
from dask_mars.errors import NoAgents, NoHostAllowed
from dask_mars.optimize.passes import Limits
from dask_mars.optimize.prepare import PrepareOptions, prepare
from studies.graphs import handed_over
from tests.array_calls import CALLS, Arrays, assert_close
from tests.background import in_background
from tests.cluster.conftest import nothing_is_left
from tests.conftest import certificates, cluster_of_agents, eventually
from tests.scheduler.decisions import decide, fields
from tests.tasks import large_array, note, noted, pid_of, wait_for

Get = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("by_value")


def pids(cluster: Any) -> list[set[int]]:
    return [set(agent.engine.worker_pids()) for agent in cluster.workers.values()]


# -- the same results -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*CALLS][::150])
def test_array_function(get, name):
    made = CALLS[name](Arrays())
    assert_close(dask.compute(made, scheduler=get), dask.compute(made, scheduler="sync"))


@pytest.mark.filterwarnings("ignore:Computing mixed collections")
def test_collections_of_all_kinds(get):
    frame = dd.from_pandas(pd.DataFrame({"a": range(100), "b": [1.0, 2.0] * 50}), npartitions=4)
    bag = db.range(100, npartitions=5).map(lambda x: x + 1)
    array = da.arange(1000, chunks=100)
    value = dask.delayed(operator.add)(1, dask.delayed(3))
    ours = dask.compute(frame.groupby("b").a.sum(), bag.sum(), (array[::-1] + array).max(), value, scheduler=get)
    assert ours[0].to_dict() == {1.0: 2450, 2.0: 2500}
    assert ours[1:] == (5050, 999, 4)


def test_surroundings_of_the_user_hold_on_hosts(get):
    def found() -> tuple[str, str, int]:
        return str(decimal.Decimal(1) / 3), np.array2string(np.array([1 / 3])), sys.getrecursionlimit()

    look = dask.delayed(found, pure=False)()
    before = look.compute(scheduler=get)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(limit + 7)
        with decimal.localcontext() as context, np.printoptions(precision=2):
            context.prec = 5
            assert look.compute(scheduler=get) == ("0.33333", "[0.33]", limit + 7)
    finally:
        sys.setrecursionlimit(limit)
    assert look.compute(scheduler=get) == before


def test_all_hosts_have_a_share_and_exchange_what_they_need(get, cluster):
    x = da.random.default_rng(2).random((400, 400), chunks=100)
    product = x @ x.T
    total, used = dask.compute(product.sum(), db.range(40, npartitions=40).map(pid_of), scheduler=get)
    assert total == pytest.approx(product.sum().compute(scheduler="sync"))
    assert all(own.intersection(used) for own in pids(cluster))


def test_what_takes_results_apart_may_run_at_another_host(client, get, monkeypatch):
    of_client = client.get
    moved = []

    def elsewhere(client: Client, graph: Any, wanted: Any, sync: bool) -> Any:
        workers = {key: dask.get_annotations()["workers"](key) for key in graph}
        for key in workers:
            if key[0].startswith("mars-part-"):
                moved.append(key)
                workers[key] = [host.address for host in find_agents(client) if host.address not in workers[key]]
        with dask.annotate(workers=workers.__getitem__):
            return of_client(graph, wanted, sync=sync)

    monkeypatch.setattr(Client, "get", elsewhere)
    x = da.random.default_rng(2).random((400, 400), chunks=100)
    product = (x - x.mean(axis=0)) @ x.T
    np.testing.assert_allclose(product.compute(scheduler=get), product.compute(scheduler="sync"))
    assert moved


@pytest.mark.parametrize(("reader", "parts"), [(0, 0), (1, 3)])
def test_much_that_goes_to_another_host_travels_in_several_parcels(client, reader, parts):
    # Three chunks of 32 MiB, none of which is computed.
    x = da.ones(12 << 20, chunks=4 << 20)
    graph = prepare(*handed_over(x.sum(), x.max()))
    first = tuple([chunk for chunk, sources in enumerate(graph.inputs) if not sources])
    rest = tuple([chunk for chunk, sources in enumerate(graph.inputs) if sources])
    halves = [Subtask(bytes(12), 0, first, (), first), Subtask(bytes(12), reader, rest, first, graph.outputs)]
    cut = Cut(halves, [8 if sources else 32 << 20 for sources in graph.inputs])
    computation = ClusterComputation(
        client,
        graph,
        find_agents(client),
        "name",
        0,
        1,
        Requirements(),
        GraphShuffles(),
        {},
        Record(),
        SideEffects(),
    )
    made = submission._Submission(computation, Packer(graph, 0), cut)
    assert sum(key[0].startswith("mars-part-") for key in made._batch) == parts


def test_futures_among_other_collections(client, get):
    x = da.from_array(np.arange(100.0), chunks=25)
    array, bag, frame = client.persist(
        [x + 1, db.range(10, npartitions=2), dd.from_pandas(pd.DataFrame({"a": [1, 2, 3, 4]}), npartitions=2)]
    )
    future = client.submit(operator.add, 1, 2)
    ours = (x + 2).persist(scheduler=get)
    collections = [array.sum(), dask.delayed(operator.neg)(future), ours.mean(), x.max()]
    # Dask itself may change the order.
    assert sorted(dask.compute(*collections, scheduler=get)) == [-3, 51.5, 99.0, 5050.0]
    assert bag.sum().compute(scheduler=get) == 45
    with pytest.warns(UserWarning, match="mixed collections"):
        assert dask.compute(bag.sum(), frame.a.sum(), ours.sum(), scheduler=get) == (45, 10, 5150.0)
    unknown = dask.delayed(operator.neg)(3).__dask_graph__()
    with pytest.raises(ValueError, match="Missing dependency nowhere"):
        get({**unknown, "x": (operator.neg, "nowhere"), "y": (operator.neg, TaskRef("nowhere"))}, "y")


def test_futures_are_followed(client, get, cluster):
    for agent in cluster.workers.values():
        there = client.scatter(np.arange(100_000), workers=[agent.address], hash=False)
        assert dask.delayed(pid_of)(there).compute(scheduler=get) in set(agent.engine.worker_pids())


def test_subtasks_come_in_the_order_of_the_policy():
    # Two chains of subtasks, of two and of four, each of two chunks.
    chains = [[(2 * number, 2 * number + 1) for number in numbers] for numbers in ((0, 1), (2, 3, 4, 5))]
    subtasks = [
        Subtask(b"", 0, chunks, (chunks[0] - 1,) if step else (), (chunks[1],))
        for chain in chains
        for step, chunks in enumerate(chain)
    ]
    assert positions(subtasks, "memory") == positions(subtasks, "mars") == [0, 2, 4, 6, 8, 10]
    by_mars = positions(subtasks, "mars-strict")
    # Seed 001: deeper ones first, then what deeper ones rely upon.
    assert sorted(range(6), key=by_mars.__getitem__) == [5, 4, 3, 1, 2, 0]
    with pytest.raises(ValueError, match="no scheduling policy"):
        positions(subtasks, "nonsense")


def test_the_user_says_where(client, get, cluster):
    agent = cluster.workers[1]
    x = da.ones(8, chunks=1)
    for workers in (agent.address, [agent.name], [str(agent.name)], ["nobody", agent.address]):
        with dask.annotate(workers=workers):
            there = x.map_blocks(pids_like, dtype=int)
        assert set(there.compute(scheduler=get).tolist()) <= set(agent.engine.worker_pids())
    with dask.annotate(workers=["nobody"]):
        nowhere = x.map_blocks(pids_like, dtype=int)
    with pytest.raises(NoHostAllowed, match="for a host of nobody, but there are only"):
        nowhere.compute(scheduler=get)
    with dask.annotate(workers=["nobody"], allow_other_workers=True):
        anywhere = x.map_blocks(pids_like, dtype=int)
    assert set(anywhere.compute(scheduler=get).tolist()) <= set.union(*pids(cluster))
    with dask.annotate(resources={"GPU": 1}):
        nowhere = x.map_blocks(pids_like, dtype=int)
    with pytest.raises(NoHostAllowed, match="with 1 GPU"):
        nowhere.compute(scheduler=get)


def pids_like(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.full(block.shape, pid_of())


def alone(path: str, number: int) -> int:
    """Return the number, unless another of these is running."""
    Path(path).touch(exist_ok=False)
    time.sleep(0.05)
    Path(path).unlink()
    return number


def test_persist(cluster):
    with Client(cluster) as client:
        x = da.from_array(np.arange(40_000.0), chunks=10_000) + 1
        kept, mean = dask.persist(x, x.mean(), scheduler=dask_mars.get)
        assert len(futures_of(kept)) == 4
        wait([kept, mean])
        # The chunks are on both hosts, and are used there.
        assert {*client.who_has(futures_of(kept)).values()} == {(agent,) for agent in client.nthreads()}
        assert (kept - mean).sum().compute(scheduler=dask_mars.get) == 0
        assert kept[15_000].compute(scheduler=dask_mars.get) == 15_001
        # To everybody else they are arrays.
        assert kept.sum().compute(scheduler=client) == x.sum().compute(scheduler="sync")
        np.testing.assert_array_equal(kept.compute(), np.arange(40_000.0) + 1)
        del kept, mean
        assert eventually(lambda: nothing_is_left(cluster), 5)


def test_pending_results_are_read_where_they_will_be(cluster, tmp_path):
    with Client(cluster, set_as_default=False) as client:
        gate = tmp_path / "gate"
        x = da.ones(8, chunks=1).map_blocks(after, gate, meta=np.ones(0))
        kept = x.persist(scheduler="mars", client=client)
        futures = dict(enumerate(futures_of(kept)))
        hosts = find_agents(client)
        expected = find_replicas(client, futures, hosts)
        assert not any(client.who_has(list(futures.values())).values())
        gate.touch()
        assert kept.sum().compute(scheduler="mars", client=client) == 8
        assert expected.keys() == futures.keys()
        assert all(size_bytes == 8 for there in expected.values() for size_bytes in there.values())
        del kept, futures


def after(block: Any, path: Path) -> Any:
    """Return a block once a file is there."""
    wait_for(path)
    return block


def test_what_is_persisted_twice_is_there_once(cluster):
    with Client(cluster, set_as_default=False) as client:
        keep = partial(dask_mars.get, client=client)
        x = da.from_array(np.arange(40_000.0), chunks=10_000) + 1
        first = x.persist(scheduler=keep)
        second, third = dask.persist(x, x + 1, scheduler=keep)
        assert (first.sum() + second.sum() + third.sum()).compute(scheduler=keep) == 3 * x.sum().compute() + 40_000
        del first, second, third
        # With all that it was made of.
        assert eventually(lambda: not cluster.scheduler.tasks, 5)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_asynchronous_clients_are_refused(client, scheduler, worker):
    with pytest.raises(ValueError, match="not asynchronous"):
        dask_mars.get({"x": 1}, "x", client=client)


def test_the_scheduler_needs_neither_us_nor_the_users_modules(get, client, monkeypatch, tmp_path):
    submit, sent = client.get, []

    def note_graph(client: Client, graph: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(cloudpickle.dumps((graph, dask.get_annotations())))
        return submit(graph, *arguments, **options)

    monkeypatch.setattr(Client, "get", note_graph)
    get({"x": (large_array, 1), "y": (noted, tmp_path / "n", "x"), "z": (np.sum, "x")}, ["y", "z"])
    assert sent
    modules: set[str] = set()

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            modules.add(module.partition(".")[0])
            return super().find_class(module, name)

    for data in sent:
        Reader(io.BytesIO(data)).load()
    assert modules <= {"_operator", "_pickle", "builtins", "dask", "distributed", "numpy", "operator"}


# -- in the user's process ------------------------------------------------------------------------------------


def test_what_cannot_be_pickled_runs_here_and_the_rest_there(get, cluster):
    lock = threading.Lock()
    graph = {
        "before": (pid_of,),
        "here": (held, lock, "before"),
        "after": (pid_of, "here"),
        "large": (large, "here"),
        "sum": (np.sum, "large"),
    }
    before, here, after, total = get(graph, ["before", "here", "after", "sum"])
    assert here is lock
    there = set.union(*pids(cluster))
    assert before in there
    # It needs what cannot be sent.
    assert after not in there
    assert total == 100_000


# -- results that cannot be pickled ---------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [False, True])
def test_what_needs_it_is_computed_with_it(spread, get, cluster):
    """Wherever tasks would have run, there is one object, and what comes before runs there."""
    addresses = [agent.address for agent in cluster.workers.values()]
    hosts = [[address] for address in addresses] if spread else [addresses, addresses]
    with dask.annotate(workers=hosts[0]):
        before = dask.delayed(pid_of, pure=False)()
        lock = dask.delayed(lambda after: threading.Lock())(before)
        uses = [dask.delayed(lambda lock, number: (number, id(lock)))(lock, number) for number in range(3)]
    with dask.annotate(workers=hosts[-1]):
        uses += [dask.delayed(lambda lock, number: (number, id(lock)))(lock, number) for number in range(3, 6)]
        total = dask.delayed(lambda uses: sorted(number for number, _ in uses))(uses)
        there = dask.delayed(pid_of, pure=False)()
    found, numbers, made, lock, other = dask.compute(uses, total, before, lock, there, scheduler=get)
    assert numbers == list(range(6))
    assert {identity for _, identity in found} == {id(lock)}
    assert {made, other} <= set.union(*pids(cluster))


def test_its_inputs_are_computed_once(get, tmp_path):
    before = dask.delayed(lambda: note(tmp_path / "before") or 7)()
    made = dask.delayed(lambda number: iter([number]))(before)
    assert [*made.compute(scheduler=get)] == [7]
    assert len((tmp_path / "before").read_text().splitlines()) == 1


def test_one_that_is_persisted(get, client):
    kept = dask.delayed(iterate)(4).persist(scheduler="mars", client=client)
    more = dask.delayed(sum)(kept)
    assert more.compute(scheduler=get) == 6
    # Each computation has a generator of its own.
    assert dask.compute(more, kept, scheduler=get)[0] == 6
    del kept


# -- restarting ---------------------------------------------------------------------------------------------------


def divide_twice(value: int) -> float:
    return [1, value / (value - value)][1] + 2


def test_a_traceback_has_its_marks_at_the_right_place(get):
    def printed(scheduler: Any) -> list[str]:
        with pytest.raises(ZeroDivisionError) as caught:
            dask.delayed(divide_twice)(3).compute(scheduler=scheduler)
        assert not any("dask_mars" in name for name in vars(caught.value))
        return traceback.format_tb(caught.value.__traceback__)[-1:]

    assert printed(get) == printed("sync")


@pytest.mark.slow
def test_agents_that_are_removed_begin_anew_and_those_that_are_retired_stay_away(tmp_path):
    options = {"threads_per_worker": 2, "resources": {"GPU": 1}}
    with cluster_of_agents(1, **options) as cluster, Client(cluster, set_as_default=False) as client:
        get = partial(dask_mars.get, client=client)

        def has_successor(agent: Any) -> bool:
            known = find_agents(client)
            # Agents register before the cluster has them among its workers.
            has_other = bool(cluster.workers) and agent not in cluster.workers.values()
            return bool(known) and known[0].address != agent.address and has_other

        # A restart ends what is being computed.
        (first,) = cluster.workers.values()
        kept = da.ones((40, 40), chunks=10).persist(scheduler="mars", client=client)
        assert kept.sum().compute(scheduler=get) == 1600
        computing = in_background(dask.delayed(wait_for)(tmp_path / "never", 1, 300).compute, scheduler=get)
        assert eventually(lambda: first._subtasks)
        client.restart(timeout=60)
        assert computing.exception(100) is not None
        assert eventually(lambda: has_successor(first))
        del kept
        # The answer to a heartbeat may be the first to tell an agent that it is removed.
        (second,) = cluster.workers.values()
        cluster.sync(second.close, reason="worker-heartbeat-missing")
        assert eventually(lambda: has_successor(second))
        # A resource is for one task at a time.
        with dask.annotate(resources={"GPU": 1}):
            tasks = [dask.delayed(alone)(str(tmp_path / "running"), number) for number in range(4)]
        assert dask.delayed(sum)(tasks).compute(scheduler=get) == 6
        cluster.scale(2)
        assert eventually(lambda: len(find_agents(client)) == 2)
        client.retire_workers([find_agents(client)[0].address])
        assert eventually(lambda: len(find_agents(client)) == 1)
        time.sleep(0.3)
        assert len(find_agents(client)) == 1


# -- errors and the end ---------------------------------------------------------------------------------------


def test_results_are_the_users_to_write_to(get):
    (array, frame, (inner,)) = get({"x": (large,), "y": (framed, "x"), "z": (listed, "x")}, ["x", "y", "z"])
    array[0], inner[0] = 5, 6
    frame.iloc[0, 0] = 7
    assert (array[0], inner[0], frame["a"][0]) == (5, 6, 7)


def test_interrupt_ends_what_is_running(get, cluster, tmp_path):
    begun, never = tmp_path / "begun", tmp_path / "never"

    def interrupt() -> None:
        assert eventually(begun.exists, 20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = in_background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        get({"x": (note, str(begun)), "y": (wait_for, str(never), "x")}, "y")
    interrupting.result(100)
    assert eventually(lambda: nothing_is_left(cluster), 2)
    assert get({"x": (operator.add, 1, 2)}, "x") == 3


def test_adaptive_clusters_get_subtasks_for_hosts_to_come() -> None:
    hosts = [AgentInfo("tcp://10.0.0.1:1", 2, "0", {})]
    with LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as cluster:
        assert slots_to_come(cluster, hosts) == 0
        cluster.adapt(minimum=0, maximum=4, interval="1h")
        assert eventually(lambda: slots_to_come(cluster, hosts) == 6)
        adaptive = cluster.adapt(interval="1h")
        assert eventually(lambda: slots_to_come(cluster, hosts) == 30)
        assert slots_to_come(cluster, hosts * 20) == 40
        adaptive.stop()
        assert slots_to_come(cluster, hosts) == 0


def subtask_count(x: Any, cluster: Any = None) -> int:
    hosts = [AgentInfo("tcp://10.0.0.1:1", 2, "0", {})]
    graph = prepare(*handed_over(x), PrepareOptions(Limits(2, recomputes=True)))
    return len(
        cut_for(graph, hosts, (), {}, Requirements(), GraphShuffles(), Selections(), cluster=cluster).subtasks
    )


def test_long_work_has_subtasks_for_hosts_that_join_later() -> None:
    zeros = da.zeros(800, chunks=1)
    # Fused by sixteen.
    assert subtask_count((zeros + 1).sum()) <= 16 < 40 <= subtask_count(zeros.map_blocks(pids_like).sum())
    assert subtask_count(da.zeros((40, 1 << 30), chunks=(1, -1)) + 1) >= 40
    requested = SimpleNamespace(plan=range(20))
    assert subtask_count(zeros[:40].map_blocks(pids_like), requested) <= 16
    many = da.zeros(4000, chunks=1).map_blocks(pids_like)
    assert subtask_count(many) <= 16 * 8 < 20 * 8 <= subtask_count(many, requested)


def slow_pid(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    time.sleep(0.05)
    return pids_like(block)


@pytest.mark.slow
def test_hosts_that_join_in_the_middle_get_work() -> None:
    x = da.zeros(400, chunks=1).map_blocks(slow_pid, dtype=int)
    with cluster_of_agents(1) as cluster, Client(cluster, set_as_default=False) as client:
        get = partial(dask_mars.get, client=client)
        x[:4].compute(scheduler=get)
        computing = in_background(x.compute, scheduler=get)
        assert eventually(lambda: client.processing()[cluster.workers[0].worker_address])
        cluster.scale(4)
        assert len(set(computing.result(100).tolist())) == 4


# -- the switch -----------------------------------------------------------------------------------------------


def test_hosts_are_assigned_as_the_configuration_says() -> None:
    x = da.random.default_rng(0).random((48, 48), chunks=4)
    graph = prepare(*handed_over((x @ x).sum()))
    hosts = [AgentInfo(f"tcp://10.0.0.{number}:1", 1, str(number), {}) for number in range(3)]
    found = set()
    for traversal in ("breadth-first", "depth-first"):
        with dask.config.set({"dask-mars.assignment": traversal}):
            found_cut = cut_for(graph, hosts, (), {}, Requirements(), GraphShuffles(), Selections())
            assert found_cut == cut_for(graph, hosts, (), {}, Requirements(), GraphShuffles(), Selections())
        found.add(tuple((subtask.host, tuple(subtask.chunks)) for subtask in found_cut.subtasks))
    assert len(found) == 2


@pytest.mark.slow
def test_mars_rules_and_choices_of_workers_decide_on_agents(tmp_path):
    def compute():
        with cluster_of_agents(3, threads_per_worker=2) as cluster, Client(cluster):
            for collections in fields():
                dask.compute(*collections, scheduler=dask_mars.get)

    decide(compute, tmp_path)


def test_what_a_computation_has_to_know_is_found_out_once(cluster, monkeypatch):
    calls = []

    def noting(name: str, function: Any) -> Any:
        return lambda *arguments: calls.append(name) or function(*arguments)

    monkeypatch.setattr(reconnection, "find_agents", noting("hosts", reconnection.find_agents))
    monkeypatch.setattr(requirements, "find_requirements", noting("requirements", requirements.find_requirements))
    with Client(cluster):
        assert (da.ones(40, chunks=4) + 1).sum().compute(scheduler=dask_mars.get) == 80
    assert sorted(calls) == ["hosts", "requirements"]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_cluster_without_agents_is_left_alone(client, scheduler, worker):
    async with Client(scheduler.address, asynchronous=True, set_as_default=True):
        assert backend.current_cluster() is None


def test_a_cluster_without_agents_is_refused(cluster, monkeypatch):
    with Client(cluster, set_as_default=False) as client:
        assert len(find_agents(client)) == 2
        monkeypatch.setattr("dask_mars.cluster.planning.MARK", "no-such-mark")
        with pytest.raises(NoAgents, match="dask-mars-worker tcp://"):
            dask_mars.get({"x": (pid_of,)}, "x", client=client)


def test_agents_that_have_just_registered_take_work(cluster, monkeypatch):
    def in_state(status: str) -> Any:
        return lambda client: {address: {**told, "status": status} for address, told in workers_of(client).items()}

    with Client(cluster, set_as_default=False) as client:
        for status, hosts in (("init", 2), ("running", 2), ("closing_gracefully", 0)):
            monkeypatch.setattr("dask_mars.cluster.planning.workers_of", in_state(status))
            assert len(find_agents(client)) == hosts


# -- security -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_strangers_are_refused_and_more_than_the_memory_of_a_host_is_computed(tmp_path, monkeypatch):
    own = Security(require_encryption=True, **certificates(tmp_path, "own"))
    stranger = Security(require_encryption=True, **certificates(tmp_path, "stranger"))
    # A single subtask makes all, and another one reads it.
    monkeypatch.setattr("dask_mars.cluster.partition.subtasks.SUBTASKS_PER_SLOT", 1)
    options = {"memory_limit": "512 MiB", "store_limit": "64 MiB", "local_directory": str(tmp_path)}
    with cluster_of_agents(security=own, **options) as cluster, Client(cluster, set_as_default=False) as client:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        for place in (address, cluster.workers[0].address):
            with pytest.raises(OSError, match="certificate"):
                cluster.sync(connect, place, **stranger.get_connection_args("client"), timeout=2)
        # Dask's scheduler counts all that it reads, and not what is in memory at the same time.
        kept = da.ones(80 << 20, chunks=4 << 20).persist(scheduler=dask_mars.get, client=client)
        assert kept.nbytes > 512 << 20
        assert kept.sum().compute(scheduler=dask_mars.get, client=client) == 80 << 20
        del kept
        # What heartbeats tell the scheduler of memory.
        (state,) = cluster.scheduler.workers.values()
        arrays = [dask.delayed(large_array)(8, number) for number in range(12)]
        with client.as_current():
            kept = dask.persist(*arrays, scheduler=dask_mars.get)
            wait(kept)
        assert eventually(lambda: state.metrics["spilled_bytes"]["disk"] > 0)
        assert eventually(lambda: state.metrics["mars_stored_bytes"] >= 8 << 20)
        # Less if this process, whose memory counts, has grown in other tests.
        assert 8 << 20 <= state.metrics["mars_store_limit_bytes"] <= 64 << 20
        assert eventually(lambda: state.memory.spilled == state.metrics["spilled_bytes"]["disk"])
        assert eventually(lambda: state.memory.managed < 96 << 20)
        # Worker processes are part of it.
        (pid,) = cluster.workers[0].engine.worker_pids()
        assert (
            state.metrics["memory"]
            >= state.metrics["mars_stored_bytes"] + dask_mars.limits.estimate_memory([pid]) // 2
        )
        # As of the next heartbeat.
        assert eventually(lambda: state.metrics[SUBTASKS] == ())
        del kept
        assert eventually(lambda: state.metrics["spilled_bytes"]["disk"] == 0)


def held(lock: Any, *_: Any) -> Any:
    with lock:
        return lock


def large(*_: Any) -> np.ndarray[Any, Any]:
    return np.linspace(1.0, 1.0, 100_000)


def iterate(count: int) -> Iterator[int]:
    yield from range(count)


def framed(array: np.ndarray[Any, Any]) -> pd.DataFrame:
    return pd.DataFrame({"a": array, "b": array})


def listed(array: np.ndarray[Any, Any]) -> list[Any]:
    return [array + 1]


def test_keys_of_subtasks_have_their_ids(cluster, get):
    seen = set()

    class Note(SchedulerPlugin):
        def transition(self, key: Any, *_: Any, **__: Any) -> None:
            if isinstance(key, tuple) and len(str(key[1])) == 24:
                seen.add(key)

    cluster.scheduler.add_plugin(Note(), name="note")
    try:
        x = da.ones((40, 40), chunks=10)
        assert (x + x.T).sum().compute(scheduler=get) == 3200
    finally:
        cluster.scheduler.remove_plugin("note")
    ids = [decode_subtask_id(bytes.fromhex(key[1])) for key in seen]
    assert len({found.graph for found in ids}) == 1
    assert {found.number for found in ids} == set(range(len(ids)))
    # Dask's pages show them by their layers.
    assert {key_split(key) for key in seen} <= {"ones_like", "add", "sum", "sum-partial", "sum-aggregate"}
    (name,) = {key[0].rpartition("-")[2] for key in seen}
    assert ids[0].graph == int(name[:8], 16)


def test_workers_in_a_set_have_an_order():
    with dask.annotate(workers=set("hgfedcba")):
        x = da.ones(2, chunks=1)
    restrictions = prepare(*handed_over(x)).restrictions
    assert [restriction.workers for restriction in restrictions.values()] == [tuple("abcdefgh")] * 2


def test_a_scheduler_in_the_configuration_is_used(cluster):
    with dask.config.set({"dask-mars.scheduler-address": cluster.scheduler_address}):
        assert dask_mars.get({"x": (pid_of,)}, "x") in set.union(*pids(cluster))
        assert backend.connect(cluster.scheduler_address) is backend.connect(cluster.scheduler_address)
    backend.close()
