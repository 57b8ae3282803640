"""What surrounds tasks: what is noticed, what travels, and what is put in force and taken back."""

from __future__ import annotations

import contextvars
import decimal
import importlib
import os
import pickle
import socket
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_mars.protocol import ambient, context
from dask_mars.protocol.ambient import SETTINGS
from dask_mars.protocol.context import Context, TaskContext, unpack_portable
from dask_mars.protocol.imports import ImportWatch
from dask_mars.protocol.pickling import dumps, loads
from dask_mars.protocol.worker_environment import worker_environment
from tests.cases import variable_of_a_module

CHANGES: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "directory": lambda patch: patch.chdir("/"),
    "path": lambda patch: patch.syspath_prepend("/nowhere"),
    "environment": lambda patch: patch.setenv("A_NAME_OF_OURS", "1"),
    "Dask": lambda patch: patch.setitem(dask.config.config, "a-name-of-ours", {"deep": 1}),
    "filters": lambda patch: patch.setattr(warnings, "filters", [*warnings.filters, *warnings.filters[:1]]),
    "timeout": lambda patch: patch.setattr(socket, "getdefaulttimeout", lambda: 7.0),
    "recursion": lambda patch: patch.setattr(sys, "getrecursionlimit", lambda: 7),
    "umask": lambda patch: os.umask(0o027),
    "decimals": lambda patch: setattr(decimal.getcontext(), "prec", 7),
    "errors": lambda patch: np.seterr(all="raise"),
    "variable": lambda patch: variable_of_a_module.unit.set("km"),
}


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("umask")
def test_a_change_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def noticed() -> None:
        before = Context()
        assert before.is_current()
        CHANGES[name](monkeypatch)
        assert not before.is_current()
        after = Context(before)
        assert after.is_current()
        assert after.payload != before.payload

    contextvars.copy_context().run(noticed)


def test_what_has_happened_in_decimals_is_no_change() -> None:
    def unchanged() -> bool:
        decimal.getcontext().clear_flags()
        before = Context()
        assert decimal.Decimal(1) / 3
        return before.is_current()

    assert contextvars.copy_context().run(unchanged)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_versions_here_keep_each_setting_where_it_is_looked_for(setting: Any) -> None:
    if setting.module in ("satpy", "pyresample"):
        # Kept as zarr's are.
        setting = ambient._donfig("zarr")
    module = pytest.importorskip(setting.module)
    value = ambient.frozen(setting.read(module))
    carried = loads(dumps(setting.carried(module, value)))
    if not setting.of_host and setting.name != "the warning filters":
        # It is in force already.
        setting.apply(module, carried)
    assert ambient.is_same(value, setting.read(module))


def test_settings_of_libraries_are_put_in_force_and_taken_back() -> None:
    pandas, xarray, matplotlib = map(pytest.importorskip, ("pandas", "xarray", "matplotlib"))
    zarr = pytest.importorskip("zarr")
    with (
        pandas.option_context("mode.string_storage", "python"),
        xarray.set_options(keep_attrs=False),
        matplotlib.rc_context({"figure.dpi": 33}),
        zarr.config.set({"array.order": "F"}),
    ):
        found = {name: data for name, data in unpack_portable(Context().portable()).items() if "'" in name}
        found |= {
            name: unpack_portable(Context().portable())[name] for name in ("matplotlib.rcParams", "zarr.config")
        }

    def present() -> tuple[Any, ...]:
        return (
            pandas.get_option("mode.string_storage"),
            xarray.get_options()["keep_attrs"],
            matplotlib.rcParams["figure.dpi"],
            zarr.config.get("array.order"),
        )

    before, tasks = present(), TaskContext()
    tasks.enter(pickle.dumps(found))
    assert present() == ("python", False, 33, "F")
    xarray.set_options(keep_attrs=True)
    matplotlib.rcParams["figure.dpi"] = 44
    tasks.restore()
    assert present() == ("python", False, 33, "F")
    tasks.enter(pickle.dumps({}))
    assert present() == before
    assert tasks.failures == []


