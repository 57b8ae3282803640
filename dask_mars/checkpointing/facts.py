"""Classifies chunks for checkpointing: never saved, always saved, side effects."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from dask_mars.checkpointing.locations import Location, zarr_location
from dask_mars.checkpointing.stores import StoredRegion, regions, store_calls
from dask_mars.dask_api.arrays import finalize
from dask_mars.graph.callables import called_by, full_name
from dask_mars.graph.chunks import DATA, ChunkGraph, Key
from dask_mars.optimize.known import WRITERS, appends, makes_files, unfolded
from dask_mars.worker.shuffle import MAPS


class Facts(NamedTuple):
    """Facts about a graph's chunks."""

    #: Chunks that are never saved: those that write to unverifiable targets, such as the memory of the user's
    #: process, and their dependents.
    exempt: bytearray
    #: Chunks that are saved at any cost: stores, whose results are small, and chunks that the user has annotated.
    forced: frozenset[int]
    unrepeatable: frozenset[int]
    #: Regions that chunks write to verifiable targets.
    stores: Mapping[int, list[StoredRegion]]
    #: The exempt chunks whose dependents are exempt too.
    taints: frozenset[int]
    #: Targets of stores, as far as known.
    written: frozenset[Location]


class _Kinds(NamedTuple):
    """Ids of operands by effect."""

    tainting: frozenset[int]
    beginning: frozenset[int]
    exempt: frozenset[int]
    appending: frozenset[int]
    storing: frozenset[int]


#: The kinds of graphs without side effects.
_ORDINARY = _Kinds(*[frozenset[int]()] * 5)


def facts_of(graph: ChunkGraph, sources: Collection[Location] = (), trusts_targets: bool = False) -> Facts:
    """Return the facts about a graph."""
    kinds = _kinds(graph)
    calls = {operand_id: store_calls(graph.operands[operand_id]) for operand_id in kinds.storing}
    stores: dict[int, list[StoredRegion]] = {}
    taints: set[int] = set()
    unrepeatable: set[int] = set()
    exempt = bytearray([operand_id == DATA for operand_id in graph.operand_of])
    forced = {chunk for chunk, is_saved in graph.saves.items() if is_saved}
    roots: dict[int, Path | None] = {}
    targets: dict[int, Location | None] = {}
    read = frozenset(sources)
    is_special = kinds != _ORDINARY or graph.in_client
    for chunk, operand_id in enumerate(graph.operand_of) if is_special else ():
        if operand_id in kinds.tainting or chunk in graph.in_client:
            taints.add(chunk)
        elif operand_id in kinds.exempt:
            exempt[chunk] = 1
        if operand_id in kinds.appending:
            unrepeatable.add(chunk)
        if operand_id in kinds.storing and chunk not in taints:
            found = list(regions(graph, chunk, calls[operand_id]))
            known = [region for region in found if region is not None]
            for region in known:
                if id(region.target) not in roots:
                    roots[id(region.target)] = root = region.root()
                    targets[id(region.target)] = zarr_location(region.target) if root is None else root
            if not read.isdisjoint([targets[id(region.target)] for region in known]):
                # A second start would read its own output.
                unrepeatable.add(chunk)
            if len(known) == len(found) and None not in [roots[id(region.target)] for region in known]:
                stores[chunk] = known
            elif trusts_targets:
                stores[chunk] = []
            else:
                taints.add(chunk)
    begun_anew = {chunk for chunk in taints if graph.operand_of[chunk] in kinds.beginning}
    _spread(graph, begun_anew)
    _spread(graph, taints)
    if taints:
        for chunk in taints:
            exempt[chunk] = 1
    for chunk, is_saved in graph.saves.items():
        exempt[chunk] |= not is_saved
    # A chunk that appends to a file may start again if the file is created anew each time.
    unrepeatable -= begun_anew
    forced |= unrepeatable | stores.keys()
    written = frozenset([target for target in targets.values() if target is not None])
    return Facts(exempt, frozenset(forced), frozenset(unrepeatable), stores, frozenset(taints), written)


def _kinds(graph: ChunkGraph) -> _Kinds:
    tainting, beginning, exempt, appending, storing = set(), set(), set(), set(), set()
    for operand_id, operand in enumerate(graph.operands):
        functions = [called_by(function) for function in unfolded(operand.functions)]
        if operand.functions[-1] is finalize:
            exempt.add(operand_id)
        elif appends(operand):
            appending.add(operand_id)
            if operand.in_client:
                # Only results of workers are saved.
                tainting.add(operand_id)
        elif makes_files(functions) or any(full_name(function) in WRITERS for function in functions):
            tainting.add(operand_id)
            beginning.add(operand_id)
        elif operand.in_client:
            tainting.add(operand_id)
        elif any(id(function) in MAPS for function in functions):
            # Map outputs have a format of their own, of which readers take parts.
            exempt.add(operand_id)
        elif store_calls(operand):
            storing.add(operand_id)
    return _Kinds(*map(frozenset, (tainting, beginning, exempt, appending, storing)))


def _spread(graph: ChunkGraph, taints: set[int]) -> None:
    """Add the dependents of chunks, which have larger ids."""
    first = min(taints, default=len(graph))
    for chunk in range(first, len(graph)):
        if chunk not in taints and not taints.isdisjoint(graph.inputs[chunk]):
            taints.add(chunk)


def begun_before(facts: Facts, keys: list[Key], begun: Collection[Key], saved: Collection[int]) -> Key | None:
    """Return the key of a chunk that must not start again but did start, None if there is none."""
    for chunk in sorted(facts.unrepeatable):
        if chunk not in saved and keys[chunk] in begun:
            return keys[chunk]
    return None
