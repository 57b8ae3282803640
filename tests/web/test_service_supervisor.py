"""What becomes of computations when a runner dies, and while records cannot be written; the runner is none."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from dask_mars.web.service import process
from dask_mars.web.service import supervisor as supervisors
from dask_mars.web.service.monitor import ServiceMonitor
from dask_mars.web.service.store import CannotRecord, ServiceStore
from dask_mars.web.service.supervisor import Supervisor
from tests.conftest import eventually
from tests.web.services import add

pytest.importorskip("tornado")


class FakeRunner:
    """In place of a `RunnerProcess`: finishes what it is given once it is let, and dies as it is told."""

    #: Those that a test has started.
    started: ClassVar[list[FakeRunner]] = []
    #: Whether they finish what they are given, or die of it.
    let: ClassVar[threading.Event] = threading.Event()
    dies_of_work: ClassVar[bool] = False

    def __init__(self, settings: dict[str, Any]) -> None:
        self.pid, self.is_ready = len(self.started) + 1, False
        self.orders: list[int] = []
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._said.put({"say": "ready"})
        self.started.append(self)

    def send(self, order: dict[str, Any]) -> bool:
        if order["do"] == "cancel":
            self._said.put({"say": "cancelled", "number": order["number"], "file_bytes": 0})
            return True
        self.orders.append(order["number"])
        if self.dies_of_work:
            self.kill()
            return True
        self._said.put({"say": "taken", "number": order["number"]})
        threading.Thread(target=self._finish, args=(order["number"],)).start()
        return True

    def _finish(self, number: int) -> None:
        if self.let.wait(100):
            self._said.put({"say": "finished", "number": number, "file_bytes": 0, "result": {}})

    def ask(self, *question: Any) -> dict[str, Any]:
        raise TimeoutError

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (message := self._said.get()) is not None:
            yield message

    def kill(self) -> None:
        self._said.put(None)

    hang_up = kill

    def finish(self) -> int:
        return 3


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What has ended supervisors, which lose no time."""
    monkeypatch.setattr(supervisors, "_RECORD_PAUSE_S", 0.02)
    monkeypatch.setattr(supervisors, "_LONGEST_PAUSE_S", 0.02)
    return []


@pytest.fixture
def supervisor(
    store: ServiceStore, failures: list[Exception], monkeypatch: pytest.MonkeyPatch, nothing_left_behind: list[str]
) -> Iterator[Supervisor]:
    monkeypatch.setattr(supervisors, "RunnerProcess", FakeRunner)
    monkeypatch.setattr(FakeRunner, "started", [])
    monkeypatch.setattr(FakeRunner, "let", threading.Event())
    FakeRunner.let.set()
    supervisor = Supervisor(store, {}, on_failure=failures.append)
    supervisor.start()
    yield supervisor
    FakeRunner.let.set()
    supervisor.close()
    assert not failures
    # What is logged of deaths and full disks is meant.
    nothing_left_behind.clear()


def states(store: ServiceStore, *numbers: int) -> list[str]:
    return [str(store.numbered(number)["state"]) for number in numbers]


class Full:
    """A disk to which nothing can be written, and how often that was tried."""

    tried = 0

    def __call__(self, *arguments: Any, **values: Any) -> bool:
        self.tried += 1
        raise CannotRecord("the disk is full")


def test_nothing_begins_or_ends_that_is_not_recorded(
    store, supervisor, monkeypatch: pytest.MonkeyPatch, nothing_left_behind: list[str]
) -> None:
    numbers = [add(store) for _ in range(3)]
    full = Full()
    with monkeypatch.context() as patched:
        patched.setattr(store, "update", full)
        assert [supervisor.submit(number) for number in numbers] == [False] * 3
        assert eventually(lambda: full.tried > 5)
        assert states(store, *numbers) == ["queued"] * 3
        assert supervisor.waiting() == 3
    assert eventually(lambda: states(store, *numbers) == ["finished"] * 3)
    # However often it is tried.
    assert nothing_left_behind == [
        "the service cannot write its records: the disk is full; until then nothing is begun "
    ]
    # What is cancelled in the queue leaves it.
    number = add(store)
    with monkeypatch.context() as patched:
        patched.setattr(store, "end", full)
        patched.setattr(supervisor, "_dispatch", lambda: None)
        supervisor.submit(number)
        assert supervisor.cancel(number)
        # Once more, as nothing of it is to be seen yet.
        assert supervisor.cancel(number)
        assert states(store, number) == ["queued"]
    assert eventually(lambda: states(store, number) == ["cancelled"])
    assert eventually(lambda: supervisor.waiting() == 0)


