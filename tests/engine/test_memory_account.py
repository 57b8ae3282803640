"""The account of an engine's memory: what it adds up to, and how it reads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.diagnostics import Listener, add_listener, remove_listener
from dask_mars.engine import memory_account
from dask_mars.engine.listeners import ProcessesMeasured
from dask_mars.engine.memory_account import MemoryAccount, ProcessMemory
from dask_mars.errors import EngineStopped
from tests.conftest import eventually, limit_with_room
from tests.tasks import large_array, wait_for

pytestmark = pytest.mark.timeout(300)

MIB, GIB = 1 << 20, 1 << 30


def account(workers: int = 2) -> MemoryAccount:
    return MemoryAccount(
        limit_bytes=4 * GIB,
        in_use_bytes=1200 * MIB,
        peak_bytes=2 * GIB,
        shared_bytes=900 * MIB,
        store_bytes=800 * MIB,
        store_limit_bytes=2 * GIB,
        promised_bytes=16 * MIB,
        private=(
            ProcessMemory(None, 77, 120 * MIB),
            *[ProcessMemory(worker_id, 100 + worker_id, (50 + worker_id) * MIB) for worker_id in range(workers)],
        ),
        library_bytes=30 * MIB,
        on_disk_bytes=300 * MIB,
        spilled_bytes=GIB,
    )


# -- how it reads -----------------------------------------------------------------------------------------------


def test_text_has_aligned_lines_with_units():
    text = str(account())
    assert text == repr(account())
    assert text.splitlines() == [
        "limit              4.00 GiB",
        "in use             1.17 GiB  at most 2.00 GiB since the start",
        "  shared memory  900.00 MiB",
        "    store        800.00 MiB  of 2.00 GiB",
        "  your process   120.00 MiB  process 77",
        "  worker 0        50.00 MiB  process 100",
        "  worker 1        51.00 MiB  process 101",
        "  libraries       30.00 MiB  counted once",
        "promised          16.00 MiB  for dispatched tasks",
        "on disk          300.00 MiB  1.00 GiB written since the start",
    ]


def test_many_workers_share_a_line():
    most = memory_account._LISTED_WORKERS
    assert str(account(most)).count("worker ") == most
    text = str(account(most + 1))
    (line,) = [line for line in text.splitlines() if "workers" in line]
    assert line.split() == [
        "9",
        "workers",
        "486.00",
        "MiB",
        *["at", "most", "58.00", "MiB", "by", "worker", "8", "(process", "108)"],
    ]


def test_notebooks_get_a_small_table():
    text = account()._repr_html_()
    assert text.startswith("<table>")
    assert text.endswith("</table>")
    assert text.count("<tr>") == text.count("</tr>") == len(str(account()).splitlines())
    assert "your process" in text
    assert "120.00 MiB" in text


# -- of a runtime -----------------------------------------------------------------------------------------------


def test_a_runtime_that_has_not_started_is_not_started():
    runtime = Runtime(num_workers=2, memory_limit="200 MiB")
    assert runtime.memory() == MemoryAccount(limit_bytes=200 * MIB)
    assert "not started" in repr(runtime)
    assert str(runtime.memory()).splitlines() == [
        "limit     200.00 MiB",
        "in use           0 B",
        "promised         0 B  for dispatched tasks",
        "on disk          0 B  0 B written since the start",
    ]


def test_a_closed_runtime_answers_as_it_does_of_its_state():
    with Runtime(num_workers=1, memory_limit="1 GiB") as runtime:
        engine = runtime.engine()
        assert runtime.memory().private
    assert runtime.state() == {}
    assert runtime.memory() == MemoryAccount(limit_bytes=GIB)
    with pytest.raises(EngineStopped):
        engine.inspection.memory()


def assert_adds_up(account: MemoryAccount) -> None:
    private_bytes = sum([process.private_bytes for process in account.private])
    assert account.in_use_bytes == account.shared_bytes + private_bytes + account.library_bytes
    assert account.peak_bytes >= account.in_use_bytes


def test_the_parts_add_up_and_name_each_process(runtime: Runtime):
    before = runtime.memory()
    assert_adds_up(before)
    assert before.limit_bytes == runtime.settings.memory_limit
    assert before.private[0][:2] == (None, os.getpid())
    assert [process.worker for process in before.private[1:]] == [0, 1]
    assert {process.pid for process in before.private[1:]} == set(runtime.engine().worker_pids())
    # A process that has just been forked has next to nothing of its own.
    assert before.private[0].private_bytes > MIB
    assert all(process.private_bytes >= 0 for process in before.private)


def test_results_are_in_the_store(runtime: Runtime):
    before = runtime.memory()
    kept = da.ones(4 * MIB, chunks=MIB).map_blocks(np.copy).persist(scheduler=runtime.get)
    after = runtime.memory()
    assert_adds_up(after)
    assert after.store_bytes >= before.store_bytes + kept.nbytes
    assert after.shared_bytes >= kept.nbytes
    assert after.peak_bytes >= before.peak_bytes


def hold(megabytes: float, begun: Path, path: Path) -> int:
    array = large_array(megabytes)
    begun.touch()
    wait_for(path)
    return len(array)


@pytest.fixture
def holding(runtime: Runtime, tmp_path: Path) -> Iterator[None]:
    """A task that has 128 MiB in its hands, more than it may take without a word."""
    graph = {"a": (hold, 128, tmp_path / "begun", tmp_path / "go")}
    thread = threading.Thread(target=runtime.get, args=(graph, "a"))
    thread.start()
    try:
        assert eventually((tmp_path / "begun").exists, 20)
        yield
    finally:
        (tmp_path / "go").touch()
        thread.join(100)


def test_what_a_task_holds_is_promised_and_in_use(runtime: Runtime, holding: None):
    held = runtime.memory()
    assert_adds_up(held)
    assert held.promised_bytes > 0
    without_store = held.shared_bytes - held.store_bytes + sum([process.private_bytes for process in held.private])
    assert without_store > 128 * MIB


def test_what_is_on_disk_and_what_was_written(tmp_path: Path):
    import dask

    with (
        dask.config.set({"dask-mars.spill-directory": str(tmp_path / "files"), "dask-mars.store-limit": 16 * MIB}),
        Runtime(num_workers=1, memory_limit=limit_with_room(200 * MIB)) as runtime,
    ):
        assert da.ones(1000, chunks=100).sum().compute(scheduler=runtime.get) == 1000
        assert not (tmp_path / "files").exists()
        kept = da.random.default_rng(0).random((8, MIB), chunks=(1, MIB)).persist(scheduler=runtime.get)
        assert eventually(lambda: runtime.memory().on_disk_bytes >= 8 * MIB, 20)
        spilled = runtime.memory()
        assert spilled.spilled_bytes >= spilled.on_disk_bytes
        assert spilled.store_bytes <= spilled.store_limit_bytes
        del kept
        assert eventually(lambda: runtime.memory().on_disk_bytes == 0, 20)
        assert runtime.memory().spilled_bytes >= spilled.on_disk_bytes


# -- what listeners hear ----------------------------------------------------------------------------------------


class Measured(Listener):
    def __init__(self) -> None:
        self.in_use_bytes: list[int] = []
        self.known: list[int] = []

    def on_event(self, engine: Any, event: Any) -> None:
        if isinstance(event, ProcessesMeasured):
            self.in_use_bytes.append(event.in_use_bytes)
            self.known.append(engine.memory()["in_use_bytes"])


def test_listeners_hear_what_was_measured():
    listener = Measured()
    add_listener(listener)
    try:
        with Runtime(num_workers=1) as runtime:
            runtime.get({"a": (abs, -1)}, "a")
    finally:
        remove_listener(listener)
    assert listener.in_use_bytes
    assert all(size > MIB for size in listener.in_use_bytes)
    assert listener.known == listener.in_use_bytes


def test_memory_is_measured_before_processes_beside_a_thread_get_copies(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
):
    loop, numbers = runtime.start().engine()._loop, np.ones(1 << 17)
    assert eventually(lambda: len(loop.workforce.pids()) == 2, 20)
    measured = []
    monkeypatch.setattr(loop.workforce, "has_threads", lambda: True)
    monkeypatch.setattr(loop.memory, "measure", lambda asked_bytes=0: measured.append(asked_bytes))
    assert (da.from_array(numbers, chunks=1 << 16) + 1).compute(scheduler=runtime.get).sum() == 2 * numbers.size
    assert measured
