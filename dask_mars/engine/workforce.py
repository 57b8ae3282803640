"""Starts the workers of an engine, registers their reports, and replaces workers that end."""

from __future__ import annotations

import contextlib
import logging
import selectors
import sys
import time
from collections.abc import Callable
from functools import partial

from dask_mars.engine.deaths import OverLimit, check_memory_limit, record_death
from dask_mars.engine.idle import EndingWorkers
from dask_mars.engine.inspection import Inspection
from dask_mars.engine.listeners import EngineView
from dask_mars.engine.memory import MemoryWatch
from dask_mars.engine.processes import ProcessHandle
from dask_mars.engine.receiver import ProtocolError, Receiver
from dask_mars.engine.registry import Registry
from dask_mars.engine.resources import not_started
from dask_mars.engine.start_watch import StartWatch
from dask_mars.engine.startup import Startup
from dask_mars.engine.templates import TemplateUser
from dask_mars.engine.threads import ThreadHandle
from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.errors import WorkerStartFailed, WorkerStartTimeout
from dask_mars.exit_codes import describe_exit, has_crashed
from dask_mars.protocol.channel import UnreadableStream
from dask_mars.protocol.main_module import main_origin
from dask_mars.protocol.messages import Exit, Start, joined
from dask_mars.scheduler.events import Event, WorkerLost, WorkerRetired, WorkerStarted
from dask_mars.scheduler.machine import Machine

logger = logging.getLogger(__name__)

#: Time that worker processes have for their exit handlers, in seconds.
_EXIT_S = 5.0


