"""What goes wrong: tasks that raise, processes that die, Ctrl-C, memory that does not suffice."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
import os
import pickle
import random
import re
import signal
import socket
import stat
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from dask.callbacks import Callback
from dask.utils import SerializableLock

from dask_mars import Runtime
from dask_mars.engine.receiver import ProtocolError
from dask_mars.errors import (
    QuotaExceeded,
    RequestTooLarge,
    WorkerDied,
    WorkerStartFailed,
    WorkerStartTimeout,
)
from dask_mars.protocol import channel
from dask_mars.protocol.messages import Failed, Finished, Restored, Returned, Unretained, as_plain
from tests.background import in_background
from tests.conftest import eventually, limit_with_room, shared_runtime
from tests.tasks import die_first, fail_first, large_array, note, noted, notes, pid_of, wait_for

# Under a limit that hangs on what this process takes already, the largest takes 20 s on a busy machine.
pytestmark = pytest.mark.timeout(300)

Get = Callable[..., Any]


# -- tasks that raise -----------------------------------------------------------------------------------------


def deepest(value: Any) -> Any:
    raise ZeroDivisionError(f"of {value}")


def explode(value: Any) -> Any:
    return deepest(value)


def frames_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_exceptions_arrive_with_type_and_traceback(get: Get) -> None:
    with pytest.raises(ZeroDivisionError, match="of 3") as caught:
        dask.delayed(explode)(3).compute(scheduler=get)
    assert frames_of(caught.value)[-2:] == ["explode", "deepest"]
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert Path(files[-1]) == Path(__file__)


def test_notes_name_the_task_and_its_layer(get: Get) -> None:
    array = da.ones(10, chunks=5).map_blocks(explode, dtype=float, name="exploding")
    with pytest.raises(ZeroDivisionError) as caught:
        array.sum().compute(scheduler=get, optimize_graph=False)
    notes = "\n".join(caught.value.__notes__)
    assert re.search(r"task \('exploding', [01]\) \[[0-9a-f]{24}\] of layer 'exploding'", notes)


def test_log_names_what_a_worker_ran_by_its_id(
    tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="dask_mars")
    deadly = dask.delayed(die_first)(tmp_path / "deaths", 1, "alive", dask_key_name="deadly")
    assert deadly.compute(scheduler=runtime.get) == "alive"
    assert re.search(r"SIGKILL\) while it ran 'deadly' \[[0-9a-f]{24}\]", caplog.text)


def test_log_names_what_only_the_users_process_can_run_by_its_id(
    get: Get, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="dask_mars")
    dask.delayed(threading.Lock)(dask_key_name="lock").compute(scheduler=get)
    assert re.search(r"'lock' \[[0-9a-f]{24}\] runs in the user's process: it is client_only", caplog.text)


def test_exceptions_of_tasks_in_the_users_process(get: Get) -> None:
    def fail(lock: Any) -> None:
        explode(5)

    with pytest.raises(ZeroDivisionError, match="of 5") as caught:
        dask.delayed(fail)(threading.Lock()).compute(scheduler=get)
    assert frames_of(caught.value)[-2:] == ["explode", "deepest"]
    assert "fail" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exceptions_that_are_meant_for_the_interpreter(kind: type[BaseException], runtime: Runtime) -> None:
    def leave() -> None:
        raise kind(3)

    pids = runtime.engine().worker_pids()
    with pytest.raises(kind) as caught:
        dask.delayed(leave)().compute(scheduler=runtime.get)
    assert caught.value.args == (3,)
    assert dask.delayed(pid_of)().compute(scheduler=runtime.get) in pids
    assert runtime.engine().worker_pids() == pids


def delayed_sum(get: Get) -> int:
    return dask.delayed(sum)([1, 2]).compute(scheduler=get)


def test_a_task_that_crashes_is_tried_once_more_and_says_where_it_was(
    tmp_path: Path, get: Get, capfd: pytest.CaptureFixture[str]
) -> None:
    def crash_in_compiled_code() -> None:
        note(tmp_path / "deaths")
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(WorkerDied, match=r"SIGSEGV\) .* 2 times in a row.* scheduler=\"sync\" under") as caught:
        dask.delayed(crash_in_compiled_code)(dask_key_name="the-crash").compute(scheduler=get)
    assert (caught.value.key, caught.value.attempts) == (repr("the-crash"), 2)
    assert len(notes(tmp_path / "deaths")) == 2
    # The first process may have been started before the test, with another standard error.
    assert "in crash_in_compiled_code" in capfd.readouterr().err


def test_one_failure_stops_the_rest(tmp_path: Path, get: Get) -> None:
    def slow(number: int) -> None:
        time.sleep(0.02)
        note(tmp_path / "calls")

    def soon() -> None:
        time.sleep(0.05)
        raise LookupError("stop")

    with pytest.raises(LookupError, match="stop"):
        dask.compute(dask.delayed(soon)(), [dask.delayed(slow)(number) for number in range(500)], scheduler=get)
    assert len(notes(tmp_path / "calls")) < 250
    assert delayed_sum(get) == 3


def test_others_compute_while_a_failed_computation_comes_to_its_end(tmp_path: Path, runtime: Runtime) -> None:
    def soon() -> None:
        assert eventually((tmp_path / "started").exists, 10)
        raise LookupError("stop")

    def long() -> None:
        note(tmp_path / "started")
        eventually((tmp_path / "others").exists)
        note(tmp_path / "ended")

    with pytest.raises(LookupError, match="stop"):
        dask.compute(dask.delayed(soon)(), dask.delayed(long)(), scheduler=runtime.get)
    assert delayed_sum(runtime.get) == 3
    assert not notes(tmp_path / "ended")
    note(tmp_path / "others")
    assert eventually(lambda: not runtime.engine()._runs, 10)


# -- processes that die ---------------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_and_nothing_computed_is_lost(tmp_path: Path, runtime: Runtime) -> None:
    engine = runtime.engine()
    before = set(engine.worker_pids())
    sources = [
        dask.delayed(lambda n: noted(tmp_path / "sources", large_array(1, n)), pure=False)(number)
        for number in range(8)
    ]
    ready = dask.delayed(lambda *values: len(values))(*sources)
    deadly = dask.delayed(die_first)(tmp_path / "deaths", 1, ready)
    total = dask.delayed(lambda _, *values: sum(float(value.sum()) for value in values))(deadly, *sources)
    assert total.compute(scheduler=runtime.get) == sum(range(8)) * (1 << 17)
    assert len(notes(tmp_path / "sources")) == 8
    assert len(notes(tmp_path / "deaths")) == 2
    after = set(engine.worker_pids())
    assert len(after) == 2
    assert len(before & after) == 1
    dead = (before - after).pop()
    assert not psutil.pid_exists(dead)


def test_other_computations_go_on_when_a_worker_dies(tmp_path: Path, runtime: Runtime) -> None:
    def compute() -> list[int]:
        values = [dask.delayed(lambda n: (time.sleep(0.01), n)[1])(number) for number in range(6)]
        return [sum(dask.compute(*values, scheduler=runtime.get)) for _ in range(10)]

    computing = in_background(compute)
    assert dask.delayed(die_first)(tmp_path / "deaths", 1, "alive").compute(scheduler=runtime.get) == "alive"
    assert computing.result(100) == [15] * 10


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_that_leaves_a_process_behind(tmp_path: Path, runtime: Runtime) -> None:
    def leave_one() -> str:
        if notes(tmp_path / "left"):
            return "done"
        child = os.fork()
        if not child:
            time.sleep(60)
            note(tmp_path / "waited for")
            os._exit(0)
        note(tmp_path / "left", str(child))
        os.kill(os.getpid(), signal.SIGKILL)
        return "not reached"

    try:
        assert dask.delayed(leave_one)().compute(scheduler=runtime.get) == "done"
        assert not notes(tmp_path / "waited for")
    finally:
        for pid in notes(tmp_path / "left"):
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (lambda: None, 0),
        (lambda: sys.exit(3), 3),
        (lambda: 1 // 0, 1),
        # For a worker it is a reason to try again with copies.
        (lambda: np.broadcast_to(0, 3).__setitem__(0, 1), 1),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt), 1),
    ],
    ids=["returns", "exits", "raises", "writes", "interrupted"],
)
def test_a_forked_process_never_becomes_a_worker(leave: Any, code: int, tmp_path: Path, runtime: Runtime) -> None:
    def fork(number: int) -> tuple[int, int]:
        note(tmp_path / "begun")
        child = os.fork()
        if not child:
            return leave()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), number

    values = dask.compute(*[dask.delayed(fork)(number) for number in range(6)], scheduler=runtime.get)
    assert values == tuple((code, number) for number in range(6))
    assert len(notes(tmp_path / "begun")) == 6


def framed(message: Any) -> bytes:
    return channel.frame(pickle.dumps(message))


FINISHED = Finished(1, [0, 0], [(0, 1)] * 2, [0.1] * 2, {}, [])
WRITTEN = {
    "text": b"what a program prints to a descriptor that it takes for another",
    "zeros": bytes(64),
    "no pickle": channel.frame(b"no pickle"),
    "finished twice": framed([as_plain(FINISHED)]),
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_a_senseless_report_costs_a_worker_and_no_more(
    written: bytes, tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    def write_once() -> str:
        if notes(tmp_path / "written"):
            return "done"
        note(tmp_path / "written")
        for thing in gc.get_objects():
            if isinstance(thing, socket.socket) and thing.fileno() >= 0:
                os.write(thing.fileno(), written)
        time.sleep(10)
        return "not replaced"

    kept = dask.delayed(large_array)(1).persist(scheduler=runtime.get)
    assert dask.delayed(write_once)().compute(scheduler=runtime.get) == "done"
    assert "is replaced for what it has reported" in caplog.text
    assert kept.sum().compute(scheduler=runtime.get) == 1 << 17


SENSELESS: dict[str, Any] = {
    "no message": 3,
    "unknown": (99,),
    "less than nothing": (-1, 999, {0: (0, 1)}),
    "too short": as_plain(FINISHED)[:2],
    "finished, of no graph": as_plain(Finished(999, [0], [(0, 1)], [0.1], {}, [])),
    "failed, of no graph": as_plain(Failed(999, 0, None, True)),
    "returned and never given": as_plain(Returned(1, [100], "dropped")),
    "never retained": as_plain(Unretained([(0, 0, 1)])),
    "loaded, of no graph": as_plain(Restored(999, {0: (0, 1)})),
}


@pytest.mark.parametrize("plain", SENSELESS.values(), ids=SENSELESS)
def test_a_senseless_message_is_refused(plain: Any, runtime: Runtime) -> None:
    engine = runtime.engine()
    handle = engine._registry.workers[0]
    with pytest.raises(ProtocolError):
        engine._loop.workforce._receiver.take(handle, plain)


def test_reports_of_chunks_that_were_never_given_are_refused(tmp_path: Path, runtime: Runtime) -> None:
    engine = runtime.engine()
    computing = in_background(runtime.get, {"x": (wait_for, tmp_path / "go on")}, "x")
    try:
        assert eventually(lambda: len(engine._runs) == 1)
        (number,) = engine._runs
        reports = (
            Returned(number, [100], "dropped"),
            Failed(number, 100, None, True),
            FINISHED._replace(graph=number),
        )
        for report in reports:
            with pytest.raises(ProtocolError, match="it was not given all of"):
                engine._loop.workforce._receiver.take(engine._registry.workers[0], as_plain(report))
    finally:
        (tmp_path / "go on").touch()
        computing.result(100)


def make_program(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.slow
def test_workers_that_end_before_they_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dask.config.set({"dask-mars.start-in-threads": False}):
        runtime = Runtime(num_workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", make_program(tmp_path / "false", "exit 1"))
        with pytest.raises(WorkerStartFailed) as caught:
            delayed_sum(runtime.get)
    assert caught.value.attempts == 3
    assert "ended with exit code 1" in str(caught.value)
    assert delayed_sum(runtime.get) == 3
    runtime.close()


@pytest.mark.parametrize(
    ("program", "error", "says"),
    [
        ("exec sleep 60", WorkerStartTimeout, r"3 in a row .* 0.2 s \(dask-mars.start-timeout\).*starting Python"),
        # Such an interpreter is not there.
        (None, WorkerStartFailed, "missing"),
    ],
)
def test_workers_that_never_get_ready(
    program: str | None, error: type[Exception], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_program(tmp_path / "sleep", program) if program else str(tmp_path / "missing")
    monkeypatch.setattr(sys, "executable", path)
    with dask.config.set({"dask-mars.start-timeout": "200 ms", "dask-mars.start-in-threads": False}):
        runtime = Runtime(num_workers=1)
    with pytest.raises(error, match=says):
        delayed_sum(runtime.get)
    runtime.close()


SHADOW = """
import importlib, os, sys, time

