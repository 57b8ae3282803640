"""The agent of a host: a Dask worker that computes on an engine.

Dask's scheduler treats it as any worker, and it computes foreign tasks as any worker does. Our subtasks go to its
engine, whose worker processes share one store. Their results stay there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import operator
import signal
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Reschedule, Status, Worker, WorkerPlugin
from tornado.ioloop import PeriodicCallback

from dask_mars import config
from dask_mars.client.computation import run_graph
from dask_mars.cluster.admission import NoLongerNeeded
from dask_mars.cluster.distributed_api import GatherDepSuccessEvent, thread_state
from dask_mars.cluster.foreign_tasks import ForeignTasks
from dask_mars.cluster.marks import IDENTITY, LEAVE_S, MARK, RECONNECTS
from dask_mars.cluster.metrics import measure
from dask_mars.cluster.progress import ProgressSender, SubtaskObserver
from dask_mars.cluster.stored_result import StoredResult, plain, release_unread
from dask_mars.cluster.subtask_spec import SubtaskGraph, SubtaskSpec, admitted
from dask_mars.cluster.transfers import BytesSemaphore, Results, Transfers
from dask_mars.cluster.versions import other_versions
from dask_mars.engine.engine import Engine
from dask_mars.errors import Cancelled
from dask_mars.locking import Lock
from dask_mars.protocol import tracebacks
from dask_mars.protocol.context import with_variables
from dask_mars.store.spill_files import free_bytes
from dask_mars.version import __version__

if TYPE_CHECKING:
    from dask_mars.checkpointing.saver import ChunkSaver
    from dask_mars.cluster.saving import SaveOrder

logger = logging.getLogger(__name__)

#: Poll interval for the engine's start, in seconds.
_START_LOOK_S = 0.01
#: Poll interval for chunks whose transfer is over, in milliseconds.
_RELEASE_MS = 100
#: Reasons for closing when Dask's scheduler wants new workers, as after `Client.restart`: its message, or a
#: heartbeat's answer that overtakes the message.
_REMOVED = frozenset({"scheduler-remove-worker", "worker-heartbeat-missing"})
#: Number of workers that a starting agent compares its version with.
_COMPARED = 20
#: Reason for closing of a retired worker, which needs no replacement.
_RETIRED = "worker-retired"
#: Share of the memory limit that may be read from disk at the same time for transfers.
_SENT_SHARE = 0.1
#: Share of the memory limit for results of foreign tasks beside the store; more go into it before the next task.
_FOREIGN_SHARE = 0.1


class MarsWorker(Worker):  # type: ignore[misc]
    """A worker of `dask.distributed` that computes dask_mars's subtasks on an engine of its own.

    Parameters
    ----------
    *args
        As for `distributed.Worker`.
    store_limit : int, float or str, optional
        Limit for results in memory, in bytes, as a share of the memory limit, or as text such as ``"4 GiB"``.
        Default: ``dask-mars.store-limit``.
    spill_directory : str, optional
        Directory for results beyond that. Default: ``dask-mars.spill-directory``, else the worker's local
        directory.
    reconnect_s : float, optional
        How long the command around it waits for a lost scheduler, in seconds; calls wait as long. Default: it does
        not.
    **kwargs
        As for `distributed.Worker`. ``nthreads`` is the number of worker processes, and of concurrent subtasks;
        ``memory_limit`` covers the agent and its worker processes together. Dask's scheduler sees the sum of that
        limit and of the free space on the disk for spilled results.
    """

    def __init__(
        self,
        *args: Any,
        store_limit: int | float | str | None = None,
        spill_directory: str | None = None,
        reconnect_s: float = 0.0,
        **kwargs: Any,
    ) -> None:
        told = dict(kwargs.pop("startup_information", None) or {})
        told[MARK] = lambda worker: __version__
        told[IDENTITY] = lambda worker: worker.id
        told[RECONNECTS] = lambda worker: reconnect_s
        # Results live in the engine's store, which has its own limit; Dask's spilling would write copies to disk.
        kwargs.setdefault("data", Results())
        plugins = (*(kwargs.pop("plugins", None) or ()), _AgentPlugin())
        super().__init__(*args, startup_information=told, plugins=plugins, **kwargs)
        self.memory_manager.memory_pause_fraction = False
        memory = self.memory_manager.memory_limit
        settings = config.settings(self.state.nthreads, memory)
        if store_limit is not None:
            limit = config.parse_memory(store_limit, settings.memory_limit, "store_limit")
            settings = dataclasses.replace(settings, store_limit=min(limit, settings.memory_limit))
        if spill_directory is not None or config.get("spill-directory") is None:
            settings = dataclasses.replace(settings, spill_directory=Path(spill_directory or self.local_directory))
        # Until it registers, so that its log says what it may take.
        self.memory_manager.memory_limit = settings.memory_limit
        self._settings = settings
        self._engine: Engine | None = None
        #: The running close of the engine.
        self._ending: asyncio.Future[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        #: Reason for closing.
        self.end_reason = ""
        #: Whether the scheduler has closed it, and expects a replacement.
        self.is_removed = False
        self._subtasks_lock = Lock()
        #: Engine's number of each subtask in progress, None before the engine has it.
        self._subtasks: dict[Any, int | None] = {}
        self._cancelled: set[Any] = set()
        #: Exceptions of subtasks that Dask has not seen yet.
        self._raised: dict[Any, BaseException] = {}
        self._transfers = Transfers(self.data)
        self._sent_from_disk = BytesSemaphore(int(settings.memory_limit * _SENT_SHARE))
        self._foreign_bytes = int(settings.memory_limit * _FOREIGN_SHARE)
        #: None without a nanny: nothing would start another agent, and the process may be the user's.
        self._foreign_tasks = ForeignTasks(settings.memory_limit) if self.nanny else None
        self._messenger = ProgressSender(self)
        self.periodic_callbacks["dask-mars-release"] = PeriodicCallback(release_unread, _RELEASE_MS)
        # Clients scatter data without a task.
        self.periodic_callbacks["dask-mars-room"] = PeriodicCallback(self._make_room, _RELEASE_MS)

    @property
    def spill_directory(self) -> Path:
        """The directory for results beyond the store."""
        return self._settings.spill_directory

    @property
    def engine(self) -> Engine:
        """The engine that computes subtasks."""
        assert self._engine is not None, "the agent has not started"
        return self._engine

    async def start_unsafe(self) -> MarsWorker:
        """Start the engine, register with the scheduler, and wait for the engine; subtasks wait for it, too."""
        self._engine = self._transfers.engine = Engine(self._settings, is_agent=True)
        # Managers of clusters give up a job that does not register within seconds.
        await super().start_unsafe()
        if self.nanny is not None:
            # Batch systems and terminals also signal this process, not only its nanny. Before this point a signal
            # just ends it.
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    asyncio.get_running_loop().add_signal_handler(number, self._begin_to_leave, number)
        # An engine that fails ends the agent here; a lifetime or a signal may have ended both.
        try:
            await self._wait_for_engine()
        except BaseException:
            # The nanny answers only when it has started, and that waits for this.
            await self.close(nanny=False, reason="engine-failed")
            raise
        if self._engine is None or self.status is not Status.running:
            return self
        known = await self.scheduler.identity(n_workers=_COMPARED)
        others = {
            other for told in known["workers"].values() if (other := told.get(MARK, __version__)) != __version__
        }
        if others:
            logger.warning(other_versions("this agent", others))
        return self

    async def _wait_for_engine(self) -> None:
        """Wait until the engine has started, or the agent closes; raise if it fails."""
        while (engine := self._engine) is not None and not engine.is_up:
            await asyncio.sleep(_START_LOOK_S)

    def _begin_to_leave(self, number: int) -> None:
        if self._leaving is None:
            self._leaving = asyncio.create_task(self.leave(f"signal-{number}"))

    async def leave(self, reason: str) -> None:
        """Let the scheduler move results that only this host has to others, then close."""
        if self.status is Status.running:
            moving = self.scheduler.retire_workers(workers=[self.address], close_workers=False, remove=False)
            # When the scheduler is gone the worker closes itself; the move might wait much longer.
            waits = [asyncio.ensure_future(waiting) for waiting in (moving, self.finished())]
            await asyncio.wait(waits, timeout=LEAVE_S, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        await self.close(reason=reason)

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        """Cancel running subtasks, leave the scheduler, and end the engine."""
        if kwargs.get("reason") in _REMOVED:
            # The scheduler sets a retiring worker's status to closing_gracefully first.
            if self.status is Status.running:
                self.is_removed = True
            elif self.status is Status.closing_gracefully:
                kwargs["reason"] = _RETIRED
        if self.status not in (Status.closing, Status.closed):
            self.end_reason = str(kwargs.get("reason", ""))
        for key in list(self._subtasks):
            self.cancel_subtask(key)
        try:
            return await super().close(*args, **kwargs)
        finally:
            engine, self._engine, self._transfers.engine = self._engine, None, None
            if engine is not None:
                self.data.clear()
                self._ending = asyncio.ensure_future(asyncio.to_thread(engine.close))
            if self._ending is not None:
                # Several callers may close it at a time, and its process may end when the first one returns.
                await asyncio.shield(self._ending)

    async def get_metrics(self) -> dict[str, Any]:
        """Return the metrics of a heartbeat for Dask's scheduler."""
        metrics: dict[str, Any] = await super().get_metrics()
        engine = self._engine
        if engine is not None and engine.alive:
            metrics.update(measure(engine, self._subtasks, metrics["managed_bytes"]))
        return metrics

    def handle_worker_status_change(self, status: str, stimulus_id: str) -> None:
        """Adopt a status from the scheduler, unless closing.

        It sends "running" if there was no host to move results to.
        """
        if self.status is not Status.closing:
            super().handle_worker_status_change(status, stimulus_id)

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Compute a task; ours read their inputs in the store, others as plain values."""
        task = self.state.tasks.get(key)
        foreign: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        if task is not None and task.run_spec is not None:
            if _is_for_engine(task):
                # Adaptive clusters count on how long tasks took. The agent ends if its engine fails.
                with contextlib.suppress(Exception):
                    await self._wait_for_engine()
                await asyncio.gather(*[self._transfers.move_to_store(source.key) for source in task.dependencies])
            elif not _takes_apart(task):
                await self._make_room()
                if self._foreign_tasks is not None:
                    foreign = self._foreign_tasks.admit()
                if self._reads_stored(task):
                    task.run_spec = _WithPlainValues(task.run_spec)
        try:
            async with foreign:
                return await super().execute(key, stimulus_id=stimulus_id)
        finally:
            _drop_tracebacks(self._raised.pop(key, None))

    async def _make_room(self) -> None:
        """Move results of foreign tasks into the store if they take too much beside it; end if they take all."""
        if self._foreign_tasks is not None:
            self._foreign_tasks.end_if_full()
        await self._transfers.make_room(self._foreign_bytes)

    def _reads_stored(self, task: Any) -> bool:
        return any(isinstance(self.data.get(source.key), StoredResult) for source in task.dependencies)

    async def gather_dep(
        self, worker: str, to_gather: Collection[Any], total_nbytes: int, *, stimulus_id: str
    ) -> Any:
        """Fetch results of another worker; inputs of subtasks wait for room, and go into the store."""
        tasks = [task for key in to_gather if (task := self.state.tasks.get(key)) is not None]
        read = [task for task in tasks if any(map(_is_for_engine, task.dependents))]
        async with self._transfers.reserve(f"what comes from {worker}", sum([task.get_nbytes() for task in read])):
            event = await super().gather_dep(worker, to_gather, total_nbytes, stimulus_id=stimulus_id)
            if isinstance(event, GatherDepSuccessEvent):
                await self._transfers.put(event.data, [task.key for task in read])
        return event

    async def get_data(
        self, comm: Any, keys: Collection[Any], who: str | None = None, serializers: Any = None
    ) -> Any:
        """Send results to another worker or a client; spilled ones a few at a time."""
        stored = [value for key in keys if isinstance(value := self.data.get(key), StoredResult)]
        async with self._sent_from_disk.acquire(sum([value.on_disk_bytes for value in stored])):
            return await super().get_data(comm, keys, who=who, serializers=serializers)

    def compute_subtask(self, spec: SubtaskSpec, arguments: Sequence[Any]) -> Any:
        """Compute a subtask in a Dask thread, and return its outputs or references to them."""
        try:
            return self._compute(thread_state.key, spec, arguments)
        except BaseException as error:
            tracebacks.carry(error)
            # Once the agent closes nothing reads the error, and its frames would keep the store alive.
            if self.status not in (Status.closing, Status.closed):
                self._raised[thread_state.key] = error
            raise

    def _compute(self, key: Any, spec: SubtaskSpec, arguments: Sequence[Any]) -> Any:
        def started(graph_id: int) -> None:
            with self._subtasks_lock:
                self._subtasks[key] = graph_id
                late = key in self._cancelled
            if late:
                self.engine.cancel_graph(graph_id)
            if observer is not None and observer.wants_seconds:
                observer.durations_s = lambda: _durations_of(self.engine, graph_id)

        observer: SubtaskObserver | None = None
        self._subtasks[key] = None
        try:
            task = self.state.tasks.get(key)
            if task is None or task.state == "cancelled":
                # From here on `cancel_subtask` finds it.
                raise Cancelled(0)
            with admitted(spec, self, lambda: key not in self._cancelled):
                graph = spec.graph(arguments)
                saver = None if spec.saving is None else self._saver_for(spec.saving, graph)
                if spec.constraints.in_thread:
                    if saver is not None:
                        saver.starting(range(len(graph)))
                        saver.stop()
                    return spec.compute_in_thread(arguments)
                mark = (task.annotations or {}).get(MARK)
                if isinstance(mark, dict) and "topic" in mark:
                    observer = SubtaskObserver(self._messenger, mark, known=len(graph.values))
                done = False
                try:
                    with _hints():
                        # Tasks that run in this process see these variables too.
                        found = with_variables(graph.surroundings or {}).run(
                            run_graph, self.engine, graph, spec.default_retries, started, observer, saver
                        )
                    done = True
                finally:
                    if saver is not None:
                        saver.stop(drain=done)
        except (Cancelled, NoLongerNeeded):
            # Reschedule: the task is no longer needed, or was requested again meanwhile.
            raise Reschedule from None
        finally:
            with self._subtasks_lock:
                del self._subtasks[key]
                self._cancelled.discard(key)
        output_groups = [StoredResult([found[chunk] for chunk in group]) for group in spec.output_groups]
        return output_groups[0] if len(output_groups) == 1 else StoredResult(output_groups)

    def _saver_for(self, order: SaveOrder, graph: SubtaskGraph) -> ChunkSaver | None:
        # Few computations are saved.
        from dask_mars.cluster.saving import saver_for

        return saver_for(order, graph)

    def cancel_subtask(self, key: Any) -> None:
        """Stop a subtask that is being computed."""
        with self._subtasks_lock:
            if key not in self._subtasks:
                return
            graph_id = self._subtasks[key]
            self._cancelled.add(key)
        engine = self._engine
        if graph_id is not None and engine is not None:
            # The engine may end at any moment, and its subtasks with it.
            with contextlib.suppress(Exception):
                engine.cancel_graph(graph_id)


def _durations_of(engine: Engine, graph_id: int) -> Sequence[float]:
    """Return how long each chunk of a running graph took."""
    run = engine.view.runs.get(graph_id)
    return () if run is None else run.measurements.durations_s


def _drop_tracebacks(error: BaseException | None) -> None:
    """Remove the tracebacks of an exception that Dask has seen.

    Frames refer back to the exception, and would keep the subtask's inputs in the store until a garbage
    collection, which an idle host may never have.
    """
    for each in () if error is None else tracebacks.chain(error):
        tracebacks.forget(each)


def _is_for_engine(task: Any) -> bool:
    """Return whether the engine computes a task.

    Some need a Dask thread. Others take a group of values out of a result; the engine would store it as one value.
    """
    return bool(_mark(task)) and not _is_in_thread(task) and not _takes_apart(task)


def _takes_apart(task: Any) -> bool:
    """Return whether a task only takes the result of a subtask apart."""
    return bool(_mark(task)) and getattr(task.run_spec, "func", None) is operator.getitem


def _is_in_thread(task: Any) -> bool:
    mark = _mark(task)
    return isinstance(mark, dict) and bool(mark.get("in_thread"))


def _mark(task: Any) -> Any:
    return (task.annotations or {}).get(MARK)


@contextlib.contextmanager
def _hints() -> Iterator[None]:
    """Add advice to errors of tasks that must run within a Dask worker."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        raised_in = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__"))
        if raised_in.partition(".")[0] == "distributed":
            tracebacks.add_note(
                error,
                "dask_mars: this task ran in a worker process of an agent, which has no connection to the "
                "cluster. Tasks run in the agent itself if their function, or one next to it, names what it uses "
                "of distributed, such as get_worker or Lock, or if it is among their arguments.",
            )
        raise


class _AgentPlugin(WorkerPlugin):  # type: ignore[misc]
    """Tells the scheduler what an agent can hold, and cancels subtasks that are no longer needed."""

    name = "dask-mars-agent"

    def setup(self, worker: MarsWorker) -> None:
        """Count the disk before the agent registers."""
        self._agent = worker
        # Dask's scheduler refuses tasks with larger inputs. It counts whole results, although subtasks read parts,
        # and spilled ones.
        worker.memory_manager.memory_limit += max(free_bytes(str(worker.spill_directory)), 0)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Handle a change of a task's state."""
        if start == "executing" and finish not in ("memory", "error", "rescheduled", "long-running"):
            self._agent.cancel_subtask(key)


class _WithPlainValues:
    """Calls a foreign task with plain values in place of stored results."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.is_coro = task.is_coro

    def __call__(self, data: dict[Any, Any]) -> Any:
        return self._task({key: plain(value) for key, value in data.items()})