class Workforce:
    """Starts, reads, replaces and ends workers."""

    def __init__(
        self,
        machine: Machine,
        registry: Registry,
        watch: MemoryWatch,
        startup: Startup,
        inspection: Inspection,
        view: EngineView,
        selector: selectors.BaseSelector,
        wake_writer: int,
        post: Callable[[Event], None],
    ) -> None:
        self._machine, self._registry = machine, registry
        self._runs, self._workers, self._blocks = registry.runs, registry.workers, registry.blocks
        self._settings, self._resources, self._control = registry.settings, registry.resources, registry.control
        self._watch = watch
        self._startup, self._inspection = startup, inspection
        self._view = view
        self._selector = selector
        self._wake_writer, self._post = wake_writer, post
        self._receiver = Receiver(registry, machine.holds, post, view.is_agent)
        self._starts = StartWatch(self._settings.start_timeout_s)
        #: The template that processes are forked from, and those that wait for it.
        self.template = TemplateUser(
            self._settings.start_timeout_s,
            self._settings.num_workers,
            partial(registry.sender.needed_libraries, self._runs.values()),
        )
        self.ending = EndingWorkers(_EXIT_S)
        #: Whether a worker has started and left some of the memory free.
        self.is_up = False

    # -- who is there -----------------------------------------------------------------------------------------

    def process(self, worker_id: int) -> ProcessHandle:
        """Return a worker that is a process."""
        handle = self._workers[worker_id]
        assert isinstance(handle, ProcessHandle)
        return handle

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [each.pid for each in (*self._workers.values(), *self._startup.loading.values()) if each.is_process]

    def has_threads(self) -> bool:
        """Return whether threads of this process compute."""
        return bool(self._registry.threads)

    def next_s(self, now_s: float) -> list[float | None]:
        """Return the times at which starting and ending workers need attention."""
        times = [self._starts.next_s(), self.ending.next_s(now_s), self.template.next_s(now_s)]
        if self._runs and self.has_threads() and not self._startup.loading:
            times.append(self._startup.due_s(self._runs.values(), now_s))
        return times

    def _is_loading(self, handle: WorkerHandle) -> bool:
        return self._startup.loading.get(handle.id) is handle

    # -- start ------------------------------------------------------------------------------------------------

    def start_processes(self) -> None:
        """Start a process for each vacant id, before there is work."""
        self._startup.why_processes = self._startup.why_processes or "they were asked to start before any work"
        for worker_id in range(self._settings.num_workers):
            if worker_id not in self._workers and worker_id not in self.ending:
                self._start_process(worker_id)

    def staff(self, now_s: float) -> None:
        """Release the blocks of ended workers; if there is work, start or replace workers."""
        for handle in self.ending.collect(now_s):
            self._release_ended(handle)
        for worker_id in self.template.take_due():
            self._put_to_work(self._launch(worker_id))
        if self.template.is_unused and not (self.ending or self._startup.loading):
            self.template.leave()
        startup, runs = self._startup, self._runs.values()
        startup.note(runs, now_s)
        self.template.give_way(bool(runs))
        if not (runs or startup.loading):
            return
        if len(self._workers) < self._settings.num_workers:
            self._start_missing()
        if self._registry.threads:
            startup.started = len(self._workers)
            startup.note_lost(startup.lost_time.look(self._registry.threads.values(), now_s))
            startup.note_borrowed(self._registry.sender.borrowed_bytes)
            is_short = self._registry.objects.is_short
            if (count := startup.wanted_processes(runs, is_short, now_s)) or startup.loading:
                self._replace_threads(count, joins=is_short or startup.is_worth_joining(runs, now_s))

    def _start_missing(self) -> None:
        """Start as many threads or forked processes as there is work for; new interpreters for all vacant ids."""
        uses_threads, awaited = self._startup.may_use_threads(self._runs.values()), self.template.awaited
        starts_soon = uses_threads or self.template.has_begun
        useful = max(self._machine.useful_workers(), 1) if starts_soon else self._settings.num_workers
        limit = self._machine.unserved_limit(awaited)
        if len(self._workers) + len(awaited) >= useful and not (self._startup.loading or limit):
            return
        for worker_id in range(self._settings.num_workers):
            if worker_id in self._workers or worker_id in self.ending or worker_id in awaited:
                continue
            if (loading := self._startup.loading.pop(worker_id, None)) is not None:
                self._put_to_work(loading)
            elif len(self._workers) + len(awaited) < useful or worker_id < limit:
                limit = 0
                (self._start_thread if uses_threads else self._start_process)(worker_id)

    def _start_process(self, worker_id: int) -> None:
        """Start a worker process and queue work for it: the socket buffers messages until it reads them."""
        if self.template.is_awaited():
            self.template.awaited.add(worker_id)
        else:
            self._put_to_work(self._launch(worker_id))

    def _launch(self, worker_id: int) -> ProcessHandle:
        """Launch a worker process, which imports modules and then waits for its start message."""
        resources = self._resources
        inherited = (resources.locks_file, self._wake_writer, *resources.arena_files)
        self._control.clear_progress(worker_id)
        try:
            modules = sorted({module for run in self._runs.values() for module in run.modules})
            handle = ProcessHandle(worker_id, resources.control_file, inherited, modules)
        except OSError as error:
            raise not_started(error, self._settings.num_workers) from error
        self._listen_to(handle)
        self._starts.begin(worker_id, 0, time.monotonic())
        return handle

    def _listen_to(self, handle: WorkerHandle) -> None:
        handle.pending = self._registry.pending
        self._selector.register(handle.socket, selectors.EVENT_READ, handle)
        if handle.exit_descriptor is not None:
            self._selector.register(handle.exit_descriptor, selectors.EVENT_READ, handle)

    def _put_to_work(self, handle: ProcessHandle) -> None:
        """Send a worker process its start message, and let the machine give it work."""
        worker_id = handle.id
        self._control.clear(worker_id)
        handle.start(self._start_message(worker_id))
        self._starts.begin(worker_id, self._control.progress(worker_id), time.monotonic())
        self._workers[worker_id] = handle
        self._view.labels[worker_id] = handle.label
        # The process waits for this message before it does anything else.
        self.write(handle)
        self._post(WorkerStarted(worker_id))

    def _start_thread(self, worker_id: int) -> None:
        """Let a thread of this process compute until a worker process replaces it."""
        self._control.clear(worker_id)
        handle = self._workers[worker_id] = self._registry.threads[worker_id] = ThreadHandle(
            worker_id,
            start=self._start_message(worker_id),
            arenas=self._registry.store.arenas,
            page=self._control,
            borrowed_value=lambda graph, chunk: self._runs[graph].values[chunk],
            operands_of=self._registry.operands_of,
            variables_of=lambda graph: self._runs[graph].variables,
        )
        self._view.labels[worker_id] = handle.label
        self._listen_to(handle)
        self.is_up = True
        self._post(WorkerStarted(worker_id, is_thread=True))

    def _start_message(self, worker_id: int) -> Start:
        settings, resources = self._settings, self._resources
        return Start(
            worker=worker_id,
            arguments=list(sys.argv),
            main=main_origin(),
            arenas=resources.arena_files,
            capacity_bytes=resources.capacity_bytes,
            memory_limit=settings.memory_limit,
            live=self._blocks.live(worker_id),
            control=resources.control_file,
            control_bytes=resources.control_bytes,
            locks=resources.locks_file,
            wake=self._wake_writer,
            inline_bytes=settings.inline_bytes,
            arena_threshold_bytes=settings.arena_threshold_bytes,
            idle_trim_s=settings.idle_trim_s,
        )

    def _replace_threads(self, count: int, joins: bool) -> None:
        """Replace threads by processes that have imported their modules, up to `count` processes in all."""
        # With `joins` processes that are ready take part in running computations.
        loading = self._startup.loading
        missing = count - sum([handle.is_process for handle in self._workers.values()]) - len(loading)
        threads_suffice = self._startup.may_use_threads(self._runs.values())
        for worker_id, handle in self._workers.items():
            if not isinstance(handle, ThreadHandle) or handle.is_leaving:
                continue
            successor = loading.get(worker_id)
            if successor is None:
                # Where threads suffice, nothing waits for processes that fail to start.
                if missing > 0 and not (threads_suffice and self._starts.is_hopeless(worker_id)):
                    missing -= 1
                    if not self.template.is_awaited():
                        loading[worker_id] = self._launch(worker_id)
            elif successor.is_loaded and joins:
                handle.is_leaving = True
                handle.send(Exit())

    # -- read and write ---------------------------------------------------------------------------------------

    def read(self, handle: WorkerHandle, has_ended: bool, over_limit: OverLimit | None = None) -> None:
        """Read what has arrived from a worker; replace it if it has ended, perhaps for its memory."""
        if self._workers.get(handle.id) is not handle and not self._is_loading(handle):
            return
        try:
            received, goes_on = handle.read()
            was_ready = handle.ready
            for message in joined(received):
                self._receiver.take(handle, message)
                if not was_ready and handle.ready and handle.is_process:
                    was_ready = True
                    self._starts.came_up()
                    self._watch.add(handle.id, handle.pid)
                    if not self.is_up:
                        check_memory_limit(self._settings, handle.pid)
                        self.is_up = True
        except (ProtocolError, UnreadableStream) as error:
            # As text: a stored log record with the exception's frames would keep the engine alive.
            logger.warning("worker %d is replaced for what it has reported: %s", handle.id, str(error))
            self._lose(handle)
            return
        if handle.is_process and (handle.ready or (handle.is_loaded and not handle.is_started)):
            # The process waits for the engine.
            self._starts.end(handle.id)
        if has_ended or not goes_on:
            self._lose(handle, over_limit)

    def write_all(self) -> None:
        """Write what is queued for the workers."""
        pending = self._registry.pending
        for handle in list(pending):
            # Workers that are about to end are written to by `EndingWorkers`.
            if self._workers.get(handle.id) is not handle or not self.write(handle):
                pending.pop(handle, None)

    def write(self, handle: WorkerHandle) -> bool:
        """Write what is queued for a worker, as far as its socket takes it; return whether something is left."""
        is_left = handle.write()
        if is_left != handle.is_full:
            handle.is_full = is_left
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_left else 0)
            self._selector.modify(handle.socket, events, handle)
        return is_left

    def request_recall(self, worker_id: int) -> None:
        """Recall a worker's queue."""
        handle = self._workers[worker_id]
        if handle.ready:
            self._control.request_recall(worker_id)
            handle.interrupt()

    # -- end --------------------------------------------------------------------------------------------------

    def end(self, worker_id: int, over_limit: OverLimit) -> None:
        """End a worker that has exceeded its memory, and replace it."""
        handle = self.process(worker_id)
        handle.kill()
        handle.process.wait()
        # The reports that it has sent still count.
        self.read(handle, True, over_limit)

    def end_stuck(self, now_s: float) -> None:
        """End processes that make no progress while they start."""
        for worker_id in self._starts.stuck(self._control.progress, now_s):
            handle = self._startup.loading.get(worker_id) or self.process(worker_id)
            module = self._control.importing(worker_id)
            handle.stuck_in = f"importing {module}" if module else "starting Python"
            timeout_s = self._settings.start_timeout_s
            text = "worker %d is replaced: it made no progress for %g s (dask-mars.start-timeout) while %s"
            logger.warning(text, worker_id, timeout_s, handle.stuck_in)
            handle.kill()

    def retire(self) -> None:
        """Ask all workers of an idle engine to exit."""
        for handle in list(self._workers.values()):
            self._leave(handle)
            self.ending.add(handle)
            self._registry.note_gone(handle)
            self._post(WorkerRetired(handle.id))
        self.template.is_unused = True
        self._startup.restart()

    def _lose(self, handle: WorkerHandle, over_limit: OverLimit | None = None) -> None:
        """Replace a worker that has ended, perhaps because it exceeded its memory."""
        worker_id = handle.id
        is_loading = self._is_loading(handle)
        if self._workers.get(worker_id) is not handle and not is_loading:
            return
        if isinstance(handle, ThreadHandle):
            # Its arena stays reserved until the thread has really ended.
            self._retire_thread(handle)
            return
        self._leave(handle)
        self._starts.end(worker_id)
        code = handle.close()
        self._registry.note_gone(handle)
        if not handle.ready:
            self._note_start_failure(handle, code)
        if is_loading:
            return
        find_running = self._inspection.running if over_limit is None else self._inspection.current
        running = find_running(worker_id)
        record_death(self._machine, self._runs, worker_id, code, running, over_limit)
        self._release_ended(handle)
        self._post(WorkerLost(worker_id, running, handle.ready, over_limit is not None, has_crashed(code)))
        self._start_process(worker_id)

    def _retire_thread(self, handle: ThreadHandle) -> None:
        """Unregister a thread that no longer computes."""
        if not handle.is_leaving:
            # The thread has failed, and so would the next one.
            self._startup.give_up_threads()
        self._leave(handle)
        handle.close_descriptors()
        self._registry.note_gone(handle)
        self.ending.await_end(handle)
        self._post(WorkerRetired(handle.id))

    def _leave(self, handle: WorkerHandle) -> None:
        """Unregister a worker."""
        if self._is_loading(handle):
            del self._startup.loading[handle.id]
        else:
            del self._workers[handle.id]
            self._registry.threads.pop(handle.id, None)
            self._watch.remove(handle.id)
        self._selector.unregister(handle.socket)
        if handle.exit_descriptor is not None:
            self._selector.unregister(handle.exit_descriptor)

    def _release_ended(self, handle: WorkerHandle) -> None:
        """Release the blocks that only an ended worker referred to."""
        if isinstance(handle, ThreadHandle):
            # Objects in this process may refer to these blocks, and to retained ones, for the rest of its life.
            for offset, size_bytes in handle.pinned:
                self._blocks.incref((handle.id, offset, size_bytes))
        else:
            for block in handle.retained:
                self._blocks.decref(block)
        self._registry.objects.trim_arena(handle.id)

    def _note_start_failure(self, handle: WorkerHandle, code: int) -> None:
        """Record that a process ended before it had started; raise if no worker computes and none will."""
        attempts = self._starts.failed(handle.id)
        stuck_in = handle.stuck_in if isinstance(handle, ProcessHandle) else None
        error = handle.start_error or (
            WorkerStartFailed(attempts, describe_exit(code))
            if stuck_in is None
            else WorkerStartTimeout(attempts, "made no progress", self._settings.start_timeout_s, stuck_in)
        )
        threads_suffice = self._startup.may_use_threads(self._runs.values())
        are_up = any(worker.ready and (worker.is_process or threads_suffice) for worker in self._workers.values())
        if self._starts.is_hopeless(handle.id):
            if not are_up:
                raise error
            logger.warning("worker %d: %s", handle.id, error)

    # -- shutdown ---------------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Ask the workers to exit, and end those that do not."""
        for loading in self._startup.loading.values():
            loading.close()
        handles = [*self._workers.values(), *self.ending]
        for handle in handles:
            handle.send(Exit())
            with contextlib.suppress(OSError):
                handle.socket.setblocking(True)
                handle.socket.settimeout(0.5)
                handle.write()
        # This thread is the workers' parent: if it ended first, the system would kill them.
        deadline_s = time.monotonic() + _EXIT_S
        for handle in handles:
            while not handle.has_ended() and time.monotonic() < deadline_s:
                # A worker in the middle of a task does not read EXIT; one that is not up has nothing to finish.
                if self._control.running(handle.id) is not None or not handle.ready:
                    break
                with contextlib.suppress(OSError, UnreadableStream):
                    handle.read()
                time.sleep(0.002)
            handle.close()
        self._registry.pending.clear()
        self.template.leave()

    def forget_after_fork(self) -> None:
        """In a process forked from the engine's, close the connections to its workers."""
        for handle in [*self._workers.values(), *self.ending, *self._startup.loading.values()]:
            with contextlib.suppress(OSError):
                handle.close_descriptors()
            if isinstance(handle, ProcessHandle):
                # The worker is not a child of this process.
                handle.process.returncode = 0
