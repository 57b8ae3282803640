"""The user's process as part of a computation on a cluster: local values, fetched values, local tasks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from distributed import Future

from dask_mars.client.local_tasks import raised_by, run_chunk
from dask_mars.client.together import Call, Key, Together
from dask_mars.cluster.admission import hold_locks, wait_for_results
from dask_mars.cluster.computation import ClusterComputation, DaskKey
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.progress import ProgressReceiver
from dask_mars.protocol import tracebacks
from dask_mars.protocol.deferred import Deferred, resolved
from dask_mars.store.persisted import value_of

#: Longest wait for tasks before messages are handled, in seconds.
_WAIT_S = 0.2


class LocalTasks:
    """The values of chunks in the user's process, and access to those on the cluster."""

    def __init__(self, computation: ClusterComputation, progress: ProgressReceiver | None = None) -> None:
        self._client = computation.client
        self._graph = computation.graph
        self._requirements = computation.requirements
        self._retries = computation.retries
        self._progress = progress
        self._effects = computation.effects
        #: Values of chunks that stay in this process.
        self.values: dict[int, Any] = {}
        #: For each chunk in the result of a Dask task: the task's key, and the item; None if it is the whole
        #: result.
        self.result_of: dict[int, tuple[DaskKey, int | None]] = {}
        #: Futures that Dask must keep until the end, by task key.
        self.futures: dict[DaskKey, Future] = {}
        #: Agents with files that results depend on, and for each a task that needs them, for the error message.
        self.agents_with_files: dict[str, str] = {}
        #: The user's own futures.
        self._user_futures: dict[DaskKey, Future] = {}
        #: Fetched results with items that are still needed.
        self._gathered: dict[DaskKey, Any] = {}
        #: Results of steps that agents have deferred to this process.
        self._deferred: dict[str, Any] = {}
        #: Running tasks of this process: chunks by id, and deferred steps by token.
        self._together = Together(computation.threads)
        #: Subtask of each of those chunks, and number of unfinished chunks of each subtask.
        self._subtask_of: dict[Key, Subtask] = {}
        self._left: dict[bytes, int] = {}
        self._is_closed = False
        for chunk, value in computation.graph.values.items():
            if chunk in computation.user_futures:
                self._user_futures[value.key] = value
                self.result_of[chunk] = value.key, None
            else:
                self.values[chunk] = value_of(value)

    def is_known(self, chunk: int) -> bool:
        """Return whether a chunk is in this process, or in the result of a submitted task."""
        return chunk in self.values or chunk in self.result_of

    def future(self, key: DaskKey) -> Future:
        """Return the future of a result on the cluster."""
        return self.futures.get(key) or self._user_futures[key]

    def values_of(self, chunks: Collection[int]) -> dict[int, Any]:
        """Return the values of local or fetched chunks, after deferred steps have run."""
        found = {chunk: self._received(chunk) for chunk in chunks}
        self._add_steps(found.values())
        while self._together:
            self.step()
        return {chunk: resolved(value, self._deferred) for chunk, value in found.items()}

    def _received(self, chunk: int) -> Any:
        """Return a value as it was sent, which may be deferred."""
        if chunk in self.values:
            return self.values[chunk]
        key, item = self.result_of[chunk]
        return self._gathered[key] if item is None else self._gathered[key][item]

    def fetch(self, chunks: Collection[int]) -> None:
        """Fetch the results that contain chunks, and drop earlier ones."""
        keys = self._results_with(chunks)
        missing = [key for key in keys if key not in self._gathered]
        futures = [self.future(key) for key in missing]
        if self.agents_with_files:
            self.wait(futures)
        gather = self._client.gather if self._progress is None else self._progress.gather
        found = gather(futures) if missing else []
        self._gathered = {key: self._gathered[key] for key in keys if key in self._gathered}
        self._gathered.update(zip(missing, found, strict=True))

    def wait(self, futures: Collection[Future]) -> None:
        """Wait for results, while the hosts with the needed files live."""
        catch_up = self._progress.catch_up if self._progress is not None else lambda: None
        wait_for_results(self._client, futures, self.agents_with_files, catch_up)

    def can_begin(self, subtask: Subtask) -> bool:
        """Return whether all inputs of a subtask are in this process, on the cluster or in progress here."""
        return all(chunk in self._together or self.is_known(chunk) for chunk in subtask.inputs)

    def begin(self, subtask: Subtask) -> None:
        """Start a subtask in this process, beside others."""
        self._left[subtask.id] = len(subtask.chunks)
        for chunk in subtask.chunks:
            self._subtask_of[chunk] = subtask
            self._together.add(chunk, self._graph.inputs[chunk], partial(self._start, chunk))

    @property
    def is_busy(self) -> bool:
        """Return whether any subtask or step is in progress."""
        return bool(self._together)

    def step(self) -> bool:
        """Wait briefly until some task has ended; return whether a subtask has."""
        has_ended = False
        for key, value in self._together.step(_WAIT_S):
            if isinstance(key, str):
                self._deferred[key] = value
                continue
            subtask = self._subtask_of.pop(key)
            self.values[key] = value
            if self._progress is not None:
                self._progress.end(key, value, f"process {os.getpid()}")
            self._left[subtask.id] -= 1
            has_ended = has_ended or not self._left[subtask.id]
        if self._progress is not None:
            self._progress.catch_up()
        return has_ended

    def close(self) -> None:
        """Start no more tasks; running ones go on."""
        self._is_closed = True
        self._together.close()

    def _start(self, chunk: int) -> Call | None:
        """Fetch a chunk's inputs, and return the call that computes it; None if it waits for deferred steps."""
        sources = self._graph.inputs[chunk]
        self.fetch(sources)
        values = [self._received(source) for source in sources]
        if tokens := self._add_steps(values):
            self._together.add(chunk, tokens, partial(self._begun, chunk, values))
            return None
        return self._begun(chunk, values)

    def _add_steps(self, values: Iterable[Any]) -> list[str]:
        """Start the deferred steps in values, and return the tokens of unfinished ones."""
        steps = [step for value in values if type(value) is Deferred for step in value.steps]
        missing = {step.token: step for step in steps if step.token not in self._deferred}
        for token, step in missing.items():
            if token not in self._together:
                call = partial(step.run, self._deferred)
                self._together.add(token, step.needs, partial(_given, call))
        return list(missing)

    def _begun(self, chunk: int, values: list[Any]) -> Call:
        """Record the start of a chunk, and return the call that computes it."""
        if self._progress is not None:
            self._progress.begin(chunk)
        if chunk in self._requirements.once:
            self._effects.begun_here.append(str(self._graph.keys[chunk]))
        return partial(self._run, chunk, values)

    def _run(self, chunk: int, values: list[Any]) -> Any:
        """Compute a chunk, in any thread."""
        graph, tokens = self._graph, self._requirements.locks.get(chunk, frozenset())
        left = 0 if chunk in self._requirements.once else graph.retries.get(chunk, self._retries)
        # All inputs are available, so that the holder of a lock waits for no other task.
        with hold_locks(tokens, self._client, lambda: not self._is_closed):
            while True:
                try:
                    return run_chunk(graph, chunk, [resolved(value, self._deferred) for value in values])
                except Exception as error:
                    if not left:
                        tracebacks.add_note(error, raised_by(graph, chunk))
                        raise
                    left -= 1

    def _results_with(self, chunks: Collection[int]) -> list[DaskKey]:
        """Return the tasks whose results contain those chunks that are not in this process."""
        return list(dict.fromkeys([self.result_of[chunk][0] for chunk in chunks if chunk not in self.values]))


def _given(call: Call) -> Call:
    return call
