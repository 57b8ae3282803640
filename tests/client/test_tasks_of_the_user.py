"""Tasks that only the user's process can run: as many at a time as there are workers, as under Dask's threads."""

from __future__ import annotations

import contextvars
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback

from dask_mars import Runtime
from tests import tasks
from tests.conftest import busy_client_threads, eventually
from tests.tasks import PATIENCE_S, Session, meet_in

pytestmark = pytest.mark.timeout(60)

Get = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    yield
    assert eventually(lambda: not busy_client_threads())


def made_here(home: int, number: int) -> Any:
    """Return what cannot be pickled: a worker finds that out, and then two of this meet in the user's process."""
    if os.getpid() == home:
        return tasks.session.meet(threading.Lock())
    return threading.Lock()


# -- together ---------------------------------------------------------------------------------------------------


def test_methods(get: Get) -> None:
    session = Session()
    values = [dask.delayed(session.meet)(number) for number in range(6)]
    assert dask.compute(*values, scheduler=get) == tuple(range(6))


def test_what_another_task_has_made(get: Get) -> None:
    session = dask.delayed(Session)()
    values = [dask.delayed(meet_in)(session, number) for number in range(6)]
    assert dask.compute(*values, scheduler=get) == tuple(range(6))


def test_results_that_a_worker_could_not_send(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "session", Session(), raising=False)
    made = [dask.delayed(made_here)(os.getpid(), number) for number in range(4)]
    locks = dask.compute(*made, scheduler=get)
    assert len(set(map(id, locks))) == 4


def test_blocks_of_arrays(get: Get) -> None:
    session = Session()
    array = da.ones(6, chunks=1).map_blocks(session.meet, meta=np.ones(0))
    assert array.sum().compute(scheduler=get) == 6


def test_stores(get: Get) -> None:
    session, stored = Session(), {}

    class Target:
        def __setitem__(self, index: Any, value: Any) -> None:
            stored[str(index)] = session.meet(float(value.sum()))

    da.store(da.ones(8, chunks=2), Target(), lock=False, scheduler=get)
    assert list(stored.values()) == [2.0] * 4


def test_one_sets_what_another_waits_for(get: Get) -> None:
    event = threading.Event()
    waiting = dask.delayed(lambda: event.wait(PATIENCE_S))()
    setting = dask.delayed(lambda: event.set())()
    assert dask.compute(waiting, setting, scheduler=get) == (True, None)


def test_tasks_that_compute_and_meet(get: Get) -> None:
    outer, inner = Session(), Session()

    def compute(number: int) -> Any:
        within = [dask.delayed(inner.meet)(part) for part in range(2)]
        return outer.meet(number), dask.compute(*within, scheduler=get)

    values = [dask.delayed(compute)(number) for number in range(4)]
    assert dask.compute(*values, scheduler=get) == tuple((number, (0, 1)) for number in range(4))


@pytest.mark.slow
def test_after_the_workers_have_ended() -> None:
    with dask.config.set({"dask-mars.idle-timeout": "10ms"}), Runtime(2) as runtime:
        for _ in range(2):
            session = Session()
            values = [dask.delayed(session.meet)(number) for number in range(2)]
            assert dask.compute(*values, scheduler=runtime.get) == (0, 1)
            assert eventually(lambda: not runtime.engine().worker_pids(), 20)


def test_the_calling_thread_hears_of_others_meanwhile(get: Get) -> None:
    event = threading.Event()

    class Listening(Callback):
        def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
            if key == "by a worker":
                event.set()

    graph = {"here": (lambda: event.wait(PATIENCE_S),), "by a worker": (time.sleep, 0.2)}
    with Listening():
        assert get(graph, ["here", "by a worker"]) == (True, None)


# -- and no more than that --------------------------------------------------------------------------------------


