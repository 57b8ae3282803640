"""Ctrl-C in the user's process, at any moment: it changes no setting, loses no engine and keeps no data."""

from __future__ import annotations

import copy
import gc
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback

import dask_mars
from dask_mars import Runtime
from dask_mars.optimize.prepare import prepare
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.timeout(300)

#: More interrupts than these have to come, or nothing is shown.
FEWEST = 5


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any], float, float], int]]:
    """Yield what calls a function again and again, with an interrupt at a random moment of each call."""
    before = signal.getsignal(signal.SIGALRM)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def call(function: Callable[[], Any], longest_s: float, seconds: float) -> int:
        choose = random.Random(0)
        count = 0
        begun = time.monotonic()
        # On a busy machine it takes longer until some have come.
        while (passed := time.monotonic() - begun) < seconds or (count <= FEWEST and passed < PATIENCE_S):
            try:
                # NumPy may be interrupted while it has changed how it treats errors.
                with np.errstate():
                    signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-6, longest_s))
                    # Dask may be interrupted while it has set a variable of the context.
                    copy_context().run(function)
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                count += 1
        return count

    signal.signal(signal.SIGALRM, interrupt)
    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Keep the collector away: in its callbacks, such as hypothesis has, an interrupt is swallowed."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_an_engine_is_not_lost_while_it_is_asked_whether_it_lives(runtime: Runtime, interrupted: Any) -> None:
    """CPython 3.11 and 3.12 take a thread for ended whose `is_alive` was interrupted."""
    engine = runtime.engine()
    pids = engine.worker_pids()

    def ask() -> None:
        for _ in range(100):
            assert engine.alive

    assert interrupted(ask, 3e-4, 0.7) > FEWEST
    assert runtime.engine() is engine
    assert engine.worker_pids() == pids
    assert dask.delayed(sum)([1, 2]).compute(scheduler=runtime.get) == 3


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(("annotated", "symbolic"), [(False, True), (True, False)])
def test_preparing_a_graph_leaves_no_setting_changed(annotated: bool, symbolic: bool, interrupted: Any) -> None:
    with dask.annotate(**({"retries": 3} if annotated else {})):
        x = da.ones((40, 40), chunks=10) + 1
    y = (x * 2).sum()
    expression = dask.base.collections_to_expr([y], optimize_graph=True).optimize()
    keys = [key for keys in expression.__dask_keys__() for key in ([keys] if isinstance(keys, str) else keys)]
    if not symbolic:
        # As with callbacks: Dask makes its tasks.
        expression = expression.operands[0]
    settings = copy.deepcopy(dask.config.config)
    assert interrupted(lambda: prepare(expression, keys), 5e-3, 0.7) > FEWEST
    time.sleep(0.1)
    assert dask.config.config == settings


@pytest.mark.slow
@pytest.mark.usefixtures("no_collector")
def test_computations_in_all_ways_leave_nothing(runtime: Runtime, interrupted: Any) -> None:
    with dask.annotate(priority=1):
        x = da.random.default_rng(0).random((400, 400), chunks=100)
    ways = [
        lambda: (x + 1).sum().compute(scheduler=runtime.get),
        lambda: (x @ x).persist(scheduler=runtime.get),
        lambda: dask.delayed(lambda: np.ones(50_000))().compute(scheduler=runtime.get),
        lambda: (x + 1).sum().compute(scheduler=dask_mars.get),
    ]
    settings = copy.deepcopy(dask.config.config)
    engine = runtime.engine()
    for way in ways:
        assert interrupted(way, 2e-2, 1) > FEWEST
    with Callback(pretask=lambda *_: None):
        assert interrupted(ways[0], 2e-2, 1) > FEWEST
    assert dask.config.config == settings
    assert runtime.engine() is engine
