"""Small objects that a task returns go to the next task of the worker as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import numpy as np
import pytest

from dask_mars import Runtime
from tests.conftest import shared_runtime


class Record:
    """Tells whether it has been pickled since."""

    def __init__(self, size: int, extra: Any = None) -> None:
        self.items = list(range(size))
        self.extra = extra
        self.is_copy = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.is_copy = True


def grown(record: Record) -> tuple[bool, int]:
    """Append to a record; return whether it is a copy, and its items."""
    record.items.append(0)
    return record.is_copy, len(record.items)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with dask.config.set({"dask-mars.start-in-threads": False}), shared_runtime(num_workers=1) as runtime:
        yield runtime


make, grow = dask.delayed(Record, pure=False), dask.delayed(grown, pure=False)


def test_the_next_task_gets_the_object(runtime: Runtime) -> None:
    assert grow(make(50_000)).compute(scheduler=runtime.get) == (False, 50_001)


def test_readers_do_not_see_what_another_has_changed(runtime: Runtime) -> None:
    record = make(50_000)
    readers = [grow(record) for _ in range(4)]
    found = dask.compute(*readers, scheduler=runtime.get)
    assert {size for _, size in found} == {50_001}
    assert sum(not is_copy for is_copy, _ in found) <= 1


def test_each_input_is_the_right_one(runtime: Runtime) -> None:
    sizes = dask.delayed(lambda first, second: (len(first.items), len(second.items)))
    assert sizes(make(50_000), make(60_000)).compute(scheduler=runtime.get) == (50_000, 60_000)


@pytest.mark.parametrize(
    "record", [make(1_000_000), make(50_000, np.zeros(100_000))], ids=["large", "with an array"]
)
def test_others_are_read_from_the_store(runtime: Runtime, record: Any) -> None:
    is_copy, _ = grow(record).compute(scheduler=runtime.get)
    assert is_copy


def test_it_is_forgotten_with_its_graph(runtime: Runtime) -> None:
    count = dask.delayed(lambda: sum(type(one).__name__ == "Record" for one in __import__("gc").get_objects()))
    assert grow(make(50_000)).compute(scheduler=runtime.get)
    make(50_000).compute(scheduler=runtime.get)
    assert count().compute(scheduler=runtime.get) == 0
