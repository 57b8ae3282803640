"""Running tasks that are cancelled: they are interrupted, and where that does not help, their process is ended."""

from __future__ import annotations

import asyncio
import collections
import importlib
import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest

from dask_mars import Runtime
from dask_mars.client.computation import GraphComputation
from dask_mars.engine.cancellation import Cancellation
from dask_mars.engine.graph_run import GraphRun
from dask_mars.errors import ExecutionInterrupted, MarsError
from dask_mars.graph.chunks import Operand, Step
from dask_mars.graph.ids import write_subtask_id
from dask_mars.protocol.control import COMPUTE, NO_CHUNK, STEP_AT, ControlPage, page_bytes, to_stop
from dask_mars.protocol.locks import InterprocessLock
from dask_mars.worker.interrupts import SIGNAL, may_interrupt
from tests.background import Background
from tests.conftest import eventually, limit_with_room, shared_runtime
from tests.tasks import large_array, note, note_name, notes, pid_of, wait_for

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def patient(private_tmp: Path) -> Iterator[Runtime]:
    """One worker that is not ended, however long its task goes on."""
    with dask.config.set({"dask-mars.cancel-grace": "60 s"}), shared_runtime(1) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def strict(private_tmp: Path) -> Iterator[Runtime]:
    """One worker whose task has a tenth of a second."""
    with dask.config.set({"dask-mars.cancel-grace": "100 ms"}), shared_runtime(1) as runtime:
        yield runtime


def pid(runtime: Runtime) -> int:
    """Return the process of the only worker."""
    pids: list[int] = []
    # While it is being replaced there is none.
    assert eventually(lambda: pids.extend(runtime.engine().worker_pids()) or pids)
    return pids[0]


