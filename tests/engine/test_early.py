"""The template that begins at the import of dask_mars: who has one, who uses it, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dask_mars.engine import early
from dask_mars.engine.libraries import Libraries
from dask_mars.engine.templates import Template
from dask_mars.protocol.forking import is_supported
from tests.conftest import Scripts, eventually

pytestmark = pytest.mark.skipif(not is_supported(), reason="there are no templates here")

_ON = {"DASK_DASK_MARS__START_AT_IMPORT": "true"}

#: The program's children, and the processor that a template leaves to the program.
_CHILDREN = """
import os, sys, time, psutil

os.sched_getaffinity = lambda pid: {0, 1}
import dask, dask_mars

def children():
    return [child.pid for child in psutil.Process().children()]
"""


def run(scripts: Scripts, program: str, env: dict[str, str] = _ON, *flags: str) -> list[str]:
    """Run a program, and return what it prints if nothing is left of it."""
    done = scripts.run(*flags, "-c", _CHILDREN + program, env=env)
    assert (done.stderr, done.returncode) == ("", 0)
    assert eventually(lambda: not scripts.left())
    return done.stdout.split()


def test_a_program_that_computes_nothing_leaves_nothing(scripts: Scripts) -> None:
    program = "print(len(children()), 'numpy' in sys.modules)"
    # With warnings on: of processes that still run, for example.
    assert run(scripts, program, _ON, "-X", "dev") == ["1", "False"]


def test_it_ends_with_a_program_that_is_killed(scripts: Scripts) -> None:
    program = f"{_CHILDREN}\nprint(len(children()), flush=True)\nos.kill(os.getpid(), 9)"
    done = scripts.run("-c", program, env=_ON)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert eventually(lambda: not scripts.left())


NONE = {
    "the setting is off": ("", {"DASK_DASK_MARS__START_AT_IMPORT": "false"}),
    "the setting is wrong": ("", {"DASK_DASK_MARS__START_AT_IMPORT": "3"}),
    "a thread imports": ("threading", _ON),
    "it is a helper of a pool": ("pool", _ON),
}

_IMPORTERS = """
import os, sys, threading, multiprocessing, psutil

os.sched_getaffinity = lambda pid: {0, 1}

def look(_=None):
    import dask_mars
    print(len(psutil.Process().children()), flush=True)

if __name__ == "__main__":
    if sys.argv[1] == "threading":
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    elif sys.argv[1] == "pool":
        child = multiprocessing.get_context("spawn").Process(target=look)
        child.start()
        child.join()
    else:
        look()
"""


@pytest.mark.parametrize(("how", "env"), NONE.values(), ids=NONE)
def test_there_is_none(scripts: Scripts, how: str, env: dict[str, str]) -> None:
    script = scripts.write("importer.py", _IMPORTERS)
    done = scripts.run(str(script), how, env=env)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_workers_and_commands_begin_none(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def refuse(*_: Any, **__: Any) -> None:
        begun.append(1)
        raise OSError

    monkeypatch.setattr(early, "begin", refuse)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(sys, "orig_argv", ["python", "program.py"])
    early.begin_at_import()
    assert len(begun) == 1
    monkeypatch.setattr(sys.modules["__main__"], "is_dask_mars_worker", True, raising=False)
    early.begin_at_import()
    monkeypatch.undo()
    monkeypatch.setattr(early, "begin", refuse)
    monkeypatch.setattr(sys, "orig_argv", ["python", "/usr/bin/dask-mars-worker", "tcp://localhost:1"])
    early.begin_at_import()
    assert len(begun) == 1


def test_engines_use_it_and_their_workers_have_none(scripts: Scripts) -> None:
    program = """
(template,) = children()
with dask_mars.Runtime(1) as runtime:
    print(runtime.get({"x": (lambda: (os.getppid(), len(psutil.Process().children())),)}, "x") == (os.getpid(), 0))
    from dask_mars.engine.templates import templates
    print(templates.pid() == template, len(psutil.Process().children(recursive=True)))
print(children())
"""
    assert run(scripts, program) == ["True", "True", "2", "[]"]


def test_a_changed_environment_needs_another(scripts: Scripts) -> None:
    program = """
(template,) = children()
os.environ["PYTHON_TEST"] = "2"
from dask_mars.engine.templates import templates
with dask_mars.Runtime(1) as runtime:
    print(runtime.get({"x": (lambda: os.environ["PYTHON_TEST"],)}, "x"))
    print(templates.pid() not in (None, template), template in children())
"""
    assert run(scripts, program) == ["2", "True", "False"]


def test_a_program_that_forks_has_only_its_own_children(scripts: Scripts) -> None:
    program = """
for _ in range(2):
    if not os.fork():
        os.write(1, b"%d " % len(children()))
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
with dask_mars.Runtime(1) as runtime:
    print(runtime.get({"x": (lambda: os.getppid(),)}, "x") == os.getpid())
"""
    assert run(scripts, program) == ["0", "0", "True"]


def test_a_program_that_closes_all_descriptors_keeps_its_own_files(scripts: Scripts) -> None:
    program = """
(template,) = children()
os.closerange(3, 100)
files = [open(os.devnull) for _ in range(20)]
import dask.array
with dask_mars.Runtime(1) as runtime:
    print(runtime.get({"x": (lambda: os.getppid(),)}, "x") == os.getpid())
    print(template in children())
[os.fstat(file.fileno()) for file in files]
"""
    assert run(scripts, program) == ["True", "False"]


def test_one_that_nobody_uses_ends_and_the_next_takes_over(scripts: Scripts) -> None:
    program = """
from dask_mars.engine import early
early.end()
early._IDLE_S = 0
early.begin_at_import()
(template,) = children()
while psutil.Process(template).status() != psutil.STATUS_ZOMBIE:
    time.sleep(0.01)
with dask_mars.Runtime(1) as runtime:
    print(runtime.get({"x": (lambda: os.getppid(),)}, "x") == os.getpid())
    from dask_mars.engine.templates import templates
    print(templates.pid() not in (None, template))
"""
    assert run(scripts, program) == ["True", "True"]


def test_it_pauses_while_threads_compute() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    libraries = Libraries()
    with ours, theirs, libraries.theirs:
        sent: list[int] = []
        process = SimpleNamespace(pid=1)
        begun: Any = SimpleNamespace(
            process=process,
            connection=ours,
            libraries=libraries,
            surroundings={},
            begun_s=0.0,
            is_early=True,
            signal=sent.append,
        )
        template = Template(begun)
        for others_compute in (True, True, False, True):
            template.give_way(others_compute)
        none = lambda names: []  # noqa: E731
        # A process is needed.
        assert template.is_loading(60.0, none)
        theirs.sendall(b"0")
        assert not template.is_loading(60.0, none)
        assert template.is_up()
        template.give_way(True)
        assert sent == [signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP, signal.SIGCONT]
        # Its fork that imports libraries pauses with it.
        libraries.request({"a library": "its file"})
        template.give_way(True)
        assert sent[4:] == [signal.SIGSTOP]
        # One process waits for it, and another needs no library.
        needed = {"a library"}.intersection
        assert template.is_loading(60.0, needed)
        assert not template.is_loading(60.0, none)
        for answer in (b"%d" % os.getpid(), b"1"):
            libraries.theirs.sendall(answer)
        assert not template.is_loading(60.0, needed)
        libraries.forget()
