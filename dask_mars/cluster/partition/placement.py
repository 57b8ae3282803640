"""Chooses the host of a subtask whose inputs are computed: by their real sizes, free memory, and load.

The planned host is based on estimates of sizes, and on the assumption of equally fast hosts.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: Advantage that another host needs over the planned one, which also suits later subtasks: in seconds, and as a
#: share of the other host's time.
_BETTER_BY_S = 0.02
_BETTER_BY_SHARE = 0.25


class HostState(NamedTuple):
    """A host's state when a subtask is placed."""

    #: Bytes of the subtask's inputs that it has.
    held_bytes: int
    #: Estimated work in the queue of each of its slots, in seconds.
    busy_s: float
    #: Free bytes in its store; None if unknown.
    free_bytes: int | None = None


def choose_host(planned: str, hosts: Mapping[str, HostState], input_bytes: int, bytes_per_s: float) -> str:
    """Choose a host for a subtask."""

    def missing_bytes(name: str) -> int:
        return max(input_bytes - hosts[name].held_bytes, 0)

    def wait_s(name: str) -> float:
        return hosts[name].busy_s + missing_bytes(name) / bytes_per_s

    def has_room(name: str) -> bool:
        free_bytes = hosts[name].free_bytes
        return free_bytes is None or missing_bytes(name) <= free_bytes

    roomy = [name for name in hosts if has_room(name)] or list(hosts)
    # The name comes last so that equal hosts always give the same answer.
    best = min(roomy, key=lambda name: (wait_s(name), name != planned, name))
    if planned in roomy and wait_s(planned) - wait_s(best) <= _BETTER_BY_S + _BETTER_BY_SHARE * wait_s(best):
        return planned
    return best