def test_what_is_done_is_not_cancelled(patient: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    read = GraphComputation._value

    def late(computation: Any, run: GraphRun, chunk: int) -> Any:
        if run.graph.keys[chunk] == "x":
            assert not patient.cancel(run.id)
            # Were its memory free, this would use it.
            patient.get({"y": (large_array, 1, 0.0)}, "y")
        return read(computation, run, chunk)

    monkeypatch.setattr(GraphComputation, "_value", late)
    assert set(patient.get({"x": (large_array, 1, 7.0)}, "x")) == {7.0}


# -- tasks that Python can interrupt ----------------------------------------------------------------------------


def spin() -> None:
    while True:
        pass


def swallow_exceptions() -> None:
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def run_loop() -> None:
    asyncio.run(asyncio.sleep(60))


def print_on() -> None:
    while True:
        print("line", file=sys.stderr)


def begin(path: str, function: Callable[[], Any]) -> None:
    """Note that a task begins, and how it ends."""
    try:
        note(path, "begins")
        function()
    except BaseException as error:
        note(path, f"{type(error).__name__} {isinstance(error, ExecutionInterrupted)}")
        raise
    finally:
        note(path, "cleaned up")


PYTHON = [spin, lambda: time.sleep(60), swallow_exceptions, run_loop, print_on]


@pytest.mark.parametrize("function", PYTHON, ids=["loop", "sleep", "except Exception", "event loop", "printing"])
def test_a_task_is_interrupted_and_its_worker_lives_on(
    function: Callable[[], Any], patient: Runtime, tmp_path: Path
) -> None:
    before, path = pid(patient), str(tmp_path / "notes")
    running = Background(patient, {"x": (begin, path, function)}, "x")
    assert eventually(lambda: notes(path) and running.is_at("compute"), 20)
    running.cancel()
    assert eventually(lambda: len(notes(path)) == 3, 20)
    assert notes(path) == ["begins", "ExecutionInterrupted True", "cleaned up"]
    assert patient.get({"x": (pid_of, 1)}, "x") == before


def test_the_program_that_an_interrupted_task_waits_for_ends(patient: Runtime, tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = f"import time; open({str(started)!r}, 'a').close(); time.sleep(60)"
    running = Background(patient, {"x": (subprocess.run, [sys.executable, "-c", program])}, "x")
    assert eventually(started.exists, 20)
    running.cancel()
    assert eventually(lambda: not psutil.Process(pid(patient)).children())


def test_an_interrupted_task_leaves_no_memory(tmp_path: Path) -> None:
    def hold() -> None:
        arrays = [large_array(1) for _ in range(80)]
        note(path, "holds")
        wait_for(tmp_path / "never", arrays, 60)

    path = str(tmp_path / "notes")
    with (
        dask.config.set({"dask-mars.cancel-grace": "60 s"}),
        Runtime(1, memory_limit=limit_with_room(128 << 20)) as runtime,
    ):
        runtime.get({"x": (pid_of, 1)}, "x")
        before = pid(runtime)
        running = Background(runtime, {"x": (hold,)}, "x")
        assert eventually(lambda: notes(path), 20)
        running.cancel()
        # Together they would not fit.
        assert runtime.get({"x": (len, (large_array, 70))}, "x") == 70 << 17
        assert runtime.get({"y": (large_array, 70), "x": (len, "y")}, "x") == 70 << 17
        assert pid(runtime) == before


def print_while_signalled(path: str, go_on: str) -> Any:
    if notes(path):
        return notes(path)
    outbox: Any = sys.stdout._send.__self__._outbox  # type: ignore[attr-defined]
    flush = outbox.flush

    def flush_signalled(now: float) -> None:
        signal.raise_signal(SIGNAL)
        flush(now)
        note(path, "sent")

    outbox.flush = flush_signalled
    wait_for(go_on)
    try:
        print("a whole line")
        note(path, "not interrupted")
    except BaseException as error:
        note(path, type(error).__name__)
        raise
    finally:
        del outbox.flush


def test_what_a_task_prints_is_sent_before_it_is_interrupted(
    patient: Runtime, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, go_on = str(tmp_path / "notes"), str(tmp_path / "go on")
    running = Background(patient, {"x": (print_while_signalled, path, go_on)}, "x")
    assert eventually(lambda: running.is_at("compute"), 20)
    assert running.graph_id is not None
    # The graph itself is not cancelled, and so what was interrupted is begun again.
    patient.engine()._registry.control.stop(0, running.graph_id)
    note(go_on)
    assert running.end() == ["sent", "ExecutionInterrupted"]
    assert capfd.readouterr().out == "a whole line\n"


def test_settings_of_the_user_are_restored(patient: Runtime, tmp_path: Path) -> None:
    def unsettle() -> None:
        np.seterr(all="raise")
        os.chdir(tmp_path)
        os.environ["INTERRUPTED"] = "yes"
        (tmp_path / "unsettled").touch()
        time.sleep(60)

    before = pid(patient)
    running = Background(patient, {"x": (unsettle,)}, "x")
    assert eventually((tmp_path / "unsettled").exists, 20)
    running.cancel()

    def settings() -> tuple[Any, ...]:
        return np.geterr(), os.getcwd(), os.environ.get("INTERRUPTED"), os.getpid()

    assert patient.get({"x": (settings,)}, "x") == (np.geterr(), os.getcwd(), None, before)


# -- tasks that it cannot ---------------------------------------------------------------------------------------


def never_return(begins: Callable[[], None]) -> None:
    begins()
    collections.deque(itertools.repeat(0), maxlen=0)


def swallow_all(begins: Callable[[], None]) -> None:
    while True:
        try:
            begins()
            time.sleep(60)
        except BaseException:
            continue


def replace_handler(begins: Callable[[], None]) -> None:
    signal.signal(SIGNAL, signal.SIG_DFL)
    begins()
    time.sleep(60)


class Unsealable:
    """Cannot be stored in any time."""

    def __init__(self, begins: Callable[[], None]) -> None:
        self.begins = begins

    def __reduce__(self) -> Any:
        self.begins()
        spin()


@pytest.mark.parametrize(
    "function",
    [
        never_return,
        pytest.param(swallow_all, marks=pytest.mark.slow),
        pytest.param(replace_handler, marks=pytest.mark.slow),
        pytest.param(Unsealable, marks=pytest.mark.slow),
    ],
    ids=["C code", "swallows all", "has replaced the handler", "its result is being stored"],
)
def test_a_task_that_goes_on_is_ended_with_its_process(
    function: Callable[[Callable[[], None]], Any], strict: Runtime, tmp_path: Path
) -> None:
    before, path = pid(strict), str(tmp_path / "notes")
    running = Background(strict, {"x": (function, lambda: note(path, str(os.getpid())))}, "x")
    assert eventually(lambda: notes(path), 20)
    running.cancel()
    assert eventually(lambda: pid(strict) != before, 20)
    assert strict.get({"x": (pid_of, 1)}, "x") == pid(strict)
    assert set(notes(path)) == {str(before)}


# -- other graphs -----------------------------------------------------------------------------------------------


def test_other_graphs_on_the_worker_go_on(patient: Runtime, tmp_path: Path) -> None:
    before, path = pid(patient), str(tmp_path / "ran")
    blocked = {("b", n): (begin, str(tmp_path / f"notes {n}"), spin) for n in range(5)}
    running = Background(patient, {**blocked, "x": (list, [*blocked])}, "x")
    assert eventually(lambda: running.is_at("compute", ("b", 0)), 20)
    others = [Background(patient, {f"y{n}": (note_name, path, n)}, f"y{n}") for n in range(3)]
    assert eventually(lambda: all(other.graph_id for other in others), 20)
    running.cancel()
    assert [other.end() for other in others] == [0, 1, 2]
    assert sorted(notes(path)) == ["0", "1", "2"]
    assert pid(patient) == before
    assert not (tmp_path / "notes 4").exists()


def test_what_runs_of_another_graph_is_not_interrupted(strict: Runtime, tmp_path: Path) -> None:
    before, path, go_on = pid(strict), str(tmp_path / "ran"), tmp_path / "go on"
    running = Background(strict, {"x": (lambda: (note(path), wait_for(go_on, "done"))[1],)}, "x")
    assert eventually(lambda: running.is_at("compute"), 20)
    # As if it had just gone on from a task of the graph that is to stop.
    engine = strict.engine()
    assert running.graph_id is not None
    engine._registry.control.stop(0, running.graph_id + 1)
    for _ in range(20):
        engine._registry.workers[0].interrupt()
        time.sleep(0.01)
    go_on.touch()
    assert running.end() == "done"
    assert (pid(strict), len(notes(path))) == (before, 1)


class FakeHandle:
    """Notes what is done to a process."""

    def __init__(self) -> None:
        self.id = 0
        self.ready = self.is_process = True
        self.done: list[str] = []

    def interrupt(self) -> None:
        self.done.append("interrupt")

    def kill(self) -> None:
        self.done.append("kill")


class Host:
    """One worker, to which a chunk of graph 1 is dispatched that is to have stopped within a second."""

    def __init__(self) -> None:
        self.handle: Any = FakeHandle()
        self.control = ControlPage(memoryview(bytearray(page_bytes(1))))
        self.control.clear(0)
        self.dispatched = {(1, 0)}
        self.cancellation = Cancellation({0: self.handle}, self.control, lambda worker: self.dispatched, 1.0)
        self.cancellation.add_stop_deadline(self.handle, 1)
        self.now_s = self.cancellation.next_s() or 0.0

    def runs(self, graph: int, chunk: int = 0) -> None:
        write_subtask_id(self.control.running_id_of(0), graph, 0, chunk)

    def after(self, seconds: float) -> list[str]:
        """Return what is done meanwhile."""
        end_s = self.now_s + seconds
        self.handle.done.clear()
        while (due_s := self.cancellation.next_s()) is not None and due_s <= end_s:
            self.cancellation.enforce(due_s)
        self.now_s = end_s
        return self.handle.done

    def stops(self) -> int:
        return to_stop(self.control.part_of(0))


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_task_is_interrupted_at_once_and_ended_after_its_time(host: Host) -> None:
    host.runs(1)
    assert host.after(0) == ["interrupt"]
    assert host.stops() == 1
    assert set(host.after(0.9)) == {"interrupt"}
    done = host.after(0.2)
    assert done[-1] == "kill"
    assert done.count("kill") == 1
    assert host.cancellation.next_s() is None


def test_nothing_is_done_to_a_worker_that_has_given_all_back(host: Host) -> None:
    host.runs(2)
    host.dispatched.clear()
    assert host.after(10) == []
    assert host.cancellation.next_s() is None


@pytest.mark.parametrize("chunk", [0, NO_CHUNK])
def test_what_waits_behind_another_graphs_task_has_its_time_after_that(host: Host, chunk: int) -> None:
    host.runs(2, chunk)
    assert host.after(100) == []
    assert host.stops() == 0
    host.control.clear(0)
    assert host.after(0.5) == []
    host.dispatched.clear()
    assert host.after(10) == []


def test_a_worker_that_is_stuck_elsewhere_is_ended(host: Host) -> None:
    assert host.after(0.9) == []
    assert host.after(0.2) == ["kill"]


def test_a_worker_that_starts_is_waited_for(host: Host) -> None:
    host.handle.ready = False
    assert host.after(100) == []


def test_two_graphs_are_stopped_one_after_the_other(host: Host) -> None:
    host.dispatched.add((3, 0))
    host.cancellation.add_stop_deadline(host.handle, 3)
    host.runs(3)
    assert set(host.after(0.5)) == {"interrupt"}
    assert host.stops() == 3
    host.dispatched.remove((3, 0))
    host.runs(1)
    assert "kill" not in host.after(1.2)
    assert host.stops() == 1


# -- where a task may be interrupted ----------------------------------------------------------------------------


def may() -> bool:
    return may_interrupt(sys._getframe(), compute.__code__, (whole.__code__,))


def whole(function: Callable[[], Any]) -> Any:
    return function()


def compute(function: Callable[[], Any]) -> Any:
    """Run a function as an operand, as a worker does."""
    return Operand("f", (function,), (Step(0, (), ()),), 0, 0).run([], ())


def compute_otherwise(function: Callable[[], Any]) -> Any:
    return (lambda compute: compute())(function)


def test_in_the_users_code_a_task_may_be_interrupted() -> None:
    assert compute(may)
    assert compute(lambda: sum(may() for _ in range(3))) == 3


def test_outside_of_tasks_nothing_may_be_interrupted() -> None:
    assert not may()
    assert not compute_otherwise(may)
    assert not may_interrupt(None, compute.__code__, ())
    loading = sys._getframe()
    # Of the function that runs operands itself: before and after them.
    assert not may_interrupt(loading, loading.f_code, ())


def test_what_has_to_be_whole_is_not_interrupted() -> None:
    assert not compute(lambda: whole(may))
    assert not compute(lambda: whole(lambda: may()))


def test_imports_are_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_in_test_interrupt.py").write_text("import sys\nmay = sys.may()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "may", may, raising=False)
    module = compute(lambda: importlib.import_module("imported_in_test_interrupt"))
    monkeypatch.delitem(sys.modules, module.__name__)
    assert module.may is False


def test_locks_are_not_left_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(InterprocessLock, "descriptor", 0)
    monkeypatch.setattr(InterprocessLock, "_try_byte", lambda self, descriptor: len(found) > 1)
    monkeypatch.setattr(time, "sleep", lambda seconds: found.append(may()))
    compute(InterprocessLock("test_interrupt").acquire)
    assert found == [False, False]


def test_finalizers_are_not_interrupted() -> None:
    found: list[bool] = []

    class Finalized:
        def __del__(self) -> None:
            found.append(may())

    class Watched:
        pass

    def make() -> None:
        Finalized()
        watched = Watched()
        weakref.finalize(watched, lambda: found.append(may()))

    compute(make)
    assert found == [False, False]


# -- steps ------------------------------------------------------------------------------------------------------


def rebuilt(path: str, payload: bytes) -> bytes:
    return wait_for(f"{path}/loaded", payload)


class Slow:
    """Takes its time to be stored, and to be loaded; it is too large to be handed to the next task."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        wait_for(f"{self.path}/stored")
        return rebuilt, (self.path, bytes(1 << 21))


class SlowFunction:
    """Takes its time to be read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> None:
        raise AssertionError("it is replaced")

    def __reduce__(self) -> Any:
        return wait_for, (f"{self.path}/prepared", os.getpid)


def test_the_steps_of_an_operand_are_seen(patient: Runtime, tmp_path: Path) -> None:
    path, ready = str(tmp_path), tmp_path / "ready"
    ready.mkdir()
    for file in ("stored", "loaded"):
        (ready / file).touch()
    # The first of a class is loaded when it is stored, to see whether it can be.
    assert patient.get({"c": (Slow, str(ready)), "x": (len, "c")}, "x") == 1 << 21
    graph = {
        "p": (SlowFunction(path),),
        "c": (lambda _: wait_for(f"{path}/computed", Slow(path)), "p"),
        "x": (len, "c"),
    }
    running = Background(patient, graph, "x")
    try:
        seen = []
        for step, key, file in (
            ("prepare", "p", "prepared"),
            ("compute", "c", "computed"),
            ("seal", "c", "stored"),
            ("load", "x", "loaded"),
        ):
            if eventually(lambda step=step, key=key: running.is_at(step, key), 5):
                seen.append((step, key))
            does = {"prepare": "prepares", "compute": "computes", "seal": "stores", "load": "loads the inputs of"}
            assert f", and {does[step]} {key!r}" in patient.explain()
            assert re.search(rf"worker 0 \(process \d+\), which {does[step]} it", patient.explain(key))
            (tmp_path / file).touch()
        assert len(seen) == 4
    finally:
        for file in ("prepared", "computed", "stored", "loaded"):
            (tmp_path / file).touch()
        assert running.end() == 1 << 21
    (worker,) = patient.state()["workers"]
    assert (worker["running"], worker["step"]) == (None, None)


class SlowLiteral(SlowFunction):
    def __reduce__(self) -> Any:
        return wait_for, (f"{self.path}/read", 7)


def test_whose_message_is_being_read_is_known(patient: Runtime, tmp_path: Path) -> None:
    running = Background(patient, {"x": (abs, SlowLiteral(str(tmp_path)))}, "x")
    control = patient.engine()._registry.control
    try:
        assert eventually(lambda: control.running(0) is not None, 20)
        assert control.running(0) == (running.graph_id, 0, NO_CHUNK)
        (worker,) = patient.state()["workers"]
        assert (worker["running"], worker["step"]) == (None, None)
    finally:
        (tmp_path / "read").touch()
        assert running.end() == 7


def test_a_step_is_a_byte_of_a_workers_own() -> None:
    page = ControlPage(memoryview(bytearray(page_bytes(3))))
    page.part_of(1)[STEP_AT] = COMPUTE
    assert [page.step(worker) for worker in range(3)] == ["prepare", "compute", "prepare"]


def test_what_is_to_stop_is_told_to_one_worker() -> None:
    page = ControlPage(memoryview(bytearray(page_bytes(3))))
    page.stop(1, 2**32 - 2)
    assert [to_stop(page.part_of(worker)) for worker in range(3)] == [0, 2**32 - 2, 0]
    page.clear(1)
    assert to_stop(page.part_of(1)) == 0


# -- the exception ----------------------------------------------------------------------------------------------


def test_the_exception_is_like_that_of_ctrl_c() -> None:
    error = ExecutionInterrupted(5)
    assert isinstance(error, KeyboardInterrupt)
    assert not isinstance(error, (Exception, MarsError))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.graph) == (ExecutionInterrupted, 5)
    assert str(error) == "the computation of graph 5 was cancelled"


def test_a_task_that_raises_it_itself_has_failed(patient: Runtime) -> None:
    def leave() -> None:
        raise ExecutionInterrupted(77)

    with pytest.raises(ExecutionInterrupted) as caught:
        patient.get({"x": (leave,)}, "x")
    assert caught.value.graph == 77
