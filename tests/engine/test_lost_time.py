"""Threads that wait for the interpreter's lock make room for processes, all but one of them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import dask
import pytest

from dask_mars import Runtime
from dask_mars.engine import startup
from dask_mars.engine.lost_time import lost_s
from dask_mars.limits import PROC
from dask_mars.optimize import library_code

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (PROC / "self/schedstat").exists(), reason="the system does not say who waits"),
]


@pytest.fixture(autouse=True)
def only_lost_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_PATIENCE_S", 1000.0)
    monkeypatch.setattr(startup, "_LOCKED_PATIENCE_S", 1000.0)
    monkeypatch.setattr(startup, "_MODULE_S", 0.0001)
    monkeypatch.setattr(startup, "_LEFT_S", 0.0)
    # The functions of this module are a library's, too.
    own = {__name__.partition(".")[0], "time"}
    monkeypatch.setattr(library_code, "LIBRARIES", library_code.LIBRARIES | own)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(num_workers=2) as runtime:
        yield runtime


def hold_the_lock(number: int) -> int:
    """Compute in Python alone."""
    return number + sum([index % 2 for index in range(400_000)])


def is_thread(worker: dict[str, Any]) -> bool:
    return any(thread.native_id == worker["pid"] for thread in threading.enumerate())


def kinds(runtime: Runtime) -> list[bool]:
    return sorted(is_thread(worker) for worker in runtime.state()["workers"])


def lost(runtime: Runtime) -> float:
    return runtime.engine()._loop.startup._lost_s


def test_nothing_is_lost_to_a_lock_that_is_off(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    for _ in range(3):
        dask.compute(*[dask.delayed(hold_the_lock)(number) for number in range(8)], scheduler=runtime.get)
    assert lost(runtime) == 0
    assert kinds(runtime) == [True, True]


def test_threads_that_wait_for_something_else_lose_nothing(runtime: Runtime) -> None:
    for _ in range(2):
        dask.compute(*[dask.delayed(time.sleep)(0.1, pure=False) for _ in range(4)], scheduler=runtime.get)
    assert runtime.engine().worker_pids() == []
    assert kinds(runtime) == [True, True]


@pytest.mark.parametrize(
    ("elapsed_s", "used_s", "spent", "expected"),
    [
        # One after the other.
        (1.0, 1.0, [(0, 0)] * 4, 3.0),
        # With others' programs on the processors half of the time: as much as in half of the time without them.
        (2.0, 1.0, [(0, 0.5), (0, 0.5)], 1.0),
        # Side by side.
        (1.0, 2.0, [(0, 0), (0, 0)], 0.0),
        # One has nothing to do.
        (1.0, 1.0, [(1.0, 0), (0, 0)], 0.0),
        # What is used is another thread's, of the user's, say.
        (1.0, 3.0, [(0, 0), (0, 0)], 0.0),
        (1.0, 1.0, [(0, 0)], 0.0),
        (1.0, 1.0, [], 0.0),
    ],
)
def test_what_is_lost(elapsed_s: float, used_s: float, spent: list[Any], expected: float) -> None:
    assert lost_s(elapsed_s, used_s, spent) == pytest.approx(expected)
