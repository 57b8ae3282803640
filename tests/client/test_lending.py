"""Threads beside processes: what reads much of the user's memory is computed where that is."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.client import lending
from dask_mars.optimize import library_code
from tests.conftest import shared_runtime

#: Elements of a block of 2 MiB.
_BLOCK = 1 << 18


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """Yield a runtime that has processes, as after a function of the user's has run."""
    with shared_runtime(num_workers=2) as runtime:
        runtime.start()
        assert runtime.get({"x": (lambda: os.getpid(),)}, "x") != os.getpid()
        yield runtime


@pytest.fixture(autouse=True)
def no_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no function held back because of what other tests have run, or of what else the machine does."""
    monkeypatch.setattr(lending, "losses", lending._Losses())
    monkeypatch.setattr(lending, "_KNOWN_S", 20.0)


@pytest.fixture
def tests_are_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_code, "LIBRARIES", library_code.LIBRARIES | {"tests"})


def pid_and_sum(block: Any) -> np.ndarray:
    """Return the process that computes, and the sum of a block."""
    return np.array([os.getpid(), block.sum()])


def fail(block: Any) -> np.ndarray:
    """Raise an error."""
    raise KeyError(f"no {block.size}")


def pid_of_reduction(partial: Any, axis: Any, keepdims: bool) -> np.ndarray:
    """Return the process that combines partial results."""
    return np.full((1,) * partial.ndim if keepdims else (), float(os.getpid()))


def total_of_frame(frame: Any) -> Any:
    return frame.sum()


def pid_of_totals(totals: Any) -> Any:
    """Return the process that combines frames."""
    return totals.iloc[0] * 0 + os.getpid()


def user_values(blocks: int = 2, size: int = _BLOCK) -> np.ndarray:
    return np.arange(blocks * size, dtype="f8")


def computed(function: Any, values: np.ndarray, size: int, runtime: Runtime) -> np.ndarray:
    """Return two numbers for each block of the user's array."""
    made = da.from_array(values, chunks=size).map_blocks(function, chunks=(2,), dtype="f8", meta=np.empty(0))
    return made.compute(scheduler=runtime.get).reshape(-1, 2)


@pytest.mark.usefixtures("tests_are_a_library")
def test_library_code_that_reads_the_users_arrays_runs_in_threads(runtime: Runtime) -> None:
    values = user_values()
    found = computed(pid_and_sum, values, _BLOCK, runtime)
    assert found[:, 0].tolist() == [os.getpid()] * 2
    assert found[:, 1].tolist() == values.reshape(2, -1).sum(axis=1).tolist()


@pytest.mark.usefixtures("tests_are_a_library")
def test_results_of_threads_are_combined_there(runtime: Runtime) -> None:
    array = da.from_array(user_values(8), chunks=_BLOCK)
    pid = da.reduction(
        array, chunk=np.sum, aggregate=pid_of_reduction, split_every=2, dtype="f8", concatenate=True
    )
    assert pid.compute(scheduler=runtime.get) == os.getpid()


def test_the_users_array_is_read_again_beside_results_of_threads(runtime: Runtime) -> None:
    values = np.random.default_rng(0).random((2048, 1024))
    x = da.from_array(values, chunks=512)
    ours = ((x - x.mean(axis=0)) / x.std(axis=0)).max()
    expected = ours.compute(scheduler="sync")
    assert abs(ours.compute(scheduler=runtime.get) - expected) < 1e-12 * abs(expected)
    assert len(lending.losses._times) == 2


@pytest.mark.usefixtures("tests_are_a_library")
def test_small_arrays_and_large_results_are_for_processes(runtime: Runtime) -> None:
    assert os.getpid() not in computed(pid_and_sum, user_values(2, 50_000), 50_000, runtime)[:, 0]
    values = user_values()
    pids = da.from_array(values, chunks=_BLOCK).map_blocks(lambda block: block * 0 + os.getpid(), dtype="f8")
    assert os.getpid() not in pids.compute(scheduler=runtime.get)


def pid_of(block: Any) -> np.ndarray:
    """Return an array as large as a block, of the process that computes."""
    return block * 0 + os.getpid()


@pytest.mark.usefixtures("tests_are_a_library")
def test_graphs_of_library_code_that_read_large_arrays_run_in_threads(runtime: Runtime) -> None:
    values = user_values(16)
    array = da.from_array(values, chunks=_BLOCK)
    # Numbers that nothing of the user's is read for are made there, too.
    pids = (array * 0 + da.arange(len(values), chunks=_BLOCK) * 0).map_blocks(pid_of)
    assert set(pids.compute(scheduler=runtime.get)) == {os.getpid()}
    largest, places = dask.compute(*map(da.max, da.argtopk(array, 2)[:, None]), scheduler=runtime.get)
    assert {largest, places} == {len(values) - 1, len(values) - 2}
    assert os.getpid() in da.argtopk(array, 2).map_blocks(pid_of).compute(scheduler=runtime.get)
    # What is persisted is kept in the store.
    kept = pids.persist(scheduler=runtime.get)
    assert os.getpid() not in kept.compute(scheduler=runtime.get)


