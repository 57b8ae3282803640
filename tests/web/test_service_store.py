"""What a service remembers, without any processes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dask_mars.web.service.store import DirectoryInUse, ServiceStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ServiceStore]:
    store = ServiceStore(tmp_path / "d")
    yield store
    store.close()


def add(store: ServiceStore, id: str | None = None, digest: str = "d") -> int:
    path = store.incoming(uuid.uuid4().hex)
    path.write_bytes(b"graph")
    row, _ = store.add(id or str(uuid.uuid4()), digest, "name", {}, path)
    return row["number"]


def finish(store: ServiceStore, number: int, size_bytes: int) -> None:
    store.result(number).write_bytes(b"r" * size_bytes)
    assert store.end(number, "finished", size_bytes, result="{}")


def test_nobody_else_may_enter(store: ServiceStore) -> None:
    assert store.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o77 for path in store.directory.iterdir() if path.is_dir()} == {0}


def test_a_directory_is_for_one_service(store: ServiceStore) -> None:
    with pytest.raises(DirectoryInUse, match="another --directory"):
        ServiceStore(store.directory)


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PermissionError):
        ServiceStore(tmp_path / "open")


def test_what_was_added_is_there_once(store: ServiceStore) -> None:
    number = add(store, "a")
    assert add(store, "a") == number
    row = store.row("a")
    assert (row["state"], row["digest"], row["attempt"]) == ("queued", "d", 1)
    assert store.graph(number).read_bytes() == b"graph"


def test_what_is_over_stays_so(store: ServiceStore) -> None:
    number = add(store)
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


def test_each_change_has_a_revision_of_its_own(store: ServiceStore) -> None:
    number = add(store)
    before = store.revision
    store.update(number, state="running")
    assert store.numbered(number)["revision"] == store.revision > before
    last = store.revision
    store.close()
    again = ServiceStore(store.directory)
    try:
        assert again.revision >= last
    finally:
        # Closed a second time by the fixture otherwise.
        store.__dict__.update(again.__dict__)


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


def test_files_without_a_row_go_with_the_next_service(store: ServiceStore) -> None:
    number = add(store)
    store.incoming("half").write_bytes(b"")
    store.graph(99).write_bytes(b"")
    store.close()
    again = ServiceStore(store.directory)
    try:
        assert os.listdir(store.directory / "incoming") == []
        assert os.listdir(store.directory / "graphs") == [str(number)]
    finally:
        store.__dict__.update(again.__dict__)


def test_records_of_another_layout_are_left_alone(store: ServiceStore) -> None:
    store._database.execute("PRAGMA user_version=1")
    store.close()
    with pytest.raises(RuntimeError, match="another version of dask_mars"):
        ServiceStore(store.directory)


def test_ten_thousand_are_no_burden(store: ServiceStore) -> None:
    with store._transaction() as database:
        database.executemany(
            "INSERT INTO computations (id, digest, name, options, state, created) VALUES (?, '', '', '{}', ?, 0)",
            [(str(number), "queued" if number % 2 else "finished") for number in range(10_000)],
        )
    assert store.counts() == {"queued": 5_000, "finished": 5_000}
    seen, before = 0, None
    while rows := store.listed("finished", before, 1_000):
        seen, before = seen + len(rows), rows[-1]["number"]
    assert seen == 5_000
    # By an index, and not by looking at all.
    plan = store._database.execute("EXPLAIN QUERY PLAN SELECT state, count(*) FROM computations GROUP BY state")
    assert "COVERING INDEX by_state" in plan.fetchone()[3]
