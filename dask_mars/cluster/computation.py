"""A computation on a cluster, as the modules of the user's process share it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from distributed import Client, Future

from dask_mars.cluster.planning import AgentInfo
from dask_mars.cluster.requirements import Requirements
from dask_mars.cluster.shuffles import GraphShuffles
from dask_mars.graph.chunks import ChunkGraph

#: Key of a task of Dask's, ours or the user's.
DaskKey = Hashable


@dataclass(frozen=True, slots=True)
class ClusterComputation:
    """A computation and its cluster, independent of the cut into subtasks.

    Attributes
    ----------
    client : Client
        A client connected to the cluster.
    graph : ChunkGraph
        The graph.
    hosts : sequence of AgentInfo
        The agents. Subtasks refer to them by index.
    name : str
        A unique name, also among other clients.
    retries : int
        Retries of a failed task, where the user has set no others.
    threads : int
        Most concurrent tasks in the user's process.
    requirements : Requirements
        Requirements of the graph's chunks.
    shuffles : GraphShuffles
        Shuffles of the graph.
    user_futures : mapping
        The user's own futures, by chunk.
    """

    client: Client
    graph: ChunkGraph
    hosts: Sequence[AgentInfo]
    name: str
    retries: int
    threads: int
    requirements: Requirements
    shuffles: GraphShuffles
    user_futures: Mapping[int, Future]


__all__ = ["ClusterComputation", "DaskKey"]
