"""The engine's thread: waits, runs commands, feeds events to the state machine and executes its instructions."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import selectors
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from dask_mars import greenlets, process_role
from dask_mars.config import Settings
from dask_mars.engine.cancellation import Cancellation
from dask_mars.engine.commands import Commands
from dask_mars.engine.executor import Executor
from dask_mars.engine.graph_run import Stopped
from dask_mars.engine.idle import IdleClock
from dask_mars.engine.inspection import Inspection
from dask_mars.engine.launching import is_launching
from dask_mars.engine.listeners import EngineView
from dask_mars.engine.memory import MemoryWatch, slack_bytes
from dask_mars.engine.memory_control import MemoryControl
from dask_mars.engine.registry import Registry
from dask_mars.engine.resources import Resources
from dask_mars.engine.startup import Startup
from dask_mars.engine.switch_interval import SwitchInterval
from dask_mars.engine.templates import templates
from dask_mars.engine.workforce import Workforce
from dask_mars.errors import EngineStartFailed, EngineStopped, Stalled
from dask_mars.limits import address_space
from dask_mars.scheduler.events import (
    ChunksFinished,
    Event,
    GraphCancelled,
    Instruction,
    MemoryMeasured,
    ObjectsReleased,
    TimePassed,
)
from dask_mars.scheduler.machine import Machine, Parameters
from dask_mars.store.arena_capacity import arena_capacity
from dask_mars.store.in_place_sealing import has_quotas
from dask_mars.store.persisted import PersistedWeakRef

if TYPE_CHECKING:
    from dask_mars.engine.recorder import Recorder

logger = logging.getLogger(__name__)

#: Poll interval for released persisted objects, in seconds: normally, and after a long time without work.
_PERSISTED_S, _PERSISTED_IDLE_S = 0.05, 1.0
#: Poll interval for computations that can make no progress, in seconds.
_LIVENESS_S = 2.0


class EngineLoop:
    """The parts of an engine, which only its thread runs."""

    def __init__(self, settings: Settings, commands: Commands, is_agent: bool) -> None:
        count, limit_bytes = settings.num_workers, settings.memory_limit
        capacity_bytes = arena_capacity(limit_bytes, count, address_space())
        # All arenas together hold no more than this.
        most_bytes = min(capacity_bytes * count, limit_bytes)
        settings = dataclasses.replace(settings, store_limit=min(settings.store_limit, most_bytes))
        self.settings = settings
        self.machine = machine = Machine(_parameters(settings, capacity_bytes, most_bytes))
        #: References to persisted objects that the user has dropped.
        self.gone: deque[PersistedWeakRef] = deque()
        self._commands = commands
        self._events: deque[Event] = deque()
        self._is_pumping = False
        resources = Resources(settings, capacity_bytes)
        self.registry = registry = Registry(settings, resources)
        self.view = EngineView(registry, machine.memory, is_agent)
        unwanted = _why_no_threads(settings, is_agent, resources.allows_threads)
        self.startup = Startup(unwanted, limit_bytes, count, templates.is_ready)
        self.inspection = Inspection(machine, registry, commands, self.view, self.startup)
        self._recorder = _recorder(settings.scheduler_log, self.view.id, machine)
        self._selector = selectors.DefaultSelector()
        self._selector.register(commands.reader, selectors.EVENT_READ, None)
        watch = MemoryWatch(limit_bytes, count, commands.pid, resources.arena_files, templates.memory_bytes)
        self.workforce = Workforce(
            machine,
            registry,
            watch,
            self.startup,
            self.inspection,
            self.view,
            self._selector,
            commands.writer,
            self.post,
        )
        self.memory = MemoryControl(
            machine, registry, watch, self.workforce, self.inspection, self.view, self.post
        )
        self._cancellation = Cancellation(
            registry.workers, registry.control, machine.dispatched_to, settings.cancel_grace_s
        )
        self._executor = Executor(
            registry, self.workforce, self.memory, self._cancellation, self.view, commands, self.post
        )
        self._idle = IdleClock(settings.idle_trim_s, settings.idle_timeout_s)
        self._switch_interval = SwitchInterval()
        _loops.add(self)

    def run(self) -> None:
        """Serve until the engine is closed or has failed, and release everything."""
        reason: BaseException = EngineStopped()
        process_role.enter_engine()
        self._commands.serve()
        registry = self.registry
        try:
            if registry.resources.capacity_bytes < self.settings.memory_limit:
                self.memory.offer_disk()
            if not self.startup.is_wanted:
                self.workforce.start_processes()
            registry.spill_writer.clear_abandoned()
            while not self._commands.is_closing:
                self.run_once()
        except BaseException as error:
            if not isinstance(error, EngineStartFailed):
                logger.exception("the scheduler of dask_mars has failed")
            reason = error
        finally:
            self._commands.reason = reason
            self._commands.is_closing = True
            self.workforce.shut_down()
            registry.spill_writer.close()
            self.close()
            self._switch_interval.shorten(False)
            registry.note_gone()
            for run in list(registry.runs.values()):
                run.inbox.put(Stopped(reason))
            registry.runs.clear()
            for reservation in list(registry.reservations.values()):
                if reservation.answer is not None:
                    reservation.answer(reason if isinstance(reason, Exception) else EngineStopped())
            self._commands.ended.set()

    def run_once(self) -> None:
        """Wait for the next event and handle it."""
        ready = self._selector.select(self.timeout_s())
        is_woken = False
        for key, mask in ready:
            if key.data is None:
                is_woken = True
                self._commands.empty_pipe()
            elif (is_exit := key.fileobj is key.data.exit_descriptor) or mask & selectors.EVENT_READ:
                self.workforce.read(key.data, is_exit)
        # References that are unknown after the commands queued before them were never persisted.
        gone = len(self.gone)
        self._commands.run()
        if gone:
            self._release_persisted([self.gone.popleft() for _ in range(gone)])
        now_s = time.monotonic()
        self.workforce.staff(now_s)
        # Threads that compute would only interrupt each other more often.
        self._switch_interval.shorten(bool(self.registry.runs) and not self.workforce.has_threads())
        if is_woken:
            self.memory.answer_requests()
        self.memory.finish_renewal(now_s)
        due_s = self.machine.next_due_s()
        if due_s is not None and due_s <= now_s:
            self.post(TimePassed())
        if self.registry.runs:
            if not ready:
                self._end_stalled()
            self.memory.watch_processes(now_s)
        self.workforce.write_all()
        # After the messages: an interrupted worker reads its recalls before it continues.
        self._cancellation.enforce(now_s)
        self.workforce.end_stuck(now_s)
        self._give_back(now_s)

    def timeout_s(self) -> float | None:
        """Return the seconds until something is due, None if nothing is."""
        now_s = time.monotonic()
        registry = self.registry
        idle_s = self._idle.next_s(registry.store.is_trimmed, bool(registry.workers))
        times = [self._cancellation.next_s(), idle_s, self.memory.next_s(now_s), *self.workforce.next_s(now_s)]
        if registry.runs:
            times += [self.machine.next_due_s(), self.memory.watch.next_s, now_s + _LIVENESS_S]
        if registry.objects.persisted:
            times.append(now_s + (_PERSISTED_IDLE_S if self._idle.is_trim_due(now_s) else _PERSISTED_S))
        next_s = min([due_s for due_s in times if due_s is not None], default=None)
        return None if next_s is None else max(next_s - now_s, 0.0)

    def post(self, event: Event) -> None:
        """Feed an event to the machine and execute its instructions, and those of the events that they cause."""
        self._events.append(event)
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._events:
                self._pump(self._events[0])
        finally:
            self._is_pumping = False

    def _pump(self, event: Event) -> None:
        now_s = time.monotonic()
        if type(event) is ChunksFinished:
            self.startup.note_finished(self.registry.runs.get(event.graph), len(event.chunks))
            if event.on_disk:
                # The worker has freed the private memory that other work needed.
                self.memory.measure()
        machine, blocks = self.machine, self.registry.blocks
        stored_bytes, limits, known = blocks.stored_bytes, self.memory.limits, machine.memory
        if (stored_bytes, *limits) != (known.stored_bytes, known.limit_bytes, known.hard_limit_bytes):
            self._decide(MemoryMeasured(stored_bytes, *limits), now_s)
        self._events.popleft()
        self.view.notify(event)
        for instruction in self._decide(event, now_s):
            self._executor.carry_out(instruction)
        if machine.blocked and not self._events and blocks.stored_bytes < stored_bytes:
            # The bytes just freed may admit a waiting chunk.
            self._events.append(TimePassed())

    def _decide(self, event: Event, now_s: float) -> list[Instruction]:
        instructions = self.machine.handle(event, now_s)
        if self._recorder is not None:
            self._recorder.note(now_s, event, instructions)
        return instructions

    def _release_persisted(self, gone: list[PersistedWeakRef]) -> None:
        known = self.registry.objects.persisted
        if released := [id for reference in gone if (id := (reference.graph, reference.chunk)) in known]:
            self.post(ObjectsReleased(released))

    def _end_stalled(self) -> None:
        """Fail computations that would wait forever."""
        workforce = self.workforce
        if self.startup.loading or workforce.template.is_awaiting or workforce.ending or self.memory.is_renewing:
            # New workers or free memory will come.
            return
        for graph_id in self.machine.stalled():
            self.registry.runs[graph_id].inbox.put(Stopped(Stalled(self.inspection.explain())))
            self.post(GraphCancelled(graph_id))

    def _give_back(self, now_s: float) -> None:
        """Return unused resources: free memory after some time without work, the workers after more."""
        registry, idle = self.registry, self._idle
        has_work = bool(registry.runs or registry.reservations)
        # A worker that is starting may never be ready, and the engine must report that to the client.
        idle.note(has_work or not all(handle.ready for handle in registry.workers.values()), now_s)
        if idle.is_trim_due(now_s) and not registry.store.is_trimmed:
            registry.store.trim()
        if idle.is_end_due(now_s):
            self.workforce.retire()

    def close(self) -> None:
        """Close all descriptors but those of the workers, once."""
        if self._commands.close():
            self._selector.close()
            if self._recorder is not None:
                self._recorder.close()
            self.registry.resources.close()

    def forget_after_fork(self) -> None:
        """In a process forked from the user's, release what belongs to the parent."""
        self._commands.forget_after_fork()
        self.workforce.forget_after_fork()
        with contextlib.suppress(OSError):
            self.close()


