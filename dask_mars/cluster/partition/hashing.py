"""Consistent hashing: which host has what, so that little moves when hosts come or go.

Every host scores every key, whatever other hosts there are, and a key goes to the host whose score is highest:
rendezvous hashing. A host that goes takes nothing with it but its own keys, and one that comes gets keys from all.
Left to the scores alone some hosts would get twice as much as others; so each takes its share and no more, and the
highest scores come first.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import mmh3

from dask_mars.scheduler.assigner import shares

_HASHES = 2**64


def share_out(
    keys: Sequence[str], names: Mapping[int, str], slots: Mapping[int, int], loads: Mapping[int, int] | None = None
) -> list[int]:
    """Choose a host for each key.

    Parameters
    ----------
    keys : sequence of str
        What is to be placed; equal keys have equal scores.
    names : mapping
        By host, what stands for it in hashes: the same each time that the host joins a cluster.
    slots : mapping
        How many things each host does at the same time, by host. Shares are in proportion to that.
    loads : mapping, optional
        How many keys hosts have already.

    Returns
    -------
    list of int
        Host of each key.
    """
    left = shares(len(keys), slots, {host: (loads or {}).get(host, 0) for host in slots})
    ranked = [
        (-score(key, names[host], slots[host]), number, host)
        for number, key in enumerate(keys)
        for host in slots
        if left[host]
    ]
    ranked.sort()
    chosen: dict[int, int] = {}
    for _, number, host in ranked:
        if left[host] and number not in chosen:
            chosen[number] = host
            left[host] -= 1
    return [chosen[number] for number in range(len(keys))]


def score(key: str, name: str, weight: float) -> float:
    """Return how much a host of a weight wants a key; of a key's hosts the one with the highest score has it.

    Among hosts without a limit each gets keys in proportion to its weight.
    """
    drawn, _ = mmh3.hash64(f"{name}\0{key}".encode(errors="surrogatepass"), signed=False)
    # In the open interval from 0 to 1: the logarithm is finite and not zero.
    return -weight / math.log((drawn + 0.5) / (_HASHES + 1))


__all__ = ["score", "share_out"]
