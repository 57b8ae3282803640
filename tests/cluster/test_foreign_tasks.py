"""The memory of tasks that threads of an agent compute."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest
from distributed.utils_test import gen_test

from dask_mars.cluster import foreign_tasks
from dask_mars.cluster.foreign_tasks import ForeignTasks


@pytest.fixture
def taken(monkeypatch):
    """Return the private bytes of this process, which tests change."""
    taken = [0]
    monkeypatch.setattr(foreign_tasks, "anonymous_bytes", lambda pid: taken[0])
    monkeypatch.setattr(foreign_tasks, "_POLL_S", 0.001)
    return taken


async def is_admitted_beside_another(tasks: ForeignTasks) -> bool:
    async with tasks.admit():
        waiting = asyncio.ensure_future(tasks.admit().__aenter__())
        await asyncio.sleep(0.02)
        at_once = waiting.done()
    await waiting
    return at_once


def test_tasks_run_one_at_a_time_while_memory_is_short(taken, monkeypatch):
    @gen_test()
    async def check():
        assert await is_admitted_beside_another(ForeignTasks(100))
        taken[0] = 81
        assert not await is_admitted_beside_another(ForeignTasks(100))
        # The running one may wait for the result of the other.
        monkeypatch.setattr(foreign_tasks, "_PAUSE_S", 0.0)
        assert await is_admitted_beside_another(ForeignTasks(100))

    check()


def test_an_agent_ends_when_tasks_have_taken_its_memory(taken, monkeypatch, nothing_left_behind):
    signals = []
    kill = lambda pid, number: signals.append((pid, number))  # noqa: E731
    monkeypatch.setattr(foreign_tasks, "os", SimpleNamespace(kill=kill, getpid=os.getpid))

    @gen_test()
    async def check():
        tasks = ForeignTasks(100)
        taken[0] = 96
        tasks.end_if_full()
        assert not signals
        async with tasks.admit():
            tasks.end_if_full()
        assert signals == [(os.getpid(), signal.SIGKILL)]

    check()
    assert "take more than 95%" in nothing_left_behind.pop()
