"""Make loops parallel without rewriting them.

It follows the delayed chapters of the Dask tutorial (https://tutorial.dask.org/03_dask.delayed.html) and of the
Dask examples (https://examples.dask.org/delayed.html), and the one about embarrassingly parallel work
(https://examples.dask.org/applications/embarrassingly-parallel.html): a loop with a condition in it, means over
many files, a sum as a tree, and a simulation for many parameters. Run it with::

    python examples/tutorials/delayed.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd

import dask_mars


def double(number: int) -> int:
    return 2 * number


def increment(number: int) -> int:
    return number + 1


@dask.delayed
def add(left: int, right: int) -> int:
    return left + right


@dask.delayed
def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)


@dask.delayed(nout=2)
def totals(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    delays = frame.groupby("origin").delay
    return delays.sum(), delays.count()


@dask.delayed(pure=True)
def simulate(rate: float, spread: float, seed: int) -> float:
    """Return how long a queue of a hundred people waits, with arrivals and service by chance."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, 100))
    services = rng.gamma(1 / spread, spread, 100)
    free, waited = 0.0, 0.0
    for arrival, service in zip(arrivals, services, strict=True):
        start = max(free, arrival)
        waited += start - arrival
        free = start + service
    return waited / 100


def loop_with_a_condition(get: Any) -> None:
    # What decides about the graph is known while it is built, so `% 2` is not delayed.
    results = [dask.delayed(double if n % 2 == 0 else increment)(n) for n in range(40)]
    total = dask.delayed(sum)(results).compute(scheduler=get)
    assert total == sum(double(n) if n % 2 == 0 else increment(n) for n in range(40)), f"the sum is {total}"
    print(f"a loop with a condition: {total}")


def means_over_files(folder: Path, get: Any) -> None:
    rng = np.random.default_rng(2)
    for year in range(1990, 1998):
        rows = {"origin": rng.choice(["EWR", "JFK", "LGA"], 2000), "delay": rng.normal(9, 20, 2000).round(1)}
        pd.DataFrame(rows).to_csv(folder / f"{year}.csv", index=False)
    files = sorted(folder.glob("*.csv"))

    # Means of means would be wrong where files differ in length: sums and counts are not.
    sums, counts = zip(*(totals(read(path)) for path in files), strict=True)
    (means,) = dask.compute(sum(sums) / sum(counts), scheduler=get)
    known = pd.concat([pd.read_csv(path) for path in files]).groupby("origin").delay.mean()
    pd.testing.assert_series_equal(means, known)
    print("delays:", ", ".join(f"{origin} {mean:.3f}" for origin, mean in means.items()))


def sum_as_a_tree(get: Any) -> None:
    level: list[Any] = [dask.delayed(increment)(n) for n in range(256)]
    while len(level) > 1:
        level = [add(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    total = level[0].compute(scheduler=get)
    assert total == sum(range(257)), f"the sum is {total}"
    print(f"a tree of 511 tasks: {total}")


def sweep_of_parameters(get: Any) -> None:
    grid = [(rate, spread) for rate in (0.5, 0.7, 0.9) for spread in (0.1, 0.5, 1.0)]
    runs = [simulate(rate, spread, seed) for rate, spread in grid for seed in range(20)]
    waited = np.array(dask.compute(*runs, scheduler=get)).reshape(len(grid), 20)
    alone = dask.compute(*runs[:20], scheduler="synchronous")
    np.testing.assert_array_equal(waited[0], alone, err_msg="a simulation does not repeat")
    table = pd.DataFrame(grid, columns=["rate", "spread"]).assign(waited=waited.mean(axis=1))
    assert (table.groupby("spread").waited.diff().dropna() > 0).all(), "a busier queue waits less"
    print(table.pivot(index="rate", columns="spread", values="waited").round(3).to_string())


def main(scheduler: str = "mars") -> None:
    get = dask_mars.get if scheduler == "mars" else scheduler
    loop_with_a_condition(get)
    with tempfile.TemporaryDirectory() as folder:
        means_over_files(Path(folder), get)
    sum_as_a_tree(get)
    sweep_of_parameters(get)


if __name__ == "__main__":
    main(*sys.argv[1:])
