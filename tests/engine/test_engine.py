"""The embedded engine: who starts it, what tasks find around them, where chunks lie and for how long."""

from __future__ import annotations

import contextlib
import decimal
import gc
import importlib
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest

import dask_mars
from dask_mars import Runtime, config
from dask_mars.engine.templates import templates
from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.errors import EngineStopped
from dask_mars.protocol import channel
from dask_mars.protocol.worker_environment import WORKER_ENVIRONMENT
from dask_mars.runtimes import _Default
from tests.background import in_background
from tests.conftest import eventually, shared_runtime
from tests.constants import constants
from tests.tasks import large_array, wait_for

pytestmark = pytest.mark.timeout(300)

Get = Callable[..., Any]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
compiled = pytest.mark.skipif(
    importlib.util.find_spec("dask_mars.store._arena") is None, reason="the extension is not built"
)


def delayed_one(runtime: Runtime) -> int:
    return dask.delayed(abs)(-1).compute(scheduler=runtime.get)


def pids_of(runtime: Runtime) -> list[int]:
    """Return the process ids of all workers, once they are started."""
    engine = runtime.engine()
    assert eventually(lambda: len(engine.worker_pids()) == runtime.settings.num_workers, 10)
    return engine.worker_pids()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Leave what refers to itself where it is."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def single() -> Iterator[Runtime]:
    """A runtime with one worker."""
    with shared_runtime(num_workers=1) as runtime:
        yield runtime


# -- starting and ending --------------------------------------------------------------------------------------


