"""Deletes names of Dask's, and computes a program in a forked process: `deleted_names.py NAME,NAME... NAME...`.

Prints a line of JSON for each argument: its names, the error or None, which of them warnings name, and whether
results differ.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd

try:
    import dask_array
except ImportError:
    dask_array = None

MODULES = ("core", "arrays", "frames", "bags", *(["expressions"] if dask_array else []))


def program(scheduler: Any) -> list[Any]:
    """Compute something of each front and pass."""
    x = da.random.default_rng(0).random((60, 40), chunks=(20, 20))
    held = da.from_array(np.arange(2400.0).reshape(60, 40), chunks=(20, 20))
    target = np.zeros((60, 40))
    frame = pd.DataFrame({"a": np.arange(60) % 7, "b": np.arange(60.0)})
    frames = dd.from_pandas(frame, npartitions=3)
    histogram, _ = da.histogram(x, bins=8, range=(0, 1))
    thin = da.random.default_rng(1).random((80, 4), chunks=(20, 4))
    with dask.config.set(scheduler=scheduler):
        da.store(held + 1, target, lock=True)
        array_results = dask.compute(
            x.sum(),
            x.std(axis=0),
            da.nanmean(x),
            (x @ x.T).sum(),
            held[5:40:3, ::2].rechunk((7, 9)),
            held.map_overlap(lambda block: block + 1, depth=1),
            np.sqrt(held).astype("f4").max(axis=1),
            da.ones((60, 40), chunks=20) + held.min(),
            da.linalg.svd(thin)[1],
            histogram,
        )
        others = dask.compute(
            frames.assign(c=frames.b + 1).groupby("a").c.mean(),
            frames.merge(frames, on="a").b_x.sum(),
            frames.shuffle("a").b.count(),
            db.from_sequence(range(20), npartitions=4).groupby(lambda n: n % 3).map(lambda group: len(group[1])),
            dask.delayed(sum)([dask.delayed(abs)(-2), 3]),
        )
        expression_results = expressions() if dask_array else []
    return [*array_results, *expression_results, *[np.sort(np.asarray(value).ravel()) for value in others], target]


def expressions() -> list[Any]:
    """Compute something of each kind of array expressions."""
    x = dask_array.random.default_rng(0).random((60, 40), chunks=(20, 20))
    held = dask_array.from_array(np.arange(2400.0).reshape(60, 40), chunks=(20, 20))
    read = dask_array.from_array(Readable(), chunks=(20, 20))
    return list(
        dask.compute(
            (x * 2 + 1).sum(),
            x.std(axis=0) - x.mean(axis=0),
            (x @ x.T).sum(),
            held[5:40:3, ::2].rechunk((7, 9)),
            held.map_overlap(lambda block: block + 1, depth=1),
            dask_array.concatenate([held[:, None], dask_array.ones((60, 1, 40), chunks=(20, 1, 20))], axis=1),
            held.argmax(axis=0) + read[3:].max(axis=0).astype("f4"),
            x.cumsum(axis=0) + dask_array.broadcast_to(held[:1].cumprod(axis=1), held.shape, chunks=held.chunks),
            dask_array.take(held, [38, 1, 5], axis=1),
            dask_array.histogram(x, bins=4, range=(0, 1))[0],
            dask_array.squeeze(x.max(axis=0, keepdims=True), axis=0),
            dask_array.from_map(np.ones, [2, 3], chunks=((2, 3),)),
        )
    )


class Readable:
    """An object that is read by parts."""

    shape, dtype, ndim = (60, 40), np.dtype(float), 2

    def __getitem__(self, index: Any) -> Any:
        return np.ones(self.shape)[index]


def deleted(path: str) -> tuple[Any, str, Any]:
    """Delete a name; return what puts it back."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        value = getattr(owner, parts[count])
        delattr(owner, parts[count])
        return owner, parts[count], value
    raise LookupError(path)


def outcome(paths: list[str], expected: list[Any]) -> dict[str, Any]:
    """Import dask_mars without some names, and compute with them put back, as another release has others."""
    put_back = [deleted(path) for path in paths]
    found: dict[str, Any] = {"names": paths, "error": None, "warned": [], "differs": False}
    try:
        import dask_mars

        for module in MODULES:
            importlib.import_module(f"dask_mars.dask_api.{module}")
    except ImportError as error:
        found["error"] = f"{type(error).__name__}: {error}"
        return found
    finally:
        for owner, name, value in put_back:
            setattr(owner, name, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = program(dask_mars.get)
    said = " ".join(str(entry.message) for entry in caught)
    found["warned"] = [path for path in paths if path in said]
    for one, other in zip(ours, expected, strict=True):
        if not np.allclose(one, other) or np.asarray(one).dtype != np.asarray(other).dtype:
            found["differs"] = True
    return found


def main() -> None:
    """Fork a process for each argument."""
    expected = program("sync")
    for argument in sys.argv[1:]:
        paths = argument.split(",")
        sys.stdout.flush()
        if not (child := os.fork()):
            try:
                print(json.dumps(outcome(paths, expected)), flush=True)
            except BaseException:
                print(json.dumps({"names": paths, "error": traceback.format_exc()}), flush=True)
            finally:
                dask_mars = sys.modules.get("dask_mars")
                if dask_mars is not None:
                    dask_mars.close()
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
