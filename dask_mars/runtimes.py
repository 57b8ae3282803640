"""The runtimes behind `dask_mars.get`: the choice of where to compute, and the default engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import dask

from dask_mars import config, process_role
from dask_mars.client.records import Records
from dask_mars.client.request import Backend, InlineBackend, Options, Request, checkpoint_settings, persist_with
from dask_mars.client.runtime import Runtime, local_backend
from dask_mars.locking import Lock

if TYPE_CHECKING:
    from dask_mars.client.handles import Computation
    from dask_mars.cluster.backend import ClusterBackend
    from dask_mars.cluster.runtime import ClusterRuntime
    from dask_mars.engine.engine import Engine


class _Default:
    """The runtimes behind `dask_mars.get`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._records = Records()
        self._runtime: Runtime | None = None
        #: A second runtime, for calls that request more workers than the default has.
        self._larger: Runtime | None = None
        #: Former larger runtimes that still compute or have persisted data.
        self._replaced: list[Runtime] = []

    @property
    def records(self) -> Records:
        """Records of its computations, including those on clusters."""
        runtime = self._runtime
        return self._records if runtime is None else runtime.records

    def runtime(self) -> Runtime:
        with self._lock:
            return self._made()

    def _made(self) -> Runtime:
        if self._runtime is None:
            self._runtime = Runtime()
            self._runtime.records = self._records
        return self._runtime

    def engine(self, num_workers: int | None) -> Engine:
        with self._lock:
            runtime = self._made()
            if num_workers is not None and num_workers > runtime.settings.num_workers:
                if self._larger is None or self._larger.settings.num_workers < num_workers:
                    if self._larger is not None:
                        self._replaced.append(self._larger)
                    self._larger = Runtime(num_workers)
                runtime = self._larger
            # Another call may compute there, or be about to.
            is_alone = len(self.records.live()) <= 1
            for replaced in [other for other in self._replaced if is_alone and not other.has_persisted]:
                replaced.close()
                self._replaced.remove(replaced)
            return runtime.engine()

    def store_limit(self) -> int:
        with self._lock:
            return self._made().settings.store_limit

    def close(self) -> None:
        with self._lock:
            for runtime in (self._runtime, self._larger, *self._replaced):
                if runtime is not None:
                    runtime.close()
            self._runtime = self._larger = None
            self._replaced = []


_default = _Default()


def _after_fork() -> None:
    """Forget the parent's runtimes in a forked process."""
    global _default
    _default = _Default()


os.register_at_fork(after_in_child=_after_fork)


def _default_backend(client: Any) -> Backend:
    """Return the backend for calls without a runtime: inline, a cluster, or the default engine."""
    if process_role.computes_inline():
        return InlineBackend()
    return cluster_for(client) or local_backend(_default.engine, _default.store_limit, _default.records)


def cluster_for(client: Any) -> ClusterBackend | None:
    """Return the cluster for a computation; None for this process's own engine."""
    address = config.scheduler_address() if client is None else None
    if client is None and address is None and not _has_client():
        return None
    from dask_mars.cluster import backend as clusters

    if address is not None:
        client = clusters.connect(address)
    records = _default.records
    return clusters.current_cluster(records) if client is None else clusters.cluster_of(client, records)


def _has_client() -> bool:
    """Return whether there is a current `distributed.Client`, without importing distributed.

    Dask itself imports distributed, where it is installed, when it searches for a client.
    """
    module = sys.modules.get("distributed.client")
    try:
        # Another thread may be importing it right now.
        return hasattr(module, "Client") and module.Client.current() is not None  # type: ignore[union-attr]
    except ValueError:
        return False


