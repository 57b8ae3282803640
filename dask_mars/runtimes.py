"""`Runtime`: an engine that users can hold in their hands, and the one that is there when they do not."""

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
    from dask_mars.engine.profile import Profile
    from dask_mars.runtime_state import RuntimeState
    from dask_mars.web.server import Server


class Runtime:
    """Worker processes around a shared store on this machine.

    It starts at the first call and ends when it is closed, at the latest with the interpreter. Threads may share
    it. Without work the processes end after ``dask-mars.idle-timeout`` and start again at the next computation;
    persisted data stay.

    Parameters
    ----------
    num_workers : int, optional
        Worker processes. Default: the processors that this process may use.
    memory_limit : int, float or str, optional
        Bytes, a share of the memory there is, or text such as ``"4 GiB"`` or ``"60%"``. Default: 80 %.
    policy : str, optional
        In which order chunks run, and where: ``"memory"``, ``"mars"``, or one that another package brings.
        Default: what ``dask-mars.policy`` says.
    resources : mapping, optional
        Amounts by name, as in ``{"GPU": 1}``: tasks annotated by ``dask.annotate(resources={"GPU": 1})`` run side
        by side only as far as these go. Default: what ``dask-mars.resources`` says.

    Attributes
    ----------
    records : Records
        What is known of its computations.

    Raises
    ------
    ValueError
        An argument makes no sense.

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
        # Whoever imports dask_mars need not be about to compute.
        from dask_mars.scheduler.policies.plugins import load_policy

        load_policy(self.settings.policy)
        self.records = Records()
        self._engine: Engine | None = None
        self._closed = False
        self._lock = threading.Lock()
        #: Those that show what it does.
        self._servers: set[Server] = set()
        _runtimes.add(self)

    def start(self) -> Runtime:
        """Start the workers now rather than at the first computation."""
        self.engine().start_processes()
        return self

    def engine(self, num_workers: int | None = None) -> Engine:
        """Return the running engine, starting it if need be.

        A process forked from the one that started it gets an engine of its own.

        Parameters
        ----------
        num_workers : int, optional
            Ignored: a computation may ask for fewer workers, and gets no more than there are.

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
        """Return the engine if it is running, and else nothing."""
        # Without the lock: engines' threads ask too, for whose end somebody may be waiting who holds it.
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

        # Ctrl-C does not reach other threads: here it could lose an engine that has been started.
        starter = threading.Thread(target=start, name="dask-mars-start")
        try:
            starter.start()
            return started.result()
        except BaseException:
            # It may come before the thread, too.
            if begun.wait(_BEGIN_S):
                starter.join()
            raise

    @property
    def has_persisted(self) -> bool:
        """Whether there are persisted data in its store."""
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
            ``num_workers``, ``retries``, ``callbacks``, ``cache`` and ``rerun_exceptions_locally``, as
            `dask_mars.get` takes them.
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
            What `dask.compute` takes.
        name : str, optional
            What people are to call the computation.
        id : str, optional
            The text of a UUID, where it is to have this one. Default: a new one.
        optimize_graph, traverse : bool, optional
            As for `dask.compute`.
        **options
            As for `get`. Dask's callbacks that are active now are called, in another thread.

        Returns
        -------
        Computation
            To follow, cancel and fetch it.

        Raises
        ------
        EngineStopped
            The runtime is closed.
        TypeError, ValueError
            `id` is no UUID, or there is a computation that has it; or another argument makes no sense.

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
        # Most programs wait for what they compute.
        from dask_mars.client import handles

        chosen = _with_callbacks(options)
        return handles.submit(self._backend(), collections, name, id, chosen, optimize_graph, traverse)

    def submit_graph(
        self, dsk: Any, keys: Any, *, name: str | None = None, id: str | None = None, **options: Any
    ) -> Computation:
        """Compute keys of a Dask graph in the background: `submit` for those whom Dask calls as a scheduler.

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
            Its result is what `get` returns.

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
        """Compute collections and keep their chunks in the store: what `dask.persist` calls.

        Later computations by this runtime read the chunks in place. They are freed when nothing refers to them any
        more, and at the latest when the runtime is closed; then `PersistedLost` is raised where they are needed.

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
        """Return what is being computed, who computes it and how much memory that takes.

        Returns
        -------
        RuntimeState
            A dict, whose entries are attributes as well; printed, and in notebooks, it is a table. ``graphs``: of
            each its number, and how many of its chunks are in which state. ``persisted``: how many chunks are.
            ``reservations``: of each what it is for, its bytes, and whether it was granted. ``workers``: of each
            its number, its ``label`` (a thread of your process, or a worker with its process), its process id,
            the Dask key of what it is running, the step of that (``"prepare"``, ``"load"``, ``"compute"`` or
            ``"seal"``), and how many chunks it has in hand. ``store``: bytes that it holds, may hold, has reserved
            for what is in hand, and has written to disk since the start. ``missing_extensions``: the C extensions
            that it was installed without. ``object_quotas``: whether Python objects, and not arrays alone, ask
            before they take memory in worker processes. Empty if the runtime is not running.
        """
        # Most programs never ask.
        from dask_mars.runtime_state import RuntimeState

        engine = self.running_engine()
        return RuntimeState() if engine is None else RuntimeState(engine.state())

    def memory(self) -> MemoryAccount:
        """Return what memory is used for, from any thread; ``print`` and notebooks show it as a table.

        Returns
        -------
        MemoryAccount
            In bytes. Of all processes together ``limit_bytes``, ``in_use_bytes``, and ``peak_bytes``, the most
            that was measured at once since the start. What is in use: ``shared_bytes``, of which results take
            ``store_bytes``; ``private``, of each process; ``library_bytes``. Besides ``promised_bytes``, what is
            reserved for tasks in hand, used or not; ``on_disk_bytes``; and ``spilled_bytes``, what has been
            written to disk since the start. If no workers are running, the limit, and 0 for all else.

        Raises
        ------
        EngineStopped
            The runtime is closed while this asks.
        """
        # Whoever imports dask_mars need not be about to compute.
        from dask_mars.engine.memory_account import MemoryAccount

        engine = self.running_engine()
        return MemoryAccount(self.settings.memory_limit) if engine is None else engine.memory()

    def profile(self) -> Profile:
        """Return what the operands of running computations took, and those of the last that has ended.

        Returns
        -------
        Profile
            A dict of dicts that shows itself as tables, and has `to_dict` and `to_pandas`. By the number of the
            computation and the name of the layer: ``count``, how many chunks were computed,
            ``total_s`` and ``mean_s``, how long that took, sealing included, and ``stored_bytes``, what their
            values took in the store, without small ones, which are not there. Chunks of a chain that runs as one
            belong to the layer of the last. Empty if the runtime is not running.
        """
        # Who wants to see it has the time to import it.
        from dask_mars.engine.profile import Profile

        engine = self.running_engine()
        return Profile() if engine is None else engine.profile()

    def computations(self) -> list[dict[str, Any]]:
        """Return what is known of the computations that go on, and of the last that are over, the newest first.

        Returns
        -------
        list of dict
            Of each its ``id``, ``name``, ``state``, the engine's number of it as ``graph``; when it was
            ``created``, ``started`` and ``ended``, in seconds since 1970; its ``chunks`` by state, as
            `Computation.progress` has them; and its ``error`` as ``type`` and ``message``. Those that `get`
            computes are among them.
        """
        from dask_mars.client.summaries import summary

        return [summary(record) for record in self.records]

    def cancel(self, computation: int | str | Computation) -> bool:
        """Cancel a computation, from any thread. The call that has started it raises `errors.Cancelled`.

        What is queued is dropped at once. In a running task `errors.ExecutionInterrupted` is raised, which is a
        KeyboardInterrupt, and one that runs on past ``dask-mars.cancel-grace`` all the same is ended with its
        worker, which is replaced. A task that runs in the user's process runs to its end first. Other
        computations are not disturbed.

        A computation that is still being prepared has no number, and can be cancelled by its id; it ends at the
        next step of that.

        Parameters
        ----------
        computation : int, str or Computation
            Its number, as `state` gives it, its id, as `computations` and `Computation` do, or its handle.

        Returns
        -------
        bool
            Whether there was such a computation, and it was not done.

        Raises
        ------
        TypeError
            It is none of these.
        """
        # A handle knows its id.
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
        """Say in words what is being computed and what waits for what, from any thread.

        Parameters
        ----------
        key : key, optional
            A Dask key: why this one is not being computed. By default all graphs, workers and the store.

        Raises
        ------
        KeyError
            No graph that is being computed has the key; chunks of a chain that runs as one have the key of the
            last.
        TypeError
            It cannot be a key: a list of keys, say.
        """
        if key is not None:
            refuse_unhashable(key)
        engine = self.running_engine()
        # Most programs never ask.
        from dask_mars.client.showing import Explanation

        return Explanation("no workers are running" if engine is None else engine.explain(key))

    def serve(self, port: int = 0, address: str = "127.0.0.1", **options: Any) -> Server:
        """Show in browsers what this runtime does, and let them cancel; nothing can be submitted there.

        It needs tornado, as the extra ``web`` installs it. ``docs/page.md`` shows it.

        Parameters
        ----------
        port : int, optional
            Default: any that is free.
        address : str, optional
            Of the interface. Others than this machine's own need ``certfile`` or ``behind_proxy``.
        **options
            ``socket_path``, ``token``, ``view_token``, ``hosts``, ``certfile``, ``keyfile``, ``behind_proxy`` and
            ``connection_file``, as `dask_mars.web.server.serve` takes them.

        Returns
        -------
        Server
            With ``url``, ``link`` and ``close()``. It ends with the runtime.

        Raises
        ------
        EngineStopped
            The runtime is closed.
        ValueError
            The address is not this machine's own and nothing encrypts, or a token is too short.
        """
        # What looks at runtimes is none of their business, and most programs never need it.
        serve_runtime = pkgutil.resolve_name("dask_mars.web.server:serve_runtime")
        server: Server = serve_runtime(self, port=port, address=address, on_close=self._servers.discard, **options)
        with self._lock:
            if not self._closed:
                self._servers.add(server)
                return server
        server.close()
        raise EngineStopped

    def close(self) -> None:
        """End the workers and free all memory. Computations that are running raise `EngineStopped`."""
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
    # Whoever imports dask_mars need not be about to compute.
    from dask_mars.diagnostics.event_log import open_configured
    from dask_mars.engine.loop import Engine

    if settings.event_log is not None:
        open_configured(settings.event_log)
    return Engine(settings)


