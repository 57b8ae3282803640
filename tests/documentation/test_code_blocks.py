"""Every Python block of the README and of the documentation runs, page by page, each in a fresh process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

for package in ("distributed", "pandas", "sybil", "xarray", "zarr"):
    pytest.importorskip(package)

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("run_blocks.py")
#: Pages that are not left to the night.
OFTEN = ("README.md", "docs/diagnostics.md")
#: On a busy machine: they take 3 to 12 s of the processor.
TIMEOUT_S = 300.0


def pages() -> list[str]:
    """Return the pages that have Python blocks. Decisions have none: what they quote is what was."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found if "```python\n" in path.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize(
    "page", [page if page in OFTEN else pytest.param(page, marks=pytest.mark.nightly) for page in pages()]
)
def test_the_blocks_of_a_page_run(page: str, scripts: Any) -> None:
    settings = {"DASK_DASK_MARS__NUM_WORKERS": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = scripts.run(str(RUNNER), str(ROOT / page), env=settings, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert not scripts.left()


def test_all_blocks_are_run_or_say_why_not() -> None:
    from tests.documentation.run_blocks import blocks_of

    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        reasons = re.findall(r'<!-- skip: next "([^"]{10,})" -->', text)
        assert text.count("<!-- skip") == len(reasons), page
        # Each block is known to who runs them, those that are indented in tabs as well.
        assert blocks_of(ROOT / page) == len(re.findall(r"^ *```python$", text, re.MULTILINE)), page
