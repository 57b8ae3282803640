"""Python's switch interval is short while worker processes compute, and the program's own before and after."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from operator import neg

import pytest
from dask.callbacks import Callback

from dask_mars import Runtime
from dask_mars.engine.switch_interval import SwitchInterval

BEFORE_S = 0.004


@pytest.fixture(autouse=True)
def own_interval() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(BEFORE_S)
    yield
    sys.setswitchinterval(interval_s)


def is_own() -> bool:
    return sys.getswitchinterval() == pytest.approx(BEFORE_S)


def test_it_is_short_while_one_engine_needs_it() -> None:
    first, second = SwitchInterval(), SwitchInterval()
    first.shorten(True)
    assert sys.getswitchinterval() < BEFORE_S / 10
    second.shorten(True)
    first.shorten(False)
    assert not is_own()
    first.shorten(False)
    assert not is_own()
    second.shorten(False)
    assert is_own()


@pytest.mark.parametrize("own_s", [0.00001, 0.05])
def test_one_that_the_program_has_set_meanwhile_stays(own_s: float) -> None:
    interval = SwitchInterval()
    interval.shorten(True)
    sys.setswitchinterval(own_s)
    interval.shorten(False)
    assert sys.getswitchinterval() == pytest.approx(own_s)


def test_a_shorter_one_stays() -> None:
    sys.setswitchinterval(0.00005)
    interval = SwitchInterval()
    interval.shorten(True)
    assert sys.getswitchinterval() == pytest.approx(0.00005)
    interval.shorten(False)
    assert sys.getswitchinterval() == pytest.approx(0.00005)


def test_a_forked_process_has_the_programs_own() -> None:
    interval = SwitchInterval()
    interval.shorten(True)
    child = os.fork()
    if not child:
        os._exit(0 if is_own() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    interval.shorten(False)


def test_it_is_short_during_a_computation_by_processes() -> None:
    seen = []
    with Runtime(num_workers=1) as runtime:
        runtime.start()
        with Callback(posttask=lambda *_: seen.append(sys.getswitchinterval())):
            assert runtime.get({"x": (neg, 3), "y": (neg, "x")}, ["y"]) == (3,)
        assert min(seen) < BEFORE_S / 10
        # The engine learns a moment later that the results have been taken.
        limit_s = time.monotonic() + 10
        while not is_own() and time.monotonic() < limit_s:
            time.sleep(0.01)
        assert is_own()
