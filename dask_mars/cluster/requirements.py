"""Requirements of single chunks: cluster-wide locks, running once, files of a host, a Dask thread.

Such a chunk has a subtask of its own, or shares one with its kind: its constraints must not apply to others.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from dask_mars.graph.chunks import DATA, ChunkGraph, Key
from dask_mars.optimize.effects import EffectScanner, callables_of, locks_of, need_distributed
from dask_mars.optimize.known import appends, makes_files


@dataclass(slots=True)
class Requirements:
    """The requirements of a graph's chunks."""

    #: Tokens of cluster-wide locks.
    locks: dict[int, frozenset[str]] = field(default_factory=dict)
    once: set[int] = field(default_factory=set)
    #: Chunks that read or write files on one host: the chunk that creates the directory.
    files: dict[int, int] = field(default_factory=dict)
    #: Chunks that must run within a Dask worker, and so in one of its threads.
    threads: set[int] = field(default_factory=set)

    def chunks(self) -> set[int]:
        """Return the chunks with requirements."""
        return {*self.locks, *self.once, *self.files, *self.threads}

    def kinds(self) -> dict[int, Hashable]:
        """Return the kinds of chunks, which share subtasks only with their kind."""
        found: dict[int, Hashable] = {}
        for chunk in self.chunks():
            alone = chunk if chunk in self.once or chunk in self.threads else None
            found[chunk] = alone, self.files.get(chunk), self.locks.get(chunk)
        return found

    def renumbered(self, new: Mapping[int, int] | Sequence[int]) -> Requirements:
        """Return the requirements with new chunk ids."""
        return Requirements(
            {new[chunk]: tokens for chunk, tokens in self.locks.items()},
            {new[chunk] for chunk in self.once},
            {new[chunk]: new[maker] for chunk, maker in self.files.items()},
            {new[chunk] for chunk in self.threads},
        )


def find_requirements(graph: ChunkGraph) -> Requirements:
    """Return the requirements of a graph's chunks."""
    requirements, with_effects = Requirements(), EffectScanner().with_effects
    parts = [callables_of(operand) for operand in graph.operands]
    of_dask = [need_distributed(values) for values in parts]
    locking = [locks_of(values) for values in parts]
    making = [makes_files(values) for values in parts]
    appending = [appends(operand) for operand in graph.operands]
    values = {chunk: locks for chunk, value in graph.values.items() if (locks := locks_of(with_effects((value,))))}
    quiet = [
        not (of_dask[operand_id] or locking[operand_id] or making[operand_id] or appending[operand_id])
        for operand_id in range(len(graph.operands))
    ]
    for chunk, operand_id in enumerate(graph.operand_of):
        if operand_id == DATA:
            continue
        inputs, literals = graph.inputs[chunk], with_effects(graph.literals[chunk])
        if quiet[operand_id] and not (literals or values or requirements.files):
            continue
        if of_dask[operand_id] or need_distributed(literals):
            requirements.threads.add(chunk)
        if appending[operand_id]:
            requirements.once.add(chunk)
        locks = locking[operand_id].union(locks_of(literals), *[values[at] for at in inputs if at in values])
        if locks:
            requirements.locks[chunk] = locks
        if not inputs and (making[operand_id] or makes_files(literals)):
            requirements.files[chunk] = chunk
            # A second start would create an empty directory, which others would take for a full one.
            requirements.once.add(chunk)
        made = [source for source in inputs if requirements.files.get(source) == source]
        if made:
            requirements.files[chunk] = made[0]
    return requirements


class RequirementsFinder:
    """Finds the requirements of a graph once, although they are needed before and after chunks are merged."""

    def __init__(self) -> None:
        self._found: Requirements | None = None
        #: Keys of the chunks with requirements; unlike ids they do not change.
        self._keys: dict[int, Key] = {}

    def select_unmergeable(self, graph: ChunkGraph) -> Collection[int]:
        """Return the chunks with requirements, which must not be merged with others."""
        self._found = find_requirements(graph)
        self._keys = {chunk: graph.keys[chunk] for chunk in self._found.chunks()}
        return self._keys

    def of(self, graph: ChunkGraph) -> Requirements:
        """Return the requirements of a graph's chunks."""
        if self._found is None:
            return find_requirements(graph)
        # Merged chunks without requirements have none either.
        return self._found.renumbered({chunk: graph.ids[key] for chunk, key in self._keys.items()})
