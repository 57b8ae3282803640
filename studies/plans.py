"""How near forecasts of memory are to what is measured: ``python -m studies plan``.

Each computation runs in a process of its own with workers of its own, whose peak is what the engine has measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
import dask
import dask.array
import numpy as np

import dask_mars
from benchmarks import options
from benchmarks.arrays import COLLECTIONS
from benchmarks.report import markdown_table, plain_console
from dask_mars import units

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
da: Any = dask.array

#: What is computed, with a limit of its own.
Case = tuple[Callable[[], Any], str]


def _random(rows: int, columns: int, chunks: Any) -> Any:
    return da.random.default_rng(1).random((rows, columns), chunks=chunks)


def _centre() -> Any:
    x = _random(16_000, 16_000, 2_000)
    return ((x - x.mean()) ** 2).sum()


def _transform() -> Any:
    return abs(da.fft.fft(_random(8_000, 8_000, (1_000, 8_000)))).max()


def _sorted() -> Any:
    return da.map_blocks(np.sort, _random(8_000, 8_000, (8_000, 500)), axis=0).sum()


def _benchmark(name: str) -> Callable[[], Any]:
    return lambda: COLLECTIONS[name](1.0, 1)


CASES: dict[str, Case] = {
    **{name: (_benchmark(name), "8 GiB") for name in COLLECTIONS},
    "large-chunks": (lambda: _random(16_000, 16_000, 4_000).sum(), "8 GiB"),
    "transform": (_transform, "8 GiB"),
    "sorted": (_sorted, "8 GiB"),
    "result": (lambda: _random(12_000, 8_000, 2_000) + 1, "8 GiB"),
    "centre, spilling": (_centre, "1 GiB"),
    "rechunk, spilling": (_benchmark("rechunk"), "1 GiB"),
    "result, spilling": (lambda: _random(12_000, 8_000, 2_000) + 1, "1 GiB"),
}
#: How long one may take.
_TIMEOUT_S = 300


def measured(name: str) -> dict[str, int]:
    """Return what is forecast and measured of a case, computed in this process."""
    make, limit = CASES[name]
    # Threads of this process have nothing for themselves, and processes are what is forecast.
    with dask.config.set({"dask-mars.start-in-threads": False}):
        collection = make()
        plan = dask_mars.plan(collection, num_workers=2, memory_limit=limit)
        with dask_mars.Runtime(2, limit) as runtime:
            collection.compute(scheduler=runtime.get)
            memory = runtime.memory()
    return {
        "forecast": plan.peak_bytes or 0,
        "measured": memory.peak_bytes,
        "forecast_spill": plan.spilled_bytes,
        "spill": memory.spilled_bytes,
    }


@options.command("plan")
@options.graphs(CASES)
@click.option("--here", is_flag=True, hidden=True, help="Measure one graph in this process.")
def plans(graphs: tuple[str, ...], here: bool) -> None:
    """Compare the peak of memory that `dask_mars.plan` forecasts with the one that is measured, as Markdown."""
    if here:
        print(json.dumps(measured(graphs[0])))
        return
    table = markdown_table(
        "graph",
        "limit",
        "forecast",
        "measured",
        "forecast / measured",
        "to disk, forecast",
        "to disk",
        words=("graph",),
    )
    for name in graphs or CASES:
        command = [sys.executable, "-m", "studies", "plan", "--here", "--graph", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
        found = json.loads(done.stdout)
        table.add_row(
            name,
            CASES[name][1],
            units.size(found["forecast"]),
            units.size(found["measured"]),
            f"{found['forecast'] / found['measured']:.2f}",
            units.size(found["forecast_spill"]),
            units.size(found["spill"]),
        )
    plain_console().print(table)