def test_the_default_runtime_starts_at_the_first_call_and_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    default = _Default()
    monkeypatch.setattr(dask_mars.runtimes, "_default", default)
    before = psutil.Process().children()
    assert default._runtime is None
    assert psutil.Process().children() == before
    arrays = [da.arange(size * 1000, chunks=777) for size in range(1, 5)]
    with dask.config.set({"num_workers": 2, "dask-mars.start-in-threads": False}):
        try:
            with ThreadPoolExecutor(len(arrays)) as pool:
                sums = list(pool.map(lambda array: array.sum().compute(scheduler=dask_mars.get), arrays))
            assert sums == [array.size * (array.size - 1) // 2 for array in arrays]
            pids = default.engine(None).worker_pids()
            assert len(pids) == 2
            assert set(pids) <= {child.pid for child in psutil.Process().children()}
        finally:
            dask_mars.close()
    assert not any(map(psutil.pid_exists, pids))


def test_a_graph_without_tasks_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    default = _Default()
    monkeypatch.setattr(dask_mars.runtimes, "_default", default)
    assert dask_mars.get({"a": 1, "b": "a"}, ["a", "b", []]) == (1, 1, ())
    assert dask_mars.get({"a": (abs, -1)}, []) == ()
    assert default._runtime is None


def test_a_runtime_ends_with_its_context() -> None:
    before = set(psutil.Process().children())
    with Runtime(num_workers=2) as runtime:
        pids = pids_of(runtime.start())
        assert len(pids) == 2
        children = {child.pid for child in set(psutil.Process().children()) - before}
        # The template may have been there before.
        assert children - templates.pids() == set(pids)
        assert da.ones(10, chunks=5).sum().compute(scheduler=runtime.get) == 10
        assert "running" in repr(runtime)
    assert not any(map(psutil.pid_exists, pids))
    assert "closed" in repr(runtime)
    with pytest.raises(EngineStopped):
        da.ones(10, chunks=5).sum().compute(scheduler=runtime.get)
    with pytest.raises(EngineStopped):
        runtime.engine()
    runtime.close()


@on_linux
@pytest.mark.timeout(120)
@pytest.mark.parametrize("starts_in_threads", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_closed_runtime_releases_its_memory_at_once(starts_in_threads: bool) -> None:
    def held() -> tuple[int, int]:
        mapped = Path("/proc/self/maps").read_text().count("/memfd:dask-mars-")
        return len(os.listdir("/proc/self/fd")), mapped

    def use() -> None:
        with Runtime(num_workers=1) as runtime:
            assert da.ones(10, chunks=5).sum().compute(scheduler=runtime.get) == 10

    with dask.config.set({"dask-mars.start-in-threads": starts_in_threads}), without_collector():
        use()
        before = held()
        for _ in range(2):
            use()
        assert held() == before


def test_ctrl_c_while_the_engine_starts_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = []
    start = dask_mars.client.runtime._new_engine

    def interrupted(settings: Any) -> Any:
        engines.append(start(settings))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.2)
        return engines[0]

    # The first start of all imports what takes longer than the signal: here it may come before the thread.
    start(config.settings(1)).close()
    monkeypatch.setattr(dask_mars.client.runtime, "_new_engine", interrupted)
    with contextlib.closing(Runtime(num_workers=1)) as runtime:
        with pytest.raises(KeyboardInterrupt):
            runtime.engine()
        assert [runtime.engine()] == engines
    assert not engines[0].alive


def test_an_engine_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Any) -> Any:
        raise OSError("no more descriptors")

    monkeypatch.setattr(dask_mars.client.runtime, "_new_engine", fail)
    with pytest.raises(OSError, match="no more descriptors"):
        Runtime(num_workers=1).engine()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gets_an_engine_of_its_own(runtime: Runtime) -> None:
    array = da.arange(1000, chunks=100)
    assert array.sum().compute(scheduler=dask_mars.get) == 499_500
    pids = runtime.engine().worker_pids()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            right = array.sum().compute(scheduler=runtime.get) == 499_500
            runtime.close()
            code = 0 if right else 2
        finally:
            os._exit(code)
    status: list[int] = []

    def ended() -> bool:
        pid, result = os.waitpid(child, os.WNOHANG)
        if pid:
            status.append(result)
        return bool(pid)

    try:
        assert eventually(ended, 15)
    finally:
        if not status:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status[0]) == 0
    assert runtime.engine().worker_pids() == pids
    assert array.max().compute(scheduler=runtime.get) == 999


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_close_what_has_taken_the_place_of_an_engine() -> None:
    with Runtime(num_workers=1) as runtime:
        engine = runtime.engine()
        assert delayed_one(runtime) == 1
    assert not engine.alive
    pipes = [os.pipe() for _ in range(8)]
    child = os.fork()
    if child == 0:
        try:
            for pipe in pipes:
                for end in pipe:
                    os.fstat(end)
        except OSError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    for pipe in pipes:
        for end in pipe:
            os.close(end)
    assert status == 0


# -- what tasks find around them ------------------------------------------------------------------------------


THREAD_COUNTS = [name for name, value in WORKER_ENVIRONMENT.items() if value == "1"]


def variables(names: list[str]) -> list[str | None]:
    return [os.environ.get(name) for name in names]


def test_workers_use_one_thread_each(monkeypatch: pytest.MonkeyPatch, get: Get) -> None:
    for name in THREAD_COUNTS:
        monkeypatch.delenv(name, raising=False)
    assert dask.delayed(variables)(THREAD_COUNTS).compute(scheduler=get) == ["1"] * len(THREAD_COUNTS)


