"""What is to be known of chunks before they are saved: which must not be, which have to be, which write where."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dask_mars.checkpointing.elsewhere import Source, zarr_source
from dask_mars.checkpointing.stores import StoredRegion, regions, store_calls
from dask_mars.dask_api.arrays import finalize
from dask_mars.dask_api.paths import WRITERS
from dask_mars.graph.callables import called_by, full_name
from dask_mars.graph.chunks import DATA, ChunkGraph, Key, Operand, Subprogram
from dask_mars.optimize.effects import appends, makes_files
from dask_mars.worker.shuffle import map_bag, map_frame


class Facts(NamedTuple):
    """What is known of a graph's chunks.

    Attributes
    ----------
    exempt : bytearray
        Which chunks are not saved: those that write where nobody could say that it is still there, such as the
        memory of the user's process, and all that depends on them.
    forced : frozenset of int
        Those that are saved whatever that costs: stores, whose results are small, and what the user has annotated.
    unrepeatable : frozenset of int
        Those that are not to be begun twice.
    stores : dict
        What chunks write to targets of which proof can be had.
    taints : frozenset of int
        Those of the exempt that make those exempt which depend on them.
    written : frozenset of Path or Elsewhere
        Where stores write to, as far as that can be told.
    """

    exempt: bytearray
    forced: frozenset[int]
    unrepeatable: frozenset[int]
    stores: Mapping[int, list[StoredRegion]]
    taints: frozenset[int]
    written: frozenset[Source]


class _Kinds(NamedTuple):
    """Operands by what they do, by their numbers."""

    tainting: frozenset[int]
    beginning: frozenset[int]
    exempt: frozenset[int]
    appending: frozenset[int]
    storing: frozenset[int]


#: Of graphs whose operands only return something.
_ORDINARY = _Kinds(*[frozenset[int]()] * 5)


def facts_of(graph: ChunkGraph, sources: Collection[Source] = (), trusts_targets: bool = False) -> Facts:
    """Look at a graph.

    Parameters
    ----------
    graph : ChunkGraph
        Prepared.
    sources : collection of Path or Elsewhere, optional
        What it reads; what it also writes is not to be begun twice.
    trusts_targets : bool, optional
        What was written to targets of which there is no proof counts as written: nobody makes them anew.
    """
    kinds = _kinds(graph)
    calls = {number: store_calls(graph.operands[number]) for number in kinds.storing}
    stores: dict[int, list[StoredRegion]] = {}
    taints: set[int] = set()
    unrepeatable: set[int] = set()
    exempt = bytearray([number == DATA for number in graph.operand_of])
    forced = {chunk for chunk, wanted in graph.saves.items() if wanted}
    roots: dict[int, Path | None] = {}
    targets: dict[int, Source | None] = {}
    read = frozenset(sources)
    is_special = kinds != _ORDINARY or graph.in_client
    for chunk, number in enumerate(graph.operand_of) if is_special else ():
        if number in kinds.tainting or chunk in graph.in_client:
            taints.add(chunk)
        elif number in kinds.exempt:
            exempt[chunk] = 1
        if number in kinds.appending:
            unrepeatable.add(chunk)
        if number in kinds.storing and chunk not in taints:
            found = list(regions(graph, chunk, calls[number]))
            known = [region for region in found if region is not None]
            for region in known:
                if id(region.target) not in roots:
                    roots[id(region.target)] = root = region.root()
                    targets[id(region.target)] = zarr_source(region.target) if root is None else root
            if not read.isdisjoint([targets[id(region.target)] for region in known]):
                # What it reads is no more once it has written.
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
    for chunk, wanted in graph.saves.items():
        exempt[chunk] |= not wanted
    # What appends to files that others begin anew each time may be begun again with them.
    unrepeatable -= begun_anew
    forced |= unrepeatable | stores.keys()
    written = frozenset([target for target in targets.values() if target is not None])
    return Facts(exempt, frozenset(forced), frozenset(unrepeatable), stores, frozenset(taints), written)


def _kinds(graph: ChunkGraph) -> _Kinds:
    tainting, beginning, exempt, appending, storing = set(), set(), set(), set(), set()
    for number, operand in enumerate(graph.operands):
        functions = list(_called(operand))
        if operand.functions[-1] is finalize:
            exempt.add(number)
        elif appends(operand):
            appending.add(number)
            if operand.in_client:
                # Workers' results alone are saved.
                tainting.add(number)
        elif makes_files(functions) or any(_writes(function) for function in functions):
            tainting.add(number)
            beginning.add(number)
        elif operand.in_client:
            tainting.add(number)
        elif any(function is map_bag or function is map_frame for function in functions):
            # A map output has a form of its own, of which its readers take parts.
            exempt.add(number)
        elif store_calls(operand):
            storing.add(number)
    return _Kinds(*map(frozenset, (tainting, beginning, exempt, appending, storing)))


def _called(operand: Operand) -> list[object]:
    found: list[object] = []
    for function in operand.functions:
        if isinstance(function, Subprogram):
            found += _called(function.operand)
        else:
            found.append(called_by(function))
    return found


def _writes(function: object) -> bool:
    if function is np.save or function is np.savez:
        return True
    return full_name(function) in WRITERS


def _spread(graph: ChunkGraph, taints: set[int]) -> None:
    """Add what depends on chunks: their inputs have smaller numbers."""
    first = min(taints, default=len(graph))
    for chunk in range(first, len(graph)):
        if chunk not in taints and not taints.isdisjoint(graph.inputs[chunk]):
            taints.add(chunk)


def begun_before(facts: Facts, keys: list[Key], begun: Collection[Key], saved: Collection[int]) -> Key | None:
    """Return the key of a chunk that must not be begun again, None if there is none."""
    for chunk in sorted(facts.unrepeatable):
        if chunk not in saved and keys[chunk] in begun:
            return keys[chunk]
    return None


__all__ = ["Facts", "begun_before", "facts_of"]
