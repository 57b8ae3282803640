"""Threads of the user's process compute library code until worker processes are up."""

from __future__ import annotations

import decimal
import functools
import operator
import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.client import lending
from dask_mars.diagnostics import EventLog, report
from dask_mars.engine import startup
from dask_mars.engine.receiver import ProtocolError, Receiver
from dask_mars.engine.startup import Startup
from dask_mars.engine.workforce import Workforce
from dask_mars.errors import EngineStopped
from dask_mars.labels import WorkerRows, worker_label
from dask_mars.optimize import library_code
from dask_mars.store.store import Store
from dask_mars.worker import thread
from tests.background import in_background
from tests.conftest import eventually
from tests.tasks import pid_of

pytestmark = pytest.mark.timeout(300)

_kept: list[Any] = []

#: What `wait_at_gate` waits for, and whether it does.
_gate, _at_gate = threading.Event(), threading.Event()


def wait_at_gate(_: int = 0) -> bool:
    _at_gate.set()
    return _gate.wait(200)


def in_a_loop(block: Any) -> Any:
    """Return a block plus one: loops are for processes."""
    return np.stack([row + 1 for row in block])


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Have calls of `wait_at_gate` wait, at most until the test is over."""
    _gate.clear()
    _at_gate.clear()
    yield _gate
    _gate.set()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have threads go on however slow this machine is."""
    monkeypatch.setattr(startup, "_PATIENCE_S", 1000.0)
    monkeypatch.setattr(startup, "_LOCKED_PATIENCE_S", 1000.0)
    # Where it is off no process would take over.
    monkeypatch.setattr(startup, "has_lock", lambda: True)
    monkeypatch.setattr(Startup, "note_lost", lambda startup, lost: None)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(num_workers=2) as runtime:
        yield runtime


