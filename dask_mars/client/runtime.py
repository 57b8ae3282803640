"""`Runtime`: the user's handle of an engine, its settings and its computations."""

from __future__ import annotations

import atexit
import contextlib
import os
import pkgutil
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from dask_mars import config, process_role
from dask_mars.client.observed import Observed
from dask_mars.client.records import Records
from dask_mars.client.request import Backend, InlineBackend, Options, Request, checkpoint_settings, persist_with
from dask_mars.engine import early
from dask_mars.errors import EngineStopped
from dask_mars.graph.chunks import refuse_unhashable
from dask_mars.locking import Lock

if TYPE_CHECKING:
    from dask_mars.client.handles import Computation
    from dask_mars.engine.engine import Engine
    from dask_mars.engine.memory_account import MemoryAccount
    from dask_mars.observe.profile import Profile
    from dask_mars.runtime_state import RuntimeState
    from dask_mars.web.server import Server

#: Longest wait for a new thread to begin, in seconds.
_BEGIN_S = 1.0
runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()


class Runtime(Observed):
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
        Order and placement of chunks: ``"mars"``, ``"memory"``, ``"mars-strict"``, or a policy of another package.
        Default: ``dask-mars.policy``.
    resources : mapping, optional
        Amounts by name, as in ``{"GPU": 1}``: tasks annotated by ``dask.annotate(resources={"GPU": 1})`` run
        concurrently only within these amounts. Default: ``dask-mars.resources``.

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
        self._lock = Lock()
        #: Servers that show this runtime.
        self._servers: weakref.WeakSet[Server] = weakref.WeakSet()
        runtimes.add(self)

    def start(self) -> Runtime:
        """Start the workers now instead of at the first computation."""
        self.engine().start_processes()
        return self

    def engine(self, num_workers: int | None = None) -> Engine:
        """Return the engine, and start it if necessary; a computation may use fewer workers than it has."""
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

    def _start_engine(self) -> Engine:
        if self._engine is not None:
            atexit.unregister(self._engine.close)

        def start() -> Engine:
            engine = self._engine = _new_engine(self.settings)
            atexit.register(engine.close)
            return engine

        return _in_thread(start)

    @property
    def has_persisted(self) -> bool:
        """Return whether its store has persisted data."""
        engine = self._engine
        return engine is not None and engine.alive and engine.has_persisted

    def get(self, dsk: Any, keys: Any, **options: Any) -> Any:
        """Compute keys of a Dask graph, as in ``x.compute(scheduler=runtime.get)``; see `dask_mars.get`."""
        return self._backend().compute(
            Request(dsk, keys, Options.known(options), checkpoint=checkpoint_settings())
        )

    def _backend(self) -> Backend:
        return local_backend(self.engine, lambda: self.settings.store_limit, self.records)

    def submit(
        self,
        *collections: Any,
        name: str | None = None,
        id: str | None = None,
        optimize_graph: bool = True,
        traverse: bool = True,
        **options: Any,
    ) -> Computation:
        """Compute collections in the background, and return at once; see `dask_mars.submit`.

        Raises
        ------
        EngineStopped
            The runtime is closed.

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

        return handles.submit(self._backend(), collections, name, id, options, optimize_graph, traverse)

    def submit_graph(
        self, dsk: Any, keys: Any, *, name: str | None = None, id: str | None = None, **options: Any
    ) -> Computation:
        """Compute keys of a Dask graph in the background: `submit` for callers that have what `get` takes."""
        self._refuse_if_closed()
        from dask_mars.client import handles

        return handles.submit_graph(self._backend(), dsk, keys, name, id, options)

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
        return persist_with(self._backend(), collections, optimize_graph, options)

    def state(self) -> RuntimeState:
        """Return the current computations, workers and store.

        Returns
        -------
        RuntimeState
            A dict, whose entries are attributes as well; printed, and in notebooks, it is a table. ``graphs``: for
            each its id, and its chunks by state. ``persisted``: number of persisted chunks. ``reservations``:
            for each its purpose, its bytes, and whether it was granted. ``workers``: for each its id, its
            ``label`` (a thread of your process, or a worker with its process), its process id, the Dask key of the
            running chunk, its step (``"prepare"``, ``"load"``, ``"compute"`` or ``"seal"``), and the number of
            chunks ``dispatched`` to it. ``why_processes``: why workers are processes and not threads, in words;
            empty while threads compute. ``store``: bytes stored, limit, reserved for dispatched chunks,
            and written to disk since the start. ``missing_extensions``: the C extensions that are not installed.
            ``object_quotas``: whether Python objects, and not only arrays, ask before they take memory in worker
            processes. Empty if the runtime is not running.
        """
        # Most programs never call this.
        from dask_mars.runtime_state import RuntimeState

        engine = self.running_engine()
        return RuntimeState() if engine is None else RuntimeState(engine.inspection.state())

    def memory(self) -> MemoryAccount:
        """Return the use of memory, from any thread; ``print`` and notebooks show it as a table.

        Without workers only its limit is set, and all else is 0.

        Raises
        ------
        EngineStopped
            The runtime is closed during this call.
        """
        # Not every program that imports dask_mars computes.
        from dask_mars.engine.memory_account import MemoryAccount

        engine = self.running_engine()
        return MemoryAccount(self.settings.memory_limit) if engine is None else engine.inspection.memory()

    def profile(self) -> Profile:
        """Return the cost of layers in running computations, and in the last one that has ended.

        Returns
        -------
        Profile
            A dict of dicts that shows itself as tables, and has `to_dict` and `to_pandas`. It maps the graph id of
            the computation and the name of the layer to ``count``, the number of computed chunks, ``total_s`` and
            ``mean_s``, their time with sealing, and ``stored_bytes``, the size of their values in the store,
            without small ones, which are not stored. A chain of layers that runs as one counts for the last layer.
            Empty if the runtime is not running.
        """
        # Most programs never call this.
        from dask_mars.observe.profile import Profile, by_layer

        engine = self.running_engine()
        measured = [] if engine is None else engine.inspection.measurements()
        # Graphs of persisted data computed nothing.
        return Profile({one.graph: layers for one in measured if (layers := by_layer(one))})

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

        return Explanation("no workers are running" if engine is None else engine.inspection.explain(key))

    def serve(self, port: int = 0, **options: Any) -> Server:
        """Show this runtime in browsers, and allow cancelling; there is no submission.

        It needs tornado, as the extra ``web`` installs it. ``docs/page.md`` describes the page.

        Parameters
        ----------
        port : int, optional
            Port of 127.0.0.1. Default: any free one.
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
            A token is too short.
        """
        # `web` imports runtimes, not the other way round, and most programs never need it.
        serve_runtime = pkgutil.resolve_name("dask_mars.web.server:serve_runtime")
        server: Server = serve_runtime(self, port=port, **options)
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Runtime {self._state_in_words()} num_workers={self.settings.num_workers}>"

    def _state_in_words(self) -> str:
        return "closed" if self._closed else "running" if self.running_engine() else "not started"

    def _cancel_graph(self, graph_id: int) -> bool:
        engine = self.running_engine()
        return engine is not None and engine.cancel_graph(graph_id)

    def _repr_html_(self) -> str:
        from dask_mars import units
        from dask_mars.client.showing import memory_in_words, runtime_as_html

        facts = [units.plural(self.settings.num_workers, "worker")]
        in_use = f"memory limit {units.size(self.settings.memory_limit)}"
        with contextlib.suppress(EngineStopped):
            if (memory := self.memory()).in_use_bytes:
                in_use = memory_in_words(memory, "the store has")
        facts.append(in_use)
        return runtime_as_html(f"dask_mars.Runtime, {self._state_in_words()}", facts, self.records)


def _new_engine(settings: config.Settings) -> Engine:
    # Not every program that imports dask_mars computes.
    from dask_mars.engine.engine import Engine

    if settings.event_log is not None:
        from dask_mars.observe.event_log import open_configured

        open_configured(settings.event_log)
    return Engine(settings)


def _in_thread(start: Callable[[], Engine]) -> Engine:
    """Call a function in a thread, where Ctrl-C does not reach it: here it could lose a started engine."""
    begun = threading.Event()
    started: Future[Engine] = Future()

    def run() -> None:
        begun.set()
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)

    starter = threading.Thread(target=run, name="dask-mars-start")
    try:
        starter.start()
        return started.result()
    except BaseException:
        # The interrupt may come before the thread has begun.
        if begun.wait(_BEGIN_S):
            starter.join()
        raise


def _end_submitted(records: Records) -> None:
    """Cancel submitted computations that no engine has yet; engines end their own."""
    for record in records.live():
        if record.is_submitted and record.graph is None:
            record.cancel(EngineStopped())


def local_backend(
    engine_for: Callable[[int | None], Engine], store_limit: Callable[[], int], records: Records
) -> Backend:
    """Return the backend of this process, or the inline one within a task."""
    if process_role.computes_inline():
        return InlineBackend()
    early.end_watch()
    from dask_mars.client.backend import EngineBackend

    return EngineBackend(engine_for, store_limit, records)


def _after_fork() -> None:
    """Forget the parent's engines in a forked process, and locks that its threads may have held."""
    for runtime in list(runtimes):
        runtime._engine = None
        runtime._servers = weakref.WeakSet()
        runtime._lock = Lock()
        # The parent's threads do not continue here.
        runtime.records = Records()


os.register_at_fork(after_in_child=_after_fork)
