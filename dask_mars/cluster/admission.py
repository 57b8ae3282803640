"""Cluster-wide locks, tokens for running once, and waits for results that need a host's files.

Dask's scheduler keeps locks and tokens, among its locks and queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client, Future, Lock, Worker

from dask_mars.cluster.distributed_api import sync
from dask_mars.cluster.marks import IDENTITY
from dask_mars.errors import BegunBefore, FilesLost, LockLost

#: Interval at which a wait for a lock checks whether the subtask is still needed, in seconds.
_WAIT_S = 0.5
#: Poll intervals for results that depend on a host's files, and for the host, in seconds.
_POLL_S = 0.05
_LOOK_S = 2.0


class _ClusterLock(Lock):  # type: ignore[misc]
    """A Dask lock that notices a lost lease: the scheduler gives locks of silent clients to others."""

    def __init__(self, token: str, of: Any) -> None:
        self._renewed_s = time.monotonic()
        self._was_lost = False
        super().__init__(f"dask-mars-lock-{token}", scheduler_rpc=of.scheduler, loop=of.loop)

    async def _refresh_leases(self) -> None:
        if not self._leases:
            return
        now = time.monotonic()
        self._check_lease(now)
        await super()._refresh_leases()
        self._renewed_s = now

    def _check_lease(self, now: float) -> None:
        lease = dask.config.get("distributed.scheduler.locks.lease-timeout")
        if lease != "inf" and now - self._renewed_s > parse_timedelta(lease, "s"):
            self._was_lost = True

    def acquire_while_needed(self, is_needed: Callable[[], bool]) -> bool:
        """Acquire the lock; return False once `is_needed` returns False."""
        while is_needed():
            self._renewed_s = time.monotonic()
            if self.acquire(timeout=_WAIT_S):
                return True
        return False

    def release_for_good(self) -> None:
        """Release the lock, if it is held, and stop renewing its lease."""
        if self._leases:
            self.release()
        if hasattr(self, "refresh_callback"):
            # The callback would go on forever, and keep this alive.
            self.loop.add_callback(self.refresh_callback.stop)

    def was_lost(self) -> bool:
        """Return whether another client may have held the lock meanwhile."""
        self._check_lease(time.monotonic())
        return self._was_lost


class NoLongerNeeded(Exception):
    """Internal: a subtask that waits for a lock is no longer needed."""


@contextlib.contextmanager
def hold_locks(tokens: Collection[str], of: Any, is_needed: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Hold locks on all hosts of a cluster."""
    # One order for all hosts, to prevent deadlocks.
    locks = {token: _ClusterLock(token, of) for token in sorted(tokens)}
    try:
        for lock in locks.values():
            if not lock.acquire_while_needed(is_needed):
                raise NoLongerNeeded
        yield
        for token, lock in locks.items():
            if lock.was_lost():
                raise LockLost(token)
    finally:
        for lock in locks.values():
            lock.release_for_good()


# -- once -----------------------------------------------------------------------------------------------------


def register_once(client: Client, names: Collection[str]) -> None:
    """Register names with the scheduler, each of which one worker may claim."""

    async def allow(name: str) -> None:
        await client.scheduler.queue_create(name=name)
        await client.scheduler.queue_put(name=name, data=1)

    async def allow_all() -> None:
        await asyncio.gather(*map(allow, names))

    if names:
        client.sync(allow_all)


def unregister_once(client: Client, names: Collection[str]) -> None:
    """Remove names from the scheduler: later claims are refused."""
    if client.status == "running":
        for name in names:
            client._send_to_scheduler({"op": "queue_release", "name": name})


def claim_once(worker: Worker, name: str, key: str) -> None:
    """Claim the only start of a subtask."""

    async def take() -> bool:
        try:
            # A batch takes what the queue has without waiting. Dask's Queue class would create a removed queue
            # anew.
            return bool(await worker.scheduler.queue_get(name=name, batch=True))
        except KeyError:
            # The computation has ended.
            return False

    if not sync(worker.loop, take):
        raise BegunBefore(key)


# -- files ----------------------------------------------------------------------------------------------------


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """Return the scheduler's facts about the workers, by address."""
    # The client's own record is sometimes overwritten by one without workers.
    workers: dict[str, dict[str, Any]] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return workers


def wait_for_results(
    client: Client,
    futures: Collection[Future],
    agents_with_files: Mapping[str, str],
    meanwhile: Callable[[], None],
) -> None:
    """Wait for results while the hosts with their files live."""
    # Dask would wait for a lost host forever.
    looked_s = time.monotonic()
    while True:
        states = {future.status for future in futures}
        if "pending" not in states or states & {"error", "cancelled"}:
            return
        time.sleep(_POLL_S)
        meanwhile()
        if time.monotonic() - looked_s > _LOOK_S:
            looked_s = time.monotonic()
            there = {told.get(IDENTITY) for told in workers_of(client).values()}
            for agent, key in agents_with_files.items():
                if agent not in there:
                    raise FilesLost(key)
