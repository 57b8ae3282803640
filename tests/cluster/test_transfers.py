"""What comes to a host from elsewhere: room for it in the store first, and what it sends from disk in turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dask_mars.cluster.stored_result import StoredResult
from dask_mars.cluster.transfers import BytesSemaphore, Results, Transfers
from dask_mars.engine.engine import Engine
from dask_mars.errors import EngineStopped
from dask_mars.runtimes import Runtime
from tests.conftest import eventually

MIB = 1 << 20


@pytest.fixture
def host(small: Runtime) -> Iterator[Runtime]:
    """Yield an engine whose store holds 8 MiB, and see that nothing is left in it."""
    yield small
    assert eventually(lambda: not small.engine().inspection.state()["reservations"])


def mebibyte(value: float) -> Any:
    return np.full(MIB // 8, value)


def arrivals_of(engine: Engine, data: MutableMapping[str, Any] | None = None) -> Transfers:
    transfers = Transfers({} if data is None else data)
    transfers.engine = engine
    return transfers


async def waiting_put(transfers: Transfers) -> asyncio.Future[Any]:
    """Return something that is to come, and waits for room."""
    waiting = asyncio.ensure_future(put(transfers, "second", mebibyte(1).repeat(4)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    return waiting


async def put(transfers: Transfers, key: str, value: Any) -> Any:
    """Let a result come as an agent does it."""
    values = {key: value}
    async with transfers.reserve(key, value.nbytes):
        await transfers.put(values, [key])
    return values[key]


def test_others_leave_memory_before_something_comes(host):
    engine = host.engine()
    transfers = arrivals_of(engine)
    most = 0

    async def come() -> list[Any]:
        nonlocal most
        found = []
        for number in range(20):
            found.append(await put(transfers, f"x{number}", mebibyte(number)))
            most = max(most, engine.view.store()["stored_bytes"])
        return found

    found = asyncio.run(come())
    assert all(type(value) is StoredResult for value in found)
    assert engine.spilled_bytes
    assert most <= 8 * MIB
    assert [value.value()[0] for value in found] == list(range(20))
    assert sum([value.on_disk_bytes for value in found]) >= 12 * MIB
    assert StoredResult(found).on_disk_bytes == sum([value.on_disk_bytes for value in found])


def test_what_is_larger_than_all_memory_comes_all_the_same(host):
    engine = host.engine()

    async def come() -> None:
        async with arrivals_of(engine).reserve("x", 1 << 40):
            assert not engine.view.store()["reserved_bytes"]

    asyncio.run(come())


def test_who_waits_can_be_cancelled(host):
    engine = host.engine()
    transfers = arrivals_of(engine)

    async def come() -> None:
        async with transfers.reserve("first", 6 * MIB):
            waiting = await waiting_put(transfers)
            assert [found["granted"] for found in engine.inspection.state()["reservations"]] == [True, False]
            assert "'second' is next and waits for 4.00 MiB of memory" in engine.inspection.explain()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(come())


def test_an_answer_after_the_wait_was_cancelled_is_no_error():
    answers: list[Any] = []
    engine: Any = SimpleNamespace(
        reserve=lambda name, size_bytes, answer: answers.append(answer), release_reservation=lambda _: None
    )

    async def come() -> None:
        waiting = await waiting_put(arrivals_of(engine))
        waiting.cancel()
        await asyncio.wait([waiting])
        answers[0](None)

    asyncio.run(come())


def test_the_end_of_the_engine_ends_the_wait(small):
    engine = small.engine()
    transfers = arrivals_of(engine)

    async def come() -> None:
        async with transfers.reserve("first", 6 * MIB):
            waiting = await waiting_put(transfers)
            await asyncio.to_thread(engine.close)
            # It stays as it has come.
            assert type(await waiting) is np.ndarray
        async with transfers.reserve("third", MIB):
            pass

    asyncio.run(come())
    with pytest.raises(EngineStopped):
        engine.reserve("fourth", MIB, lambda error: None)


def test_results_that_are_here_go_into_the_store_once(host):
    engine = host.engine()
    data = {"x": mebibyte(1), "y": 5}
    transfers = arrivals_of(engine, data)

    async def come() -> None:
        await asyncio.gather(*[transfers.move_to_store(key) for key in ("x", "x", "y", "z")])

    asyncio.run(come())
    assert type(data["x"]) is StoredResult
    assert data["y"] == 5
    assert engine.view.store()["stored_bytes"] < 2 * MIB
    data.clear()


def test_a_share_waits_for_others():
    taken: list[int] = []

    async def take(budget: BytesSemaphore, size: int, gate: asyncio.Event) -> None:
        async with budget.acquire(size):
            taken.append(size)
            await gate.wait()

    async def run() -> None:
        budget, gates = BytesSemaphore(100), [asyncio.Event() for _ in range(4)]
        takers = [
            asyncio.ensure_future(take(budget, size, gate))
            for size, gate in zip((60, 0, 50, 500), gates, strict=True)
        ]
        await asyncio.sleep(0.01)
        assert taken == [60, 0]
        gates[0].set()
        await asyncio.sleep(0.01)
        assert taken == [60, 0, 50]
        gates[2].set()
        await asyncio.sleep(0.01)
        # One alone may have any amount.
        assert taken == [60, 0, 50, 500]
        takers[3].cancel()
        gates[1].set()
        await asyncio.gather(*takers, return_exceptions=True)
        async with budget.acquire(100):
            pass

    asyncio.run(run())


def test_the_oldest_results_beyond_a_limit_go_into_the_store(host):
    data = Results()
    transfers = arrivals_of(host.engine(), data)
    cannot = [lambda: None, mebibyte(9), threading.Lock()]
    data.update(lock=cannot, first=mebibyte(1), small=1, second=mebibyte(2), third=mebibyte(3))
    assert data.movable_bytes >= 4 * MIB
    asyncio.run(transfers.make_room(2 * MIB))
    assert [key for key, value in data.items() if isinstance(value, StoredResult)] == ["first"]
    assert data["lock"] is cannot
    assert (data["first"].value() == mebibyte(1)).all()
    assert data.movable_bytes == 2 * MIB
    data["second"] = 2
    assert data.pop("third")[0] == 3
    assert data.movable_bytes == 0 == len(data.movable)
    data.clear()


def test_nothing_moves_without_an_engine():
    data = Results()
    transfers = Transfers(data)
    data["key"] = mebibyte(1)
    asyncio.run(transfers.make_room(0))
    assert data.movable_bytes == MIB
