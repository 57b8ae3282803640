"""The backend for clusters, and the choice of the cluster."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client, Future, get_worker

from dask_mars.checkpointing.restore import restored
from dask_mars.client.backend import GraphBackend, RestartComputation, Work
from dask_mars.client.callbacks import Observer, TellOnce
from dask_mars.client.records import Record, Records
from dask_mars.client.request import Options, Request
from dask_mars.cluster.computation import SideEffects
from dask_mars.cluster.distributed_api import FutureCancelledError
from dask_mars.cluster.marks import CANCELLED_ON_PAGE
from dask_mars.cluster.planning import AgentInfo, slots_to_come
from dask_mars.cluster.reconnection import (
    HOW_TO_RECONNECT,
    Reconnection,
    SchedulerConnection,
    close_successors,
    cluster_behind,
    is_of_lost_scheduler,
    may_come_back,
    patience_s,
    refuse_lost,
)
from dask_mars.cluster.requirements import RequirementsFinder, find_requirements
from dask_mars.cluster.runtime import ClusterRuntime
from dask_mars.cluster.submission import run_on_cluster
from dask_mars.errors import BegunBefore, Cancelled, FuturesLost, NoAgents, SchedulerLost
from dask_mars.graph.chunks import ChunkGraph, Key
from dask_mars.locking import Lock
from dask_mars.optimize.declarations import annotate_all
from dask_mars.optimize.passes import Limits
from dask_mars.optimize.prepare import PrepareOptions
from dask_mars.store.persisted import value_of

if TYPE_CHECKING:
    from dask_mars.checkpointing.block import CheckpointSettings

_lock = Lock()
#: Maximum number of times that one computation may lose its scheduler, which the computation may have ended.
_ALLOWED_LOSSES = 10
#: States of futures that need no computation: Dask's scheduler does not repeat a failed one either.
_VALID = ("pending", "finished", "error")
#: Clients that were made because the configuration names a scheduler, by its address.
_clients: dict[str, Client] = {}

#: Current clients without agents, about which the user has been warned.
_ignored: weakref.WeakSet[Client] = weakref.WeakSet()


def connect(address: str) -> Client:
    """Return a client of the scheduler at an address; the first call connects it."""
    with _lock:
        client = _clients.get(address)
        if client is None or client.status != "running":
            client = _clients[address] = Client(address, set_as_default=False)
        return client


class ClusterBackend(GraphBackend):
    """Computes on a cluster with its current agents."""

    is_remote = True

    def __init__(self, client: Client, hosts: list[AgentInfo], records: Records | None = None) -> None:
        super().__init__(records)
        self._client = client
        self._hosts = hosts
        self._requirements = RequirementsFinder()
        #: Number of scheduler losses in this computation, and the observer of its chunks.
        self._losses = 0
        self._told: TellOnce | None = None

    def compute(self, request: Request) -> Any:
        """Return the requested values, without waiting for persisted ones; see `Backend`."""
        # Callbacks would never finish: no call waits for persisted results.
        options = request.options._replace(callbacks=()) if request.persist else request.options
        return super().compute(request._replace(options=options))

    def _compute(self, request: Request, record: Record) -> Any:
        self._losses, self._told = 0, None
        if not self._hosts:
            waiting = Reconnection(SchedulerConnection(self._client), patience_s(self._client))
            self._client, self._hosts = waiting.wait(record)
        return super()._compute(request, record)

    def _is_saved(self, work: Work, checkpoint: CheckpointSettings) -> bool:
        if work.request.persist:
            # Files could not be removed: no call waits for the end.
            return False
        # A new submission within this call has the same keys, even random ones.
        if not patience_s(self._client) and not super()._is_saved(work, checkpoint):
            return False
        if unshared := self._unshared(checkpoint.directory, work):
            warnings.warn(
                f"{checkpoint.directory} is not there on {', '.join(unshared)}: a checkpoint of what a cluster "
                "computes needs a directory that all hosts share. Nothing is saved",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        return True

    def prepare_options(self, options: Options) -> PrepareOptions:
        """Return the options for preparing graphs."""
        slots = sum([host.slots for host in self._hosts]) + slots_to_come(self._client.cluster, self._hosts)
        return PrepareOptions(Limits(slots, recomputes=True), self._future, self._unmergeable)

    def runtime(self, records: Records) -> ClusterRuntime:
        """Return a view of the cluster and of this process's computations."""
        return ClusterRuntime(self._client, records)

    def _future(self, key: Key) -> Future | None:
        # Dask leaves futures out of some graphs, because its own scheduler knows their keys.
        return Future(key, self._client) if key in self._client.futures else None

    def _unmergeable(self, graph: ChunkGraph) -> Collection[int]:
        return {*self._requirements.select_unmergeable(graph), *self._known(graph)}

    def _known(self, graph: ChunkGraph) -> dict[int, Future]:
        """Return futures of chunks with keys of the user's futures; Dask's scheduler computes each key once."""
        client, known = self._client, self._client.futures
        if not known:
            return {}
        return {
            chunk: Future(key, client)
            for chunk, key in enumerate(graph.keys)
            if graph.operand_of[chunk] >= 0 and (state := known.get(key)) and state.status in _VALID
        }

    def _values(self, work: Work) -> Mapping[int, Any]:
        if not (known := self._known(work.graph)):
            return super()._values(work)
        left = work._replace(graph=restored(work.graph, known, {}, value_of))
        self._requirements = RequirementsFinder()
        values = super()._values(left)
        return {chunk: values[other] for chunk, other in zip(work.graph.outputs, left.graph.outputs, strict=True)}

    def run(self, work: Work) -> dict[int, Any]:
        """Compute a graph; see `GraphBackend.run`."""
        refuse_lost(work.graph.values.values(), self._client)
        annotate_all(work.graph, dask.get_annotations())
        timeout_s = patience_s(self._client, is_saved=work.session is not None)
        saving = None
        if work.session is not None:
            # Few computations are saved.
            from dask_mars.cluster.saving import ClusterSaving

            # Saved chunks have no requirements.
            requirements = find_requirements(work.graph)
            saving = ClusterSaving(work.session, len(self._hosts))
        else:
            requirements = self._requirements.of(work.graph)
        observer: Observer | None = work.observer
        if work.observer is not None and timeout_s:
            observer = self._told = self._told or TellOnce(work.observer)
        while True:
            connection = SchedulerConnection(self._client)
            effects = SideEffects()
            try:
                return run_on_cluster(self._client, self._hosts, requirements, work, observer, effects, saving)
            except Exception as error:
                if isinstance(error, FutureCancelledError) and CANCELLED_ON_PAGE in str(error):
                    raise Cancelled(work.record.id) from None
                if not timeout_s and is_of_lost_scheduler(error):
                    error.add_note(HOW_TO_RECONNECT)
                if not timeout_s or not connection.was_lost(error):
                    raise
                self._reconnect(connection, work, timeout_s, effects, error)
            if work.session is not None:
                raise RestartComputation

    def _unshared(self, directory: Path, work: Work) -> list[str]:
        """Return the names of the agents that do not see a directory."""
        from dask_mars.cluster.saving import unshared_with

        while True:
            connection = SchedulerConnection(self._client)
            try:
                return unshared_with(self._client, self._hosts, directory)
            except Exception as error:
                timeout_s = patience_s(self._client, is_saved=True)
                if not timeout_s or not connection.was_lost(error):
                    raise
                self._reconnect(connection, work, timeout_s, SideEffects(), error)

    def _reconnect(
        self, connection: SchedulerConnection, work: Work, timeout_s: float, effects: SideEffects, error: Exception
    ) -> None:
        """Wait for a lost scheduler, if the computation may start again."""
        work.record.raise_if_cancelled()
        self._losses += 1
        # A checkpoint records starts on the cluster.
        begun = effects.begun_here if work.session is not None else effects.begun_here + effects.sent
        if begun:
            raise BegunBefore(begun[0]) from error
        if futures := [value for value in work.graph.values.values() if isinstance(value, Future)]:
            raise FuturesLost(str(futures[0].key), "the scheduler that knew of them was lost") from error
        if self._losses > _ALLOWED_LOSSES:
            reason = "is not waited for again: the computation may be what ends it"
            raise SchedulerLost(connection.address, reason, self._losses) from error
        reconnection = Reconnection(connection, timeout_s, self._losses, len(self._hosts))
        self._client, self._hosts = reconnection.wait(work.record)


