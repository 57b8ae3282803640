"""A computation on a cluster, as the modules of the user's process share it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distributed import Client, Future

from dask_mars.client.callbacks import Observer
from dask_mars.client.records import Record
from dask_mars.cluster.planning import AgentInfo
from dask_mars.cluster.requirements import Requirements
from dask_mars.cluster.shuffles import GraphShuffles
from dask_mars.graph.chunks import ChunkGraph

if TYPE_CHECKING:
    from dask_mars.cluster.saving import ClusterSaving

#: Key of a task of Dask's, ours or the user's.
DaskKey = Hashable


@dataclass(slots=True)
class SideEffects:
    """Side effects of a computation that must not happen twice.

    Attributes
    ----------
    sent, begun_here : list of str
        Keys of appending tasks that may have started on the cluster, and that have started in this process.
    """

    sent: list[str] = field(default_factory=list)
    begun_here: list[str] = field(default_factory=list)


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
    record : Record
        The record of the computation, which can cancel it.
    effects : SideEffects
        Records tasks that must not start again.
    observer : Observer or None
        Receives the progress of chunks; not together with `persist`.
    saving : ClusterSaving or None
        Decides what agents save.
    persist : bool
        Whether to leave outputs on the cluster, and to return their futures without waiting.
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
    record: Record
    effects: SideEffects
    observer: Observer | None = None
    saving: ClusterSaving | None = None
    persist: bool = False


__all__ = ["ClusterComputation", "DaskKey", "SideEffects"]
