"""The agent of a host: one of Dask's workers, with an engine of ours behind it.

In the eyes of Dask's scheduler it is a worker like any other, and computes other people's tasks as they do.
Subtasks of ours go to its engine, whose worker processes share one store. What they return stays there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import operator
import shutil
import signal
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Reschedule, Status, Worker, WorkerPlugin
from tornado.ioloop import PeriodicCallback

from dask_mars import config
from dask_mars.client.computation import run_graph
from dask_mars.cluster.admission import NoLongerWanted
from dask_mars.cluster.distributed_api import GatherDepSuccessEvent, thread_state
from dask_mars.cluster.marks import IDENTITY, LEAVE_S, MARK
from dask_mars.cluster.metrics import measure
from dask_mars.cluster.progress import ProgressSender, SubtaskObserver
from dask_mars.cluster.stored_result import StoredResult, plain, release_unread
from dask_mars.cluster.subtask_spec import Agent, SubtaskGraph, SubtaskSpec, admitted
from dask_mars.cluster.transfers import BytesSemaphore, Transfers
from dask_mars.cluster.versions import other_versions
from dask_mars.engine.loop import Engine
from dask_mars.errors import Cancelled
from dask_mars.protocol import tracebacks
from dask_mars.protocol.context import with_variables
from dask_mars.version import __version__

if TYPE_CHECKING:
    from dask_mars.checkpointing.saver import Saver
    from dask_mars.cluster.saving import SaveOrder

logger = logging.getLogger(__name__)

#: How often is looked whether the engine has come up.
_START_LOOK_S = 0.01
#: How often is looked for chunks whose transfer is over.
_RELEASE_MS = 100
#: Why workers close that Dask's scheduler wants others for, as after `Client.restart`: it says so,
#: or a heartbeat is answered before what it says arrives.
_REMOVED = frozenset({"scheduler-remove-worker", "worker-heartbeat-missing"})
#: How many workers an agent that starts compares its version with.
_COMPARED = 20
#: What is said instead of those that nobody wants another for.
_RETIRED = "worker-retired"
#: Of the memory limit: what may be read from disk at the same time to be sent to others.
_SENT_SHARE = 0.1


class MarsWorker(Worker, Agent):  # type: ignore[misc]
    """A worker of `dask.distributed` that computes dask_mars's subtasks on an engine of its own.

    Parameters
    ----------
    *args
        As for `distributed.Worker`.
    store_limit : int, float or str, optional
        Bytes of results that are kept in memory, a share of the memory limit, or text such as ``"4 GiB"``.
        Default: ``dask-mars.store-limit``.
    spill_directory : str, optional
        Where results beyond that go. Default: ``dask-mars.spill-directory``, else the worker's local directory.
    **kwargs
        As for `distributed.Worker`. ``nthreads`` is the number of worker processes, and of subtasks that are
        computed at the same time; ``memory_limit`` is for the agent and its worker processes together. Dask's
        scheduler is told of that and of the free space of the disk that results are spilled to.
    """

    def __init__(
        self,
        *args: Any,
        store_limit: int | float | str | None = None,
        spill_directory: str | None = None,
        **kwargs: Any,
    ) -> None:
        told = dict(kwargs.pop("startup_information", None) or {})
        told[MARK] = lambda worker: __version__
        told[IDENTITY] = lambda worker: worker.id
        # What takes memory is in the engine's store, which has its own limit; Dask's would write copies to disk.
        kwargs.setdefault("data", {})
        super().__init__(*args, startup_information=told, **kwargs)
        self.memory_manager.memory_pause_fraction = False
        memory = self.memory_manager.memory_limit
        settings = config.settings(self.state.nthreads, memory)
        if store_limit is not None:
            limit = config.parse_memory(store_limit, settings.memory_limit, "store_limit")
            limit = min(limit, settings.memory_limit)
            settings = dataclasses.replace(settings, store_limit=limit)
        if spill_directory is not None or config.get("spill-directory") is None:
            settings = dataclasses.replace(settings, spill_directory=Path(spill_directory or self.local_directory))
        # Dask's scheduler refuses tasks whose inputs are more than that, and counts results as wholes of which a
        # subtask may read a part, and which may be on disk.
        self.memory_manager.memory_limit = settings.memory_limit + _free_bytes(settings.spill_directory)
        self._settings = settings
        self._engine: Engine | None = None
        #: The end of the engine.
        self._ending: asyncio.Future[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        #: Why it has begun to close.
        self.end_reason = ""
        #: Whether the scheduler has closed it, and counts on another in its place.
        self.is_removed = False
        self._subtasks_lock = threading.Lock()
        #: Number in the engine of each subtask that is being computed, None before it has one.
        self._subtasks: dict[Any, int | None] = {}
        self._cancelled: set[Any] = set()
        #: What subtasks have raised of which Dask has not heard yet.
        self._raised: dict[Any, BaseException] = {}
        self._transfers = Transfers(self.data)
        self._sent_from_disk = BytesSemaphore(int(settings.memory_limit * _SENT_SHARE))
        self._messenger = ProgressSender(self)
        self.periodic_callbacks["dask-mars-release"] = PeriodicCallback(release_unread, _RELEASE_MS)

    @property
    def engine(self) -> Engine:
        """What computes subtasks."""
        assert self._engine is not None, "the agent has not started"
        return self._engine

    async def start_unsafe(self) -> MarsWorker:
        """Start the engine and, when it has come up, register with the scheduler."""
        self._engine = self._transfers.engine = Engine(self._settings, is_agent=True)
        # One that cannot work is never known to the scheduler, and ends with the reason.
        while not self.engine.is_up:
            await asyncio.sleep(_START_LOOK_S)
        await super().start_unsafe()
        if self.nanny is not None:
            # Queues of clusters and terminals send signals to this process too, and not to its nanny alone.
            # Before it has registered, a signal just ends it.
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._begin_to_leave, number)
        await self.plugin_add(plugin=_Cancelling(self), name="dask-mars-cancelling")
        known = await self.scheduler.identity(n_workers=_COMPARED)
        others = {
            other for told in known["workers"].values() if (other := told.get(MARK, __version__)) != __version__
        }
        if others:
            logger.warning(other_versions("this agent", others))
        return self

    def _begin_to_leave(self, number: int) -> None:
        if self._leaving is None:
            self._leaving = asyncio.create_task(self.leave(f"signal-{number}"))

    async def leave(self, reason: str) -> None:
        """Have the scheduler move the results that only this host has to others, then close."""
        if self.status is Status.running:
            moving = self.scheduler.retire_workers(workers=[self.address], close_workers=False, remove=False)
            # It closes by itself when the scheduler is gone, which may not be seen otherwise for long.
            waits = [asyncio.ensure_future(waiting) for waiting in (moving, self.finished())]
            await asyncio.wait(waits, timeout=LEAVE_S, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        await self.close(reason=reason)

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        """Cancel what is running, leave the scheduler, and end the engine."""
        if kwargs.get("reason") in _REMOVED:
            # One that is to retire is told so before.
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
                # Several close it at a time, and with the first that is done its process may end.
                await asyncio.shield(self._ending)

    async def get_metrics(self) -> dict[str, Any]:
        """Return what Dask's scheduler is told with each heartbeat."""
        metrics: dict[str, Any] = await super().get_metrics()
        engine = self._engine
        if engine is not None:
            metrics.update(measure(engine, self._subtasks, metrics["managed_bytes"]))
        return metrics

    def handle_worker_status_change(self, status: str, stimulus_id: str) -> None:
        """Go over to a status that the scheduler wants, unless this is closing.

        If there was nowhere to move results to, the scheduler says that the worker is to go on.
        """
        if self.status is not Status.closing:
            super().handle_worker_status_change(status, stimulus_id)

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Compute a task; ours get their inputs in the store, others as plain values."""
        task = self.state.tasks.get(key)
        if task is not None and task.run_spec is not None:
            if _is_for_engine(task):
                await asyncio.gather(*[self._transfers.move_to_store(source.key) for source in task.dependencies])
            elif not _takes_apart(task) and self._reads_stored(task):
                task.run_spec = _WithPlainValues(task.run_spec)
        try:
            return await super().execute(key, stimulus_id=stimulus_id)
        finally:
            _drop_tracebacks(self._raised.pop(key, None))

    def _reads_stored(self, task: Any) -> bool:
        return any(isinstance(self.data.get(source.key), StoredResult) for source in task.dependencies)

    async def gather_dep(
        self, worker: str, to_gather: Collection[Any], total_nbytes: int, *, stimulus_id: str
    ) -> Any:
        """Fetch results of another worker; what subtasks read once there is room for it, and into the store."""
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
        """Send results to another worker or a client; what is on disk a few at a time."""
        stored = [value for key in keys if isinstance(value := self.data.get(key), StoredResult)]
        async with self._sent_from_disk.acquire(sum([value.on_disk_bytes for value in stored])):
            return await super().get_data(comm, keys, who=who, serializers=serializers)

    def compute(self, spec: SubtaskSpec, arguments: Sequence[Any]) -> Any:
        """Compute a subtask, as `Agent` says; a thread of Dask's calls it."""
        try:
            return self._compute(thread_state.key, spec, arguments)
        except BaseException as error:
            tracebacks.carry(error)
            # Of one that closes nobody waits for its subtasks any more, and what it keeps would keep the store.
            if self.status not in (Status.closing, Status.closed):
                self._raised[thread_state.key] = error
            raise

    def _compute(self, key: Any, spec: SubtaskSpec, arguments: Sequence[Any]) -> Any:
        def started(number: int) -> None:
            with self._subtasks_lock:
                self._subtasks[key] = number
                late = key in self._cancelled
            if late:
                self.engine.cancel_graph(number)
            if observer is not None and observer.wants_seconds:
                observer.durations_s = lambda: _durations_of(self.engine, number)

        observer: SubtaskObserver | None = None
        self._subtasks[key] = None
        try:
            task = self.state.tasks.get(key)
            if task is None or task.state == "cancelled":
                # From here on whoever cancels it finds it.
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
                    observer = SubtaskObserver(self._messenger, mark, known=len(graph) - len(spec.operand_of))
                done = False
                try:
                    with _hints():
                        # Of what has to run in this process, these hold as well.
                        found = with_variables(graph.surroundings or {}).run(
                            run_graph, self.engine, graph, spec.default_retries, started, observer, saver
                        )
                    done = True
                finally:
                    if saver is not None:
                        saver.stop(drain=done)
        except (Cancelled, NoLongerWanted):
            # Nobody waits for it, unless somebody has asked for it again meanwhile.
            raise Reschedule from None
        finally:
            with self._subtasks_lock:
                del self._subtasks[key]
                self._cancelled.discard(key)
        output_groups = [StoredResult([found[chunk] for chunk in group]) for group in spec.output_groups]
        return output_groups[0] if len(output_groups) == 1 else StoredResult(output_groups)

    def _saver_for(self, order: SaveOrder, graph: SubtaskGraph) -> Saver | None:
        # Few computations are saved.
        from dask_mars.cluster.saving import saver_for

        return saver_for(order, graph)

    def cancel_subtask(self, key: Any) -> None:
        """Stop computing a subtask, if it is being computed."""
        with self._subtasks_lock:
            if key not in self._subtasks:
                return
            number = self._subtasks[key]
            self._cancelled.add(key)
        engine = self._engine
        if number is not None and engine is not None:
            # The engine may end at any moment, and its subtasks with it.
            with contextlib.suppress(Exception):
                engine.cancel_graph(number)


