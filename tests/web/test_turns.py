"""Threads take shorter turns while somebody looks, and those of before afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("tornado")

from dask_mars.engine.listeners import listeners
from dask_mars.web import recorder
from dask_mars.web.turns import Turns
from tests.web.conftest import Asker


@pytest.fixture(autouse=True)
def before_s() -> Iterator[float]:
    found_s = sys.getswitchinterval()
    # Others may have looked and not said that they have stopped.
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(found_s)


def test_the_last_who_looks_restores_them(before_s):
    turns, first, second = Turns(), object(), object()
    turns.begin(first)
    turns.begin(second)
    turns.begin(second)
    turns.end(first)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    turns.end(second)
    turns.end(second)
    assert sys.getswitchinterval() == before_s


@pytest.mark.parametrize("own_s", [0.0005, 0.02])
def test_what_the_user_sets_is_left(own_s):
    turns = Turns()
    turns.begin(turns)
    sys.setswitchinterval(own_s)
    turns.end(turns)
    assert sys.getswitchinterval() == pytest.approx(own_s)
    turns.begin(turns)
    assert sys.getswitchinterval() == pytest.approx(min(own_s, 0.001))
    turns.end(turns)
    assert sys.getswitchinterval() == pytest.approx(own_s)


def test_a_served_runtime_takes_them_while_it_is_looked_at(runtime, before_s, monkeypatch):
    monkeypatch.setattr(recorder, "turns", Turns())
    listening = listeners.active
    with runtime.serve() as server:
        assert sys.getswitchinterval() == before_s
        assert Asker(server.url, {"Authorization": f"Bearer {server.token}"}).api("state").status == 200
        assert sys.getswitchinterval() == pytest.approx(0.001)
    assert sys.getswitchinterval() == before_s
    assert listeners.active == listening


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_process_nobody_looks(before_s):
    turns = Turns()
    turns.begin(turns)
    with turns._lock:
        pid = os.fork()
        if pid == 0:
            turns.forget()
            os._exit(0 if sys.getswitchinterval() == before_s else 1)
    _, status = os.waitpid(pid, 0)
    turns.end(turns)
    assert status == 0
