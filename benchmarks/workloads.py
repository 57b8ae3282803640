"""The catalogue of workloads: what is computed, and between which bounds a right answer lies.

Sizes follow one factor, `scale`. Array workloads shrink shapes and chunks together, so that the
graph keeps its form and a smoke test walks the same paths; task workloads shrink their number of
tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import dask
import dask.array
import numpy as np
from numpy.typing import NDArray

from benchmarks.functions import add, four_point_mean, hold_gil, noop, one
from benchmarks.latency import PROBES, Probe
from benchmarks.peers import Get

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

Group = Literal["array", "tasks", "latency"]
Bounds = tuple[float, float]

#: About 0.25 s of pure Python on the machine these benchmarks were written on. A fixed count and
#: not a fixed time, so that every peer does the same work.
GIL_ITERATIONS = 10_000_000
GIL_TASKS = 16


@dataclass(frozen=True, slots=True)
class Workload:
    """A computation that every peer can be asked to do."""

    name: str
    group: Group
    #: One line for people.
    summary: str
    #: Given scale and seed, makes what need not be timed and returns the call to time.
    prepare: Callable[[float, int], Callable[[Get], Any]]
    #: Turns what the call returned into a few numbers, outside the timing.
    digest: Callable[[Any], NDArray[np.float64]]
    #: Given scale, the range in which the largest number of the digest must lie.
    bounds: Callable[[float], Bounds]
    #: Given scale, the number of tasks, where tasks per second mean something.
    tasks: Callable[[float], int] | None = None


def scaled(size: float, scale: float) -> int:
    """Multiply a size by the scale.

    Parameters
    ----------
    size
        The full size.
    scale
        The factor.

    Returns
    -------
    int
        The scaled size, at least 1.
    """
    return max(1, round(size * scale))


def numbers(result: Any) -> NDArray[np.float64]:
    """Return the numbers of a result in a row."""
    return np.atleast_1d(np.asarray(result, dtype=np.float64)).ravel()


def _count(result: Any) -> NDArray[np.float64]:
    return numbers(len(result))


# --- array workloads ------------------------------------------------------------------------------


def _random(seed: int, scale: float, shape: tuple[float, float], chunks: tuple[float, float]) -> Any:
    return da.random.default_rng(seed).random(
        tuple(scaled(size, scale) for size in shape),
        chunks=tuple(scaled(size, scale) for size in chunks),
    )


def _square(seed: int, scale: float, size: float, chunk: int = 1000) -> Any:
    return _random(seed, scale, (size, size), (chunk, chunk))


# `growth` gives graphs of the same form with more chunks: it multiplies shapes, and leaves chunks as they are.


def _random_sum(scale: float, seed: int, growth: float = 1.0) -> Any:
    return _square(seed, scale, 14_000 * growth).sum()


def _elementwise(scale: float, seed: int, growth: float = 1.0) -> Any:
    x = _square(seed, scale, 10_000 * growth)
    return ((x * 2 + 1 - x / 3) ** 2 + x * x - 0.5 * x + 3).mean()


def _transcendental(scale: float, seed: int, growth: float = 1.0) -> Any:
    x = _square(seed, scale, 8_000 * growth)
    return (da.sin(x) ** 2 + da.cos(x) ** 2 + da.exp(-(x**2) / 2)).sum()


def _standardise(scale: float, seed: int, growth: float = 1.0) -> Any:
    x = _square(seed, scale, 10_000 * growth)
    return ((x - x.mean(axis=0)) / x.std(axis=0)).max()


def _shifted_difference(scale: float, seed: int, growth: float = 1.0) -> Any:
    a = _square(2 * seed, scale, 9_000 * growth, chunk=1600)
    b = _square(2 * seed + 1, scale, 9_000 * growth, chunk=1600)
    return (a[1:, 1:] - b[:-1, :-1]).sum()


def _matmul(scale: float, seed: int, growth: float = 1.0) -> Any:
    a = _square(seed, scale, 4_000 * growth)
    return (a @ a.T).sum()


def _rechunk(scale: float, seed: int, growth: float = 1.0) -> Any:
    size = 10_000 * growth
    rows = _random(seed, scale, (size, size), (500, size))
    columns = rows.rechunk((scaled(size, scale), scaled(500, scale)))
    return columns.sum(axis=0).max()


def _overlap(scale: float, seed: int, growth: float = 1.0) -> Any:
    x = _square(seed, scale, 8_000 * growth)
    return x.map_overlap(four_point_mean, depth=1, boundary="none").mean()


def _svd(scale: float, seed: int, growth: float = 1.0) -> Any:
    _, singular_values, _ = da.linalg.svd(_random(seed, scale, (200_000 * growth, 100), (10_000, 100)))
    return singular_values


#: What the array workloads compute, by name: given scale, seed and growth, makes the collection.
COLLECTIONS: dict[str, Callable[..., Any]] = {
    "random-sum": _random_sum,
    "elementwise": _elementwise,
    "transcendental": _transcendental,
    "standardise": _standardise,
    "shifted-difference": _shifted_difference,
    "matmul": _matmul,
    "rechunk": _rechunk,
    "overlap": _overlap,
    "svd": _svd,
}


# The bounds below are what uniform random numbers give, plus at least five standard deviations.
# They catch a wrong answer even where one peer runs alone; where several run, the report compares
# them far more sharply.


def near(centre: float, tolerance: float) -> Bounds:
    """Return the range of numbers that differ by no more than a tolerance."""
    return centre - tolerance, centre + tolerance


def _random_sum_bounds(scale: float) -> Bounds:
    n = scaled(14_000, scale)
    return near(n**2 / 2, 3 * n)


def _elementwise_bounds(scale: float) -> Bounds:
    # With E[x] = 1/2 and E[x²] = 1/3: (25/9 + 1)/3 + (10/3 - 1/2)/2 + 4.
    return near(34 / 27 + 17 / 12 + 4, 30 / scaled(10_000, scale))


def _transcendental_bounds(scale: float) -> Bounds:
    n = scaled(8_000, scale)
    return near(n**2 * (1 + math.sqrt(math.pi / 2) * math.erf(math.sqrt(0.5))), 3 * n)


def _standardise_bounds(scale: float) -> Bounds:
    # The largest uniform number stands sqrt(3) deviations above the mean.
    return 1.7, math.sqrt(3) + 10 / math.sqrt(scaled(10_000, scale))


def _shifted_difference_bounds(scale: float) -> Bounds:
    return near(0, 4 * scaled(9_000, scale))


def _matmul_bounds(scale: float) -> Bounds:
    n = scaled(4_000, scale)
    return near(n**3 / 4 + n**2 / 12, 3 * n**2)


def _rechunk_bounds(scale: float) -> Bounds:
    n = scaled(10_000, scale)
    return n / 2, n / 2 + 7 * math.sqrt(n / 12)


def _overlap_bounds(scale: float) -> Bounds:
    return near(0.5, 3 / scaled(8_000, scale))


def _svd_bounds(scale: float) -> Bounds:
    largest = math.sqrt(scaled(200_000, scale) * (scaled(100, scale) / 4 + 1 / 12))
    return 0.95 * largest, 1.05 * largest


def _array(name: str, summary: str, bounds: Callable[[float], Bounds]) -> Workload:
    build = COLLECTIONS[name]

    def prepare(scale: float, seed: int) -> Callable[[Get], Any]:
        # The graph is built inside the call: a user waits for that too.
        return lambda get: build(scale, seed).compute(scheduler=get)

    return Workload(name, "array", summary, prepare, numbers, bounds)


# --- task workloads -------------------------------------------------------------------------------


def independent_noops(count: int, seed: int) -> dict[str, tuple[Any, ...]]:
    """Return so many tasks that do nothing and need nothing; the seed is a part of all keys."""
    return {f"noop-{seed}-{number}": (noop,) for number in range(count)}


def _noops(full_count: int) -> Workload:
    def count(scale: float) -> int:
        return scaled(full_count, scale)

    def prepare(scale: float, seed: int) -> Callable[[Get], Any]:
        dsk = independent_noops(count(scale), seed)
        return lambda get: get(dsk, list(dsk))

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


def _many_chunks(scale: float, seed: int) -> Callable[[Get], Any]:
    shape = 10 * _many_chunks_count(scale)
    return lambda get: (da.ones(shape, chunks=10) * 2 + 1).sum().compute(scheduler=get)


def _gil(scale: float, seed: int) -> Callable[[Get], Any]:
    iterations = scaled(GIL_ITERATIONS, scale)

    def call(get: Get) -> Any:
        # Not pure: each call gets keys of its own.
        tasks = [_dask.delayed(hold_gil, pure=False)(iterations) for _ in range(GIL_TASKS)]
        return _dask.compute(*tasks, scheduler=get)

    return call


def _trees(name: str, full_leaves: int) -> Workload:
    def leaves(scale: float) -> int:
        return scaled(full_leaves, scale)

    def prepare(scale: float, seed: int) -> Callable[[Get], Any]:
        dsk = tree_of_sums(leaves(scale), seed)
        return lambda get: get(dsk, f"tree-{seed}-1")

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


_WORKLOADS = (
    _array("random-sum", "sum of 14000² random numbers", _random_sum_bounds),
    _array("elementwise", "mean of a chain of arithmetic at 10000²", _elementwise_bounds),
    _array(
        "transcendental",
        "sum of sin, cos and exp at 8000²",
        _transcendental_bounds,
    ),
    _array(
        "standardise",
        "largest standard score by column at 10000²",
        _standardise_bounds,
    ),
    _array(
        "shifted-difference",
        "sum of a difference shifted across chunk borders at 9000²",
        _shifted_difference_bounds,
    ),
    _array("matmul", "sum of a @ a.T at 4000²", _matmul_bounds),
    _array("rechunk", "rows of 500 to columns of 500 at 10000²", _rechunk_bounds),
    _array("overlap", "mean of a four-point stencil at 8000²", _overlap_bounds),
    _array("svd", "singular values of 200000 x 100", _svd_bounds),
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

#: Everything that can be asked for, by name, in the order of the report.
CATALOGUE: dict[str, Workload | Probe] = {
    **{workload.name: workload for workload in _WORKLOADS},
    **PROBES,
}


def group_of(name: str) -> Group:
    """Tell to which group a workload or probe belongs.

    Parameters
    ----------
    name
        A key of `CATALOGUE`.

    Returns
    -------
    str
        ``"array"``, ``"tasks"`` or ``"latency"``.
    """
    subject = CATALOGUE[name]
    return "latency" if isinstance(subject, Probe) else subject.group


#: Names by group.
GROUPS: dict[Group, list[str]] = {
    group: [name for name in CATALOGUE if group_of(name) == group] for group in ("array", "tasks", "latency")
}
