"""Waits for a lost scheduler and its agents, so that a computation can be submitted again.

A client of Dask's reconnects by itself, if its scheduler returns at the same address within
``distributed.comm.timeouts.connect``. In all other cases a new client takes its place, its successor.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client, Future

from dask_mars import config, units
from dask_mars.client.records import Record
from dask_mars.cluster.distributed_api import ClosedClientError, FutureCancelledError, FuturesCancelledError
from dask_mars.cluster.marks import RECONNECT_S
from dask_mars.cluster.planning import AgentInfo, agents_among, find_agents
from dask_mars.errors import FuturesLost, SchedulerLost
from dask_mars.locking import Lock
from dask_mars.observe.counts import BlockStates, ChunkCounts, LayerCounts, Source

logger = logging.getLogger(__name__)

#: distributed's reason for futures that were lost with their scheduler.
_LOST = "scheduler-connection-lost"
#: Advice in the error of a computation that has lost its scheduler.
HOW_TO_RECONNECT = (
    "dask_mars: a computation waits for a scheduler that comes back, and is submitted again, if its agents were "
    "started as dask-mars-worker --reconnect, or where dask-mars.cluster.reconnect-timeout says for how long"
)
#: Time that a client may take to notice a broken connection after one of its threads has, in seconds.
_NOTICE_S = 1.0
#: Poll interval for the scheduler, and longest waits for its answer and for a connection, in seconds.
_LOOK_S, _ANSWER_S, _CONNECT_S = 0.1, 5.0, 5.0
#: Longest wait for the other known agents once the first has come, in seconds.
_STRAGGLERS_S = 10.0

_lock = Lock()
#: Clients and their successors.
_successors: weakref.WeakKeyDictionary[Client, Client] = weakref.WeakKeyDictionary()
#: Successors in use.
_ours: weakref.WeakSet[Client] = weakref.WeakSet()
#: Clients whose clusters had agents, and how long these wait for a lost scheduler; 0 if one of them does not.
_agents_wait_s: weakref.WeakKeyDictionary[Client, float] = weakref.WeakKeyDictionary()


def latest(client: Client) -> Client:
    """Return a client, or its latest successor."""
    with _lock:
        while (successor := _successors.get(client)) is not None:
            client = successor
        return client


def cluster_behind(client: Client) -> tuple[Client, list[AgentInfo]]:
    """Return a client or its latest successor, and the agents of its cluster, none while the cluster is away."""
    client = latest(client)
    hosts: list[AgentInfo] = []
    try:
        if client.status == "running":
            hosts = find_agents(client)
    except OSError:
        if not patience_s(client):
            raise
    if hosts:
        _record_agents(client, hosts)
    return client, hosts


def _record_agents(client: Client, hosts: Sequence[AgentInfo]) -> None:
    _agents_wait_s[client] = min([host.reconnect_s for host in hosts])


def patience_s(client: Client, is_saved: bool = False) -> float:
    """Return how long computations wait for a lost scheduler, in seconds; 0 if they fail at once."""
    # By default they wait for agents that wait themselves, and where results are saved outside of the cluster.
    given = config.reconnect_s()
    if given is not None:
        return given
    return _agents_wait_s.get(client, 0.0) or (RECONNECT_S if is_saved else 0.0)


def may_come_back(client: Client) -> bool:
    """Return whether computations wait for agents that the cluster had."""
    is_open = client.status in ("running", "connecting")
    return is_open and client in _agents_wait_s and patience_s(client) > 0


def close_successors() -> None:
    """Close all successors."""
    with _lock:
        found = list(_successors.values())
        _successors.clear()
    for client in found:
        client.close()


def _close_if_ours(client: Client) -> None:
    """Close a successor that has lost its scheduler, so that the next one takes its place."""
    # If it gave up by itself later, Dask would never end its event loop.
    with _lock:
        is_lost = client in _ours and client.status == "connecting"
        if is_lost:
            _ours.discard(client)
    if is_lost:
        client.close()


class SchedulerConnection:
    """A client's connection, and whether it has broken since."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.address = str(client.scheduler.address)
        #: File in which the next scheduler writes its address.
        self.file: str | None = client.scheduler_file
        self.is_current = _is_current(client)
        self._comm = client.scheduler_comm

    def was_lost(self, error: BaseException) -> bool:
        """Return whether an error comes from the loss of the scheduler rather than from the computation."""
        if is_of_lost_scheduler(error):
            return True
        if isinstance(error, OSError) and not self._is_broken() and not _answers(self.client):
            # A thread may notice the loss before the client does.
            deadline = time.monotonic() + _NOTICE_S
            while not self._is_broken() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
        # A client that has given up has no scheduler, and its methods fail with these errors.
        of_closed = self.client.status == "closed" and isinstance(error, (AttributeError, ClosedClientError))
        return (of_closed or isinstance(error, (OSError, futures.CancelledError))) and self._is_broken()

    def _is_broken(self) -> bool:
        client, comm = self.client, self._comm
        if client.scheduler_comm is not comm:
            return True
        # A client that its user has closed, or whose cluster has ended, keeps its comm.
        return client.status == "connecting" or (
            client.status == "running" and (comm is None or comm.comm is None or comm.comm.closed())
        )