here = os.path.dirname(__file__)
try:
    os.close(os.open(os.path.join(here, "begun"), os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
else:
    time.sleep(600)
sys.path.remove(here)
del sys.modules[__name__]
importlib.import_module(__name__)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("new_interpreters")
def test_a_worker_that_is_stuck_at_an_import_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The first of the processes sleeps when it imports this, which is loaded here.
    (tmp_path / "cloudpickle.py").write_text(SHADOW)
    monkeypatch.syspath_prepend(tmp_path)
    with (
        dask.config.set({"dask-mars.start-timeout": "5 s", "dask-mars.start-in-threads": False}),
        Runtime(num_workers=1) as runtime,
    ):
        assert delayed_sum(runtime.get) == 3
    assert (tmp_path / "begun").exists()
    assert re.search(r"no progress for 5 s \(dask-mars.start-timeout\) while importing cloudpickle", caplog.text)


def test_nothing_is_left_when_the_users_process_is_killed(scripts: Any) -> None:
    script = scripts.write(
        "killed.py",
        textwrap.dedent(
            """
            import time
            import dask, dask_mars
            tasks = [dask.delayed(time.sleep)(60) for _ in range(4)]
            class Show(dask.callbacks.Callback):
                def _pretask(self, key, dsk, state):
                    print("started", flush=True)
            runtime = dask_mars.Runtime(2).start()
            dask.delayed(abs)(1).compute(scheduler=runtime.get)
            print(*runtime.engine().worker_pids(), flush=True)
            with Show():
                dask.compute(*tasks, scheduler=runtime.get)
            """
        ),
    )
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    with scripts.start(str(script)) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        assert process.stdout.readline() == "started\n"
        assert all(map(psutil.pid_exists, pids))
        process.kill()
        process.wait(100)
        assert eventually(lambda: not scripts.left(), 3)
    if shared:
        assert not {name for name in set(os.listdir("/dev/shm")) - shared if "mars" in name}


# -- Ctrl-C ---------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, threading, time
import dask, dask_mars

def sleep(path, gate, *_):
    open(path, "a").close()
    while not os.path.exists(gate):
        time.sleep(0.05)

runtime = dask_mars.Runtime(2)
dask.delayed(abs)(1).compute(scheduler=runtime.get)
tasks = [dask.delayed(sleep)("started" + str(n), "go on", threading.Lock()) for n in range(2)]
try:
    dask.compute(*tasks, scheduler=runtime.get)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(dask.delayed(sum)([1, 2]).compute(scheduler=runtime.get), flush=True)
dask.compute(*[dask.delayed(sleep)("again" + str(n), "never") for n in range(2)], scheduler=runtime.get)
"""


@pytest.mark.slow
def test_ctrl_c_that_is_handled_and_that_is_not(scripts: Any) -> None:
    with scripts.start(str(scripts.write("interrupted.py", INTERRUPTED))) as process:
        assert eventually(lambda: len(list(scripts.directory.glob("started*"))) >= 2, 15)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.stdout.readline() == "3\n"
        # The tasks have not come to their end before.
        (scripts.directory / "go on").touch()
        assert eventually(lambda: list(scripts.directory.glob("again*")), 15)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert out == ""
    assert process.returncode == -signal.SIGINT


@pytest.fixture
def patient() -> Iterator[Runtime]:
    """Two workers that are not ended because a busy machine is slow to interrupt their tasks."""
    with dask.config.set({"dask-mars.cancel-grace": "60 s"}), shared_runtime(2) as runtime:
        yield runtime


def test_interrupts_at_any_moment(patient: Runtime) -> None:
    runtime, choose = patient, random.Random(5)
    values = [dask.delayed(lambda n: (time.sleep(0.002), large_array(0.1, n))[1][0])(n) for n in range(40)]
    pids = runtime.engine().worker_pids()
    main = threading.main_thread().ident
    armed = False
    interrupted = 0

    def interrupt(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        for _ in range(15):
            timer = threading.Timer(choose.uniform(0.001, 0.06), signal.pthread_kill, (main, signal.SIGUSR1))
            timer.start()
            try:
                armed = True
                assert dask.compute(*values, scheduler=runtime.get) == tuple(map(float, range(40)))
                armed = False
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                armed = False
                timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert interrupted
    assert dask.compute(*values, scheduler=runtime.get) == tuple(map(float, range(40)))
    assert runtime.engine().worker_pids() == pids


class Interrupt(Callback):
    """Presses Ctrl-C, as it were, when a task is about to begin or has just been done."""

    def __init__(self, before: str = "", after: str = "") -> None:
        super().__init__()
        self.before, self.after = before, after

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        if self.before and str(key).lstrip("('").startswith(self.before):
            raise KeyboardInterrupt

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        if self.after and str(key).lstrip("('").startswith(self.after):
            raise KeyboardInterrupt


def test_nothing_is_kept_for_a_task_of_the_users_process_that_never_begins(runtime: Runtime) -> None:
    with pytest.raises(KeyboardInterrupt), Interrupt(before="finalize"):
        da.ones(100_000, chunks=10_000).compute(scheduler=runtime.get)
    assert eventually(lambda: not runtime.engine()._blocks.counts)


def test_what_the_users_process_has_begun_goes_on_and_the_rest_is_dropped(runtime: Runtime) -> None:
    class Target:
        begun = 0

        def __setitem__(self, index: Any, value: Any) -> None:
            self.begun += 1
            time.sleep(0.1)

    target = Target()
    with pytest.raises(KeyboardInterrupt), Interrupt(after="store"):
        da.ones(20, chunks=1).store(target, lock=False, scheduler=runtime.get)
    assert eventually(lambda: not runtime.engine()._runs)
    assert 0 < target.begun < 20


# -- tasks that cannot travel ---------------------------------------------------------------------------------


def test_only_what_cannot_travel_runs_in_the_users_process(get: Get) -> None:
    lock = threading.Lock()
    first = dask.delayed(pid_of)(1)
    second = dask.delayed(lambda pid, lock: (pid, os.getpid()))(first, lock)
    third = dask.delayed(lambda pids: (*pids, os.getpid()))(second)
    first_pid, second_pid, third_pid = third.compute(scheduler=get)
    assert first_pid != os.getpid()
    assert second_pid == os.getpid()
    assert third_pid != os.getpid()


def test_open_files(tmp_path: Path, get: Get) -> None:
    with open(tmp_path / "log.txt", "w+") as file:
        dask.compute([dask.delayed(file.write)(f"{number}\n") for number in range(5)], scheduler=get)
        file.seek(0)
        assert sorted(file) == [f"{number}\n" for number in range(5)]


def test_results_that_cannot_travel(get: Get) -> None:
    def numbers() -> Any:
        yield from range(5)

    assert dask.delayed(list)(dask.delayed(numbers)()).compute(scheduler=get) == [0, 1, 2, 3, 4]
    assert list(dask.delayed(numbers)().compute(scheduler=get)) == [0, 1, 2, 3, 4]
    lock = dask.delayed(threading.Lock)().compute(scheduler=get)
    assert lock.acquire(blocking=False)
    assert (
        dask.delayed(lambda values: sum(values))(dask.delayed(lambda: (n for n in [1, 2]))()).compute(
            scheduler=get
        )
        == 3
    )


def test_results_that_can_be_pickled_and_not_read(get: Get) -> None:
    class Unreadable:
        def __reduce__(self) -> Any:
            return refuse, ()

    def refuse() -> None:
        raise RuntimeError("not here")

    value = dask.delayed(Unreadable)()
    # Results that cannot be unpickled are made in the user's process, like those that cannot be pickled.
    assert type(value.compute(scheduler=get)) is Unreadable
    held = dask.delayed(lambda: [np.ones(5000), Unreadable()])()
    assert (
        dask.delayed(lambda pair: len(pair[0]) + isinstance(pair[1], Unreadable))(held).compute(scheduler=get)
        == 5001
    )
    assert delayed_sum(get) == 3


@contextlib.contextmanager
def module_of_no_path(path: Path, source: str) -> Iterator[Any]:
    """Load a module that no worker finds, as it lies where nobody looks."""
    path.parent.mkdir()
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def test_functions_of_modules_that_workers_cannot_import(tmp_path: Path, get: Get) -> None:
    source = "import os\ndef where(value):\n    return os.getpid(), value\n"
    with module_of_no_path(tmp_path / "hidden" / "unimportable_for_mars.py", source) as module:
        hidden = [dask.delayed(module.where)(number) for number in range(6)]
        seen = [dask.delayed(pid_of)(value) for value in hidden]
        values, pids = dask.compute(hidden, seen, scheduler=get)
        assert values == [(os.getpid(), number) for number in range(6)]
        assert os.getpid() not in pids
        first = dask.delayed(pid_of)(1)
        assert dask.delayed(module.where)(first).compute(scheduler=get)[1] != os.getpid()


def test_objects_of_modules_that_workers_cannot_import(tmp_path: Path, get: Get) -> None:
    source = "class Thing:\n    def __init__(self, n):\n        self.n = n\n"
    with module_of_no_path(tmp_path / "hidden" / "unimportable_class_for_mars.py", source) as module:
        things = [dask.delayed(lambda thing: thing.n + 1)(module.Thing(number)) for number in range(5)]
        assert dask.compute(*things, scheduler=get) == (1, 2, 3, 4, 5)
        made = dask.delayed(module.Thing)(3)
        assert dask.delayed(lambda thing: thing.n)(made).compute(scheduler=get) == 3
        made = dask.delayed(module.Thing, pure=True)(dask.delayed(abs)(-4))
        assert type(made.compute(scheduler=get)) is module.Thing


def test_retries_in_the_users_process(tmp_path: Path, get: Get) -> None:
    def work(lock: Any) -> str:
        return fail_first(tmp_path / "calls", 1, "done")

    assert dask.delayed(work)(threading.Lock()).compute(scheduler=get, retries=1) == "done"


# -- storing --------------------------------------------------------------------------------------------------


class OwnTarget:
    """A target of the user that knows nothing but item assignment."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.values = np.zeros(shape)
        self.shape = shape
        self.dtype = self.values.dtype

    def __setitem__(self, where: Any, value: Any) -> None:
        self.values[where] = value

    def __getitem__(self, where: Any) -> Any:
        return self.values[where]


SHAPE = (40, 1000)


def make_target(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    if kind == "numpy":
        return np.zeros(SHAPE)
    if kind == "memmap":
        return np.memmap(tmp_path / "map.bin", dtype="f8", mode="w+", shape=SHAPE)
    if kind == "own":
        return OwnTarget(SHAPE)
    if kind == "h5py":
        file = pytest.importorskip("h5py").File(tmp_path / "file.h5", "w")
        request.addfinalizer(file.close)
        return file.create_dataset("x", SHAPE, "f8")
    zarr = request.getfixturevalue("zarr")
    return zarr.create_array(str(tmp_path / "directory.zarr"), shape=SHAPE, chunks=(10, 250), dtype="f8")


@pytest.mark.parametrize(
    ("kind", "lock"), [("numpy", False), ("memmap", True), ("own", "own"), ("h5py", True), ("zarr", "own")]
)
def test_store(kind: str, lock: Any, tmp_path: Path, request: pytest.FixtureRequest, get: Get, zarr: Any) -> None:
    target = make_target(kind, tmp_path, request)
    array = da.arange(40_000, chunks=10_000, dtype="f8").reshape(SHAPE)
    if lock == "own":
        lock = threading.Lock()
    assert da.store(array + 1, target, lock=lock, scheduler=get) is None
    expected = np.arange(1.0, 40_001).reshape(SHAPE)
    np.testing.assert_array_equal(target[:], expected)
    if lock is not True:
        stored = da.store(array + 2, target, return_stored=True, scheduler=get)
        np.testing.assert_array_equal(target[:], expected + 1)
        np.testing.assert_array_equal((stored * 2).compute(scheduler=get), (expected + 1) * 2)


@pytest.mark.parametrize(("size", "optimize_graph"), [(100, True), (100_000, False)])
def test_store_in_one_chain_of_fused_tasks(size: int, optimize_graph: bool, get: Get) -> None:
    target = np.zeros(size)
    array = (da.ones(size, chunks=size // 10).map_blocks(np.copy) + 1) * 2
    da.store(array[::-1] - 1, target, scheduler=get, optimize_graph=optimize_graph)
    assert (target == 3).all()


def read_part(path: Path, start: int) -> np.ndarray:
    with pytest.importorskip("h5py").File(path, "r") as file:
        return file["x"][start : start + 1000]


def test_a_file_that_the_user_writes_is_read_in_the_users_process(tmp_path: Path, get: Get) -> None:
    h5py = pytest.importorskip("h5py")
    parts = [dask.delayed(read_part)(tmp_path / "x.h5", start) for start in range(0, 5000, 1000)]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(5000.0)
        # The file is locked, and what was written may not be there yet.
        found = dask.compute(*parts, scheduler=get)
    np.testing.assert_array_equal(np.concatenate(found), np.arange(5000.0))


def count_up(path: Path, lock: Any, times: int = 1) -> int:
    for _ in range(times):
        with lock:
            count = int(path.read_text())
            time.sleep(0.0005)
            path.write_text(str(count + 1))
    return os.getpid()


def test_locks_of_dask_hold_across_processes(tmp_path: Path, runtime: Runtime) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    lock = SerializableLock("of-our-test")
    counts = [dask.delayed(count_up)(path, lock, 20) for _ in range(6)]
    # A lock of threads keeps the last ones in the user's process, where they need the same lock.
    unsendable = threading.Lock()
    counts += [dask.delayed(lambda *args: count_up(*args[:3]))(path, lock, 20, unsendable) for _ in range(2)]
    pids = dask.compute(*counts, scheduler=runtime.get)
    assert os.getpid() in pids
    assert len(set(pids)) >= 2
    assert path.read_text() == str(20 * len(counts))


def test_a_lock_held_by_a_process_that_dies_is_released(tmp_path: Path, get: Get) -> None:
    lock = SerializableLock("of-our-dying-test")

    def work(lock: Any) -> str:
        with lock:
            return die_first(tmp_path / "deaths", 1, "done")

    assert dask.delayed(work)(lock).compute(scheduler=get) == "done"


# -- memory that does not suffice -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_store_that_is_too_small() -> None:
    limit_bytes = limit_with_room(64 << 20)
    with Runtime(num_workers=1, memory_limit=limit_bytes) as runtime:
        with pytest.raises(QuotaExceeded) as caught:
            dask.delayed(large_array)(2 * limit_bytes >> 20).compute(scheduler=runtime.get)
        error = caught.value
        assert error.growth_bytes >= limit_bytes
        assert error.limit_bytes == limit_bytes
        assert "memory-limit" in str(error)
        assert (
            dask.delayed(lambda array: array.sum())(dask.delayed(large_array)(32)).compute(scheduler=runtime.get)
            == 1 << 22
        )
        # Each fits beside whatever this process has, and all together do not.
        held = [dask.delayed(large_array)(24, number) for number in range(limit_bytes // (24 << 20) + 2)]
        with pytest.raises(RequestTooLarge):
            dask.delayed(lambda *arrays: len(arrays))(*held).compute(scheduler=runtime.get)
        assert eventually(lambda: not runtime.engine()._blocks.counts)
        assert delayed_sum(runtime.get) == 3


def test_a_graph_that_fits_if_it_runs_in_a_good_order(small: Runtime, written: list[str]) -> None:
    sums = [dask.delayed(np.sum)(dask.delayed(large_array)(1, number)) for number in range(40)]
    assert dask.compute(*sums, scheduler=small.get)[1] == 1 << 17
    assert not written


def test_a_file_mapped_to_memory_that_is_larger_than_the_store(tmp_path: Path, small: Runtime) -> None:
    np.arange(float(1 << 22)).tofile(tmp_path / "data.bin")
    mapped = np.memmap(tmp_path / "data.bin", dtype="f8", mode="r")
    # Not by from_array, which reads the whole file into the user's memory.
    total = dask.delayed(np.sum)(mapped[1000:].reshape(-1, 8)[:, ::-2])
    assert total.compute(scheduler=small.get) == mapped[1000:].reshape(-1, 8)[:, ::-2].sum()
