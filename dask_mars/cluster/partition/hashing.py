"""Consistent hashing, so that few keys move when hosts come or go.

This is rendezvous hashing: every host scores every key, independently of other hosts, and the key goes to the host
with the highest score. A lost host's keys go to the others, and a new host takes keys from all. Scores alone would
give some hosts twice as many keys as others; so each host gets at most its share, the highest scores first.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import mmh3

from dask_mars.scheduler.assigner import shares

_HASHES = 2**64


def share_out(keys: Sequence[str], names: Mapping[int, str], slots: Mapping[int, int]) -> list[int]:
    """Choose a host for each key."""
    left = shares(len(keys), slots, dict.fromkeys(slots, 0))
    ranked = [
        (-score(key, names[host], slots[host]), index, host)
        for index, key in enumerate(keys)
        for host in slots
        if left[host]
    ]
    ranked.sort()
    chosen: dict[int, int] = {}
    for _, index, host in ranked:
        if left[host] and index not in chosen:
            chosen[index] = host
            left[host] -= 1
    return [chosen[index] for index in range(len(keys))]


def score(key: str, name: str, weight: float) -> float:
    """Return the score of a key at a host; the host with the highest score gets the key.

    Without limits each host gets keys in proportion to its weight.
    """
    drawn, _ = mmh3.hash64(f"{name}\0{key}".encode(errors="surrogatepass"), signed=False)
    # In the open interval from 0 to 1: the logarithm is finite and not zero.
    return -weight / math.log((drawn + 0.5) / (_HASHES + 1))
