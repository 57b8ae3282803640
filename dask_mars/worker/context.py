"""What a task finds around it: working directory, import path, environment, Dask's and NumPy's settings, warnings.

Under threads a task shares all of these with the code that asked for it, so a worker takes them over.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np

#: Environment of workers, unless the user has set these: one thread a process, and memory that stays warm.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMEXPR_MAX_THREADS": "1",
    # glibc: keep freed memory instead of faulting fresh pages in for every temporary array.
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    # Equal strings must hash alike in all workers, or grouping by hash would scatter a group over partitions.
    "PYTHONHASHSEED": "6640",
}


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
    )


def _working_directory() -> str | None:
    try:
        return str(Path.cwd())
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


def enter(payload: bytes) -> None:
    """Take over the client's surroundings in a worker."""
    directory, path, environment, config, errors, filters = pickle.loads(payload)
    if directory is not None:
        # If it is gone since, relative paths fail in the task, as they would in the client.
        with contextlib.suppress(OSError):
            os.chdir(directory)
    sys.path[:] = path
    _enter_environment({_text(key): _text(value) for key, value in environment.items()})
    settings = pickle.loads(config)
    # Workers are all the parallelism there is: a nested compute runs where it is. The last of these names is that
    # of a client which is not here.
    if settings.get("scheduler") in (None, "mars", "dask.distributed"):
        settings["scheduler"] = "sync"
    dask.config.config.clear()
    dask.config.config.update(settings)
    np.seterr(**errors)
    warnings.filters[:] = filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _enter_environment(environment: dict[str, str]) -> None:
    environment = {**WORKER_ENVIRONMENT, **environment}
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _text(value: bytes | str) -> str:
    return os.fsdecode(value)
