"""What the documentation says of packages is what import-linter checks."""

from __future__ import annotations

import re
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


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
WALKS = [
    re.findall(r"^\d+\. `(\S+)`", walk, re.MULTILINE)
    for walk in CONTRIBUTING.partition("## Three walks")[2].partition("\n## ")[0].split("\n**")[1:]
]


def test_walks_are_short_and_the_first_two_share_no_file():
    assert len(WALKS) == 3
    assert all(0 < len(walk) <= 10 for walk in WALKS)
    first_two = WALKS[0] + WALKS[1]
    assert len(set(first_two)) == len(first_two)


def test_the_files_that_contributors_are_sent_to_are_there():
    named = set(re.findall(r"`((?:dask_mars|tests)/[\w./]+\.\w+)`", CONTRIBUTING))
    assert named >= {file for walk in WALKS for file in walk}
    assert all((ROOT / name).exists() for name in named)


def test_contributors_run_the_tests_as_the_readme_says():
    (command,) = re.findall(r"^python3 -m venv .* -m pytest .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert command in CONTRIBUTING
