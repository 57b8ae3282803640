"""What the documentation says of packages is what import-linter checks."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_layers_are_documented_as_they_are_checked():
    (layers,) = [contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"]
    assert "\n".join(layers).replace("dask_mars.", "") in ARCHITECTURE


def test_every_package_is_in_the_table_and_says_what_it_knows():
    for package in (ROOT / "dask_mars").glob("*/__init__.py"):
        assert f"\n| `{package.parent.name}/` |" in ARCHITECTURE
        assert len(package.read_text().partition('"""\n')[0].split("\n")) >= 4, package


def test_the_page_can_be_read_in_ten_minutes():
    assert len(ARCHITECTURE.encode()) <= 14_000
