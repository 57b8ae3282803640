"""Scripts that must do under dask_mars what they do under Dask's threads, in each run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 200.0
pytestmark = pytest.mark.timeout(TIMEOUT_S + 10)

_ROOT = Path(__file__).resolve().parents[2]
#: Scripts that one process runs one after the other.
TOGETHER = ["classes", "odd_objects"]
#: Scripts that are run alone, with packages that have no wheel for the newest Python.
ALONE = {
    "files": "h5py",
    "open_things": "",
    "pickles_in_tasks": "",
    "reloaded_modules": "",
    "surroundings": "zarr",
}


def check(scripts: Any, tmp_path: Path, *arguments: str) -> None:
    """Run case scripts, which print what differs."""
    settings = {
        "DASK_DASK_MARS__NUM_WORKERS": "2",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(tmp_path),
    }
    done = scripts.run(*arguments, env=settings, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert not scripts.left()


def path_of(name: str) -> str:
    return str(_ROOT / "tests" / "cases" / f"{name}_case.py")


def test_each_script_is_run() -> None:
    assert sorted([*TOGETHER, *ALONE]) == sorted(
        path.name.removesuffix("_case.py") for path in Path(__file__).parent.glob("*_case.py")
    )


@pytest.mark.nightly
@pytest.mark.parametrize("start", ["threads", "processes"])
def test_both_runs_give_what_threads_give(start: str, scripts: Any, tmp_path: Path) -> None:
    check(scripts, tmp_path, "-m", "tests.cases", start, *map(path_of, TOGETHER))


@pytest.mark.nightly
@pytest.mark.parametrize("start", ["threads", "processes"])
@pytest.mark.parametrize("script", ALONE)
def test_both_runs_of_a_program_give_what_threads_give(
    script: str, start: str, scripts: Any, tmp_path: Path
) -> None:
    if ALONE[script]:
        pytest.importorskip(ALONE[script])
    check(scripts, tmp_path, path_of(script), start)
