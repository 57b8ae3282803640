"""Command lines in the documentation, and in its examples, have options that exist."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

for package in ("distributed", "tornado"):
    pytest.importorskip(package)

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {"dask-mars-web": "dask_mars.web.service.cli:main", "dask-mars-worker": "dask_mars.cluster.cli:main"}


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_commands_exist(name: str) -> None:
    parameters = pkgutil.resolve_name(COMMANDS[name]).params
    known = {option for parameter in parameters for option in parameter.opts + parameter.secondary_opts}
    shown = set[str]()
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "examples").iterdir(), ROOT / "README.md"]
    for page in pages:
        # In a Containerfile the words of a command are quoted.
        for rest in re.findall(rf'{name}"?,?( [^`\n]+)', page.read_text(encoding="utf-8")):
            shown.update(re.findall(r"(?<=[ \"])--[a-z-]+", rest))
    assert shown
    assert shown <= {*known, "--help", "--version"}