def _is_current(client: Client) -> bool:
    try:
        return Client.current() is client
    except ValueError:
        return False


def is_of_lost_scheduler(error: BaseException) -> bool:
    """Return whether Dask has cancelled a future because of the loss of the scheduler."""
    if isinstance(error, FuturesCancelledError):
        return any(group.reason == _LOST for group in error.error_groups)
    return isinstance(error, FutureCancelledError) and error.reason == _LOST


def _answers(client: Client) -> bool:
    """Return whether the scheduler of a client answers."""
    try:
        client.sync(client.scheduler.identity, n_workers=0, callback_timeout=_ANSWER_S)
    except Exception:
        return False
    return True


def refuse_lost(values: Iterable[Any], client: Client) -> None:
    """Raise if values contain futures that were lost with their scheduler."""
    for value in values:
        if not isinstance(value, Future):
            continue
        if value.status == "cancelled" and _was_lost(value):
            raise FuturesLost(str(value.key), "the scheduler that knew of them was lost")
        if value.client is not client and latest(value.client) is client:
            raise FuturesLost(str(value.key), "they were computed before the scheduler was lost")


def _was_lost(future: Future) -> bool:
    try:
        error = future.exception()
    except Exception as raised:
        error = raised
    return error is not None and is_of_lost_scheduler(error)


class _Waiting:
    """The progress of a computation that waits for a scheduler: a `Source`."""

    def __init__(self, before: Source | None, what: Callable[[], str]) -> None:
        self._before = before
        self._what = what
        self.is_cancelled = threading.Event()

    def stop(self) -> bool:
        """End the wait."""
        self.is_cancelled.set()
        return True

    def counts(self) -> ChunkCounts:
        """Count its chunks; the computation has ended."""
        total = 0 if self._before is None else self._before.counts().total
        return ChunkCounts(total, total)

    def layers(self) -> Sequence[LayerCounts]:
        """Return the last known state of its layers."""
        return () if self._before is None else self._before.layers()

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which, by their indices in `layers`."""
        return [] if self._before is None else self._before.edges()

    def blocks(self, layer: str) -> BlockStates:
        """Return the last known blocks of a layer."""
        if self._before is None:
            raise KeyError(layer)
        return self._before.blocks(layer)

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Return what it waits for, for any key."""
        return self._what()

    def final(self, is_finished: bool) -> Source:
        """Return the progress at the end."""
        return self if self._before is None else self._before.final(is_finished)


