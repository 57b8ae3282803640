"""A request for values of Dask's graph, and the backends that answer it: inline, an engine, a cluster.

Not every process that imports dask_mars computes, so this module imports little, and not `dask.array`.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import dask

from dask_mars import config, process_role
from dask_mars.client.records import Record
from dask_mars.dask_api.core import get_sync

if TYPE_CHECKING:
    from dask_mars.checkpointing.block import CheckpointSettings
    from dask_mars.graph.chunks import ChunkGraph

#: Options that only a whole runtime can have.
_OF_RUNTIMES = ("memory_limit", "policy")


class Options(NamedTuple):
    """Options of a computation."""

    #: Maximum number of workers; None for all.
    num_workers: int | None = None
    #: Retries of a failed task; None for the configured value.
    retries: int | None = None
    #: Used instead of those registered with Dask.
    callbacks: Any = None
    #: Known values by key; None for the one in Dask's configuration.
    cache: Mapping[Hashable, Any] | None = None
    #: Run a failed task again in this process, for a debugger; None for the value in Dask's configuration.
    rerun_exceptions_locally: bool | None = None

    @classmethod
    def known(cls, options: Mapping[str, Any]) -> Options:
        """Return our options; ignore those of other schedulers, as Dask's own schedulers do."""
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
    """Warn of an option without effect that resembles one with an effect."""
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


class Request(NamedTuple):
    """A request for values of a Dask graph."""

    #: As for a Dask scheduler.
    graph: Any
    keys: Any
    options: Options = Options()
    #: Leave values in the store, and return nodes for graphs instead.
    persist: bool = False
    #: Record of the computation. Default: a new one.
    record: Record | None = None
    #: The checkpoint that saves results. Default: none.
    checkpoint: CheckpointSettings | None = None
    #: Called with the prepared graph; it may raise to refuse it.
    on_graph: Callable[[ChunkGraph], None] | None = None


def checkpoint_settings() -> CheckpointSettings | None:
    """Return the checkpoint settings for a new computation."""
    directory = config.get("checkpoint.directory")
    if directory is None or process_role.computes_inline():
        return None
    # Most programs save nothing.
    from dask_mars.checkpointing.block import configured

    return configured(directory)


class Backend(Protocol):
    """Computes Dask's graphs."""

    def compute(self, request: Request) -> Any:
        """Return the requested values as Dask's own schedulers do: nested lists of keys become nested tuples."""


class InlineBackend:
    """Computes one task after the other, in this thread: a computation within a task must not wait for itself."""

    def compute(self, request: Request) -> Any:
        """Return the requested values; see `Backend`."""
        options = request.options
        known = {name: found for name in ("callbacks", "cache") if (found := getattr(options, name)) is not None}
        return get_sync(request.graph, request.keys, **known)


def persist_with(
    backend: Backend, collections: Iterable[Any], optimize_graph: bool, options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return collections whose chunks are computed and stay in the store."""
    known = {name: value for name, value in options.items() if name in Options._fields}
    checkpoint = checkpoint_settings()

    # A plain function: of a scheduler, or of its object, Dask would call `persist` again.
    def persisting(dsk: Any, keys: Any, **others: Any) -> Any:
        return backend.compute(Request(dsk, keys, Options.known(others), persist=True, checkpoint=checkpoint))

    dask_persist: Callable[..., Any] = dask.persist
    persisted = dask_persist(
        *collections, traverse=False, optimize_graph=optimize_graph, scheduler=persisting, **known
    )
    return tuple(persisted)
