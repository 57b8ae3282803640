"""Sends work to the workers: operands, literals and the user's values, each to a worker once."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, NamedTuple

from dask_mars.engine.graph_run import GraphRun, Warned
from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.errors import StoreFull
from dask_mars.graph.callables import package_of
from dask_mars.graph.functions import FunctionRegistry
from dask_mars.lazy_numpy import np
from dask_mars.protocol.columns import (
    PackedChunks,
    PackedOperand,
    function_ids_of,
    pack_chunks,
    pack_numbers,
    pack_operand,
)
from dask_mars.protocol.context import Context as Surroundings
from dask_mars.protocol.deferred import Deferred
from dask_mars.protocol.libraries import name_in_pickles
from dask_mars.protocol.messages import Context, Run
from dask_mars.protocol.object_ref import Block, ObjectRef, may_hold_files
from dask_mars.protocol.pickling import dumps, frozen, may_open_files
from dask_mars.store.persisted import PersistedChunk
from dask_mars.store.reference_counts import ReferenceCounts
from dask_mars.store.store import Store

logger = logging.getLogger(__name__)

#: Minimum size of out-of-band buffers of literals that go through shared memory, in bytes.
_LITERAL_BUFFER_BYTES = 1 << 14


class Unsent(NamedTuple):
    """Chunks that could not be sent: not picklable, or without room for their values."""

    unsendable: list[int]
    refused: list[int]


class Sender:
    """Sends chunks to workers."""

    def __init__(self, store: Store, blocks: ReferenceCounts) -> None:
        self._store = store
        self._blocks = blocks
        #: Function ids of the operands' functions.
        self._mapping = FunctionRegistry()
        #: Contexts of tasks, by id.
        self.contexts: dict[int, Surroundings] = {}
        self._newest_context = -1
        #: Bytes of the user's arrays and frames that threads have read in place.
        self.borrowed_bytes = 0

    def add_context(self, id: int, surroundings: Surroundings) -> None:
        """Record a context under an id."""
        self.contexts[id] = surroundings
        self._newest_context = id

    def prune_contexts(self, used: set[int]) -> None:
        """Forget all contexts but these and the newest, which is likely to be used again."""
        for id in self.contexts.keys() - used - {self._newest_context}:
            del self.contexts[id]

    def send(
        self, handle: WorkerHandle, run: GraphRun, chunks: list[int], restores: list[int], timed: bool
    ) -> Unsent:
        """Send chunks to a worker with everything new to it, and return the chunks that cannot be sent."""
        unsent = Unsent([], [])
        operand_of, inputs = run.graph.operand_of, run.graph.inputs
        sent = handle.operands.setdefault(run.id, set())
        known_by, bit = run.known_by, handle.bit_in(run.id, run.workers)
        operands: dict[int, PackedOperand] = {}
        refs: dict[int, ObjectRef] = {}
        borrowed: list[int] = []
        good = []
        for chunk in chunks:
            try:
                operand = operand_of[chunk]
                # Threads have the graph's own.
                if handle.is_process and operand not in sent:
                    operands[operand] = self._packed_operand(run, operand)
                    sent.add(operand)
                for source in inputs[chunk]:
                    if known_by[source] & bit:
                        continue
                    if not handle.is_process and self._may_be_borrowed(run, source):
                        borrowed.append(source)
                        known_by[source] |= bit
                        self.borrowed_bytes += run.copied_bytes.get(source, 0)
                    elif (ref := self._ref(run, source)) is not None:
                        refs[source] = ref
                        known_by[source] |= bit
            except StoreFull as error:
                run.errors[chunk] = error
                unsent.refused.append(chunk)
            except BaseException:
                # Pickling calls the user's code, which may raise even SystemExit.
                unsent.unsendable.append(chunk)
            else:
                good.append(chunk)
        try:
            records = self._pack_chunks(run, good)
        except BaseException:
            literals = run.graph.literals
            unsent.unsendable.extend(chunk for chunk in good if not _is_picklable(literals[chunk]))
            good = [chunk for chunk in good if chunk not in unsent.unsendable]
            records = self._pack_chunks(run, good)
        if run.context not in handle.contexts:
            self._send_context(handle, run)
        paths = self._new_paths(handle, operands.values())
        packed = pack_numbers(good)
        handle.send(Run(run.id, run.context, timed, packed, records, refs, restores, borrowed, operands, paths))
        return unsent

    def _send_context(self, handle: WorkerHandle, run: GraphRun) -> None:
        """Send the context of a graph's tasks, and warn of settings that cannot be sent."""
        surroundings = self.contexts[run.context]
        handle.contexts.add(run.context)
        handle.send(Context(run.context, surroundings.payload))
        for text in surroundings.losses() if handle.is_process else ():
            run.inbox.put(Warned(pickle.dumps((text, RuntimeWarning, __file__, 0))))

    def _packed_operand(self, run: GraphRun, operand_id: int) -> PackedOperand:
        if operand_id not in run.packed:
            operand = run.graph.operands[operand_id]
            try:
                run.packed[operand_id] = pack_operand(operand, self._mapping, partial(self._dumps, run))
            except BaseException as error:
                logger.debug("%s runs in the user's process: %s", operand, error)
                run.packed[operand_id] = None
        packed = run.packed[operand_id]
        if packed is None:
            raise pickle.PicklingError
        return packed

    def needed_libraries(self, runs: Iterable[GraphRun], names: Collection[str]) -> set[str]:
        """Return which of some libraries the functions and values of graphs refer to."""
        texts = {text for run in runs for text in self._texts(run)} if names else set()
        return {name for name in names if any(name_in_pickles(name) in text for text in texts)}

    def _texts(self, run: GraphRun) -> set[bytes]:
        """Return names and pickles that name the modules which a graph needs."""
        graph, in_client = run.graph, run.plan.in_client
        texts = {package_of(type(value)).encode() for value in graph.values.values()}
        for operand_id in {id for chunk, id in enumerate(graph.operand_of) if chunk not in in_client}:
            # Pickling calls the user's code. The packed operand is kept until it is sent.
            with contextlib.suppress(BaseException):
                packed = self._packed_operand(run, operand_id)
                texts |= {self._mapping.path(function_id).encode() for function_id in function_ids_of(packed)}
                if packed[-1] is not None:
                    texts.add(packed[-1][0])
        return texts

    def _new_paths(self, handle: WorkerHandle, operands: Iterable[PackedOperand]) -> dict[int, str]:
        """Return the paths of the operands' functions that a worker does not know yet."""
        new = {
            function_id for operand in operands for function_id in function_ids_of(operand)
        } - handle.function_ids
        handle.function_ids |= new
        return {function_id: self._mapping.path(function_id) for function_id in new}

    def _pack_chunks(self, run: GraphRun, chunks: list[int]) -> PackedChunks:
        graph = run.graph
        operand_of, inputs, literals = graph.operand_of, graph.inputs, graph.literals
        return pack_chunks(
            [operand_of[chunk] for chunk in chunks],
            [inputs[chunk] for chunk in chunks],
            [literals[chunk] for chunk in chunks],
            partial(self._dumps, run),
        )

    def _dumps(self, run: GraphRun, value: Any) -> tuple[bytes, tuple[Block, ...]]:
        """Pickle a value; its large buffers go into the client's arena for the life of the graph."""
        parts: list[Block] = []

        def out_of_band(buffer: pickle.PickleBuffer) -> bool:
            raw = self._store.for_arena(buffer, _LITERAL_BUFFER_BYTES)
            if raw is None:
                return True
            try:
                parts.append(self._store.put(raw))
            except StoreFull:
                # Then it travels in the message.
                return True
            return False

        try:
            kinds: dict[int, type] = {}
            payload = dumps(value, out_of_band, frozen, kinds)
            run.may_hold_files |= may_open_files(kinds)
        finally:
            for block in parts:
                self._blocks.incref(block)
            run.literal_blocks += parts
        return payload, tuple(parts)

    def _may_be_borrowed(self, run: GraphRun, chunk: int) -> bool:
        """Return whether a user's array or frame, not copied so far, can be read in place."""
        value: Any = run.values.get(chunk) if run.refs[chunk] is None else None
        if package_of(type(value)) == "pandas":
            return chunk in run.copied_bytes
        return (
            type(value) in (np.ndarray, np.memmap)
            and value.nbytes > self._store.inline_bytes
            and not value.dtype.hasobject
            # Workers take arrays in an arena for their own.
            and not self._store.is_in_arena(value)
        )

    def _ref(self, run: GraphRun, chunk: int) -> ObjectRef | None:
        """Return the location of a value; None if the worker itself has yet to compute it."""
        # A value of the user's process is copied into the client's arena now.
        ref = run.refs[chunk]
        if ref is None and chunk in run.values:
            value = run.values[chunk]
            if type(value) is Deferred:
                raise pickle.PicklingError(f"{value!r} is for the user's process")
            kept = value.ref if type(value) is PersistedChunk else None
            ref = self._store.seal(value, freeze=True) if kept is None else kept
            run.may_hold_files |= may_hold_files(ref)
            self._blocks.incref_object(ref)
            run.refs[chunk] = ref
        return ref


def _is_picklable(literals: Any) -> bool:
    try:
        dumps(literals)
    except BaseException:
        return False
    return True