def test_what_runs_in_the_users_process_anyway_is_not_lent(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    run = lending.Lent.run
    monkeypatch.setattr(
        lending.Lent, "run", lambda lent, chunk, inputs: ran.append(chunk) or run(lent, chunk, inputs)
    )
    values = user_values(16)
    target = np.zeros_like(values)
    da.store(da.from_array(values, chunks=_BLOCK) + 1, target, scheduler=runtime.get)
    assert np.array_equal(target, values + 1)
    assert len(ran) == 16


@pytest.mark.usefixtures("tests_are_a_library")
def test_large_products_of_matrices_run_in_processes(runtime: Runtime) -> None:
    x = da.from_array(user_values(16).reshape(2048, 2048), chunks=(512, 2048))
    assert os.getpid() not in (x.T @ x).map_blocks(pid_of).compute(scheduler=runtime.get)
    assert os.getpid() in (x @ np.ones((2048, 2))).map_blocks(pid_of).compute(scheduler=runtime.get)


@pytest.mark.usefixtures("tests_are_a_library")
def test_graphs_whose_results_take_much_memory_run_in_processes(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = da.from_array(user_values(16), chunks=_BLOCK)
    monkeypatch.setattr(lending, "_RESULTS_SHARE", runtime.settings.memory_limit // (48 << 20))
    # Partial results without declared sizes count twice.
    places = da.argtopk(array, 2).map_blocks(pid_of)
    assert os.getpid() not in places.compute(scheduler=runtime.get)
    doubled = array[:, None] * da.ones(2, chunks=2)
    assert os.getpid() not in doubled.map_blocks(pid_of).compute(scheduler=runtime.get)


@pytest.mark.usefixtures("tests_are_a_library")
def test_results_of_unknown_size_count_as_what_is_read(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    computed_here = dask.delayed(os.getpid)(), dask.delayed(pid_and_sum)(user_values())
    assert os.getpid() in dask.compute(*computed_here, scheduler=runtime.get)[1]
    monkeypatch.setattr(lending, "_CHUNK_SHARE", runtime.settings.memory_limit // (4 << 20))
    assert os.getpid() not in dask.compute(*computed_here, scheduler=runtime.get)[1]


def test_functions_of_the_users_run_in_processes(runtime: Runtime) -> None:
    values = user_values()
    found = computed(pid_and_sum, values, _BLOCK, runtime)
    assert os.getpid() not in found[:, 0]
    assert found[:, 1].sum() == values.sum()


def test_both_are_in_one_graph(runtime: Runtime) -> None:
    values = user_values(4)
    array = da.from_array(values, chunks=_BLOCK)
    theirs = dask.delayed(lambda total: (os.getpid(), total))((array + 1).sum())
    pid, total = theirs.compute(scheduler=runtime.get)
    assert pid != os.getpid()
    assert total == (values + 1).sum()
    assert lending.losses._times


def test_frames_are_lent_too(runtime: Runtime) -> None:
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    frame = pandas.DataFrame({"key": np.arange(1 << 19) % 3, "value": np.arange(1 << 19, dtype="f8")})
    ours = frames.from_pandas(frame, npartitions=2).groupby("key").value.sum()
    found = ours.compute(scheduler=runtime.get).sort_index()
    pandas.testing.assert_series_equal(found, frame.groupby("key").value.sum())
    assert lending.losses._times


@pytest.mark.usefixtures("tests_are_a_library")
def test_outputs_that_combine_frames_are_lent(runtime: Runtime) -> None:
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    many = frames.from_pandas(pandas.DataFrame({"value": np.arange(2.0 * _BLOCK)}), npartitions=2)
    total = many.reduction(chunk=total_of_frame, aggregate=pid_of_totals, meta={"value": "f8"})
    assert total.compute(scheduler=runtime.get).tolist() == [os.getpid()]


def test_a_task_that_writes_into_the_users_array_does_so(runtime: Runtime) -> None:
    values = user_values()
    written = dask.delayed(np.put, pure=False)(dask.delayed(values), [5], 7.0)
    assert written.compute(scheduler=runtime.get) is None
    assert values[5] == 7.0


def add_to_both(other: Any, array: Any) -> Any:
    other += 1
    array += 1
    return np.array([other.sum(), array.sum()])


def add_random_numbers(array: Any, generator: np.random.Generator) -> Any:
    array += generator.random(array.shape)
    return array.sum()


def count_and_add(array: Any, counts: list[int], constant: int) -> Any:
    counts[0] += constant
    array += 1
    return counts[0]


def test_what_writes_into_the_users_array_has_no_effect_twice(runtime: Runtime) -> None:
    values, masked = user_values(16), np.ma.masked_less(user_values(), 5.0)
    matrix, small, expected = np.asmatrix(user_values()), np.zeros(3), user_values(16)
    results = []
    for other in (masked, matrix, small):
        before = other.sum()
        found = dask.delayed(add_to_both)(other, values).compute(scheduler=runtime.get)
        results.append(found[0] - before)
    assert results == [masked.count(), matrix.size, 3]
    np.testing.assert_array_equal(values, expected + 3)
    total = dask.delayed(add_random_numbers)(values, np.random.default_rng(0)).compute(scheduler=runtime.get)
    assert total == (expected + 3 + np.random.default_rng(0).random(expected.shape)).sum()
    assert dask.delayed(count_and_add)(values, [1], 1).compute(scheduler=runtime.get) == 2


def test_functions_that_write_are_tried_once(runtime: Runtime) -> None:
    array, tries = da.from_array(user_values(16), chunks=_BLOCK), 0

    def counted(lent: lending.Lent, chunk: int, inputs: list[Any]) -> Any:
        nonlocal tries
        tries += 1
        return used(lent, chunk, inputs)

    used = lending.Lent.run_reading
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lending.Lent, "run_reading", counted)
        found = array.map_blocks(add_one, dtype=float).compute(scheduler=runtime.get, num_workers=1)
    np.testing.assert_array_equal(found, user_values(16) + 1)
    assert tries == 1


def add_one(array: Any) -> Any:
    array[:] = array + 1
    return array


def test_frames_of_the_users_array_are_copied(runtime: Runtime) -> None:
    pandas = pytest.importorskip("pandas")
    values = user_values()

    def framed(array: Any) -> Any:
        return pandas.DataFrame(array.reshape(-1, 8)[:, :3], copy=False)

    def in_a_list(array: Any) -> Any:
        return [framed(array)]

    frame = dask.delayed(framed)(values).compute(scheduler=runtime.get)
    (inside,) = dask.delayed(in_a_list)(values).compute(scheduler=runtime.get)
    assert lending.losses._times
    for each in (frame, inside):
        each.iloc[0, 0] = 5.0
        assert each.iloc[0].tolist() == [5.0, 1.0, 2.0]
    assert values[0] == 0.0


@pytest.mark.usefixtures("tests_are_a_library")
def test_errors_are_those_of_dasks_threads(runtime: Runtime) -> None:
    with pytest.raises(KeyError, match=f"no {_BLOCK}") as caught:
        computed(fail, user_values(), _BLOCK, runtime)
    assert any("raised by task" in note for note in caught.value.__notes__)


@pytest.mark.usefixtures("tests_are_a_library")
def test_parts_of_the_users_array_are_copied(runtime: Runtime) -> None:
    values = user_values()
    part = dask.delayed(operator.getitem)(dask.delayed(values), slice(8)).compute(scheduler=runtime.get)
    assert lending.losses._times
    values[:] = 0
    assert part.tolist() == [*range(8)]


def test_parts_of_the_users_array_within_a_result_are_copied(runtime: Runtime) -> None:
    numbers = np.arange(float(_BLOCK)).reshape(-1, 64)
    records = np.zeros(_BLOCK, "f8,f8")

    def parts(array: Any) -> Any:
        return array.sum(), [array[:3], {"all": array}], np.asmatrix(array[:2]), np.broadcast_to(array[0], (3, 64))

    lend_count, used = 0, lending.Lent.run_reading

    def counted(lent: lending.Lent, chunk: int, inputs: list[Any]) -> Any:
        nonlocal lend_count
        lend_count += 1
        return used(lent, chunk, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lending.Lent, "run_reading", counted)
        total, (first, rest), matrix, same = runtime.get({"x": (parts, numbers)}, "x")
        record = runtime.get({"x": (operator.itemgetter(0), records)}, "x")
    assert lend_count == 2
    assert total == numbers.sum()
    assert type(matrix) is np.matrix
    for part, expected in ((first, numbers[:3]), (rest["all"], numbers), (matrix, numbers[:2])):
        np.testing.assert_array_equal(part, expected)
        assert part.flags.writeable
    for part in (first, rest["all"], matrix, same):
        assert not np.shares_memory(part, numbers)
    records[0] = 1, 1
    assert record.item() == (0, 0)


@pytest.mark.usefixtures("tests_are_a_library")
def test_what_loses_time_to_the_lock_runs_in_processes(runtime: Runtime) -> None:
    values = user_values()
    assert computed(pid_and_sum, values, _BLOCK, runtime)[0, 0] == os.getpid()
    (functions,) = lending.losses._times
    lending.losses.add(functions, 100.0, 50.0)
    assert os.getpid() not in computed(pid_and_sum, values, _BLOCK, runtime)[:, 0]


def test_losses_count_after_some_time_and_from_some_share_on() -> None:
    found = lending._Losses()
    found.add(("f",), 10.0, 10.0)
    assert not found.are_high(("f",))
    found.add(("f",), 10.0, 10.0)
    assert found.are_high(("f",))
    found.add(("f",), 200.0, 20.0)
    assert not found.are_high(("f",))
    assert not found.are_high(("g",))


@pytest.mark.usefixtures("tests_are_a_library")
def test_nothing_is_lent_without_threads() -> None:
    with dask.config.set({"dask-mars.start-in-threads": False}), shared_runtime(num_workers=1) as runtime:
        assert os.getpid() not in computed(pid_and_sum, user_values(), _BLOCK, runtime)[:, 0]
