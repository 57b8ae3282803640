"""The calls that other threads may make to an engine: commands in, futures and messages out."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import os
import pickle
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from dask_mars import greenlets
from dask_mars.config import Settings
from dask_mars.engine import graph_run as client_messages
from dask_mars.engine.commands import Commands
from dask_mars.engine.graph_run import GraphRun, Saver
from dask_mars.engine.loop import EngineLoop
from dask_mars.engine.registry import ReservationRecord
from dask_mars.engine.spare_threads import SpareThreads
from dask_mars.engine.templates import templates
from dask_mars.errors import Cancelled, EngineStartFailed
from dask_mars.extensions import warn_of_missing_extensions
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.graph.ids import GRAPH_LIMIT
from dask_mars.limits import estimate_memory
from dask_mars.locking import Lock
from dask_mars.protocol.context import Context
from dask_mars.protocol.object_ref import ObjectRef, is_map_output, is_stored, needed_bytes, size_of
from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksFinished,
    ChunksReturned,
    GraphCancelled,
    GraphPlan,
    GraphSubmitted,
    ObjectsPut,
    ReservationReleased,
    ReservationRequested,
    ResultsTaken,
)
from dask_mars.scheduler.policies.plugins import load_policy
from dask_mars.store.persisted import PersistedChunk, PersistedWeakRef, weak_reference_to
from dask_mars.store.store import bytes_to_store


class Engine:
    """Runs chunk graphs on its own worker processes."""

    # Client threads send commands through a queue, and the engine answers through each graph's inbox. It keeps
    # every arena open, so that chunks outlive the worker that sealed them.

    def __init__(self, settings: Settings, is_agent: bool = False) -> None:
        if greenlets.has_eventlet():
            raise EngineStartFailed(
                "eventlet has replaced threads by greenlets, in which dask_mars would wait for ever. Compute with "
                'scheduler="threads", or start the program without eventlet.monkey_patch().'
            )
        warn_of_missing_extensions()
        load_policy(settings.policy)
        self.pid = os.getpid()
        self._ids = itertools.count(1)
        self._context: tuple[int, Context] | None = None
        self._lock = Lock()
        #: For chunks in the user's process.
        self.spare_threads = SpareThreads()
        self._commands = Commands()
        try:
            self._loop = loop = EngineLoop(settings, self._commands, is_agent)
        except BaseException:
            self._commands.close()
            raise
        #: The settings, with the store's limit as the arenas allow it.
        self.settings, self.store = loop.settings, loop.registry.store
        self.view, self.inspection = loop.view, loop.inspection
        self._registry, self._runs = loop.registry, loop.registry.runs
        self._objects, self._blocks = loop.registry.objects, loop.registry.blocks
        self._thread = threading.Thread(target=loop.run, name="dask-mars-engine", daemon=True)
        self._thread.start()

    def prepare(self, graph: ChunkGraph, plan: GraphPlan, observed: bool, values_wanted: bool) -> GraphRun:
        """Give a graph an id."""
        # Separate from `submit`, so that the caller can cancel a graph whose submission was interrupted.
        graph_id, copied_bytes = self._next_id(), dict(plan.copied_bytes)
        return GraphRun(graph_id, graph, plan, 0, observed, values_wanted, copied_bytes=copied_bytes)

    def _next_id(self) -> int:
        # Subtask ids have four bytes for it. Objects with an old id are gone before it recurs.
        return 1 + next(self._ids) % (GRAPH_LIMIT - 1)

    def submit(self, run: GraphRun) -> None:
        """Start computing a graph. Its results and messages arrive in the run's inbox."""
        with self._lock:
            given = run.graph.surroundings
            if self._context is None or not self._context[1].is_current(given):
                previous = None if self._context is None else self._context[1]
                self._context = next(self._ids), Context(previous, given)
            context = self._context
        run.context, run.variables = context[0], contextvars.copy_context()

        def command() -> None:
            self._registry.sender.add_context(*context)
            self._runs[run.id] = run
            workforce = self._loop.workforce
            if run.copied_bytes and (workforce.pids() or not workforce.has_threads()):
                # Values in the user's process leave less room for copies of them, which threads do not make.
                self._loop.memory.measure()
            self._loop.post(GraphSubmitted(run.id, run.plan))

        self._commands.call_soon(command)

    def cancel(self, run: GraphRun, computed_in_client: Collection[int] = ()) -> None:
        """Stop a graph: queued chunks at once, running ones within the grace period."""
        # The user's process still reports the chunks in `computed_in_client`, and no others.

        def command() -> None:
            self._loop.post(GraphCancelled(run.id))
            dispatched = [chunk for id, chunk in self._loop.machine.dispatched_to(CLIENT) if id == run.id]
            if abandoned := [chunk for chunk in dispatched if chunk not in computed_in_client]:
                self._loop.post(ChunksReturned(CLIENT, run.id, abandoned, to_client=False))

        self._commands.call_soon(command)

    @property
    def wants_threads(self) -> bool:
        """Return whether threads of this process may compute a graph that is submitted now."""
        loop = self._loop
        return loop.startup.is_wanted and (not self._registry.workers or loop.workforce.has_threads())

    @property
    def lends(self) -> bool:
        """Return whether threads of this process may compute library code beside worker processes."""
        return self._loop.startup.is_wanted

    def start_processes(self) -> None:
        """Start the worker processes now instead of with the first computation."""
        self._commands.call_soon(self._loop.workforce.start_processes)

    def save_by(self, run: GraphRun, saver: Saver) -> None:
        """Have a saver save the chunks of a graph before its submission."""
        # The run owns the saver, which must not refer to it: only the garbage collector would free its values
        # then.
        inbox = run.inbox

        def warn(text: str) -> None:
            inbox.put(client_messages.Warned(pickle.dumps((text, RuntimeWarning, __file__, 0))))

        blocks, limit_bytes = self._blocks, self.settings.store_limit
        saver.begin(
            self.store, limit_bytes, blocks.incref_object, blocks.decref_object, self._commands.call_soon, warn
        )
        run.saver = saver

    def results_taken(self, run: GraphRun) -> None:
        """Release a finished graph's data."""
        self._commands.call_soon(lambda: self._loop.post(ResultsTaken(run.id)))

    def persist(self, run: GraphRun, chunks: list[int]) -> list[PersistedChunk]:
        """Release a finished graph's data except for some chunks, which stay while anything refers to them."""
        # The engine pins a finished graph's results until the client takes or persists them.
        refs = [ref for chunk in chunks if (ref := run.refs[chunk]) is not None]
        keys = [run.graph.keys[chunk] for chunk in chunks]
        persisted, weak_refs = self._make_persisted(run.id, chunks, keys, refs)

        def command() -> None:
            if run.id in self._runs:
                for chunk, key, reference in zip(chunks, keys, weak_refs, strict=True):
                    ref = run.refs[chunk]
                    assert ref is not None
                    self._objects.persist((run.id, chunk), key, ref, reference)
                self._loop.post(ResultsTaken(run.id, chunks))

        self._commands.call_soon(command)
        return persisted

    def _make_persisted(
        self, graph: int, chunks: Iterable[int], keys: Sequence[Hashable], refs: Sequence[ObjectRef]
    ) -> tuple[list[PersistedChunk], list[PersistedWeakRef]]:
        """Return the user's handles of objects, and weak references that report when a handle is gone."""
        persisted = [
            PersistedChunk(self, graph, chunk, key, size_of(ref))
            for chunk, key, ref in zip(chunks, keys, refs, strict=True)
        ]
        return persisted, [weak_reference_to(chunk, self._loop.gone.append) for chunk in persisted]

    def put(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Put values into the shared store, where they stay as long as anything refers to them."""
        graph_id = self._next_id()

        def command() -> list[Any] | Exception:
            try:
                refs = self._objects.put(values)
            except Exception as error:
                return error
            stored = [position for position, ref in enumerate(refs) if is_stored(ref)]
            keys = [(name, position) for position in stored]
            persisted, weak_refs = self._make_persisted(
                graph_id, stored, keys, [refs[position] for position in stored]
            )
            for position, key, reference in zip(stored, keys, weak_refs, strict=True):
                self._objects.persist((graph_id, position), key, refs[position], reference)
            for ref in refs:
                self._blocks.decref_object(ref)
            if stored:
                sizes = {(graph_id, position): needed_bytes(refs[position]) for position in stored}
                self._loop.post(ObjectsPut(sizes, [id for id in sizes if is_map_output(refs[id[1]])]))
            found = dict(zip(stored, persisted, strict=True))
            return [found.get(position, value) for position, value in enumerate(values)]

        answer = self._commands.call(command)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def has_persisted(self) -> bool:
        """Return whether the engine has persisted objects."""
        return bool(self._objects.persisted)

    def ref_of(self, graph: int, chunk: int) -> ObjectRef | None:
        """Return an object's current location; None before the engine has run `persist`, and after its end."""
        return self._objects.ref_of((graph, chunk))

    def acquire(self, graph: int, chunk: int) -> ObjectRef:
        """Return the location of an object, persisted or of a running graph, and pin it until `release`."""

        def acquired() -> ObjectRef | None:
            ref = self._objects.ref_of((graph, chunk))
            if ref is not None:
                self._blocks.incref_object(ref)
            return ref

        ref = self._commands.call(acquired)
        if ref is None:
            raise self.why_stopped()
        return ref

    def release(self, ref: ObjectRef) -> None:
        """Unpin a location that `acquire` returned."""
        self._commands.call_soon(lambda: self._blocks.decref_object(ref))

    def reserve(self, key: Hashable, size_bytes: int, answer: Callable[[Exception | None], None]) -> int:
        """Request bytes of the store for data on their way; return the number of the reservation."""
        # The engine's thread calls `answer` once: with None when the bytes are reserved, else with the reason.
        reservation_id = self._next_id()

        def command() -> None:
            self._registry.reservations[reservation_id] = ReservationRecord(key, size_bytes, answer)
            self._loop.post(ReservationRequested(reservation_id, size_bytes))

        self._commands.call_soon(command)
        return reservation_id

    def release_reservation(self, reservation_id: int) -> None:
        """Release a reservation, granted or not: the data are in the store, or will not come."""

        def command() -> None:
            if self._registry.reservations.pop(reservation_id, None) is not None:
                self._loop.post(ReservationReleased(reservation_id))

        with contextlib.suppress(Exception):
            # An engine that has ended holds no memory.
            self._commands.call_soon(command)

    def client_finished(self, run: GraphRun, chunk: int, value: Any, steps_s: tuple[float, float, float]) -> None:
        """Receive the value of a chunk that the user's process computed."""
        duration_s = steps_s[-1] - steps_s[0]
        copied_bytes = bytes_to_store(value)
        # The command may outlive the computation by a moment, and must not keep the value.
        values = [value]

        def command() -> None:
            if run.id in self._runs:
                run.values[chunk] = values.pop()
                run.measurements.durations_s[chunk] = duration_s
                sizes = {chunk: copied_bytes} if copied_bytes > self.settings.inline_bytes else {}
                run.copied_bytes.update(sizes)
                if run.saver is not None:
                    run.saver.computed_in_client(chunk)
                self._loop.post(ChunksFinished(CLIENT, run.id, [chunk], [duration_s], sizes, steps_s=[steps_s]))

        self._commands.call_soon(command)

    def client_failed(self, run: GraphRun, chunk: int, error: BaseException) -> None:
        """Record that a chunk's computation raised in the user's process."""

        def command() -> None:
            run.errors[chunk] = error
            final = not isinstance(error, Exception)
            self._loop.post(ChunkFailed(CLIENT, run.id, chunk, final))

        self._commands.call_soon(command)

    @property
    def is_up(self) -> bool:
        """Return whether a worker has started; raise `EngineStartFailed` if none will."""
        is_up = self._loop.workforce.is_up
        if not is_up and not self.alive:
            raise self.why_stopped()
        return is_up

    @property
    def alive(self) -> bool:
        """Return whether the engine accepts work."""
        return self._commands.alive

    def why_stopped(self) -> BaseException:
        """Return the reason why the engine accepts no work."""
        return self._commands.why_stopped()

    def memory_bytes(self) -> int:
        """Return the memory that this process and the workers use, the store included."""
        own_bytes = estimate_memory([self.pid, *self.worker_pids()], self._registry.resources.arena_files)
        return own_bytes + templates.memory_bytes()

    @property
    def spilled_bytes(self) -> int:
        """Return the bytes written to disk since the start."""
        return self._registry.spill_writer.spilled_bytes

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return self._loop.workforce.pids()

    def cancel_graph(self, graph_id: int, patience_s: float | None = None) -> bool:
        """Cancel a graph by its id; return False if it is done or unknown."""

        def cancel() -> bool:
            run = self._runs.get(graph_id)
            # The client may be reading the results of a graph that is done.
            if run is None or self._loop.machine.is_done(graph_id):
                return False
            run.inbox.put(client_messages.Stopped(Cancelled(graph_id)))
            self._loop.post(GraphCancelled(graph_id))
            return True

        return self._commands.result(self._commands.ask(cancel), patience_s)

    def close(self) -> None:
        """End the workers and release everything. Running computations raise `EngineStopped`."""
        if self.pid != os.getpid():
            return
        self._commands.is_closing = True
        self.spare_threads.close()
        if not self._commands.ended.is_set():
            with contextlib.suppress(Exception):
                # The engine may be ending by itself.
                self._commands.call_soon(lambda: None)
            self._commands.ended.wait()
            self._thread.join()
