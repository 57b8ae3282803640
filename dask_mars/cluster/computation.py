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

#: Key of a Dask task: of a subtask, or of the user's own task.
DaskKey = Hashable


@dataclass(slots=True)
class SideEffects:
    """Side effects of a computation that must not happen twice."""

    #: Keys of appending tasks that may have started on the cluster, and that have started in this process.
    sent: list[str] = field(default_factory=list)
    begun_here: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ClusterComputation:
    """A computation and its cluster, independent of the cut into subtasks."""

    client: Client
    graph: ChunkGraph
    #: The agents. Subtasks refer to them by index.
    hosts: Sequence[AgentInfo]
    #: A unique name, also among other clients.
    name: str
    retries: int
    #: Maximum number of concurrent tasks in the user's process.
    threads: int
    requirements: Requirements
    shuffles: GraphShuffles
    #: The user's own futures, by chunk.
    user_futures: Mapping[int, Future]
    #: The record of the computation, which can cancel it.
    record: Record
    effects: SideEffects
    #: Receives the progress of chunks; not together with `persist`.
    observer: Observer | None = None
    saving: ClusterSaving | None = None
    #: Whether to leave outputs on the cluster, and to return their futures without waiting.
    persist: bool = False
    #: The keys of these outputs in the user's collection.
    output_keys: Mapping[int, DaskKey] = field(default_factory=dict)
