"""Array workloads: of random numbers, by `dask.array` and on expressions, of persisted arrays, and of zarr."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
from numpy.typing import NDArray

from benchmarks.functions import four_point_mean
from benchmarks.peers import persist
from benchmarks.workload import Bounds, Group, Setting, Workload, near, numbers, scaled

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
da: Any = dask.array

#: Lengths of an array, and of its chunks.
Shape = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class _Case:
    """A computation of arrays of uniform random numbers."""

    name: str
    #: One line for people.
    summary: str
    #: Given a factor on lengths that leaves chunks as they are, the arrays it is of.
    inputs: Callable[[float], Sequence[Shape]]
    #: Of these arrays.
    compute: Callable[..., Any]
    #: As of `Workload`.
    bounds: Callable[[float], Bounds]
    digest: Callable[[Any], NDArray[np.float64]] = numbers

    def shapes(self, scale: float, growth: float = 1.0) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return lengths and chunks of the arrays at a scale."""
        return [
            (tuple(scaled(size, scale) for size in shape), tuple(scaled(size, scale) for size in chunks))
            for shape, chunks in self.inputs(growth)
        ]

    def generated(self, scale: float, seed: int, growth: float = 1.0, module: Any = da) -> list[Any]:
        """Return the arrays as they come from the generator of a module of arrays."""
        shapes = self.shapes(scale, growth)
        return [
            module.random.default_rng(len(shapes) * seed + number).random(shape, chunks=chunks)
            for number, (shape, chunks) in enumerate(shapes)
        ]

    def collection(self, scale: float, seed: int, growth: float = 1.0, module: Any = da) -> Any:
        """Return what it computes of random numbers, with a module of arrays."""
        return self.compute(*self.generated(scale, seed, growth, module))

    def files(self, scale: float, directory: Path) -> list[Path]:
        """Name the stores of the arrays; arrays of the same form share theirs."""
        return [
            directory / f"random-{number}-{'x'.join(map(str, shape))}-{'x'.join(map(str, chunks))}.zarr"
            for number, (shape, chunks) in enumerate(self.shapes(scale))
        ]


def _squares(size: float, chunk: float = 1000, count: int = 1) -> Callable[[float], list[Shape]]:
    return lambda growth: [((size * growth, size * growth), (chunk, chunk))] * count


# -- what is computed ---------------------------------------------------------------------------------------------


def _module(x: Any) -> Any:
    """Return the module of an array: `dask.array`, or the one of expressions."""
    return da if isinstance(x, da.Array) else importlib.import_module("dask_array")


def _elementwise(x: Any) -> Any:
    return ((x * 2 + 1 - x / 3) ** 2 + x * x - 0.5 * x + 3).mean()


def _transcendental(x: Any) -> Any:
    return (np.sin(x) ** 2 + np.cos(x) ** 2 + np.exp(-(x**2) / 2)).sum()


def _standardise(x: Any) -> Any:
    return ((x - x.mean(axis=0)) / x.std(axis=0)).max()


def _shifted_difference(a: Any, b: Any) -> Any:
    return (a[1:, 1:] - b[:-1, :-1]).sum()


def _rechunk(rows: Any) -> Any:
    columns = rows.rechunk((-1, rows.chunks[0][0]))
    return columns.sum(axis=0).max()


def _overlap(x: Any) -> Any:
    return x.map_overlap(four_point_mean, depth=1, boundary="none").mean()


def _svd(x: Any) -> Any:
    _, singular_values, _ = _module(x).linalg.svd(x)
    return singular_values


def _products(u: Any, v: Any) -> Any:
    return _module(u).stack([(u * u).mean(axis=0), (v * v).mean(axis=0), (u * v).mean(axis=0)])


def _histogram(x: Any) -> Any:
    counts, _ = _module(x).histogram(x, bins=_BINS, range=(0, 1))
    return counts


def _masked_mean(x: Any) -> Any:
    module = _module(x)
    return module.nanmean(module.where(x > _MASKED_ABOVE, np.nan, x), axis=0).max()


_BINS = 100
_MASKED_ABOVE = 0.9


# -- where right answers lie --------------------------------------------------------------------------------------

# The bounds below are what uniform random numbers give, plus at least five standard deviations.
# They catch a wrong answer even where one peer runs alone; where several run, the report compares
# them far more sharply.


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


def _largest_sum_bounds(scale: float) -> Bounds:
    n = scaled(10_000, scale)
    return n / 2, n / 2 + 7 * math.sqrt(n / 12)


def _overlap_bounds(scale: float) -> Bounds:
    return near(0.5, 3 / scaled(8_000, scale))


def _svd_bounds(scale: float) -> Bounds:
    largest = math.sqrt(scaled(200_000, scale) * (scaled(100, scale) / 4 + 1 / 12))
    return 0.95 * largest, 1.05 * largest


def _products_bounds(scale: float) -> Bounds:
    # The largest mean of a square, which has a deviation of 0.3 by itself.
    return 1 / 3, 1 / 3 + 7 * 0.3 / math.sqrt(scaled(7_000, scale))


def _cumulative_sum_bounds(scale: float) -> Bounds:
    return near((scaled(8_000, scale) + 1) / 4, 1.5)


def _histogram_bounds(scale: float) -> Bounds:
    expected = scaled(6_000, scale) ** 2 / _BINS
    return expected, expected + 7 * math.sqrt(expected) + 2


def _masked_mean_bounds(scale: float) -> Bounds:
    mean = _MASKED_ABOVE / 2
    return mean, mean + 7 * 0.3 / math.sqrt(scaled(10_000, scale))