@pytest.mark.slow
def test_numbers_of_threads_that_the_user_has_set(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_COUNTS:
        monkeypatch.delenv(name, raising=False)
    names = ["NUMBA_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"]
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    before = templates.pid()
    with Runtime(1) as other:
        assert dask.delayed(variables)(names).compute(scheduler=other.get) == ["3", "1", "1"]
        environment = psutil.Process(other.engine().worker_pids()[0]).environ()
        assert [environment[name] for name in names] == ["3", "1", "1"]
        # Libraries read them when they are imported, which a template has done.
        assert templates.pid() != before or before is None


#: How a library says how many threads it uses.
THREADS_OF: dict[str, Callable[[Any], int]] = {
    "numba": lambda numba: numba.get_num_threads(),
    "cv2": lambda cv2: cv2.getNumThreads(),
    "pyarrow": lambda pyarrow: pyarrow.cpu_count(),
    "numexpr": lambda numexpr: numexpr.get_num_threads(),
    "zarr": lambda zarr: zarr.config.get("threading.max_workers"),
    "torch": lambda torch: torch.get_num_threads(),
    "polars": lambda polars: polars.thread_pool_size(),
}


@pytest.mark.parametrize("library", THREADS_OF)
def test_libraries_use_one_thread_in_each_worker(library: str, get: Get) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    threads_of = THREADS_OF[library]

    def threads() -> int:
        return threads_of(importlib.import_module(library))

    assert dask.delayed(threads)().compute(scheduler=get) == 1


def test_what_arrays_are_read_from_is_opened_once(single: Runtime, tmp_path: Path) -> None:
    class Source:
        shape, dtype, ndim = (10,), np.dtype(int), 1

        def __getstate__(self) -> str:
            return str(tmp_path / "openings")

        def __setstate__(self, file: str) -> None:
            with open(file, "a") as openings:
                openings.write("x")

        def __getitem__(self, index: Any) -> Any:
            return np.arange(10)[index]

    def read(source: Any, start: int) -> int:
        return int(source[start])

    source = dask.delayed(Source(), name="source", traverse=False)
    parts = [dask.delayed(read)(source, start) for start in range(10)]
    assert dask.compute(*parts, scheduler=single.get) == tuple(range(10))
    assert (tmp_path / "openings").read_text() == "x"


@pytest.mark.slow
def test_limits_of_threadpoolctl_hold_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    def threads() -> set[int]:
        import scipy.linalg  # noqa: F401
        from threadpoolctl import threadpool_info

        return {library["num_threads"] for library in threadpool_info() if library["internal_api"] == "openblas"}

    task = dask.delayed(threads, pure=False)()
    with Runtime(1) as runtime:
        # The user's process has its libraries already, and as many threads as there are processors.
        most = max(library["num_threads"] for library in threadpoolctl.threadpool_info())
        assert task.compute(scheduler=runtime.get) == {min(3, most)}
        with threadpoolctl.threadpool_limits(1):
            assert task.compute(scheduler=runtime.get) == {1}
            # As under threads, a task may set another limit for itself.
            assert dask.delayed(limited)(threads).compute(scheduler=runtime.get) == {3}
        assert task.compute(scheduler=runtime.get) == {min(3, most)}


def limited(threads: Callable[[], set[int]]) -> set[int]:
    import threadpoolctl

    with threadpoolctl.threadpool_limits(3):
        return threads()


STATE: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "errors of NumPy": (lambda: np.seterr(all="raise"), np.geterr),
    "warnings": (lambda: warnings.simplefilter("error"), lambda: list(warnings.filters)),
    "decimals": (lambda: setattr(decimal.getcontext(), "prec", 5), lambda: decimal.getcontext().prec),
    "working directory": (lambda: os.chdir("/"), os.getcwd),
    "environment": (lambda: os.environ.update(A_NAME_OF_OURS="1"), lambda: os.environ.get("A_NAME_OF_OURS")),
    "import path": (lambda: sys.path.append("/nowhere"), lambda: list(sys.path)),
    "configuration": (
        lambda: dask.config.set({"array.chunk-size": "1 B", "a-name-of-ours": 1}),
        lambda: (dask.config.get("array.chunk-size"), dask.config.get("a-name-of-ours", None)),
    ),
}


@pytest.mark.parametrize("name", STATE)
def test_what_a_task_sets_ends_with_its_computation(name: str, single: Runtime) -> None:
    change, state = STATE[name]

    def changed() -> None:
        change()

    look = dask.delayed(lambda: state(), pure=False)()
    before = look.compute(scheduler=single.get)
    dask.delayed(changed)().compute(scheduler=single.get)
    assert look.compute(scheduler=single.get) == before