def _why_no_threads(settings: Settings, is_agent: bool, are_descriptors_enough: bool) -> str:
    """Return the reason why threads of this process may not compute; empty if they may."""
    if not settings.starts_in_threads:
        return "dask-mars.start-in-threads is off"
    if is_agent:
        return "this is an agent of a cluster"
    if not are_descriptors_enough:
        return "threads and processes together would take too many file descriptors"
    # Greenlets would compute one after the other, and none could wait for its socket alone.
    return "gevent has replaced threads" if greenlets.has_gevent() else ""


def _recorder(path: str | None, engine: int, machine: Machine) -> Recorder | None:
    """Return the writer of the configured log, if any."""
    if path is None:
        return None
    # Few engines need these modules.
    from dask_mars.engine.recorder import Recorder

    return Recorder(path, engine, machine.parameters)


def _parameters(settings: Settings, capacity_bytes: int, most_bytes: int) -> Parameters:
    """Return the parameters of the state machine."""
    slack = slack_bytes(settings.memory_limit, settings.num_workers)
    return Parameters(
        policy=settings.policy,
        assignment=settings.assignment,
        num_workers=settings.num_workers,
        resources=settings.resources,
        store_limit=settings.store_limit,
        memory_limit=most_bytes,
        result_limit=capacity_bytes if capacity_bytes < settings.memory_limit else None,
        quota_slack_bytes=slack if has_quotas(settings.arena_threshold_bytes) else None,
    )


_loops: weakref.WeakSet[EngineLoop] = weakref.WeakSet()


def _forget_loops() -> None:
    # Python forks gevent's processes and runs its hooks.
    if is_launching():
        return
    for loop in list(_loops):
        loop.forget_after_fork()
    templates.forget_after_fork()


os.register_at_fork(after_in_child=_forget_loops)
