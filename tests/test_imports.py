"""What each process imports, and when."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

#: What a process that does not compute is to do without; `dask.array` brings the others where they are installed.
HEAVY = ("dask.array", "pandas", "scipy", "xarray")

LOADED = f"""
import sys

def loaded():
    return [name for name in {HEAVY!r} if name in sys.modules]
"""


def printed(scripts: Any, program: str, **env: str) -> list[str]:
    """Run a program, and return the lines that it prints."""
    done = scripts.run("-c", LOADED + program, env=env)
    assert (done.stderr, done.returncode) == ("", 0)
    lines: list[str] = done.stdout.splitlines()
    return lines


IMPORT = """
import pickle
import dask, dask_mars
from dask_mars import Runtime, close, get

print(loaded(), "numpy" in sys.modules)
print(get is dask_mars.get is dask.base.named_schedulers["mars"] is pickle.loads(pickle.dumps(get)))
print(dask.config.get("dask-mars.retries"), dask.config.get("dask-mars.cancel-grace"))
print(dask.delayed(sum)([1, 2]).compute(num_workers=1))
print(dask_mars.runtimes._default._runtime is not None)
"""


def test_who_imports_dask_mars_waits_for_what_computes_only_when_it_does(scripts: Any) -> None:
    env = {"DASK_SCHEDULER": "mars", "DASK_DASK_MARS__CANCEL_GRACE": "7 s"}
    assert printed(scripts, IMPORT, **env) == ["[] False", "True", "0 7 s", "3", "True"]


WITHOUT_ARRAYS = """
import dask_mars.cluster.agent_process, dask_mars.cluster.cli, dask_mars.cluster.monitor
import dask_mars.cluster.scheduler_plugin, dask_mars.web.on_scheduler
print(loaded())
"""


def test_nannies_and_dasks_scheduler_do_not_load_what_computes(scripts: Any) -> None:
    pytest.importorskip("distributed")
    assert printed(scripts, WITHOUT_ARRAYS) == ["[]"]


WITHOUT_JINJA = """
sys.modules["jinja2"] = None
import dask_mars

print(dask_mars.get({"x": 1, "y": (abs, "x")}, "y"), dask_mars.runtime().profile())
dask_mars.close()
"""


def test_who_shows_no_html_needs_no_templates(scripts: Any) -> None:
    assert printed(scripts, WITHOUT_JINJA)[0].startswith("1 computation ")


NO_CLIENT = """
import distributed
import dask_mars

print(dask_mars.get({"x": 1, "y": (abs, "x")}, "y"), "dask_mars.cluster.backend" in sys.modules)
dask_mars.close()
"""


def test_who_has_no_client_does_not_load_what_is_about_clusters(scripts: Any) -> None:
    pytest.importorskip("distributed")
    assert printed(scripts, NO_CLIENT) == ["1 False"]


WITHOUT_XARRAY = """
from dask_mars.worker.preload import load_dask_array

load_dask_array()
import numpy as np, dask.array as da

print([name for name in loaded() if name != "scipy"])
print(da.from_array(np.ones(4), chunks=2).chunks)

import xarray

array = xarray.DataArray(da.ones(4, chunks=2), dims="x")
print(xarray.__spec__.name, da.asarray(array).chunks, da.from_array(array).chunks)
load_dask_array()
print(da.core.xr.testing is xarray.testing)
"""


def test_arrays_without_xarray_know_it_when_it_comes(scripts: Any) -> None:
    pytest.importorskip("xarray")
    lines = printed(scripts, WITHOUT_XARRAY)
    assert lines == ["['dask.array']", "((2, 2),)", "xarray ((2, 2),) ((2, 2),)", "True"]


WITHOUT_NUMBAGG = """
from dask_mars.worker.preload import load_dask_array

load_dask_array()
import numpy as np, dask.array as da

print("numba" in sys.modules, "numbagg" in sys.modules, da.reductions.HAS_NUMBAGG)
print(da.nanmedian(da.from_array(np.array([1.0, np.nan, 3.0]), chunks=3), axis=0).compute(scheduler="sync"))
print("numbagg" in sys.modules)
"""


def test_arrays_without_numbagg_call_it_when_it_is_wanted(scripts: Any) -> None:
    numbagg = pytest.importorskip("numbagg")
    assert importlib.import_module("dask.array.reductions").numbagg is numbagg
    assert printed(scripts, WITHOUT_NUMBAGG) == ["False False True", "2.0", "True"]


def test_xarray_that_is_there_stays(scripts: Any) -> None:
    pytest.importorskip("xarray")
    program = "import xarray\nfrom dask_mars.worker.preload import load_dask_array\nload_dask_array()\n"
    assert printed(scripts, program + "import dask.array\nprint(dask.array.core.xr is xarray)") == ["True"]