@pytest.fixture
def tests_are_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the functions of this module run in threads too."""
    monkeypatch.setattr(library_code, "LIBRARIES", library_code.LIBRARIES | {__name__.partition(".")[0], "time"})


def random_means(size: int = 400) -> da.Array:
    x = da.random.default_rng(3).random((size, size), chunks=100)
    return ((x - x.mean(axis=0)) / x.std(axis=0)).sum(axis=1)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dask-mars-worker")]


def test_there_are_as_many_threads_as_there_is_work_for() -> None:
    counts = []
    with Runtime(num_workers=8) as runtime:
        for chunks in (1, 3, 100):
            x = da.ones(10 * chunks, chunks=10)
            assert x.map_blocks(np.negative).compute(scheduler=runtime.get).sum() == -10 * chunks
            counts.append(len(threads()))
    assert counts == [1, 3, 8]


def test_library_code_is_computed_without_processes(runtime: Runtime) -> None:
    expected = random_means().compute(scheduler="threads")
    for _ in range(2):
        np.testing.assert_allclose(random_means().compute(scheduler=runtime.get), expected, rtol=1e-12)
        assert runtime.engine().worker_pids() == []
    assert len(threads()) == 2
    runtime.close()
    assert eventually(lambda: not threads())


@pytest.mark.parametrize("start_in_threads", [True, False])
def test_arrays_of_tasks_take_their_memory_from_the_arena(start_in_threads: bool) -> None:
    # NumPy's allocator is a context variable, and tasks find those of the calling thread.
    with dask.config.set({"dask-mars.start-in-threads": start_in_threads}), Runtime(num_workers=2) as runtime:
        allocator = dask.delayed(np._core.multiarray.get_handler_name)()
        for _ in range(2):
            assert allocator.compute(scheduler=runtime.get) == "dask_mars"
            assert bool(runtime.engine().worker_pids()) is not start_in_threads


def test_what_people_see_says_that_workers_are_threads(runtime: Runtime, tmp_path: Path) -> None:
    with report(tmp_path / "report.html"), EventLog(tmp_path / "log.json") as log:
        random_means().compute(scheduler=runtime.get)
    names = {f"thread {number} of your process" for number in range(2)}
    assert {worker["label"] for worker in runtime.state()["workers"]} == names
    assert "thread 0 of your process" in str(runtime.state())
    assert "thread 0 of your process has nothing" in runtime.explain()
    assert "workers are threads of this process: all functions" in runtime.explain()
    assert runtime.state().why_processes == ""
    rows = {event["args"]["name"] for event in log.events() if event["name"] == "thread_name"}
    assert names <= rows
    page = (tmp_path / "report.html").read_text()
    assert "of your process" in page
    assert "worker 0" not in page


def test_a_process_in_the_place_of_a_thread_has_a_row_of_its_own() -> None:
    rows = WorkerRows()
    labels = [worker_label(-1), worker_label(0, is_thread=True), worker_label(0, 4711), worker_label(0, 4711)]
    assert [rows.row_of(label) for label in labels] == [-1, 0, 1, 1]
    assert rows.labels == {-1: "your process", 0: "thread 0 of your process", 1: "worker 0 (process 4711)"}


def test_objects_of_xarray_are_put_together_by_threads(runtime: Runtime) -> None:
    xarray = pytest.importorskip("xarray")
    data = xarray.DataArray(np.random.default_rng(1).random((60, 8, 9)), dims=("time", "y", "x")).chunk(time=7)
    means = data.rolling(time=3).mean()
    (ours,) = dask.compute(means, scheduler=runtime.get)
    xarray.testing.assert_allclose(ours, means.compute(scheduler="threads"))
    assert runtime.engine().worker_pids() == []


def test_code_of_the_users_runs_in_processes_alone(runtime: Runtime) -> None:
    assert random_means().compute(scheduler=runtime.get).shape == (400,)
    for _ in range(3):
        pids = dask.compute(
            *[dask.delayed(pid_of)(number, pure=False) for number in range(4)], scheduler=runtime.get
        )
        assert os.getpid() not in pids
    assert eventually(lambda: len(runtime.engine().worker_pids()) == 2)
    assert eventually(lambda: not threads())
    assert "workers are processes: tests.tasks.pid_of is not a library's" in runtime.explain()
    assert "tests.tasks.pid_of is not a library's" in str(runtime.state())


def test_processes_read_what_threads_have_made(runtime: Runtime) -> None:
    x = da.random.default_rng(5).random((1000, 1000), chunks=250)
    persisted = runtime.persist([x])[0]
    assert runtime.engine().worker_pids() == []
    expected = x.compute(scheduler="threads")
    np.testing.assert_array_equal(persisted.map_blocks(in_a_loop).compute(scheduler=runtime.get), expected + 1)
    assert len(runtime.engine().worker_pids()) == 2
    # Where the threads had their arrays processes have theirs now.
    for seed in range(4):
        da.random.default_rng(seed).random((1000, 1000), chunks=250).sum().compute(scheduler=runtime.get)
    np.testing.assert_array_equal(persisted.compute(scheduler=runtime.get), expected)


def test_functions_without_loops_run_in_threads(
    runtime: Runtime, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_code, "MUCH_BYTES", 1)
    array = numbers()
    x = da.from_array(array, chunks=200)

    def write(block: Any) -> Any:
        block[0] = 7
        return block

    def fail(block: Any) -> Any:
        return block + np.ones(block.size + 1)

    for made in (
        x.map_blocks(lambda block: 2 * block),
        x.map_overlap(lambda block: block[1:] - block[:-1], depth=(1, 0), boundary="none", trim=False).sum(),
        (x + 1).map_blocks(write),
    ):
        got = made.compute(scheduler=runtime.get)
        np.testing.assert_allclose(got, made.compute(scheduler="threads"), rtol=1e-12)
    with pytest.raises(ValueError, match="broadcast"):
        x.map_blocks(fail).compute(scheduler=runtime.get)
    assert copied == []
    assert runtime.engine().worker_pids() == []


@pytest.mark.slow
def test_processes_take_over_in_the_middle(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_SMALL_S", 1000)
    monkeypatch.setattr(startup, "_LOCKED_PATIENCE_S", 0.05)
    monkeypatch.setattr(startup, "_STARTS", 0)
    x = da.random.default_rng(5).random((3000, 3000), chunks=100)
    expected = float(x.std().compute(scheduler="threads"))
    deadline = time.monotonic() + 200
    while threads() or not runtime.engine().worker_pids():
        assert float(x.std().compute(scheduler=runtime.get)) == pytest.approx(expected, rel=1e-12)
        assert time.monotonic() < deadline
    assert len(runtime.engine().worker_pids()) == 2


# -- arrays of the user's ---------------------------------------------------------------------------------------


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the sizes of the user's values that are copied into the store."""
    sizes: list[int] = []

    def seal(store: Store, value: Any, *args: Any, **keywords: Any) -> Any:
        if keywords.get("freeze"):
            sizes.append(getattr(value, "nbytes", 0))
        return whole(store, value, *args, **keywords)

    whole = Store.seal
    monkeypatch.setattr(Store, "seal", seal)
    return sizes


