"""The environment of worker processes. The import of dask_mars loads this module, so it imports little."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

#: Environment of workers, unless the user has set these: one thread per process, and memory that stays mapped.
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
    # Threads that decode. Zarr's own concurrency and Arrow's I/O threads mostly wait, and with only one of them
    # Arrow may deadlock.
    "ZARR_THREADING__MAX_WORKERS": "1",
    # glibc: keep freed memory instead of faulting fresh pages in for every temporary array.
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    # Equal strings must hash alike in all workers, or grouping by hash would scatter a group over partitions.
    "PYTHONHASHSEED": "6640",
}
#: Fallback of libraries whose own variable is not set: the user's value for it applies to these as well.
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


#: Prefixes of environment variables that libraries read while a template imports them.
_READ_AT_IMPORT = (
    "ARROW", "BLIS", "BLOSC", "FSSPEC", "GOTO", "JE_ARROW", "JOBLIB", "KMP", "LANG", "LC_", "LD_", "MALLOC",
    "MIMALLOC", "MKL", "NPY", "NUMBA", "NUMEXPR", "NUMPY", "OMP", "OPENBLAS", "PANDAS", "PYTHON", "SCIPY",
    "SKLEARN", "TZ", "VECLIB",
)  # fmt: skip
#: Variables that scikit-learn sets at import.
_SET_AT_IMPORT = frozenset({"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"})
_CONTROL_GROUPS = Path("/proc/self/cgroup")


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return everything that a template reads or inherits once, so that another one is needed when it changes."""
    names = [name for name in environment if name.startswith(_READ_AT_IMPORT) and name not in _SET_AT_IMPORT]
    read = {name: environment[name] for name in names}
    ids = f"{os.getuid(), os.geteuid(), os.getgid(), os.getegid(), sorted(os.getgroups()), os.getsid(0)}"
    try:
        groups = _CONTROL_GROUPS.read_text()
    except OSError:
        groups = ""
    return {**read, "sys.executable": sys.executable, "ids": ids, "control groups": groups}
