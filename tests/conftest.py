"""Fixtures: one runtime for all tests, and after each test the proof that it left nothing behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import hypothesis
import numpy as np
import psutil
import pytest

import dask_mars
from dask_mars import Runtime
from dask_mars.client import at_once
from dask_mars.engine import early
from dask_mars.engine.engine import Engine
from dask_mars.engine.spill_writer import SpillWriter
from dask_mars.engine.templates import templates
from dask_mars.limits import estimate_memory, library_bytes
from dask_mars.protocol.locks import InterprocessLock

# Tests start hundreds of interpreters, each of which would compile again what it imports of the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
early.end()
# The engine is tested with small graphs.
at_once._MOST_CHUNKS = 0

_update_defaults = dask.config.update_defaults


def _update_other_defaults(new: Mapping[str, Any], *args: Any, **options: Any) -> None:
    # Where dask_array is installed, Xarray imports it in the middle of a test, and from then on all arrays of the
    # process would be rechunked in another way.
    if "unify-chunks-policy" not in new.get("array", {}):
        _update_defaults(new, *args, **options)


dask.config.update_defaults = _update_other_defaults

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in jobs that a shell has put into the background: the tests press Ctrl-C, and it must arrive.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast the machine is says nothing of the code. `--hypothesis-profile thorough` searches for longer.
hypothesis.settings.register_profile(
    "untimed",
    deadline=None,
    max_examples=20,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("untimed"), max_examples=500)
hypothesis.settings.load_profile("untimed")


#: The collector's threshold before the tests are collected.
_threshold = gc.get_threshold()


def pytest_collection() -> None:
    # Collecting the tests makes millions of objects, which the collector would walk then, and again in many tests.
    # Dask's slicing leaves the collector disabled for good if it is imported while the collector is.
    gc.set_threshold(1_000_000)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what only the nightly run has."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    gc.set_threshold(*_threshold)
    gc.freeze()


#: What left-overs get to go away on their own, in seconds.
GRACE_S = 10.0

#: How long a test waits at least for what it expects, in seconds: the machine may be busy.
PATIENCE_S = 60.0

#: Runtimes that outlive a test.
_shared: list[Runtime | SharedAgent] = []

#: Hosts in namespaces that do.
shared_hosts: list[Any] = []


@contextlib.contextmanager
def shared_runtime(num_workers: int) -> Iterator[Runtime]:
    """Run a runtime that several tests use, and that each of them has to leave empty."""
    # Other tests may take long, and it is to have its workers still when they are done.
    with dask.config.set({"dask-mars.idle-timeout": None}):
        runtime = Runtime(num_workers)
    with runtime:
        start_workers(runtime)
        with shared(runtime):
            yield runtime


def start_workers(runtime: Runtime) -> None:
    """Start a runtime's worker processes, and wait until all of them are up."""
    engine = runtime.start().engine()
    assert eventually(lambda: len(engine.worker_pids()) == runtime.settings.num_workers, 60)


@contextlib.contextmanager
def shared(runtime: Runtime) -> Iterator[None]:
    """Have a runtime outlive tests, each of which has to leave it empty."""
    _shared.append(runtime)
    yield
    _shared.remove(runtime)


@dataclass
class SharedAgent:
    """An agent of a cluster that several tests use, in place of a runtime."""

    agent: Any

    def engine(self) -> Engine:
        return self.agent.engine


@contextlib.contextmanager
def shared_cluster() -> Iterator[Any]:
    """Run two agents with a worker process each that several tests use, and that each has to leave empty."""
    with dask.config.set({"dask-mars.idle-timeout": None}):
        cluster = cluster_of_agents(2)
    with cluster:
        # So that work stays where it was assigned.
        cluster.sync(cluster.scheduler.extensions["stealing"].stop)
        shared = [SharedAgent(agent) for agent in cluster.workers.values()]
        assert eventually(lambda: all(agent.engine().worker_pids() for agent in shared), 10)
        _shared.extend(shared)
        yield cluster
        for agent in shared:
            _shared.remove(agent)


