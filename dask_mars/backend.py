"""Backends that compute Dask's graphs: inline, on an engine of this process, on a cluster.

Whoever imports dask_mars need not be about to compute: the nanny of an agent never is. Nor does a task that
computes inline need what the user's process does. So this loads neither `dask_mars.client` nor `dask.array`.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import dask

from dask_mars.dask_api.core import get_sync

#: What only a runtime as a whole can be given.
_OF_RUNTIMES = ("memory_limit", "policy")


class Options(NamedTuple):
    """How a computation is to be done.

    Attributes
    ----------
    num_workers : int or None
        Most workers to use; None for all.
    retries : int or None
        How often a task that raises is tried again; None for what the configuration says.
    callbacks : iterable of tuple, optional
        In place of those registered with Dask.
    cache : mapping or None
        Values of keys that are known already; None for what Dask's configuration says.
    rerun_exceptions_locally : bool or None
        Run a task that raises once more in this process, for a debugger; None for what Dask's configuration says.
    """

    num_workers: int | None = None
    retries: int | None = None
    callbacks: Any = None
    cache: Mapping[Hashable, Any] | None = None
    rerun_exceptions_locally: bool | None = None

    @classmethod
    def known(cls, options: Mapping[str, Any]) -> Options:
        """Take the options that are ours; as Dask's own schedulers do, pass over those of others.

        Raises
        ------
        TypeError, ValueError
            One of ours makes no sense.

        Warns
        -----
        UserWarning
            One looks like one of ours.
        """
        found = cls(**{name: options[name] for name in cls._fields if name in options})
        for name in options.keys() - set(cls._fields):
            _warn_of_mistaken(name)
        for name in ("num_workers", "retries"):
            _refuse_all_but_counts(name, getattr(found, name))
        if found.cache is not None and not isinstance(found.cache, Mapping):
            raise TypeError(f"'cache' is a mapping of keys to values, and not {found.cache!r}")
        if found.callbacks is not None and not isinstance(found.callbacks, Iterable):
            raise TypeError(
                f"'callbacks' are tuples of functions, or instances of Callback, and not {found.callbacks!r}"
            )
        return found


def _warn_of_mistaken(name: str) -> None:
    """Warn of an option that has no effect and was probably to have one."""
    nearest = difflib.get_close_matches(name, (*Options._fields, *_OF_RUNTIMES), 1, 0.8)
    if not nearest:
        return
    advice = f"did you mean {nearest[0]!r}?"
    if nearest[0] in _OF_RUNTIMES:
        setting = nearest[0].replace("_", "-")
        advice = f"it is for dask_mars.Runtime({nearest[0]}=...), or set dask-mars.{setting}"
    warnings.warn(f"dask_mars ignores the option {name!r} of a computation: {advice}", stacklevel=2)


def _refuse_all_but_counts(name: str, value: Any) -> None:
    if value is None:
        return
    try:
        count = int(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name!r} is a number, and not {value!r}") from None
    except OverflowError:
        raise ValueError(f"{name!r} is a whole number, and not {value!r}") from None
    if not isinstance(value, str) and count != value:
        raise ValueError(f"{name!r} is a whole number, and not {value!r}")
    if count < 0:
        raise ValueError(f"{name!r} is at least 0, and not {value!r}")


class Backend(Protocol):
    """Something that computes Dask's graphs."""

    def compute(self, dsk: Any, keys: Any, options: Options, persist: bool = False) -> Any:
        """Compute keys of a Dask graph.

        Parameters
        ----------
        dsk, keys
            As Dask calls a scheduler.
        options : Options
            How.
        persist : bool, optional
            Leave values where they are, and return nodes for graphs in their place.

        Returns
        -------
        tuple or object
            As Dask's own schedulers: nested lists of keys become nested tuples of values.
        """


class InlineBackend:
    """Computes one task after the other, in this thread: a computation within a task must not wait for itself."""

    def compute(self, dsk: Any, keys: Any, options: Options, persist: bool = False) -> Any:
        """Compute keys of a Dask graph; see `Backend`."""
        known = {name: found for name in ("callbacks", "cache") if (found := getattr(options, name)) is not None}
        return get_sync(dsk, keys, **known)


def persist_with(
    backend: Backend, collections: Iterable[Any], optimize_graph: bool, options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return collections whose chunks are computed, and stay where they are.

    Parameters
    ----------
    backend : Backend
        What computes them.
    collections : iterable
        Dask collections.
    optimize_graph, options
        As Dask passes them on.
    """

    # A function: a scheduler that has `persist`, or belongs to what has it, would be asked again.
    def persisting(dsk: Any, keys: Any, **others: Any) -> Any:
        return backend.compute(dsk, keys, Options.known(others), persist=True)

    dask_persist: Callable[..., Any] = dask.persist
    persisted = dask_persist(
        *collections, traverse=False, optimize_graph=optimize_graph, scheduler=persisting, **options
    )
    return tuple(persisted)


__all__ = ["Backend", "InlineBackend", "Options", "persist_with"]
