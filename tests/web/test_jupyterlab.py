"""A JupyterLab with jupyter-server-proxy, in a browser: what notebooks show, and the page below its address."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tornado")
pytest.importorskip("selenium", reason="without selenium no browser is steered")

from tests.web.browser import CHROMIUM, DRIVER, Viewer

MISSING = [name for name in ("jupyterlab", "jupyter_server_proxy") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    # It starts a server and a kernel, which take their time on a busy machine.
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="there is no chromium, or no chromedriver"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]

TOKEN = "a" * 40
CELLS = (
    """\
import time
from pathlib import Path
import dask.array as da
import dask_mars
import numpy as np

done = dask_mars.submit(da.ones((40, 40), chunks=10).sum(), name="sum of a notebook")
done.result()
done""",
    "dask_mars.runtime()",
    """\
def when_let(block, block_id=None):
    while not Path(f"let-{block_id[0]}").exists():
        time.sleep(0.01)
    return block

blocks = da.ones(4, chunks=1).map_blocks(when_let, dtype=float, meta=np.empty(0), name="slow")
slow = dask_mars.submit(blocks, name="slow in a notebook")
while "('slow', " not in slow.explain():
    time.sleep(0.01)
slow.explain()""",
    """\
server = dask_mars.runtime().serve()
Path("link").write_text(server.link)
Path("ready").touch()""",
)


def notebook() -> dict[str, Any]:
    """Return a notebook as a file has it."""
    cells = [
        {"id": f"c{n}", "cell_type": "code", "metadata": {}, "source": text, "outputs": []}
        | {"execution_count": None}
        for n, text in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


@contextlib.contextmanager
def jupyter(folder: Path) -> Iterator[str]:
    """Run a JupyterLab with one notebook; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    (folder / "notebook.ipynb").write_text(json.dumps(notebook()), encoding="utf-8")
    root = str(Path(__file__).parents[2])
    places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "HOME")
    env = {
        **os.environ,
        **{place: str(folder / place.lower()) for place in places},
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "DASK_DASK_MARS__NUM_WORKERS": "1",
    }
    for place in places:
        Path(env[place]).mkdir()
    options = (
        "--no-browser",
        "--allow-root",
        "--expose-app-in-browser",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        f"--IdentityProvider.token={TOKEN}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    )
    with (folder / "said").open("w") as said:
        command = [sys.executable, "-m", "jupyterlab", *options]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        try:
            process.wait(100)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


#: What a notebook shows, each cell's output as HTML.
OUTPUTS = "[...document.querySelectorAll('.jp-CodeCell .jp-OutputArea')].map(one => one.innerHTML)"


def run_all(viewer: Viewer) -> None:
    """Run all cells of the notebook that is open, once its kernel is there."""
    viewer.wait(lambda: viewer.value("!!window.jupyterapp && !!document.querySelector('.jp-CodeCell')"), 60)
    viewer.wait(lambda: viewer.value("!!jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel"), 60)
    viewer.value("jupyterapp.commands.execute('notebook:run-all-cells'), true")


def test_a_notebook_and_the_page_below_jupyters_address(viewer, tmp_path):
    folder = tmp_path / "jupyter"
    folder.mkdir()
    with jupyter(folder) as lab:
        # What Jupyter itself says in the console is nothing of ours.
        viewer.expected = [""]
        viewer.wait(lambda: answers(lab), 60)
        viewer.open(f"{lab}lab/tree/notebook.ipynb?token={TOKEN}")
        run_all(viewer)
        viewer.wait((folder / "ready").exists, 60)
        viewer.wait(lambda: all(viewer.value(OUTPUTS)[:3]))
        shown = viewer.value(OUTPUTS)
        assert "sum of a notebook" in shown[0]
        assert "<table" in shown[0]
        assert "Runtime" in shown[1]
        assert "sum of a notebook" in shown[1]
        assert "<li>" in shown[2]
        assert "('slow', " in shown[2]
        viewer.leave()
        viewer.complaints()

        viewer.expected = []
        port, _, query = (folder / "link").read_text().rpartition(":")[2].partition("/")
        page = f"{lab}proxy/{port}/"
        viewer.open(page + query)
        finished = (
            "Number(document.querySelector('.progress [role=progressbar]')?.getAttribute('aria-valuenow') ?? -1)"
        )
        viewer.press(".computations li:has(.state.running) a")
        assert viewer.value("location.href.split('#')[0]") == page
        viewer.wait(lambda: viewer.value(finished) == 0)
        (folder / "let-0").touch()
        viewer.wait(lambda: viewer.value(finished) == 1)
        viewer.press("#cancel")
        viewer.press("dialog .danger")
        viewer.reads("cancelled", ".about .state")
        viewer.press("a.brand")
        viewer.press(".computations li:has(.state.finished) a")
        viewer.reads("finished", ".about .state")
        assert not viewer.complaints()
        viewer.leave()


def answers(address: str) -> bool:
    """Say whether a server is there."""
    host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True