class _Successor(Client):  # type: ignore[misc]
    """A client that takes the place of another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
        except BaseException:
            # Dask leaves the thread and the event loop of a client that could not connect; attempts may be many.
            self._loop_runner.stop()
            raise


def _attempt(connect: Callable[[], Client]) -> futures.Future[Client]:
    """Connect in a thread: a server that is not a scheduler may block Dask forever."""
    attempt: futures.Future[Client] = futures.Future()

    def run() -> None:
        try:
            client = connect()
        except Exception as error:
            if attempt.set_running_or_notify_cancel():
                attempt.set_exception(error)
        else:
            if attempt.set_running_or_notify_cancel():
                attempt.set_result(client)
            else:
                client.close()

    threading.Thread(target=run, name="dask-mars-connect", daemon=True).start()
    return attempt


def _abandon(attempt: futures.Future[Client]) -> None:
    """Close the client of an attempt, now or once it is connected."""
    if not attempt.cancel() and attempt.exception() is None:
        attempt.result().close()


class Reconnection:
    """The wait for a lost scheduler."""

    def __init__(
        self, connection: SchedulerConnection, timeout_s: float, losses: int = 1, agents: int = 1
    ) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._losses = losses
        self._agents = agents
        self._began_s = time.monotonic()
        self._where = f"in {connection.file}" if connection.file else f"at {connection.address}"
        self._is_back = False
        self._refusal: BaseException | None = None
        self._attempt: futures.Future[Client] | None = None

    def wait(self, record: Record) -> tuple[Client, list[AgentInfo]]:
        """Wait for a scheduler with agents."""
        waiting = _Waiting(record.source, self._in_words)
        record.run(waiting, waiting.stop)
        self._say(
            record,
            f"the scheduler {self._where} is lost: waiting for it for {units.duration(self._timeout_s)} at most, "
            "then computing again",
        )
        try:
            return self._wait(record, waiting)
        finally:
            if self._attempt is not None:
                _abandon(self._attempt)

    def _wait(self, record: Record, waiting: _Waiting) -> tuple[Client, list[AgentInfo]]:
        first_s = None
        while (now := time.monotonic()) < self._began_s + self._timeout_s:
            record.raise_if_cancelled()
            client = self._client()
            hosts = [] if client is None else self._agents_of(client)
            if client is not None and hosts:
                first_s = first_s or now
                if len(hosts) >= self._agents or now > first_s + _STRAGGLERS_S:
                    waited = units.duration(now - self._began_s)
                    count = units.plural(len(hosts), "agent")
                    _record_agents(client, hosts)
                    self._say(record, f"the scheduler {self._where} is back after {waited}, with {count}")
                    return client, hosts
            waiting.is_cancelled.wait(_LOOK_S)
        raise SchedulerLost(self._connection.address, self._why_not(), self._losses) from self._refusal

    def _say(self, record: Record, text: str) -> None:
        logger.warning(text)
        record.note("warning", f"{text}\n")

    def _in_words(self) -> str:
        waited = units.duration(time.monotonic() - self._began_s)
        what = "its agents: it is there, and they are not" if self._is_back else "it to come back"
        return (
            f"the scheduler {self._where} was lost {waited} ago; the computation waits for {what}, for "
            f"{units.duration(self._timeout_s)} at most"
        )

    def _why_not(self) -> str:
        within = f"within {units.duration(self._timeout_s)} (dask-mars.cluster.reconnect-timeout)"
        if self._is_back:
            return (
                f"when it came back no worker of it was one of dask_mars {within}. Agents wait for it if they are "
                "started as dask-mars-worker --reconnect"
            )
        if self._refusal is not None:
            return f"what came back did not take this client {within}: {self._refusal}"
        return f"none came back {self._where} {within}"

    def _client(self) -> Client | None:
        """Return a connected client, if there is one by now."""
        client, address = latest(self._connection.client), self._address()
        _close_if_ours(client)
        if client.status in ("running", "connecting") and client.scheduler.address == address:
            # This client reconnects by itself, or gives up and closes.
            return client if client.status == "running" else None
        return self._succeed(client, address)

    def _address(self) -> str:
        """Return the current address of the scheduler."""
        if self._connection.file is not None:
            # The file may be incomplete or missing.
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                return str(json.loads(Path(self._connection.file).read_text(encoding="utf-8"))["address"])
        return self._connection.address

    def _succeed(self, client: Client, address: str) -> Client | None:
        """Connect a successor of a client."""
        if self._attempt is None:
            security, is_current = self._connection.client.security, self._connection.is_current
            left_s = self._began_s + self._timeout_s - time.monotonic()
            # An attempt must not outlast the wait.
            connect_s = max(min(left_s, _CONNECT_S), _LOOK_S)
            self._attempt = _attempt(
                partial(_Successor, address, security=security, set_as_default=is_current, timeout=connect_s)
            )
        futures.wait([self._attempt], _LOOK_S)
        if not self._attempt.done():
            return None
        attempt, self._attempt = self._attempt, None
        if (error := attempt.exception()) is not None:
            # Another error than OSError: a scheduler refuses this client, for its version perhaps.
            self._refusal = None if isinstance(error, OSError) else error
            return None
        successor = attempt.result()
        successor.scheduler_file = self._connection.file
        with _lock:
            # Another waiting computation may have connected a successor just before: all use the same one.
            has_another = _successors.setdefault(client, successor) is not successor
            if not has_another:
                _ours.add(successor)
        if has_another:
            successor.close()
            return None
        return successor

    def _agents_of(self, client: Client) -> list[AgentInfo]:
        try:
            told = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER_S)
        except Exception:
            # The scheduler is lost again, or not ready yet.
            self._is_back = False
            return []
        self._is_back = True
        return agents_among(told["workers"])