def _durations_of(engine: Engine, number: int) -> Sequence[float]:
    """Return how long chunks of a graph took that is being computed."""
    run = engine.view.runs.get(number)
    return () if run is None else run.measurements.durations_s


def _free_bytes(directory: Path | None) -> int:
    """Return what there is room for on the disk of a directory, which need not be there yet."""
    place = Path(tempfile.gettempdir()) if directory is None else directory.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _drop_tracebacks(error: BaseException | None) -> None:
    """Part an exception that Dask has heard of from what it went through.

    Its frames, Dask's among them, refer to it in turn, and would keep what the subtask has read in the store until
    the garbage collector comes by, which may be never on a host that is idle.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        tracebacks.forget(error)
        error = error.__context__


def _is_for_engine(task: Any) -> bool:
    """Say whether a task is a subtask for the engine: not for a thread of Dask's, nor one to take results apart.

    What takes a result apart gets it as it has come: a list of lists, each of which would go into the store as one
    value.
    """
    return bool(_mark(task)) and not _is_in_thread(task) and not _takes_apart(task)


def _takes_apart(task: Any) -> bool:
    """Say whether a task does nothing but take the result of a subtask apart."""
    return bool(_mark(task)) and getattr(task.run_spec, "func", None) is operator.getitem


def _is_in_thread(task: Any) -> bool:
    mark = _mark(task)
    return isinstance(mark, dict) and bool(mark.get("in_thread"))


def _mark(task: Any) -> Any:
    return (task.annotations or {}).get(MARK)


@contextlib.contextmanager
def _hints() -> Iterator[None]:
    """Say what to do about tasks that find no worker of Dask's around them."""
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


class _Cancelling(WorkerPlugin):  # type: ignore[misc]
    """Tells an agent of subtasks that nobody wants any more."""

    def __init__(self, agent: MarsWorker) -> None:
        self._agent = agent

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Take note of a change of a task's state."""
        if start == "executing" and finish not in ("memory", "error", "rescheduled", "long-running"):
            self._agent.cancel_subtask(key)


class _WithPlainValues:
    """Calls a task of somebody else's with values in place of what stands for them."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.is_coro = task.is_coro

    def __call__(self, data: dict[Any, Any]) -> Any:
        return self._task({key: plain(value) for key, value in data.items()})


__all__ = ["MarsWorker"]
