"""Checkpoints of computations on a cluster: agents save chunks in a directory that all hosts share.

The client restores, as on one machine, and tells each subtask which of its chunks may be saved. Each agent applies
the policy to the subtask alone: its inputs count as saved.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from distributed import Client

from dask_mars.checkpointing.block import CheckpointSettings
from dask_mars.checkpointing.costs import Budget, costs_of
from dask_mars.checkpointing.directory import ComputationDirectory, failed
from dask_mars.checkpointing.facts import facts_of
from dask_mars.checkpointing.saver import ChunkSaver
from dask_mars.checkpointing.session import Session, used_bytes
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.planning import AgentInfo
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.scheduler.events import CLIENT


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """An agent's instructions for saving the chunks of a subtask, with their ids in the subtask."""

    #: Those of the client; the limit is that of this host.
    settings: CheckpointSettings
    identity: str
    exempt: frozenset[int]
    unrepeatable: frozenset[int]


class ClusterSaving:
    """Decides which chunks of subtasks to save."""

    def __init__(self, session: Session, hosts: int) -> None:
        settings = session.settings
        try:
            # Agents do not know the sources, whose changes invalidate a checkpoint.
            session.note()
        except OSError as error:
            raise failed(settings.directory, error) from error
        self._session = session
        left = None
        if settings.limit_bytes is not None:
            left = max(settings.limit_bytes - used_bytes(settings.directory), 0) // hosts
        # The block stays with the client.
        self._settings = settings._replace(limit_bytes=left, block=None)
        #: Id of each chunk in the session's graph, -1 for chunks that are not in it.
        self._fact_ids: list[int] = []
        #: Chunks that run in the user's process or depend on such chunks.
        self._tainted = bytearray()

    def cut(self, graph: ChunkGraph, subtasks: Sequence[Subtask]) -> None:
        """Record how the graph was cut."""
        # Side effects in the user's process end with it, so that chunks there and their dependents are not saved.
        known = self._session.graph.ids
        self._fact_ids = [known.get(key, -1) for key in graph.keys]
        tainted = self._tainted = bytearray(len(graph))
        for subtask in subtasks:
            if subtask.host == CLIENT:
                for chunk in subtask.chunks:
                    tainted[chunk] = 1
        if any(tainted):
            for chunk, inputs in enumerate(graph.inputs):
                if any(map(tainted.__getitem__, inputs)):
                    tainted[chunk] = 1

    def order(self, members: Sequence[int]) -> SaveOrder:
        """Return the instructions for the agent of a subtask."""
        facts, fact_ids = self._session.facts, self._fact_ids
        exempt, unrepeatable = set(), set()
        for place, chunk in enumerate(members):
            fact_id = fact_ids[chunk]
            if fact_id < 0 or facts.exempt[fact_id] or self._tainted[chunk]:
                exempt.add(place)
            if fact_id in facts.unrepeatable:
                unrepeatable.add(place)
        return SaveOrder(self._settings, self._session.identity, frozenset(exempt), frozenset(unrepeatable))


def saver_for(order: SaveOrder, graph: ChunkGraph) -> ChunkSaver | None:
    """Return a saver for a subtask in an agent, None if the directory does not exist here."""
    settings = order.settings
    directory = ComputationDirectory(settings.directory, order.identity)
    # The client has created it.
    if not directory.path.is_dir():
        return None
    facts = facts_of(graph, trusts_targets=settings.trusts_targets)
    for chunk in order.exempt:
        facts.exempt[chunk] = 1
    facts = facts._replace(forced=facts.forced | order.unrepeatable, unrepeatable=order.unrepeatable)
    budget = _budget(settings, order.identity)
    return ChunkSaver(graph, facts, directory, settings.share, budget, costs_of(settings.directory))


@lru_cache(16)
def _budget(settings: CheckpointSettings, identity: str) -> Budget:
    return Budget(settings.limit_bytes, lambda: 0, settings.directory / identity, settings.spare_bytes)


def unshared_with(client: Client, hosts: Sequence[AgentInfo], directory: Path) -> list[str]:
    """Return the names of the agents that do not see a directory of this process."""
    token = directory / f".{secrets.token_hex(8)}.seen"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        token.touch()
    except OSError as error:
        raise failed(directory, error) from error
    try:
        addresses = [host.address for host in hosts]
        seen = client.run(os.path.exists, str(token), workers=addresses, on_error="return")
    finally:
        token.unlink(missing_ok=True)
    # A lost agent sees no directory, but computes nothing either.
    return [host.name for host in hosts if seen.get(host.address, True) is False]
