"""Clusters that are lost whole, or at any moment of a computation: its call goes on when they are back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_mars
from dask_mars.checkpointing.directory import computations
from dask_mars.cluster import backend, submission
from dask_mars.cluster.local_tasks import LocalTasks
from tests.cluster.conftest import Place
from tests.cluster.test_reconnecting_agents import AGENT, PATIENCE_S, Desk, names
from tests.conftest import Scripts, eventually
from tests.tasks import call_after, note_name, notes

pytestmark = pytest.mark.slow

WAITING = {"dask-mars.cluster.reconnect-timeout": f"{PATIENCE_S} s"}


class Hosts:
    """A scheduler, and agents in processes of their own, all of which can be killed at once.

    Parameters
    ----------
    scripts : Scripts
        Runs them.
    count : int
        Of agents.
    """

    def __init__(self, scripts: Scripts, count: int = 2) -> None:
        self._scripts = scripts
        self._count = count
        self._stack = contextlib.ExitStack()
        self.desk = self._stack.enter_context(Desk(scripts))
        self.agents: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        self.desk.start()
        self.start_agents()

    def start_agents(self) -> None:
        command = [*AGENT, "--no-nanny", f"--scheduler-file={self.desk.file}", "--reconnect"]
        self.agents = [
            self._stack.enter_context(self._scripts.start(*command, f"--name=host-{number}"))
            for number in range(self._count)
        ]

    def kill(self) -> None:
        """Kill all processes, as when the power fails."""
        assert self.desk.scheduler is not None
        for process in (self.desk.scheduler, *self.agents):
            # Each has a session of its own with all that it has started.
            os.killpg(process.pid, signal.SIGKILL)
        for process in (self.desk.scheduler, *self.agents):
            process.communicate(timeout=PATIENCE_S)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


@pytest.fixture
def hosts(scripts: Scripts) -> Iterator[Hosts]:
    with Hosts(scripts) as hosts:
        hosts.start()
        yield hosts
        hosts.kill()


@contextlib.contextmanager
def connected(hosts: Hosts) -> Iterator[Client]:
    # Agents with `--reconnect` make calls wait, too.
    with Client(scheduler_file=str(hosts.desk.file)) as client:
        assert eventually(lambda: len(names(client)) == 2, PATIENCE_S)
        yield client
        backend.close()
    # One that has given up leaves this to the end of the process.
    client._loop_runner.stop()


def named_parts(path: Path, count: int, seconds: float) -> list[Any]:
    """Return tasks that note their numbers, and whose keys end with them."""
    return [
        dask.delayed(call_after)(seconds, note_name, path, number, dask_key_name=f"part-{number:04}")
        for number in range(count)
    ]


def saved_parts(directory: Path) -> set[str]:
    """Return the numbers of those that are saved."""
    found = [key for each in computations(directory) for key, _ in each.read()[0]]
    return {str(int(key.removeprefix("part-"))) for key in found if str(key).startswith("part-")}


def kill_before_gathering(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill all once that all is computed, and nothing is fetched."""
    fetch, is_first = LocalTasks.fetch, [True]

    def fetch_late(tasks: LocalTasks, chunks: Any) -> None:
        if is_first:
            is_first.clear()
            assert eventually(lambda: all(future.done() for future in tasks.futures.values()), PATIENCE_S)
            hosts.kill()
            hosts.start()
        fetch(tasks, chunks)

    monkeypatch.setattr(LocalTasks, "fetch", fetch_late)


@pytest.mark.nightly
def test_a_scheduler_and_all_of_its_agents_are_killed_together(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a checkpoint that which was not saved is computed again, and nothing else; without one all is."""
    count, saved = 30, tmp_path / "saved"
    kept, lost = tmp_path / "kept", tmp_path / "lost"
    with connected(hosts):
        with dask.config.set({"dask-mars.checkpoint.directory": str(saved)}):
            with_checkpoint = dask_mars.submit(named_parts(kept, count, 0.1))
        without = dask_mars.submit(named_parts(lost, count, 0.1))
        assert eventually(lambda: min(len(notes(kept)), len(notes(lost))) >= count // 2, PATIENCE_S)
        hosts.kill()
        before, known = [len(notes(path)) for path in (kept, lost)], saved_parts(saved)
        assert len(known) >= before[0] // 2
        hosts.start()
        for computation in (with_checkpoint, without):
            assert computation.result(PATIENCE_S) == list(range(count))
        kill_before_gathering(hosts, monkeypatch)
        late = dask_mars.submit(named_parts(tmp_path / "late", 4, 0.0))
        assert late.result(PATIENCE_S) == list(range(4))
    assert len(notes(tmp_path / "late")) == 8
    everything = set(map(str, range(count)))
    assert sorted(notes(kept)[before[0] :]) == sorted(everything - known)
    assert sorted(notes(lost)[before[1] :]) == sorted(everything)
    assert not list(saved.iterdir())


# -- at which moment ----------------------------------------------------------------------------------------------


def first_time(place: Place, is_first: list[bool]) -> None:
    """Lose the scheduler and its agents, once."""
    if is_first:
        is_first.clear()
        place.stop()
        place.start()


def lost_before(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    is_first = [True]

    def call(*args: Any, **kwargs: Any) -> Any:
        first_time(place, is_first)
        return function(*args, **kwargs)

    return call


def lost_after(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    is_first = [True]

    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        first_time(place, is_first)
        return found

    return call


MOMENTS = {
    "cut": (submission, "cut_for", lost_before),
    "progress": (submission.ProgressReceiver, "open", lost_before),
    "to be sent": (submission._Submission, "_send", lost_before),
    "sent": (Client, "get", lost_after),
    "sent once": (submission, "register_once", lost_after),
    "fetched": (LocalTasks, "fetch", lost_before),
    "released": (submission, "unregister_once", lost_before),
}


#: Those of which the others are likenesses.
SHORT = ("progress", "to be sent", "sent")


@pytest.mark.parametrize("moments", [SHORT, pytest.param([*MOMENTS, *MOMENTS], marks=pytest.mark.nightly)])
def test_the_scheduler_is_lost_at_any_moment(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moments: Sequence[str]
) -> None:
    x = da.random.default_rng(5).random((40, 40), chunks=10) + 1
    expected = x.compute(scheduler="sync")
    with Client(place.address), dask.config.set(WAITING):
        for number, moment in enumerate(moments):
            owner, name, lost = MOMENTS[moment]
            saved = tmp_path / "saved" if (number < len(moments) // 2) else None
            with (
                monkeypatch.context() as patch,
                dask.config.set({"dask-mars.checkpoint.directory": saved and str(saved)}),
            ):
                patch.setattr(owner, name, lost(place, getattr(owner, name)))
                computation = dask_mars.submit(x)
                np.testing.assert_array_equal(computation.result(PATIENCE_S), expected, moment)
            assert not saved or list(saved.iterdir()) == []
        backend.close()
