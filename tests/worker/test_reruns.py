"""Exceptions after which tasks are run again elsewhere."""

from __future__ import annotations

import errno
import pickle

import numpy as np
import pytest

from dask_mars.worker.reruns import is_about_file_lock, is_about_main, is_about_writing


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


@pytest.mark.parametrize("name", ["out", "array"])
def test_generators_that_fill_read_only_arrays(name):
    array = np.zeros(3)
    array.flags.writeable = False
    generator = np.random.default_rng(0)
    fill = {"out": lambda: generator.standard_normal(out=array), "array": lambda: generator.shuffle(array)}[name]
    with pytest.raises(ValueError, match=r"writable|read-only") as caught:
        fill()
    assert is_about_writing(caught.value)


class _Missing:
    """Is not what its module has under its name."""


_Missing.__qualname__ = "test_locked_files"


def raised(code: str) -> Exception:
    try:
        exec(code, {"pickle": pickle, "Missing": _Missing})
    except Exception as error:
        return error
    raise AssertionError(code)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import __main__; __main__.there_is_no_such_name", True),
        ("from __main__ import there_is_no_such_name", True),
        ("pickle.loads(b'c__main__\\nthere_is_no_such_name\\n.')", True),
        ("pickle.dumps(Missing())", True),
        ("pickle._Pickler(__import__('io').BytesIO()).dump(Missing())", True),
        ("pickle.dumps(type('Made', (), {'__module__': '__main__'}))", True),
        ("pickle._dumps(type('Made', (), {'__module__': '__main__'}))", True),
        ("pickle.dumps(type('Made', (), {'__module__': 'no_such_module'}))", True),
        ("pickle.dumps(__import__('threading').Lock())", False),
        ("(lambda: 0).__no_such_attribute__", False),
        ("import no_such_module", False),
    ],
)
def test_names_that_main_lacks(code, found):
    error = raised(code)
    assert is_about_main(error) is found, error
    assert is_about_main(caused_by(error)) is found
    assert not is_about_writing(error)


def test_a_chain_of_exceptions_may_go_in_circles():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert not is_about_file_lock(first)
    assert not is_about_main(first)
    assert not is_about_writing(first)
