"""The scripts that do what public tutorials do: as a user runs them, and with what Dask's threads make of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for package in ("h5py", "matplotlib", "pandas", "pyarrow", "scipy", "xarray", "zarr"):
    pytest.importorskip(package)

TUTORIALS = Path(__file__).resolve().parent.parent / "examples" / "tutorials"
SCRIPTS = sorted(path.name for path in TUTORIALS.glob("*.py"))

#: How long one script may take, and how long all of them may under threads.
TIMEOUT_S, THREADS_TIMEOUT_S = 100.0, 200.0

# Whichever test comes first waits for the threads, too.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + THREADS_TIMEOUT_S + 20)]

#: BLAS's own threads, waiting for each other beside Dask's and the workers', would take most of the time.
ONE_BLAS_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

#: Runs scripts one after the other in one process: imports, which take longer than the scripts, happen once.
UNDER_THREADS = """
import contextlib, io, json, runpy, sys

scripts, printed = sys.argv[1:], []
sys.argv[1:] = ["threads"]
for script in scripts:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(script, run_name="__main__")
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def under_threads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each script prints when Dask's threads compute it."""
    done = subprocess.run(
        [sys.executable, "-c", UNDER_THREADS, *(str(TUTORIALS / script) for script in SCRIPTS)],
        cwd=tmp_path_factory.mktemp("threads"),
        env={**os.environ, "DASK_SCHEDULER": "threads", **ONE_BLAS_THREAD},
        capture_output=True,
        text=True,
        timeout=THREADS_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(SCRIPTS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_gives_what_threads_give(script: str, scripts: Any, under_threads: dict[str, str]) -> None:
    # Scripts take the scheduler's name as their argument, or from the environment where they name none.
    settings = {"DASK_SCHEDULER": "mars", "DASK_DASK_MARS__NUM_WORKERS": "2", **ONE_BLAS_THREAD}
    done = scripts.run(str(TUTORIALS / script), "mars", env=settings, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == under_threads[script], done.stderr
    assert done.stdout.strip()
    assert done.stderr == ""
    assert not list(scripts.directory.iterdir())
    assert not scripts.left()


def test_running_means_are_the_same_under_both(scripts: Any) -> None:
    """The example compares the results itself, and prints what zones have."""
    pytest.importorskip("rich")
    settings = {"DASK_DASK_MARS__NUM_WORKERS": "2", **ONE_BLAS_THREAD}
    script = str(TUTORIALS.parent / "running_means.py")
    small = ["--days", "60", "--degrees", "10", "--repeat", "1"]
    done = scripts.run(script, *small, env=settings, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "60 to 90" in done.stdout
    assert done.stdout.rstrip().endswith("Both schedulers gave the same results.")
    assert not scripts.left()


def test_each_of_them_is_described() -> None:
    text = (TUTORIALS.parent / "README.md").read_text(encoding="utf-8")
    assert [script for script in SCRIPTS if f"`{script}`" not in text] == []
