"""Reduces the rows of a timeline to a number that a page can draw."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

#: Row of the worker, start, end, number of the layer, chunks.
Row = tuple[int, float, float, int, int]


def merged(rows: Iterable[Row], most: int) -> list[Row]:
    """Return rows sorted by worker and time, merging neighbours if there are too many."""
    # Neighbours of one layer are merged before all others, those with the smallest gap first. A merged row has the
    # layer that took most time.
    found = sorted(rows)
    surplus = len(found) - most
    if surplus <= 0:
        return found
    gaps = [
        (before[3] != after[3], after[1] - before[2], place)
        for place, (before, after) in enumerate(pairwise(found), 1)
        if before[0] == after[0]
    ]
    return _joined(found, {place for *_, place in heapq.nsmallest(surplus, gaps)})


def _joined(rows: list[Row], places: set[int]) -> list[Row]:
    """Return rows, merging those at some positions into the row before."""
    found: list[Row] = []
    #: Seconds of each layer in the last of `found`.
    spent: defaultdict[int, float] = defaultdict(float)
    for place, row in enumerate(rows):
        worker, start, end, layer, chunks = row
        if place not in places:
            spent.clear()
            spent[layer] = end - start
            found.append(row)
            continue
        _, first, last, _, before = found[-1]
        spent[layer] += end - start
        longest = max(spent, key=lambda one: (spent[one], -one))
        found[-1] = worker, first, max(last, end), longest, before + chunks
    return found
