"""Reloads of the user's modules, by `importlib.reload` or IPython's autoreload, repeated in workers.

Modules of libraries are not watched: the check runs at each computation.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from dask_mars import process_role
from dask_mars.protocol.libraries import SITE_FOLDERS

#: Number of reloads, and whether the last was by IPython's autoreload, which changes old functions as well.
Reload = tuple[int, bool]

_AUTORELOAD = "IPython.extensions.autoreload"
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
#: Our own modules, which may be installed in place.
_OURS = frozenset({"dask_mars", "_dask_mars_entry"})
#: Spec of each module of the user's, which each reload replaces, and autoreload's time of its file.
_watched: dict[str, tuple[ModuleSpec | None, float | None]] = {}
#: Names of all known modules, and their number at the last check.
_seen: set[str] = set()
_seen_count = 0
#: Reloads in this process, in the order for other processes.
_reloads: dict[str, Reload] = {}
#: Reloads that this worker has repeated.
_followed: dict[str, Reload] = {}
#: Objects that autoreload has replaced in this worker, and changes again at the next reload.
_old_objects: dict[Any, Any] = {}


def in_force() -> dict[str, Reload]:
    """Return the reloads of the user's modules since their first check."""
    if process_role.in_worker:
        # Its modules were loaded again for no other reason, and looking at all of them copies their memory.
        return dict(_followed)
    times = _autoreload_times()
    _watch_new(times)
    changed: dict[str, bool] = {}
    for name, (spec, time) in list(_watched.items()):
        module, time_now = sys.modules.get(name), times.get(name)
        if module is None or ((spec_now := module.__spec__) is spec and time_now == time):
            continue
        _watched[name] = spec_now, time_now
        is_autoreload = time is not None and time_now != time
        if spec_now is not spec or is_autoreload:
            changed[name] = is_autoreload
    for name in _in_order(changed):
        count, _ = _reloads.pop(name, (0, False))
        _reloads[name] = count + 1, changed[name]
    return dict(_reloads)


def follow(reloads: Mapping[str, Reload]) -> None:
    """Repeat the user's reloads in a worker."""
    for name, reload in reloads.items():
        if reload <= _followed.get(name, (0, False)):
            continue
        _followed[name] = reload
        module = sys.modules.get(name)
        if module is not None:
            _load_again(name, module, reload)


def _load_again(name: str, module: ModuleType, reload: Reload) -> None:
    _, is_autoreload = reload
    try:
        if is_autoreload:
            importlib.import_module(_AUTORELOAD).superreload(module, importlib.reload, _old_objects)
        else:
            importlib.reload(module)
    except BaseException:
        # Tasks that need it fail to import it, and run in the user's process.
        sys.modules.pop(name, None)


def _watch_new(times: Mapping[str, float]) -> None:
    global _seen_count
    if len(sys.modules) == _seen_count:
        return
    _seen_count = len(sys.modules)
    for name, module in list(sys.modules.items()):
        if name not in _seen:
            _seen.add(name)
            spec = getattr(module, "__spec__", None)
            if isinstance(spec, ModuleSpec) and _is_users(name, spec.origin):
                _watched[name] = spec, times.get(name)


def _is_users(name: str, origin: str | None) -> bool:
    """Return whether a module is a file of the user's."""
    if origin is None or not origin.endswith(".py") or origin.startswith(_STANDARD_LIBRARY):
        return False
    return name.partition(".")[0] not in _OURS and not any(folder in origin for folder in SITE_FOLDERS)


def _autoreload_times() -> Mapping[str, float]:
    """Return autoreload's file times by module; often it changes functions without a reload."""
    if _AUTORELOAD not in sys.modules:
        return {}
    # These names are private, and the shell may have ended.
    with contextlib.suppress(Exception):
        magic = sys.modules["IPython"].get_ipython().find_line_magic("autoreload")
        times: Mapping[str, float] = magic.__self__._reloader.modules_mtimes
        return times
    return {}


def _in_order(names: Iterable[str]) -> list[str]:
    """Return modules sorted so that each comes after those that its attributes come from."""
    names = list(names)
    if len(names) < 2:
        return names
    sources: dict[str, Any] = {
        name: {_home(value) for value in list(vars(sys.modules[name]).values())} & set(names) - {name}
        for name in names
    }
    with contextlib.suppress(CycleError):
        return [*TopologicalSorter(sources).static_order()]
    return names


def _home(value: Any) -> str | None:
    """Return the module of a module's attribute, or the attribute's own name if it is a module."""
    if isinstance(value, ModuleType):
        return value.__name__
    return value.__module__ if isinstance(value, (FunctionType, type)) else None