@pytest.fixture(scope="module")
def cluster(private_tmp: Path) -> Iterator[Any]:
    """Two agents with a worker process each, for the tests of a module."""
    with shared_cluster() as cluster:
        yield cluster


#: What a worker takes that has nothing to do, and what they are forked from, in bytes.
_IDLE_WORKER_BYTES, _TEMPLATE_BYTES = 15 << 20, 95 << 20
#: A memory limit with which an engine of one worker starts, and one of two; little more than is refused.
LEAST_LIMIT, LEAST_LIMIT_OF_TWO = 208 << 20, 256 << 20


def limit_with_room(room_bytes: int, workers: int = 1) -> int:
    """Return a memory limit under which an engine's results and temporaries may take about so many bytes.

    What processes have for themselves counts, and this one may have imported anything.
    """
    own = [os.getpid()]
    idle_bytes = estimate_memory(own) + library_bytes(own) + _TEMPLATE_BYTES + workers * _IDLE_WORKER_BYTES
    return int((idle_bytes + room_bytes) * 1.05)


@contextlib.contextmanager
def runtime_with_room(room_bytes: int) -> Iterator[Runtime]:
    """Yield a runtime whose two worker processes have computed something, under `limit_with_room`."""
    with dask.config.set({"dask-mars.start-in-threads": False}):
        runtime = Runtime(2, memory_limit=limit_with_room(room_bytes, 2))
    with runtime:
        start_workers(runtime)
        engine = runtime.engine()
        assert eventually(lambda: not engine._loop.startup.loading)
        graph = {("x", number): (pow, 2, number) for number in range(4)}
        runtime.get(graph, list(graph))
        yield runtime


def cluster_of_agents(count: int = 1, **options: Any) -> Any:
    """Make a cluster of some agents, with a small worker process each if nothing else is said."""
    local = pytest.importorskip("dask_mars.cluster.local")
    # What the process of the tests takes counts as the agents'.
    small = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "memory_limit": "4 GiB"}
    return local.LocalMarsCluster(n_workers=count, **small | options)


