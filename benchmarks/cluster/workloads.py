"""What is computed on clusters: the workloads of one machine, and data that all processes of a host read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array
import numpy as np

from benchmarks.functions import filled, plus_total
from benchmarks.workload import Bounds, Setting, Workload, near, numbers, scaled
from benchmarks.workloads import CATALOGUE, GROUPS

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

#: Of the table that all tasks read; 400 MB.
_TABLE_LENGTH = 50_000_000
#: How many tasks read it.
_READERS = 40
#: The wide array whose rows are multiplied with each other: 10 chunks of 40 MB, each of which is read 19 times.
_WIDE_SHAPE, _WIDE_ROWS = (2_000, 25_000), 200


def _table(setting: Setting) -> Callable[[], Any]:
    length = scaled(_TABLE_LENGTH, setting.scale)

    def call() -> Any:
        # Not pure: each call gets keys of its own.
        table = _dask.delayed(filled, pure=False)(length, setting.seed)
        return (
            da.zeros(_READERS, chunks=1).map_blocks(plus_total, table, dtype=float).compute(scheduler=setting.get)
        )

    return call


def _gram(setting: Setting) -> Callable[[], Any]:
    shape = tuple(scaled(size, setting.scale) for size in _WIDE_SHAPE)

    def call() -> Any:
        wide = da.random.default_rng(setting.seed).random(shape, chunks=(scaled(_WIDE_ROWS, setting.scale), -1))
        return (wide @ wide.T).sum().compute(scheduler=setting.get)

    return call


def _gram_bounds(scale: float) -> Bounds:
    rows, columns = (scaled(size, scale) for size in _WIDE_SHAPE)
    return near(columns * rows * (rows / 4 + 1 / 12), 2 * rows * np.sqrt(rows * columns))


def _table_bounds(scale: float) -> Bounds:
    length = scaled(_TABLE_LENGTH, scale)
    return length, length + 1_000


_SHARED = (
    Workload(
        "table",
        "array",
        f"a table of 400 MB that one task makes and {_READERS} read",
        _table,
        numbers,
        _table_bounds,
    ),
    Workload(
        "gram",
        "array",
        "sum of x @ x.T for x of 2000 x 25000, 400 MB in chunks of rows",
        _gram,
        numbers,
        _gram_bounds,
    ),
)

#: Names by group: what counts operands, what the mean is of, and what is judged by its memory.
CLUSTER_GROUPS: dict[str, list[str]] = {
    "tasks": ["tree", "many-chunks"],
    "array": GROUPS["array"],
    "shared": [workload.name for workload in _SHARED],
}


def _catalogue() -> dict[str, Workload]:
    found = {workload.name: workload for workload in _SHARED}
    for name in [*CLUSTER_GROUPS["tasks"], *CLUSTER_GROUPS["array"]]:
        workload = CATALOGUE[name]
        assert isinstance(workload, Workload)
        found[name] = workload
    return {name: found[name] for names in CLUSTER_GROUPS.values() for name in names}


#: Everything that can be asked for, by name, in the order of the report.
CLUSTER_WORKLOADS: dict[str, Workload] = _catalogue()
