"""`dask-mars-worker` as users run it: its options, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import psutil
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster

import dask_mars
from dask_mars import config
from dask_mars.cluster import cli
from dask_mars.cluster.cli import _name, _processes, main
from tests.cluster.conftest import ended
from tests.conftest import Scripts, eventually
from tests.tasks import large_array, notes, sum_after

pytestmark = pytest.mark.slow

COMMAND = ["-m", "dask_mars.cluster.cli"]


@pytest.fixture(scope="module")
def scheduler(private_tmp: Path) -> Iterator[LocalCluster]:
    """Run a scheduler without workers."""
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


@pytest.fixture
def client(scheduler: LocalCluster) -> Iterator[Client]:
    with Client(scheduler, set_as_default=False) as client:
        yield client


def agents(client: Client) -> dict[str, Any]:
    return {told["name"]: told for told in client.scheduler_info()["workers"].values() if "dask-mars" in told}


def test_an_agent_under_its_nanny(scripts: Scripts, scheduler, client, tmp_path):
    file, pid_file = tmp_path / "scheduler.json", tmp_path / "pid"
    file.write_text(json.dumps({"address": scheduler.scheduler_address}))
    preload = scripts.write("preload.py", "def dask_setup(worker):\n    worker.was_here = True\n")
    options = f"--scheduler-file {file} --nworkers 2 --name alice --memory-limit 512MiB --store-limit 64MiB"
    options += f" --resources ROOM=2 --pid-file {pid_file} --local-directory {tmp_path} --death-timeout 60"
    options += f" --preload {preload} --dashboard-address 127.0.0.1:0"
    with scripts.start(*COMMAND, *options.split()) as process:
        assert eventually(lambda: "alice" in agents(client), 60)
        told = agents(client)["alice"]
        assert (told["nthreads"], told["resources"]) == (2, {"ROOM": 2.0})
        assert told["memory_limit"] > 512 << 20
        assert told["services"]["dashboard"]
        assert told["nanny"]
        assert int(pid_file.read_text()) == process.pid
        settings = client.run(lambda dask_worker: dask_worker.engine.settings)
        (own,) = settings.values()
        assert (own.num_workers, own.memory_limit, own.store_limit) == (2, 512 << 20, 64 << 20)
        assert own.spill_directory.is_relative_to(tmp_path)
        assert list(client.run(lambda dask_worker: dask_worker.was_here).values()) == [True]
        x = da.ones((100, 100), chunks=50)
        assert (x + x.T).sum().compute(scheduler=partial(dask_mars.get, client=client)) == 20_000
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0
    assert not pid_file.exists()
    assert eventually(lambda: not agents(client), 5)


def test_a_host_that_leaves_hands_on_what_it_has_and_one_that_dies_is_made_up_for(
    scripts: Scripts, scheduler, client, tmp_path
):
    get = partial(dask_mars.get, client=client)
    start = partial(scripts.start, *COMMAND, scheduler.scheduler_address, "--nworkers=1")
    names = {"one": "--nanny", "two": "--no-nanny", "three": "--no-nanny"}
    with ExitStack() as stack:
        one, two, three = [stack.enter_context(start(f"--name={name}", nanny)) for name, nanny in names.items()]
        assert eventually(lambda: len(agents(client)) == 3, 20)
        future = client.submit(os.getpid, workers="one", allow_other_workers=True, pure=False)
        value = future.result()
        # As in a terminal, where the agent gets the signal too, and not its nanny alone.
        os.killpg(one.pid, signal.SIGINT)
        assert ended(one) == 0
        assert future.result() == value

        begun, done = tmp_path / "begun", tmp_path / "done"
        graph: dict[Any, Any] = {("x", number): (large_array, 0.1, number) for number in range(20)}
        graph["total"] = (sum_after, str(begun), str(done), [("x", number) for number in range(20)])

        def kill_it() -> None:
            assert eventually(lambda: notes(begun), 20)
            agent = psutil.Process(int(notes(begun)[0])).ppid()
            assert agent in (two.pid, three.pid)
            os.kill(agent, signal.SIGKILL)
            done.touch()

        killer = threading.Thread(target=kill_it)
        killer.start()
        assert get(graph, "total") == sum(range(20))
        killer.join()
        assert len(notes(begun)) == 2
        assert len(agents(client)) == 1
        (last,) = [process for process in (two, three) if process.poll() is None]
        future = client.submit(os.getpid, pure=False)
        assert future.result() == last.pid
        last.send_signal(signal.SIGTERM)
        assert ended(last) == 0


SLOW_TO_KNOW = """
import asyncio
from distributed.nanny import WorkerProcess

# Dask loads such modules twice.
wait = WorkerProcess.wait = getattr(WorkerProcess, "wait", WorkerProcess._wait_until_connected)

async def wait_longer(*args):
    found = await wait(*args)
    await asyncio.sleep(3)
    return found