def test_defaults_of_libraries_that_tasks_import(single: Runtime) -> None:
    def default() -> Any:
        import distributed  # noqa: F401

        return dask.config.get("distributed.version")

    for _ in range(2):
        with dask.config.set({"a-name-of-ours": _}):
            assert dask.delayed(default, pure=False)().compute(scheduler=single.get) == 2


def test_environment_variables_come_and_go(monkeypatch: pytest.MonkeyPatch, get: Get) -> None:
    name = "A_NAME_OF_OURS"
    task = dask.delayed(variables, pure=False)([name])
    assert task.compute(scheduler=get) == [None]
    monkeypatch.setenv(name, "välue")
    assert task.compute(scheduler=get) == ["välue"]
    monkeypatch.delenv(name)
    assert task.compute(scheduler=get) == [None]


def test_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, get: Get) -> None:
    task = dask.delayed(os.getcwd, pure=False)()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert task.compute(scheduler=get) == str(tmp_path / name)


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, get: Get) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        assert dask.delayed(abs)(-1).compute(scheduler=get) == 1
    finally:
        os.chdir(tmp_path)


def test_modules_on_a_path_added_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, get: Get) -> None:
    (tmp_path / "added_later_for_mars.py").write_text("def answer(x):\n    return 42 + x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import added_later_for_mars

    assert dask.delayed(added_later_for_mars.answer)(1).compute(scheduler=get) == 43
    assert dask.delayed(lambda: __import__("added_later_for_mars").answer(2))().compute(scheduler=get) == 44
    del sys.modules["added_later_for_mars"]


def test_settings_of_dask(get: Get) -> None:
    def setting() -> Any:
        return dask.config.get("a-setting-of-ours", None)

    task = dask.delayed(setting)()
    assert task.compute(scheduler=get) is None
    with dask.config.set({"a-setting-of-ours": {"deep": [1, 2]}}):
        assert task.compute(scheduler=get) == {"deep": [1, 2]}
    with dask.config.set({"a-setting-of-ours": 3, "another": threading.Lock()}):
        assert task.compute(scheduler=get) == 3
    assert task.compute(scheduler=get) is None


def test_numpys_treatment_of_errors(get: Get) -> None:
    array = da.from_array(np.zeros(10), chunks=5)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        (1 / array).compute(scheduler=get)
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf((1 / array).compute(scheduler=get)).all()


def test_warnings_reach_the_user(get: Get) -> None:
    array = da.from_array(np.zeros(10), chunks=5)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="divide by zero") as caught:
            (1 / array).compute(scheduler=get)
        assert caught[0].filename != __file__


class OurWarning(UserWarning):
    pass


def warn_of_ours() -> int:
    warnings.warn("ours", OurWarning, stacklevel=1)
    return 1


def test_warnings_of_the_users_own_class(get: Get) -> None:
    with pytest.warns(OurWarning, match="ours") as caught:
        assert dask.delayed(warn_of_ours)().compute(scheduler=get) == 1
    assert Path(caught[0].filename) == Path(__file__)


@pytest.mark.parametrize("number", [1, 1.5, 1j])
def test_numpys_errors_about_dtypes(number: complex, get: Get) -> None:
    def compared() -> object:
        return np.array(["2001"], "M8[s]") > number

    with pytest.raises(TypeError) as expected:
        compared()
    with pytest.raises(TypeError) as raised:
        dask.delayed(compared)().compute(scheduler=get)
    assert type(raised.value) is type(expected.value)
    assert raised.value.args == expected.value.args
    assert vars(raised.value).items() >= vars(expected.value).items()


def test_warnings_as_errors_and_ignored_ones(get: Get) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", OurWarning)
        with pytest.raises(OurWarning, match="ours"):
            dask.delayed(warn_of_ours)().compute(scheduler=get)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", OurWarning)
        assert dask.delayed(warn_of_ours)().compute(scheduler=get) == 1
    assert not [entry for entry in caught if entry.category is OurWarning]


