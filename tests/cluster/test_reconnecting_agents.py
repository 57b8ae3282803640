"""`dask-mars-worker --reconnect`, beside a `dask scheduler` that is killed and started again."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import psutil
import pytest
from click.testing import CliRunner
from distributed import Client

import dask_mars
from dask_mars import config
from dask_mars.cluster import backend
from dask_mars.cluster.cli import _reconnect_s, main
from dask_mars.cluster.planning import AgentInfo
from dask_mars.cluster.reconnection import _record_agents, patience_s
from tests.cluster.conftest import ended
from tests.conftest import PATIENCE_S, Scripts, eventually
from tests.tasks import notes, pass_on_slowly

pytestmark = pytest.mark.slow

AGENT = ["-m", "dask_mars.cluster.cli", "--nworkers=1", "--no-dashboard", "--memory-limit=512MiB"]


class Desk:
    """Starts and kills schedulers, which write where they are into a file.

    Parameters
    ----------
    scripts : Scripts
        Runs them.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._stack = contextlib.ExitStack()
        self.file = scripts.directory / "scheduler.json"
        self.scheduler: subprocess.Popen[str] | None = None

    def start(self, port: int = 0) -> str:
        """Start one, and return its address."""
        self.file.unlink(missing_ok=True)
        command = ["-m", "dask", "scheduler", "--no-dashboard", "--host=127.0.0.1"]
        self.scheduler = self._stack.enter_context(
            self._scripts.start(
                *command, f"--port={port}", f"--scheduler-file={self.file}", stdin=subprocess.DEVNULL
            )
        )
        assert eventually(self._address, PATIENCE_S)
        return str(self._address())

    def _address(self) -> str | None:
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(self.file.read_text())["address"])
        return None

    def kill(self, how: int = signal.SIGKILL) -> None:
        assert self.scheduler is not None
        self.scheduler.send_signal(how)
        self.scheduler.communicate(timeout=PATIENCE_S)

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


@pytest.fixture
def desk(scripts: Scripts) -> Iterator[Desk]:
    with Desk(scripts) as desk:
        yield desk


def names(client: Client) -> set[str]:
    with contextlib.suppress(OSError):
        told = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=5)
        return {worker["name"] for worker in told["workers"].values()}
    return set()


def wait_until_said(process: subprocess.Popen[str], text: str) -> None:
    """Wait for a line of a log."""
    assert process.stderr is not None
    assert any(text in line for line in process.stderr), f"it ended without {text!r}"


