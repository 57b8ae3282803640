"""Scripts that must do under dask_mars what they do under Dask's threads, in each run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 100.0
pytestmark = pytest.mark.timeout(TIMEOUT_S + 10)

SCRIPTS = sorted(path.name for path in Path(__file__).parent.glob("*_case.py"))
#: Packages that scripts import, and that have no wheel for the newest Python.
NEEDED = {"files_case.py": "h5py", "surroundings_case.py": "zarr"}
_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("start", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("script", SCRIPTS)
def test_both_runs_give_what_threads_give(script: str, start: str, scripts: Any, tmp_path: Path) -> None:
    if script in NEEDED:
        pytest.importorskip(NEEDED[script])
    settings = {
        "DASK_DASK_MARS__NUM_WORKERS": "2",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(tmp_path),
    }
    done = scripts.run(str(_ROOT / "tests" / "cases" / script), start, env=settings, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert not scripts.left()
