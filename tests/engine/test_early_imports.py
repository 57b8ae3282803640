"""What is imported while a program waits, and how it ends."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable

import pytest

from dask_mars.engine.early_imports import EarlyImports
from dask_mars.protocol.forking import is_supported
from tests.conftest import Scripts, eventually

pytestmark = pytest.mark.skipif(not is_supported(), reason="nothing begins at the import here")

_ON = {"DASK_DASK_MARS__START_AT_IMPORT": "true"}
_PROGRAM = """
import os, sys, threading, time

os.sched_getaffinity = lambda pid: {0, 1}
import dask, dask_mars

def wait_for(condition):
    while not condition():
        time.sleep(0.01)

def importer():
    return [thread for thread in threading.enumerate() if thread.name == "dask-mars-imports"]

"""


def run(scripts: Scripts, program: str) -> list[str]:
    """Run a program, and return what it prints if nothing is left of it."""
    done = scripts.run("-X", "dev", "-c", _PROGRAM + program, env=_ON)
    assert (done.stderr, done.returncode) == ("", 0)
    assert eventually(lambda: not scripts.left())
    return done.stdout.split()


def test_a_program_that_waits_has_the_modules_of_its_first_computation(scripts: Scripts) -> None:
    program = """
wait_for(lambda: not importer())
before = set(sys.modules)
print("scipy" in before, "xarray" in before, any(type(finder).__module__ == "dask_mars.engine.early_imports"
                                                 for finder in sys.meta_path))
print(dask.delayed(lambda: 7)().compute(scheduler=dask_mars.get))
print(len([name for name in set(sys.modules) - before if name.startswith("dask_mars")]) < 5)
"""
    assert run(scripts, program) == ["False", "False", "False", "7", "True"]


def test_a_computation_meets_the_imports(scripts: Scripts) -> None:
    program = """
wait_for(lambda: "numpy" in sys.modules)
print(dask.delayed(lambda: 7)().compute(scheduler=dask_mars.get))
import numpy, dask.array as da
print(da.ones(4, chunks=2).sum().compute(scheduler=dask_mars.get))
"""
    assert run(scripts, program) == ["7", "4.0"]


def test_a_fork_waits_for_the_imports(scripts: Scripts) -> None:
    program = """
wait_for(lambda: "numpy" in sys.modules)
pid = os.fork()
if pid:
    print(os.waitpid(pid, 0)[1])
print(len(importer()), dask.delayed(lambda: 7)().compute(scheduler=dask_mars.get))
"""
    assert run(scripts, program) == ["0", "7", "0", "0", "7"]


@pytest.mark.parametrize("module", ["numpy", "dask.array", "dask_mars.optimize"])
def test_a_program_ends_in_the_middle(scripts: Scripts, module: str) -> None:
    assert run(scripts, f"wait_for(lambda: {module!r} in sys.modules)") == []


def begun(monkeypatch: pytest.MonkeyPatch, shares: Iterable[float]) -> list[str]:
    """Return what has been imported for a program that uses these shares of a processor."""
    done: list[str] = []
    used = itertools.accumulate(shares)
    monkeypatch.setattr("dask_mars.engine.early_imports._IDLE_S", 0.01)
    monkeypatch.setattr("dask_mars.engine.early_imports._WATCHED_S", 0.1)
    monkeypatch.setattr(EarlyImports, "_import", lambda self: done.append("all"))
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(time, "process_time", lambda: next(used))
    imports = EarlyImports()
    imports._thread.join(10)
    assert not imports._thread.is_alive()
    return done


def test_a_program_that_computes_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(monkeypatch, [0.0, 0.01, 0.005, 0.0]) == ["all"]


def test_nothing_is_imported_for_one_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(monkeypatch, itertools.repeat(0.01)) == []
