"""Exceptions after which tasks are run again elsewhere."""

from __future__ import annotations

import errno

import pytest

from dask_mars.worker.reruns import is_about_file_lock, is_about_writing


def caused_by(error: BaseException) -> BaseException:
    try:
        raise RuntimeError("cannot open") from error
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (BlockingIOError(errno.EAGAIN, "Unable to open file (unable to lock file, errno = 11)"), True),
        (OSError(-101, "NetCDF: HDF error", "file.nc"), True),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("unable to lock file"), False),
    ],
)
def test_locked_files(error, found):
    assert is_about_file_lock(error) is found
    assert is_about_file_lock(caused_by(error)) is found
    assert not is_about_writing(error)


def test_a_chain_of_exceptions_may_go_in_circles():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert not is_about_file_lock(first)
    assert not is_about_writing(first)
