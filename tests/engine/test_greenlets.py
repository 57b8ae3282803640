"""Programs whose threads are greenlets."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dask_mars import config
from dask_mars.engine.engine import Engine
from dask_mars.errors import EngineStartFailed
from tests.conftest import Scripts

PATCHED = """
from gevent import monkey
monkey.patch_all()

import os, sys
import dask, dask.array as da, gevent
import dask_mars

ticks = []
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.001)

def fail():
    raise ValueError("as it should")

gevent.spawn(tick)
dask.config.set(scheduler=dask_mars.get)
x = da.arange(100_000, chunks=10_000)
before = len(ticks)
print(int(x.sum().compute()), len(ticks) > before)
jobs = [gevent.spawn(lambda: int(x.map_blocks(lambda block: block + 1).sum().compute())) for _ in range(4)]
print([job.get() for job in jobs])
print(dask.delayed(os.getpid)().compute() == os.getpid())
try:
    dask.delayed(fail)().compute()
except ValueError as error:
    print(error)

child = os.fork()
if not child:
    print(int(x.sum().compute()), flush=True)
    dask_mars.close()
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_greenlets_of_gevent(scripts: Scripts) -> None:
    pytest.importorskip("gevent")
    done = scripts.run("-W", "ignore", str(scripts.write("patched.py", PATCHED)), timeout_s=100)
    total = 99_999 * 50_000
    expected = [f"{total} True", str([total + 100_000] * 4), "False", "as it should", str(total), "0"]
    assert (done.returncode, sorted(done.stdout.splitlines()), done.stderr) == (0, sorted(expected), "")


def test_greenlets_of_eventlet_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    patcher = SimpleNamespace(is_monkey_patched=lambda module: module == "thread")
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    with pytest.raises(EngineStartFailed, match=r'eventlet .* scheduler="threads"'):
        Engine(config.settings(num_workers=1))
