"""Exceptions after which a task runs again, because it would not fail in the user's process."""

from __future__ import annotations

import errno
import re

from dask_mars.errors import StoreFull
from dask_mars.protocol.tracebacks import chain
from dask_mars.worker.outbox import NO_INPUT

#: Messages by which NumPy, Python's buffers, Cython, numba and OpenCV report read-only memory, NumPy's generators
#: a result that "must be contiguous, writable, ...", and NumPy an array that cannot be resized in place.
_READ_ONLY = re.compile(r"read-?only|read-write|\bwrite?able\b|does not own its data", re.IGNORECASE)
#: h5py's message about a file that another process has open, and netCDF4's error that may mean the same.
_LOCKED = "unable to lock file"
_NETCDF_HDF_ERROR = -101
#: Messages of pickle and imports about a name that ``__main__`` lacks, about an object that travelled by value and
#: so is not the one in its module, about a module that only the user's process can import, and of `InputStream`.
_NOT_IN_MAIN = re.compile(
    r"Can't get attribute|on __main__ failed|module '__main__' has no|from '__main__'|not found as __main__"
    r"|not the same object as|import of module .+ failed|Can't pickle .+: No module named|" + NO_INPUT
)


def is_about_writing(error: BaseException) -> bool:
    """Return whether an exception or one of its causes reports read-only memory."""
    # Libraries have exceptions of their own for it, and replace NumPy's.
    return any(map(_says_read_only, chain(error)))


def is_about_file_lock(error: BaseException) -> bool:
    """Return whether an exception or one of its causes reports an HDF5 file that is locked."""
    # The user's own process may have the file open for writing. Only that process can read what is not yet in the
    # file.
    return any(map(_says_locked, chain(error)))


def is_about_main(error: BaseException) -> bool:
    """Return whether an exception or one of its causes reports a name that ``__main__`` lacks, or no input."""
    # The user's own process has the whole script, whereas only names that a graph refers to travel.
    return any(isinstance(link, Exception) and _says(_NOT_IN_MAIN, link) for link in chain(error))


def is_about_memory(error: BaseException) -> bool:
    """Return whether an exception or one of its causes reports a lack of memory."""
    return any(isinstance(link, (MemoryError, StoreFull)) for link in chain(error))


def _says_locked(error: BaseException) -> bool:
    if not isinstance(error, OSError):
        return False
    if error.errno == _NETCDF_HDF_ERROR:
        return True
    return error.errno in (errno.EAGAIN, errno.EACCES) and _LOCKED in str(error)


def _says_read_only(error: BaseException) -> bool:
    # System errors about files do not concern arrays, and exceptions that end the process rule out a retry.
    if isinstance(error, OSError) or not isinstance(error, Exception):
        return False
    return _says(_READ_ONLY, error)


def _says(pattern: re.Pattern[str], error: BaseException) -> bool:
    try:
        return bool(pattern.search(str(error)))
    except Exception:
        return False
