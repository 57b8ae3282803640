"""Callables by number: which of them have a path, and what becomes of it in another process."""

from __future__ import annotations

import functools
import importlib
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from dask.array.core import getter

from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.graph import functions
from dask_mars.graph.functions import FunctionRegistry, function_id_of, path_of
from dask_mars.protocol.messages import Run
from tests import tasks
from tests.conftest import without_addresses


def twice(value: Any) -> Any:
    return 2 * value


def thrice(value: Any) -> Any:
    return 3 * value


class Shape:
    def area(self) -> int:
        return 6

    @staticmethod
    def corners() -> int:
        return 4

    @classmethod
    def named(cls) -> str:
        return cls.__name__


class Counted:
    """Looks like a function of this module, and has a state that its path does not tell."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls = 0
        functools.update_wrapper(self, function)

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


@Counted
def counted() -> None: ...


@pytest.fixture
def mapping() -> FunctionRegistry:
    return FunctionRegistry()


@pytest.fixture
def module(tmp_path, monkeypatch) -> Iterator[Callable[[str], types.ModuleType]]:
    """Write and import a module, or write it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Two versions written within one second look alike to the cache of compiled modules.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> types.ModuleType:
        (tmp_path / "written_for_test.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        return importlib.import_module("written_for_test")

    yield write
    sys.modules.pop("written_for_test", None)


# -- paths ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function_id", "path"),
    [
        (574610788, "mars.tensor.random.core:TensorRandomOperand"),
        (1112862296, "mars.core.operand.shuffle:MapReduceOperand"),
        (710700605, "mars.core.operand.fetch:FetchShuffle"),
    ],
)
def test_op_ids_are_those_of_mars(function_id, path):
    assert function_id_of(path) == function_id


@pytest.mark.parametrize(
    ("function", "path"),
    [
        (twice, f"{__name__}:twice"),
        (Shape, f"{__name__}:Shape"),
        (Shape.area, f"{__name__}:Shape.area"),
        (Shape.corners, f"{__name__}:Shape.corners"),
        (getter, "dask.array.core:getter"),
        (operator.add, "_operator:add"),
        (math.sqrt, "math:sqrt"),
        (list, "builtins:list"),
        (str.upper, "builtins:str.upper"),
        (int.__add__, "builtins:int.__add__"),
        (np.add, "numpy:add"),
        (np.concatenate, "numpy:concatenate"),
        (np.linalg.norm, "numpy.linalg:norm"),
        (np.ndarray.sum, "numpy:ndarray.sum"),
        (np.float32, "numpy:float32"),
    ],
)
def test_what_can_be_imported_has_a_path(function, path):
    assert path_of(function) == path


def test_ufunc_of_scipy_has_a_path():
    special = pytest.importorskip("scipy.special")
    assert path_of(special.expit) == "scipy.special:expit"


@pytest.mark.parametrize(
    "function",
    [
        lambda value: value,
        functools.partial(twice, 1),
        functools.lru_cache(twice),
        Shape().area,
        Shape.named,
        [].append,
        "text".upper,
        np.random.random,
        np.random.default_rng(0).random,
        np.frompyfunc(twice, 1, 1),
        np.vectorize(twice),
        operator.itemgetter(1),
        list[int],
        counted,
    ],
    ids=without_addresses,
)
def test_what_has_a_state_or_no_name_has_no_path(function):
    assert path_of(function) is None


def test_function_that_was_replaced_has_no_path(monkeypatch):
    original = tasks.pid_of

    def impostor() -> None: ...

    impostor.__module__, impostor.__qualname__ = original.__module__, original.__qualname__
    assert path_of(impostor) is None
    monkeypatch.setattr(tasks, "pid_of", impostor)
    assert path_of(original) is None
    assert path_of(impostor) == "tests.tasks:pid_of"


def test_function_of_the_script_has_no_path(monkeypatch):
    def function() -> None: ...

    main = types.ModuleType("__main__")
    main.function = function  # type: ignore[attr-defined]
    function.__module__, function.__qualname__ = "__main__", "function"
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert path_of(function) is None


def test_module_to_be_pickled_by_value_gives_no_paths():
    cloudpickle.register_pickle_by_value(tasks)
    try:
        assert path_of(tasks.pid_of) is None
        assert path_of(twice) is not None
    finally:
        cloudpickle.unregister_pickle_by_value(tasks)
    assert path_of(tasks.pid_of) is not None


