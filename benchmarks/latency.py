"""Probes of latency: how long a user waits for one task, from cold and when warm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.functions import noop
from benchmarks.peers import Get, Peer

#: How many calls one figure of ``warm-get`` is the median of.
WARM_CALLS = 200


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement that opens the peer itself, because opening it may be what is timed."""

    name: str
    #: One line for people.
    summary: str
    #: Given a peer, a number of workers and a number of repeats, yields one duration in seconds per
    #: repeat.
    durations_s: Callable[[Peer, int, int], Iterator[float]]


def _get_one_task(get: Get) -> float:
    began_s = time.perf_counter()
    get({"x": (noop,)}, "x")
    return time.perf_counter() - began_s


def _cold_start(peer: Peer, workers: int, repeat: int) -> Iterator[float]:
    # A process is cold only once, so there is one figure whatever `repeat` says: more come from
    # more rounds.
    began_s = time.perf_counter()
    with peer.open(workers) as get:
        get({"x": (noop,)}, "x")
        yield time.perf_counter() - began_s


def _warm_get(peer: Peer, workers: int, repeat: int) -> Iterator[float]:
    with peer.open(workers) as get:
        for _ in range(10):
            _get_one_task(get)
        for _ in range(repeat):
            yield statistics.median(_get_one_task(get) for _ in range(WARM_CALLS))


#: Every probe by name.
PROBES: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        Probe(
            "cold-start",
            "start the workers and get a graph of one task, after all imports",
            _cold_start,
        ),
        Probe(
            "warm-get",
            f"get a graph of one task, median of {WARM_CALLS} calls",
            _warm_get,
        ),
    )
}
