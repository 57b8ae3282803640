"""NumPy is imported when something of it is called, and nothing is of its types before."""

from __future__ import annotations

from tests.conftest import Scripts

_PROGRAM = """
import pickle, sys
from dask_mars.lazy_numpy import np, once_loaded
from dask_mars.protocol.pickling import dumps, plain_bytes

values = 1, "x", [2.5], print, {"a": None}
print(any(isinstance(value, np.ndarray | np.generic | np.dtype) for value in values))
print(any(type(value) is np.ma.MaskedArray or value is np.transpose for value in values))
print(issubclass(int, np.random.Generator), [pickle.loads(dumps(value)) == value for value in values])
print("numpy" in sys.modules, plain_bytes(range(3)))
known = []
once_loaded(lambda numpy: known.append(numpy.__name__))
array = np.ndarray((2,), np.dtype("f8"))
import numpy
print(type(array) is np.ndarray is numpy.ndarray, np.ma.MaskedArray is numpy.ma.MaskedArray, known[0])
print(plain_bytes(array), plain_bytes(np.float32(1)), pickle.loads(dumps(array)).dtype is array.dtype)
print(pickle.loads(dumps(np.dtype(">f4"))), np.random.default_rng(1).integers(1))
try:
    np.nothing
except AttributeError as error:
    print(error)
"""


def test_numpy_comes_with_its_first_use(scripts: Scripts) -> None:
    done = scripts.run("-c", _PROGRAM)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "False",
        "False",
        "False [True, True, True, True, True]",
        "False 16",
        "True True numpy",
        "16 64 True",
        ">f4 0",
        "module 'numpy' has no attribute 'nothing'",
    ]


_IMPORTS = """
import sys
from importlib import import_module
import dask, dask_mars
from dask_mars.engine import early_imports
from dask_mars.lazy_numpy import _NumPy

def refuse(numpy, name):
    raise AssertionError(name)

_NumPy.__getattr__ = refuse
for name in early_imports._MODULES:
    import_module(name)
print("numpy" in sys.modules)
"""


def test_no_module_uses_numpy_at_its_import(scripts: Scripts) -> None:
    done = scripts.run("-c", _IMPORTS)
    assert (done.stdout, done.stderr) == ("False\n", "")