def eventually(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> bool:
    """Wait for a condition to hold, for a minute at least; return whether it does."""
    return _holds_within(condition, max(timeout_s, PATIENCE_S))


def _holds_within(condition: Callable[[], Any], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return bool(condition())
        time.sleep(0.01)
    return True


# -- runtimes -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def private_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the directory for temporary files one of our own, so that what is left in it is ours."""
    # It stays once something, such as numba from Python 3.14 on, has asked for a lock between processes.
    resource_tracker.ensure_running()
    path = tmp_path_factory.mktemp("tmp")
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = str(path)
    yield path
    tempfile.tempdir = None
    del os.environ["TMPDIR"]
    if before is not None:
        os.environ["TMPDIR"] = before


@pytest.fixture(scope="session")
def runtime(private_tmp: Path) -> Iterator[Runtime]:
    """Two workers, started once; also behind `dask_mars.get` and the name "mars"."""
    with shared_runtime(num_workers=2) as runtime:
        dask_mars.runtimes._default._runtime = runtime
        yield runtime
        dask_mars.runtimes._default._runtime = None


@pytest.fixture
def get(runtime: Runtime) -> Callable[..., Any]:
    """A scheduler for `compute(scheduler=get)`."""
    return runtime.get


@pytest.fixture(scope="module")
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send functions of a module by value, so that worker processes need not import it and all that it imports."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session")
def zarr() -> Any:
    """Zarr with its event loop and threads running, which stay."""
    zarr = pytest.importorskip("zarr")
    zarr.zeros(4, chunks=2, store=zarr.storage.MemoryStore())[:]
    return zarr


# -- nothing left behind --------------------------------------------------------------------------------------


def _pids_of_shared() -> set[int]:
    return templates.pids().union(*[runtime.engine().worker_pids() for runtime in _shared])


#: The parent of each process that is there, as it was when it was seen first.
_parents: dict[int, int] = {}


def _children() -> set[int]:
    shared = _pids_of_shared().union(*[host.pids() for host in shared_hosts])
    if not psutil.LINUX:
        return {child.pid for child in psutil.Process().children(recursive=True)} - shared
    # A file is read for each process that is new, where psutil reads those of all.
    there = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    for pid in _parents.keys() - there:
        del _parents[pid]
    for pid in there - _parents.keys():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            # Numba's locks start one in a worker, which ends with it.
            is_tracker = any("multiprocessing.resource_tracker" in text for text in process.cmdline())
            _parents[pid] = 0 if is_tracker else process.ppid()
    found: set[int] = set()
    ends = {os.getpid()}
    while ends:
        ends = {pid for pid, parent in _parents.items() if parent in ends} - found
        found |= ends
    return found - shared


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def _own_descriptors() -> int:
    """Count descriptors but for those of the shared runtimes' workers, which change, and of locks, which stay."""
    lock = InterprocessLock.descriptor is not None
    if any(isinstance(runtime, SharedAgent) for runtime in _shared):
        # Agents keep connections for when they need them again. Each worker has a socket too.
        kept = [name for name in _descriptors().values() if not name.startswith("socket:")]
        return len(kept) - len(_pids_of_shared()) - lock
    # The listing itself has one, which is there each time.
    listed = os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")
    template = templates.pids()
    # A template has a connection for its fork that imports libraries as long as there may be one.
    connections = templates.connections() - 2 * len(template)
    return len(listed) - 2 * len(_pids_of_shared()) - connections - lock


def busy_client_threads() -> list[threading.Thread]:
    """Return the threads for chunks in this process, without those that shared engines keep for the next ones."""
    pools = [pool for runtime in _shared for _, pool in runtime.engine().spare_threads._pools]
    spare = {thread for pool in pools for thread in pool._threads}
    named = [thread for thread in threading.enumerate() if thread.name.startswith("dask-mars-client")]
    return [thread for thread in named if thread not in spare]


def _threads() -> set[threading.Thread]:
    pool = dask.threaded.default_pool
    of_dask = getattr(pool, "_threads", set())
    return {
        thread
        for thread in threading.enumerate()
        # Zarr's own threads stay, as Dask's do.
        if not thread.daemon
        and thread not in of_dask
        # An engine keeps the threads of its last computation.
        and not thread.name.startswith(("asyncio_", "dask-mars-client"))
    }


#: Threads that a shared engine starts with its first spill, or chunk in the user's process, and keeps.
_OF_SHARED = ("dask-mars-spill", "dask-mars-read", "dask-mars-client")


def _engine_threads() -> int:
    kept = ("dask-mars-template", *(_OF_SHARED if _shared else ()))
    names = [thread.name for thread in threading.enumerate()]
    return sum(name.startswith("dask-mars") and not name.startswith(kept) for name in names)


def without_addresses(value: Any) -> str:
    """Return text for a value that is the same in all processes which run tests."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def _shared_memory() -> set[str]:
    try:
        return {name for name in os.listdir("/dev/shm") if "mars" in name}
    except OSError:
        return set()


def _temporary_files() -> set[str]:
    # Dask leaves the directories of its shuffle by disk behind, under threads too, and the one that its workers'
    # are in.
    names = os.listdir(tempfile.gettempdir())
    return {name for name in names if not name.endswith(".partd") and not name.startswith("dask-scratch-space")}


#: A copy of Dask's configuration, which is made anew once it differs.
_settings_before: dict[str, Any] = {}


def _settings(known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return Dask's configuration itself; what imports have added since `known` is left out."""
    settings = {name: value for name, value in dask.config.config.items() if known is None or name in known}
    # What dask_jobqueue adds when it is imported Dask's own test tools take out again.
    settings.pop("jobqueue", None)
    if "scheduler" in settings.get("distributed", {}):
        # Dask's scheduler adds a page to the list `http`, or takes one out, as bokeh is installed.
        scheduler = {name: value for name, value in settings["distributed"]["scheduler"].items() if name != "http"}
        settings["distributed"] = {**settings["distributed"], "scheduler": scheduler}
    return settings


def _copied_settings() -> dict[str, Any]:
    global _settings_before
    if _settings_before != (settings := _settings()):
        _settings_before = copy.deepcopy(settings)
    return _settings_before


@dataclass
class Surroundings:
    """What a test could leave behind, as it is at one moment."""

    children: set[int] = field(default_factory=_children)
    threads: set[threading.Thread] = field(default_factory=_threads)
    engine_threads: int = field(default_factory=_engine_threads)
    shared_memory: set[str] = field(default_factory=_shared_memory)
    temporary_files: set[str] = field(default_factory=_temporary_files)
    descriptors: int = field(default_factory=_own_descriptors)

    def added_since(self, before: Surroundings) -> dict[str, Any]:
        added = {
            "processes": self.children - before.children,
            "descriptors": max(self.descriptors - before.descriptors, 0),
            "threads": self.threads - before.threads,
            "threads of dask_mars": max(self.engine_threads - before.engine_threads, 0),
            "shared memory": self.shared_memory - before.shared_memory,
            "temporary files": self.temporary_files - before.temporary_files,
        }
        return {name: what for name, what in added.items() if what}


def _left_in_engine(runtime: Runtime | SharedAgent) -> dict[str, Any]:
    engine = runtime.engine()
    left = {
        "blocks": dict(engine._blocks.counts),
        "runs": list(engine._runs),
        "graphs": engine._loop.machine.graphs,
        "objects": dict(engine._loop.machine._objects._objects),
        "persisted": dict(engine._objects.persisted),
        "files": dict(engine._objects.files),
        "reservations": dict(engine._registry.reservations),
        "commands": list(engine._commands._queue),
    }
    return {name: what for name, what in left.items() if what}


def _check_engine(runtime: Runtime | SharedAgent, grace_s: float = 0.0) -> None:
    assert _holds_within(lambda: not _left_in_engine(runtime), grace_s), _left_in_engine(runtime)
    runtime.engine()._loop.machine.validate()


def _renew(runtime: Runtime | SharedAgent) -> None:
    """Give a shared runtime a new engine if a test has left something in the one that it has."""
    try:
        _check_engine(runtime)
    except Exception:
        # An agent is its cluster's.
        if isinstance(runtime, Runtime):
            runtime.close()
            runtime._closed = False
            start_workers(runtime)


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = str(record.exc_info[1]) if record.exc_info else ""
        self.messages.append(f"{record.getMessage()} {text}")


@pytest.fixture(autouse=True)
def nothing_left_behind(private_tmp: Path) -> Iterator[list[str]]:
    """Fail a test that leaves processes, descriptors, threads, files, chunks or logged errors behind."""
    errors = _Errors()
    logging.getLogger("dask_mars").addHandler(errors)
    before = Surroundings()
    directory = os.getcwd()
    settings = _copied_settings()
    numpy_errors = np.geterr()
    yield errors.messages
    if "scheduler" not in settings:
        # Dask's own test tools would take it out again, in the middle of another test.
        dask.config.config.pop("scheduler", None)
    logging.getLogger("dask_mars").removeHandler(errors)
    try:
        assert not errors.messages
        assert os.getcwd() == directory
        assert _settings(settings) == settings
        assert np.geterr() == numpy_errors
        for runtime in _shared:
            _check_engine(runtime, GRACE_S)
        _check_surroundings(before)
    except BaseException:
        # One test that fails is not to make others fail.
        os.chdir(directory)
        dask.config.update(dask.config.config, copy.deepcopy(settings))
        np.seterr(**numpy_errors)
        for runtime in _shared:
            _renew(runtime)
        raise


def _check_surroundings(before: Surroundings) -> None:
    added: dict[str, Any] = {}

    def nothing_added() -> bool:
        # What other threads open for a moment is there at one look and not at the next.
        nonlocal added
        added = Surroundings().added_since(before)
        if any(isinstance(runtime, SharedAgent) for runtime in _shared):
            # Dask opens connections between schedulers and workers when it needs them, and keeps some.
            added.pop("descriptors", None)
        return not added

    if not nothing_added():
        # Exceptions keep frames alive, and those what they refer to, such as mapped memory.
        gc.collect()
        _holds_within(nothing_added, GRACE_S)
    assert not added, _descriptors()


# -- scripts --------------------------------------------------------------------------------------------------


def environment_for_scripts(marker: str, **extra: str) -> dict[str, str]:
    """Return an environment in which a new interpreter finds dask_mars, and is found by a marker."""
    package = Path(dask_mars.__file__).resolve().parent.parent
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DASK")}
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **clean,
        "PYTHONPATH": path,
        "DASK_DASK_MARS__NUM_WORKERS": "1",
        # It takes half a second of a processor.
        "DASK_DASK_MARS__START_AT_IMPORT": "false",
        "MARS_TEST_MARKER": marker,
        **extra,
    }


