"""Random computations for the soak: each is drawn from a generator of random numbers, known by what it drew."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask
import dask.array
import numpy as np

from tests.fuzz.compare import difference
from tests.soak import tasks

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

#: Most tasks of a delayed graph, and most chunks of an array by one dimension.
_MOST_TASKS = 60
_MOST_PIECES = 7

Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Workload:
    """Something to compute."""

    name: str
    #: What Dask is asked to compute, made anew for each scheduler that is.
    build: Callable[[], list[Any]]


def draw(rng: Generator, most_bytes: int, *, frames: bool = True) -> Workload:
    """Draw a computation."""
    name = str(rng.choice([kind for kind in KINDS if frames or kind != "frame"]))
    seed = int(rng.integers(1 << 32))
    size = int(most_bytes * rng.uniform(0.02, 1))
    return Workload(f"{name}:{seed}:{size}", lambda: KINDS[name](np.random.default_rng(seed), size))


def read_again(collections: list[Any]) -> list[Any]:
    """Return what reads chunks of arrays several times, and has results that lie where the chunks do."""
    arrays = [x for x in collections if isinstance(x, da.Array) and x.ndim and not np.isnan(x.shape).any()]
    return [found for x in arrays for found in (x.T, x[::-1], da.maximum(x, x[::-1]))]


def _some(rng: Generator, ways: list[Callable[[], Any]], most: int) -> list[Any]:
    """Return what some of several ways lead to, each of which is taken once at most."""
    return [ways[int(number)]() for number in rng.choice(len(ways), int(rng.integers(1, most + 1)), replace=False)]


# -- arrays -------------------------------------------------------------------------------------------------------


def _pieces(rng: Generator, length: int) -> tuple[int, ...]:
    """Cut a length into pieces, equal ones more often than not."""
    count = int(rng.integers(1, _MOST_PIECES + 1))
    if rng.random() < 0.7:
        return tuple(len(piece) for piece in np.array_split(np.empty(length), count))
    cuts = np.unique(rng.integers(1, max(length, 2), count))
    return tuple(int(size) for size in np.diff([0, *cuts[cuts < length], length]))


def _array(rng: Generator, size_bytes: int) -> Any:
    """Make a two-dimensional array."""
    dtype = np.dtype(str(rng.choice(["f8", "f8", "f4", "i8", "i4"])))
    elements = max(64, size_bytes // dtype.itemsize)
    rows = int(rng.integers(4, max(5, int(elements**0.5) * 3)))
    shape = (rows, max(4, elements // rows))
    chunks = tuple(_pieces(rng, length) for length in shape)
    kind = rng.integers(4)
    if kind == 0:
        x = da.arange(shape[0] * shape[1], chunks=-1, dtype=dtype).reshape(shape).rechunk(chunks) % 1000
    elif kind == 1:
        x = da.full(shape, 3, chunks=chunks, dtype=dtype)
    elif kind == 2:
        x = da.from_array(np.arange(shape[0] * shape[1], dtype="i4").reshape(shape) % 97, chunks=chunks)
    else:
        x = (da.random.default_rng(int(rng.integers(1 << 32))).random(shape, chunks=chunks) * 100).astype(dtype)
    return x.astype(dtype)


def _small(rng: Generator, x: Any) -> list[Any]:
    """Return small things that depend on all of an array."""
    ways: list[Callable[[], Any]] = [
        lambda: x.sum(),
        lambda: x.mean(axis=0),
        lambda: x.max(axis=1),
        lambda: x.std(),
        lambda: x[:: max(1, x.shape[0] // 7), :: max(1, x.shape[1] // 5)],
        lambda: (x > 50).sum(axis=int(rng.integers(2))),
        lambda: x.argmax(axis=0),
        lambda: da.where(x > x.mean(), x, 0).sum(axis=1),
    ]
    return _some(rng, ways, 3)


def _elementwise(rng: Generator, size_bytes: int) -> list[Any]:
    x = _array(rng, size_bytes)
    y = (x * 2 + 1) - x // 3
    # Sums of signed deviations are nothing but rounding.
    return _small(rng, abs(y - y.mean()) if rng.random() < 0.5 else y)


def _rechunked(rng: Generator, size_bytes: int) -> list[Any]:
    x = _array(rng, size_bytes)
    y = x.rechunk(tuple(_pieces(rng, length) for length in x.shape))
    return _small(rng, y + 1) + ([x] if rng.random() < 0.3 else [])


# -- graphs of tasks ----------------------------------------------------------------------------------------------


def _delayed(rng: Generator, size_bytes: int) -> list[Any]:
    """Make a graph in which each task reads some of those before it."""
    count = int(rng.integers(2, _MOST_TASKS))
    length = max(1, size_bytes // count // 8)
    made: list[Any] = []
    for number in range(count):
        degree = min(len(made), int(rng.integers(0, 4)))
        chosen = [made[int(source)] for source in rng.choice(len(made), degree, replace=False)] if degree else []
        own_length = int(length * rng.uniform(0, 2)) + 1
        function = rng.choice(np.array([tasks.mix, tasks.mix, tasks.mix_object, tasks.mix_unsendable]))
        made.append(_dask.delayed(function, pure=False)(number, own_length, *chosen))
    if rng.random() < 0.1:
        made.append(_dask.delayed(tasks.fail, pure=False)(*made[-2:]))
    outputs = [made[int(number)] for number in rng.choice(len(made), min(3, len(made)), replace=False)]
    return [_dask.delayed(tasks.digest, pure=False)(value) for value in [*outputs, made[-1]]]


def _hungry(rng: Generator, size_bytes: int) -> list[Any]:
    """Make tasks whose memory is not NumPy's, and that are done with it when they end."""
    count = int(rng.integers(2, 12))
    made: list[Any] = []
    for number in range(count):
        inputs = made[-1:] if rng.random() < 0.3 else []
        made.append(_dask.delayed(tasks.take, pure=False)(number, int(size_bytes * rng.uniform(0, 1)), *inputs))
    return made


def _frame(rng: Generator, size_bytes: int) -> list[Any]:
    import dask.dataframe as dd

    rows = max(10, size_bytes // 40)
    parts = int(rng.integers(1, 10))
    frame = dd.from_map(tasks.frame, range(parts), rows=rows // parts + 1, meta=tasks.frame(0, 1))
    ways: list[Callable[[], Any]] = [
        lambda: frame.x.sum(),
        lambda: frame.groupby("key").x.mean(),
        lambda: frame.groupby("key").agg({"x": "max", "y": "sum"}),
        lambda: frame[frame.y > 500].x.std(),
        lambda: frame.merge(frame.groupby("key").y.max().reset_index(), on="key", how="inner").x.sum(),
        lambda: frame.set_index("y").x.sum(),
        lambda: (frame.x - frame.x.mean()).abs().max(),
    ]
    return _some(rng, ways, 2)


#: How each kind of computation is made: what the fuzzer draws is small, and these fill the memory.
KINDS: dict[str, Callable[[Generator, int], list[Any]]] = {
    "elementwise": _elementwise,
    "rechunked": _rechunked,
    "delayed": _delayed,
    "hungry": _hungry,
}
if importlib.util.find_spec("pandas") is not None:
    KINDS["frame"] = _frame


# -- comparing ----------------------------------------------------------------------------------------------------


def differences(ours: Any, expected: Any) -> str:
    """Say how lists of results differ, but for rounding and the order of a dataframe's rows."""
    return difference(*([_in_order(value) for value in values] for values in (ours, expected)), rounded=True)


def _in_order(value: Any) -> Any:
    return value.sort_index() if hasattr(value, "sort_index") else value