def numbers(size: int = 900) -> np.ndarray[Any, Any]:
    return np.random.default_rng(2).random((size, size))


@pytest.mark.parametrize("layout", ["transposed", pytest.param("mapped", marks=pytest.mark.slow)])
def test_threads_read_the_users_arrays_where_they_are(
    runtime: Runtime, copied: list[int], layout: str, tmp_path: Any
) -> None:
    array = numbers()
    if layout == "mapped":
        np.save(tmp_path / "x.npy", array)
        array = np.load(tmp_path / "x.npy", mmap_mode="r")
    array = array.T[::2, ::-3] if layout == "transposed" else array
    x = da.from_array(array, chunks=200)
    for made in (x.sum(axis=0), x.std(), (x + 1).max(), x[::7].T, x.rechunk(90).cumsum(axis=1)):
        ours = made.compute(scheduler=runtime.get)
        np.testing.assert_allclose(ours, made.compute(scheduler="threads"), rtol=1e-12)
        assert ours.flags.writeable or not ours.shape
        assert not np.shares_memory(ours, array)
    assert copied == []
    assert runtime.engine().worker_pids() == []
    # Others get copies.
    added = x.map_blocks(in_a_loop)
    np.testing.assert_array_equal(added.compute(scheduler=runtime.get), array + 1)
    assert sum(copied) == array.nbytes
    total = x.sum().compute(scheduler=runtime.get)
    np.testing.assert_allclose(total, x.sum().compute(scheduler="threads"), rtol=1e-12)


