"""The user's process as a part of a computation on a cluster: what is here, what is fetched, what is computed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from typing import Any

from distributed import Future

from dask_mars.client.local_tasks import raised_by, run_chunk
from dask_mars.cluster.admission import hold_locks, wait_for_results
from dask_mars.cluster.computation import ClusterComputation, DaskKey
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.progress import ProgressReceiver
from dask_mars.protocol.deferred import resolved
from dask_mars.store.persisted import value_of


class LocalTasks:
    """The values of chunks in the user's process, and the way to those that are not there.

    Parameters
    ----------
    computation : ClusterComputation
        Whose chunks.
    progress : ProgressReceiver, optional
        Told what is computed here.
    begun_once : list of str, optional
        Tasks that must not be begun again are added to it when they begin, for people.

    Attributes
    ----------
    values : dict
        Of chunks that are in this process to stay.
    result_of : dict
        Of each chunk that a task of Dask's has among its results: which task, and the item; None if it is all.
    futures : dict
        What Dask is to keep until all is done, by the key of the task.
    agents_with_files : dict
        Agents that have files which results depend on; and of each, for people, what needs some of them.
    """

    def __init__(
        self,
        computation: ClusterComputation,
        progress: ProgressReceiver | None = None,
        begun_once: list[str] | None = None,
    ) -> None:
        self._client = computation.client
        self._graph = computation.graph
        self._requirements = computation.requirements
        self._retries = computation.retries
        self._progress = progress
        self._begun_once = [] if begun_once is None else begun_once
        self.values: dict[int, Any] = {}
        self.result_of: dict[int, tuple[DaskKey, int | None]] = {}
        self.futures: dict[DaskKey, Future] = {}
        self.agents_with_files: dict[str, str] = {}
        #: The user's own futures.
        self._user_futures: dict[DaskKey, Future] = {}
        #: Results that have been fetched because some of their items are yet to be used.
        self._gathered: dict[DaskKey, Any] = {}
        #: Chunks that agents have left to this process, and that were computed.
        self._deferred: dict[str, Any] = {}
        for chunk, value in computation.graph.values.items():
            if chunk in computation.user_futures:
                self._user_futures[value.key] = value
                self.result_of[chunk] = value.key, None
            else:
                self.values[chunk] = value_of(value)

    def is_known(self, chunk: int) -> bool:
        """Say whether a chunk is here, or among the results of a task that has been made."""
        return chunk in self.values or chunk in self.result_of

    def future(self, key: DaskKey) -> Future:
        """Return what stands for a result on the cluster."""
        return self.futures.get(key) or self._user_futures[key]

    def value(self, chunk: int) -> Any:
        """Return the value of a chunk that is here, or has been fetched."""
        if chunk in self.values:
            return self.values[chunk]
        key, item = self.result_of[chunk]
        value = self._gathered[key] if item is None else self._gathered[key][item]
        return resolved(value, self._deferred)

    def fetch(self, chunks: Collection[int]) -> None:
        """Fetch the results that chunks are in, in place of those fetched before."""
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
        """Wait for results, as long as there are the files that they need."""
        if self._progress is None:
            wait_for_results(self._client, futures, self.agents_with_files)
        else:
            wait_for_results(self._client, futures, self.agents_with_files, self._progress.catch_up)

    def compute(self, subtask: Subtask) -> None:
        """Compute a subtask in this process."""
        tokens: frozenset[str] = frozenset()
        with contextlib.ExitStack() as locks:
            for chunk in subtask.chunks:
                wanted = self._requirements.locks.get(chunk, frozenset())
                sources = self._graph.inputs[chunk]
                if tokens and (tokens != wanted or not self._can_be_fetched(sources)):
                    # Nobody is to wait for others while it holds a lock.
                    locks.close()
                    tokens = frozenset()
                self.fetch(sources)
                if tokens != wanted:
                    locks.enter_context(hold_locks(wanted, self._client))
                    tokens = wanted
                if self._progress is not None:
                    self._progress.begin(chunk)
                self.values[chunk] = self._run(chunk)
                if self._progress is not None:
                    self._progress.end(chunk, self.values[chunk], f"process {os.getpid()}")

    def _run(self, chunk: int) -> Any:
        graph = self._graph
        if chunk in self._requirements.once:
            self._begun_once.append(str(graph.keys[chunk]))
        left = 0 if chunk in self._requirements.once else graph.retries.get(chunk, self._retries)
        while True:
            try:
                return run_chunk(graph, chunk, [self.value(source) for source in graph.inputs[chunk]])
            except Exception as error:
                if not left:
                    error.add_note(raised_by(graph, chunk))
                    raise
                left -= 1

    def _can_be_fetched(self, chunks: Collection[int]) -> bool:
        """Say whether results are there, here or elsewhere."""
        missing = [key for key in self._results_with(chunks) if key not in self._gathered]
        return all(self.future(key).done() for key in missing)

    def _results_with(self, chunks: Collection[int]) -> list[DaskKey]:
        """Return the tasks that have those chunks among their results which are not here."""
        return list(dict.fromkeys([self.result_of[chunk][0] for chunk in chunks if chunk not in self.values]))


__all__ = ["LocalTasks"]
