"""What a service remembers, without any processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from dask_mars.web.service.store import DirectoryInUse, ServiceStore
from tests.web.services import add


def finish(store: ServiceStore, number: int, size_bytes: int) -> None:
    store.result(number).write_bytes(b"r" * size_bytes)
    assert store.end(number, "finished", size_bytes, result="{}")


def test_a_directory_is_for_one_service_and_nobody_else(store: ServiceStore, tmp_path: Path) -> None:
    assert store.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o77 for path in store.directory.iterdir() if path.is_dir()} == {0}
    with pytest.raises(DirectoryInUse, match="another --directory"):
        ServiceStore(store.directory)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PermissionError):
        ServiceStore(tmp_path / "open")


def test_what_was_added_is_there_once_and_what_is_over_stays_so(store: ServiceStore) -> None:
    number = add(store, "a")
    assert add(store, "a") == number
    row = store.row("a")
    assert (row["state"], row["digest"], row["attempt"]) == ("queued", "d", 1)
    assert store.graph(number).read_bytes() == b"graph"
    finish(store, number, 1)
    assert not store.update(number, state="running")
    assert not store.end(number, "cancelled")
    assert not store.graph(number).exists()
    assert store.unfinished() == []


def test_the_list_goes_on_where_it_ended(store: ServiceStore) -> None:
    numbers = [add(store) for _ in range(5)]
    finish(store, numbers[1], 1)
    assert [row["number"] for row in store.listed(None, None, 2)] == [numbers[4], numbers[3]]
    assert [row["number"] for row in store.listed(None, numbers[3], 10)] == numbers[2::-1]
    assert [row["number"] for row in store.listed("finished", None, 10)] == [numbers[1]]
    assert store.counts() == {"queued": 4, "finished": 1}
    # By an index, and not by looking at all.
    plan = store._database.execute("EXPLAIN QUERY PLAN SELECT state, count(*) FROM computations GROUP BY state")
    assert "COVERING INDEX by_state" in plan.fetchone()[3]


def test_the_next_service_goes_on(store: ServiceStore) -> None:
    number = add(store)
    before = store.revision
    store.update(number, state="running")
    last = store.numbered(number)["revision"]
    assert last == store.revision > before
    # Files without a row go.
    store.incoming("half").write_bytes(b"")
    store.graph(99).write_bytes(b"")
    store.close()
    with contextlib.closing(ServiceStore(store.directory)) as again:
        assert again.revision >= last
        assert os.listdir(store.directory / "incoming") == []
        assert os.listdir(store.directory / "graphs") == [str(number)]
        again._database.execute("PRAGMA user_version=1")
    with pytest.raises(RuntimeError, match="another version of dask_mars"):
        ServiceStore(store.directory)


def test_the_oldest_results_go_first_and_the_newest_stays(store: ServiceStore) -> None:
    numbers = [add(store) for _ in range(3)]
    for number in numbers:
        finish(store, number, 100)
    store.tidy(None, 250)
    assert [store.numbered(number)["evicted"] for number in numbers] == [1, 0, 0]
    assert [store.result(number).exists() for number in numbers] == [False, True, True]
    store.tidy(None, 10)
    assert [store.numbered(number)["evicted"] for number in numbers] == [1, 1, 0]


def test_what_is_old_is_forgotten(store: ServiceStore) -> None:
    over, waiting = add(store, "over"), add(store, "waiting")
    finish(store, over, 1)
    store.tidy(3600, None)
    assert store.numbered(over) is not None
    store.tidy(-1, None)
    assert store.numbered(over) is None
    assert not store.result(over).exists()
    assert store.numbered(waiting) is not None
