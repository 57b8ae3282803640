"""Progress in notebooks, executed by nbclient, as scripts do it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dask_mars
from dask_mars.diagnostics import Progress
from dask_mars.observe import progress

SETUP = """
import dask, dask.array as da, dask_mars
from dask_mars.diagnostics import Progress
dask.config.set({"dask-mars.num-workers": 2, "dask-mars.memory-limit": "1 GiB"})
"""
COMPUTE = """
x = da.ones((400, 400), chunks=20)
with Progress():
    total = (x - x.mean(axis=0)).sum().compute(scheduler=dask_mars.get)
"""


def without(*modules: str) -> str:
    """Return code after which modules cannot be imported."""
    return f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n"


def notebook_of(*cells: str) -> str:
    """Return the file of a notebook with cells of code."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    shown = [{**cell, "id": f"cell{number}", "source": source} for number, source in enumerate(cells)]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": shown})


class Output:
    """What a notebook has below a cell, and all that stood there before."""

    def __init__(self) -> None:
        self.sent: list[dict[str, str]] = []

    def display(self, message: dict[str, str], raw: bool, display_id: bool) -> Output:
        assert raw
        assert display_id
        self.update(message, raw)
        return self

    def update(self, message: dict[str, str], raw: bool) -> None:
        self.sent.append(message)


def test_the_last_that_is_sent_is_how_it_ended(get: Any, monkeypatch: pytest.MonkeyPatch):
    display = pytest.importorskip("IPython.display")
    output = Output()
    monkeypatch.setattr(display, "display", output.display)
    monkeypatch.setattr(progress, "is_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "rich", None)
    graph = {**{("leaf-<0a1b2c3d>", n): (abs, n) for n in range(6)}, "total": (divmod, 1, 0)}
    with Progress():
        dask_mars.get({"nothing": 1}, "nothing")
    assert output.sent == [{"text/html": "", "text/plain": ""}]
    with Progress():
        get(graph, [("leaf-<0a1b2c3d>", n) for n in range(6)])
    assert output.sent[-1]["text/plain"].startswith("finished: 6 of 6 tasks in ")
    assert "leaf-&lt;0a1b2c3d&gt;" in output.sent[-1]["text/html"]
    with Progress(), pytest.raises(ZeroDivisionError):
        get(graph, "total")
    assert output.sent[-1]["text/plain"].startswith("failed: 0 of 1 tasks in ")
    assert "1 failed" in output.sent[-1]["text/html"]


#: In a process of its own, as it leaves an event loop open.
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, allow_errors=True, timeout=60).execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.mark.slow
def test_executed_by_nbclient(tmp_path: Path):
    pytest.importorskip("ipykernel", reason="without ipykernel there is no kernel of a notebook")
    pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    fail = "with Progress():\n    dask_mars.get({'a': (divmod, 1, 0)}, 'a')"
    file = tmp_path / "one.ipynb"
    file.write_text(notebook_of(without("ipywidgets", "rich") + SETUP, COMPUTE, fail))
    subprocess.run([sys.executable, "-c", EXECUTE, str(file)], cwd=tmp_path, check=True, timeout=100)
    notebook = nbformat.read(file, 4)
    (shown,) = notebook.cells[1].outputs
    assert shown.data["text/plain"].startswith("finished: ")
    done, count = shown.data["text/plain"].removeprefix("finished: ").split(" tasks ")[0].split(" of ")
    assert done == count
    html = shown.data["text/html"]
    assert "mean_chunk" in html
    assert "400/400" in html
    assert "of 1.00 GiB in use" in html
    assert "running" not in html
    shown, error = notebook.cells[2].outputs
    assert shown.data["text/plain"].startswith("failed: 0 of 1 tasks")
    assert error.ename == "ZeroDivisionError"
