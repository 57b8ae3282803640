"""Exceptions by which tasks show that they have tried to write into memory that they may only read."""

from __future__ import annotations

import re

#: How NumPy, Python's buffers, Cython, numba and OpenCV say that memory cannot be written to, and NumPy that an
#: array cannot grow or shrink where it is.
_READ_ONLY = re.compile(
    r"read-?only|read-write|not writ(e)?able|WRITEABLE flag|does not own its data", re.IGNORECASE
)
#: How many exceptions of a chain are looked at: it may go in circles.
_LINKS = 20


def is_about_writing(error: BaseException) -> bool:
    """Say whether an exception, or one that has led to it, says that memory cannot be written to.

    Libraries have exceptions of their own for it, and put those of others in the place of NumPy's.
    """
    link: BaseException | None = error
    for _ in range(_LINKS):
        if link is None:
            return False
        if _says_so(link):
            return True
        link = link.__cause__ or link.__context__
    return False


def _says_so(error: BaseException) -> bool:
    # What the system says of files is no matter of arrays, and what ends the process is not to be tried again.
    if isinstance(error, OSError) or not isinstance(error, Exception):
        return False
    try:
        return bool(_READ_ONLY.search(str(error)))
    except Exception:
        return False


__all__ = ["is_about_writing"]
