"""A JupyterLab with jupyter-server-proxy, in a browser: what notebooks show, and the page below its address."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tornado")
pytest.importorskip("selenium", reason="without selenium no browser is steered")

from tests.conftest import eventually
from tests.observe.test_progress_in_notebooks import COMPUTE, SETUP, notebook_of
from tests.web.browser import CHROMIUM, DRIVER

MISSING = [name for name in ("jupyterlab", "jupyter_server_proxy") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    # It starts a server and a kernel, which take their time on a busy machine.
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="there is no chromium, or no chromedriver"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]

CELLS = (
    SETUP,
    COMPUTE,
    """\
import time
from pathlib import Path
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
#: Runs all cells as the menu does, once the kernel is there.
RUN = """
const done = arguments[arguments.length - 1];
(async () => {
  await jupyterapp.restored;
  const panel = jupyterapp.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  await jupyterapp.commands.execute('notebook:run-all-cells');
})().then(() => done(""), error => done(String(error)));
"""
#: What a notebook shows, each cell's output as HTML.
OUTPUTS = "[...document.querySelectorAll('.jp-CodeCell .jp-OutputArea')].map(one => one.innerHTML)"
FINISHED = "Number(document.querySelector('.progress [role=progressbar]')?.getAttribute('aria-valuenow') ?? -1)"


@contextlib.contextmanager
def jupyter(folder: Path) -> Iterator[str]:
    """Run a JupyterLab with one notebook; yield its address."""
    (folder / "notebook.ipynb").write_text(notebook_of(*CELLS), encoding="utf-8")
    kinds = ("JUPYTER_CONFIG", "JUPYTER_DATA", "JUPYTER_RUNTIME", "JUPYTERLAB_SETTINGS", "JUPYTERLAB_WORKSPACES")
    places = {f"{kind}_DIR": str(folder / "jupyter" / kind) for kind in kinds}
    places |= {"IPYTHONDIR": str(folder / "jupyter" / "ipython")}
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", "--expose-app-in-browser"]
    options += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder}", "--LabApp.news_url="]
    log = folder / "jupyter.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "jupyterlab", *options]
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **places}, stdout=out, stderr=out)
    found: list[str] = []

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        for file in Path(places["JUPYTER_RUNTIME_DIR"]).glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, OSError):
                found[:] = [json.loads(file.read_text())["url"]]
                urllib.request.urlopen(f"{found[0]}api", timeout=5).close()
                return True
        return False

    try:
        assert eventually(answers), log.read_text()
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(100)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_notebook_and_the_page_below_jupyters_address(viewer, tmp_path):
    folder = tmp_path / "jupyter"
    folder.mkdir()
    with jupyter(folder) as lab:
        # What Jupyter itself says in the console is nothing of ours.
        viewer.expected = [""]
        viewer.open(f"{lab}lab/tree/notebook.ipynb?reset")
        viewer.wait(lambda: viewer.value("Boolean(window.jupyterapp)") and viewer.all(".jp-CodeCell"), 60)
        assert viewer.driver.execute_async_script(RUN) == ""
        viewer.wait((folder / "ready").exists, 60)
        viewer.wait(lambda: all(viewer.value(OUTPUTS)[1:5]))
        _, progress, handle, runtime, explained, _ = viewer.value(OUTPUTS)
        for shown, words in (
            (progress, ("finished: ", "400/400")),
            (handle, ("sum of a notebook", "<table")),
            (runtime, ("Runtime", "sum of a notebook")),
            (explained, ("<li>", "('slow', ")),
        ):
            for part in words:
                assert part in shown
        assert "running" not in progress
        viewer.leave()
        viewer.complaints()

        viewer.expected = []
        port, _, query = (folder / "link").read_text().rpartition(":")[2].partition("/")
        page = f"{lab}proxy/{port}/"
        viewer.open(page + query)
        viewer.press(".computations li:has(.state.running) a")
        assert viewer.value("location.href.split('#')[0]") == page
        viewer.wait(lambda: viewer.value(FINISHED) == 0)
        (folder / "let-0").touch()
        viewer.wait(lambda: viewer.value(FINISHED) == 1)
        viewer.press("#cancel")
        viewer.press("dialog .danger")
        viewer.reads("cancelled", ".about .state")
        viewer.press("a.brand")
        viewer.press(".computations li:has(.state.finished) a")
        viewer.reads("finished", ".about .state")
        assert not viewer.complaints()
        viewer.leave()
