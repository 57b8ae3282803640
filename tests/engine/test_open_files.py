"""What a computation had open is closed when it has ended: users write the same files next."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.client import computation as computations
from dask_mars.errors import Cancelled
from tests.conftest import eventually

pytestmark = pytest.mark.timeout(60)

#: Time for which files stay open if the computation does not wait, in seconds.
CLOSING_S = 0.3


class Held:
    """An array in a file, which is open and locked in workers for as long as they have this object."""

    shape, dtype, ndim = (4,), np.dtype(float), 1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __getstate__(self) -> Path:
        return self.path

    def __setstate__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("rb")
        fcntl.flock(self.file, fcntl.LOCK_SH)

    def __getitem__(self, index: Any) -> Any:
        return np.ones(self.shape)[index]

    def __del__(self) -> None:
        if self.file is not None:
            time.sleep(CLOSING_S)
            self.file.close()


class HeldUntilTold(Held):
    """One that takes until there is another file to be closed."""

    def __del__(self) -> None:
        if self.file is not None:
            eventually((self.path.parent / "told").exists, 30)
            super().__del__()


class Deadly(Held):
    """One whose process does not survive closing it."""

    def __del__(self) -> None:
        if self.file is not None:
            os._exit(1)


def opened(path: Path) -> Held:
    held = Held(path)
    held.__setstate__(path)
    return held


def total(held: Any) -> float:
    return float(held[:].sum())


def fail(held: Any) -> float:
    try:
        raise KeyError(held)
    except KeyError as error:
        raise ValueError("as it should") from error


def fail_in_a_circle(held: Any) -> float:
    circle = [held]
    circle.append(circle)
    raise ValueError("as it should")


def wait(held: Any, begun: Path) -> None:
    begun.touch()
    time.sleep(60)


def is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def source(path: Path, kind: type[Held] = Held) -> Any:
    return dask.delayed(kind(path), traverse=False)


def from_closure(path: Path) -> Any:
    held = Held(path)
    return da.ones(4, chunks=2).map_blocks(lambda block: block * held[0], dtype=float).sum()


WAYS: dict[str, Callable[[Path], Any]] = {
    "source": lambda path: dask.delayed(total)(source(path)),
    "array": lambda path: da.from_array(Held(path), chunks=2, asarray=False).sum(),
    "inline": lambda path: da.from_array(Held(path), chunks=2, asarray=False, inline_array=True).sum(),
    "closure": from_closure,
    "result": lambda path: dask.delayed(total)(dask.delayed(opened)(path)),
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have computations wait on busy machines too."""
    monkeypatch.setattr(computations, "_RELEASE_S", 1000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.touch()
    return path


@pytest.mark.parametrize("way", WAYS)
def test_files_are_closed_when_results_are_there(way: str, runtime: Runtime, path: Path) -> None:
    assert WAYS[way](path).compute(scheduler=runtime.get) == 4
    assert is_free(path)


def test_files_are_closed_when_chunks_are_persisted(runtime: Runtime, path: Path) -> None:
    persisted = da.from_array(Held(path), chunks=2, asarray=False).map_blocks(abs)
    (persisted,) = runtime.persist([persisted])
    assert is_free(path)
    assert persisted.sum().compute(scheduler=runtime.get) == 4


@pytest.mark.parametrize("task", [fail, fail_in_a_circle])
def test_files_are_closed_when_a_task_has_failed(
    task: Callable[[Any], float], runtime: Runtime, path: Path
) -> None:
    failing = dask.delayed(task)(source(path, Held))
    with pytest.raises(ValueError, match="as it should"):
        failing.compute(scheduler=runtime.get)
    assert is_free(path)


def test_files_are_closed_when_a_computation_is_cancelled(runtime: Runtime, path: Path, tmp_path: Path) -> None:
    waiting = dask.delayed(wait)(source(path, Held), tmp_path / "begun")
    computation = runtime.submit(waiting)
    assert eventually((tmp_path / "begun").exists, 20)
    assert computation.cancel()
    with pytest.raises(Cancelled):
        computation.result()
    # The call ends before its tasks, which have a grace period.
    assert eventually(lambda: is_free(path))


def test_a_computation_does_not_wait_for_ever(
    runtime: Runtime, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computations, "_RELEASE_S", 0.1)
    task = dask.delayed(total)(source(path, HeldUntilTold))
    assert task.compute(scheduler=runtime.get) == 4
    assert not is_free(path)
    (tmp_path / "told").touch()
    assert eventually(lambda: is_free(path), 20)


def test_a_worker_that_dies_is_not_waited_for(path: Path) -> None:
    with dask.config.set({"dask-mars.start-in-threads": False}), Runtime(num_workers=1) as runtime:
        task = dask.delayed(total)(source(path, Deadly))
        assert task.compute(scheduler=runtime.get) == 4
        assert is_free(path)
