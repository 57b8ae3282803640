"""The template of worker processes: what its forks share, what they do not, and how it ends."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.engine import launching
from dask_mars.engine.libraries import Libraries
from dask_mars.engine.templates import Templates, templates
from dask_mars.protocol.forking import is_supported
from tests.conftest import Scripts, eventually, shared_runtime

pytestmark = pytest.mark.skipif(not is_supported(), reason="worker processes are new interpreters here")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Return the options of the interpreters that have been started, of templates and workers."""
    found: list[dict] = []
    launch = launching.launch

    def note(options: dict, *rest: object) -> object:
        found.append(options)
        return launch(options, *rest)

    for module in ("processes", "early"):
        monkeypatch.setattr(f"dask_mars.engine.{module}.launch", note)
    return found


@pytest.fixture(scope="module")
def runtime(private_tmp: Path) -> Iterator[Runtime]:
    """Yield a runtime whose tasks never run in threads, and that keeps the template."""
    with dask.config.set({"dask-mars.start-in-threads": False}), shared_runtime(num_workers=2) as runtime:
        yield runtime


def of_both(function: object, runtime: Runtime) -> list:
    """Return the results of a function in two processes."""
    found: dict[int, object] = {}

    def both() -> bool:
        tasks = [dask.delayed(lambda: (os.getpid(), function()), pure=False)() for _ in range(8)]
        found.update(dask.compute(*tasks, scheduler=runtime.get))
        return len(found) == 2

    assert eventually(both)
    return list(found.values())


def up(runtime: Runtime) -> Runtime:
    """Return a runtime whose processes have been started."""
    assert runtime.get({"x": (abs, -1)}, "x") == 1
    return runtime


def test_processes_are_forks_and_children_of_this_one(runtime: Runtime, started: list[dict]) -> None:
    assert of_both(os.getppid, runtime) == [os.getpid()] * 2
    assert not [options for options in started if "control" in options]
    with Runtime(num_workers=1) as other:
        assert other.get({"x": (os.getppid,)}, "x") == os.getpid()
    assert len(started) <= 1