class Counting:
    """Counts how many threads are in it at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def enter(self, number: int) -> int:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.01)
        with self._lock:
            self._now -= 1
        return number


@pytest.mark.parametrize("num_workers", [1, 2])
def test_no_more_at_a_time_than_workers(num_workers: int, get: Get) -> None:
    counting = Counting()
    values = [dask.delayed(counting.enter)(number) for number in range(12)]
    assert dask.compute(*values, scheduler=get, num_workers=num_workers) == tuple(range(12))
    assert counting.most <= num_workers


def test_a_task_that_is_alone_runs_in_the_calling_thread(get: Get) -> None:
    lock = threading.Lock()

    def where(before: Any) -> Any:
        with lock:
            return threading.get_ident()

    assert dask.delayed(where)(dask.delayed(where)(None)).compute(scheduler=get) == threading.get_ident()


# -- surroundings -----------------------------------------------------------------------------------------------


def test_context_variables_are_those_of_the_caller(get: Get) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    session = Session()

    def read(number: int) -> int:
        found = variable.get()
        variable.set(number)
        return session.meet(found)

    token = variable.set(5)
    try:
        values = [dask.delayed(read)(number) for number in range(4)]
        assert dask.compute(*values, scheduler=get) == (5,) * 4
        assert variable.get() == 5
    finally:
        variable.reset(token)


def test_an_error_is_raised_again_in_the_calling_thread(get: Get) -> None:
    session, raised_in = Session(), []

    def fail(number: int) -> None:
        if not raised_in:
            session.meet(number)
        raised_in.append(threading.get_ident())
        raise LookupError(number)

    values = [dask.delayed(fail)(number) for number in range(2)]
    with pytest.raises(LookupError):
        dask.compute(*values, scheduler=get, rerun_exceptions_locally=True)
    # The other task may be the last to say where it ran.
    assert threading.get_ident() in raised_in


# -- the end ----------------------------------------------------------------------------------------------------


class Held:
    """Tasks that are in the middle of something until they are let go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.let_go = threading.Event()

    def hold(self, number: int) -> None:
        self.begun.append(number)
        self.let_go.wait(PATIENCE_S)


def when_two_have_begun(held: Held, then: Callable[[], Any]) -> threading.Thread:
    def wait() -> None:
        if eventually(lambda: len(held.begun) == 2, PATIENCE_S):
            then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def assert_begun_is_all(held: Held, runtime: Runtime) -> None:
    assert not held.let_go.is_set()
    held.let_go.set()
    assert eventually(lambda: not runtime.engine()._runs and not busy_client_threads(), PATIENCE_S)
    assert sorted(held.begun) == [0, 1]


def test_ctrl_c_ends_the_wait_and_nothing_more_begins(runtime: Runtime) -> None:
    held = Held()
    values = [dask.delayed(held.hold)(number) for number in range(6)]
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    try:
        thread = when_two_have_begun(held, lambda: signal.pthread_kill(main, signal.SIGUSR1))
        with pytest.raises(KeyboardInterrupt):
            dask.compute(*values, scheduler=runtime.get)
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert_begun_is_all(held, runtime)


def test_an_error_ends_the_wait_and_nothing_more_begins(runtime: Runtime) -> None:
    held = Held()

    def fail(number: int) -> None:
        held.begun.append(number)
        while len(held.begun) < 2:
            time.sleep(0.01)
        raise LookupError(number)

    values = [dask.delayed(held.hold)(0), dask.delayed(fail)(1)]
    values += [dask.delayed(held.hold)(number) for number in range(2, 6)]
    with pytest.raises(LookupError):
        dask.compute(*values, scheduler=runtime.get)
    assert_begun_is_all(held, runtime)


def test_a_cancelled_computation_ends_while_its_tasks_go_on(runtime: Runtime) -> None:
    held = Held()
    values = [dask.delayed(held.hold)(number) for number in range(6)]

    def cancel() -> None:
        (number,) = runtime.engine()._runs
        runtime.engine().cancel_graph(number)

    thread = when_two_have_begun(held, cancel)
    with pytest.raises(Exception, match="cancelled"):
        dask.compute(*values, scheduler=runtime.get)
    thread.join()
    assert_begun_is_all(held, runtime)
