"""The schedulers that are compared, each opened as a context that yields a Dask ``get``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

#: A Dask scheduler getter: ``get(dsk, keys, **kwargs)``.
Get = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """A scheduler under test."""

    name: str
    #: One line for people.
    summary: str
    #: What must be importable, and is imported before anything is timed.
    modules: tuple[str, ...]
    #: Given a number of workers, a context in which the scheduler is up and its ``get`` is at hand.
    open: Callable[[int], AbstractContextManager[Get]]
    #: The same as a script has it that computes something once and ends; by default `open`.
    open_in_script: Callable[[int], AbstractContextManager[Get]] | None = None

    def missing_modules(self) -> list[str]:
        """Name the modules this peer needs and this interpreter does not have."""
        return [name for name in self.modules if importlib.util.find_spec(name) is None]

    def load(self) -> None:
        """Import what the peer needs, so that no timing contains an import in this process."""
        for name in self.modules:
            importlib.import_module(name)


@contextmanager
def _threads(workers: int) -> Iterator[Get]:
    import dask.threaded

    # Dask keeps the pool of a given size for the calls that follow, so only the first call starts
    # threads.
    yield functools.partial(dask.threaded.get, num_workers=workers)


@contextmanager
def _distributed(workers: int, *, config: Mapping[str, Any]) -> Iterator[Get]:
    import dask

    # Without annotations of its own, like most of Dask.
    distributed: Any = importlib.import_module("distributed")
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with (
        dask.config.set(config),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get


@contextmanager
def _mars(workers: int) -> Iterator[Get]:
    dask_mars: Any = importlib.import_module("dask_mars")
    with dask_mars.Runtime(num_workers=workers) as runtime:
        yield runtime.get


@contextmanager
def _mars_by_name(workers: int) -> Iterator[Get]:
    import dask

    dask_mars: Any = importlib.import_module("dask_mars")
    # The processes end with the interpreter.
    with dask.config.set(scheduler="mars", num_workers=workers):
        yield dask_mars.get


def persist(get: Get, *collections: Any) -> tuple[Any, ...]:
    """Persist collections by a peer, and wait until they are.

    Parameters
    ----------
    get
        Of the peer.
    *collections
        What to persist.

    Returns
    -------
    tuple
        As many collections.
    """
    import dask

    persisted: tuple[Any, ...] = dask.persist(*collections, scheduler=get)  # type: ignore[attr-defined]
    if (distributed := sys.modules.get("distributed")) and distributed.futures_of(persisted):
        distributed.wait(persisted)
    return persisted


_UNBOUNDED = {"distributed.scheduler.worker-saturation": float("inf")}

#: Every peer by name. The first is the one the others are compared with.
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("threads", "Dask's threaded scheduler", ("dask.threaded",), _threads),
        Peer(
            "distributed",
            "LocalCluster of one-thread worker processes, default configuration",
            ("distributed",),
            functools.partial(_distributed, config={}),
        ),
        Peer(
            "distributed-unbounded",
            "the same with worker-saturation: inf, which sends tasks to workers at once",
            ("distributed",),
            functools.partial(_distributed, config=_UNBOUNDED),
        ),
        Peer("mars", "dask_mars with warm worker processes", ("dask_mars",), _mars, _mars_by_name),
    )
}

#: The peer that ratios refer to.
BASELINE = "threads"
