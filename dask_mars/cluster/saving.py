"""Checkpoints of computations on a cluster: agents save what they compute, in a directory that all hosts share.

The client restores, as on one machine, and sends along with each subtask what of it may be saved. Each agent
decides by the policy, for the subtask alone: what others have computed for it counts as saved.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from distributed import Client

from dask_mars.checkpointing.block import Budget
from dask_mars.checkpointing.costs import MeasuredCosts
from dask_mars.checkpointing.directory import ComputationDirectory, failed
from dask_mars.checkpointing.facts import facts_of
from dask_mars.checkpointing.saver import Saver
from dask_mars.checkpointing.session import Session
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.planning import AgentInfo
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.scheduler.events import CLIENT


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """What an agent is told of a subtask whose chunks are to be saved. Chunks are numbered as in the subtask.

    Attributes
    ----------
    root : str
        The directory that the user has named.
    identity : str
        Of the computation.
    share : float
        Of the time, what saving may take.
    limit_bytes : int or None
        How many bytes this host may write for the computation; None for any.
    spare_bytes : int
        What is to stay free on the disk.
    trusts_targets : bool
        As in `CheckpointSettings`.
    exempt : frozenset of int
        Chunks that must not be saved.
    unrepeatable : frozenset of int
        Chunks that must not be begun twice.
    saves, joined_bytes : dict
        As in a `ChunkGraph`.
    """

    root: str
    identity: str
    share: float
    limit_bytes: int | None
    spare_bytes: int
    trusts_targets: bool
    exempt: frozenset[int]
    unrepeatable: frozenset[int]
    saves: Mapping[int, bool]
    joined_bytes: Mapping[int, int]


class ClusterSaving:
    """Says of subtasks what is to be saved of them.

    Parameters
    ----------
    session : Session
        The computation's.
    hosts : int
        How many there are, which share what may be written.

    Raises
    ------
    CheckpointFailed
        The directory cannot be written to.
    """

    def __init__(self, session: Session, hosts: int) -> None:
        settings = self._settings = session.settings
        try:
            # Agents know of no sources, whose changes make what they save worthless.
            session.note()
        except OSError as error:
            raise failed(settings.directory, error) from error
        self._session = session
        left = None
        if settings.limit_bytes is not None:
            left = max(settings.limit_bytes - session.used_bytes(), 0) // hosts
        self._limit_bytes = left
        #: Of the chunks of the graph that was cut: their numbers in the session's, -1 for those that it has not.
        self._numbers: list[int] = []
        #: Which of them have to do with the user's process.
        self._tainted = bytearray()

    def cut(self, graph: ChunkGraph, subtasks: Sequence[Subtask]) -> None:
        """Take note of how the graph has been cut.

        What runs in the user's process may do something there, which goes with it, so that what comes after that
        is not saved.
        """
        known = self._session.graph.ids
        self._numbers = [known.get(key, -1) for key in graph.keys]
        tainted = self._tainted = bytearray(len(graph))
        for subtask in subtasks:
            if subtask.host == CLIENT:
                for chunk in subtask.chunks:
                    tainted[chunk] = 1
        if any(tainted):
            for chunk, inputs in enumerate(graph.inputs):
                if any(map(tainted.__getitem__, inputs)):
                    tainted[chunk] = 1

    def order(self, graph: ChunkGraph, members: Sequence[int]) -> SaveOrder:
        """Return what the agent of a subtask is told.

        Parameters
        ----------
        graph : ChunkGraph
            As it was cut.
        members : sequence of int
            The chunks of the subtask, and those that it reads, in the order in which they are numbered there.
        """
        settings, facts, numbers = self._settings, self._session.facts, self._numbers
        exempt, unrepeatable = set(), set()
        for place, chunk in enumerate(members):
            number = numbers[chunk]
            if number < 0 or facts.exempt[number] or self._tainted[chunk]:
                exempt.add(place)
            if number in facts.unrepeatable:
                unrepeatable.add(place)
        return SaveOrder(
            root=str(settings.directory),
            identity=self._session.identity,
            share=settings.share,
            limit_bytes=self._limit_bytes,
            spare_bytes=settings.spare_bytes,
            trusts_targets=settings.trusts_targets,
            exempt=frozenset(exempt),
            unrepeatable=frozenset(unrepeatable),
            saves={place: graph.saves[chunk] for place, chunk in enumerate(members) if chunk in graph.saves},
            joined_bytes={
                place: graph.joined_bytes[chunk]
                for place, chunk in enumerate(members)
                if chunk in graph.joined_bytes
            },
        )


def saver_for(order: SaveOrder, graph: ChunkGraph) -> Saver | None:
    """Return what saves chunks of a subtask in an agent, None if the directory is not to be found here."""
    directory = ComputationDirectory(Path(order.root), order.identity)
    # The client has made it.
    if not directory.path.is_dir():
        return None
    graph.saves, graph.joined_bytes = dict(order.saves), dict(order.joined_bytes)
    facts = facts_of(graph, trusts_targets=order.trusts_targets)
    for chunk in order.exempt:
        facts.exempt[chunk] = 1
    facts = facts._replace(forced=facts.forced | order.unrepeatable, unrepeatable=order.unrepeatable)
    budget = _budget(order.root, order.identity, order.limit_bytes, order.spare_bytes)
    return Saver(graph, facts, directory, order.share, budget, _costs(order.root))


@lru_cache(16)
def _budget(root: str, identity: str, limit_bytes: int | None, spare_bytes: int) -> Budget:
    return Budget(limit_bytes, lambda: 0, Path(root) / identity, spare_bytes)


@lru_cache(16)
def _costs(root: str) -> MeasuredCosts:
    return MeasuredCosts()


def unshared_with(client: Client, hosts: Sequence[AgentInfo], directory: Path) -> list[str]:
    """Return the names of the agents that do not see a directory of this process's.

    Raises
    ------
    CheckpointFailed
        It cannot be written to.
    """
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
    # One that is lost meanwhile sees nothing, and computes nothing either.
    return [host.name for host in hosts if seen.get(host.address, True) is False]


__all__ = ["ClusterSaving", "SaveOrder", "saver_for", "unshared_with"]