#: In which time a thread begins that begins at all.
_BEGIN_S = 1.0
_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _with_callbacks(options: dict[str, Any]) -> dict[str, Any]:
    """Have those callbacks called that are active now.

    Others may be when the computation begins, and what Dask's schedulers do about them is not for several threads.
    """
    if options.get("callbacks") is None:
        options["callbacks"] = list(Callback.active)
    return options


def _end_submitted(records: Records) -> None:
    """End what has been submitted and has not come to an engine, which ends the rest."""
    for record in records.live():
        if record.is_submitted and record.graph is None:
            record.cancel(EngineStopped())


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Keep the options that are ours; as Dask's own schedulers do, pass over those of others."""
    return {name: value for name, value in options.items() if name in Options._fields}


class _Default:
    """The runtimes behind `dask_mars.get`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records = Records()
        self._runtime: Runtime | None = None
        #: One more, for calls that want more workers than the default has.
        self._larger: Runtime | None = None
        #: Those that a larger one has replaced, and that persisted data are in.
        self._replaced: list[Runtime] = []

    @property
    def records(self) -> Records:
        """Of its computations, also of those on clusters."""
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
    """In a forked process: forget the parent's engines, and locks that threads of the parent may have held."""
    global _default
    _default = _Default()
    for runtime in list(_runtimes):
        runtime._engine = None
        runtime._servers = set()
        runtime._lock = threading.Lock()
        # Nobody goes on with what the parent's threads were computing.
        runtime.records = Records()


