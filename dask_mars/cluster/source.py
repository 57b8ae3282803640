"""Progress of a computation on a cluster, as the agents report it to the user's process."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Client

from dask_mars.client.callbacks import Observer
from dask_mars.client.tracking import FinalSource, Last
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.locking import Lock
from dask_mars.observe.counts import BlockStates, ChunkCounts, LayerCounts
from dask_mars.observe.layers import LayerIndex, blocks_of, edges_of


class ClusterSource:
    """Progress of a computation on a cluster; an observer of the agents' reports."""

    wants_tasks, values_wanted = True, False

    def __init__(self, client: Client, graph: ChunkGraph, observer: Observer | None = None) -> None:
        self._client = client
        self._graph = graph
        self._observer = observer if observer is not None and observer.wants_tasks else None
        self.in_order = self._observer is not None and self._observer.in_order
        self._total = sum([operand >= 0 for operand in graph.operand_of])
        self._index = LayerIndex(graph.keys, graph.operand_of)
        self._lock = Lock()
        self._running: set[int] = set()
        self._finished = 0
        #: Duration of each chunk; 0 for computed ones without a report.
        self._durations_s = array("f", [-1.0]) * len(graph)
        self._took_s: dict[int, float] = {}

    # -- reports --------------------------------------------------------------------------------------------------

    def begun(self, graph: ChunkGraph, chunks: Sequence[int]) -> None:
        """Report that chunks were dispatched."""
        with self._lock:
            self._running.update([chunk for chunk in chunks if self._durations_s[chunk] < 0])
        if self._observer is not None:
            self._observer.begun(graph, chunks)

    def took(self, chunk: int, seconds: float) -> None:
        """Report the duration of a chunk, before its end is reported."""
        with self._lock:
            if self._durations_s[chunk] < 0:
                self._took_s[chunk] = seconds
            elif not self._durations_s[chunk]:
                # The chunk's end was reported first.
                self._durations_s[chunk] = seconds

    def ended(self, graph: ChunkGraph, chunks: Sequence[int], values: Mapping[int, Any], worker: Any) -> None:
        """Report that chunks were computed."""
        with self._lock:
            self._running.difference_update(chunks)
            for chunk in chunks:
                if self._durations_s[chunk] < 0 <= graph.operand_of[chunk]:
                    self._durations_s[chunk] = self._took_s.pop(chunk, 0.0)
                    self._finished += 1
        if self._observer is not None:
            self._observer.ended(graph, chunks, values, worker)

    # -- progress -------------------------------------------------------------------------------------------------

    def counts(self) -> ChunkCounts:
        """Count its chunks."""
        with self._lock:
            running, finished = len(self._running), self._finished
        return ChunkCounts(self._total, self._total - running - finished, running, finished)

    def layers(self) -> Sequence[LayerCounts]:
        """Count the chunks of each layer."""
        return self._index.count(self._durations_s, self._no_bytes(), self._active())

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which, by their indices in `layers`."""
        return edges_of(self._index, self._graph.inputs)

    def blocks(self, layer: str) -> BlockStates:
        """Return the blocks of a layer."""
        return blocks_of(self._index, layer, self._durations_s, self._active())

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Return what it waits for, or why a key is not computed."""
        where = f"the cluster at {self._client.scheduler.address}"
        if key is None:
            counts = self.counts()
            return (
                f"{where} computes it: {counts.finished} of {counts.total} chunks are computed, "
                f"{counts.running} are dispatched to agents"
            )
        chunk = self._graph.ids.get(key)
        if chunk is None:
            raise KeyError(key)
        if self._durations_s[chunk] >= 0 or self._graph.operand_of[chunk] < 0:
            return f"{key!r} is computed"
        if chunk in self._active():
            return f"{key!r} is dispatched to an agent of {where}"
        missing = [source for source in self._graph.inputs[chunk] if self._durations_s[source] < 0]
        inputs = [repr(self._graph.keys[source]) for source in missing if self._graph.operand_of[source] >= 0]
        if inputs:
            return f"{key!r} waits for {len(inputs)} of its inputs, among them {inputs[0]}"
        return f"{key!r} waits for an agent of {where}"

    def final(self, is_finished: bool) -> FinalSource:
        """Return the progress at the end, without the graph."""
        durations_s = self._durations_s
        if is_finished:
            # Some chunks were never reported.
            known = zip(self._durations_s, self._graph.operand_of, strict=True)
            durations_s = array("f", [max(took_s, 0.0) if operand >= 0 else -1.0 for took_s, operand in known])
        return FinalSource(Last(self._total, self._index, durations_s, self._no_bytes(), (), self._graph.inputs))

    def _active(self) -> list[int]:
        with self._lock:
            return list(self._running)

    def _no_bytes(self) -> array[int]:
        return array("q", bytes(8 * len(self._graph)))
