"""What becomes of computations while records cannot be written."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest

from dask_mars.web.service.store import CannotRecord, ServiceStore
from dask_mars.web.service.supervisor import Supervisor
from tests.conftest import eventually
from tests.web.services import submission

pytest.importorskip("tornado")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ServiceStore]:
    store = ServiceStore(tmp_path / "d")
    yield store
    store.close()


@pytest.fixture
def supervisor(store: ServiceStore, nothing_left_behind: list[str]) -> Iterator[Supervisor]:
    supervisor = Supervisor(store, {"num_workers": 1, "memory_limit": None, "scheduler": None})
    supervisor.start()
    yield supervisor
    supervisor.close()
    # What is logged of deaths and full disks is meant.
    nothing_left_behind.clear()


def add(store: ServiceStore, value: Any) -> int:
    """Record what is to be computed, and return its number."""
    id, path = str(uuid.uuid4()), store.incoming("body")
    path.write_bytes(submission(value))
    return int(store.add(id, id, "", {}, path)[0]["number"])


def state(store: ServiceStore, number: int) -> str:
    return str(store.numbered(number)["state"])


def answers(supervisor: Supervisor) -> bool:
    with contextlib.suppress(TimeoutError):
        return bool(supervisor.ask("state")["memory"]["limit_bytes"])
    return False


def never(*arguments: Any, **values: Any) -> bool:
    raise CannotRecord("the disk is full")


def test_nothing_begins_or_ends_that_is_not_recorded(
    store, supervisor, monkeypatch: pytest.MonkeyPatch, nothing_left_behind: list[str]
) -> None:
    numbers = [add(store, dask.delayed(abs)(-1)) for _ in range(3)]
    assert eventually(lambda: answers(supervisor), 20)
    with monkeypatch.context() as patched:
        patched.setattr(store, "update", never)
        assert [supervisor.submit(number) for number in numbers] == [False] * 3
        time.sleep(1.2)
        assert [state(store, number) for number in numbers] == ["queued"] * 3
        assert supervisor.waiting() == 3
    assert eventually(lambda: [state(store, number) for number in numbers] == ["finished"] * 3, 20)
    # However often it is tried.
    assert nothing_left_behind == [
        "the service cannot write its records: the disk is full; until then nothing is begun "
    ]
    # What is cancelled in the queue leaves it.
    number = add(store, dask.delayed(abs)(-1))
    with monkeypatch.context() as patched:
        patched.setattr(store, "end", never)
        patched.setattr(supervisor, "_dispatch", lambda: None)
        supervisor.submit(number)
        assert supervisor.cancel(number)
        # Once more, as nothing of it is to be seen yet.
        assert supervisor.cancel(number)
        assert state(store, number) == "queued"
    assert eventually(lambda: state(store, number) == "cancelled", 20)
    assert eventually(lambda: supervisor.waiting() == 0, 20)


@pytest.mark.slow
def test_a_runner_that_dies_meanwhile_loses_nothing(store, supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, waits = add(store, dask.delayed(time.sleep)(2)), add(store, dask.delayed(abs)(-1))
    supervisor.submit(slow)
    assert eventually(lambda: state(store, slow) == "running", 20)
    runner = supervisor.pid
    assert runner is not None
    with monkeypatch.context() as patched:
        patched.setattr(store, "update", never)
        os.kill(runner, signal.SIGKILL)
        assert eventually(lambda: supervisor.pid not in (None, runner), 20)
        assert not supervisor.submit(waits)
        assert eventually(lambda: answers(supervisor), 20)
        assert (state(store, slow), state(store, waits)) == ("running", "queued")
    assert eventually(lambda: [state(store, number) for number in (slow, waits)] == ["finished"] * 2, 20)
    assert [store.numbered(number)["attempt"] for number in (slow, waits)] == [2, 1]