def marked_processes(marker: str) -> list[psutil.Process]:
    """Find the living processes that inherited a marker, however they are related to this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("MARS_TEST_MARKER") == marker
                and process.status() != psutil.STATUS_ZOMBIE
                and process.pid != os.getpid()
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


@dataclass
class Scripts:
    """Runs new interpreters, and proves that nothing of them is left."""

    directory: Path
    marker: str

    @contextlib.contextmanager
    def start(
        self, *arguments: str, env: dict[str, str] | None = None, **options: Any
    ) -> Iterator[subprocess.Popen[str]]:
        """Start an interpreter in a process group of its own, and end it whatever happens."""
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.directory,
            env=environment_for_scripts(self.marker, **(env or {})),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **options,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def run(
        self,
        *arguments: str,
        input: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float = 2 * PATIENCE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run an interpreter to its end."""
        with self.start(*arguments, env=env, stdin=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(input, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                pytest.fail(f"it hangs; so far it wrote {out!r} {err!r}")
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def write(self, name: str, text: str) -> Path:
        """Write a script."""
        path = self.directory / name
        path.write_text(text, encoding="utf-8")
        return path

    def left(self) -> list[psutil.Process]:
        """Return processes that are still there."""
        return marked_processes(self.marker)


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    """Scripts in a directory of their own; at the end no process of theirs may be left."""
    directory = tmp_path / "scripts"
    directory.mkdir()
    scripts = Scripts(directory, marker=str(tmp_path))
    yield scripts
    gone = _holds_within(lambda: not scripts.left(), GRACE_S)
    left = scripts.left()
    for process in left:
        process.kill()
    assert gone, left


# -- graphs ---------------------------------------------------------------------------------------------------


def certificates(folder: Path, name: str) -> dict[str, str]:
    """Make a certificate that vouches for itself, and return the options of `distributed.Security`."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN={name} -out {certificate} -keyout {key}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    roles = ("scheduler", "worker", "client")
    files = {
        f"tls_{role}_{kind}": str(file) for role in roles for kind, file in (("cert", certificate), ("key", key))
    }
    return {**files, "tls_ca_file": str(certificate)}


@pytest.fixture(scope="module")
def spilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory to which `small` writes."""
    return tmp_path_factory.mktemp("spilled")


@pytest.fixture(scope="module")
def small(private_tmp: Path, spilled: Path) -> Iterator[Runtime]:
    """Yield an engine whose store holds 8 MiB, and whose memory is hardly more than its processes take."""
    limits = {"dask-mars.spill-directory": str(spilled), "dask-mars.store-limit": 8 << 20}
    with dask.config.set({**limits, "dask-mars.idle-timeout": None}):
        runtime = Runtime(num_workers=2, memory_limit=LEAST_LIMIT_OF_TWO)
    with runtime:
        start_workers(runtime)
        with shared(runtime):
            yield runtime


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes be new interpreters, as where no template can be."""
    monkeypatch.setattr("dask_mars.engine.templates.is_supported", lambda: False)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that engines write chunks to."""
    names: list[str] = []
    write = SpillWriter.write

    def note(self: SpillWriter, name: str, *rest: Any) -> None:
        names.append(name)
        write(self, name, *rest)

    monkeypatch.setattr(SpillWriter, "write", note)
    return names


def files(folder: Path) -> list[Path]:
    """Return the files below a directory."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def given_up(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Tell the names of the layers that were to be symbolic and had to be materialised."""
    name = "dask_mars.optimize.fronts.base"
    caplog.set_level(logging.DEBUG, logger=name)
    return lambda: [record.args[0] for record in caplog.records if record.name == name]