def test_xarray_has_the_chunk_manager_of_the_program() -> None:
    pytest.importorskip("xarray")
    managers = pytest.importorskip("xarray.namedarray.parallelcompat").list_chunkmanagers
    expressions = pytest.importorskip("dask_array.xarray")
    tasks = TaskContext()
    try:
        assert managers()["dask"].__module__.startswith("xarray")
        expressions.register()
        found = Context().payload
        managers.cache_clear()
        tasks.enter(found)
        assert expressions.isactive()
        tasks.enter(pickle.dumps({}))
        assert managers()["dask"].__module__.startswith("xarray")
        assert tasks.failures == []
    finally:
        managers.cache_clear()


def test_xarrays_registry_of_chunk_managers_may_be_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("xarray.namedarray.parallelcompat")
    monkeypatch.setattr(registry, "list_chunkmanagers", dict)
    assert Context().losses() == []


def test_filters_of_a_librarys_warnings_wait_for_its_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "seldom"
    library.mkdir()
    (library / "kinds.py").write_text("class Kind(Warning): pass\n")
    (library / "__init__.py").write_text(
        "import warnings\nfrom seldom import kinds\nwarnings.simplefilter('always', kinds.Kind)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ambient, "is_library", lambda name: name == "seldom")
    tasks = TaskContext()
    with warnings.catch_warnings():
        kinds: Any = importlib.import_module("seldom.kinds")
        warnings.simplefilter("ignore", kinds.Kind)
        payload = Context().payload
    for name in ("seldom", "seldom.kinds"):
        monkeypatch.delitem(sys.modules, name)

    def actions() -> list[str]:
        return [action for action, _, category, *_ in warnings.filters if category.__name__ == "Kind"]

    with warnings.catch_warnings():
        tasks.enter(payload)
        assert actions() == []
        assert "seldom" not in sys.modules
        # Its own filter comes first until all of it is imported.
        importlib.import_module("seldom")
        assert actions() == ["ignore", "always"]
        tasks.restore()
        assert actions() == ["ignore", "always"]
    assert tasks.failures == []


def test_filters_of_several_categories_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder: Any = importlib.import_module("json.decoder")
    monkeypatch.setattr(ambient, "is_library", lambda name: name == "json")
    monkeypatch.setattr(decoder, "Kind", type("Kind", (Warning,), {"__module__": decoder.__name__}), raising=False)
    tasks = TaskContext()
    with warnings.catch_warnings():
        # What `issubclass` takes.
        warnings.simplefilter("error", UserWarning | FutureWarning)  # type: ignore[arg-type]
        warnings.simplefilter("ignore", (decoder.Kind, (ImportWarning,)))  # type: ignore[arg-type]
        warnings.simplefilter("ignore", (UserWarning, FutureWarning))  # type: ignore[arg-type]
        found, payload = list(warnings.filters), Context().payload
        tasks.enter(payload)
        assert list(warnings.filters) == found
        ambient.show_warnings_again()
        assert list(warnings.filters) == found
        monkeypatch.delattr(decoder, "Kind")
        TaskContext().enter(payload)
        assert [entry[2] for entry in warnings.filters][1:3] == [((ImportWarning,),), UserWarning | FutureWarning]
    assert tasks.failures == []


def test_a_setting_of_an_unexpected_form_is_told_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_told", set())
    monkeypatch.setattr(warnings, "filters", [("ignore", None, UserWarning, None, 0), ("ignore",)])
    found = Context()
    assert "the warning filters" in found.losses()[0]
    assert found.is_current()


def test_filters_of_a_class_without_a_module_travel() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", type("Homeless", (UserWarning,), {"__module__": None}))
        filters = loads(pickle.loads(Context().payload)["the warning filters"])
    assert filters[0][2].__name__ == "Homeless"


def test_what_cannot_be_put_in_force_is_told_once() -> None:
    tasks = TaskContext()
    payload = pickle.dumps({"the locale": dumps("no locale"), "sys.path": b"no pickle", context._VARIABLES: b""})
    for _ in range(2):
        tasks.enter(payload)
    told = sorted(text.split(" from ")[0] for text in tasks.failures)
    assert told == [
        f"a worker process could not take over {name}" for name in ("context variables", "sys.path", "the locale")
    ]
    assert "unsupported locale setting" in " ".join(tasks.failures)


def test_what_cannot_be_pickled_is_told_once_and_the_rest_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_told", set())

    def twice() -> tuple[Context, Context]:
        variable_of_a_module.unit.set(threading.Lock())  # type: ignore[arg-type]
        np.seterrcall(Unpicklable())
        np.seterr(divide="call")
        with dask.config.set({"a": {"of-ours": threading.Lock(), "other": 1}, "pool": threading.Lock()}):
            return Context(), Context()

    first, second = contextvars.copy_context().run(twice)
    assert loads(pickle.loads(first.payload)["Dask's configuration"])["a"] == {"other": 1}
    assert sorted(
        text.split(" as your")[0].removeprefix("worker processes do not find ") for text in first.losses()
    ) == ["Dask's configuration, 'a', 'of-ours'", "numpy.seterrcall", "tests.cases.variable_of_a_module.unit"]
    assert second.losses() == []


class Unpicklable:
    def __call__(self, kind: str, flag: int) -> None:
        pass

    def __reduce__(self) -> Any:
        raise TypeError("of this process")


def test_a_setting_that_has_moved_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_told", set())
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    surroundings = Context()
    assert surroundings.is_current()
    assert "pandas' options" not in pickle.loads(surroundings.payload)
    assert any("pandas" in text for text in surroundings.losses())


def test_another_machine_has_its_own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = unpack_portable(Context().portable())
    monkeypatch.chdir(tmp_path)
    merged = Context(given=given)
    assert merged.is_current(given)
    assert not merged.is_current()
    found = pickle.loads(merged.payload)
    assert loads(found["the working directory"]) == str(tmp_path)
    assert found["the recursion limit"] == given["the recursion limit"]
    assert "the working directory" not in given


def test_modules_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "awaited_by_mars.py").write_text("value = 1\n")
    (tmp_path / "failing_for_mars.py").write_text("raise ValueError\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    arrived: list[str] = []
    watch = ImportWatch(arrived.append)
    for name in ("awaited_by_mars", "failing_for_mars", "nowhere_for_mars"):
        watch.wait_for(name)
    assert importlib.import_module("awaited_by_mars").value == 1
    for name, error in (("failing_for_mars", ValueError), ("nowhere_for_mars", ModuleNotFoundError)):
        with pytest.raises(error):
            importlib.import_module(name)
    assert arrived == ["awaited_by_mars"]
    module = importlib.reload(sys.modules["awaited_by_mars"])
    assert arrived == ["awaited_by_mars"]
    assert "exec_module" not in vars(module.__loader__)
    del sys.modules["awaited_by_mars"]


PACKAGE = """
level = 1

class Ambient:
    @staticmethod
    def read():
        return level

    @staticmethod
    def apply(value):
        global level
        level = value
"""


@pytest.fixture
def fresh_settings() -> Iterator[None]:
    ambient.settings.cache_clear()
    yield
    ambient.settings.cache_clear()


@pytest.mark.usefixtures("fresh_settings")
def test_packages_bring_settings_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "package_for_mars-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: package-for-mars\nVersion: 1\n")
    (information / "entry_points.txt").write_text(
        f"[{ambient.GROUP}]\npackage_for_mars = package_for_mars:Ambient\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    package: Any = types.ModuleType("package_for_mars")
    exec(PACKAGE, vars(package))
    monkeypatch.setitem(sys.modules, "package_for_mars", package)
    name = "the settings of package_for_mars"

    def sent(level: int) -> bytes:
        package.level = level
        return pickle.dumps({name: pickle.loads(Context().payload)[name]})

    payloads = sent(5), sent(2)
    package.level = 1
    tasks, applied = TaskContext(), []
    for payload in payloads:
        tasks.enter(payload)
        applied.append(package.level)
    assert (applied, tasks.failures) == ([5, 2], [])


# -- the environment of workers -----------------------------------------------------------------------------------


def test_who_has_set_threads_of_all_libraries_means_each_of_them() -> None:
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"]
    for given, expected in (
        ({}, ["1", "1", "1", "1"]),
        ({"NUMBA_NUM_THREADS": "3"}, ["1", "1", "1", "3"]),
        ({"OMP_NUM_THREADS": "3"}, ["3", None, None, "1"]),
    ):
        environment = worker_environment({"OTHER": "x", **given})
        assert [environment.get(name) for name in names] == expected
        assert environment["OTHER"] == "x"
