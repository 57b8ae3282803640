"""What is imported while a program waits, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from dask_mars.engine.early_imports import EarlyImports
from dask_mars.protocol.forking import is_supported
from tests.conftest import Scripts, eventually

pytestmark = pytest.mark.skipif(not is_supported(), reason="nothing begins at the import here")

_ON = {"DASK_DASK_MARS__START_AT_IMPORT": "true"}
_PROGRAM = """
import os, sys, time

os.sched_getaffinity = lambda pid: {0, 1}
import dask, dask.array, dask_mars
from dask_mars.engine import early

(imports,) = early._imports

def wait_for(condition):
    while not condition():
        time.sleep(0.001)

"""
_COMPUTE = "print(dask.delayed(lambda: 7)().compute(scheduler=dask_mars.get))"


def run(scripts: Scripts, program: str) -> list[str]:
    """Run a program, and return what it prints if nothing is left of it."""
    done = scripts.run("-X", "dev", "-c", _PROGRAM + program, env=_ON)
    assert (done.stderr, done.returncode) == ("", 0)
    assert eventually(lambda: not scripts.left())
    return done.stdout.split()


def test_a_program_that_waits_has_the_modules_of_its_first_computation(scripts: Scripts) -> None:
    program = f"""
wait_for(lambda: not imports._is_running.locked())
before = set(sys.modules)
{_COMPUTE}
print(len([name for name in set(sys.modules) - before if name.startswith("dask_mars")]) < 5)
"""
    assert run(scripts, program) == ["7", "True"]


def test_a_computation_meets_the_imports(scripts: Scripts) -> None:
    program = f"wait_for(lambda: 'dask_mars.scheduler' in sys.modules)\n{_COMPUTE}"
    assert run(scripts, program) == ["7"]


def test_a_fork_waits_for_the_imports(scripts: Scripts) -> None:
    program = f"""
wait_for(lambda: "dask_mars.scheduler" in sys.modules)
pid = os.fork()
if pid:
    print(os.waitpid(pid, 0)[1])
print(imports._is_running.locked())
{_COMPUTE}
"""
    assert run(scripts, program) == ["False", "7", "0", "False", "7"]


def test_a_program_ends_in_the_middle(scripts: Scripts) -> None:
    assert run(scripts, "wait_for(lambda: 'dask_mars.optimize' in sys.modules)") == []


def test_no_library_is_imported(scripts: Scripts) -> None:
    program = _PROGRAM.replace("dask, dask.array", "dask")
    waits = "wait_for(lambda: 'dask_mars.client.backend' in sys.modules)\n"
    show = "print('numpy' in sys.modules)\n"
    used = "print(dask.delayed(lambda: __import__('numpy').ones(3))().compute(scheduler='mars').sum())\n"
    done = scripts.run("-c", program + waits + _COMPUTE + "\n" + show + used + show, env=_ON)
    assert (done.stdout.split(), done.stderr) == (["7", "False", "3.0", "True"], "")


def begun(monkeypatch: pytest.MonkeyPatch, delays_s: Iterable[float], *loaded: str) -> list[str]:
    """Return what is imported if the thread gets the GIL so late after its intervals."""
    done: list[str] = []
    delays, clock_s = iter(delays_s), [0.0]

    def ends_within(_: EarlyImports, seconds: float) -> bool:
        clock_s[0] += seconds + next(delays, 1000.0)
        return False

    monkeypatch.setattr("dask_mars.engine.early_imports.monotonic", lambda: clock_s[0])
    monkeypatch.setattr("dask_mars.engine.early_imports.others_import", lambda: False)
    monkeypatch.setattr("dask_mars.engine.early_imports.is_loaded", lambda name: name in loaded)
    monkeypatch.setattr(EarlyImports, "_ends_within", ends_within)
    monkeypatch.setattr(EarlyImports, "_import", lambda self, modules: done.append(modules[-1]))
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    imports = EarlyImports()
    assert imports._is_running.acquire(timeout=10)
    imports._is_running.release()
    return done


def test_a_program_is_left_alone_while_it_has_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [0.0001, 0.0]
    assert begun(monkeypatch, [0.005, waits[0], 0.004, *waits], "dask") == ["dask_mars.client.backend"]
    assert begun(monkeypatch, [waits[0], 0.005] * 20, "dask") == []
    assert begun(monkeypatch, waits * 2) == []
    both = ["dask_mars.client.backend", "dask_mars.expressions.rewrite"]
    assert begun(monkeypatch, waits * 2, "dask", "dask.array") == both
