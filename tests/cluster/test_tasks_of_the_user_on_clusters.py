"""Tasks that a cluster leaves to the user's process: several at a time there, as under Dask's threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import dask
import pytest

from tests.conftest import busy_client_threads
from tests.tasks import PATIENCE_S, Session, meet_in

pytestmark = pytest.mark.timeout(120)

Get = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    yield
    assert not busy_client_threads()


def compute(get: Get, *values: Any, num_workers: int = 2) -> Any:
    return dask.compute(*values, scheduler=get, num_workers=num_workers)


def test_tasks_with_what_another_has_made(get: Get) -> None:
    session = dask.delayed(Session)()
    values = [dask.delayed(meet_in)(session, number) for number in range(6)]
    assert compute(get, dask.delayed(sum)(values), *values) == (15, *range(6))


def test_tasks_of_ours_with_what_one_of_theirs_has_made(get: Get) -> None:
    own, session = threading.Lock(), dask.delayed(Session)()

    def work(session: Any, number: int) -> int:
        with own:
            number += 1
        return meet_in(session, number)

    values = [dask.delayed(work)(session, number) for number in range(4)]
    assert compute(get, *values) == (1, 2, 3, 4)


def test_one_at_a_time_if_there_is_to_be_one_worker(get: Get) -> None:
    lock, inside = threading.Lock(), []

    def work(number: int) -> int:
        assert lock.acquire(blocking=False)
        inside.append(number)
        threading.Event().wait(0.01)
        lock.release()
        return number

    values = [dask.delayed(work)(number) for number in range(6)]
    assert compute(get, *values, num_workers=1) == tuple(range(6))


def test_an_error_ends_the_wait_for_others(get: Get) -> None:
    let_go, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        let_go.wait(PATIENCE_S)

    def fail() -> None:
        begun.wait(PATIENCE_S)
        raise LookupError("no")

    with pytest.raises(LookupError):
        compute(get, dask.delayed(hold)(), dask.delayed(fail)())
    assert begun.is_set()
    let_go.set()
    for thread in busy_client_threads():
        thread.join(PATIENCE_S)
