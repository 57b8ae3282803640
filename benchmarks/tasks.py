"""Workloads of many small tasks, where the scheduler's own time is what counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array
import numpy as np
from numpy.typing import NDArray

from benchmarks.functions import add, hold_gil, noop, one
from benchmarks.workload import Setting, Workload, near, numbers, scaled

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

#: About 0.25 s of pure Python on the machine these benchmarks were written on. A fixed count and
#: not a fixed time, so that every peer does the same work.
GIL_ITERATIONS = 10_000_000
GIL_TASKS = 16


def _count(result: Any) -> NDArray[np.float64]:
    return numbers(len(result))


def independent_noops(count: int, seed: int) -> dict[str, tuple[Any, ...]]:
    """Return so many tasks that do nothing and need nothing; the seed is a part of all keys."""
    return {f"noop-{seed}-{number}": (noop,) for number in range(count)}


def _noops(full_count: int) -> Workload:
    def count(scale: float) -> int:
        return scaled(full_count, scale)

    def prepare(setting: Setting) -> Callable[[], Any]:
        dsk = independent_noops(count(setting.scale), setting.seed)
        return lambda: setting.get(dsk, list(dsk))

    return Workload(
        f"noop-{full_count}",
        "tasks",
        f"{full_count} independent tasks that do nothing, as a plain dict",
        prepare,
        _count,
        lambda scale: near(count(scale), 0),
        count,
    )


def _many_chunks_count(scale: float) -> int:
    return scaled(20_000, scale)


def _many_chunks(setting: Setting) -> Callable[[], Any]:
    shape = 10 * _many_chunks_count(setting.scale)
    return lambda: (da.ones(shape, chunks=10) * 2 + 1).sum().compute(scheduler=setting.get)


def _gil(setting: Setting) -> Callable[[], Any]:
    iterations = scaled(GIL_ITERATIONS, setting.scale)

    def call() -> Any:
        # Not pure: each call gets keys of its own.
        tasks = [_dask.delayed(hold_gil, pure=False)(iterations) for _ in range(GIL_TASKS)]
        return _dask.compute(*tasks, scheduler=setting.get)

    return call


def _trees(name: str, full_leaves: int) -> Workload:
    def leaves(scale: float) -> int:
        return scaled(full_leaves, scale)

    def prepare(setting: Setting) -> Callable[[], Any]:
        dsk = tree_of_sums(leaves(setting.scale), setting.seed)
        return lambda: setting.get(dsk, f"tree-{setting.seed}-1")

    return Workload(
        name,
        "tasks",
        f"binary tree of additions with {full_leaves} leaves, {2 * full_leaves - 1} tasks, as a plain dict",
        prepare,
        numbers,
        lambda scale: near(leaves(scale), 0),
        lambda scale: 2 * leaves(scale) - 1,
    )


def tree_of_sums(leaves: int, seed: int) -> dict[str, tuple[Any, ...]]:
    """Return a binary tree of additions of ones, whose root is number 1.

    Parameters
    ----------
    leaves
        How many ones there are.
    seed
        A part of all keys.
    """
    # Numbered as in a heap: the children of n are 2n and 2n + 1, and the leaves come last.
    dsk: dict[str, tuple[Any, ...]] = {
        f"tree-{seed}-{n}": (add, f"tree-{seed}-{2 * n}", f"tree-{seed}-{2 * n + 1}") for n in range(1, leaves)
    }
    dsk.update((f"tree-{seed}-{n}", (one,)) for n in range(leaves, 2 * leaves))
    return dsk


TASK_WORKLOADS = (
    _noops(2_000),
    _noops(20_000),
    _noops(200_000),
    Workload(
        "many-chunks",
        "tasks",
        "(ones * 2 + 1).sum() over 20000 chunks of 10 elements; tasks are chunks",
        _many_chunks,
        numbers,
        lambda scale: near(3 * 10 * _many_chunks_count(scale), 0),
        _many_chunks_count,
    ),
    Workload(
        "gil",
        "tasks",
        f"{GIL_TASKS} delayed loops that hold the GIL for about 0.25 s each",
        _gil,
        numbers,
        lambda scale: near(scaled(GIL_ITERATIONS, scale) // 2, 0),
        lambda scale: GIL_TASKS,
    ),
    _trees("tree", 4_096),
    _trees("tree-65535", 32_768),
)
