"""A test that fails leaves nothing to the next one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Three tests that leave something behind, each with one after it that a runtime with left-overs would fail.
TESTS = """
import os

import dask
import dask.array as da
import numpy as np
import pytest
from tests import conftest
from tests.conftest import eventually
from tests.tasks import wait_for

conftest.GRACE_S = 0.5
kept = []


def check(runtime):
    assert da.ones((8, 8), chunks=2).sum().compute(scheduler=runtime.get) == 64


def test_leaves_what_is_persisted(runtime):
    kept.append(runtime.persist([da.ones(100_000, chunks=50_000)]))


def test_after_what_is_persisted(runtime):
    check(runtime)


def test_leaves_a_task_that_runs(runtime, tmp_path):
    computation = runtime.submit(dask.delayed(wait_for)(tmp_path / "never"))
    assert eventually(lambda: computation.progress.running, 20)
    pytest.fail("and so it is never cancelled")


def test_after_a_task_that_runs(runtime):
    check(runtime)


def test_leaves_settings(runtime, tmp_path):
    os.chdir(tmp_path)
    dask.config.set({"dask-mars.retries": 7})
    np.seterr(divide="raise")


def test_after_settings(runtime):
    assert dask.config.get("dask-mars.retries") == 0
    check(runtime)
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_what_a_failed_test_leaves_is_gone_before_the_next(tmp_path: Path):
    file = tmp_path / "test_leaving.py"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-c", "pyproject.toml", "-p", "tests.conftest"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "temporary"), str(file)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) .*::test_(\w+)", done.stdout, re.MULTILINE)
    left = ["what_is_persisted", "a_task_that_runs", "settings"]
    assert {name for outcome, name in outcomes if outcome == "ERROR"} == {f"leaves_{what}" for what in left}
    assert [name for outcome, name in outcomes if outcome == "FAILED"] == ["leaves_a_task_that_runs"]
    passed = {name for outcome, name in outcomes if outcome == "PASSED"}
    assert passed >= {f"after_{what}" for what in left}, done.stdout + done.stderr
