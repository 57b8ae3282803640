"""What a worker's ``__main__`` contains."""

from __future__ import annotations

import gc
import pickle
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from dask_mars.protocol import by_value, main_module
from dask_mars.protocol.main_module import MainOrigin, show, take_over
from dask_mars.protocol.pickling import dumps, loads

SCRIPT = """
class Reading:
    scale = 1

def square(number):
    return number * number

def used():
    return square, Reading
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Have a user's ``__main__``, until a worker's is put in its place."""
    module = ModuleType("__main__")
    exec(SCRIPT, vars(module))
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def forget() -> None:
    """Have nothing be this process's own."""
    by_value._known.clear()
    by_value._identities.clear()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that makes this process look like a worker, to which nothing is its own."""
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])

    def become(file: str | None = None, name: str | None = None) -> None:
        forget()
        take_over(MainOrigin(file, name))

    yield become
    show({})
    main_module._module = None


def test_what_arrives_has_its_name_until_another_graph_is_shown(script, worker):
    payload = dumps(script.used)
    worker()
    names: dict[str, Any] = {}
    show(names)
    square, reading = loads(payload)()
    assert names == {"square": square, "Reading": reading, "used": names["used"]}
    main = sys.modules["__main__"]
    assert main.square is square
    assert pickle.loads(pickle.dumps(square)) is square
    assert type(pickle.loads(pickle.dumps(reading()))) is reading
    show({})
    assert not hasattr(main, "square")
    show(names)
    assert main.Reading is reading


def test_what_arrives_again_for_a_graph_is_the_same_object(script, worker):
    payloads = dumps(script.used), dumps([script.square])
    worker()
    names: dict[str, Any] = {}
    show(names)
    square, _ = loads(payloads[0])()
    assert loads(payloads[1])[0] is square
    show({})
    assert loads(payloads[1])[0] is not square


def test_what_is_defined_anew_takes_the_place_of_the_old(script, worker):
    first = dumps(script.used)
    exec(SCRIPT, vars(script))
    second = dumps(script.used)
    worker()
    names: dict[str, Any] = {}
    show(names)
    old, new = loads(first)(), loads(second)()
    assert old[0] is not new[0]
    assert (names["square"], names["Reading"]) == new


def test_nothing_is_held_once_a_graph_is_forgotten(script, worker):
    payload = dumps(script.used)
    worker()
    names: dict[str, Any] = {}
    show(names)
    arrived = weakref.ref(loads(payload))
    show({})
    names.clear()
    gc.collect()
    assert arrived() is None


def test_what_comes_back_is_the_users_own_and_stays_as_it_is(script, worker):
    there = dumps([script.used, script.Reading()])
    script.Reading.scale = 2
    used, reading = loads(there)
    assert used is script.used
    assert type(reading) is script.Reading
    assert script.Reading.scale == 2


def test_what_has_a_name_keeps_it_on_the_way_through_other_processes(script, worker, monkeypatch):
    payload = dumps(script.used)
    # An agent's `__main__` is none of the user's, and no worker's.
    forget()
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    forwarded = dumps(loads(payload))
    worker()
    names: dict[str, Any] = {}
    show(names)
    square, reading = loads(forwarded)()
    assert names["square"] is square
    assert names["Reading"] is reading


def test_main_says_where_it_is_from(worker):
    worker("/path/script.py", "package.script")
    main = sys.modules["__main__"]
    assert (main.__file__, main.__spec__.name) == ("/path/script.py", "package.script")
    assert sys.modules["__mp_main__"] is main
    assert main_module.main_origin() == MainOrigin("/path/script.py", "package.script")
    worker()
    assert not hasattr(sys.modules["__main__"], "__file__")
    assert main_module.main_origin() == MainOrigin(None, None)
