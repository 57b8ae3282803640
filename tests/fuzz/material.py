"""What programs refer to by name: data made from seeds, and functions for their tasks."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

# Workers import this module, again after each kill; so the rest is imported where it is used.

#: Arrays that the program has been given and that are its own: results may be views of them, under any scheduler.
given: list[Any] = []

WORDS = ["", "ant", "bee", "cat", "dog", "eel", "fox", "gnu"]


class OnPurpose(Exception):
    """What tasks raise that are meant to fail."""


def values(seed: int, shape: Any, dtype: Any = "f8", missing: float = 0.0) -> Any:
    """Return an array of random elements."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    array = _random(rng, seed, shape, dtype)
    if missing and dtype.kind in "fcMm" and array.ndim:
        array[rng.random(shape) < missing] = np.nan if dtype.kind in "fc" else "NaT"
    given.append(array)
    return array


def _random(rng: np.random.Generator, seed: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    match dtype.kind:
        case "b":
            array = rng.random(shape) < 0.5
        case "i":
            array = rng.integers(-20, 20, shape)
        case "u":
            array = rng.integers(0, 30, shape)
        case "f":
            array = rng.normal(size=shape) * 3 if seed % 2 else rng.integers(-40, 40, shape) / 4
        case "c":
            array = rng.normal(size=shape) + 1j * rng.normal(size=shape)
        case "M":
            array = np.datetime64("2001-02-03") + rng.integers(0, 800, shape).astype("m8[D]")
        case "m":
            array = rng.integers(-5000, 5000, shape).astype("m8[s]")
        case "U" | "S":
            array = rng.choice(np.array(WORDS), shape)
        case "O":
            array = rng.integers(-20, 20, shape).astype(object)
        case "V":
            array = np.zeros(shape, dtype)
            for number, name in enumerate(dtype.names or ()):
                array[name] = values(seed + number, shape, dtype[name])
        case _:
            raise TypeError(dtype)
    return np.asarray(array).astype(dtype)


class Lazily:
    """An array in a file, as it were: it can be sliced, and is no array of NumPy."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]


def table(seed: int, rows: int) -> Any:
    """Return a dataframe with columns of several types."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    floats = rng.integers(-40, 40, rows) / 4 if seed % 2 else rng.normal(size=rows)
    return pd.DataFrame(
        {
            "key": rng.integers(0, 5, rows),
            "number": rng.integers(-100, 100, rows),
            "value": np.where(rng.random(rows) < 0.1, np.nan, floats),
            "word": rng.choice(np.array(WORDS[1:], dtype=object), rows),
            "group": pd.Categorical(rng.choice(np.array(WORDS[1:4]), rows), categories=WORDS[1:6]),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 90, rows), unit="D"),
            "flag": rng.random(rows) < 0.5,
        },
        index=pd.RangeIndex(rows) if seed % 3 else np.sort(rng.integers(0, 3 * rows + 1, rows)),
    )


def part(seed: int, rows: int) -> Any:
    """Return a dataframe of numbers, of which several make one of Dask's."""
    import pandas as pd

    return pd.DataFrame({"key": np.arange(rows) % 3, "value": values(seed, rows)})


# -- tasks --------------------------------------------------------------------------------------------------------


def add(*terms: Any) -> Any:
    """Add up what can be added up."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def total(*blocks: Any) -> Any:
    """Add up blocks, which may come one by one or in lists."""
    whole = [np.concatenate(block) if isinstance(block, list) else block for block in blocks]
    return np.asarray(sum([block.sum() for block in whole])).reshape(1)


def fail(text: str, *others: Any) -> Any:
    """Raise."""
    raise OnPurpose(text)


def fail_if(limit: float, value: Any) -> Any:
    """Raise where a value is larger."""
    if np.any(np.asarray(value) > limit):
        raise ValueError(f"something is larger than {limit}")
    return value


def describe(value: Any) -> str:
    """Return what a task can see of what it was given."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {describe(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    if isinstance(value, np.ndarray | np.generic):
        return f"{type(value).__name__} {value.dtype.str} {value.shape}"
    return type(value).__name__


def nested(length: int, value: Any = 0) -> Any:
    """Compute something with Dask in a task."""
    import dask.array as da

    x = da.arange(length, chunks=3) + np.asarray(value).sum()
    return da.compute(x.sum(), x[::2])


def changed_in_place(block: Any) -> Any:
    """Write into the input, which is allowed under threads if nothing else reads it."""
    block = block + 0
    block[...] = block * 2
    return block


def written_to(block: Any) -> Any:
    """Write into the input itself where that does no harm: it is the same twice."""
    block[...] = block
    return block * 2


def located(block: Any, block_info: Any = None) -> Any:
    """Add what a block knows of its place."""
    if not block_info:
        return block
    info = block_info[0]
    return block + sum(start for start, _ in info["array-location"]) + 10 * sum(info["chunk-location"])


def numbered(block: Any, block_id: Any = None) -> Any:
    """Add a block's number."""
    return block + (sum(block_id) if block_id else 0)


def smooth(block: Any) -> Any:
    """Average each element with those before it."""
    total = block
    for axis in range(block.ndim):
        total = total + np.roll(block, 1, axis)
    return total


def spread(block: Any) -> Any:
    """Return the largest less the smallest along the last axis, as a generalised ufunc does."""
    return block.max(axis=-1) - block.min(axis=-1)


def first_and_last(vector: Any) -> Any:
    """Return the ends of a vector."""
    return np.array([vector[0], vector[-1]]) if len(vector) else np.zeros(2, vector.dtype)


def plain(block: Any) -> Any:
    """Return an array whose elements are those of a masked one, or what it is."""
    return np.ma.filled(block) if isinstance(block, np.ma.MaskedArray) else block


def assigned(array: Any, index: Any, value: Any) -> Any:
    """Return a copy of an array into which something has been written."""
    array = array.copy()
    array[index] = value
    return array


def stored(arrays: Iterable[Any], regions: Any = None, **options: Any) -> list[Any]:
    """Store Dask arrays in NumPy's and return these."""
    arrays = list(arrays)
    targets = [np.zeros(tuple(map(int, array.shape)), array.dtype) for array in arrays]
    import dask.array as da

    da.store(arrays, targets, **options)
    return targets


def together(*collections: Any) -> list[Any]:
    """Compute collections from as many threads at the same time."""
    import dask

    with ThreadPoolExecutor(len(collections)) as pool:
        return [future.result() for future in [pool.submit(dask.compute, it) for it in collections]]


def is_even(number: Any) -> bool:
    """Return whether a number is even."""
    return number % 2 == 0


def last_digit(number: Any) -> Any:
    """Return a key to group by."""
    return number % 5


def divided(numerator: float, denominator: float) -> float:
    """Divide; this fails with an exception of Python's own."""
    return numerator / denominator


def ordered(frame: Any) -> Any:
    """Sort the rows of a dataframe: shuffles through files give them in any order."""
    frame = frame.reset_index()
    return frame.sort_values(list(frame.columns), kind="stable", ignore_index=True)
