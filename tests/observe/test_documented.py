"""The examples of docs/diagnostics.md run, one after the other, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnostics.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_examples_run(scripts, tmp_path: Path):
    # What is shown with a prompt is no example of its own, and what needs gigabytes is made smaller.
    runnable = [example for example in EXAMPLES if not example.startswith(">>>")]
    text = "\n".join(runnable).replace("(40_000, 6_000)", "(4_000, 6_000)")
    (tmp_path / "examples.py").write_text(text)
    done = scripts.run(str(tmp_path / "examples.py"), timeout_s=100)
    assert done.returncode == 0, done.stderr
    assert "peak about" in done.stdout
    for name in ("report.html", "trace.json", "layers.svg"):
        file = scripts.directory / name
        assert file.stat().st_size > 1000
        file.unlink()
