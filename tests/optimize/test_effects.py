"""Tasks that append must not be begun twice: what they had written would be there twice, unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.bag as db
import partd
import pytest
from dask.bag.core import partition

from dask_mars import Runtime
from dask_mars.errors import WorkerDied
from dask_mars.optimize.known import appends
from dask_mars.optimize.prepare import PrepareOptions, prepare
from dask_mars.scheduler.events import ChunkFailed, FailGraph, Run, WorkerLost, WorkerStarted
from studies.graphs import handed_over
from tests.machines import CheckedMachine
from tests.tasks import die_first, fail_first, notes

pytestmark = pytest.mark.timeout(300)


def appending(*collections: Any) -> list[str]:
    graph = prepare(*handed_over(*collections), PrepareOptions(keep_shuffles=True))
    return [operand.name for operand in graph.operands if appends(operand)]


def test_shuffles_of_bags_append() -> None:
    bag = db.from_sequence(range(10), npartitions=3)
    assert appending(bag.groupby(lambda item: item % 2)) == ["partition"]
    assert appending(bag.map(str).fold(max)) == []


def test_shuffles_and_writers_of_dataframes_append(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    frame = frames.from_pandas(pandas.DataFrame({"a": range(10)}), npartitions=3)
    assert appending(frame.shuffle("a", shuffle_method="disk")) == ["_shuffle_group"]
    assert appending(frame.shuffle("a", shuffle_method="tasks")) == []
    assert appending(*frame.to_csv(tmp_path / "*.csv", compute=False)) == []
    # All but the first, which begins the file anew.
    assert appending(*frame.to_csv(tmp_path / "one.csv", single_file=True, compute=False)) == ["_write_csv"]


def test_writers_of_hdf_append() -> None:
    hdf = pytest.importorskip("dask.dataframe.io.hdf")
    assert appending(dask.delayed(hdf._pd_to_hdf)(print, None, ())) == ["_pd_to_hdf"]
    assert appending(dask.delayed(partial(hdf._pd_to_hdf, print))(None, ()))


# -- the state machine ----------------------------------------------------------------------------------------


def runs(instructions: list[Any]) -> list[tuple[int, list[int]]]:
    return [(each.worker, list(each.chunks)) for each in instructions if isinstance(each, Run)]


def test_appending_chunks_are_alone_in_a_workers_hands() -> None:
    machine = CheckedMachine(workers=1)
    first = machine.submit((), (), (), (), outputs=range(4), unrepeatable=frozenset({0}))
    assert runs(first) == [(0, [0])]
    assert runs(machine.finish(0, 0, seconds=1e-6)) == [(0, [1])]


def test_an_appending_chunk_is_not_given_again_when_its_worker_dies() -> None:
    machine = CheckedMachine(workers=1)
    machine.submit((), (), outputs=range(2), unrepeatable=frozenset({0}))
    lost = machine.post(WorkerLost(0, (1, 0)))
    assert [each.chunk for each in lost if isinstance(each, FailGraph)] == [0]
    assert runs(machine.post(WorkerStarted(0))) == []


def test_it_may_have_ended_without_having_been_reported() -> None:
    machine = CheckedMachine(workers=1)
    machine.submit((), outputs=range(1), unrepeatable=frozenset({0}))
    assert any(isinstance(each, FailGraph) for each in machine.post(WorkerLost(0, None)))


def test_it_is_given_again_if_the_worker_was_never_up() -> None:
    machine = CheckedMachine(workers=1)
    machine.submit((), outputs=range(1), unrepeatable=frozenset({0}))
    assert machine.post(WorkerLost(0, None, was_up=False)) == []
    assert runs(machine.post(WorkerStarted(0))) == [(0, [0])]


def test_an_appending_chunk_that_raises_is_not_tried_again() -> None:
    machine = CheckedMachine(workers=1)
    machine.submit((), outputs=range(1), unrepeatable=frozenset({0}), default_retries=3)
    assert any(isinstance(each, FailGraph) for each in machine.post(ChunkFailed(0, 1, 0)))


# -- the whole ------------------------------------------------------------------------------------------------


def appended(grouper: Callable[[int], int], items: Any, folder: Path) -> Any:
    """Return a task that appends items to files."""
    return dask.delayed(partition)(grouper, items, 2, partd.Python(partd.File(str(folder / "files"))))


def test_appending_whose_worker_dies_fails_and_says_why(tmp_path: Path, runtime: Runtime) -> None:
    def grouper(item: int) -> int:
        if item == 5:
            die_first(tmp_path / "deaths", 1, item)
        return item % 2

    task = appended(grouper, range(8), tmp_path)
    with pytest.raises(WorkerDied, match="not tried again because what it had written") as caught:
        task.compute(scheduler=runtime.get)
    assert caught.value.attempts == 1
    assert len(notes(tmp_path / "deaths")) == 1
    task.compute(scheduler=runtime.get)


def test_retries_do_not_hold_for_it(tmp_path: Path, runtime: Runtime) -> None:
    def grouper(item: int) -> int:
        return int(fail_first(tmp_path / "failures", 1, item)) % 2

    with pytest.raises(Exception, match="failure") as caught:
        appended(grouper, range(4), tmp_path).compute(scheduler=runtime.get, retries=3)
    assert not isinstance(caught.value, WorkerDied)
    assert len(notes(tmp_path / "failures")) == 1


@pytest.mark.slow
def test_what_comes_before_it_is_tried_again(tmp_path: Path, runtime: Runtime) -> None:
    source = dask.delayed(die_first)(tmp_path / "deaths", 1, list(range(6)))
    appended(lambda item: item % 3, source, tmp_path).compute(scheduler=runtime.get)
    assert len(notes(tmp_path / "deaths")) == 2
