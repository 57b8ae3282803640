"""The table of objects: what moving and releasing one changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_mars.engine.objects import ObjectTable
from dask_mars.protocol.messages import Moved
from dask_mars.protocol.object_ref import ARRAY, SPILLED, ObjectRef, SpilledFile

SIZE_BYTES = 80


def array_at(offset: int) -> ObjectRef:
    return (ARRAY, ((0, offset, SIZE_BYTES),), "<f8", (10,), (8,), 0, True)


FILE: ObjectRef = (SPILLED, (), SpilledFile("file", SIZE_BYTES, 0, "", (SIZE_BYTES,)), array_at(0))


class Worker:
    """Notes what it is sent."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.freed: list[tuple[int, int]] = []
        self.released: list[int] = []
        self.sent: list[Any] = []

    def free(self, graph: int, chunk: int) -> None:
        self.freed.append((graph, chunk))

    def release(self, offset: int) -> None:
        self.released.append(offset)

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Case:
    """Object (1, 0), persisted and read as (2, 3) by a graph. Worker 0 knows it, and so did one that has left."""

    def __init__(self) -> None:
        self.removed: list[ObjectRef] = []
        self.workers = {0: Worker(0), 1: Worker(1)}
        self.left = Worker(1)
        self.run = SimpleNamespace(
            id=2,
            refs=[None, None, None, array_at(0)],
            workers=[self.workers[1], self.left, self.workers[0]],
            known_by=[0, 0b001, 0, 0b110],
            values={},
            literal_blocks=[],
        )
        store: Any = SimpleNamespace(own=5)
        runs: Any = {2: self.run}
        workers: Any = self.workers
        self.table = ObjectTable(store, runs, workers, self.removed.append, large_bytes=1 << 30)
        self.table.persist((1, 0), "x", array_at(0), reference=None)  # type: ignore[arg-type]
        self.table.blocks.incref_object(array_at(0))

    def move(self, ref: ObjectRef, **besides: Any) -> None:
        self.table.move([(1, 0), (2, 3)], ref, **besides)


@pytest.fixture
def case() -> Case:
    return Case()


def test_an_object_moves_under_all_of_its_ids_and_workers_learn_it(case: Case) -> None:
    case.move(array_at(4096))
    assert case.table.ref_of((1, 0)) == case.table.ref_of((2, 3)) == array_at(4096)
    assert case.table.blocks.counts == {(0, 4096): [2, SIZE_BYTES]}
    assert [worker.sent for worker in case.workers.values()] == [[Moved(2, {3: array_at(4096)})], []]
    # The arena's owner may use the block again.
    assert case.workers[0].released == [0]
    assert not case.left.sent


def test_who_has_reported_a_move_is_not_informed(case: Case) -> None:
    case.move(array_at(4096), besides=case.workers[0])
    assert not case.workers[0].sent


def test_of_an_object_that_goes_to_disk_workers_forget_the_location(case: Case) -> None:
    case.table.add_file((1, 0), FILE)
    case.move(FILE)
    assert (case.table.ref_of((2, 3)), case.table.blocks.stored_bytes) == (FILE, 0)
    assert (case.run.known_by, case.workers[0].freed) == ([0, 0b001, 0, 0], [(2, 3)])
    assert not case.workers[1].freed
    assert not case.left.freed
    # And back: the file stays until nothing needs the object.
    case.move(array_at(8192))
    assert not case.removed
    case.table.forget(case.run)  # type: ignore[arg-type]
    case.table.forget_persisted((1, 0))
    assert case.removed == [FILE]
    assert not case.table.blocks.counts
    assert not case.table.files


def test_chunks_without_a_location_do_not_move(case: Case) -> None:
    case.table.move([(2, 1), (7, 0)], array_at(4096))
    assert case.run.refs[1] is None
    assert case.table.blocks.counts == {(0, 0): [2, SIZE_BYTES]}