@pytest.mark.parametrize("name", ["<stdin>", "/tmp/ipykernel_1/2.py"])
def test_warnings_of_code_without_a_module(name: str, get: Get) -> None:
    task = eval(compile("lambda: __import__('warnings').warn('here')", name, "eval"))
    with pytest.warns(UserWarning, match="here") as caught:
        dask.delayed(task)().compute(scheduler=get)
    assert caught[0].filename == name


def test_warnings_are_shown_again_after_each_change_of_filters(get: Get) -> None:
    counts = []
    for changes in (True, True, False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(1 if changes else 2):
                dask.delayed(warn_of_ours)().compute(scheduler=get)
        counts.append(len(caught))
    assert counts == [1, 1, 1]


def test_what_tasks_print(get: Get, capsys: pytest.CaptureFixture[str]) -> None:
    def talk(number: int) -> None:
        print(f"line {number}")
        sys.stdout.write("no end of line")
        sys.stdout.flush()
        print(f"trouble {number} ü", file=sys.stderr)

    dask.delayed(talk)(3).compute(scheduler=get)
    captured = capsys.readouterr()
    assert captured.out == "line 3\nno end of line"
    assert captured.err == "trouble 3 ü\n"


def test_tasks_that_print_much(get: Get, capsys: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        for number in range(2000):
            print(f"{number} " + "x" * 500)

    dask.compute(dask.delayed(talk)(), dask.delayed(lambda: print("y" * (1 << 22)))(), scheduler=get)
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line.endswith("x")] == [str(n) for n in range(2000)]
    assert out.count("y") == 1 << 22


def test_progress_shown_by_tasks_arrives_in_time(
    get: Get, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk() -> None:
        print("started")
        wait_for(tmp_path / "go on")

    computing = in_background(dask.delayed(talk)().compute, scheduler=get)
    seen: list[str] = []

    def said() -> bool:
        seen.append(capsys.readouterr().out)
        return "started" in "".join(seen)

    assert eventually(said, 5)
    (tmp_path / "go on").touch()
    computing.result(100)


def test_what_reads_standard_input_does_so_in_the_users_process(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from the user"))
    read = dask.delayed(lambda: (sys.stdin.read(), os.getpid()))()
    assert read.compute(scheduler=get) == ("from the user", os.getpid())
    assert dask.delayed(lambda: sys.stdin.isatty())().compute(scheduler=get) is False


def test_tasks_may_start_processes_and_threads(get: Get) -> None:
    def work() -> tuple[str, list[int]]:
        said = subprocess.run(["echo", "hello"], capture_output=True, text=True, check=True, timeout=10).stdout
        with ThreadPoolExecutor(2) as pool:
            return said, list(pool.map(abs, [-1, -2]))

    assert dask.delayed(work)().compute(scheduler=get) == ("hello\n", [1, 2])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc")
def test_programs_that_tasks_start_get_no_shared_memory_and_no_sockets(get: Get) -> None:
    def work() -> str:
        listed = ["ls", "-l", "/proc/self/fd"]
        return subprocess.run(listed, close_fds=False, stdout=subprocess.PIPE, text=True, check=True).stdout

    found = dask.delayed(work)().compute(scheduler=get)
    assert "/proc/" in found
    assert "mars" not in found
    assert "socket:" not in found


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_tasks_may_fork(get: Get) -> None:
    def work() -> int:
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply_async(abs, (-3,)).get(100)

    assert dask.delayed(work)().compute(scheduler=get) == 3


# -- where chunks lie -----------------------------------------------------------------------------------------


def test_large_arrays_are_never_in_messages(monkeypatch: pytest.MonkeyPatch, get: Get) -> None:
    sizes = {"sent": 0, "received": 0}
    receive, send = channel.receive, WorkerHandle._send

    def counting_receive(*arguments: Any, **options: Any) -> bytes | None:
        data = receive(*arguments, **options)
        sizes["received"] += len(data or b"")
        return data

    def counting_send(handle: WorkerHandle, payload: bytes) -> None:
        sizes["sent"] += len(payload)
        send(handle, payload)

    monkeypatch.setattr(channel, "receive", counting_receive)
    monkeypatch.setattr(WorkerHandle, "_send", counting_send)
    mine = np.random.default_rng(0).random(1 << 20)
    array = da.from_array(mine, chunks=1 << 17)
    shifted = array + 1
    result, total = dask.compute(shifted[::-1], (shifted.rechunk(1 << 16) * mine[: 1 << 20]).sum(), scheduler=get)
    np.testing.assert_array_equal(result, (mine + 1)[::-1])
    assert total == pytest.approx(((mine + 1) * mine).sum())
    frames = dask.delayed(lambda: {"values": np.arange(1 << 20)})()
    assert dask.delayed(lambda x: x["values"].sum())(frames).compute(scheduler=get) > 0
    assert 0 < sizes["received"] < 100_000
    assert 0 < sizes["sent"] < 200_000


def lies_in(array: np.ndarray) -> tuple[int, str, bool]:
    """Return the process, the name of the mapping that holds an array, and whether the array may be written to."""
    time.sleep(0.2)
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(text, 16) for text in line.split()[0].split("-"))
        if first <= address < last:
            name = re.search(r"dask-mars-\d+", line)
            return os.getpid(), name.group() if name else "", array.flags.writeable
    raise LookupError(address)


@on_linux
def test_a_chunk_is_read_where_it_lies_by_all_processes(runtime: Runtime) -> None:
    source = dask.delayed(large_array)(8)
    # Two at a time, each asleep for a while: both workers get some.
    readers = [dask.delayed(lies_in)(source) for _ in range(4)]
    found = dask.compute(*readers, scheduler=runtime.get)
    assert {pid for pid, _, _ in found} == set(runtime.engine().worker_pids())
    names = {name for _, name, _ in found}
    assert len(names) == 1
    assert re.fullmatch(r"dask-mars-[01]", names.pop())
    assert not any(writable for _, _, writable in found)


def arena_bytes(runtime: Runtime) -> int:
    """Return the bytes of memory that all arenas of a runtime take."""
    return sum(
        os.fstat(descriptor).st_blocks * 512 for descriptor in runtime.engine()._registry.resources.arena_files
    )


@on_linux
def test_a_chunk_is_in_memory_once(tmp_path: Path) -> None:
    def read(array: np.ndarray) -> float:
        wait_for(tmp_path / "go on")
        return float(array.sum())

    with Runtime(num_workers=2) as runtime:
        source = dask.delayed(large_array)(16)
        readers = [dask.delayed(read)(source) for _ in range(2)]
        before = arena_bytes(runtime)
        computing = in_background(dask.compute, *readers, scheduler=runtime.get)
        assert eventually(lambda: arena_bytes(runtime) - before >= 1 << 24, 10)
        time.sleep(0.1)
        assert arena_bytes(runtime) - before < 1.1 * (1 << 24)
        (tmp_path / "go on").touch()
        assert computing.result(100) == (float(1 << 21), float(1 << 21))


@on_linux
def test_an_array_of_the_user_is_in_memory_once(single: Runtime) -> None:
    mine = np.ones(1 << 20)
    before = arena_bytes(single)
    array = da.from_array(mine, chunks=1 << 17)
    whole = dask.delayed(mine)
    parts = [dask.delayed(lambda whole, number: whole[number])(whole, number) for number in range(20)]
    assert dask.compute(*parts, scheduler=single.get) == (1.0,) * 20
    assert arena_bytes(single) - before < 1.1 * mine.nbytes
    assert array.sum().compute(scheduler=single.get) == 1 << 20


@pytest.mark.parametrize(
    ("make", "freed"),
    [
        (lambda: [dask.delayed(np.sum)(dask.delayed(large_array)(8))], 1),
        # Small slices do not keep large chunks.
        (lambda: [dask.delayed(large_array)(8)[:10] for _ in range(2)], 2),
    ],
    ids=["sum", "slices"],
)
def test_a_chunk_is_freed_once_its_last_consumer_is_done(
    make: Callable[[], Any], freed: int, runtime: Runtime, tmp_path: Path
) -> None:
    engine = runtime.engine()
    last = dask.delayed(lambda *parts: wait_for(tmp_path / "go on", len(parts)))(*make())
    computing = in_background(last.compute, scheduler=runtime.get)
    try:
        assert eventually(lambda: engine._loop.machine.graphs and engine._runs, 5)
        run = next(iter(engine._runs.values()))
        assert eventually(lambda: engine._loop.machine.counts(run.id)["FREED"] == freed, 5)
        assert eventually(lambda: not engine._blocks.counts, 1)
        assert not computing.done()
    finally:
        (tmp_path / "go on").touch()
    assert computing.result(100) == freed


@on_linux
def test_memory_is_used_again() -> None:
    array = da.ones(24 << 20, chunks=1 << 20).map_blocks(np.copy) + 1
    with Runtime(num_workers=1) as runtime:
        assert da.sum(array).compute(scheduler=runtime.get, optimize_graph=False) == 2 * array.size
        assert arena_bytes(runtime) < array.nbytes / 2


#: What tasks leave behind in their worker.
LEFT: list[Any] = []


def noted_array(megabytes: float) -> np.ndarray:
    """Return an array, and note in this worker where it is."""
    array = large_array(megabytes)
    LEFT.append(address_of(array))
    return array


def address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def is_where_it_was(array: np.ndarray) -> bool:
    return address_of(array) == LEFT.pop()


def kept_array(megabytes: float) -> np.ndarray:
    """Return an array, and keep it in this worker."""
    LEFT.append(large_array(megabytes))
    return LEFT[-1]


def spoil_kept(array: np.ndarray) -> tuple[float, float]:
    """Write into the array that was kept; return what this does to it and to the chunk."""
    kept = LEFT.pop()
    kept[:] = -1.0
    return kept.sum(), array.sum()


@on_linux
@compiled
def test_results_are_sealed_where_they_were_computed(single: Runtime) -> None:
    for _ in range(3):
        assert dask.delayed(is_where_it_was)(dask.delayed(noted_array)(8)).compute(scheduler=single.get)


@pytest.mark.slow
def test_without_a_threshold_results_are_copied() -> None:
    with constants(arena_threshold_bytes=None), Runtime(num_workers=1) as runtime:
        moved = dask.delayed(is_where_it_was)(dask.delayed(noted_array)(8))
        assert not moved.compute(scheduler=runtime.get)


def test_what_a_task_keeps_of_its_result_is_its_own(single: Runtime) -> None:
    sums = dask.delayed(spoil_kept)(dask.delayed(kept_array)(8)).compute(scheduler=single.get)
    assert sums == (-(1 << 20), 1 << 20)


@compiled
def test_small_views_do_not_keep_large_results(single: Runtime, tmp_path: Path) -> None:
    def used_after(part: np.ndarray) -> tuple[float, int]:
        reading = np.ones(1 << 20)
        return part.sum(), address_of(reading)

    def place() -> int:
        return address_of(np.ones(1 << 20))

    before = dask.delayed(place)().compute(scheduler=single.get)
    part = dask.delayed(lambda: np.ones(1 << 20)[5:15])()
    assert dask.delayed(used_after)(part).compute(scheduler=single.get) == (10.0, before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_a_task_forks_have_arrays_of_their_own(single: Runtime) -> None:
    def fork(megabytes: float) -> tuple[bytes, float]:
        array = large_array(megabytes)
        reader, writer = os.pipe()
        if os.fork() == 0:
            array *= 2
            os.write(writer, str(array.sum() + np.ones(1000).sum()).encode())
            os._exit(0)
        os.wait()
        seen = os.read(reader, 100)
        os.close(reader)
        os.close(writer)
        return seen, array.sum()

    assert dask.delayed(fork)(8).compute(scheduler=single.get) == (b"2098152.0", 1 << 20)


kept: list[np.ndarray] = []


def keep(array: np.ndarray) -> float:
    kept.append(array)
    return float(array[0])


def kept_value() -> tuple[float, float]:
    return float(kept[0].min()), float(kept[0].max())


def let_go() -> int:
    count = len(kept)
    kept.clear()
    return count


def test_chunks_that_a_task_keeps_stay_as_they_are(single: Runtime) -> None:
    module = sys.modules[__name__]
    assert dask.delayed(module.keep)(dask.delayed(large_array)(2, 7.0)).compute(scheduler=single.get) == 7
    assert eventually(lambda: not single.engine()._runs)
    assert len(single.engine()._blocks.counts) == 1
    for number in range(5):
        source = dask.delayed(large_array)(2, float(number))
        assert dask.delayed(np.sum)(source).compute(scheduler=single.get) == number << 18
    assert dask.delayed(module.kept_value)().compute(scheduler=single.get) == (7, 7)
    assert dask.delayed(module.let_go)().compute(scheduler=single.get) == 1
    assert eventually(lambda: not single.engine()._blocks.counts)


def keep_in_a_circle(array: np.ndarray) -> float:
    circle: list[Any] = [array]
    circle.append(circle)
    return float(array[0])


def test_what_refers_to_itself_is_let_go_of_by_idle_workers(single: Runtime) -> None:
    task = dask.delayed(sys.modules[__name__].keep_in_a_circle)(dask.delayed(large_array)(2, 7.0))
    assert task.compute(scheduler=single.get) == 7
    assert eventually(lambda: not single.engine()._blocks.counts)


def test_long_use_leaves_nothing_in_workers(single: Runtime) -> None:
    def sizes() -> tuple[int, int]:
        from dask_mars.worker.loop import WorkerProcess

        gc.collect()
        worker = next(thing for thing in gc.get_objects() if isinstance(thing, WorkerProcess))
        return len(worker._graphs), len(worker._surroundings._contexts)

    for number in range(25):
        with dask.config.set({"a-setting-of-ours": number}):
            assert da.ones(10, chunks=5).sum().compute(scheduler=single.get) == 10
    graphs, contexts = dask.delayed(sizes)().compute(scheduler=single.get)
    assert graphs == 1
    assert contexts <= 20
    assert len(single.engine()._registry.sender.contexts) <= 2


@pytest.mark.slow
def test_workers_load_xarray_when_a_task_needs_it() -> None:
    pytest.importorskip("xarray")

    def loaded(block: Any) -> Any:
        return np.full(block.shape, "pandas" in sys.modules)

    def total(block: Any) -> Any:
        import xarray

        return xarray.DataArray(block, dims=("x",)).cumsum().to_numpy() + len(xarray.testing.__name__)

    ones = da.ones(4, chunks=4)
    with Runtime(num_workers=1) as runtime:
        assert not ones.map_blocks(loaded, dtype=bool).compute(scheduler=runtime.get).any()
        assert ones.map_blocks(total, dtype=float).compute(scheduler=runtime.get).tolist() == [
            15.0,
            16.0,
            17.0,
            18.0,
        ]
        assert ones.map_blocks(loaded, dtype=bool).compute(scheduler=runtime.get).all()


def test_what_waits_behind_a_slow_task_goes_to_an_idle_worker(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def step(number: int) -> int:
        if number == 3:
            # Its companions are so fast that hundreds of them are queued at once, the next one among them.
            wait_for(done)
        elif number == 4:
            done.touch()
        return os.getpid()

    with Runtime(num_workers=2) as runtime:
        graph: dict[Any, Any] = {("warm", number): (step, 0) for number in range(100)}
        runtime.get(graph, list(graph))
        graph = {("step", number): (step, number) for number in range(400)}
        pids = runtime.get(graph, list(graph))
    assert pids[3] != pids[4]
