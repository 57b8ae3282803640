"""A forked process does not wait for imports of its parent's threads."""

from __future__ import annotations

import pytest

from tests.conftest import Scripts, eventually

_PROGRAM = """
import faulthandler, os, sys, threading, time
import dask, dask_mars, numpy
from dask_mars import import_locks

{before}

def compute():
    return dask.delayed(lambda: 7)().compute(scheduler=dask_mars.get)

thread = threading.Thread(target=compute)
thread.start()
while not import_locks.is_importing(sys.modules.get("dask_mars.client.backend")):
    time.sleep(0)
pid = os.fork()
if not pid:
    faulthandler.dump_traceback_later(50, exit=True)
    os._exit(compute())
_, status = os.waitpid(pid, 0)
thread.join()
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("before", ["", "import_locks._LONGEST_S = 0"], ids=["waits", "forgets"])
def test_a_fork_computes_while_a_thread_imports(scripts: Scripts, before: str) -> None:
    done = scripts.run("-W", "ignore::DeprecationWarning", "-c", _PROGRAM.format(before=before))
    assert (done.stdout, done.stderr) == ("7\n", "")
    assert eventually(lambda: not scripts.left())


_LOSES_MODULES = """
import importlib, sys
from unittest import mock
import dask, dask_mars
def compute():
    return dask.compute(*[dask.delayed(abs)(number) for number in range(3)], scheduler=dask_mars.get)

with mock.patch.dict(sys.modules):
    {meanwhile}
assert "dask_mars.engine.graph_run" not in sys.modules
assert compute() == compute() == (0, 1, 2)
graph_run = importlib.import_module("dask_mars.engine.graph_run")
assert sys.modules["dask_mars.engine.graph_run"] is graph_run is dask_mars.engine.graph_run
assert graph_run.__spec__.loader is graph_run.__loader__
before = graph_run.RunInClient
assert importlib.reload(graph_run).RunInClient is not before
"""


@pytest.mark.parametrize(
    "meanwhile",
    [
        "compute()",
        pytest.param("import dask_mars.client.backend", marks=pytest.mark.slow),
        "import dask_mars.engine.graph_run, dask_mars.store",
    ],
)
def test_modules_that_a_patch_removes_are_not_imported_twice(scripts: Scripts, meanwhile: str) -> None:
    done = scripts.run("-c", _LOSES_MODULES.format(meanwhile=meanwhile))
    assert (done.stdout, done.stderr) == ("", "")
    assert eventually(lambda: not scripts.left())
