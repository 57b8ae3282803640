"""Exceptions after which a task is run again, as it would not fail in the user's process."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

#: How NumPy, Python's buffers, Cython, numba and OpenCV say that memory cannot be written to, and NumPy that an
#: array cannot grow or shrink where it is.
_READ_ONLY = re.compile(
    r"read-?only|read-write|not writ(e)?able|WRITEABLE flag|does not own its data", re.IGNORECASE
)
#: How h5py says that another process has a file open, and the error of netCDF4 that may mean the same.
_LOCKED = "unable to lock file"
_NETCDF_HDF_ERROR = -101
#: How pickle and imports say that ``__main__`` lacks a name, and that what travelled by value is not its module's.
#: What pickle says at loading names a module by how it was run.
_NOT_IN_MAIN = re.compile(
    r"Can't get attribute|on __main__ failed|module '__main__' has no|from '__main__'|not found as __main__"
    r"|not the same object as|import of module .+ failed"
)
#: How many exceptions of a chain are looked at: it may go in circles.
_LINKS = 20


def is_about_writing(error: BaseException) -> bool:
    """Say whether an exception, or one that has led to it, says that memory cannot be written to.

    Libraries have exceptions of their own for it, and put those of others in the place of NumPy's.
    """
    return any(map(_says_read_only, _chain(error)))


def is_about_file_lock(error: BaseException) -> bool:
    """Say whether an exception, or one that has led to it, says that HDF5 found a file locked.

    The user's own process may have it open for writing. What is written there, and is not in the file yet, nobody
    else can read.
    """
    return any(map(_says_locked, _chain(error)))


def is_about_main(error: BaseException) -> bool:
    """Return whether an exception, or one that has led to it, says that ``__main__`` lacks a name.

    The user's own process has all of the script, where only what a graph refers to has travelled.
    """
    return any(isinstance(link, Exception) and _says(_NOT_IN_MAIN, link) for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_LINKS):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _says_locked(error: BaseException) -> bool:
    if not isinstance(error, OSError):
        return False
    if error.errno == _NETCDF_HDF_ERROR:
        return True
    return error.errno in (errno.EAGAIN, errno.EACCES) and _LOCKED in str(error)


def _says_read_only(error: BaseException) -> bool:
    # What the system says of files is no matter of arrays, and what ends the process is not to be tried again.
    if isinstance(error, OSError) or not isinstance(error, Exception):
        return False
    return _says(_READ_ONLY, error)


def _says(pattern: re.Pattern[str], error: BaseException) -> bool:
    try:
        return bool(pattern.search(str(error)))
    except Exception:
        return False


__all__ = ["is_about_file_lock", "is_about_main", "is_about_writing"]