os.register_at_fork(after_in_child=_after_fork)


def _local_backend(
    engine_for: Callable[[int | None], Engine], store_limit: Callable[[], int], records: Records
) -> Backend:
    """Return what computes in this process, or in the task that this is a part of."""
    if process_role.computes_inline():
        return InlineBackend()
    from dask_mars.client.backend import EngineBackend

    backend = EngineBackend(engine_for, store_limit)
    backend.records = records
    backend.checkpoint = _checkpoint()
    return backend


def _checkpoint() -> CheckpointSettings | None:
    """Return where what is computed now is to be saved."""
    directory = config.get("checkpoint.directory")
    if directory is None:
        return None
    # Most programs save nothing.
    from dask_mars.checkpointing.settings import configured

    return configured(directory)


def _default_backend(client: Any) -> Backend:
    """Return what computes for whoever has named no runtime: inline, on a cluster, or the default engine."""
    if process_role.computes_inline():
        return InlineBackend()
    cluster = _cluster_for(client)
    if cluster is None:
        return _local_backend(_default.engine, _default.store_limit, _default.records)
    cluster.records = _default.records
    cluster.checkpoint = _checkpoint()
    return cluster


def _cluster_for(client: Any) -> ClusterBackend | None:
    """Return the cluster that a computation is for; None if it is for this process's own engine."""
    address = config.scheduler_address() if client is None else None
    if client is None and address is None and not _has_client():
        return None
    from dask_mars.cluster import backend as clusters

    if address is not None:
        client = clusters.connect(address)
    return clusters.current_cluster() if client is None else clusters.cluster_of(client)


