"""Clusters of several hosts: what they exchange, and what happens when one is lost, cut off, or leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Security, futures_of, wait

import dask_mars
from tests.conftest import environment_for_scripts, eventually, shared_hosts
from tests.namespaces import Host, Network, why_not
from tests.tasks import notes, pass_on

WHY_NOT = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

#: How soon Dask notices that a host is cut off. It takes no less than this.
SHORT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s"}
#: Until something that does happen is taken not to.
LONG_S = 60.0
#: Chunks of arrays, and numbers in each.
CHUNKS = 24
LENGTH = 10_000


#: What a user may run: address of the scheduler, files for `pass_on`.
ENDLESS = """
import sys
import dask.array as da
import dask_mars
from distributed import Client
from tests.tasks import pass_on
with Client(sys.argv[1]):
    x = da.ones(8, chunks=1)
    x.map_blocks(pass_on, *sys.argv[2:], meta=x._meta).compute(scheduler=dask_mars.get)
"""


class Site:
    """A scheduler, agents, and a desk for the client, each on a host of its own.

    Parameters
    ----------
    directory : Path
        Where they write.
    security : mapping, optional
        Of `distributed.Security`.
    options : sequence of str, optional
        For the scheduler.
    **env
        Variables in its environment.
    """

    def __init__(
        self, directory: Path, security: Mapping[str, str] | None = None, options: Sequence[str] = (), **env: str
    ) -> None:
        self.directory = directory
        self.programs: dict[Host, subprocess.Popen[Any]] = {}
        self._security = security
        self.network = Network()
        self.desk = self.network.host("desk")
        self.scheduler = self.network.host("scheduler")
        self.address = f"{'tls' if security else 'tcp'}://{self.scheduler.address}:8786"
        command = ["dask", "scheduler", "--no-dashboard", "--protocol", self.address[:3], *options]
        self._start(self.scheduler, command + tls_options("scheduler", security), **env)

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *exception: object) -> None:
        self.network.close()
        for host, program in self.programs.items():
            program.wait()
            # Shown if the test fails.
            print(f"--- {host.name}", self.log(host), sep="\n")

    def client(self) -> Client:
        """Return a client that sits at the desk."""
        security = self._security and Security(require_encryption=True, **self._security)
        with self.desk.entered():
            return Client(self.address, security=security, timeout=LONG_S)

    def agent(self, name: str, *options: str, security: Mapping[str, str] | None = None, **env: str) -> Host:
        """Start an agent on a new host, with some variables in its environment."""
        host = self.network.host(name)
        folder = self.directory / name
        folder.mkdir()
        command = ["dask_mars.cluster.cli", self.address, "--name", name, "--local-directory", str(folder)]
        command += ["--nworkers=1", "--memory-limit=512MiB", *options]
        self._start(host, command + tls_options("worker", security or self._security), **env)
        return host

    @contextmanager
    def visitor(self, name: str, *options: str) -> Iterator[Host]:
        """Have an agent on a new host for a while."""
        host = self.agent(name, *options)
        try:
            yield host
        finally:
            self.network.remove(host)
            self.programs.pop(host).wait()
            print(f"--- {name}", self.log(host), sep="\n")

    def log(self, host: Host) -> str:
        return (self.directory / f"{host.name}.log").read_text()

    def program_of_user(self, text: str, *arguments: str) -> subprocess.Popen[Any]:
        """Start a program at the desk."""
        env = environment_for_scripts(str(self.directory))
        return self.desk.popen([sys.executable, "-c", text, self.address, *arguments], env=env)

    def _start(self, host: Host, command: list[str], **env: str) -> None:
        with (self.directory / f"{host.name}.log").open("wb") as log:
            self.programs[host] = host.popen(
                [sys.executable, "-m", *command],
                cwd=self.directory,
                env=environment_for_scripts(str(self.directory), **SHORT, **env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def tls_options(role: str, security: Mapping[str, str] | None) -> list[str]:
    if not security:
        return []
    ca_file, certificate, key = [security[f"tls_{name}"] for name in ("ca_file", f"{role}_cert", f"{role}_key")]
    return ["--tls-ca-file", ca_file, "--tls-cert", certificate, "--tls-key", key]


@pytest.fixture(scope="module")
def site(private_tmp: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two hosts with agents, which no test may harm."""
    with Site(tmp_path_factory.mktemp("site")) as site:
        hosts = [site.scheduler, site.agent("one"), site.agent("two")]
        with site.client() as client:
            client.wait_for_workers(2, timeout=LONG_S)
        # The agents are the last two: hosts of other modules may be there.
        shared_hosts.extend(hosts)
        yield site
        for host in hosts:
            shared_hosts.remove(host)


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    """Return a client; in the end no host may have anything of its."""
    with site.client() as client:
        yield client
        assert eventually(lambda: nothing_is_left(client), 10), left(client)


