"""Modules that were loaded again, in the user's process and in workers."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

from dask_mars import process_role
from dask_mars.protocol import reloads

Write = Callable[[str, str], None]
_lengths = count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a module; what was seen of modules before is put aside."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(reloads, "_seen_count", 0)
    monkeypatch.setattr(reloads, "_seen", set())
    for name in ("_watched", "_reloads", "_followed"):
        monkeypatch.setattr(reloads, name, {})
    for name in ("lower_module", "upper_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def write(name: str, text: str) -> None:
        # By its length and the second Python knows whether what it has compiled is up to date.
        (tmp_path / f"{name}.py").write_text(f"{text}\n#{'-' * next(_lengths)}\n")
        importlib.invalidate_caches()

    return write


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_each_reload_counts_once(write):
    write("lower_module", "value = 1")
    module = imported("lower_module")
    assert reloads.in_force() == {}
    importlib.reload(module)
    assert reloads.in_force() == reloads.in_force() == {"lower_module": (1, False)}
    del sys.modules["lower_module"]
    assert reloads.in_force() == {"lower_module": (1, False)}
    imported("lower_module")
    assert reloads.in_force() == {"lower_module": (2, False)}


def test_modules_of_libraries_are_not_watched(write):
    write("lower_module", "")
    imported("lower_module")
    reloads.in_force()
    assert "lower_module" in reloads._watched
    assert not reloads._watched.keys() & {"json", "numpy", "pytest", "dask", "dask_mars", "sys"}
    importlib.reload(json)
    assert reloads.in_force() == {}


@pytest.mark.parametrize("names", [("lower_module", "upper_module"), ("upper_module", "lower_module")])
def test_what_others_have_taken_names_from_comes_first(write, names):
    write("lower_module", "def function(): pass")
    write("upper_module", "from lower_module import function")
    for name in names:
        imported(name)
    reloads.in_force()
    for name in names:
        importlib.reload(sys.modules[name])
    assert list(reloads.in_force()) == ["lower_module", "upper_module"]


def test_modules_that_have_taken_names_from_each_other_are_in_any_order(write):
    write("lower_module", "import upper_module")
    write("upper_module", "import lower_module")
    imported("lower_module")
    reloads.in_force()
    for name in ("lower_module", "upper_module"):
        importlib.reload(sys.modules[name])
    assert reloads.in_force().keys() == {"lower_module", "upper_module"}


def test_a_worker_loads_again_what_it_has_and_once(write):
    write("lower_module", "value = 1")
    reloads.follow({"upper_module": (1, False)})
    assert "upper_module" not in sys.modules
    module = imported("lower_module")
    write("lower_module", "value = 2")
    reloads.follow({})
    assert module.value == 1
    reloads.follow({"lower_module": (2, False)})
    assert module.value == 2
    write("lower_module", "value = 3")
    # That of a computation which began earlier.
    reloads.follow({"lower_module": (1, False)})
    reloads.follow({"lower_module": (2, False)})
    assert module.value == 2


def test_a_worker_forgets_what_it_cannot_load_again(write):
    write("lower_module", "value = 1")
    imported("lower_module")
    write("lower_module", "value =")
    reloads.follow({"lower_module": (1, False)})
    assert "lower_module" not in sys.modules


def test_a_worker_does_not_look_at_its_modules(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_role, "in_worker", True)
    write("lower_module", "value = 1")
    module = imported("lower_module")
    assert reloads.in_force() == {}
    reloads.follow({"lower_module": (1, False)})
    importlib.reload(module)
    assert reloads.in_force() == {"lower_module": (1, False)}