def _has_client() -> bool:
    """Say whether there is a current `distributed.Client`, without what only they need who have one.

    Dask itself imports distributed, where it is installed, as it looks for a client.
    """
    module = sys.modules.get("distributed.client")
    try:
        # In another thread it may just be being imported.
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

    The first call starts worker processes, which later calls share and which end with the interpreter.

    Parameters
    ----------
    dsk : mapping or Dask expression
        The graph.
    keys : key or nested list of keys
        What to compute.
    num_workers : int, optional
        Most worker processes to use for this computation; more are started if there are not so many. Default: what
        Dask's configuration says under ``num_workers``, else all.
    retries : int, optional
        How often a task that raises is tried again. Default: ``dask-mars.retries``, which is 0.
    **options
        ``callbacks``, ``cache`` and ``rerun_exceptions_locally``, with the meaning that Dask's own schedulers
        give them. ``client``: a `distributed.Client`, to compute on its cluster instead. Others are ignored, as
        they are there.

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
        Whatever a task raises, with the task's own traceback.

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

    On a cluster they stay there, and this does not wait until they are computed.
    """
    backend = _default_backend(options.pop("client", None))
    if options.get("num_workers") is None:
        options["num_workers"] = dask.config.get("num_workers", None)
    return persist_with(backend, collections, optimize_graph, _known(options))


# Where `dask.persist` looks for it.
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
        What `dask.compute` takes.
    name : str, optional
        What people are to call the computation.
    id : str, optional
        The text of a UUID, where it is to have this one. Default: a new one.
    optimize_graph, traverse : bool, optional
        As for `dask.compute`.
    num_workers : int, optional
        As for `get`.
    **options
        As for `get`. Dask's callbacks that are active now are called, in another thread.

    Returns
    -------
    Computation
        To follow, cancel and fetch it.

    Raises
    ------
    TypeError, ValueError
        `id` is no UUID, or there is a computation that has it; or another argument makes no sense.

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
    """Return the runtime behind `dask_mars.get`, to look at what it does.

    Returns
    -------
    Runtime or ClusterRuntime
        Where `dask_mars.get` computes on a cluster, what answers the same questions of that, as far as they can be
        answered: `state`, `memory`, `explain`, `profile`, `computations`, `cancel`.

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
