"""What the documentation says of packages is what import-linter checks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = PYPROJECT["tool"]["importlinter"]["contracts"]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_layers_are_documented_as_they_are_checked():
    layers = next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")
    assert "\n".join(layers).replace("dask_mars.", "") in ARCHITECTURE


def test_the_table_has_every_package_and_no_other_and_each_says_what_it_knows():
    packages = list((ROOT / "dask_mars").glob("*/__init__.py"))
    assert set(re.findall(r"\n\| `(\w+)/` \|", ARCHITECTURE)) == {package.parent.name for package in packages}
    for package in packages:
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


RECIPE = (ROOT / "recipe" / "meta.yaml").read_text()


def required_by_the_recipe(section: str) -> set[str]:
    """Return what a section of the recipe requires, as pyproject.toml writes it, Python and pip left out."""
    (listed,) = re.findall(rf"^  {section}:\n((?:    - .*\n)+)", RECIPE, re.MULTILINE)
    lines = [line.removeprefix("    - ").replace(" ", "") for line in listed.splitlines()]
    lines = [re.sub(r"#\[py<3(\d+)\]", r"; python_version < '3.\1'", line) for line in lines]
    # Dask's own packages are named otherwise there, and its arrays need NumPy, which is required anyway.
    return {line.replace("dask-core", "dask[array]") for line in lines} - {"python", "pip"}


def test_the_conda_recipe_requires_what_the_wheel_does():
    project = PYPROJECT["project"]
    assert required_by_the_recipe("run") == set(project["dependencies"])
    # Elsewhere mypy is required on request: it compiles the state machine.
    (mypy,) = re.findall(r'setup_requires=\["(.*?)"\]', (ROOT / "setup.py").read_text())
    assert required_by_the_recipe("host") == {*PYPROJECT["build-system"]["requires"], mypy}
    scripts = {f"{name} = {function}" for name, function in project["scripts"].items()}
    assert set(re.findall(r"^    - (dask-mars\S* = \S+)$", RECIPE, re.MULTILINE)) == scripts
    version = (ROOT / "dask_mars" / "version.py").read_text()
    (stated,) = re.findall(r'set version = "(\S+)"', RECIPE)
    assert f'"{stated}"' in version
