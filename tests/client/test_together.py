"""Calls that wait for each other's results, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dask_mars.client.together import Key, Together
from dask_mars.engine.spare_threads import SpareThreads
from tests.conftest import busy_client_threads

PATIENCE_S = 30


@pytest.fixture
def together() -> Iterator[Together]:
    together = Together(2)
    yield together
    together.close()


def returning(value: Any) -> Callable[[], Callable[[], Any]]:
    return lambda: lambda: value


def all_of(together: Together) -> list[tuple[Key, Any]]:
    """Return keys and results in the order in which they came."""
    ended = []
    while together:
        ended += together.step(PATIENCE_S)
    return ended


def test_calls_that_need_nothing_run_together(together: Together) -> None:
    barrier = threading.Barrier(2, timeout=PATIENCE_S)
    for key in range(4):
        together.add(key, (), lambda: barrier.wait)
    assert {key for key, _ in all_of(together)} == set(range(4))


def test_no_more_run_than_there_are_threads(together: Together) -> None:
    let_go = threading.Event()
    started: list[int] = []

    def start(key: int) -> Callable[[], Any]:
        started.append(key)
        return lambda: let_go.wait(PATIENCE_S)

    for key in range(4):
        together.add(key, (), lambda key=key: start(key))
    assert together.step(0) == []
    assert started == [0, 1]
    let_go.set()
    assert len(all_of(together)) == 4
    assert started == [0, 1, 2, 3]


def test_a_call_comes_after_those_that_it_needs() -> None:
    together = Together(1)
    together.add("a", (), returning(1))
    together.add("b", (), returning(2))
    together.add("of a", ("a", "a", "never added"), returning(3))
    assert "of a" in together
    assert all_of(together) == [("a", 1), ("b", 2), ("of a", 3)]
    assert "of a" not in together
    together.close()


def test_those_that_came_first_go_first_when_they_are_ready() -> None:
    together = Together(1)
    together.add(0, (), returning(0))
    together.add(1, (0,), returning(1))
    together.add(2, (), returning(2))
    assert [key for key, _ in all_of(together)] == [0, 1, 2]
    together.close()


def test_a_call_may_turn_out_to_need_more(together: Together) -> None:
    def start() -> None:
        together.add("more", (), returning("more"))
        together.add("it", ("more",), returning("it"))

    together.add("it", (), start)
    assert all_of(together) == [("more", "more"), ("it", "it")]


@pytest.mark.parametrize("error", [LookupError("no"), SystemExit(3)])
def test_what_a_call_raises_is_raised(together: Together, error: BaseException) -> None:
    def fail() -> None:
        raise error

    together.add(0, (), lambda: fail)
    with pytest.raises(type(error)) as caught:
        together.step(PATIENCE_S)
    assert caught.value is error


def test_what_has_not_begun_never_does() -> None:
    let_go, together = threading.Event(), Together(1)
    begun: list[int] = []

    def work() -> None:
        begun.append(0)
        let_go.wait(PATIENCE_S)

    for key in range(2):
        together.add(key, (), lambda: work)
    assert together.step(0.01) == []
    together.close()
    let_go.set()
    for thread in busy_client_threads():
        thread.join(PATIENCE_S)
    assert begun == [0]


def test_threads_end_that_are_given_back_to_a_closed_engine() -> None:
    spare = SpareThreads()
    pool = spare.take(2)
    pool.submit(int).result(PATIENCE_S)
    spare.close()
    spare.give_back(2, pool)
    assert not any(thread.is_alive() for thread in pool._threads)
    assert spare._pools == []