WorkerProcess._wait_until_connected = wait_longer
"""


@pytest.mark.nightly
@pytest.mark.parametrize("whole_group", [True, False])
def test_a_host_leaves_well_before_its_nanny_knows_that_it_has_begun(
    whole_group: bool, scripts: Scripts, scheduler, client
):
    preload = scripts.write("slow.py", SLOW_TO_KNOW)
    start = partial(scripts.start, *COMMAND, scheduler.scheduler_address, "--nworkers=1")
    with start("--name=one", f"--preload-nanny={preload}") as one, start("--name=two", "--no-nanny") as two:
        assert eventually(lambda: len(agents(client)) == 2, 20)
        future = client.submit(os.getpid, workers="one", allow_other_workers=True, pure=False)
        value = future.result()
        os.killpg(one.pid, signal.SIGINT) if whole_group else one.send_signal(signal.SIGTERM)
        assert ended(one) == 0
        assert future.result() == value
        del future
        two.send_signal(signal.SIGTERM)
        assert ended(two) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "address of a scheduler"),
        (["tcp://127.0.0.1:1", "--nworkers", "many"], "neither a number"),
        (["tcp://127.0.0.1:1", "--nworkers", "-1000"], "at least one"),
        (["tcp://127.0.0.1:1", "--resources", "GPU"], "GPU=2"),
        (["tcp://127.0.0.1:1", "--nthreads", "0"], "--nthreads"),
        (["tcp://127.0.0.1:1", "--worker-port", "some"], "'--worker-port': 'some' is neither a port"),
        (["tcp://127.0.0.1:1", "--nanny-port", "1:70000"], "'--nanny-port': '1:70000' is neither a port"),
        (["tcp://127.0.0.1:1", "--death-timeout", "soon"], "'--death-timeout': 'soon' is neither"),
        (["tcp://127.0.0.1:1", "--lifetime", "5 moons"], "'--lifetime': '5 moons' is neither"),
        (["tcp://127.0.0.1:1", "--lifetime-stagger", "x"], "'--lifetime-stagger': 'x' is neither"),
        (["tcp://127.0.0.1:1", "--preload", "no_such_module"], "--preload: ModuleNotFoundError"),
        (["tcp://127.0.0.1:1", "--pid-file", "/no/such/file"], "--pid-file: cannot be written"),
        (["tcp://127.0.0.1:1", "--tls-key", "/"], "is a directory"),
        (["tcp://127.0.0.1:1", "--no-such-option"], "No such option"),
        (["--nonsense"], "No such option '--nonsense'"),
        (["localhost"], "missing port number in address 'localhost'; a scheduler's address is like tcp://"),
        (["http://127.0.0.1:1"], "unknown address scheme 'http'"),
        (["tcp://127.0.0.1:1", "--tls-key", "/no/such/file"], "does not exist"),
        (["tcp://127.0.0.1:1", "--memory-limit", "lots"], "--memory-limit must be"),
        (["tcp://127.0.0.1:1", "--memory-limit", "-1"], "not -1"),
        (["tcp://127.0.0.1:1", "--memory-limit", "nan"], "not nan"),
        (["tcp://127.0.0.1:1", "--memory-limit", "True"], "not 'True'"),
        (["tcp://127.0.0.1:1", "--store-limit", "lots"], "--store-limit must be"),
        (["tcp://127.0.0.1:1", "--store-limit", "0"], "--store-limit must be"),
        (["tcp://127.0.0.1:1", "--contact-address", "tcp://10.0.0.1:9000"], "needs --listen-address"),
        (["tcp://127.0.0.1:1", "--listen-address", "tcp://:9000", "--worker-port", "9000"], "already"),
        (["tcp://127.0.0.1:1", "--listen-address", "tcp://10.0.0.1"], "missing port"),
    ],
)
def test_mistakes(arguments, complaint):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        # One stands for the others.
        (["--interface=no0"], "with --interface: ValueError: 'no0' is not a valid network interface"),
        pytest.param(
            ["--protocol=foo", "--no-nanny"],
            "with --protocol, --nanny: ValueError: unknown address scheme 'foo'",
            marks=pytest.mark.nightly,
        ),
        pytest.param(["--tls-ca-file", __file__], "with --tls-ca-file: ", marks=pytest.mark.nightly),
    ],
)
def test_an_agent_that_cannot_start_names_what_it_was_given(scripts: Scripts, options: list[str], said: str):
    done = scripts.run(*COMMAND, "tcp://127.0.0.1:1", *options, timeout_s=100)
    assert done.returncode == 1
    assert f"Error: the agent cannot start {said}" in done.stderr
    # Dask logs its own before.
    assert "Traceback" not in done.stderr.partition("Error: the agent")[2]


@pytest.mark.nightly
def test_signal_while_there_is_no_scheduler(scripts: Scripts):
    with scripts.start(*COMMAND, "tcp://127.0.0.1:1", "--no-nanny", "--nworkers=1") as process:
        while "Waiting to connect" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0


@pytest.mark.parametrize("nanny", [pytest.param("--nanny", marks=pytest.mark.nightly), "--no-nanny"])
def test_an_agent_whose_processes_take_more_than_its_limit_does_not_start(
    scripts: Scripts, scheduler, client, nanny
):
    options = (nanny, "--nworkers=2", "--memory-limit=20MiB", "--dashboard-address=127.0.0.1:0")
    done = scripts.run(*COMMAND, scheduler.scheduler_address, *options, timeout_s=60)
    assert done.returncode == 1
    assert "a memory limit of 20,971,520 bytes is not enough for num_workers=2" in done.stderr
    assert eventually(lambda: not agents(client), 5)


def test_a_scheduler_that_does_not_answer(tmp_path):
    options = f"tcp://127.0.0.1:1 --no-nanny --death-timeout=0.2 --nworkers=1 --local-directory={tmp_path}"
    assert CliRunner().invoke(main, options.split()).exit_code == 1


@pytest.fixture
def served(monkeypatch) -> dict[str, Any]:
    """Return the options of the agent that would have been started, or of its nanny."""
    found: dict[str, Any] = {}

    async def serve(nanny: bool, scheduler: str, options: dict[str, Any], reconnect_s: float) -> bool:
        found.update(options, nanny=nanny, scheduler=scheduler, reconnect_s=reconnect_s)
        return True

    monkeypatch.setattr(cli, "serve", serve)
    return found


def started(*arguments: str) -> None:
    name = "distributed.worker.memory.terminate"
    # The command changes that for its process.
    with dask.config.set({name: dask.config.get(name)}):
        result = CliRunner().invoke(main, [*arguments])
    assert result.exit_code == 0, result.output


def test_limits_of_the_container_hold(served, monkeypatch):
    monkeypatch.setattr(config, "memory_available", lambda: 1000)
    for given, expected in {"auto": 800, "0": 1000, "1": 1000, "0.5": 500, "250B": 250}.items():
        started("tcp://127.0.0.1:1", "--memory-limit", given)
        assert served["memory_limit"] == expected
    monkeypatch.setattr(cli, "CPU_COUNT", 3)
    started("tcp://127.0.0.1:1")
    assert (served["memory_limit"], served["nthreads"]) == (800, 3)


@pytest.mark.parametrize("limit", [0, "lots"])
def test_a_limit_in_the_configuration_that_makes_no_sense(limit):
    with dask.config.set({"dask-mars.memory-limit": limit}):
        result = CliRunner().invoke(main, ["tcp://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "dask-mars.memory-limit must be" in " ".join(result.output.split())


def test_addresses(served):
    started(
        "tcp://127.0.0.1:1", "--listen-address=tcp://[::1]:9000", "--contact-address=tcp://far:9001", "--no-nanny"
    )
    assert (served["host"], served["port"], served["contact_address"]) == ("[::1]", "9000", "tcp://far:9001")
    assert not served["nanny"]


def test_files_go_where_nobody_else_can_write(served, tmp_path):
    name = f"dask-scratch-space-{os.getuid()}"
    started("tcp://127.0.0.1:1", "--local-directory", str(tmp_path / "one"))
    assert served["local_directory"] == str(tmp_path / "one" / name)
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        started("tcp://127.0.0.1:1")
    assert served["local_directory"] == str(tmp_path / name)
    (tmp_path / name).chmod(0o777)
    result = CliRunner().invoke(main, ["tcp://127.0.0.1:1", "--local-directory", str(tmp_path)])
    assert result.exit_code == 1
    assert "choose --local-directory" in result.output


def test_numbers():
    assert [_processes(*given) for given in (("3", None), ("3", 2), (None, 5), ("auto", 5))] == [3, 6, 5, 5]
    assert [_name(given) for given in ("7", "alice", "host-7", None)] == [7, "alice", "host-7", None]
    numbers = [config.as_number(given) for given in ("0.5", "1", "1000", "4 GiB", 7, "inf", None)]
    # The types count.
    assert repr(numbers) == "[0.5, 1.0, 1000, '4 GiB', 7, inf, None]"


WITHOUT_DISTRIBUTED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "distributed":
            raise ModuleNotFoundError(f"No module named {name!r}", name="distributed")

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize(
    "program",
    [
        "from dask_mars.commands import worker; worker()",
        "sys.argv = ['dask', 'mars', 'worker']; from dask.cli import run_cli; run_cli()",
    ],
)
def test_without_distributed_it_says_what_to_install(scripts: Scripts, program: str):
    done = scripts.run("-c", WITHOUT_DISTRIBUTED + program)
    assert "pip install 'dask-mars[distributed]' installs it" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_without_distributed_one_machine_computes_and_more_say_what_is_missing(scripts: Scripts):
    program = """
import dask.array as da, dask_mars
print(da.ones(10, chunks=5).sum().compute(scheduler=dask_mars.get))
for way in (lambda: dask_mars.LocalMarsCluster, lambda: dask_mars.get({"x": 1}, "x", client="tcp://there:1")):
    try:
        way()
    except ModuleNotFoundError as error:
        print("pip install 'dask-mars[distributed]'" in str(error))
"""
    done = scripts.run("-c", WITHOUT_DISTRIBUTED + program)
    assert (done.stdout.split(), done.stderr) == (["10.0", "True", "True"], "")
