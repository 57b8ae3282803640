"""Sends exceptions from a worker to the user, also those that cannot be pickled."""

from __future__ import annotations

import builtins
import copyreg
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, WrapperDescriptorType
from typing import Any, NamedTuple

import tblib
import tblib.pickling_support

from dask_mars.protocol import tracebacks
from dask_mars.protocol.pickling import UNSET, dumps, filled_slots, loads, members_of, set_state

_BUILTIN_ERRORS = [
    kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)
]


class FailureRecord(NamedTuple):
    """An exception on its way from a worker to the user, with its traceback and chain."""

    #: Pickle of the exception.
    payload: bytes
    #: Type and message, in case the pickle cannot be loaded.
    summary: str


def pack_error(error: BaseException) -> FailureRecord:
    """Pack any exception for a message."""
    summary = f"{type(error).__name__}: {_text_of(error)}"
    tblib.pickling_support.install(error)
    tracebacks.install()
    for kind in (type(error), *_BUILTIN_ERRORS):
        if type(kind.__init__) is WrapperDescriptorType and kind.__reduce__ is BaseException.__reduce__:
            copyreg.pickle(kind, _reduce_as_called)
    for kind in set(map(type, tracebacks.chain(error))):
        # Constructors written in C fill the members of their classes, except names, which are not arguments.
        is_filled = type(kind.__init__) is WrapperDescriptorType and not issubclass(
            kind, (AttributeError, NameError)
        )
        if any(is_slot or not is_filled for _, is_slot in members_of(kind)):
            copyreg.pickle(kind, _reduce_with_slots)
    packed = _packed(error, {})
    return FailureRecord(dumps(RuntimeError(summary) if packed is None else packed), summary)


def unpack_error(record: FailureRecord) -> BaseException:
    """Return the exception with its traceback, ready to be raised."""
    try:
        error = loads(record.payload)
    except Exception:
        error = RuntimeError(record.summary)
    return error if isinstance(error, BaseException) else RuntimeError(record.summary)


def _reduce_as_called(error: BaseException) -> tuple[Any, ...]:
    """Reduce an exception to a call of its class."""
    # tblib calls only the commonest constructors written in C, and loses what others keep outside of `args`: the
    # text of a UnicodeDecodeError, the code of a SystemExit.
    kind, arguments, *state = tuple(error.__reduce__())
    chain = (error.__cause__, error.__traceback__, error.__context__, error.__suppress_context__)
    notes = getattr(error, "__notes__", None)
    return tblib.pickling_support.unpickle_exception, (kind, arguments, *chain, notes), *state


def _unset(value: Any) -> Any:
    return UNSET


def _reduce_with_slots(error: BaseException) -> tuple[Any, ...]:
    """Reduce an exception as tblib does, with its slots, which tblib omits; NumPy's `AxisError` needs them."""
    function, arguments, *state = tblib.pickling_support.pickle_exception(error)
    return _with_slots, (function, arguments, filled_slots(error)), *state


def _with_slots(function: Callable[..., Any], arguments: tuple[Any, ...], slots: dict[str, Any]) -> BaseException:
    error: BaseException = function(*arguments)
    set_state(error, ({}, slots))
    return error


class _Rebuilt:
    """Pickles as a call that rebuilds an exception, without its own `__init__` and `__new__`."""

    def __init__(
        self,
        error: BaseException,
        kind: type[BaseException],
        arguments: tuple[Any, ...],
        state: tuple[dict[str, Any], dict[str, Any]],
        packed: dict[int, Any],
    ) -> None:
        behind = [each and _packed(each, packed) for each in (error.__cause__, error.__context__)]
        chain = error.__traceback__, *behind, error.__suppress_context__
        self._call = kind, arguments, state, *chain

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._call


def _packed(error: BaseException, packed: dict[int, Any]) -> Any:
    """Return a picklable stand-in for an exception, None without one or within a cycle."""
    # `packed` has the stand-ins of other exceptions by id: each is packed once.
    if id(error) not in packed:
        packed[id(error)] = None
        packed[id(error)] = next(filter(_can_pickle, _candidates(error, packed)), None)
    return packed[id(error)]


def _candidates(error: BaseException, packed: dict[int, Any]) -> Iterator[Any]:
    """Yield stand-ins for an exception, the most faithful first."""
    # Many exceptions pickle but do not unpickle: their constructors need other arguments.
    yield error

    def travelling(value: Any, otherwise: Callable[[Any], Any]) -> Any:
        if _can_pickle(value):
            return value
        known = _packed(value, packed) if issubclass(type(value), BaseException) else None
        return otherwise(value) if known is None else known

    def in_words(value: Any) -> Any:
        if type(value) in (list, tuple) and not _can_pickle(value):
            return type(value)(map(in_words, value))
        return travelling(value, repr)

    own, slots = (
        {name: found for name, value in state.items() if (found := travelling(value, _unset)) is not UNSET}
        for state in (vars(error), filled_slots(error))
    )
    yield _Rebuilt(error, type(error), tuple(map(in_words, error.args)), (own, slots), packed)
    text = f"{type(error).__name__}: {_text_of(error)}"
    yield _Rebuilt(error, RuntimeError, (text,), ({}, {}), packed)


def _rebuild(
    kind: type[BaseException],
    arguments: tuple[Any, ...],
    state: tuple[dict[str, Any], dict[str, Any]],
    traceback: Any,
    cause: BaseException | None,
    context: BaseException | None,
    suppress_context: bool,
) -> BaseException:
    # The class's own __new__ may need the original arguments, which are unknown.
    base = next(base for base in kind.__mro__ if type(vars(base).get("__new__")) is BuiltinFunctionType)
    error: BaseException = base.__new__(kind, *arguments)
    set_state(error, state)
    chain = {"__cause__": cause, "__context__": context, "__suppress_context__": suppress_context}
    set_state(error, ({}, {"args": arguments, **chain}))
    return error.with_traceback(traceback)


def _can_pickle(value: Any) -> bool:
    try:
        loads(dumps(value))
    except BaseException:
        return False
    return True


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its message cannot be printed>"
