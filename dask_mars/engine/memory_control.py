"""Keeps an engine within its memory limit: answers workers' requests, frees memory, pauses and ends workers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from dask_mars.engine.deaths import OverLimit
from dask_mars.engine.inspection import Inspection
from dask_mars.engine.listeners import EngineView, ProcessesMeasured
from dask_mars.engine.memory import LEAST_SHARE_BYTES, Limits, MemoryWatch, Running
from dask_mars.engine.registry import Registry
from dask_mars.engine.workforce import Workforce
from dask_mars.errors import SpillError
from dask_mars.limits import PROC, arena_bytes
from dask_mars.protocol.control import POSTPONED, REFUSED, QuotaFigures
from dask_mars.protocol.messages import Trim
from dask_mars.scheduler.events import Event, PrivateMeasured, QuotaRequested, TimePassed, WorkersRenewed
from dask_mars.scheduler.machine import Machine

logger = logging.getLogger(__name__)

#: Interval between memory measurements, in seconds; and fraction of the limit from which free memory returns to
#: the system.
_WATCH_S = 0.1 if PROC.exists() else 1.0
_PRESSURE = 0.875
#: Refusals of one chunk after which its worker ends: code that goes on after an error, such as Python's import of
#: bytecode, may ask without end while all others wait.
_MOST_REFUSALS = 4
#: Time that workers have to give memory back before idle ones are replaced, and poll interval, in seconds.
_RENEWAL_S, _RENEWAL_LOOK_S = 0.05, 0.005


class MemoryControl:
    """Carries out what measurements and requests call for."""

    def __init__(
        self,
        machine: Machine,
        registry: Registry,
        watch: MemoryWatch,
        workforce: Workforce,
        inspection: Inspection,
        view: EngineView,
        post: Callable[[Event], None],
    ) -> None:
        self._machine, self._registry, self._workers = machine, registry, registry.workers
        self._settings, self._control = registry.settings, registry.control
        self._workforce = workforce
        self._inspection = inspection
        self._view = view
        self._post = post
        self.watch = watch
        self.limits = Limits(self._settings.store_limit, self._settings.memory_limit)
        self._slack_bytes = (machine.parameters.quota_slack_bytes or 0) * self._settings.num_workers
        self._watched_s = self._trimmed_s = 0.0
        #: By worker, its process and the chunk whose requests were refused last, and how often.
        self._refused: dict[int, tuple[tuple[int, Running], int]] = {}
        #: While workers give memory back: the deadline, and whether they give back all or only what exceeds their
        #: share.
        self._renewal: tuple[float, bool] | None = None

    # -- measuring --------------------------------------------------------------------------------------------

    def measure(self, asked_bytes: int = 0) -> None:
        """Update the limits to the processes' present memory, before a decision that takes much."""
        self.watch.look(self._workforce.pids(), self._inspection.current, self._asked_bytes)
        self._adjust_limits(asked_bytes)

    def watch_processes(self, now_s: float) -> None:
        """Measure the processes' memory if that is due, and keep it within the limit."""
        watch = self.watch
        if now_s < watch.next_s:
            return
        is_due = now_s - self._watched_s >= _WATCH_S
        if is_due and not watch.is_short:
            watch.measure_copies()
        watch.look(self._workforce.pids(), self._inspection.current, self._asked_bytes, with_libraries=is_due)
        self._registry.note_in_use(watch.used_bytes)
        if is_due:
            self._view.notify(ProcessesMeasured(watch.used_bytes))
        if is_due or watch.is_short:
            self._watched_s = now_s
            self._adjust_limits()
        growths, over_share = watch.growths(), watch.over_share() if watch.is_short else []
        if growths or over_share != self._machine.over_share:
            self._post(PrivateMeasured(growths, over_share))
        elif watch.is_short and self._machine.memory.missing_bytes(0):
            # Stored objects have to go to disk.
            self._post(TimePassed())
        self._order(now_s)

    def _order(self, now_s: float) -> None:
        """Pause, resume and end workers."""
        watch, workforce = self.watch, self._workforce
        may_shrink = bool(self._machine.memory.spilling_bytes) or any(
            worker.running is not None and worker.paused_s is None and not self._machine.is_growing(worker_id)
            for worker_id, worker in watch.workers.items()
        )
        orders = watch.decide(may_shrink, now_s)
        for worker_id in orders.pause:
            watch.workers[worker_id].paused_s = now_s
            workforce.process(worker_id).pause()
        for worker_id in orders.resume:
            watch.workers[worker_id].paused_s = None
            workforce.process(worker_id).resume()
        for worker_id in orders.end:
            # An idle worker may have received a chunk since the measurement, which does not count that chunk.
            if watch.workers[worker_id].running is not None or not self._machine.dispatched_to(worker_id):
                self._end_over_limit(worker_id)

    def _asked_bytes(self, worker_id: int) -> int:
        """Return the bytes of private memory that a worker was granted for its present chunk."""
        # Requests between operands are not counted.
        return 0 if self._inspection.running(worker_id) is None else self._control.private_growth_bytes(worker_id)

    def _end_over_limit(self, worker_id: int) -> None:
        """End a worker that has exceeded its memory."""
        watch, limit_bytes = self.watch, self._settings.memory_limit
        worker_bytes = watch.workers[worker_id].private_bytes
        logger.log(
            logging.INFO if self._inspection.current(worker_id) is None else logging.WARNING,
            "worker %d is ended: it has taken %d bytes for itself, and all processes %d of %d",
            worker_id,
            worker_bytes,
            watch.used_bytes,
            limit_bytes,
        )
        others_bytes = watch.private_bytes - worker_bytes
        store_bytes = arena_bytes(self._registry.resources.arena_files)
        self._workforce.end(worker_id, OverLimit(worker_bytes, limit_bytes, others_bytes, store_bytes))

    def _adjust_limits(self, asked_bytes: int = 0) -> None:
        """Adjust the store's limits to the processes' private memory; when memory is short, free unused pages."""
        machine, workers = self._machine, self._workers
        held = sum([self._control.held_bytes(worker_id) for worker_id in workers])
        self.limits = self.watch.limits(
            self._settings.store_limit, held + self._slack_bytes, machine.expected_private_bytes
        )
        wanted = machine.memory.awaited_bytes + asked_bytes
        is_eager = self.watch.used_bytes + wanted > _PRESSURE * self._settings.memory_limit
        self._registry.objects.is_short = is_eager
        for worker_id in workers:
            self._control.set_eager(worker_id, is_eager)
        now_s = time.monotonic()
        if is_eager and (asked_bytes or now_s - self._trimmed_s >= _WATCH_S):
            self._trimmed_s = now_s
            self._registry.store.trim()
            for handle in workers.values():
                handle.send(Trim())

    # -- renewal ----------------------------------------------------------------------------------------------

    @property
    def is_renewing(self) -> bool:
        """Return whether workers are about to give memory back."""
        return self._renewal is not None

    def next_s(self, now_s: float) -> float | None:
        """Return when to check what workers have given back, None if nothing is awaited."""
        return now_s + _RENEWAL_LOOK_S if self.is_renewing else None

    def renew_workers(self, is_strict: bool) -> None:
        """Have workers give leftover memory back, and later replace idle ones that do not."""
        # If `is_strict` this concerns every worker, else those above their share.
        self.measure()
        # Memory that workers keep is warm for the next chunk, so they return it only when other work needs it.
        if (is_strict or self.watch.grown(is_strict)) and self.watch.may_shrink(self._machine.growing()):
            self._renewal = (time.monotonic() + _RENEWAL_S, is_strict)
            for handle in self._workers.values():
                handle.send(Trim())
        else:
            self._post(WorkersRenewed())

    def finish_renewal(self, now_s: float) -> None:
        """Replace idle workers that have not given their memory back in time."""
        if self._renewal is None:
            return
        due_s, is_strict = self._renewal
        self.measure()
        if now_s < due_s and self.watch.may_shrink(self._machine.growing()):
            return
        self._renewal = None
        if grown := self.watch.grown(is_strict):
            for worker_id in grown:
                self._end_over_limit(worker_id)
            self.measure()
        self._post(WorkersRenewed())

    # -- quotas -----------------------------------------------------------------------------------------------

    def answer_requests(self) -> None:
        """Answer workers that ask for more memory."""
        for worker_id, asked_bytes in self._control.asking():
            handle = self._workers.get(worker_id)
            if handle is None or (asked_bytes == handle.asked_bytes and self._machine.is_growing(worker_id)):
                continue
            running = self._inspection.running(worker_id)
            if running is None:
                # The worker runs no chunk, so nothing counts this memory.
                self._control.grant(worker_id, asked_bytes)
                continue
            handle.asked_bytes = asked_bytes
            self.measure(asked_bytes)
            self._post(QuotaRequested(worker_id, *running, asked_bytes))
            if handle.asked_bytes and not self._machine.is_growing(worker_id):
                # No later event will answer this request.
                self.grant(worker_id, asked_bytes)

    def grant(self, worker: int, growth_bytes: int) -> None:
        """Allow a worker to grow."""
        self._control.grant(worker, growth_bytes)
        handle = self._workers.get(worker)
        if handle is not None and growth_bytes >= handle.asked_bytes:
            handle.asked_bytes = 0

    def refuse(self, worker: int, is_postponed: bool) -> None:
        """Refuse a worker growth; with `is_postponed` the chunk is tried again."""
        asked_bytes = self._workers[worker].asked_bytes
        if self.watch.is_hopeless and asked_bytes <= LEAST_SHARE_BYTES:
            self.grant(worker, asked_bytes)
            return
        handle = self._workers[worker]
        refused = handle.pid, self._inspection.running(worker)
        before, refusals = self._refused.get(worker, (refused, 0))
        refusals = refusals + 1 if before == refused else 1
        self._refused[worker] = refused, refusals
        if refusals > _MOST_REFUSALS and handle.is_process:
            self._end_over_limit(worker)
            return
        memory = self._machine.memory
        others_bytes = memory.reserved_bytes - memory.reserved_by_worker.get(worker, 0)
        if self._control.step(worker) == "seal":
            # The result exists, and can go to disk as it is.
            self.offer_disk()
        private_bytes = self.watch.private_bytes
        figures = QuotaFigures(self._settings.memory_limit, memory.stored_bytes, others_bytes, private_bytes)
        self._workers[worker].asked_bytes = 0
        self._control.refuse(worker, POSTPONED if is_postponed else REFUSED, figures)

    def offer_disk(self) -> None:
        """Let workers write results to disk if memory has no room; without a disk these fail."""
        with contextlib.suppress(SpillError):
            self._control.spill_directory = self._registry.spill_writer.make_directory()