def cluster_of(client: Client, records: Records | None = None) -> ClusterBackend:
    """Return the backend for a client's cluster."""
    if not isinstance(client, Client):
        raise TypeError(f"'client' is a distributed.Client, and not {client!r}")
    if client.asynchronous:
        raise ValueError("dask_mars.get waits for its result, and needs a Client that is not asynchronous")
    client, hosts = cluster_behind(client)
    if not hosts and not may_come_back(client):
        raise NoAgents(client.scheduler.address)
    return ClusterBackend(client, hosts, records)


def is_in_task() -> bool:
    """Return whether this is a task, which must not wait for tasks that its own worker may have to compute."""
    try:
        get_worker()
    except ValueError:
        return False
    return True


def current_cluster(records: Records | None = None) -> ClusterBackend | None:
    """Return the cluster of the user's current client, if it has agents and this thread may wait for it."""
    if is_in_task():
        return None
    try:
        client = Client.current()
    except ValueError:
        return None
    if client.asynchronous:
        return None
    client, hosts = cluster_behind(client)
    if hosts or may_come_back(client):
        return ClusterBackend(client, hosts, records)
    if client.status == "running" and client not in _ignored:
        _ignored.add(client)
        warnings.warn(
            f"no worker of the current client's cluster, {client.scheduler.address}, is one of dask_mars: "
            "dask_mars.get computes in this process. dask_mars.take_over(client) turns its workers into such",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


def close() -> None:
    """Close the clients that `connect` and reconnections have created."""
    close_successors()
    with _lock:
        for client in _clients.values():
            client.close()
        _clients.clear()