def test_a_runner_that_dies_meanwhile_loses_nothing(store, supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, waits = add(store), add(store)
    FakeRunner.let.clear()
    supervisor.submit(slow)
    assert eventually(lambda: states(store, slow) == ["running"])
    with monkeypatch.context() as patched:
        patched.setattr(store, "update", Full())
        FakeRunner.started[0].kill()
        assert eventually(lambda: len(FakeRunner.started) == 2 and FakeRunner.started[1].is_ready)
        assert not supervisor.submit(waits)
        assert states(store, slow, waits) == ["running", "queued"]
    FakeRunner.let.set()
    assert eventually(lambda: states(store, slow, waits) == ["finished"] * 2)
    assert [store.numbered(number)["attempt"] for number in (slow, waits)] == [2, 1]


def test_what_a_runner_dies_of_fails_in_the_end_and_takes_nothing_along(
    store, supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRunner, "dies_of_work", True)
    number = add(store)
    supervisor.submit(number)
    assert eventually(lambda: states(store, number) == ["failed"])
    row = store.numbered(number)
    assert row["attempt"] == 3
    text = "the process that computes ended with exit code 3, 3 times with this computation in its hands"
    assert json.loads(row["error"]) == {"type": "RunnerDied", "message": text}
    monkeypatch.setattr(FakeRunner, "dies_of_work", False)
    assert eventually(lambda: len(FakeRunner.started) == 4 and FakeRunner.started[3].is_ready)
    # With suspects each runs alone, the oldest first.
    FakeRunner.let.clear()
    numbers = [add(store) for _ in range(3)]
    for each in numbers:
        supervisor.submit(each)
    assert eventually(lambda: FakeRunner.started[3].orders == numbers)
    FakeRunner.started[3].kill()
    assert eventually(lambda: len(FakeRunner.started) == 5 and FakeRunner.started[4].orders == numbers[:1])
    assert supervisor.waiting() == 2
    FakeRunner.let.set()
    assert eventually(lambda: states(store, *numbers) == ["finished"] * 3)


def test_a_runner_that_cannot_start_ends_the_service(
    store, failures, monkeypatch: pytest.MonkeyPatch, nothing_left_behind: list[str]
) -> None:
    """A process manager then learns of the failure."""
    started = process.subprocess.Popen
    monkeypatch.setattr(
        process.subprocess, "Popen", lambda command, **options: started(["sh", "-c", "exit 1"], **options)
    )
    supervisor = Supervisor(store, {}, on_failure=failures.append)
    supervisor.start()
    try:
        assert eventually(lambda: failures)
    finally:
        supervisor.close()
    assert "ended with exit code 1 before it was ready, 5 times" in str(failures[0])
    nothing_left_behind.clear()


def test_a_runner_that_answers_nothing_is_done_without(store) -> None:
    monitor = ServiceMonitor(store, Supervisor(store, {}))
    number = add(store)
    id = store.numbered(number)["id"]
    assert monitor.explain(id, None)["rows"] == ["it waits for its turn: 0 computations are queued"]
    store.update(number, state="running")
    assert monitor.state()["workers"] == []
    assert (monitor.computation(id)["layers"], monitor.log(id)["lines"]) == ([], [])
    assert monitor.explain(None, None)["rows"] == ["the process that computes does not answer at the moment"]
    assert monitor.explain(id, None) == {"rows": []}
    for ask in (lambda: monitor.explain(id, "x"), lambda: monitor.graph(id, "x")):
        with pytest.raises(KeyError, match="x"):
            ask()
