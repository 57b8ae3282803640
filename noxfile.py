"""Sessions over the versions that are supported: `nox` runs all, `nox -s tests-3.13 -- tests/store` a part of one.

Arguments after `--` go to pytest. Without any, all tests run that are not `slow`. Pythons that are not installed
are left out; `tests/newest_python.sh` runs the tests on one of Debian's.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]
#: A NumPy release needs a Python of its own years: these two have wheels of the oldest and of the newest one.
OLDEST, NEWEST = "3.11", "3.14"
PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "tests", "oldest", "newest", "wheel"]


def floor(package: str) -> str:
    """Return the oldest version of a package that is declared, as a pin."""
    (declared,) = [line for line in PROJECT["dependencies"] if re.match(rf"{package}\b", line)]
    return declared.replace(">=", "==")


def run_tests(session: nox.Session) -> None:
    """Run pytest with what was given, or with all that is quick."""
    session.run("python", "-c", "import sys, dask, numpy; print(sys.version, dask.__version__, numpy.__version__)")
    session.run("python", "-m", "pytest", "-q", *(session.posargs or ["-n", "2", "--dist", "loadfile"]))


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests on a Python."""
    session.install("--quiet", "--editable", ".[test]")
    run_tests(session)


@nox.session(python=OLDEST)
@nox.parametrize("package", ["dask", "numpy"])
def oldest(session: nox.Session, package: str) -> None:
    """Run the tests with the oldest Dask, or the oldest NumPy, that is declared, and what goes with it."""
    session.install("--quiet", "--editable", ".[test]", floor(package))
    run_tests(session)


@nox.session(python=NEWEST)
@nox.parametrize("package", ["dask", "numpy"])
def newest(session: nox.Session, package: str) -> None:
    """Run the tests with the newest Dask or NumPy that there is, pre-releases among them."""
    session.install("--quiet", "--editable", ".[test]")
    session.install("--quiet", "--pre", "--upgrade", package, *(["distributed"] if package == "dask" else []))
    run_tests(session)


@nox.session(python=PYTHONS)
def wheel(session: nox.Session) -> None:
    """Build a wheel from the source distribution, and run the README's lines with it in a fresh environment."""
    directory = Path(session.create_tmp()).resolve()
    session.install("--quiet", "build")
    session.run("python", "-m", "build", "--outdir", str(directory / "dist"), ".", silent=True)
    (built,) = (directory / "dist").glob("*.whl")
    session.run("python", "-m", "venv", "--clear", str(directory / "fresh"))
    python = str(directory / "fresh" / "bin" / "python")
    session.run(python, "-m", "pip", "install", "--quiet", f"{built}[visualize]", "sybil>=9", external=True)
    runner = Path("tests/documentation/run_blocks.py").resolve()
    with session.chdir(directory):
        session.run(python, str(runner), str(runner.parents[2] / "README.md"), external=True)


@nox.session(python=OLDEST)
def lint(session: nox.Session) -> None:
    """Check style, types and who imports whom."""
    session.install("--quiet", "--editable", ".[test]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")
