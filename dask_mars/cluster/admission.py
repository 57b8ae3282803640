"""Cluster-wide locks, tokens for running once, and waiting for results that need a host's files.

Locks and beginnings are kept by Dask's scheduler, among its locks and queues.
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

#: How long a wait for a lock goes on before it is asked whether anybody still wants what waits.
_WAIT_S = 0.5
#: How often is looked whether what depends on a host's files is there, and whether the host is.
_POLL_S = 0.05
_LOOK_S = 2.0


class _ClusterLock(Lock):  # type: ignore[misc]
    """A lock of Dask's that knows if it was held all the time: the scheduler takes it from those that fall silent.

    Parameters
    ----------
    token : str
        Of the lock that this is in the place of.
    of : Worker or Client
        Through which it talks to the scheduler.
    """

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

    def acquire_while_wanted(self, is_wanted: Callable[[], bool]) -> bool:
        """Lock; False if that is not wanted any more."""
        while is_wanted():
            self._renewed_s = time.monotonic()
            if self.acquire(timeout=_WAIT_S):
                return True
        return False

    def release_for_good(self) -> None:
        """Unlock, if it is locked, and be silent from now on."""
        if self._leases:
            self.release()
        if hasattr(self, "refresh_callback"):
            # It would go on for ever, and keep this alive.
            self.loop.add_callback(self.refresh_callback.stop)

    def was_lost(self) -> bool:
        """Say whether somebody else may have had it meanwhile."""
        self._check_lease(time.monotonic())
        return self._was_lost


class NoLongerWanted(Exception):
    """Nobody wants what waits for a lock. Never reaches the user."""


@contextlib.contextmanager
def hold_locks(tokens: Collection[str], of: Any, is_wanted: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Hold locks on all hosts of a cluster.

    Parameters
    ----------
    tokens : collection of str
        Of the locks.
    of : Worker or Client
        Who wants them.
    is_wanted : callable, optional
        Asked from time to time during a wait, which ends if it returns False.

    Raises
    ------
    NotWanted
        It did.
    LockLost
        The scheduler did not hear from us for so long that it gave a lock to others.
    """
    # In the same order everywhere, lest two wait for each other.
    locks = {token: _ClusterLock(token, of) for token in sorted(tokens)}
    try:
        for lock in locks.values():
            if not lock.acquire_while_wanted(is_wanted):
                raise NoLongerWanted
        yield
        for token, lock in locks.items():
            if lock.was_lost():
                raise LockLost(token)
    finally:
        for lock in locks.values():
            lock.release_for_good()


# -- once -----------------------------------------------------------------------------------------------------


def register_once(client: Client, names: Collection[str]) -> None:
    """Have the scheduler let one begin what each of these names stands for."""

    async def allow(name: str) -> None:
        await client.scheduler.queue_create(name=name)
        await client.scheduler.queue_put(name=name, data=1)

    async def allow_all() -> None:
        await asyncio.gather(*map(allow, names))

    if names:
        client.sync(allow_all)


def unregister_once(client: Client, names: Collection[str]) -> None:
    """Have the scheduler forget names: whoever still wants to begin is refused."""
    if client.status == "running":
        for name in names:
            client._send_to_scheduler({"op": "queue_release", "name": name})


def claim_once(worker: Worker, name: str, key: str) -> None:
    """Begin what must not be begun twice.

    Parameters
    ----------
    worker : Worker
        Who wants to.
    name : str
        As given to `register_once`.
    key : str
        For people: what it is.

    Raises
    ------
    BegunBefore
        It was begun before, here or elsewhere.
    """

    async def take() -> bool:
        try:
            # All that is there, without waiting for more. Dask's own class would make what is not there any more.
            return bool(await worker.scheduler.queue_get(name=name, batch=True))
        except KeyError:
            # The computation has ended.
            return False

    if not sync(worker.loop, take):
        raise BegunBefore(key)


# -- files ----------------------------------------------------------------------------------------------------


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """Return what the scheduler knows of the workers, by their addresses."""
    # The client's own record is overwritten now and then by one without any workers.
    workers: dict[str, dict[str, Any]] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return workers


def wait_for_results(
    client: Client,
    futures: Collection[Future],
    agents_with_files: Mapping[str, str],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Wait for results, as long as the hosts are there that have the files for them.

    Dask would wait for such a host for ever.

    Parameters
    ----------
    client : Client
        Whose futures they are.
    futures : collection of Future
        The results. It ends when all are there, or one has failed.
    agents_with_files : mapping
        Agents that have files, by their ids; and of each, for people, what needs some of them.
    meanwhile : callable, optional
        Called now and then.

    Raises
    ------
    FilesLost
        An agent is gone.
    """
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


__all__ = [
    "NoLongerWanted",
    "claim_once",
    "hold_locks",
    "register_once",
    "unregister_once",
    "wait_for_results",
    "workers_of",
]