def get(dsk: Any, keys: Any, *, num_workers: int | None = None, retries: int | None = None, **options: Any) -> Any:
    """Compute keys of a Dask graph on dask_mars: pass it as ``scheduler=`` wherever Dask takes one.

    The first call starts workers: threads for the code of known libraries, and processes for other code and long
    computations. Later calls share them, and they end with the interpreter.

    Parameters
    ----------
    dsk : mapping or Dask expression
        The graph.
    keys : key or nested list of keys
        What to compute.
    num_workers : int, optional
        Maximum number of workers for this computation; more are started if necessary. Default: ``num_workers`` in
        Dask's configuration, else all.
    retries : int, optional
        Retries of a failed task. Default: ``dask-mars.retries``, which is 0.
    **options
        ``callbacks``, ``cache`` and ``rerun_exceptions_locally``, with the same meaning as for Dask's own
        schedulers. ``client``: a `distributed.Client`, to compute on its cluster instead. Others are ignored, as
        Dask's schedulers do.

    Returns
    -------
    object or tuple
        The value of a key; for a list of keys a tuple of their values.

    Raises
    ------
    KeyError
        A requested key is not in the graph.
    ValueError
        A task depends on a key that is not in the graph.
    RuntimeError
        The graph has a cycle.
    Exception
        Any exception of a task, with the task's own traceback.

    Examples
    --------
    >>> from operator import add
    >>> import dask_mars
    >>> dask_mars.get({"x": 1, "y": (add, "x", 10)}, ["x", "y"])
    (1, 11)
    """
    if num_workers is None:
        num_workers = dask.config.get("num_workers", None)
    backend = _default_backend(options.pop("client", None))
    chosen = Options.known({**options, "num_workers": num_workers, "retries": retries})
    return backend.compute(Request(dsk, keys, chosen, checkpoint=checkpoint_settings()))


def persist(collections: Iterable[Any], optimize_graph: bool = True, **options: Any) -> tuple[Any, ...]:
    """Compute collections and keep their chunks in the default runtime's store, as `Runtime.persist` does.

    On a cluster they stay there, and this does not wait for them.
    """
    backend = _default_backend(options.pop("client", None))
    if options.get("num_workers") is None:
        options["num_workers"] = dask.config.get("num_workers", None)
    return persist_with(backend, collections, optimize_graph, options)


# `dask.persist` looks here for it.
get.persist = persist  # type: ignore[attr-defined]


def submit(
    *collections: Any,
    name: str | None = None,
    id: str | None = None,
    optimize_graph: bool = True,
    traverse: bool = True,
    num_workers: int | None = None,
    **options: Any,
) -> Computation:
    """Compute collections in the background, where `dask_mars.get` would, and return at once.

    Parameters
    ----------
    *collections : object
        Arguments of `dask.compute`.
    name : str, optional
        Name of the computation, for lists and pages.
    id : str, optional
        A UUID as text for the id. Default: a new one.
    optimize_graph, traverse : bool, optional
        As for `dask.compute`.
    num_workers : int, optional
        As for `get`.
    **options
        As for `get`. Callbacks that are active now are called, in another thread.

    Returns
    -------
    Computation
        A handle to follow, cancel and fetch it.

    Raises
    ------
    TypeError, ValueError
        `id` is not a UUID, or another computation has it; or another argument is invalid.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_mars
    >>> x = da.arange(10, chunks=5)
    >>> computation = dask_mars.submit(x.sum(), x.max(), name="two")
    >>> tuple(map(int, computation.result()))
    (45, 9)
    """
    from dask_mars.client import handles

    backend = _default_backend(options.pop("client", None))
    options["num_workers"] = dask.config.get("num_workers", None) if num_workers is None else num_workers
    return handles.submit(backend, collections, name, id, options, optimize_graph, traverse)


def runtime() -> Runtime | ClusterRuntime:
    """Return the runtime behind `dask_mars.get`, for observation.

    Returns
    -------
    Runtime or ClusterRuntime
        Where `dask_mars.get` computes on a cluster, an object with the same methods for it, as far as possible:
        `state`, `memory`, `explain`, `profile`, `computations`, `cancel`.

    Examples
    --------
    >>> import dask_mars
    >>> dask_mars.get({"x": 1, "y": (abs, "x")}, "y")
    1
    >>> dask_mars.runtime().computations()[0]["state"]
    'finished'
    """
    cluster = None if process_role.computes_inline() else cluster_for(None)
    return _default.runtime() if cluster is None else cluster.runtime(_default.records)


def close() -> None:
    """End the default runtime's workers; the next computation starts new ones."""
    _default.close()
    clusters = sys.modules.get("dask_mars.cluster.backend")
    if clusters is not None:
        clusters.close()


__all__ = ["Runtime", "close", "get", "persist", "runtime", "submit"]
