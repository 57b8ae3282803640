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
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from distributed import Reschedule, Worker, WorkerPlugin, get_worker
from distributed.worker import thread_state
from tornado.ioloop import PeriodicCallback

from dask_mars import config
from dask_mars.client import run_graph
from dask_mars.cluster.pieces import Piece
from dask_mars.cluster.stored import Stored, give_back_ended, plain
from dask_mars.errors import Cancelled
from dask_mars.graph import DATA, ChunkGraph, Operand, Step
from dask_mars.optimize.programs import identity
from dask_mars.persisted import Persisted
from dask_mars.scheduler.engine import Engine
from dask_mars.version import __version__
from dask_mars.worker.pickling import dumps

logger = logging.getLogger(__name__)

#: How often is looked for chunks whose transfer is over.
_GIVE_BACK_MS = 100
#: Results from elsewhere of at least this many bytes are put into the store.
_TAKEN_IN_BYTES = 1 << 16
#: What can be pickled, without a look at it.
_TRAVEL = frozenset({Persisted, np.ndarray, type(None), bool, int, float, complex, str, bytes})
#: How workers say that they are agents, and annotations that a task is ours.
MARK = "dask-mars"


class MarsWorker(Worker):  # type: ignore[misc]
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
        computed at the same time; ``memory_limit`` is for the agent and its worker processes together.
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
        # What takes memory is in the engine's store, which has its own limit; Dask's would write copies to disk.
        kwargs.setdefault("data", {})
        super().__init__(*args, startup_information=told, **kwargs)
        self.memory_manager.memory_pause_fraction = False
        memory = self.memory_manager.memory_limit
        settings = config.settings(self.state.nthreads, memory)
        if store_limit is not None:
            limit = min(config.parse_memory(store_limit, settings.memory_limit), settings.memory_limit)
            settings = dataclasses.replace(settings, store_limit=limit)
        if spill_directory is not None or config.get("spill-directory") is None:
            settings = dataclasses.replace(settings, spill_directory=Path(spill_directory or self.local_directory))
        self._settings = settings
        self._engine: Engine | None = None
        self._subtasks_lock = threading.Lock()
        #: Number in the engine of each subtask that is being computed, None before it has one.
        self._subtasks: dict[Any, int | None] = {}
        self._cancelled: set[Any] = set()
        #: Results from elsewhere that are on their way into the store.
        self._arriving: dict[Any, asyncio.Future[Stored]] = {}
        self.periodic_callbacks["dask-mars-give-back"] = PeriodicCallback(give_back_ended, _GIVE_BACK_MS)

    @property
    def engine(self) -> Engine:
        """What computes subtasks."""
        assert self._engine is not None, "the agent has not started"
        return self._engine

    async def start_unsafe(self) -> MarsWorker:
        """Start the engine, then register with the scheduler."""
        self._engine = Engine(self._settings)
        await super().start_unsafe()
        await self.plugin_add(plugin=_Cancelling(self), name="dask-mars-cancelling")
        return self

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        """Cancel what is running, leave the scheduler, and end the engine."""
        for key in list(self._subtasks):
            self.cancel_subtask(key)
        try:
            return await super().close(*args, **kwargs)
        finally:
            engine, self._engine = self._engine, None
            if engine is not None:
                self.data.clear()
                await asyncio.to_thread(engine.close)

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Compute a task; ours get their inputs in the store, others as plain values."""
        task = self.state.tasks.get(key)
        if task is not None and task.run_spec is not None:
            if _is_subtask(task):
                await asyncio.gather(*[self._take_in(source.key) for source in task.dependencies])
            elif not _is_ours(task) and self._reads_stored(task):
                task.run_spec = _WithPlainValues(task.run_spec)
        return await super().execute(key, stimulus_id=stimulus_id)

    def _reads_stored(self, task: Any) -> bool:
        return any(isinstance(self.data.get(source.key), Stored) for source in task.dependencies)

    def arrived(self, key: Any) -> None:
        """Begin to put a result that has come from elsewhere into the store: its subtask may be long in coming."""
        task = self.state.tasks.get(key)
        if task is not None and any(map(_is_subtask, task.dependents)):
            self._ongoing_background_tasks.call_soon(self._take_in, key)

    async def _take_in(self, key: Any) -> None:
        """Put a result that has come from elsewhere into the store, if it is large."""
        value = self.data.get(key)
        if value is None or isinstance(value, Stored) or sizeof(value) < _TAKEN_IN_BYTES:
            return
        taking = self._arriving.get(key)
        if taking is None:
            taking = self._arriving[key] = asyncio.ensure_future(asyncio.to_thread(taken_in, self.engine, value))
            taking.add_done_callback(lambda _: self._arriving.pop(key))
        try:
            stored = await taking
        except Exception as error:
            # It can be used as it is, too.
            logger.debug("%r stays where it is: %s", key, error)
            return
        if self.data.get(key) is value:
            self.data[key] = stored

    def compute(self, piece: Piece, arguments: Sequence[Any]) -> Stored:
        """Compute a subtask, and return what stands for its outputs. Called by a thread of Dask's.

        Parameters
        ----------
        piece : Piece
            The subtask.
        arguments : sequence
            What it reads.
        """
        key = thread_state.key

        def started(number: int) -> None:
            with self._subtasks_lock:
                self._subtasks[key] = number
                late = key in self._cancelled
            if late:
                self.engine.cancel_graph(number)

        self._subtasks[key] = None
        try:
            task = self.state.tasks.get(key)
            if task is None or task.state == "cancelled":
                # From here on whoever cancels it finds it.
                raise Cancelled(0)
            graph = piece.graph(arguments)
            found = run_graph(self.engine, graph, piece.default_retries, started)
        except Cancelled:
            # Nobody waits for it, unless somebody has asked for it again meanwhile.
            raise Reschedule from None
        finally:
            with self._subtasks_lock:
                del self._subtasks[key]
                self._cancelled.discard(key)
        for value in found.values():
            _refuse_unpicklable(value)
        parcels = [Stored([found[chunk] for chunk in parcel]) for parcel in piece.parcels]
        return parcels[0] if len(parcels) == 1 else Stored(parcels)

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


def _is_ours(task: Any) -> bool:
    return bool((task.annotations or {}).get(MARK))


def _is_subtask(task: Any) -> bool:
    """Say whether a task computes a subtask, and does not take the result of one apart.

    What does the latter gets it as it has come: a list of lists, each of which would go into the store as one
    value.
    """
    return _is_ours(task) and getattr(task.run_spec, "func", None) is not operator.getitem


def taken_in(engine: Engine, value: Any) -> Stored:
    """Return a value, or a list of values, from the store of an engine."""
    items = value if type(value) is list else [value]
    count = len(items)
    copy = Operand("arrive", (identity,), (Step(0, (0,), ()),), input_count=1, literal_count=0)
    graph = ChunkGraph(
        keys=[("arrive", number) for number in range(2 * count)],
        operand_of=[DATA] * count + [0] * count,
        literals=[()] * (2 * count),
        inputs=[()] * count + [(number,) for number in range(count)],
        operands=[copy],
        values=dict(enumerate(items)),
        outputs=[*range(count, 2 * count)],
    )
    # The engine's worker processes copy nothing: what they return is what the engine has copied for them.
    found = run_graph(engine, graph)
    return Stored([found[chunk] for chunk in graph.outputs], bare=items is not value)


def _refuse_unpicklable(value: Any) -> None:
    """Raise if a value cannot be pickled: better the task fails than each transfer, again and again."""
    if type(value) not in _TRAVEL or (type(value) is np.ndarray and value.dtype.hasobject):
        dumps(value)


class _Cancelling(WorkerPlugin):  # type: ignore[misc]
    """Tells an agent of subtasks that nobody wants any more, and of results that have come from elsewhere."""

    def __init__(self, agent: MarsWorker) -> None:
        self._agent = agent

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Take note of a change of a task's state."""
        if start == "executing" and finish not in ("memory", "error", "rescheduled", "long-running"):
            self._agent.cancel_subtask(key)
        elif start == "flight" and finish == "memory":
            self._agent.arrived(key)


class _WithPlainValues:
    """Calls a task of somebody else's with values in place of what stands for them."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.is_coro = task.is_coro

    def __call__(self, data: dict[Any, Any]) -> Any:
        return self._task({key: plain(value) for key, value in data.items()})


def current_agent() -> MarsWorker | None:
    """Return the agent that this thread computes a task of, None if it does not."""
    try:
        worker = get_worker()
    except ValueError:
        return None
    return worker if isinstance(worker, MarsWorker) else None


__all__ = ["MARK", "MarsWorker", "current_agent"]
