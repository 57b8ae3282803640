"""Pages of the gallery: each a notebook, kept as a Python script, with what it has printed and drawn.

`python docs/hooks/gallery.py build/gallery` executes all of them, or those that are named.
The site shows outputs of those that have been executed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "docs" / "gallery").glob("*.py"))
EXECUTED = ROOT / "build" / "gallery"

NOT_EXECUTED = "\n\n*Built without running the notebook: its outputs are not shown. `make docs` runs it.*\n\n"


def execute(script: Path, directory: Path, timeout_s: float = 300) -> NotebookNode:
    """Execute a notebook in a fresh kernel, write it to a directory with its outputs, and return it."""
    import jupytext
    import nbclient
    import nbformat

    notebook = jupytext.read(script)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    directory.mkdir(parents=True, exist_ok=True)
    nbclient.NotebookClient(
        notebook, timeout=timeout_s, resources={"metadata": {"path": str(directory)}}
    ).execute()
    nbformat.write(notebook, directory / f"{script.stem}.ipynb")
    return notebook


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook, and its pictures."""
    import jupytext
    import nbformat
    from mkdocs.structure.files import File
    from nbconvert import MarkdownExporter

    exporter = MarkdownExporter()
    for script in SCRIPTS:
        executed = EXECUTED / f"{script.stem}.ipynb"
        if executed.exists() and executed.stat().st_mtime >= script.stat().st_mtime:
            notebook = nbformat.read(executed, as_version=4)
        else:
            notebook = jupytext.read(script)
            title, _, rest = notebook.cells[0].source.partition("\n")
            notebook.cells[0].source = title + NOT_EXECUTED + rest
        markdown, resources = exporter.from_notebook_node(
            notebook, {"output_files_dir": f"{script.stem}_files", "unique_key": script.stem}
        )
        files.append(File.generated(config, f"gallery/{script.stem}.md", content=markdown))
        for name, content in resources.get("outputs", {}).items():
            files.append(File.generated(config, f"gallery/{name}", content=content))
    return files


if __name__ == "__main__":
    into, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    for script in SCRIPTS:
        if not names or script.stem in names:
            execute(script, into)
            print(script.stem)