def test_module_that_raises_when_asked_gives_no_path(monkeypatch):
    class Raising(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    def function() -> None: ...

    function.__module__, function.__qualname__ = "raising", "function"
    monkeypatch.setitem(sys.modules, "raising", Raising("raising"))
    assert path_of(function) is None


# -- the mapping ----------------------------------------------------------------------------------------------


def test_path_becomes_the_callable_on_first_use(mapping, module):
    loaded = module("def function():\n    return 1\n")
    function_id = mapping.function_id(loaded.function)
    path = mapping.path(function_id)
    del sys.modules["written_for_test"]
    other = FunctionRegistry()
    other.learn(function_id, path)
    assert "written_for_test" not in sys.modules
    function = other[function_id]
    assert function is sys.modules["written_for_test"].function
    assert function is not loaded.function
    assert other[function_id] is function


def test_module_loaded_again_gives_its_new_function(mapping, module):
    function_id = mapping.function_id(module("def function():\n    return 1\n").function)
    mapping.learn(function_id, mapping.path(function_id))
    old = mapping[function_id]
    module("def function():\n    return 2\n")
    importlib.reload(sys.modules["written_for_test"])
    assert (old(), mapping[function_id]()) == (1, 2)
    assert mapping.function_id(old) is None
    assert mapping.function_id(mapping[function_id]) == function_id


def test_op_id_never_learnt_is_an_error(mapping):
    with pytest.raises(KeyError):
        mapping[function_id_of("tests.tasks:pid_of")]


@pytest.mark.parametrize(
    ("path", "error"), [("no_such_module:function", ImportError), ("tests.tasks:no_such_function", AttributeError)]
)
def test_path_that_leads_nowhere_is_an_error_at_each_use(mapping, path, error):
    mapping.learn(1, path)
    for _ in range(2):
        with pytest.raises(error):
            mapping[1]


def test_second_path_with_the_same_hash_has_no_op_id(mapping, monkeypatch):
    monkeypatch.setattr(functions, "function_id_of", lambda path: 7)
    assert mapping.function_id(twice) == 7
    assert mapping.function_id(thrice) is None
    assert mapping.function_id(twice) == 7
    assert mapping.path(7) == f"{__name__}:twice"


def test_op_id_cannot_be_learnt_for_two_paths(mapping):
    mapping.learn(7, "tests.tasks:pid_of")
    mapping.learn(7, "tests.tasks:pid_of")
    with pytest.raises(ValueError, match=r"tests\.tasks:noted.*tests\.tasks:pid_of"):
        mapping.learn(7, "tests.tasks:noted")


# -- between processes ----------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch) -> list[tuple[Any, ...]]:
    """The messages of work that are sent to workers."""
    messages: list[tuple[Any, ...]] = []
    send = WorkerHandle.send

    def record(handle: WorkerHandle, message: Any) -> None:
        if isinstance(message, Run):
            messages.append((handle.pid, message.operands, message.paths))
        send(handle, message)

    monkeypatch.setattr(WorkerHandle, "send", record)
    return messages


def test_worker_is_told_each_path_once_and_op_ids_from_then_on(runtime, sent):
    for offset in range(3):
        dsk = {("x", n): (twice, n + offset) for n in range(200)}
        assert runtime.get(dsk, list(dsk)) == tuple(2 * (n + offset) for n in range(200))
    function_id = function_id_of(f"{__name__}:twice")
    told: dict[int, list[str]] = {}
    for pid, packed_operands, paths in sent:
        told.setdefault(pid, []).extend(paths.values())
        for packed in packed_operands.values():
            assert packed[1] == (function_id,)
            assert packed[-1] is None
    assert all(paths.count(f"{__name__}:twice") <= 1 for paths in told.values())
    assert sum(len(packed_operands) for _, packed_operands, _ in sent) >= 3


def test_functions_without_a_path_travel_by_value_beside_those_with_one(runtime, sent):
    amount = 5
    dsk = {"x": (twice, (lambda value: value + amount, (functools.partial(operator.mul, 3), 2)))}
    assert runtime.get(dsk, "x") == 22
    ((_, packed_operands, paths),) = sent
    (packed,) = packed_operands.values()
    assert sorted(function_id is None for function_id in packed[1]) == [False, True, True]
    assert packed[-1] is not None
    assert set(paths.values()) <= {f"{__name__}:twice"}


def test_functions_whose_hashes_are_equal_are_not_confused(runtime, monkeypatch):
    monkeypatch.setattr(functions, "function_id_of", lambda path: 12345)
    dsk = {"x": (twice, 5), "y": (thrice, 5), "z": (operator.neg, 5), "all": (list, ["x", "y", "z"])}
    assert runtime.get(dsk, "all") == [10, 15, -5]


def test_function_replaced_after_import_runs_as_it_is_now(runtime, monkeypatch):
    assert runtime.get({"x": (tasks.noted, "/dev/null", 1)}, "x") == 1
    monkeypatch.setattr(tasks, "noted", lambda path, value: value + 100)
    assert runtime.get({"x": (tasks.noted, "/dev/null", 1)}, "x") == 101
    monkeypatch.undo()
    assert runtime.get({"x": (tasks.noted, "/dev/null", 1)}, "x") == 1


class CountsPickles:
    pickles = 0

    def __reduce__(self) -> tuple[Any, ...]:
        type(self).pickles += 1
        return CountsPickles, ()


def test_callable_that_chunks_share_travels_once_and_not_with_each_chunk(runtime, monkeypatch):
    monkeypatch.setattr(CountsPickles, "pickles", 0)
    enclosed = CountsPickles()

    def function(value: int) -> int:
        assert enclosed
        return value + 1

    # Long enough that no message has more than a chunk or two.
    dsk = {("x", n): (tasks.call_after, 0.01, function, n) for n in range(40)}
    assert runtime.get(dsk, list(dsk)) == tuple(range(1, 41))
    # With the first chunk, and with the operand of all the others.
    assert 1 <= CountsPickles.pickles <= 2