def others(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the processes of an agent but for its first, and for what Python starts to clean up behind others."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "multiprocessing.resource_tracker" not in " ".join(child.cmdline())]


@pytest.mark.nightly
def test_a_sum_whose_scheduler_is_killed_and_comes_back_also_elsewhere(
    scripts: Scripts, desk: Desk, tmp_path: Path
):
    address = desk.start()
    x = da.random.default_rng(7).random(24_000, chunks=1_000)
    path = tmp_path / "notes"
    total = x.map_blocks(pass_on_slowly, path, 0.1, dtype=x.dtype).sum()
    expected = x.sum().compute(scheduler="threads")
    start = partial(scripts.start, *AGENT, f"--scheduler-file={desk.file}", "--reconnect")
    with (
        start("--name=one") as one,
        start("--name=two", "--no-nanny") as two,
        Client(scheduler_file=str(desk.file)) as client,
    ):
        assert eventually(lambda: len(names(client)) == 2, PATIENCE_S)
        computation = dask_mars.submit(total)
        # At the same address, and then at any.
        for port in (int(address.rpartition(":")[2]), 0):
            before = len(notes(path))
            assert eventually(lambda before=before: len(notes(path)) >= before + 3, PATIENCE_S)
            desk.kill()
            assert eventually(lambda: "was lost" in computation.explain(), PATIENCE_S)
            desk.start(port)
        assert computation.result(PATIENCE_S) == expected
        backend.close()
        for agent in (one, two):
            agent.send_signal(signal.SIGTERM)
        assert [ended(agent) for agent in (one, two)] == [0, 0]
    assert 24 + 3 + 3 <= len(notes(path)) <= 3 * 24


@pytest.mark.parametrize("nanny", [pytest.param("--nanny", marks=pytest.mark.nightly), "--no-nanny"])
def test_what_a_host_does_without_a_scheduler(scripts: Scripts, desk: Desk, nanny: str):
    address = desk.start()
    start = partial(scripts.start, *AGENT, address, nanny)
    with (
        start("--name=first", "--reconnect") as first,
        start("--name=second", "--reconnect") as second,
        start("--name=third", "--reconnect-timeout=500ms") as third,
    ):
        with Client(address, set_as_default=False) as client:
            assert eventually(lambda: len(names(client)) == 3, PATIENCE_S)
            # One that has not begun looks for a scheduler as at its start, and says nothing of it.
            if nanny == "--nanny":
                client.run(int, nanny=True)
            else:
                for begun in (first, second):
                    wait_until_said(begun, "Starting established connection")
        # As when it is stopped for another one.
        desk.kill(signal.SIGTERM)
        assert ended(third) == 1
        for waiting in (first, second):
            wait_until_said(waiting, "; waiting for one for 600 s at most")
            # There is nothing else of it.
            assert eventually(lambda waiting=waiting: not others(waiting), PATIENCE_S)
        first.send_signal(signal.SIGINT)
        assert ended(first) == 0
        second.kill()
        ended(second)


@pytest.mark.nightly
def test_hosts_that_wait_for_their_first_scheduler(scripts: Scripts, desk: Desk):
    desk.file.write_text("half writ")
    command = [*AGENT, f"--scheduler-file={desk.file}", "--name=early", "--reconnect"]
    with (
        scripts.start(*command) as early,
        scripts.start(*AGENT, "tcp://127.0.0.1:1", "--reconnect-timeout=100ms") as never,
    ):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            # What is there and says nothing is no scheduler.
            address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
            desk.file.write_text(json.dumps({"address": address}))
            connection, _ = silent.accept()
            connection.close()
        address = desk.start()
        with Client(address, set_as_default=False) as client:
            assert eventually(lambda: names(client) == {"early"}, PATIENCE_S)
            # Who is sent away does not come back.
            client.retire_workers(names=["early"])
            assert ended(early) == 0
        _, err = never.communicate(timeout=PATIENCE_S)
        assert never.returncode == 1
        assert "there is no scheduler at tcp://127.0.0.1:1 after 0.1 s of waiting" in err


@pytest.mark.parametrize("given", ["--reconnect-timeout=soon", "--reconnect-timeout=0", "--reconnect-timeout=inf"])
def test_times_that_make_no_sense(given: str):
    result = CliRunner().invoke(main, ["tcp://127.0.0.1:1", given])
    assert result.exit_code == 2
    assert "--reconnect-timeout must be a number of seconds" in " ".join(result.output.split())


def test_calls_wait_as_long_as_their_agents_unless_the_setting_says_otherwise():
    class Cluster:
        pass

    def waits(*agents_s: float, is_saved: bool = False) -> float:
        cluster: Any = Cluster()
        _record_agents(cluster, [AgentInfo(f"tcp://{s}", 1, "", {}, reconnect_s=s) for s in agents_s])
        return patience_s(cluster, is_saved)

    assert [waits(600.0, 30.0), waits(600.0, 0.0), waits(0.0), waits(0.0, is_saved=True)] == [30, 0, 0, 600]
    for given, expected in (("5 s", 5), (0, 0)):
        with dask.config.set({"dask-mars.cluster.reconnect-timeout": given}):
            assert waits(600.0) == waits(0.0, is_saved=True) == expected


def test_how_long_is_waited():
    with dask.config.set({"dask-mars.cluster.reconnect-timeout": None}):
        assert [_reconnect_s(*given) for given in ((None, None), (True, None), (False, "5 s"), (None, "5 s"))] == [
            0,
            600,
            0,
            5,
        ]
    with dask.config.set({"dask-mars.cluster.reconnect-timeout": "1 h"}):
        assert [_reconnect_s(*given) for given in ((None, None), (True, None), (True, "5 s"))] == [0, 3600, 5]
    for wrong in ("never", -1, True):
        with (
            dask.config.set({"dask-mars.cluster.reconnect-timeout": wrong}),
            pytest.raises(ValueError, match=r"cluster\.reconnect-timeout must be"),
        ):
            config.reconnect_s()
