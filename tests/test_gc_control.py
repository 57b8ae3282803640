"""The garbage collector is held back while large graphs are prepared and computed, and never for longer."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from dask_mars import gc_control

THRESHOLD = (700, 10, 10)


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLD)
    yield
    gc.set_threshold(*before)


def newest() -> int:
    return gc.get_threshold()[0]


def test_it_runs_less_often_for_large_graphs_alone():
    with gc_control.collect_less_often(10_000):
        assert gc.get_threshold() == THRESHOLD
    with gc_control.collect_less_often(100_000):
        assert gc.get_threshold() == (5_000, 10, 10)
    with gc_control.collect_less_often(100_000_000):
        assert gc.get_threshold() == (50_000, 10, 10)
    assert gc.get_threshold() == THRESHOLD


def test_the_last_of_several_computations_restores_it():
    first, second = gc_control.collect_less_often(100_000), gc_control.collect_less_often(200_000)
    first.__enter__()
    second.__enter__()
    assert newest() == 10_000
    first.__exit__(None, None, None)
    assert newest() == 10_000
    second.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLD


def test_what_the_user_sets_is_left():
    with gc_control.collect_less_often(100_000):
        gc.set_threshold(900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)
    with gc_control.collect_less_often(100_000):
        gc.set_threshold(800, 5, 5)
        with gc_control.collect_less_often(200_000):
            assert newest() == 10_000
    assert gc.get_threshold() == (800, 5, 5)
    for own in (0, 60_000):
        gc.set_threshold(own)
        with gc_control.collect_less_often(1_000_000):
            assert newest() == own
        assert newest() == own


def test_it_is_held_back_while_a_graph_is_computed(get):
    # A lock keeps the task in this process.
    lock = threading.Lock()
    graph = {("n", number): (int,) for number in range(20_000)}
    graph["seen"] = (lambda lock: gc.get_threshold(), lock)
    values = get(graph, list(graph))
    assert values[-1] == (1_000, 10, 10)
    assert gc.get_threshold() == THRESHOLD


def test_it_is_restored_after_a_failure():
    with pytest.raises(ValueError, match="bad"), gc_control.collect_less_often(100_000):
        raise ValueError("bad")
    assert gc.get_threshold() == THRESHOLD


def test_it_runs_rarely_while_a_graph_is_prepared():
    with gc_control.collect_rarely():
        assert gc.get_threshold() == (1_000_000, 10, 10)
        assert gc.isenabled()
        with gc_control.collect_rarely():
            pass
        assert newest() == 1_000_000
    assert gc.get_threshold() == THRESHOLD


def test_an_exit_that_an_interrupt_prevents_is_made_up_for_by_the_collector():
    cycle = [gc_control.collect_rarely()]
    cycle.append(cycle)
    cycle[0].__enter__()
    del cycle
    assert newest() == 1_000_000
    gc.collect()
    assert gc.get_threshold() == THRESHOLD


def test_it_stays_disabled_where_the_user_has_disabled_it():
    gc.disable()
    try:
        with gc_control.collect_rarely():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_computes_nothing():
    with gc_control.collect_less_often(100_000), gc_control._raised_threshold._lock:
        pid = os.fork()
        if pid == 0:
            good = gc.get_threshold() == THRESHOLD
            with gc_control.collect_less_often(100_000):
                good = good and newest() == 5_000
            os._exit(0 if good and gc.get_threshold() == THRESHOLD else 1)
        _, status = os.waitpid(pid, 0)
    assert status == 0
