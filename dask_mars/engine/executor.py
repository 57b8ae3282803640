"""Executes the instructions of the state machine: messages to workers, spilling, answers to callers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from dask_mars.engine import graph_run as client_messages
from dask_mars.engine.cancellation import Cancellation
from dask_mars.engine.commands import Commands
from dask_mars.engine.listeners import EngineView, listeners
from dask_mars.engine.memory_control import MemoryControl
from dask_mars.engine.registry import Registry
from dask_mars.engine.workforce import Workforce
from dask_mars.errors import RequestTooLarge, ResultTooLarge, SpillError
from dask_mars.protocol.messages import Drop
from dask_mars.protocol.object_ref import ObjectRef, needed_bytes
from dask_mars.scheduler import events
from dask_mars.scheduler.objects import ObjectId

logger = logging.getLogger(__name__)


class Executor:
    """Executes instructions, each by the function of its type."""

    def __init__(
        self,
        registry: Registry,
        workforce: Workforce,
        memory: MemoryControl,
        cancellation: Cancellation,
        view: EngineView,
        commands: Commands,
        post: Callable[[events.Event], None],
    ) -> None:
        self._registry, self._objects = registry, registry.objects
        self._workforce = workforce
        self._memory = memory
        self._cancellation = cancellation
        self._view = view
        self._commands = commands
        self._post = post
        self._blocks, self._spill_writer, self._sender = registry.blocks, registry.spill_writer, registry.sender
        self._runs, self._workers = registry.runs, registry.workers
        #: The last error of writing chunks to disk, None after a success.
        self._spill_error: SpillError | None = None

    def carry_out(self, instruction: events.Instruction) -> None:
        """Execute one instruction."""
        self._handlers[type(instruction)](self, instruction)

    def _run(self, instruction: events.Run) -> None:
        run = self._runs[instruction.graph]
        if run.saver is not None and (error := run.saver.starting(instruction.chunks)) is not None:
            for chunk in instruction.chunks:
                run.errors[chunk] = error
                self._post(events.ChunkFailed(instruction.worker, run.id, chunk, final=True))
            return
        if run.observed:
            run.inbox.put(client_messages.Started(instruction.chunks))
        if instruction.worker == events.CLIENT:
            run.inbox.put(client_messages.RunInClient(instruction.chunks, instruction.is_alone))
            return
        handle = self._workers[instruction.worker]
        chunks = instruction.chunks
        for part in [[chunk] for chunk in chunks] if run.one_by_one else [chunks]:
            unsent = self._sender.send(handle, run, part, instruction.restores, listeners.want_steps)
            for chunk in unsent.refused:
                self._post(events.ChunkFailed(handle.id, run.id, chunk, final=True))
            if unsent.unsendable:
                self._post(events.ChunksReturned(handle.id, run.id, unsent.unsendable, to_client=True))

    def _interrupt(self, instruction: events.Interrupt) -> None:
        handle = self._workers[instruction.worker]
        handle.send(Drop(instruction.graph))
        if instruction.force:
            self._cancellation.add_stop_deadline(handle, instruction.graph)

    def _spill(self, instruction: events.Spill) -> None:
        objects = self._objects
        for id in instruction.objects:
            copied_bytes = objects.copied_bytes(id)
            if copied_bytes is not None:
                self._post(events.ObjectSpilled(id, copied_bytes))
                continue
            ref = objects.ref_of(id)
            assert ref is not None
            if objects.file_of(id) is not None:
                self._post(events.ObjectSpilled(id, needed_bytes(ref)))
                continue
            self._blocks.incref_object(ref)
            self._spill_writer.write(f"{id[0]}-{id[1]}", ref, partial(self._on_spilled, id, ref))

    def _on_spilled(self, id: ObjectId, ref: ObjectRef, outcome: ObjectRef | SpillError, began_s: float) -> None:
        """In the spill writer's thread: report an object's outcome to the engine's thread."""
        ended_s = time.perf_counter()

        def command() -> None:
            # The object still holds its blocks, unless it was freed meanwhile.
            self._blocks.decref_object(ref)
            if isinstance(outcome, SpillError):
                if self._spill_error is None:
                    logger.warning("chunks stay in memory: %s", outcome)
                    self._spill_error = outcome
            elif self._objects.ref_of(id) is not None:
                self._spill_error = None
                self._objects.add_file(id, outcome)
            else:
                self._spill_writer.remove(outcome)
            written = not isinstance(outcome, SpillError)
            self._post(events.ObjectSpilled(id, needed_bytes(ref), written, began_s, ended_s))

        with contextlib.suppress(Exception):
            # The engine may have ended meanwhile.
            self._commands.call_soon(command)

    def _use_spilled(self, instruction: events.UseSpilled) -> None:
        objects = self._objects
        if objects.copied_bytes(instruction.object) is not None:
            objects.drop_copy(instruction.object)
            return
        file = objects.file_of(instruction.object)
        assert file is not None
        objects.move([instruction.object, *instruction.read_as], file)

    def _use_restored(self, instruction: events.UseRestored) -> None:
        graph, chunk = instruction.restored
        ref = self._runs[graph].refs[chunk]
        assert ref is not None
        self._objects.move([instruction.object, *instruction.read_as], ref)

    def _forget_objects(self, instruction: events.ForgetObjects) -> None:
        for id in instruction.objects:
            self._objects.forget_persisted(id)

    def _refuse_reservation(self, instruction: events.RefuseReservation) -> None:
        reservation_id = instruction.reservation
        key = repr(self._registry.reservations[reservation_id].key)
        self._answer(reservation_id, self._too_large(key, instruction.size_bytes, instruction.limit_bytes))

    def _answer(self, reservation_id: int, error: Exception | None) -> None:
        reservation = self._registry.reservations[reservation_id]
        answer, reservation.answer = reservation.answer, None
        if answer is not None:
            answer(error)

    def _refuse(self, instruction: events.Refuse) -> None:
        run = self._runs[instruction.graph]
        key = repr(run.graph.keys[instruction.chunk])
        required_bytes, limit_bytes = instruction.required_bytes, instruction.limit_bytes
        if instruction.is_result:
            # A disk would not help.
            run.errors[instruction.chunk] = ResultTooLarge(key, required_bytes, limit_bytes)
        else:
            run.errors[instruction.chunk] = self._too_large(key, required_bytes, limit_bytes)

    def _too_large(self, key: str, required_bytes: int, limit_bytes: int) -> Exception:
        if self._spill_error is not None:
            # With a working disk there would be room. A copy, because a raised error refers to its frames.
            return type(self._spill_error)(*self._spill_error.args)
        return RequestTooLarge(key, required_bytes, max(limit_bytes, 0))

    def _finish_graph(self, instruction: events.FinishGraph) -> None:
        self._view.notify(instruction)
        self._runs[instruction.graph].inbox.put(client_messages.Finished())

    def _fail_graph(self, instruction: events.FailGraph) -> None:
        self._view.notify(instruction)
        run = self._runs[instruction.graph]
        run.inbox.put(client_messages.Failed(instruction.chunk, run.errors[instruction.chunk]))

    def _forget_graph(self, instruction: events.ForgetGraph) -> None:
        self._registry.forget(self._runs[instruction.graph])
        self._view.notify(instruction)

    _handlers: ClassVar[dict[type, Callable[[Executor, Any], None]]] = {
        events.Run: _run,
        events.Free: lambda self, instruction: self._objects.free(
            self._runs[instruction.graph], instruction.chunks
        ),
        events.Interrupt: _interrupt,
        # The machine keeps the offers; the scheduler's log has these instructions for people.
        events.Offer: lambda self, instruction: None,
        events.WithdrawOffer: lambda self, instruction: None,
        events.RecallQueued: lambda self, instruction: self._workforce.request_recall(instruction.worker),
        events.Spill: _spill,
        events.UseSpilled: _use_spilled,
        events.UseRestored: _use_restored,
        events.ForgetObjects: _forget_objects,
        events.GrantQuota: lambda self, instruction: self._memory.grant(
            instruction.worker, instruction.growth_bytes
        ),
        events.RefuseQuota: lambda self, instruction: self._memory.refuse(
            instruction.worker, instruction.is_postponed
        ),
        events.RenewWorkers: lambda self, instruction: self._memory.renew_workers(instruction.is_strict),
        events.GrantReservation: lambda self, instruction: self._answer(instruction.reservation, None),
        events.RefuseReservation: _refuse_reservation,
        events.Refuse: _refuse,
        events.FinishGraph: _finish_graph,
        events.FailGraph: _fail_graph,
        events.ForgetGraph: _forget_graph,
    }
