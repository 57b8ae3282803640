"""A real JupyterLab, and a browser that looks at it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.web.browser import Viewer

#: Runs all cells as the menu does, once the kernel is there.
_RUN = """
const done = arguments[arguments.length - 1];
const app = window.jupyterapp;
(async () => {
  await app.restored;
  const panel = app.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  await app.commands.execute('notebook:run-all-cells');
  return [...panel.content.widgets].map(cell => cell.model.executionCount);
})().then(counts => done(counts), error => done(String(error)));
"""


@contextlib.contextmanager
def serving(directory: Path, python: str = sys.executable) -> Iterator[str]:
    """Run JupyterLab on the notebooks of a directory; yield its address."""
    private = directory / "jupyter"
    kinds = ("JUPYTER_CONFIG", "JUPYTER_DATA", "JUPYTER_RUNTIME", "JUPYTERLAB_SETTINGS", "JUPYTERLAB_WORKSPACES")
    places = {f"{kind}_DIR": str(private / f"{kind}_DIR") for kind in kinds}
    places["IPYTHONDIR"] = str(private / "ipython")
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", "--expose-app-in-browser"]
    options += ["--IdentityProvider.token=", f"--ServerApp.root_dir={directory}", "--LabApp.news_url="]
    log = directory / "jupyter.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [python, "-m", "jupyterlab", *options],
            env={**os.environ, **places},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _address(process, log, private / "JUPYTER_RUNTIME_DIR")
    finally:
        process.terminate()
        try:
            process.wait(100)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[Any], log: Path, runtime: Path) -> str:
    def find() -> str | None:
        assert process.poll() is None, log.read_text()
        for file in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, OSError):
                address = f"{json.loads(file.read_text())['url']}"
                urllib.request.urlopen(f"{address}api", timeout=5).close()
                return address
        return None

    deadline = time.monotonic() + 60
    while (address := find()) is None:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return address


def run_notebook(viewer: Viewer, address: str, name: str) -> None:
    """Open a notebook and run all of its cells."""
    viewer.open(f"{address}lab/tree/{name}?reset")
    viewer.wait(lambda: viewer.value("Boolean(window.jupyterapp)") and viewer.all(".jp-Notebook .jp-Cell"), 60)
    counts = viewer.driver.execute_async_script(_RUN)
    assert isinstance(counts, list), counts


def notebook_of(*cells: str) -> str:
    """Return the file of a notebook with cells of code."""
    return json.dumps(
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell{number}",
                    "metadata": {},
                    "execution_count": None,
                    "outputs": [],
                    "source": source,
                }
                for number, source in enumerate(cells)
            ],
        }
    )
