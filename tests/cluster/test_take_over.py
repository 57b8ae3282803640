"""Stock clusters whose workers become agents, and stock workers again."""

from __future__ import annotations

import asyncio
import logging
import math
import operator
import os
import signal
import time
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import Client, LocalCluster, Status, Worker
from distributed.comm import CommClosedError
from distributed.utils_test import gen_test

import dask_mars
from dask_mars import config
from dask_mars.cluster import agent_process
from dask_mars.cluster import take_over as module
from dask_mars.cluster.agent_process import _HEARD_S, AttachAgents, StartAgents, _go_back, start_taken_agent
from dask_mars.cluster.marks import ATTACH, MARK, TAKE_OVER
from dask_mars.cluster.runtime import ClusterRuntime
from dask_mars.errors import CannotTakeOver, NoAgents
from tests.conftest import eventually

LOCAL = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}


def workers(client: Client) -> list[dict[str, Any]]:
    return [*client.scheduler_info(n_workers=-1)["workers"].values()]


def agents(client: Client) -> set[Any]:
    return {told["name"] for told in workers(client) if MARK in told}


def is_switched(client: Client) -> bool:
    return {"compute", "persist", "get"} <= vars(client).keys()


@pytest.mark.slow
def test_stock_workers_become_agents_and_stock_workers_again(monkeypatch, private_tmp):
    x = da.random.default_rng(1).random((400, 400), chunks=100)
    y = (x - x.mean(axis=0)).T @ x
    expected = y.compute(scheduler="sync")
    limit = 400 << 20
    # Other tests may share the default one.
    monkeypatch.setattr(dask_mars.runtimes, "_default", dask_mars.runtimes._Default())
    with (
        # Or the cluster closes the nanny of a killed worker, which is absent once more when it is given back.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "5 minutes"}),
        LocalCluster(n_workers=2, memory_limit=limit, resources={"GPU": 1}, **LOCAL) as cluster,
        Client(cluster) as client,
    ):
        with pytest.warns(RuntimeWarning, match=r"dask_mars\.take_over\(client\)"):
            assert (dask_mars.get({"x": (os.getpid,)}, "x")) not in client.run(os.getpid).values()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dask_mars.get({"x": 1}, "x")
        with pytest.raises(NoAgents, match=r"dask_mars\.take_over\(client\)"):
            dask_mars.get({"x": 1}, "x", client=client)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_VERSION", "dask_mars.not_installed:__version__")
            with pytest.raises(
                CannotTakeOver, match=r"2 workers of 2 .*not_installed.*PipInstall.*UploadDirectory"
            ):
                dask_mars.take_over(client)
        assert not agents(client)

        dask_mars.close()
        lost = client.scatter(1)
        with pytest.warns(RuntimeWarning, match="hold 1 result:.*scatter"):
            taken = dask_mars.take_over(client)
        assert eventually(lambda: lost.status in ("cancelled", "lost"))
        assert agents(client) == {0, 1}
        assert all((told["nthreads"], told["resources"]) == (1, {"GPU": 1}) for told in workers(client))
        assert {told["metrics"]["mars_memory_limit_bytes"] for told in workers(client)} == {limit}
        assert isinstance(dask_mars.runtime(), ClusterRuntime)
        # Our subtasks have other keys than Dask's tasks.
        assert (y.compute() == expected).all()
        assert (client.compute(y).result() == expected).all()

        # Ctrl-C in a terminal reaches all processes.
        assert set(client.run(signal.getsignal, signal.SIGINT).values()) == {signal.SIG_IGN}
        address, pid = next(iter(client.run(os.getpid).items()))
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: address not in client.scheduler_info(n_workers=-1)["workers"])
        cluster.scale(3)
        assert eventually(lambda: agents(client) == {0, 1, 2})
        assert (y.compute(scheduler=dask_mars.get) == expected).all()

        taken.give_back()
        assert not agents(client)
        assert eventually(lambda: [told["memory_limit"] for told in workers(client)] == [limit] * 3)
        assert (y.compute() == expected).all()
        taken.give_back()


@pytest.mark.slow
@pytest.mark.parametrize("lead_s", [0, 0.5])
def test_workers_that_died_just_before(lead_s, private_tmp):
    def kill_one():
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        time.sleep(lead_s)

    with (
        # Or the cluster closes the nanny of a killed worker that is absent once more at that moment.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "5 minutes"}),
        LocalCluster(n_workers=2, **LOCAL) as cluster,
        Client(cluster) as client,
    ):
        kill_one()
        taken = dask_mars.take_over(client)
        # Its nanny hears nothing from the scheduler, which does not know its worker.
        assert eventually(lambda: agents(client) == {0, 1})
        kill_one()
        taken.give_back()
        assert eventually(lambda: not agents(client) and len(workers(client)) == 2)
        time.sleep(_HEARD_S + 1)
        assert eventually(lambda: not agents(client) and len(workers(client)) == 2)


