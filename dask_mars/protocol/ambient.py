"""The settings of a process that tasks read: one row each, of Python, Dask and the libraries that tasks call.

This module knows where each is stored, in private attributes too, and how to set it. `context` decides when.
"""

from __future__ import annotations

import contextlib
import functools
import locale
import os
import sys
import time
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dask

from dask_mars.entry_points import entry_points
from dask_mars.graph.callables import package_of
from dask_mars.protocol import reloads, thread_limits
from dask_mars.protocol.libraries import is_library
from dask_mars.protocol.worker_environment import worker_environment

#: Entry points for rows of other packages: the name is the module with the settings, and the object has `read()`
#: and `apply(value)`.
GROUP = "dask_mars.ambient"


def frozen(value: Any) -> Any:
    """Return a copy of a value, with copies of its dicts and lists."""
    if isinstance(value, dict):
        return {key: frozen(item) if isinstance(item, (dict, list)) else item for key, item in dict.items(value)}
    return list(map(frozen, value)) if type(value) is list else value


def is_same(copied: Any, live: Any) -> bool:
    """Return whether a live value still equals its copy by `frozen`."""
    try:
        # Subclasses of dict, such as matplotlib's, compare entry by entry in Python.
        return bool(copied == live) if type(copied) is not dict else dict.__eq__(copied, live) is True
    except Exception:
        # Some values, such as arrays, have no single result.
        return False


def _same(module: Any, value: Any) -> Any:
    return value


def _none(value: Any) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    #: The name for users.
    name: str
    #: Takes the module, and returns the current value, not necessarily a copy.
    read: Callable[[Any], Any]
    #: Takes the module and a result of `carried`, and applies it.
    apply: Callable[[Any, Any], Any]
    #: The module with the setting; where it is not imported, the row costs nothing.
    module: str = "sys"
    #: Whether it belongs to the machine, and is not sent to others.
    of_host: bool = False
    #: Takes the module and a copy of the value, and returns the form to send.
    carried: Callable[[Any, Any], Any] = _same
    #: Takes the form that was sent, and returns modules on whose import it has to be applied again.
    awaited: Callable[[Any], Iterable[str]] = _none
    #: Parts without meaning for tasks, whose loss needs no warning.
    quiet: frozenset[str] = frozenset()


# -- Python and the operating system ------------------------------------------------------------------------------


def _directory(module: Any) -> str | None:
    try:
        # pathlib takes several times as long, and each computation calls this.
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None


def _change_directory(module: Any, directory: str | None) -> None:
    if directory is not None:
        # If it was removed since, relative paths fail in the task, as they would in the client.
        with contextlib.suppress(OSError):
            os.chdir(directory)


def _set_path(module: Any, path: list[str]) -> None:
    sys.path[:] = path


def _environment(module: Any) -> Any:
    # The raw mapping: decoding all variables would be half of the cost of each call.
    return getattr(os.environ, "_data", None) or os.environ


def _set_environment(module: Any, raw: Mapping[Any, Any]) -> None:
    known = {os.fsdecode(name): os.fsdecode(value) for name, value in raw.items()}
    wanted = worker_environment(known)
    zone = os.environ.get("TZ")
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if os.environ.get("TZ") != zone and hasattr(time, "tzset"):
        time.tzset()


def _set_config(module: Any, settings: dict[str, Any]) -> None:
    # A nested compute must run inline, as all workers are in use. "dask.distributed" is the name of a client that
    # does not exist here.
    if settings.get("scheduler") in (None, "mars", "dask.distributed"):
        settings["scheduler"] = "sync"
    dask.config.config.clear()
    dask.config.config.update(settings)
    for defaults in dask.config.defaults:
        # Defaults of libraries that only tasks have imported.
        dask.config.update(dask.config.config, defaults, priority="old")


#: The umask at the last reading; before the first, one that keeps files private for the moment of that reading.
_last_umask = 0o077


def _umask(module: Any) -> int:
    global _last_umask
    # To read it is to set it. Setting what it was last changes nothing, unless the user has changed it since.
    found = os.umask(_last_umask)
    if found != _last_umask:
        os.umask(found)
        _last_umask = found
    return found


@dataclass(frozen=True, slots=True)
class Category:
    """The name of a library's category of warnings."""

    module: str
    name: str


def _named_filters(module: Any, filters: list[Any]) -> list[Any]:
    """Name the categories of libraries, which their import adds: workers need not import them for these."""
    return [(action, text, _named(category), where, line) for action, text, category, where, line in filters]


