"""Runs the agent of a host until it ends, a signal arrives, or its scheduler is gone.

An agent does not outlive its scheduler: its results belong to lost computations. It ends with all its processes,
and with `--reconnect` a new one starts when a scheduler is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import dask
from distributed import Nanny, Security, Status

from dask_mars.cluster.agent_process import start_agent
from dask_mars.cluster.distributed_api import coerce_to_address, connect, wait_for_signals
from dask_mars.cluster.marks import LEAVE_S

logger = logging.getLogger("distributed.dask_mars")

#: Longest wait for the processes of a leaving host to end, in seconds.
_CLOSE_S = 10.0
#: Longest wait for a closed server to finish, in seconds.
_NOTICE_S = 1.0
#: Poll interval for a leaving agent, in seconds.
_LOOK_S = 0.05
#: Longest attempt to reach a scheduler, and pause after a failed one, in seconds.
_ATTEMPT_S, _PAUSE_S = 5.0, 0.2
#: Pause after a failed registration with a reachable scheduler, in seconds.
_REFUSED_PAUSE_S = 2.0
#: Reasons for closing of workers that lost their scheduler, and their descriptions in the log.
_LOST = {
    "worker-handle-scheduler-connection-broken": "is gone",
    "scheduler-close": "has ended",
    "scheduler-remove-worker": "has given this host up",
    "worker-heartbeat-missing": "has given this host up",
    "nanny-instantiate-timeout": "did not answer another agent in the place of one that died",
}


#: Exceptions of Dask for an invalid address, interface, certificate, file or module.
_MISTAKES = (OSError, RuntimeError, ValueError, ImportError)


class AgentCannotStart(Exception):
    """An agent could not start because an option is invalid."""


class _Nanny(Nanny):  # type: ignore[misc]
    """A nanny that keeps the reason for its agent's end."""

    end_reason = ""

    def close_gracefully(self, reason: str = "nanny-close-gracefully") -> None:
        """Start no further agent after this one; the agent calls it before it ends."""
        self.end_reason = reason
        super().close_gracefully(reason)

    async def close(self, timeout: float = 5, reason: str = "nanny-close") -> Any:
        """Close the agent, then the nanny."""
        self.end_reason = self.end_reason or reason
        return await super().close(timeout, reason)


class _Place:
    """The location of a scheduler."""

    def __init__(self, address: str | None, file: str | None, security: dict[str, str]) -> None:
        self._address = address or dask.config.get("scheduler-address", None)
        self._file = file
        self._arguments = Security(**security).get_connection_args("worker")

    def __str__(self) -> str:
        return f"in {self._file}" if self._file else f"at {self._address}"

    async def answers(self, timeout_s: float) -> bool:
        """Return whether a scheduler answers."""
        try:
            if self._file:
                address = json.loads(Path(self._file).read_text(encoding="utf-8"))["address"]
            else:
                address = coerce_to_address(self._address)
            comm = await connect(address, timeout=timeout_s, **self._arguments)
        except (OSError, ValueError, LookupError, TypeError):
            # The file may be incomplete, or its scheduler gone.
            return False
        await comm.close()
        return True


async def serve(nanny: bool, scheduler: str | None, options: dict[str, Any], reconnect_s: float = 0.0) -> bool:
    """Run an agent, or its nanny, until it ends or a signal comes."""
    signalled = asyncio.create_task(wait_for_signals())
    # Let the task install its signal handlers.
    await asyncio.sleep(0)
    try:
        if not reconnect_s:
            return await _serve_once(nanny, scheduler, options, signalled) is not None
        place = _Place(scheduler, options.get("scheduler_file"), options.get("security") or {})
        return await _serve_each(nanny, scheduler, options, signalled, place, reconnect_s)
    except Exception as error:
        # Dask wraps the error in "failed to start", a nanny twice; the first cause has the reason.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, _MISTAKES):
            raise AgentCannotStart(f"{type(cause).__name__}: {cause}") from error
        raise
    finally:
        signalled.cancel()