@pytest.mark.slow
def test_workers_that_their_cluster_gave_up_are_started_again(private_tmp):
    def give_up(name):
        cluster.sync(cluster.workers.pop(name).close)

    with LocalCluster(n_workers=2, **LOCAL) as cluster, Client(cluster) as client:
        give_up(1)
        taken = dask_mars.take_over(client)
        assert eventually(lambda: agents(client) == {0, 1})
        give_up(0)
        taken.give_back()
        assert eventually(lambda: not agents(client) and {told["name"] for told in workers(client)} == {0, 1})


def test_workers_that_close_meanwhile(monkeypatch, private_tmp):
    def close_while(tell, *args, **options):
        is_there.append(1)
        if len(is_there) % 2:
            tell(*args, **options)
            raise CommClosedError("a worker has closed")
        return tell(*args, **options)

    is_there: list[int] = []
    with (
        LocalCluster(n_workers=1, processes=False, **LOCAL) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        run = client.run

        def run_once_a_worker_has_gone(*args, **options):
            monkeypatch.setattr(client, "run", run)
            raise KeyError("tcp://127.0.0.1:1")

        monkeypatch.setattr(client, "run", run_once_a_worker_has_gone)
        for name in ("register_plugin", "unregister_worker_plugin"):
            monkeypatch.setattr(client, name, partial(close_while, getattr(client, name)))
        with dask_mars.take_over(client):
            assert agents(client) == {"0-mars"}
        assert not agents(client)
        assert len(is_there) == 5


def test_giving_back_can_be_repeated_after_an_interruption(private_tmp):
    def interrupt(*args, **options):
        del client.unregister_worker_plugin
        raise KeyboardInterrupt

    with (
        LocalCluster(n_workers=1, processes=False, **LOCAL) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        taken = dask_mars.take_over(client)
        client.unregister_worker_plugin = interrupt
        with pytest.raises(KeyboardInterrupt):
            taken.give_back()
        taken.give_back()
        assert not agents(client)


@gen_test()
async def test_an_agent_of_a_later_take_over_is_not_started_twice(monkeypatch):
    monkeypatch.setattr(agent_process, "_HEARD_S", 0)

    async def start(worker):
        started.append(worker)

    ours, started = AttachAgents({}), []
    ours._start = start
    for plugin, expected in ((AttachAgents({}), 0), (ours, 1)):
        worker = SimpleNamespace(plugins={ATTACH: plugin}, status=Status.running)
        await ours._start_another(worker, SimpleNamespace(finished=partial(asyncio.sleep, 0)))
        assert len(started) == expected


def test_a_client_is_switched_until_it_gives_back(cluster):
    with Client(cluster) as client, Client(cluster, set_as_default=False) as other:
        assert not is_switched(client)
        with dask_mars.take_over(client) as taken:
            assert is_switched(client)
            assert not is_switched(other)
            assert dask.config.get("scheduler") == "dask.distributed"
            dask_mars.take_over(other)
            taken.give_back()
            assert is_switched(other)
            assert not is_switched(client)


def test_workers_without_nannies_get_agents_beside_them(monkeypatch, private_tmp, caplog):
    monkeypatch.setattr(agent_process, "_HEARD_S", 0)
    x = da.random.default_rng(1).random((40, 40), chunks=20)
    expected = x.sum().compute(scheduler="sync")
    options = {"memory_limit": "1 GiB", "resources": {"GPU": 1}, "processes": False}
    with (
        LocalCluster(n_workers=1, **options, **LOCAL) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        scattered = client.scatter(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            taken = dask_mars.take_over(client)
        assert agents(client) == {"0-mars"}
        assert {told["name"]: told["resources"]["GPU"] for told in workers(client)} == {0: 0, "0-mars": 1}
        # As an adaptive cluster does, for which both are workers.
        client.retire_workers(names=["0-mars"])
        assert not agents(client)
        assert eventually(lambda: agents(client) == {"0-mars"})
        assert [told["resources"]["GPU"] for told in workers(client)] == [0, 1]
        persisted = client.persist(x)
        assert client.compute(persisted.sum()).result() == expected
        assert client.submit(operator.add, scattered, 1).result() == 2
        cluster.scale(2)
        assert eventually(lambda: agents(client) == {"0-mars", "1-mars"})
        cluster.scale(1)
        # Also the stock worker has gone, which would not hear of the end any more.
        assert eventually(lambda: {told["name"] for told in workers(client)} == {0, "0-mars"})
        client.run(pause, workers=[cluster.workers[0].address])
        again = dask_mars.take_over(client)
        # Nothing restarts, so that nothing is lost.
        taken.give_back()
        caplog.clear()
        again.give_back()
        assert not [told for told in caplog.records if told.levelno >= logging.ERROR]
        assert [told["resources"]["GPU"] for told in workers(client)] == [1]
        assert not agents(client)
        client.run(go_on)
        assert client.gather(client.compute(persisted.sum())) == expected


def pause(dask_worker: Worker) -> None:
    dask_worker.memory_manager.memory_pause_fraction = False
    dask_worker.status = Status.paused


def go_on(dask_worker: Worker) -> None:
    dask_worker.status = Status.running


class Special(Worker):
    """A worker of somebody's own."""


def test_workers_of_another_class_get_no_agents(private_tmp):
    with (
        LocalCluster(n_workers=1, processes=False, worker_class=Special, **LOCAL) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        with pytest.raises(CannotTakeOver, match="class of their own: Worker 0"):
            dask_mars.take_over(client)
        assert not agents(client)
        assert not is_switched(client)


def test_workers_that_their_manager_ends_when_they_restart_are_told_from_others(monkeypatch):
    monkeypatch.setattr(module, "workers_of", lambda client: {})
    with pytest.raises(RuntimeError, match="none came back"):
        module._check_agents(SimpleNamespace(), {"tcp://1.2.3.4:5"})


@gen_test()
async def test_only_synchronous_clients_are_taken():
    with pytest.raises(TypeError, match="Client"):
        dask_mars.take_over("tcp://127.0.0.1:8786")
    async with (
        LocalCluster(n_workers=0, processes=False, asynchronous=True, **LOCAL) as cluster,
        Client(cluster, asynchronous=True, set_as_default=False) as client,
    ):
        with pytest.raises(ValueError, match="asynchronous"):
            dask_mars.take_over(client)


class FakeNanny:
    """What the plugin knows of a nanny."""

    def __init__(
        self, memory_limit: int | None, error: Exception | None = None, worker_class: Any = Worker
    ) -> None:
        self.ip, self.address, self.status = "10.0.0.1", "tcp://10.0.0.1:1", Status.running
        self.Worker = worker_class
        self.memory_manager = SimpleNamespace(memory_limit=memory_limit, memory_terminate_fraction=0.95)
        self.process = SimpleNamespace(Worker=worker_class, worker_kwargs={"memory_limit": memory_limit})
        self.error, self.closes = error, False
        self.restarts: list[tuple[Any, int | None]] = []

    async def kill(self, reason: str) -> None:
        if self.closes:
            self.status = Status.closing

    async def instantiate(self) -> None:
        self.restarts.append((self.process.Worker, self.process.worker_kwargs["memory_limit"]))
        if self.error is not None:
            raise self.error


@gen_test()
async def test_nannies_of_a_host_share_its_memory():
    of_host = config.parse_memory(None)
    for given, expected in ((None, of_host // 4), (of_host, of_host // 4), (100, 100)):
        nanny, plugin = FakeNanny(given), StartAgents({"10.0.0.1": 4, "10.0.0.2": 1})
        await plugin.setup(nanny)
        assert nanny.restarts == [(start_taken_agent, expected)]
        assert nanny.memory_manager.memory_limit == expected
        assert nanny.memory_manager.memory_terminate_fraction == math.inf
        await plugin.teardown(nanny)
        assert nanny.restarts[1:] == [(Worker, given)]
        assert vars(nanny.memory_manager) == {"memory_limit": given, "memory_terminate_fraction": 0.95}


@gen_test()
async def test_nannies_that_start_or_close_do_not_restart_anything():
    nanny, plugin = FakeNanny(100), StartAgents({})
    process, nanny.process = nanny.process, None
    await plugin.setup(nanny)
    assert nanny.Worker is start_taken_agent
    nanny.process, nanny.status = process, Status.closing
    await plugin.teardown(nanny)
    assert not nanny.restarts
    # Its cluster is scaled down meanwhile.
    nanny.status, nanny.closes = Status.running, True
    await plugin.setup(nanny)
    assert not nanny.restarts


@gen_test()
async def test_nannies_go_back_once():
    nanny, removed = SimpleNamespace(plugins={TAKE_OVER: None}), []

    async def plugin_remove(name):
        del nanny.plugins[name]
        removed.append(name)

    nanny.plugin_remove = plugin_remove
    for _ in range(2):
        await _go_back(nanny)
    assert removed == [TAKE_OVER]


@gen_test()
async def test_workers_of_another_class_stay():
    nanny, plugin = FakeNanny(100, worker_class=Special), StartAgents({})
    await plugin.setup(nanny)
    await plugin.teardown(nanny)
    assert (nanny.Worker, nanny.restarts) == (Special, [])


@gen_test()
async def test_a_nanny_whose_agent_does_not_start_says_why():
    for error in (TimeoutError("late"), OSError("full")):
        with pytest.raises(RuntimeError, match=str(error)):
            await StartAgents({}).setup(FakeNanny(100, error))
