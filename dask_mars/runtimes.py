"""`Runtime`: an engine in the user's hands, and the default one behind `dask_mars.get`."""

from __future__ import annotations

import atexit
import operator
import os
import pkgutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any

import dask
from dask.callbacks import Callback

from dask_mars import config, process_role
from dask_mars.backend import Backend, InlineBackend, Options, persist_with
from dask_mars.client.records import Records
from dask_mars.errors import EngineStopped, refuse_unhashable

if TYPE_CHECKING:
    from dask_mars.checkpointing.settings import CheckpointSettings
    from dask_mars.client.handles import Computation
    from dask_mars.cluster.backend import ClusterBackend
    from dask_mars.cluster.runtime import ClusterRuntime
    from dask_mars.engine.loop import Engine
    from dask_mars.engine.memory_account import MemoryAccount
    from dask_mars.observe.profile import Profile
    from dask_mars.runtime_state import RuntimeState
    from dask_mars.web.server import Server


class Runtime:
    """Worker processes around a shared store on this machine.

    It starts at the first call and ends when it is closed, at the latest with the interpreter. It is thread-safe.
    Without work the processes end after ``dask-mars.idle-timeout`` and start again at the next computation;
    persisted data stay.

    Parameters
    ----------
    num_workers : int, optional
        Worker processes. Default: the processors that this process may use.
    memory_limit : int, float or str, optional
        Memory limit in bytes, as a share of the available memory, or as text such as ``"4 GiB"`` or ``"60%"``.
        Default: 80 %.
    policy : str, optional
        Order and placement of chunks: ``"memory"``, ``"mars"``, or a policy of another package. Default:
        ``dask-mars.policy``.
    resources : mapping, optional
        Amounts by name, as in ``{"GPU": 1}``: tasks annotated by ``dask.annotate(resources={"GPU": 1})`` run
        concurrently only within these amounts. Default: ``dask-mars.resources``.

    Attributes
    ----------
    records : Records
        Records of its computations.

    Raises
    ------
    ValueError
        An argument is invalid.

    Examples
    --------
    >>> import dask.array as da
    >>> from dask_mars import Runtime
    >>> with Runtime(num_workers=2) as runtime:
    ...     int(da.arange(10, chunks=5).sum().compute(scheduler=runtime.get))
    45
    """

    def __init__(
        self,
        num_workers: int | None = None,
        memory_limit: int | float | str | None = None,
        policy: str | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self.settings = config.settings(num_workers, memory_limit, policy, resources)
        # Not every program that imports dask_mars computes.
        from dask_mars.scheduler.policies.plugins import load_policy

        load_policy(self.settings.policy)
        self.records = Records()
        self._engine: Engine | None = None
        self._closed = False
        self._lock = threading.Lock()
        #: Servers that show this runtime.
        self._servers: set[Server] = set()
        _runtimes.add(self)

    def start(self) -> Runtime:
        """Start the workers now instead of at the first computation."""
        self.engine().start_processes()
        return self

    def engine(self, num_workers: int | None = None) -> Engine:
        """Return the running engine, starting it if necessary.

        A forked process gets an engine of its own.

        Parameters
        ----------
        num_workers : int, optional
            Ignored: a computation may use fewer workers than the runtime has, but not more.

        Raises
        ------
        EngineStopped
            The runtime is closed.
        AddressSpaceTooSmall
            A process has too few addresses for all shared memory.
        """
        with self._lock:
            if self._closed:
                raise EngineStopped
            engine = self._engine
            return engine if engine is not None and engine.alive else self._start_engine()

    def running_engine(self) -> Engine | None:
        """Return the engine if it is running, else None."""
        # Without the lock: engines' threads call this, while `close` may hold it and wait for such a thread.
        engine = self._engine
        return engine if engine is not None and engine.alive else None

    def _store_limit(self) -> int:
        return self.settings.store_limit

    def _start_engine(self) -> Engine:
        if self._engine is not None:
            atexit.unregister(self._engine.close)
        begun = threading.Event()
        started: Future[Engine] = Future()

        def start() -> None:
            begun.set()
            try:
                engine = self._engine = _new_engine(self.settings)
                atexit.register(engine.close)
                started.set_result(engine)
            except BaseException as error:
                started.set_exception(error)

        # Ctrl-C does not reach other threads: here it could lose a started engine.
        starter = threading.Thread(target=start, name="dask-mars-start")
        try:
            starter.start()
            return started.result()
        except BaseException:
            # The interrupt may come before the thread has begun.
            if begun.wait(_BEGIN_S):
                starter.join()
            raise

    @property
    def has_persisted(self) -> bool:
        """Return whether its store has persisted data."""
        engine = self._engine
        return engine is not None and engine.alive and engine.has_persisted

    def get(self, dsk: Any, keys: Any, **options: Any) -> Any:
        """Compute keys of a Dask graph: a Dask scheduler, as in ``x.compute(scheduler=runtime.get)``.

        Parameters
        ----------
        dsk : mapping or Dask expression
            The graph.
        keys : key or nested list of keys
            What to compute.
        **options
            ``num_workers``, ``retries``, ``callbacks``, ``cache`` and ``rerun_exceptions_locally``, as for
            `dask_mars.get`.
        """
        return self._backend().compute(dsk, keys, Options.known(options))

    def _backend(self) -> Backend:
        return _local_backend(self.engine, self._store_limit, self.records)

    def submit(
        self,
        *collections: Any,
        name: str | None = None,
        id: str | None = None,
        optimize_graph: bool = True,
        traverse: bool = True,
        **options: Any,
    ) -> Computation:
        """Compute collections in the background, and return at once.

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
        **options
            As for `get`. Callbacks that are active now are called, in another thread.

        Returns
        -------
        Computation
            A handle to follow, cancel and fetch it.

        Raises
        ------
        EngineStopped
            The runtime is closed.
        TypeError, ValueError
            `id` is no UUID, or another computation has it; or another argument is invalid.

        Examples
        --------
        >>> import dask.array as da
        >>> from dask_mars import Runtime
        >>> with Runtime(num_workers=2) as runtime:
        ...     computation = runtime.submit(da.arange(10, chunks=5).sum(), name="sum")
        ...     int(computation.result())
        45
        """
        self._refuse_if_closed()
        # Most programs wait for their computations.
        from dask_mars.client import handles

        chosen = _with_callbacks(options)
        return handles.submit(self._backend(), collections, name, id, chosen, optimize_graph, traverse)

    def submit_graph(
        self, dsk: Any, keys: Any, *, name: str | None = None, id: str | None = None, **options: Any
    ) -> Computation:
        """Compute keys of a Dask graph in the background: `submit` for callers that have a graph.

        Parameters
        ----------
        dsk, keys
            As for `get`.
        name, id
            As for `submit`.
        **options
            As for `get`.

        Returns
        -------
        Computation
            Its result is that of `get`.

        Raises
        ------
        EngineStopped, TypeError, ValueError
            As for `submit`.
        """
        self._refuse_if_closed()
        from dask_mars.client import handles

        return handles.submit_graph(self._backend(), dsk, keys, name, id, _with_callbacks(options))

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EngineStopped

    def persist(self, collections: Iterable[Any], optimize_graph: bool = True, **options: Any) -> tuple[Any, ...]:
        """Compute collections and keep their chunks in the store; `dask.persist` calls this.

        Later computations by this runtime read the chunks in place. They are freed with the last reference to
        them, at the latest when the runtime is closed; then computations that need them raise `PersistedLost`.

        Parameters
        ----------
        collections : iterable
            Dask collections.
        optimize_graph : bool, optional
            As for `dask.persist`.
        **options
            As for `get`.

        Returns
        -------
        tuple
            Collections like those given.
        """
        return persist_with(self._backend(), collections, optimize_graph, _known(options))

    def state(self) -> RuntimeState:
        """Return the current computations, workers and store.

        Returns
        -------
        RuntimeState
            A dict, whose entries are attributes as well; printed, and in notebooks, it is a table. ``graphs``: for
            each its number, and its chunks by state. ``persisted``: number of persisted chunks. ``reservations``:
            for each its purpose, its bytes, and whether it was granted. ``workers``: for each its number, its
            ``label`` (a thread of your process, or a worker with its process), its process id, the Dask key of the
            running chunk, its step (``"prepare"``, ``"load"``, ``"compute"`` or ``"seal"``), and the number of
            chunks in hand. ``store``: bytes stored, limit, reserved for chunks in hand, and written to disk since
            the start. ``missing_extensions``: the C extensions that are not installed. ``object_quotas``: whether
            Python objects, and not only arrays, ask before they take memory in worker processes. Empty if the
            runtime is not running.
        """
        # Most programs never call this.
        from dask_mars.runtime_state import RuntimeState

        engine = self.running_engine()
        return RuntimeState() if engine is None else RuntimeState(engine.state())

    def memory(self) -> MemoryAccount:
        """Return the use of memory, from any thread; ``print`` and notebooks show it as a table.

        Returns
        -------
        MemoryAccount
            In bytes. For all processes together ``limit_bytes``, ``in_use_bytes``, and ``peak_bytes``, the highest
            measurement since the start. In use are: ``shared_bytes``, including ``store_bytes`` for results;
            ``private``, of each process; ``library_bytes``. Besides, ``promised_bytes``: reservations for chunks
            in hand, used or not; ``on_disk_bytes``; and ``spilled_bytes``, written to disk since the start.
            Without workers only the limit is set, and all else is 0.

        Raises
        ------
        EngineStopped
            The runtime is closed during this call.
        """
        # Not every program that imports dask_mars computes.
        from dask_mars.engine.memory_account import MemoryAccount

        engine = self.running_engine()
        return MemoryAccount(self.settings.memory_limit) if engine is None else engine.memory()

    def profile(self) -> Profile:
        """Return the cost of layers in running computations, and in the last one that has ended.

        Returns
        -------
        Profile
            A dict of dicts that shows itself as tables, and has `to_dict` and `to_pandas`. It maps the number of
            the computation and the name of the layer to ``count``, the number of computed chunks, ``total_s`` and
            ``mean_s``, their time with sealing, and ``stored_bytes``, the size of their values in the store,
            without small ones, which are not stored. A chain of layers that runs as one counts for the last layer.
            Empty if the runtime is not running.
        """
        # Most programs never call this.
        from dask_mars.observe.profile import Profile, by_layer

        engine = self.running_engine()
        measured = [] if engine is None else engine.measurements()
        # Graphs of persisted data computed nothing.
        return Profile({one.graph: layers for one in measured if (layers := by_layer(one))})

    def computations(self) -> list[dict[str, Any]]:
        """Return the current and the most recent computations, the newest first.

        Returns
        -------
        list of dict
            For each its ``id``, ``name``, ``state``, the engine's number as ``graph``; the times ``created``,
            ``started`` and ``ended``, in seconds since 1970; its ``chunks`` by state, as in
            `Computation.progress`; and its ``error`` as ``type`` and ``message``. Computations by `get` are
            included.
        """
        from dask_mars.client.summaries import summary

        return [summary(record) for record in self.records]

    def cancel(self, computation: int | str | Computation) -> bool:
        """Cancel a computation, from any thread. The call that has started it raises `errors.Cancelled`.

        Queued chunks are dropped at once. A running task gets `errors.ExecutionInterrupted`, which is a
        KeyboardInterrupt; if it still runs after ``dask-mars.cancel-grace``, its worker is ended and replaced. A
        task in the user's process runs to its end first. Other computations are not disturbed.

        A computation that is being prepared has no number yet; cancelled by its id, it ends at the next step of
        the preparation.

        Parameters
        ----------
        computation : int, str or Computation
            Its number, as in `state`, its id, as in `computations` and `Computation`, or its handle.

        Returns
        -------
        bool
            False if there was no such computation, or it was over.

        Raises
        ------
        TypeError
            It is none of these.
        """
        # A handle has an id.
        told: Any = getattr(computation, "id", computation)
        if isinstance(told, str):
            try:
                return self.records.find(told).cancel()
            except KeyError:
                return False
        try:
            graph = operator.index(told)
        except TypeError:
            raise TypeError(
                f"a computation is told by its id, its number or its handle, not by {told!r}"
            ) from None
        engine = self.running_engine()
        return engine is not None and engine.cancel_graph(graph)

    def explain(self, key: Any = None) -> str:
        """Explain what is computed and what waits for what, from any thread.

        Parameters
        ----------
        key : key, optional
            A Dask key: explain why this one is not computed. Default: explain all graphs, workers and the store.

        Raises
        ------
        KeyError
            No graph in progress has the key; a chain that runs as one has the key of its last chunk.
        TypeError
            It cannot be a key, as a list of keys.
        """
        if key is not None:
            refuse_unhashable(key)
        engine = self.running_engine()
        # Most programs never call this.
        from dask_mars.client.showing import Explanation

        return Explanation("no workers are running" if engine is None else engine.explain(key))

    def serve(self, port: int = 0, address: str = "127.0.0.1", **options: Any) -> Server:
        """Show this runtime in browsers, and allow cancelling; there is no submission.

        It needs tornado, as the extra ``web`` installs it. ``docs/page.md`` describes the page.

        Parameters
        ----------
        port : int, optional
            Default: any free port.
        address : str, optional
            Address of the interface. Other addresses than this machine's own need ``behind_proxy``.
        **options
            ``socket_path``, ``token``, ``view_token``, ``behind_proxy`` and ``connection_file``, as for
            `dask_mars.web.server.serve`.

        Returns
        -------
        Server
            A server with ``url``, ``link`` and ``close()``. It ends with the runtime.

        Raises
        ------
        EngineStopped
            The runtime is closed.
        ValueError
            The address is not this machine's own and there is no proxy, or a token is too short.
        """
        # `web` imports runtimes, not the other way round, and most programs never need it.
        serve_runtime = pkgutil.resolve_name("dask_mars.web.server:serve_runtime")
        server: Server = serve_runtime(self, port=port, address=address, on_close=self._servers.discard, **options)
        with self._lock:
            if not self._closed:
                self._servers.add(server)
                return server
        server.close()
        raise EngineStopped

    def close(self) -> None:
        """End the workers and free all memory. Running computations raise `EngineStopped`."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        _end_submitted(self.records)
        for server in list(self._servers):
            server.close()
        if engine is not None:
            engine.close()
            atexit.unregister(engine.close)

    def __enter__(self) -> Runtime:
        self.engine()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Runtime {self._state_in_words()} num_workers={self.settings.num_workers}>"

    def _state_in_words(self) -> str:
        return "closed" if self._closed else "running" if self.running_engine() else "not started"

    def _repr_html_(self) -> str:
        from dask_mars import units
        from dask_mars.client.showing import runtime_as_html

        try:
            memory = self.memory()
        except EngineStopped:
            memory = None
        facts = [units.plural(self.settings.num_workers, "worker")]
        if memory is None or not memory.in_use_bytes:
            facts.append(f"memory limit {units.size(self.settings.memory_limit)}")
        else:
            used = f"{units.size(memory.in_use_bytes)} of {units.size(memory.limit_bytes)} of memory in use"
            stored = f"{units.size(memory.store_bytes)}, {units.size(memory.on_disk_bytes)} on disk"
            facts.append(f"{used}; the store has {stored}")
        return runtime_as_html(f"dask_mars.Runtime, {self._state_in_words()}", facts, self.records)


def _new_engine(settings: config.Settings) -> Engine:
    # Not every program that imports dask_mars computes.
    from dask_mars.engine.loop import Engine
    from dask_mars.observe.event_log import open_configured

    if settings.event_log is not None:
        open_configured(settings.event_log)
    return Engine(settings)


#: Longest wait for a new thread to begin, in seconds.
_BEGIN_S = 1.0
_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _with_callbacks(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with the callbacks that are active now.

    Others may be active when the computation begins, and Dask's handling of them is not thread-safe.
    """
    if options.get("callbacks") is None:
        options["callbacks"] = list(Callback.active)
    return options


def _end_submitted(records: Records) -> None:
    """Cancel submitted computations that no engine has yet; engines end their own."""
    for record in records.live():
        if record.is_submitted and record.graph is None:
            record.cancel(EngineStopped())


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Return our options; ignore those of other schedulers, as Dask's own schedulers do."""
    return {name: value for name, value in options.items() if name in Options._fields}


class _Default:
    """The runtimes behind `dask_mars.get`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records = Records()
        self._runtime: Runtime | None = None
        #: A second runtime, for calls that request more workers than the default has.
        self._larger: Runtime | None = None
        #: Former larger runtimes that still have persisted data.
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
            for replaced in [other for other in self._replaced if not other.has_persisted]:
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
    """Forget the parent's engines in a forked process, and locks that threads of the parent may have held."""
    global _default
    _default = _Default()
    for runtime in list(_runtimes):
        runtime._engine = None
        runtime._servers = set()
        runtime._lock = threading.Lock()
        # The parent's threads do not continue here.
        runtime.records = Records()


os.register_at_fork(after_in_child=_after_fork)


def _local_backend(
    engine_for: Callable[[int | None], Engine], store_limit: Callable[[], int], records: Records
) -> Backend:
    """Return the backend of this process, or the inline one within a task."""
    if process_role.computes_inline():
        return InlineBackend()
    from dask_mars.client.backend import EngineBackend

    backend = EngineBackend(engine_for, store_limit)
    backend.records = records
    backend.checkpoint = _checkpoint()
    return backend


def _checkpoint() -> CheckpointSettings | None:
    """Return the checkpoint settings for a new computation."""
    directory = config.get("checkpoint.directory")
    if directory is None:
        return None
    # Most programs save nothing.
    from dask_mars.checkpointing.settings import configured

    return configured(directory)


def _default_backend(client: Any) -> Backend:
    """Return the backend for calls without a runtime: inline, a cluster, or the default engine."""
    if process_role.computes_inline():
        return InlineBackend()
    cluster = _cluster_for(client)
    if cluster is None:
        return _local_backend(_default.engine, _default.store_limit, _default.records)
    cluster.records = _default.records
    cluster.checkpoint = _checkpoint()
    return cluster


def _cluster_for(client: Any) -> ClusterBackend | None:
    """Return the cluster for a computation; None for this process's own engine."""
    address = config.scheduler_address() if client is None else None
    if client is None and address is None and not _has_client():
        return None
    from dask_mars.cluster import backend as clusters

    if address is not None:
        client = clusters.connect(address)
    return clusters.current_cluster() if client is None else clusters.cluster_of(client)


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


def get(
    dsk: Any,
    keys: Any,
    *,
    num_workers: int | None = None,
    retries: int | None = None,
    **options: Any,
) -> Any:
    """Compute keys of a Dask graph on dask_mars: pass it as ``scheduler=`` wherever Dask takes one.

    The first call starts worker processes; later calls share them, and they end with the interpreter.

    Parameters
    ----------
    dsk : mapping or Dask expression
        The graph.
    keys : key or nested list of keys
        What to compute.
    num_workers : int, optional
        Most workers for this computation; more are started if necessary. Default: ``num_workers`` in Dask's
        configuration, else all.
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
    return backend.compute(dsk, keys, chosen)


def persist(collections: Iterable[Any], optimize_graph: bool = True, **options: Any) -> tuple[Any, ...]:
    """Compute collections and keep their chunks in the default runtime's store, as `Runtime.persist` does.

    On a cluster they stay there, and this does not wait for them.
    """
    backend = _default_backend(options.pop("client", None))
    if options.get("num_workers") is None:
        options["num_workers"] = dask.config.get("num_workers", None)
    return persist_with(backend, collections, optimize_graph, _known(options))


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
        `id` is no UUID, or another computation has it; or another argument is invalid.

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
    chosen = _with_callbacks(options)
    return handles.submit(backend, collections, name, id, chosen, optimize_graph, traverse)


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
    cluster = None if process_role.computes_inline() else _cluster_for(None)
    return _default.runtime() if cluster is None else cluster.runtime(_default.records)


def close() -> None:
    """End the default runtime's workers; the next computation starts new ones."""
    _default.close()
    clusters = sys.modules.get("dask_mars.cluster.backend")
    if clusters is not None:
        clusters.close()