async def _serve_each(
    nanny: bool,
    scheduler: str | None,
    options: dict[str, Any],
    signalled: asyncio.Task[int],
    place: _Place,
    reconnect_s: float,
) -> bool:
    """Run agents one after the other, while there is a scheduler or one returns in time."""
    now = asyncio.get_running_loop().time
    has_served, deadline = False, now() + reconnect_s
    while await _wait_for_scheduler(place, signalled, deadline):
        began_s = now()
        try:
            reason = await _serve_once(nanny, scheduler, options, signalled)
        except Exception as error:
            # The first agent's error may be a mistake in the options.
            if not has_served and not _is_lost_connection(error):
                raise
            reason, has_worked = None, False
            logger.warning("no agent could start for the scheduler %s: %s", place, error.__cause__ or error)
        else:
            has_worked = reason is not None
        if signalled.done():
            return True
        if has_worked:
            if reason not in _LOST:
                return True
            has_served, deadline = True, now() + reconnect_s
            logger.warning(
                "the scheduler %s %s; waiting for one for %g s at most", place, _LOST[reason], reconnect_s
            )
        elif now() - began_s < _REFUSED_PAUSE_S:
            await asyncio.wait({signalled}, timeout=_REFUSED_PAUSE_S)
    if not signalled.done():
        logger.error("there is no scheduler %s after %g s of waiting", place, reconnect_s)
    return signalled.done()


async def _wait_for_scheduler(place: _Place, signalled: asyncio.Task[int], deadline: float) -> bool:
    """Wait until a scheduler answers; return False after a signal or the deadline."""
    now = asyncio.get_running_loop().time
    while not signalled.done() and (left_s := deadline - now()) > 0:
        attempt_s = min(left_s, _ATTEMPT_S)
        answered = asyncio.create_task(place.answers(attempt_s))
        # A server that is not a scheduler may block Dask beyond the timeout.
        await asyncio.wait(
            {signalled, answered}, timeout=attempt_s + _PAUSE_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not answered.done():
            answered.cancel()
            await asyncio.wait({answered}, timeout=_PAUSE_S)
        elif answered.result():
            return True
        await asyncio.wait({signalled}, timeout=_PAUSE_S)
    return False


def _is_lost_connection(error: BaseException | None) -> bool:
    """Return whether an error comes from a failed or broken connection."""
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__
    return False


async def _serve_once(
    nanny: bool, scheduler: str | None, options: dict[str, Any], signalled: asyncio.Task[int]
) -> str | None:
    """Run an agent, or its nanny, until it ends or a signal arrives; return the reason, None if it never began."""
    server: Any = (_Nanny if nanny else start_agent)(scheduler, **options)
    leaving = asyncio.Event()
    ended = asyncio.create_task(_wait_for(server, leaving))
    await asyncio.wait({signalled, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not signalled.done():
        try:
            await ended
        except TimeoutError as error:
            logger.error("the scheduler does not answer: %s", error)
            return None
        return str(server.end_reason)
    reason = f"signal-{signalled.result()}"
    leaving.set()
    if nanny:
        await _leave(server, ended, reason)
    else:
        await server.leave(reason)
    await server.close(timeout=_CLOSE_S, reason=reason)
    # A server that still connects to its scheduler does not notice that it is closed.
    await asyncio.wait({ended}, timeout=_NOTICE_S)
    ended.cancel()
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await ended
    return reason


async def _leave(nanny: Nanny, ended: asyncio.Task[None], reason: str) -> None:
    """Let a nanny's agent move its results to others, and end."""
    if nanny.pid is None:
        return
    if nanny.status is Status.running:
        # From here on the nanny does not restart the agent.
        nanny.close_gracefully(reason)
    # An agent that has not registered yet has no results, and the signal ends it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(nanny.pid, signal.SIGTERM)
    deadline = asyncio.get_running_loop().time() + LEAVE_S + _CLOSE_S
    while nanny.pid is not None and not ended.done() and asyncio.get_running_loop().time() < deadline:
        await asyncio.wait({ended}, timeout=_LOOK_S)


async def _wait_for(server: Any, leaving: asyncio.Event) -> None:
    """Wait until an agent, or its nanny, has started and ended."""
    await server
    if leaving.is_set() and isinstance(server, Nanny) and server.status is Status.running:
        # The agent has started, and perhaps computed something, before its nanny knew.
        server.close_gracefully()
    await server.finished()
