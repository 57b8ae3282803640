from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dask_mars.web import snapshots
from dask_mars.web.snapshots import Snapshots


class Slow:
    """A monitor that takes its time from the second answer on, until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0

    def state(self) -> dict[str, Any]:
        self.asked += 1
        asked = self.asked
        if asked > 1:
            assert self.go.wait(100)
        return {"asked": asked}


@pytest.fixture(autouse=True)
def good_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_SHORTEST_S", 0.0)
    monkeypatch.setattr(snapshots, "_COSTS", 0.0)


def asked(monitor: Slow, ask: Any) -> Any:
    async def main() -> Any:
        with ThreadPoolExecutor(2) as executor:
            try:
                return await ask(Snapshots(monitor, executor))  # type: ignore[arg-type]
            finally:
                monitor.go.set()

    return asyncio.run(main())


def test_whoever_would_wait_long_gets_the_answer_of_before():
    monitor = Slow()

    async def ask(found: Snapshots) -> list[Any]:
        answers = [await found.ask("state") for _ in range(3)]
        monitor.go.set()
        # The one that is on its way, once it is there.
        while (last := await found.ask("state"))["asked"] == 1:
            await asyncio.sleep(0.01)
        return [*answers, last["asked"] > 1]

    assert asked(monitor, ask) == [{"asked": 1}] * 3 + [True]


@pytest.mark.parametrize("is_changed", [False, True])
def test_what_is_old_or_of_before_a_change_is_not_the_answer(is_changed: bool, monkeypatch: pytest.MonkeyPatch):
    if not is_changed:
        monkeypatch.setattr(snapshots, "_OLDEST_S", 0.0)
    monitor = Slow()

    async def ask(found: Snapshots) -> Any:
        await found.ask("state")
        if is_changed:
            found.forget()
        asyncio.get_running_loop().call_later(0.1, monitor.go.set)
        return await found.ask("state")

    assert asked(monitor, ask) == {"asked": 2}
