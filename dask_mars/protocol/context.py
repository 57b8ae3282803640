"""The context of a computation's tasks: clients compare and send it, workers apply and restore it.

Under threads a task shares it with the calling code. `ambient` has the settings of the process, a row each, and
`variables` the calling thread's context variables. Threads of the user's process need only the latter.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import pickle
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from dask_mars.import_locks import is_importing
from dask_mars.protocol import variables
from dask_mars.protocol.ambient import SETTINGS, Setting, frozen, is_same, settings
from dask_mars.protocol.imports import ImportWatch
from dask_mars.protocol.pickling import dumps, loads

#: Name of the context variables among the settings.
_VARIABLES = "context variables"
_TABLE = {setting.name: setting for setting in SETTINGS}
_KNOWN = _TABLE.keys() | {_VARIABLES}
_OF_HOST = {name: setting for name, setting in _TABLE.items() if setting.of_host}
_MISSING = object()
#: Names of settings that a warning has mentioned.
_told: set[str] = set()


class Context:
    """A snapshot of the client's settings and context variables."""

    # A `previous` snapshot saves pickling settings that are the same. Another machine's `portable` is `given` in
    # place of all settings but those of this machine.

    def __init__(self, previous: Context | None = None, given: Mapping[str, bytes] | None = None) -> None:
        self._given = given
        self._rows = settings() if given is None else _OF_HOST
        self._values: dict[str, Any] = {}
        #: Pickles by name, and the errors of parts that cannot be pickled.
        self._pickles: dict[str, tuple[bytes, dict[str, Exception]]] = {}
        for setting, module, value in self._read():
            name = setting.name
            if value is _MISSING:
                self._pickles[name] = b"", {name: AttributeError(f"this version of {setting.module} hides it")}
                continue
            if previous is not None and is_same(previous._values.get(name, _MISSING), value):
                self._values[name], self._pickles[name] = previous._values[name], previous._pickles[name]
            else:
                self._add(setting, module, frozen(value))
        self._variables = None if given is not None else variables.in_force()
        if given is None:
            found, lost = variables.carried()
            self._pickles[_VARIABLES] = dumps([tuple(variable) for variable in found]), lost
        self.payload = pickle.dumps({**self._known(), **(given or {})})

    def _add(self, setting: Setting, module: ModuleType, value: Any) -> None:
        name = setting.name
        try:
            carried = setting.carried(module, value)
        except Exception as error:
            if is_importing(module):
                return
            self._pickles[name] = b"", {name: error}
        else:
            self._pickles[name] = _pickled(name, carried, setting.quiet)
        self._values[name] = value

    def _read(self) -> Iterator[tuple[Setting, ModuleType, Any]]:
        for setting in self._rows.values():
            module = sys.modules.get(setting.module)
            if module is not None:
                try:
                    value = setting.read(module)
                except Exception:
                    if is_importing(module):
                        continue
                    value = _MISSING
                yield setting, module, value

    def is_current(self, given: Mapping[str, bytes] | None = None) -> bool:
        """Return whether nothing has changed since the snapshot was taken."""
        if given != self._given or (given is None and self._variables != variables.in_force()):
            return False
        known = self._values
        return all(is_same(known.get(setting.name, _MISSING), value) for setting, _, value in self._read())

    def portable(self) -> bytes:
        """Return the settings for other machines, for `unpack_portable`."""
        portable = {name: data for name, data in self._known().items() if name not in _OF_HOST}
        # Each subtask carries it.
        return zlib.compress(pickle.dumps(portable), 1)

    def _known(self) -> dict[str, bytes]:
        return {name: data for name, (data, _) in self._pickles.items() if data}

    def losses(self) -> list[str]:
        """Return messages for the user about settings that cannot be sent, once for each."""
        texts = []
        for _, lost in self._pickles.values():
            for name, error in lost.items():
                if name not in _told:
                    _told.add(name)
                    texts.append(
                        f"worker processes do not find {name} as your program has set it, because it cannot be "
                        f"pickled ({type(error).__name__}: {error}): set it within the task"
                    )
        return texts


def _pickled(name: str, value: Any, quiet: frozenset[str]) -> tuple[bytes, dict[str, Exception]]:
    """Return the pickle of a setting's picklable parts, and the errors of the others."""
    try:
        return dumps(value), {}
    except Exception as error:
        lost = {name: error}
    if isinstance(value, (dict, list)):
        lost = {}
        value = _without_lost(name, value, lost, quiet)
        return dumps(value), lost
    return b"", lost