_CASES = (
    _Case("random-sum", "sum of 14000² numbers", _squares(14_000), lambda x: x.sum(), _random_sum_bounds),
    _Case(
        "elementwise",
        "mean of a chain of arithmetic at 10000²",
        _squares(10_000),
        _elementwise,
        _elementwise_bounds,
    ),
    _Case(
        "transcendental",
        "sum of sin, cos and exp at 8000²",
        _squares(8_000),
        _transcendental,
        _transcendental_bounds,
    ),
    _Case(
        "standardise",
        "largest standard score by column at 10000²",
        _squares(10_000),
        _standardise,
        _standardise_bounds,
    ),
    _Case(
        "shifted-difference",
        "sum of a difference shifted across chunk borders at 9000²",
        _squares(9_000, 1_600, count=2),
        _shifted_difference,
        _shifted_difference_bounds,
    ),
    _Case("matmul", "sum of a @ a.T at 4000²", _squares(4_000), lambda a: (a @ a.T).sum(), _matmul_bounds),
    _Case(
        "rechunk",
        "rows of 500 to columns of 500 at 10000²",
        lambda growth: [((10_000 * growth, 10_000 * growth), (500, 10_000 * growth))],
        _rechunk,
        _largest_sum_bounds,
    ),
    _Case("overlap", "mean of a four-point stencil at 8000²", _squares(8_000), _overlap, _overlap_bounds),
    _Case(
        "svd",
        "singular values of 200000 x 100",
        lambda growth: [((200_000 * growth, 100), (10_000, 100))],
        _svd,
        _svd_bounds,
    ),
    _Case(
        "products",
        "means of u * u, v * v and u * v by column at 7000²",
        _squares(7_000, count=2),
        _products,
        _products_bounds,
        lambda means: numbers([means.max(), means.min(), means.mean()]),
    ),
    _Case(
        "thin-columns",
        "largest sum of a row at 10000² in chunks of 100 columns",
        lambda growth: [((10_000 * growth, 10_000 * growth), (10_000 * growth, 100))],
        lambda x: x.sum(axis=1).max(),
        _largest_sum_bounds,
    ),
    _Case(
        "cumulative-sum",
        "mean of sums down to each row at 8000²",
        _squares(8_000),
        lambda x: x.cumsum(axis=0).mean(),
        _cumulative_sum_bounds,
    ),
    _Case("histogram", "histogram of 6000² numbers in 100 bins", _squares(6_000), _histogram, _histogram_bounds),
    _Case(
        "masked-mean",
        "largest mean by column of what a condition leaves at 10000²",
        _squares(10_000),
        _masked_mean,
        _masked_mean_bounds,
    ),
)

#: What the array workloads compute, by name: given scale, seed and growth, makes the collection. Growth gives
#: graphs of the same form with more chunks: it multiplies shapes, and leaves chunks as they are.
COLLECTIONS: dict[str, Callable[..., Any]] = {case.name: case.collection for case in _CASES}


# -- where the numbers come from ----------------------------------------------------------------------------------


def _from_generator(case: _Case, setting: Setting) -> Callable[[], Any]:
    # Users also wait for Dask to build the graph, so it is timed.
    return lambda: case.collection(setting.scale, setting.seed).compute(scheduler=setting.get)


def _from_expressions(case: _Case, setting: Setting) -> Callable[[], Any]:
    module = importlib.import_module("dask_array")
    return lambda: case.collection(setting.scale, setting.seed, module=module).compute(scheduler=setting.get)


def _from_persisted(case: _Case, setting: Setting) -> Callable[[], Any]:
    arrays = persist(setting.get, *case.generated(setting.scale, setting.seed))
    return lambda: case.compute(*arrays).compute(scheduler=setting.get)


def _from_zarr(case: _Case, setting: Setting) -> Callable[[], Any]:
    files = case.files(setting.scale, setting.directory)
    return lambda: case.compute(*map(da.from_zarr, files)).compute(scheduler=setting.get)


def _write_zarr(case: _Case, scale: float, directory: Path) -> None:
    # Without annotations of its own for what is used here.
    threaded: Any = importlib.import_module("dask.threaded")
    for file, array in zip(case.files(scale, directory), case.generated(scale, 0), strict=True):
        if not file.exists():
            dask.compute(array.to_zarr(file, compute=False), scheduler=threaded.get)  # type: ignore[attr-defined]


_PREPARE: dict[Group, Callable[[_Case, Setting], Callable[[], Any]]] = {
    "array": _from_generator,
    "expressions": _from_expressions,
    "persisted": _from_persisted,
    "zarr": _from_zarr,
}


#: Behind the summary of a case.
_SUMMARIES: dict[Group, str] = {
    "array": "",
    "expressions": ", on expressions",
    "persisted": ", persisted",
    "zarr": ", from zarr",
}
_NEEDED: dict[Group, tuple[str, ...]] = {"expressions": ("dask_array",), "zarr": ("zarr",)}


def _workload(case: _Case, group: Group) -> Workload:
    return Workload(
        case.name if group == "array" else f"{case.name}:{group}",
        group,
        case.summary + _SUMMARIES[group],
        partial(_PREPARE[group], case),
        case.digest,
        case.bounds,
        make=partial(_write_zarr, case) if group == "zarr" else None,
        modules=_NEEDED.get(group, ()),
    )


ARRAY_WORKLOADS = tuple(_workload(case, group) for group in _PREPARE for case in _CASES)
