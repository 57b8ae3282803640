"""The contract of a backend, as a test class."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from dask.callbacks import Callback

from dask_mars.client.request import Backend, Options, Request


class _Recorder(Callback):  # type: ignore[misc]
    """Records the calls of callbacks."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.ends: list[bool] = []

    def _start(self, dsk: Any) -> None:
        self.tasks = list(dsk)

    def _finish(self, dsk: Any, state: Any, failed: bool) -> None:
        self.ends.append(failed)


def _increment(value: int) -> int:
    return value + 1


def _fail(value: int) -> int:
    raise LookupError("on purpose", value)


class BackendTests:
    """The contract of `dask_mars.client.request.Backend`.

    A derived class has a fixture ``backend``, which returns the backend to test.
    """

    @pytest.fixture
    def backend(self) -> Backend:
        """Return the backend to test."""
        raise NotImplementedError("the fixture `backend` is for the derived class")

    @pytest.fixture
    def scheduler(self, backend: Backend) -> Callable[..., Any]:
        """Return the backend as a scheduler for Dask."""

        def scheduler(dsk: Any, keys: Any, **options: Any) -> Any:
            return backend.compute(Request(dsk, keys, Options.known(options)))

        return scheduler

    # -- graphs -----------------------------------------------------------------------------------------------

    def test_one_key_has_a_value_and_lists_have_tuples(self, backend: Backend) -> None:
        graph = {"x": 1, "y": (_increment, "x"), "z": (operator.add, "y", 10)}
        assert backend.compute(Request(graph, "z")) == 12
        assert backend.compute(Request(graph, ["x", "z"])) == (1, 12)
        assert backend.compute(Request(graph, [["x"], ["y", ["z"]]])) == ((1,), (2, (12,)))
        assert backend.compute(Request(graph, [])) == ()

    def test_tasks_lists_and_aliases(self, backend: Backend) -> None:
        graph = {"x": 1, "alias": "x", "sum": (sum, ["alias", (_increment, "x"), 3]), ("a", 0): (len, ["x", "x"])}
        assert backend.compute(Request(graph, ["sum", ("a", 0), "alias"])) == (6, 2, 1)

    def test_arrays(self, scheduler: Callable[..., Any]) -> None:
        array = da.arange(1000, chunks=100, dtype="f8").reshape(20, 50)
        wanted = [array.T @ array, (array + 1).sum(axis=0), array.rechunk((7, 9))[3:12, ::2]]
        for ours, theirs in zip(
            dask.compute(*wanted, scheduler=scheduler), dask.compute(*wanted, scheduler="sync"), strict=True
        ):
            np.testing.assert_allclose(ours, theirs)
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)

    def test_bags_and_delayed_objects(self, scheduler: Callable[..., Any]) -> None:
        bag = db.range(20, npartitions=4).map(_increment).filter(lambda number: number % 3)
        total = dask.delayed(sum)([dask.delayed(_increment)(number) for number in range(5)])
        assert dask.compute(bag, total, scheduler=scheduler) == ([n for n in range(1, 21) if n % 3], 15)

    def test_what_cannot_be_pickled(self, scheduler: Callable[..., Any]) -> None:
        made = dask.delayed(lambda: (number for number in range(4)))()
        assert dask.delayed(sum)(made).compute(scheduler=scheduler) == 6

    def test_tasks_store_into_objects_of_the_user(self, scheduler: Callable[..., Any]) -> None:
        target = np.zeros(100)
        da.store(da.arange(100, chunks=30, dtype="f8"), target, scheduler=scheduler)
        np.testing.assert_array_equal(target, np.arange(100.0))

    # -- errors -----------------------------------------------------------------------------------------------

    def test_exceptions_of_tasks_arrive_as_they_are(self, backend: Backend) -> None:
        with pytest.raises(LookupError) as caught:
            backend.compute(Request({"x": 1, "y": (_fail, "x"), "z": (_increment, "y")}, "z"))
        assert caught.value.args == ("on purpose", 1)

    def test_a_key_that_is_not_there(self, backend: Backend) -> None:
        with pytest.raises(KeyError):
            backend.compute(Request({"x": 1}, "y"))

    def test_a_circle(self, backend: Backend) -> None:
        with pytest.raises(RuntimeError):
            backend.compute(Request({"x": (_increment, "y"), "y": (_increment, "x")}, "x"))

    # -- options ----------------------------------------------------------------------------------------------

    def test_callbacks_hear_of_the_beginning_and_the_end(self, backend: Backend) -> None:
        recorder = _Recorder()
        options = Options(callbacks=[recorder._callback])
        assert backend.compute(Request({"x": (_increment, 1), "y": (_increment, "x")}, "y", options)) == 3
        assert set(recorder.tasks) >= {"x", "y"}
        with pytest.raises(LookupError):
            backend.compute(Request({"x": (_fail, 1)}, "x", options))
        assert recorder.ends == [False, True]

    def test_callbacks_that_are_registered_hear_too(self, scheduler: Callable[..., Any]) -> None:
        with _Recorder() as recorder:
            assert dask.delayed(_increment)(1).compute(scheduler=scheduler) == 2
        assert recorder.ends == [False]

    # -- persisting -------------------------------------------------------------------------------------------

    def test_what_is_persisted_can_be_computed_with(self, backend: Backend, scheduler: Callable[..., Any]) -> None:
        array = da.arange(60_000, chunks=20_000, dtype="f8")
        persisted = da.Array(
            dict(zip(array.__dask_keys__(), self._persisted(backend, array), strict=True)),
            array.name,
            array.chunks,
            array.dtype,
        )
        assert (persisted + 1).sum().compute(scheduler=scheduler) == (array + 1).sum().compute(scheduler="sync")

    def _persisted(self, backend: Backend, array: Any) -> list[Any]:
        return list(backend.compute(Request(array.__dask_graph__(), array.__dask_keys__(), persist=True)))


__all__ = ["BackendTests"]