def _without_lost(name: str, value: Any, lost: dict[str, Exception], quiet: frozenset[str]) -> Any:
    kept = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        part = f"{name}, {key!r}" if isinstance(value, dict) else name
        if isinstance(item, dict):
            item = _without_lost(part, item, lost, quiet)
        try:
            dumps(item)
        except Exception as error:
            if key not in quiet:
                lost[part] = error
        else:
            kept.append((key, item))
    return dict(kept) if isinstance(value, dict) else [item for _, item in kept]


@functools.lru_cache(16)
def unpack_portable(data: bytes) -> Mapping[str, bytes]:
    """Return the settings from `Context.portable`, by name."""
    given: dict[str, bytes] = pickle.loads(zlib.decompress(data))
    return given


def with_variables(given: Mapping[str, bytes]) -> contextvars.Context:
    """Return a copy of this thread's context with another's variables."""
    context = contextvars.copy_context()
    for variable in _variables_in(given):
        # Another version of the module may have no such variable.
        with contextlib.suppress(Exception):
            context.run(variable.set)
    return context


def _variables_in(pickles: Mapping[str, bytes]) -> list[variables.Variable]:
    data = pickles.get(_VARIABLES)
    return [] if data is None else [variables.Variable(*found) for found in loads(data)]


class TaskContext:
    """The context of a worker process's tasks."""

    def __init__(self) -> None:
        self._base = contextvars.copy_context()
        #: Tasks run in copies of it.
        self.variables = self._base
        #: Messages for the user about settings that could not be applied.
        self.failures: list[str] = []
        self._failed: set[str] = set()
        self._pickles: dict[str, bytes] = {}
        #: By name: the applied pickle, None for the worker's own value, and the resulting value.
        self._applied: dict[str, tuple[bytes | None, Any]] = {}
        #: The worker's own values.
        self._own: dict[str, Any] = {}
        #: By module that is not imported yet, the names of settings to be applied again then.
        self._awaited: dict[str, set[str]] = {}

    @functools.cached_property
    def _watch(self) -> ImportWatch:
        # Only on use: it refers back to this object, and threads, which need none, must free their context.
        return ImportWatch(self._arrived)

    def enter(self, payload: bytes) -> None:
        """Apply the settings of a `Context`."""
        self._pickles = pickle.loads(payload)
        self.restore()

    def restore(self) -> None:
        """Apply settings again that tasks may have changed."""
        for name, setting in self._rows().items():
            if name not in self._pickles and name not in self._own:
                continue
            module = sys.modules.get(setting.module)
            if module is None:
                self._watch.wait_for(setting.module)
            else:
                self._put(setting, module)
        self.variables = self._base.copy()
        for variable in self._carried_variables():
            if variable.module in sys.modules:
                self._set(variable)
            else:
                self._watch.wait_for(variable.module)

    def _rows(self) -> Mapping[str, Setting]:
        # The search for rows of other packages takes milliseconds.
        return _TABLE if self._pickles.keys() <= _KNOWN else settings()

    def _arrived(self, name: str) -> None:
        """Apply the settings of a module that was just imported, perhaps by a task."""
        again = self._awaited.pop(name, ())
        for setting in self._rows().values():
            if setting.name in self._pickles and (setting.module == name or setting.name in again):
                self._put(setting, sys.modules[setting.module])
        for variable in self._carried_variables():
            if variable.module == name:
                self._set(variable)
                # A task that has imported it runs in a copy of the context.
                with contextlib.suppress(Exception):
                    variable.set()

    def _carried_variables(self) -> list[variables.Variable]:
        try:
            return _variables_in(self._pickles)
        except Exception as error:
            self._fail(_VARIABLES, error)
            return []

    def _set(self, variable: variables.Variable) -> None:
        try:
            self.variables.run(variable.set)
        except Exception as error:
            self._fail(f"{variable.module}.{variable.attribute}", error)

    def _put(self, setting: Setting, module: ModuleType) -> None:
        name = setting.name
        data, applied = self._pickles.get(name), self._applied.get(name)
        try:
            if applied is not None and applied[0] == data and is_same(applied[1], setting.read(module)):
                return
            value = self._own[name] if data is None else loads(data)
            for awaited in setting.awaited(value):
                self._awaited.setdefault(awaited, set()).add(name)
                self._watch.wait_for(awaited)
            if applied is None:
                self._own[name] = setting.carried(module, frozen(setting.read(module)))
            # Some settings travel only as changes.
            if applied is not None or value != {}:
                if setting.module == "sys":
                    setting.apply(module, value)
                else:
                    with warnings.catch_warnings():
                        # The user has seen the warning in the program.
                        warnings.simplefilter("ignore")
                        setting.apply(module, value)
            self._applied[name] = data, frozen(setting.read(module))
        except Exception as error:
            self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            self.failures.append(
                f"a worker process could not take over {name} from your program ({type(error).__name__}: {error})"
            )