def _named(category: Any) -> Any:
    # `warnings.simplefilter` takes all that `issubclass` takes: tuples and unions, too.
    if isinstance(category, tuple):
        return tuple(map(_named, category))
    if not isinstance(category, type):
        return category
    module, name = category.__module__, category.__qualname__
    is_found = is_library(package_of(category)) and getattr(sys.modules.get(module), name, None) is category
    return Category(module, name) if is_found else category


def _awaited_categories(filters: list[Any]) -> Iterator[str]:
    """Return the modules of categories that are not there yet, and their packages."""
    # A package adds its own filters when all of its modules are there.
    for category in _each(category for _, _, category, _, _ in filters):
        if isinstance(category, Category) and category.module not in sys.modules:
            parts = category.module.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _each(categories: Iterable[Any]) -> Iterator[Any]:
    for category in categories:
        if isinstance(category, tuple):
            yield from _each(category)
        else:
            yield category


def _set_filters(module: Any, filters: list[Any]) -> None:
    known = [(action, text, _class_of(category), where, line) for action, text, category, where, line in filters]
    # This also resets Python's record of shown warnings.
    warnings.resetwarnings()
    # Where a class is not there yet, there are no such warnings.
    warnings.filters.extend([entry for entry in known if entry[2] is not None])  # type: ignore[attr-defined]


def _class_of(category: Any) -> Any:
    if isinstance(category, tuple):
        return tuple(found for found in map(_class_of, category) if found is not None) or None
    if not isinstance(category, Category):
        return category
    return getattr(sys.modules.get(category.module), category.name, None)


def show_warnings_again() -> None:
    """Forget which warnings were shown: the user's process decides on repetition."""
    _set_filters(None, list(warnings.filters))


def _attribute(module: str, name: str, of_host: bool = False) -> Setting:
    return Setting(
        f"{module}.{name}",
        lambda found: getattr(found, name),
        lambda found, value: setattr(found, name, value),
        module,
        of_host,
    )


def _calls(name: str, module: str, read: str, apply: str, of_host: bool = False) -> Setting:
    return Setting(
        name,
        lambda found: getattr(found, read)(),
        lambda found, value: getattr(found, apply)(value),
        module,
        of_host,
    )


# -- libraries ----------------------------------------------------------------------------------------------------


