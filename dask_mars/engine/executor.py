"""What the state machine says is to be done, done."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from dask_mars.engine import computation as messages
from dask_mars.engine.computation import GraphRun
from dask_mars.engine.listeners import listeners
from dask_mars.engine.processes import WorkerHandle
from dask_mars.engine.registry import Registry
from dask_mars.errors import RequestTooLarge, SpillError
from dask_mars.protocol import channel
from dask_mars.protocol.object_ref import SPILLED, ObjectRef, needed_bytes
from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksReturned,
    ChunksSpilled,
    Event,
    FailGraph,
    FinishGraph,
    ForgetGraph,
    Free,
    Instruction,
    Interrupt,
    ReadAhead,
    RecallQueued,
    Refuse,
    Run,
    Spill,
    UseSpilled,
)

logger = logging.getLogger(__name__)


class Executor:
    """Carries out instructions.

    Parameters
    ----------
    registry : Registry
        What the engine holds.
    post : callable
        Feeds an event to the state machine.
    command : callable
        Has a function called in the engine's thread, from any other.
    end_soon : callable
        Interrupts a worker's task of a graph, and ends the worker if that does not help.
    ask_back : callable
        Asks a worker to give back what waits behind what it runs.
    tell : callable
        Tells listeners what becomes of graphs.
    """

    def __init__(
        self,
        registry: Registry,
        post: Callable[[Event], None],
        command: Callable[[Callable[[], None]], None],
        end_soon: Callable[[WorkerHandle, int], None],
        ask_back: Callable[[WorkerHandle], None],
        tell: Callable[[FinishGraph | FailGraph | ForgetGraph], None],
    ) -> None:
        self._registry = registry
        self._post = post
        self._command = command
        self._end_soon = end_soon
        self._ask_back = ask_back
        self._tell = tell
        self._blocks, self._spill_writer, self._sender = registry.blocks, registry.spill_writer, registry.sender
        self._runs, self._workers = registry.runs, registry.workers
        #: Why chunks cannot be written to disk, if so.
        self._spill_error: SpillError | None = None

    def carry_out(self, instruction: Instruction) -> None:
        """Do what is to be done."""
        self._carry_out[type(instruction)](self, instruction)

    def _run(self, instruction: Run) -> None:
        run = self._runs[instruction.graph]
        if run.observed:
            run.inbox.put(messages.Started(instruction.chunks))
        if instruction.worker == CLIENT:
            run.inbox.put(messages.RunHere(instruction.chunks))
            return
        handle = self._workers[instruction.worker]
        chunks = instruction.chunks
        for part in [[chunk] for chunk in chunks] if run.one_by_one else [chunks]:
            unsent = self._sender.send(handle, run, part, instruction.loads, listeners.want_steps)
            for chunk in unsent.refused:
                self._post(ChunkFailed(handle.number, run.number, chunk, final=True))
            if unsent.unsendable:
                self._post(ChunksReturned(handle.number, run.number, unsent.unsendable, to_client=True))

    def _free(self, instruction: Free) -> None:
        run = self._runs[instruction.graph]
        for chunk in instruction.chunks:
            ref = run.refs[chunk]
            if ref is not None:
                run.refs[chunk] = None
                self._blocks.decref_object(ref)
            if chunk in run.spilled:
                self._blocks.decref_object(run.spilled.pop(chunk))
            if run.values:
                run.values.pop(chunk, None)
                run.graph.values.pop(chunk, None)
        self._registry.forget_locations(run, instruction.chunks)

    def _interrupt(self, instruction: Interrupt) -> None:
        handle = self._workers[instruction.worker]
        handle.send((channel.DROP, instruction.graph))
        if instruction.force:
            self._end_soon(handle, instruction.graph)

    def _give_back(self, instruction: RecallQueued) -> None:
        self._ask_back(self._workers[instruction.worker])

    def _spill(self, instruction: Spill) -> None:
        run = self._runs[instruction.graph]
        for chunk in instruction.chunks:
            ref = run.refs[chunk]
            assert ref is not None
            if chunk in run.spilled:
                self._post(ChunksSpilled(run.number, {chunk: needed_bytes(ref)}))
                continue
            self._blocks.incref_object(ref)
            answer = partial(self._on_spilled, run, chunk, ref)
            self._spill_writer.write(f"{run.number}-{chunk}", ref, answer)

    def _on_spilled(
        self, run: GraphRun, chunk: int, ref: ObjectRef, outcome: ObjectRef | SpillError, began_s: float
    ) -> None:
        """In the spill writer's thread: tell the engine's what became of a chunk."""
        ended_s = time.perf_counter()

        def command() -> None:
            # The chunk has them still, unless it was freed meanwhile.
            self._blocks.decref_object(ref)
            if isinstance(outcome, SpillError):
                if self._spill_error is None:
                    logger.warning("chunks stay in memory: %s", outcome)
                    self._spill_error = outcome
            elif run.number in self._runs and run.refs[chunk] is not None:
                self._spill_error = None
                self._blocks.incref_object(outcome)
                run.spilled[chunk] = outcome
            else:
                self._spill_writer.remove(outcome)
            written = not isinstance(outcome, SpillError)
            sizes = {chunk: needed_bytes(ref)}
            self._post(ChunksSpilled(run.number, sizes, written, began_s, ended_s))

        with contextlib.suppress(Exception):
            # The engine may have ended meanwhile.
            self._command(command)

    def _use_spilled(self, instruction: UseSpilled) -> None:
        run = self._runs[instruction.graph]
        for chunk in instruction.chunks:
            self._blocks.incref_object(run.spilled[chunk])
            self._registry.replace_location(run, chunk, run.spilled[chunk])
        self._registry.forget_locations(run, instruction.chunks)
        for number, its, chunk in instruction.borrowed:
            user, ref = self._runs[number], run.refs[chunk]
            if ref is not None and user.refs[its] is not None:
                self._blocks.incref_object(ref)
                self._registry.replace_location(user, its, ref)
                self._registry.forget_locations(user, [its])

    def _read_ahead(self, instruction: ReadAhead) -> None:
        run = self._runs[instruction.graph]
        for chunk in instruction.chunks:
            # What another graph has persisted is in a file of that one's.
            ref = run.spilled.get(chunk, run.refs[chunk])
            if ref is not None and ref[0] == SPILLED:
                self._spill_writer.read_ahead(ref)

    def _refuse(self, instruction: Refuse) -> None:
        run = self._runs[instruction.graph]
        key = repr(run.graph.keys[instruction.chunk])
        error: Exception = RequestTooLarge(key, instruction.need_bytes, max(instruction.limit_bytes, 0))
        if self._spill_error is not None:
            # Room could have been made, had the disk not failed. A copy: what is raised refers to where it was.
            error = type(self._spill_error)(*self._spill_error.args)
        run.errors[instruction.chunk] = error

    def _finish_graph(self, instruction: FinishGraph) -> None:
        self._tell(instruction)
        self._runs[instruction.graph].inbox.put(messages.Finished())

    def _fail_graph(self, instruction: FailGraph) -> None:
        self._tell(instruction)
        run = self._runs[instruction.graph]
        run.inbox.put(messages.Failed(instruction.chunk, run.errors[instruction.chunk]))

    def _forget_graph(self, instruction: ForgetGraph) -> None:
        self._registry.forget(self._runs[instruction.graph])
        self._tell(instruction)

    _carry_out: ClassVar[dict[type, Callable[[Executor, Any], None]]] = {
        Run: _run,
        Free: _free,
        Interrupt: _interrupt,
        RecallQueued: _give_back,
        Spill: _spill,
        UseSpilled: _use_spilled,
        ReadAhead: _read_ahead,
        Refuse: _refuse,
        FinishGraph: _finish_graph,
        FailGraph: _fail_graph,
        ForgetGraph: _forget_graph,
    }
