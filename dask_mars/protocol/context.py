"""The context of a task: directory, import path, environment, settings, warning filters, reloaded modules.

Under threads a task shares all of these with the code that asked for it, so a worker takes them over.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import dask
import numpy as np

from dask_mars.protocol import reloads, thread_limits, zarr_settings

#: Environment of workers, unless the user has set these: one thread a process, and memory that stays warm.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMEXPR_MAX_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "BLOSC_NTHREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
    "POLARS_MAX_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    # What decodes. Zarr's own concurrency and Arrow's threads of input and output wait more than they compute, and
    # with one of these Arrow may wait for itself.
    "ZARR_THREADING__MAX_WORKERS": "1",
    # glibc: keep freed memory instead of faulting fresh pages in for every temporary array.
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    # Equal strings must hash alike in all workers, or grouping by hash would scatter a group over partitions.
    "PYTHONHASHSEED": "6640",
}
#: What libraries go by that have no variable of their own set: who has set it means these as well.
_COMMON = "OMP_NUM_THREADS"
_FOLLOW = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of workers, given the user's."""
    added = WORKER_ENVIRONMENT
    if _COMMON in environment:
        added = {name: value for name, value in added.items() if name not in _FOLLOW}
    return {**added, **environment}


class Context:
    """A snapshot of the client's surroundings.

    Attributes
    ----------
    payload : bytes
        What a worker needs to take them over.
    """

    def __init__(self) -> None:
        self._parts = _snapshot()
        self.payload = pickle.dumps(self._parts)

    def is_current(self) -> bool:
        """Say whether nothing has changed since the snapshot was taken."""
        return self._parts == _snapshot()


def _snapshot() -> tuple[Any, ...]:
    return (
        _working_directory(),
        list(sys.path),
        # The raw mapping: decoding every variable at each call would be half of the cost.
        dict(getattr(os.environ, "_data", None) or os.environ),
        _picklable_config(),
        np.geterr(),
        _picklable_filters(),
        thread_limits.in_force(),
        zarr_settings.in_force(),
        reloads.in_force(),
    )


def _working_directory() -> str | None:
    try:
        # pathlib takes several times as long, and this is asked at each call.
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None


def _picklable_config() -> bytes:
    try:
        return pickle.dumps(dask.config.config)
    except Exception:
        return pickle.dumps({key: value for key, value in dask.config.config.items() if _can_pickle(value)})


def _picklable_filters() -> list[Any]:
    return [entry for entry in warnings.filters if getattr(entry[2], "__module__", "") != "__main__"]


def _can_pickle(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True


def error_state(payload: bytes) -> dict[str, Any]:
    """Return how NumPy treats floating point errors, as `numpy.seterr` takes it, from a `Context`'s payload."""
    errors: dict[str, Any] = pickle.loads(payload)[4]
    return errors


class TaskContext:
    """What the tasks of a computation are to find around them, in a worker.

    Parameters
    ----------
    payload : bytes
        Of a `Context`.
    """

    def __init__(self, payload: bytes) -> None:
        (
            self._directory,
            self._path,
            environment,
            config,
            self._errors,
            self._filters,
            self._limits,
            zarr_variables,
            self._reloads,
        ) = pickle.loads(payload)
        known = {_text(key): _text(value) for key, value in environment.items()}
        # What the user has said to zarr itself counts more than what it has read before.
        self._environment = worker_environment(known | zarr_variables)
        self._settings: dict[str, Any] = pickle.loads(config)
        # Workers are all the parallelism there is: a nested compute runs where it is. The last of these names is
        # that of a client which is not here.
        if self._settings.get("scheduler") in (None, "mars", "dask.distributed"):
            self._settings["scheduler"] = "sync"
        self._entered: tuple[Any, ...] = ()

    def enter(self) -> None:
        """Take them over."""
        if self._directory is not None:
            # If it is gone since, relative paths fail in the task, as they would in the client.
            with contextlib.suppress(OSError):
                os.chdir(self._directory)
        sys.path[:] = self._path
        gone = os.environ.keys() - self._environment.keys()
        changed = [name for name, value in self._environment.items() if os.environ.get(name) != value]
        for name in gone:
            del os.environ[name]
        for name in changed:
            os.environ[name] = self._environment[name]
        if any(name.startswith(zarr_settings.PREFIX) for name in (*gone, *changed)):
            zarr_settings.read_again()
        dask.config.config.clear()
        dask.config.config.update(copy.deepcopy(self._settings))
        for defaults in dask.config.defaults:
            # Of libraries that only tasks have imported.
            dask.config.update(dask.config.config, defaults, priority="old")
        np.seterr(**self._errors)
        warnings.filters[:] = self._filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        thread_limits.apply(self._limits)
        reloads.follow(self._reloads)
        # Tasks may change what is in them.
        self._entered = copy.deepcopy(_present())

    def are_intact(self) -> bool:
        """Say whether all is as it was when it was taken over: tasks may have changed it."""
        try:
            return self._entered == _present()
        except Exception:
            # There is something in Dask's configuration that cannot be compared.
            return False


def _present() -> tuple[Any, ...]:
    environment = getattr(os.environ, "_data", os.environ)
    return _working_directory(), sys.path, environment, np.geterr(), warnings.filters, dask.config.config


def _text(value: bytes | str) -> str:
    return os.fsdecode(value)
