"""The C code of the store under tools that find what tests do not see."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "dask_mars" / "store"
#: Sources of each program, and how many rounds it has.
PROGRAMS = {
    "heap": ([ROOT / "tests" / "heap_stress.c", STORE / "_heap.c"], "300"),
    "quota": ([ROOT / "tests" / "quota_stress.c", STORE / "_quota.c", STORE / "_heap.c"], "100"),
}
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def compiled(directory: Path, program: str, *flags: str) -> Path:
    """Build a stress program, or skip the test."""
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    if compiler is None:
        pytest.skip("no C compiler")
    built = directory / program
    options = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-pthread", *flags]
    done = subprocess.run([compiler, *options, *PROGRAMS[program][0], "-o", built], capture_output=True, text=True)
    if done.returncode and flags:
        pytest.skip(f"no such sanitizer: {done.stderr[-200:]}")
    assert (done.returncode, done.stderr) == (0, "")
    return built


@pytest.mark.parametrize(
    "flags",
    [pytest.param(SANITIZERS["thread"], marks=pytest.mark.nightly, id="thread")]
    + [pytest.param(SANITIZERS["address"], marks=pytest.mark.slow, id="address")],
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_stress_under_a_sanitizer(tmp_path, program, flags):
    command = [compiled(tmp_path, program, *flags), PROGRAMS[program][1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer does not know this kernel's address space")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
@pytest.mark.parametrize("tool", ["memcheck", "helgrind"])
def test_stress_under_valgrind(tmp_path, tool):
    options = ["-q", f"--tool={tool}", "--error-exitcode=3"]
    done = subprocess.run(["valgrind", *options, compiled(tmp_path, "heap"), "60"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
