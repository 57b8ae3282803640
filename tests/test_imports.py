"""What each process imports, and when."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest

#: What a process that does not compute is to do without; `dask.array` brings the others where they are installed.
HEAVY = ("dask.array", "dask_mars.observe.drawing", "matplotlib", "pandas", "scipy", "xarray")

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
import os, pickle, threading

# Who shows no HTML needs no templates.
sys.modules["jinja2"] = None
import dask, dask_mars
from dask_mars import Runtime, close, get

print(loaded(), "numpy" in sys.modules)
print(get is dask_mars.get is dask.base.named_schedulers["mars"] is pickle.loads(pickle.dumps(get)))
print(dask.config.get("dask-mars.retries"), dask.config.get("dask-mars.cancel-grace"))
runtime = Runtime()
print(threading.active_count(), len(os.listdir("/proc/self/fd")) < 10 if os.path.isdir("/proc/self") else True)
"""

WITHOUT_ARRAYS = """
# What nannies and Dask's scheduler load.
import dask_mars.cluster.agent_process, dask_mars.cluster.cli, dask_mars.cluster.monitor
import dask_mars.cluster.scheduler_plugin, dask_mars.web.on_scheduler
print(loaded())
"""

COMPUTE = """
print(dask.delayed(sum)([1, 2]).compute(num_workers=1))
print(dask_mars.runtimes._default._runtime is not None, "dask_mars.cluster.backend" in sys.modules)
print("dask.array" in sys.modules, "xarray" in sys.modules)
print(dask_mars.runtime().profile())
import dask.array as da
from dask_mars.dask_api.loaded import arrays
print(da.arange(4, chunks=2).sum().compute(num_workers=1), arrays.getitem is da.chunk.getitem)
"""


def test_who_imports_dask_mars_waits_for_what_computes_only_when_it_does(scripts: Any) -> None:
    env = {"DASK_SCHEDULER": "mars", "DASK_DASK_MARS__CANCEL_GRACE": "7 s"}
    distributed = importlib.util.find_spec("distributed") is not None
    lines = printed(scripts, IMPORT + (WITHOUT_ARRAYS if distributed else "print([])") + COMPUTE, **env)
    # Importing starts nothing, and who has no client does not load what computes with one.
    assert lines[:7] == ["[] False", "True", "0 7 s", "1 True", "[]", "3", "True False"]
    assert lines[7] == "False False"
    assert lines[8].startswith("computation ")
    assert lines[-1] == "6 True"


NAMED = """
import dask, dask_mars

print(dask.delayed(sum)([1, 2]).compute(scheduler="mars"), "distributed" in sys.modules)
print("dask_mars.worker.loop" in sys.modules, "dask_mars.engine.recorder" in sys.modules)
try:
    dask.delayed(sum)([1, 2]).compute(scheduler="distributed")
except RuntimeError as error:
    print(error)
import distributed
with distributed.Client(n_workers=1, processes=False, dashboard_address=None):
    print(dask.delayed(abs)(-3).compute(scheduler="distributed"))
"""


def test_dask_imports_distributed_for_a_name_only_where_the_program_has(scripts: Any) -> None:
    pytest.importorskip("distributed")
    done = scripts.run("-c", "import sys" + NAMED)
    lines = ["3 False", "True False", "Requested distributed scheduler but no Client active.", "3"]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr


WITHOUT_XARRAY = """
from dask_mars.worker.preload import load_dask_array

load_dask_array()
import numpy as np, dask.array as da

print([name for name in loaded() if name != "scipy"])
print(da.from_array(np.ones(4), chunks=2).chunks)
"""

WITHOUT_NUMBAGG = """
print("numba" in sys.modules, "numbagg" in sys.modules, da.reductions.HAS_NUMBAGG)
print(da.nanmedian(da.from_array(np.array([1.0, np.nan, 3.0]), chunks=3), axis=0).compute(scheduler="sync"))
print("numbagg" in sys.modules)
"""

WITH_XARRAY = """
import xarray

array = xarray.DataArray(da.ones(4, chunks=2), dims="x")
print(xarray.__spec__.name, da.asarray(array).chunks, da.from_array(array).chunks)
load_dask_array()
print(da.core.xr.testing is xarray.testing)
"""


@pytest.mark.slow
def test_arrays_without_xarray_and_numbagg_know_them_when_they_come(scripts: Any) -> None:
    pytest.importorskip("xarray")
    programs = [WITHOUT_XARRAY, WITH_XARRAY]
    before, after = ["['dask.array']", "((2, 2),)"], ["xarray ((2, 2),) ((2, 2),)", "True"]
    if importlib.util.find_spec("numbagg"):
        numbagg = importlib.import_module("numbagg")
        assert importlib.import_module("dask.array.reductions").numbagg is numbagg
        programs.insert(1, WITHOUT_NUMBAGG)
        before += ["False False True", "2.0", "True"]
    assert printed(scripts, "".join(programs)) == before + after


@pytest.mark.slow
def test_xarray_that_is_there_stays(scripts: Any) -> None:
    pytest.importorskip("xarray")
    program = "import xarray\nfrom dask_mars.worker.preload import load_dask_array\nload_dask_array()\n"
    assert printed(scripts, program + "import dask.array\nprint(dask.array.core.xr is xarray)") == ["True"]


WITHOUT_SCIPY = """
from dask_mars.worker.preload import load_dask_array

load_dask_array()
import numpy as np, dask.array as da
from dask.array.chunk_types import is_valid_array_chunk, is_valid_chunk_type

print("scipy" in sys.modules, is_valid_chunk_type(np.ndarray), is_valid_chunk_type(str), is_valid_array_chunk("x"))
import scipy.sparse as sparse
print(all(map(is_valid_chunk_type, (sparse.csr_matrix, sparse.csr_array, sparse.coo_array))))
print(is_valid_array_chunk(sparse.csr_matrix(np.eye(3))), is_valid_array_chunk(sparse.coo_array(np.eye(3))))
x = da.from_array(np.eye(4), chunks=2).map_blocks(sparse.csr_matrix)
print(type((x + x).compute(scheduler="sync")).__name__)
import scipy.fft
print(da.fft.fft_wrap(scipy.fft.fft)(da.ones(4, chunks=4)).compute(scheduler="sync")[0])
"""


@pytest.mark.slow
def test_arrays_without_scipy_know_it_when_it_comes(scripts: Any) -> None:
    pytest.importorskip("scipy")
    with_scipy = WITHOUT_SCIPY.replace("from dask_mars", "import scipy.sparse, scipy.fft\nfrom dask_mars", 1)
    lines, expected = printed(scripts, WITHOUT_SCIPY), printed(scripts, with_scipy)
    loaded = any(map(importlib.util.find_spec, ("sparse", "cupy")))
    assert lines[0] == f"{loaded} True False False"
    assert lines[1:] == expected[1:]


def test_names_that_the_readme_uses_need_no_import_of_their_own(scripts: Any) -> None:
    done = scripts.run(
        "-c",
        "import dask_mars; print(dask_mars.diagnostics.Progress.__name__, dask_mars.errors.MarsError.__name__)",
    )
    assert done.stdout.split() == ["Progress", "MarsError"], done.stderr
