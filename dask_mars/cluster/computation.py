"""A computation on a cluster, as all know it that see to it in the user's process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from distributed import Client, Future

from dask_mars.cluster.planning import AgentInfo
from dask_mars.cluster.requirements import Requirements
from dask_mars.cluster.shuffles import Shuffles
from dask_mars.graph.chunks import ChunkGraph

#: Key of a task of Dask's, ours or the user's.
DaskKey = Hashable


@dataclass(frozen=True, slots=True)
class ClusterComputation:
    """What is computed, and where: all that does not depend on how it is cut into subtasks.

    Attributes
    ----------
    client : Client
        Connected to the cluster.
    graph : ChunkGraph
        What is computed.
    hosts : sequence of AgentInfo
        The agents. Subtasks know them by their place in it.
    name : str
        Tells it from others, also those of other clients.
    retries : int
        How often a task that raises is tried again, where the user has said nothing else of it.
    threads : int
        How many tasks run at a time in the user's process.
    requirements : Requirements
        Of the graph's chunks.
    shuffles : Shuffles
        Those of the graph.
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
    shuffles: Shuffles
    user_futures: Mapping[int, Future]


__all__ = ["ClusterComputation", "DaskKey"]
