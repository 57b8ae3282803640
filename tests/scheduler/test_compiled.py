"""The state machine that mypyc has compiled decides as the interpreted one does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import dask
import pytest

from dask_mars import Runtime
from tests.scheduler.decisions import fields

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what the tests need, in which the state machine is compiled."""
    pytest.importorskip("mypyc")
    pytest.importorskip("setuptools")
    if shutil.which("cc") is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("there is no C compiler, or no lock")
    copy = tmp_path_factory.mktemp("compiled")
    for name in ("benchmarks", "dask_mars", "docs", "studies", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    subprocess.run(
        [sys.executable, ROOT / "compile_scheduler.py", copy], check=True, capture_output=True, timeout=200
    )
    found = in_copy(copy, "-c", "import dask_mars.scheduler.dispatch as module; print(module.__file__)").strip()
    assert Path(found).parent == copy / "dask_mars" / "scheduler"
    assert found.endswith(".so")
    return copy


def in_copy(copy: Path, *arguments: str) -> str:
    """Run Python in a copy; return what it prints."""
    done = subprocess.run([sys.executable, *arguments], cwd=copy, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_passes_the_tests_of_the_interpreted_one(compiled: Path) -> None:
    options = ("-q", "-m", "not slow", "-p", "no:cacheprovider", f"--basetemp={compiled / 'temporary'}")
    assert " passed" in in_copy(compiled, "-m", "pytest", *options, "tests/scheduler")


@pytest.mark.slow
def test_it_gives_the_same_instructions(compiled: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        dask.config.set({"dask-mars.scheduler-log": str(log)}),
        Runtime(num_workers=2, memory_limit="200 MiB") as runtime,
    ):
        for collections in fields():
            dask.compute(*collections, scheduler=runtime.get)
    assert "the same instructions" in in_copy(compiled, "-m", "dask_mars.scheduler.replay", str(log))