def test_it_forks_where_another_engine_has_just_paused_it(
    runtime: Runtime, started: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_both(os.getpid, runtime)
    started.clear()
    fork = templates.fork

    def paused(*arguments: Any) -> int | None:
        # It imports a library for another engine, which has begun to compute.
        with monkeypatch.context() as patch:
            patch.setattr(Libraries, "pending", lambda libraries: {"library"})
            templates.give_way(True)
        return fork(*arguments)

    monkeypatch.setattr(templates, "fork", paused)
    monkeypatch.setattr("dask_mars.engine.templates._FORK_S", 1.0)
    with Runtime(num_workers=1) as other:
        assert other.get({"x": (os.getppid,)}, "x") == os.getpid()
    assert not started


def test_as_many_are_forked_as_there_are_chunks_for(runtime: Runtime, tmp_path: Path) -> None:
    def wait(number: int, count: int) -> int:
        (tmp_path / f"{count} {number}").touch()
        assert eventually(lambda: len(list(tmp_path.glob(f"{count} *"))) == count)
        return os.getpid()

    up(runtime)
    with dask.config.set({"dask-mars.start-in-threads": True}), Runtime(num_workers=4) as other:
        for count in (1, 2, 4):
            tasks = [dask.delayed(wait)(number, count) for number in range(count)]
            pids = dask.compute(*tasks, scheduler=other.get)
            assert len(set(pids)) == len(other.engine().worker_pids()) == count


@pytest.mark.parametrize("most", [1, 3])
def test_descriptors_travel_in_several_messages(
    runtime: Runtime, started: list[dict], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    up(runtime)
    monkeypatch.setattr("dask_mars.engine.templates.MOST_DESCRIPTORS", most)
    with Runtime(num_workers=2) as other:
        assert of_both(os.getppid, other) == [os.getpid()] * 2
    assert not started


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc")
def test_workers_keep_no_descriptors_of_arenas(runtime: Runtime) -> None:
    def names() -> list[str]:
        return [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]

    for found in of_both(lambda: [name for name in names() if "memfd" in name], runtime):
        assert [name for name in found if "locks" not in name] == []


def test_they_have_what_new_interpreters_would_have(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    up(runtime)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = (soft - 1, hard)
    monkeypatch.setenv("TEMPLATE_TEST", "set")
    monkeypatch.chdir(tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    try:
        with Runtime(num_workers=2) as other:
            look = lambda: (  # noqa: E731
                os.environ["TEMPLATE_TEST"],
                os.getcwd(),
                resource.getrlimit(resource.RLIMIT_NOFILE),
                os.getpgid(0) == os.getpid(),
            )
            assert of_both(look, other) == [("set", str(tmp_path), limits, True)] * 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_their_random_numbers_differ(runtime: Runtime) -> None:
    first, second = of_both(lambda: np.random.random(), runtime)
    assert first != second


def test_what_they_print_goes_where_the_program_prints_now(runtime: Runtime, capfd: pytest.CaptureFixture) -> None:
    up(runtime)
    with Runtime(num_workers=1) as other:
        assert other.get({"x": (os.write, 1, b"from a fork\n")}, "x") == 12
    assert capfd.readouterr().out == "from a fork\n"


@pytest.mark.slow
def test_its_death_harms_no_worker_and_the_next_one_takes_over(runtime: Runtime, started: list[dict]) -> None:
    up(runtime)
    pids = runtime.engine().worker_pids()
    before = templates.pid()
    os.kill(before, signal.SIGKILL)
    assert runtime.get({"x": (abs, -1)}, "x") == 1
    assert runtime.engine().worker_pids() == pids
    for pid in pids:
        # The fork of the first one's successor fails, and a new interpreter takes its place.
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda pid=pid: up(runtime) and pid not in runtime.engine().worker_pids())
    assert of_both(os.getppid, runtime) == [os.getpid()] * 2
    assert templates.pid() not in (None, before)
    assert sum("control" in options for options in started) == 1


@pytest.mark.slow
def test_where_it_does_not_come_up_processes_are_new_interpreters(
    monkeypatch: pytest.MonkeyPatch, started: list[dict]
) -> None:
    monkeypatch.setattr("dask_mars.engine.templates.templates", own := Templates())
    monkeypatch.setattr("dask_mars.engine.processes.templates", own)
    launch = launching.launch
    broken = lambda options, environment, *rest: launch(options, {**environment, "PYTHONHOME": "/nowhere"}, *rest)  # noqa: E731
    monkeypatch.setattr("dask_mars.engine.early.launch", broken)
    with dask.config.set({"dask-mars.start-in-threads": False}), Runtime(num_workers=1) as runtime:
        assert runtime.get({"x": (os.getppid,)}, "x") == os.getpid()
    assert [options["parent"] for options in started] == [os.getpid()]


def test_it_is_not_ready_for_an_environment_that_its_libraries_have_not_read(scripts: Scripts) -> None:
    script = """
import os, time
os.sched_getaffinity = lambda pid: {0, 1}
import dask_mars
from dask_mars.engine.libraries import Libraries
from dask_mars.engine.templates import templates

until_s = time.monotonic() + 30
while not templates.is_ready() and time.monotonic() < until_s:
    time.sleep(0.01)
print(templates.is_ready())
os.environ["OMP_NUM_THREADS"] = "3"
print(templates.is_ready())
"""
    done = scripts.run("-c", script, env={"DASK_DASK_MARS__START_AT_IMPORT": "true"})
    assert (done.stdout.split(), done.stderr) == (["True", "False"], "")


@pytest.mark.slow
def test_it_ends_with_the_last_engine_and_with_the_program(scripts: Scripts) -> None:
    program = """
import os, psutil, time, dask_mars

def children():
    return {child.pid for child in psutil.Process().children()}

first, second = dask_mars.Runtime(1).start(), dask_mars.Runtime(1).start()
for runtime in (first, second):
    runtime.get({"x": (abs, -1)}, "x")
template = children() - {pid for runtime in (first, second) for pid in runtime.engine().worker_pids()}
first.close()
print(len(template), len(children()), flush=True)
child = os.fork()
if not child:
    # A forked program has its own.
    with dask_mars.Runtime(1).start() as own:
        print(own.get({"x": (os.getppid,)}, "x") == os.getpid(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(second.get({"x": (os.getppid,)}, "x") == os.getpid())
second.close()
print(children())
third = dask_mars.Runtime(1).start()
third.get({"x": (abs, -1)}, "x")
print(len(children()), flush=True)
time.sleep(100)
"""
    with scripts.start("-W", "ignore", "-c", program) as process:
        lines = [process.stdout.readline() for _ in range(5)]
        assert lines == ["1 2\n", "True\n", "True\n", "set()\n", "2\n"]
        process.kill()
    assert eventually(lambda: not scripts.left())
