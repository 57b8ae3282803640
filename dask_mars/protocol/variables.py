"""Context variables of the calling thread: Dask's threads run each task in a copy of its context.

Variables travel if they are attributes of a module, or NumPy's and decimal's own. A function that refers to a
variable of the program itself cannot be pickled, and runs in the user's process.
"""

from __future__ import annotations

import decimal
import sys
from contextvars import ContextVar, copy_context
from typing import Any, NamedTuple

from dask_mars.import_locks import is_importing
from dask_mars.lazy_numpy import np
from dask_mars.protocol.pickling import dumps

#: Packages whose variables identify an event loop, session or client, and mean nothing in another process.
_OF_PROCESS = frozenset(
    {
        "IPython",
        "asyncio",
        "dask_mars",
        "distributed",
        "gevent",
        "ipykernel",
        "prompt_toolkit",
        "sniffio",
        "tornado",
    }
)
#: Types of immutable values that compare by equality.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
#: Places of variables without one in a module: NumPy's error handling, and decimal's context.
_NUMPY, _DECIMAL = ("numpy", ""), ("decimal", "")

#: Module and attribute of each variable of the searched modules.
_places: dict[ContextVar[Any], tuple[str, str]] = {}
_searched: set[str] = set()


class Variable(NamedTuple):
    """The value of a variable on its way to a worker."""

    module: str
    attribute: str
    value: Any

    def set(self) -> None:
        """Set the variable in the current context, if its module is imported."""
        if self[:2] == _NUMPY:
            errors, function, buffer_size = self.value
            np.seterr(**errors)
            np.seterrcall(function)
            np.setbufsize(buffer_size)
        elif self[:2] == _DECIMAL:
            decimal.setcontext(self.value)
        elif (module := sys.modules.get(self.module)) is not None:
            getattr(module, self.attribute).set(self.value)


def in_force() -> dict[tuple[str, str], Any]:
    """Return a comparable form of the current context's variables, by place."""
    return {
        place: _mark(value)
        for variable, value in copy_context().items()
        if (place := _place(variable, value)) is not None
    }


def carried() -> tuple[list[Variable], dict[str, Exception]]:
    """Return the current context's variables for sending, and the errors of those that cannot be pickled."""
    variables, lost = [], {}
    for variable, value in copy_context().items():
        place = _place(variable, value)
        if place is None:
            continue
        if place == _NUMPY:
            value = np.geterr(), np.geterrcall(), np.getbufsize()
        try:
            dumps(value)
        except Exception as error:
            if place != _NUMPY:
                lost[".".join(place)] = error
                continue
            lost["numpy.seterrcall"] = error
            value = np.geterr(), None, np.getbufsize()
        variables.append(Variable(*place, value))
    return variables, lost


def _place(variable: ContextVar[Any], value: Any) -> tuple[str, str] | None:
    if variable.name == "numpy.ufunc.extobj":
        return _NUMPY
    if isinstance(value, decimal.Context):
        return _DECIMAL
    if variable not in _places:
        _search()
    return _places.get(variable)


def _search() -> None:
    """Find the variables of newly imported modules."""
    program = sys.modules.get("__main__")
    for name, module in list(sys.modules.items()):
        if name in _searched or module is program or name.partition(".")[0] in _OF_PROCESS:
            continue
        if not is_importing(module):
            _searched.add(name)
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if type(value) is ContextVar:
                _places.setdefault(value, (name, attribute))


def _mark(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN or kind.__name__ == "PyCapsule":
        return value
    if isinstance(value, decimal.Context):
        # Without the flags, which record past operations.
        _, (*figures, _, traps) = value.__reduce__()
        return (*figures, *traps)
    if kind is dict and all(type(item) in _PLAIN for item in value.values()):
        return value.copy()
    try:
        return dumps(value)
    except Exception:
        return value
