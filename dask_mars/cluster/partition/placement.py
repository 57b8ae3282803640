"""Chooses the host of a subtask whose inputs are there: by their real sizes, by free memory, and by who is busy.

What a host was planned for is an estimate: of bytes that nobody had seen, and of hosts that all go equally fast.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: By how much another host has to be better than the planned one, which the plan has chosen for what comes after
#: too: so many seconds, and such a share of the better one's.
_BETTER_BY_S = 0.02
_BETTER_BY_SHARE = 0.25


class HostState(NamedTuple):
    """A host at the moment when a subtask is to be given to one.

    Attributes
    ----------
    held_bytes : int
        What it has of the subtask's inputs.
    busy_s : float
        Seconds of estimated work that each of its slots has before it.
    free_bytes : int or None
        What its store has room for in memory; None where that is not known.
    """

    held_bytes: int
    busy_s: float
    free_bytes: int | None = None


def choose_host(planned: str, hosts: Mapping[str, HostState], input_bytes: int, bytes_per_s: float) -> str:
    """Choose a host for a subtask.

    Parameters
    ----------
    planned : str
        The host that it was planned for, one of those.
    hosts : mapping
        The hosts that may have it, by name.
    input_bytes : int
        What its inputs take together.
    bytes_per_s : float
        What travels between hosts in a second.

    Returns
    -------
    str
        The planned host, unless it has no room for the inputs that it lacks and another has, or another is done
        with fetching and with what it has to do before much sooner.
    """

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


__all__ = ["HostState", "choose_host"]