def left(client: Client) -> dict[str, tuple[int, ...]]:
    """Return what each agent has: results, bytes of them, and subtasks that are running."""
    return client.run(
        lambda dask_worker: (
            len(dask_worker.data),
            dask_worker.engine.inspection.state()["store"]["stored_bytes"],
            len(dask_worker._subtasks),
        ),
        # Some may be gone, and the scheduler not know yet.
        on_error="ignore",
    )


def nothing_is_left(client: Client) -> bool:
    return not any(map(any, left(client).values()))


class Work:
    """An array whose chunks are there, and a computation on it that waits half-way until it is told to go on.

    What makes the chunks, and what computes with them, note the processes that they run in.

    Parameters
    ----------
    folder : Path
        For the notes.
    made_at : str, optional
        Name of the only host that makes chunks.
    """

    def __init__(self, folder: Path, made_at: str | None = None) -> None:
        self.made, self.begun, self.gate = [folder / name for name in ("made", "begun", "gate")]
        numbers = np.arange(float(CHUNKS * LENGTH))
        self.expected = numbers.sum()
        array = da.from_array(numbers, chunks=LENGTH)
        with dask.annotate(**({"workers": [made_at]} if made_at else {})):
            array = array.map_blocks(pass_on, str(self.made), meta=array._meta)
        self.chunks = array.persist(scheduler=dask_mars.get)
        wait(self.chunks)
        assert len(notes(self.made)) == CHUNKS
        waiting = self.chunks.map_blocks(pass_on, str(self.begun), str(self.gate), meta=array._meta)
        self._pool = ThreadPoolExecutor(1)
        self._total: Future[float] = self._pool.submit(waiting.sum().compute, scheduler=dask_mars.get)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *exception: object) -> None:
        self.gate.touch()
        self._pool.shutdown()
        del self.chunks

    def is_at(self, host: Host) -> bool:
        """Tell whether a host has begun with it."""
        return any(host.has(int(pid)) for pid in notes(self.begun))

    def go_on(self) -> None:
        """Let it go on."""
        self.gate.touch()

    def total(self) -> float:
        """Wait for its end."""
        return self._total.result(LONG_S)


def agents(client: Client) -> dict[str, Any]:
    """Return what the scheduler knows of each agent, by name."""
    return {told["name"]: told for told in client.scheduler_info()["workers"].values()}


# -- together -------------------------------------------------------------------------------------------------


def test_hosts_exchange_what_they_have_computed(client, tmp_path):
    hosts = shared_hosts[-2:]
    x = da.random.default_rng(2).random((1200, 1200), chunks=300)
    seen = x.map_blocks(pass_on, str(tmp_path / "seen"), meta=x._meta)
    before = [host.traffic() for host in hosts]
    total = (seen @ seen.T).sum().compute(scheduler=dask_mars.get)
    assert total == pytest.approx((x @ x.T).sum().compute(scheduler="sync"))
    assert {host for host in hosts for pid in notes(tmp_path / "seen") if host.has(int(pid))} == set(hosts)
    for host, (received, sent) in zip(hosts, before, strict=True):
        # More than a chunk of it, and nobody but the other host had any.
        assert host.traffic()[0] - received > 300 * 300 * 8
        assert host.traffic()[1] - sent > 300 * 300 * 8