def _changed_config(module: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return a library's differences from its defaults: workers have other defaults for threads."""
    return dict(_differences(config, ChainMap(*module.config.defaults)))


def _differences(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            if found := dict(_differences(value, default)):
                yield key, found
        elif key not in defaults or value != default:
            yield key, value


def _set_changed_config(module: Any, changed: dict[str, Any]) -> None:
    module.config.refresh()
    module.config.update(changed)


def _donfig(module: str) -> Setting:
    """Return the row of a library whose `config` is one of donfig's."""
    return Setting(
        f"{module}.config", lambda found: found.config.config, _set_changed_config, module, carried=_changed_config
    )


def _set_fsspec(module: Any, conf: dict[str, Any]) -> None:
    module.conf.clear()
    module.conf.update(conf)


def _set_printing(module: Any, options: dict[str, Any] | None) -> None:
    if options is not None:
        module._format_options.update(options)
        # This tells NumPy's C code of the legacy mode, and would reset the formatter.
        module.set_printoptions(formatter=options["formatter"])


def _xarray_options(module: Any) -> Any:
    try:
        # The public function takes thirty times as long.
        return module.core.options.OPTIONS
    except AttributeError:
        return dict(module.get_options())


def _set_xarray_options(module: Any, options: dict[str, Any]) -> None:
    present = module.get_options()
    module.set_options(**{name: value for name, value in options.items() if present[name] != value})


def _chunk_managers(module: Any) -> dict[str, type]:
    """Return the classes of registered chunk managers that are not xarray's, as `dask_array.xarray.register`'s."""
    registry = _registry_of_managers()
    # The first call of `list_chunkmanagers` loads entry points, which workers have, too. Tests put other functions
    # in its place.
    info = getattr(registry, "cache_info", None)
    if info is None or not info().currsize:
        return {}
    managers = {name: type(manager) for name, manager in registry().items()}
    return {name: found for name, found in managers.items() if not found.__module__.startswith("xarray.")}


def _registry_of_managers() -> Any:
    return getattr(sys.modules.get("xarray.namedarray.parallelcompat"), "list_chunkmanagers", None)


def _register_managers(module: Any, managers: dict[str, type]) -> None:
    registry = _registry_of_managers()
    registry.cache_clear()
    registry().update({name: found() for name, found in managers.items()})


def _pandas_options(module: Any) -> Any:
    return vars(module.options)["d"]


def _set_pandas_options(module: Any, options: dict[str, Any]) -> None:
    present = dict(_flat(_pandas_options(module)))
    for name, value in _flat(options):
        if present.get(name) != value:
            module.set_option(name, value)


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _changed_parameters(module: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    changed = dict(_differences(parameters, _default_parameters(module)))
    if not isinstance(changed.get("backend"), str):
        # Until matplotlib has chosen one, this is a sentinel object.
        changed.pop("backend", None)
    return changed


def _set_changed_parameters(module: Any, changed: dict[str, Any]) -> None:
    present = dict(dict.items(module.rcParams))
    wanted = _default_parameters(module) | changed
    module.rcParams.update({name: value for name, value in wanted.items() if present.get(name) != value})


def _default_parameters(module: Any) -> dict[str, Any]:
    defaults = dict(dict.items(module.rcParamsDefault))
    del defaults["backend"]
    return defaults


#: In the order of their application.
SETTINGS = (
    Setting("the working directory", _directory, _change_directory, of_host=True),
    Setting("sys.path", lambda module: sys.path, _set_path, of_host=True),
    Setting("os.environ", _environment, _set_environment, of_host=True),
    Setting(
        "Dask's configuration",
        lambda module: dask.config.config,
        _set_config,
        of_host=True,
        quiet=frozenset({"pool", "scheduler"}),
    ),
    _calls("modules that were loaded again", reloads.__name__, "in_force", "follow", of_host=True),
    Setting(
        "the warning filters",
        lambda module: warnings.filters,
        _set_filters,
        carried=_named_filters,
        awaited=_awaited_categories,
    ),
    _calls("the limits of threadpoolctl", thread_limits.__name__, "in_force", "apply", of_host=True),
    Setting("the umask", _umask, lambda module, mask: os.umask(mask), of_host=True),
    _calls("the recursion limit", "sys", "getrecursionlimit", "setrecursionlimit"),
    _calls("the most digits of integers in text", "sys", "get_int_max_str_digits", "set_int_max_str_digits"),
    Setting(
        "the locale",
        lambda module: locale.setlocale(locale.LC_ALL),
        lambda module, name: locale.setlocale(locale.LC_ALL, name),
    ),
    _calls("the timeout of sockets", "socket", "getdefaulttimeout", "setdefaulttimeout"),
    _calls("csv.field_size_limit", "csv", "field_size_limit", "field_size_limit"),
    _attribute("tempfile", "tempdir", of_host=True),
    _attribute("PIL.Image", "MAX_IMAGE_PIXELS"),
    _attribute("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"),
    Setting("fsspec.config.conf", lambda module: module.conf, _set_fsspec, "fsspec.config", of_host=True),
    _donfig("zarr"),
    _donfig("satpy"),
    _donfig("pyresample"),
    # Newer releases have a context variable in its place, which is sent with the others.
    Setting(
        "NumPy's printing before 2.1",
        lambda module: getattr(module, "_format_options", None),
        _set_printing,
        "numpy._core.arrayprint",
    ),
    Setting("xarray's options", _xarray_options, _set_xarray_options, "xarray"),
    Setting("xarray's chunk managers", _chunk_managers, _register_managers, "xarray"),
    Setting("pandas' options", _pandas_options, _set_pandas_options, "pandas"),
    Setting(
        "matplotlib.rcParams",
        lambda module: module.rcParams,
        _set_changed_parameters,
        "matplotlib",
        carried=_changed_parameters,
    ),
)


@functools.cache
def settings() -> dict[str, Setting]:
    """Return all rows by name, including those of other packages."""
    return {setting.name: setting for setting in (*SETTINGS, *_of_other_packages())}


def _of_other_packages() -> Iterator[Setting]:
    for entry_point in entry_points(GROUP):
        # Imported on first use, when the module itself is imported.
        yield _of_another_package(entry_point.name, functools.cache(entry_point.load))


def _of_another_package(module: str, load: Callable[[], Any]) -> Setting:
    return Setting(
        f"the settings of {module}", lambda found: load().read(), lambda found, value: load().apply(value), module
    )
