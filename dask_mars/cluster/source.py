"""How far a computation on a cluster is, as far as the user's process knows."""

from __future__ import annotations

from collections.abc import Sequence

from distributed import Client

from dask_mars.client.records import Blocks, ChunkCounts, LayerCounts
from dask_mars.graph.chunks import ChunkGraph


class ClusterSource:
    """How far a computation on a cluster is.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    graph : ChunkGraph
        What is computed.
    name : str
        Of the computation, as keys of its subtasks have it.
    """

    def __init__(self, client: Client, graph: ChunkGraph, name: str) -> None:
        self._client = client
        self._name = name
        self._total = len(graph) - len(graph.values)

    def counts(self) -> ChunkCounts:
        """Count its chunks."""
        return ChunkCounts(self._total, self._total)

    def layers(self, seconds: float | None = None) -> Sequence[LayerCounts]:
        """Count the chunks of each layer, as far as that is known."""
        return ()

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which: that is not known."""
        return []

    def blocks(self, layer: str) -> Blocks:
        """There are no layers."""
        raise KeyError(layer)

    def explain(self, key: object = None) -> str:
        """Say what it waits for, or why a key of it is not being computed."""
        if key is not None:
            raise KeyError(key)
        return f"the computation goes on at {self._client.scheduler.address}"

    def final(self) -> ClusterSource:
        """Return what is to be remembered when it is over."""
        return self


__all__ = ["ClusterSource"]
