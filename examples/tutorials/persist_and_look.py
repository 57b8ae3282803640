"""Keep what is needed again, and look at what a computation does.

It follows the chapters on persisting and on local diagnostics of Dask's manual
(https://docs.dask.org/en/stable/best-practices.html and https://docs.dask.org/en/stable/diagnostics-local.html):
`persist` for several collections, a callback that counts tasks, a progress bar, and an error in a task, which
leaves what is persisted where it is. Run it with::

    python examples/tutorials/persist_and_look.py
"""

from __future__ import annotations

import io
import sys
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.callbacks import Callback
from dask.diagnostics import ProgressBar

import dask_mars


class Counter(Callback):
    """Counts computations and their tasks while it is active."""

    def __init__(self) -> None:
        self.computations = self.tasks = 0
        self.failed: list[bool] = []

    def _start(self, dsk: Any) -> None:
        self.computations += 1

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        self.tasks += 1

    def _finish(self, dsk: Any, state: Any, failed: bool) -> None:
        self.failed.append(failed)


def refuse_negative(block: np.ndarray) -> np.ndarray:
    if (block < 0).any():
        raise ValueError(f"{(block < 0).sum()} numbers are negative")
    return block


def main(scheduler: str = "mars") -> None:
    get = dask_mars.get if scheduler == "mars" else scheduler
    rng = da.random.default_rng(4)
    height = rng.normal(170, 10, (1_000_000,), chunks=100_000)
    weight = 0.9 * height - 90 + rng.normal(0, 8, (1_000_000,), chunks=100_000)
    ratio = weight / (height / 100) ** 2

    with Counter() as first:
        height, ratio = dask.persist(height, ratio, scheduler=get)
    assert first.computations == 1, f"persist made {first.computations} computations"
    assert first.failed == [False], "persist failed"

    with Counter() as second:
        mean, deviation, high = dask.compute(ratio.mean(), ratio.std(), (ratio > 30).sum(), scheduler=get)
    # What is persisted is read, not made again: tasks that make random numbers would be among these.
    assert len(ratio.dask) == ratio.npartitions, "a persisted array still has the tasks that made it"
    heights, ratios = dask.compute(height, ratio, scheduler=get)
    np.testing.assert_allclose([mean, deviation], [ratios.mean(), ratios.std()], err_msg="mean or deviation")
    assert high == (ratios > 30).sum(), f"{high} above 30"
    assert second.tasks > 0, "no task was seen"
    print(f"{ratio.npartitions} blocks persisted: mean {mean:.4f}, deviation {deviation:.4f}, {high} above 30")

    shown = io.StringIO()
    with ProgressBar(out=shown):
        counts, edges = da.histogram(height, bins=20, range=(120, 220))
        counts = counts.compute(scheduler=get)
    np.testing.assert_array_equal(counts, np.histogram(heights, bins=20, range=(120, 220))[0])
    assert "100% Completed" in shown.getvalue(), f"the progress bar ended with {shown.getvalue()[-60:]!r}"
    print(f"most people are {edges[counts.argmax()]:.0f} to {edges[counts.argmax() + 1]:.0f} cm tall")

    # An error has the type it has in NumPy, and what is persisted outlives it.
    with Counter() as third:
        message = ""
        try:
            (ratio - 20).map_blocks(refuse_negative, dtype=float).sum().compute(scheduler=get)
        except ValueError as error:
            message = str(error)
    assert message.endswith("numbers are negative"), f"the error says {message!r}"
    assert third.failed == [True], "the callback was not told of the error"
    again = ratio[::1000].compute(scheduler=get)
    np.testing.assert_array_equal(again, ratios[::1000], err_msg="after an error")
    print("an error in a task came back as ValueError, and the blocks are still there")


if __name__ == "__main__":
    main(*sys.argv[1:])