def test_only_servers_of_dask_listen(client):
    told = agents(client)
    pids = client.run(lambda dask_worker: (os.getpid(), os.getppid(), dask_worker.engine.worker_pids()))
    for host in shared_hosts[-2:]:
        agent = told[host.name]
        own, nanny, processes = pids[address_of(client, host)]
        assert host.pids().issuperset({own, nanny, *processes})
        listening = host.listening()
        servers = {port_of(address_of(client, host)): own, agent["services"]["dashboard"]: own}
        servers[port_of(agent["nanny"])] = nanny
        assert {socket.port: socket.pids for socket in listening} == {
            port: frozenset({pid}) for port, pid in servers.items()
        }
        assert {socket.kind for socket in listening} <= {"tcp", "tcp6"}


# -- lost, cut off, late, and leaving -------------------------------------------------------------------------


def test_a_host_that_is_killed_is_made_up_for(site, client, tmp_path):
    with site.visitor("killed") as visitor:
        client.wait_for_workers(3, timeout=LONG_S)
        with Work(tmp_path) as work:
            assert eventually(lambda: work.is_at(visitor), LONG_S)
            semaphores = visitor.semaphores()
            visitor.kill()
            # Nothing stays behind in the memory that outlives processes.
            assert semaphores
            assert not any(map(os.path.exists, semaphores))
            work.go_on()
            assert work.total() == work.expected
            # Chunks that were there are so again.
            assert len(notes(work.made)) > CHUNKS
            assert work.chunks.sum().compute(scheduler=dask_mars.get) == work.expected
        assert "killed" not in agents(client)


@pytest.mark.nightly
def test_a_host_that_is_cut_off_is_made_up_for_and_ends(site, client, tmp_path):
    with site.visitor("cut") as visitor:
        client.wait_for_workers(3, timeout=LONG_S)
        with Work(tmp_path) as work:
            assert eventually(lambda: work.is_at(visitor), LONG_S)
            visitor.cut()
            work.go_on()
            assert work.total() == work.expected
            assert "cut" not in agents(client)
            # What it has computed meanwhile is of no use to anybody.
            visitor.join()
            assert site.programs[visitor].wait(LONG_S) == 0
            assert eventually(lambda: not visitor.pids(), LONG_S)
            assert work.chunks.sum().compute(scheduler=dask_mars.get) == work.expected
        assert set(agents(client)) == {"one", "two"}


# -- cancelling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["interrupt", *[pytest.param(how, marks=pytest.mark.nightly) for how in ("cancel", "death")]]
)
def test_cancelled_subtasks_end_on_all_hosts(site, client, tmp_path, how):
    begun, never = tmp_path / "begun", tmp_path / "never"
    x = da.random.default_rng(2).random(CHUNKS * LENGTH, chunks=LENGTH).persist(scheduler=dask_mars.get)
    endless = x.map_blocks(pass_on, str(begun), str(never), meta=x._meta)

    def is_running() -> bool:
        return all(any(host.has(int(pid)) for pid in notes(begun)) for host in shared_hosts[-2:])

    def interrupt() -> None:
        assert eventually(is_running, LONG_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    if how == "interrupt":
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            endless.compute(scheduler=dask_mars.get)
        thread.join()
    elif how == "death":
        program = site.program_of_user(ENDLESS, str(begun), str(never))
        assert eventually(is_running, LONG_S)
        program.kill()
        program.wait()
    else:
        kept = endless.persist(scheduler=dask_mars.get)
        assert eventually(is_running, LONG_S)
        if how == "cancel":
            client.cancel(futures_of(kept))
        del kept
    del endless
    assert eventually(lambda: not any(running for _, _, running in left(client).values()), 10)
    assert (x + 1).sum().compute(scheduler=dask_mars.get) == pytest.approx(1.5 * CHUNKS * LENGTH, rel=0.01)


# -- security -------------------------------------------------------------------------------------------------


def address_of(client: Client, host: Host) -> str:
    (address,) = [
        address for address, told in client.scheduler_info()["workers"].items() if told["name"] == host.name
    ]
    return address


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