def test_threads_read_the_users_frames_where_they_are(
    runtime: Runtime, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    monkeypatch.setattr(lending, "FRAMES_LIMIT_BYTES", 0)
    frame = pandas.DataFrame({"key": np.arange(40_000) % 3, "value": np.arange(40_000.0)})
    before = frame.copy()
    x = frames.from_pandas(frame, npartitions=3)
    sums = x.groupby("key").value.sum().compute(scheduler=runtime.get)
    pandas.testing.assert_series_equal(sums, frame.groupby("key").value.sum())
    column = x[["value"]].compute(scheduler=runtime.get)
    pandas.testing.assert_frame_equal(column, frame[["value"]])
    column.iloc[:] = 0.0
    pandas.testing.assert_frame_equal(frame, before)
    assert copied == []
    assert runtime.engine().worker_pids() == []


@pytest.mark.usefixtures("tests_are_a_library")
def test_what_threads_make_of_the_users_arrays_is_no_part_of_them(runtime: Runtime) -> None:
    array = numbers()
    before = array.copy()
    frozen = numbers()
    frozen.flags.writeable = False
    for task, given, writeable in [(itself, array, True), (in_a_dict, array, True), (itself, frozen, False)]:
        made = dask.delayed(task, pure=False)(dask.delayed(given)).compute(scheduler=runtime.get)
        made = made["x"] if isinstance(made, dict) else made
        np.testing.assert_array_equal(made, before)
        assert made.flags.writeable is writeable
        if writeable:
            made[:] = 0
        np.testing.assert_array_equal(array, before)


@pytest.mark.usefixtures("tests_are_a_library")
@pytest.mark.parametrize("writable_inputs", [False, True])
def test_a_task_that_writes_into_the_users_array_does_so(runtime: Runtime, writable_inputs: bool) -> None:
    array = numbers()
    with dask.config.set({"dask-mars.writable-inputs": writable_inputs}):
        written = dask.delayed(np.put, pure=False)(dask.delayed(array), [5], 7.0)
        assert written.compute(scheduler=runtime.get) is None
    assert array[0, 5] == 7.0


@pytest.mark.slow
@pytest.mark.usefixtures("tests_are_a_library")
def test_an_array_that_is_a_result_may_be_given_back(runtime: Runtime) -> None:
    made = (da.from_array(numbers(), chunks=300) + 1).persist(scheduler=runtime.get)
    blocks = dask.compute(*made.to_delayed().ravel(), scheduler=runtime.get)
    again = da.concatenate([da.from_array(block, chunks=-1) for block in blocks], axis=0)
    for _ in range(3):
        np.testing.assert_allclose(again.sum().compute(scheduler=runtime.get), np.sum(numbers() + 1))
        same = dask.compute(*[dask.delayed(itself)(dask.delayed(b)) for b in blocks], scheduler=runtime.get)
        for ours, block in zip(same, blocks, strict=True):
            np.testing.assert_array_equal(ours, block)


def itself(value: Any) -> Any:
    return value


def in_a_dict(value: Any) -> Any:
    return {"x": value[:], "y": 1}


def test_to_start_a_runtime_is_to_start_processes(runtime: Runtime) -> None:
    assert eventually(lambda: len(runtime.start().engine().worker_pids()) == 2)
    random_means().compute(scheduler=runtime.get)
    assert not threads()
    assert "asked to start" in runtime.state().why_processes


@pytest.mark.parametrize(
    ("setting", "limit", "why"),
    [(True, "1 GiB", "memory limit of 2.00 GiB"), (False, None, "start-in-threads is off")],
)
def test_processes_compute_where_memory_is_short_or_the_user_wants_it(
    setting: bool, limit: str | None, why: str
) -> None:
    with dask.config.set({"dask-mars.start-in-threads": setting}):
        runtime = Runtime(num_workers=1, memory_limit=limit)
    with runtime:
        assert random_means().compute(scheduler=runtime.get).shape == (400,)
        assert len(runtime.engine().worker_pids()) == 1
        assert not threads()
        assert why in runtime.state().why_processes


@pytest.mark.slow
def test_large_chunks_are_for_processes() -> None:
    with Runtime(num_workers=1, memory_limit="2 GiB") as runtime:
        assert da.arange(1 << 20, chunks=-1).max().compute(scheduler=runtime.get) == (1 << 20) - 1
        assert runtime.engine().worker_pids() == []
        assert da.arange(1 << 25, chunks=-1).compute(scheduler=runtime.get)[-1] == (1 << 25) - 1
        assert len(runtime.engine().worker_pids()) == 1
        assert "a chunk takes 256.00 MiB" in runtime.explain()


def test_errors_and_warnings_are_those_of_threads(runtime: Runtime) -> None:
    x = da.from_array(np.array([0.0, 1.0]), chunks=1)
    with pytest.raises(ZeroDivisionError), np.errstate(all="raise"):
        dask.delayed(divmod)(1, 0).compute(scheduler=runtime.get)
    with pytest.raises(FloatingPointError), np.errstate(divide="raise"):
        (1 / x).compute(scheduler=runtime.get)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert np.isinf((1 / x).compute(scheduler=runtime.get)[0])
    assert [entry.category for entry in caught] == [RuntimeWarning]
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf((1 / x).compute(scheduler=runtime.get)[0])
    assert runtime.engine().worker_pids() == []


def test_variables_of_the_calling_thread_are_those_of_threads(runtime: Runtime) -> None:
    text = dask.delayed(np.array2string, pure=False)(np.array([1 / 3]))
    with np.printoptions(precision=2):
        assert text.compute(scheduler=runtime.get) == "[0.33]"
    assert text.compute(scheduler=runtime.get) == np.array2string(np.array([1 / 3]))
    with decimal.localcontext() as context:
        context.prec = 5
        third = dask.delayed(operator.truediv)(decimal.Decimal(1), 3)
        assert str(third.compute(scheduler=runtime.get)) == "0.33333"
    assert runtime.engine().worker_pids() == []


def keep(block: np.ndarray) -> np.ndarray:
    """As a library does that caches arrays."""
    kept = np.full_like(block, 7)
    _kept.append((kept, block))
    return block + 1


@pytest.mark.usefixtures("tests_are_a_library")
def test_what_libraries_keep_stays_as_it_is(runtime: Runtime) -> None:
    _kept.clear()
    x = da.full(400_000, 3.0, chunks=100_000)
    assert x.map_blocks(keep).sum().compute(scheduler=runtime.get) == 1_600_000
    assert len([kept for kept, _ in _kept if kept.size > 1]) == 4
    dask.delayed(os.getpid)().compute(scheduler=runtime.get)
    assert len(runtime.engine().worker_pids()) == 2
    for seed in range(5):
        da.random.default_rng(seed).random(800_000, chunks=100_000).sum().compute(scheduler=runtime.get)
    for kept, block in _kept:
        assert np.all(kept == 7)
        assert kept.size <= 1 or np.all(block == 3)
    _kept.clear()


@pytest.mark.usefixtures("tests_are_a_library")
def test_a_cancelled_computation_does_not_wait_for_threads(runtime: Runtime, gate: threading.Event) -> None:
    waiting = [dask.delayed(wait_at_gate)(number) for number in range(20)]
    computing = in_background(dask.compute, *waiting, scheduler=runtime.get)
    assert _at_gate.wait(100)
    runtime.engine().cancel_graph(runtime.state()["graphs"][0]["graph"])
    assert computing.exception(100) is not None
    gate.set()
    assert random_means().compute(scheduler=runtime.get).shape == (400,)


@pytest.mark.usefixtures("tests_are_a_library")
def test_the_end_does_not_wait_for_threads(gate: threading.Event) -> None:
    runtime = Runtime(num_workers=1)
    computing = in_background(dask.delayed(wait_at_gate)().compute, scheduler=runtime.get)
    assert _at_gate.wait(100)
    runtime.close()
    assert isinstance(computing.exception(100), EngineStopped)
    assert threads()
    gate.set()
    assert eventually(lambda: not threads())


def test_processes_compute_if_threads_fail(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("on purpose")

    monkeypatch.setattr(thread, "make_heap", fail)
    assert random_means().compute(scheduler=runtime.get).shape == (400,)
    assert len(runtime.engine().worker_pids()) == 2
    assert "a thread that computes has failed" in caplog.text
    # Its records have frames, which have arenas.
    caplog.clear()


@pytest.mark.usefixtures("tests_are_a_library")
def test_what_cannot_be_read_of_a_thread_is_computed_by_a_process_once_it_has_ended(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []

    def take(receiver: Receiver, handle: Any, plain: tuple[Any, ...]) -> None:
        if not handle.is_process and handle.ready:
            taken.append(handle.has_ended())
            raise ProtocolError("on purpose")
        receive(receiver, handle, plain)

    receive = Receiver.take
    monkeypatch.setattr(Receiver, "take", take)
    start_process = Workforce._start_process
    begun: list[int] = []

    def start(workforce: Workforce, number: int) -> None:
        begun.append(len(threads()))
        start_process(workforce, number)

    monkeypatch.setattr(Workforce, "_start_process", start)
    assert dask.delayed(time.sleep)(0.2).compute(scheduler=runtime.get) is None
    assert random_means().compute(scheduler=runtime.get).shape == (400,)
    assert taken
    # On a busy machine a second one is read when the thread has ended.
    assert not taken[0]
    assert begun
    assert all(left < 2 for left in begun)
    assert eventually(lambda: not threads())


def test_after_idleness_threads_compute_first_again() -> None:
    with dask.config.set({"dask-mars.idle-timeout": "50 ms"}), Runtime(num_workers=2) as runtime:
        engine = runtime.start().engine()
        assert dask.delayed(pid_of)(1).compute(scheduler=runtime.get) != os.getpid()
        assert eventually(lambda: not engine.worker_pids())
        random_means().compute(scheduler=runtime.get)
        assert engine.worker_pids() == []


def test_a_forked_process_computes_on_its_own(runtime: Runtime) -> None:
    expected = random_means().compute(scheduler=runtime.get)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            found = random_means().compute(scheduler=runtime.get)
            os.write(writer, b"same" if np.allclose(found, expected) else b"other")
            runtime.close()
        finally:
            os._exit(0)
    os.close(writer)
    try:
        assert os.read(reader, 10) == b"same"
    finally:
        os.close(reader)
        os.waitpid(pid, 0)
    np.testing.assert_array_equal(random_means().compute(scheduler=runtime.get), expected)


@pytest.mark.slow
def test_many_small_computations_side_by_side(runtime: Runtime) -> None:
    def compute(seed: int) -> float:
        x = da.random.default_rng(seed).random(1000, chunks=100)
        products = functools.reduce(lambda left, right: left + right, [x * number for number in range(5)])
        return float(products.sum().compute(scheduler=runtime.get))

    for seed, found in enumerate([in_background(compute, seed) for seed in range(12)]):
        x = da.random.default_rng(seed).random(1000, chunks=100)
        assert found.result(100) == pytest.approx(10 * float(x.sum().compute(scheduler="sync")))
