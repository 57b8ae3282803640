"""The front of a service: listens, answers and keeps records. It never unpickles, and does not import NumPy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dask.utils import parse_timedelta

from dask_mars import config
from dask_mars.web import wire
from dask_mars.web.address import CONNECTION_FILE
from dask_mars.web.connections import BoundedServer
from dask_mars.web.handlers import make_application
from dask_mars.web.handling import Rule, Site
from dask_mars.web.monitor import Json
from dask_mars.web.security import Security
from dask_mars.web.server import port_security, url_of
from dask_mars.web.service.handlers import ROUTES, rules
from dask_mars.web.service.monitor import ServiceContext, ServiceMonitor
from dask_mars.web.service.store import ServiceStore
from dask_mars.web.service.supervisor import Supervisor
from dask_mars.web.sockets import bind_tcp, bind_unix, write_connection_file

logger = logging.getLogger("dask_mars.web")

#: Longest and shortest interval between two removals of old history, in seconds.
_TIDY_S, _TIDY_PAUSE_S = 60.0, 1.0
#: Threads for calls of the monitor, and for the disk.
_ASKING, _READING = 4, 8
#: Bytes of a body that are read at once.
_CHUNK_BYTES = 1 << 18
#: Sufficient number of file descriptors.
_DESCRIPTORS = 8192


@dataclass(frozen=True)
class Listening:
    """The addresses of a service."""

    socket: Path
    port: int | None = None
    behind_proxy: bool = False


def serve(directory: Path, listening: Listening, runner: Json, ready: Callable[[str], None]) -> None:
    """Run a service until SIGTERM or SIGINT."""
    # Check settings here: the runner would report errors too late.
    config.settings(runner["num_workers"], runner["memory_limit"])
    store = ServiceStore(directory)
    try:
        asyncio.run(_Front(store, listening, runner).serve(ready))
    finally:
        store.close()


class _Front:
    def __init__(self, store: ServiceStore, listening: Listening, runner: Json) -> None:
        self._store = store
        self._listening = listening
        self._supervisor = Supervisor(store, runner, self._ended, self._failed)
        self._history = _history()
        self._has_more = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._failure: Exception | None = None
        self._site: Site | None = None

    async def serve(self, ready: Callable[[str], None]) -> None:
        """Listen, and answer until the end is requested."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ending.set)
        with contextlib.ExitStack() as stack:
            asking = stack.enter_context(ThreadPoolExecutor(_ASKING, thread_name_prefix="dask-mars-web-ask"))
            reading = stack.enter_context(ThreadPoolExecutor(_READING, thread_name_prefix="dask-mars-web-disk"))
            servers, where = self._listen(stack, asking, reading)
            for server in servers:
                stack.callback(server.end)
            stack.callback(self._supervisor.close)
            self._supervisor.start()
            tidying = asyncio.ensure_future(self._keep_tidy(reading))
            ready(where)
            await self._ending.wait()
            tidying.cancel()
        if self._failure is not None:
            raise self._failure

    def _listen(
        self, stack: contextlib.ExitStack, asking: ThreadPoolExecutor, reading: ThreadPoolExecutor
    ) -> tuple[list[BoundedServer], str]:
        listening, store = self._listening, self._store
        sockets = [bind_unix(listening.socket.absolute())]
        stack.callback(listening.socket.absolute().unlink, missing_ok=True)
        try:
            security, where = Security(hosts=None, checks_origin=False), str(listening.socket)
            if listening.port is not None:
                sockets.append(bind_tcp(listening.port))
                security = port_security(listening.behind_proxy)
                where = url_of(sockets[-1])
                file = store.directory / CONNECTION_FILE
                stack.callback(file.unlink, missing_ok=True)
                write_connection_file(file, where, security)
            monitor = ServiceMonitor(store, self._supervisor)
            limit_bytes = config.parse_size(config.get("web.body-limit"), "dask-mars.web.body-limit")
            service = ServiceContext(store, self._supervisor, monitor, reading, wire.versions(), limit_bytes)

            def more(site: Site) -> list[Rule]:
                self._site = site
                return rules(site, service)

            application = make_application(monitor, security, more, executor=asking, more_routes=ROUTES)
            # Requests by the socket do not come from a proxy.
            options = [{}, {"xheaders": listening.behind_proxy}]
            servers = []
            most_connections = _room_for_connections()
            for bound, of_kind in zip(sockets, options, strict=False):
                server = BoundedServer(application, chunk_size=_CHUNK_BYTES, **of_kind)
                server.most_connections = most_connections
                server.add_sockets([bound])
                servers.append(server)
        except BaseException:
            for bound in sockets:
                bound.close()
            raise
        return servers, where

    # -- in other threads ---------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        """End the service, so that its supervisor may restart it."""
        assert self._loop is not None
        self._failure = error
        self._loop.call_soon_threadsafe(self._ending.set)

    def _ended(self) -> None:
        """Notify waiting requests of a computation's end, and check the size of the history."""
        assert self._loop is not None
        # The loop may just have ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)

    # -- in the event loop --------------------------------------------------------------------------------------

    def _tell(self) -> None:
        self._has_more.set()
        if self._site is not None:
            self._site.snapshots.forget()

    async def _keep_tidy(self, executor: ThreadPoolExecutor) -> None:
        """Remove expired and surplus history periodically."""
        while True:
            self._has_more.clear()
            try:
                await asyncio.get_running_loop().run_in_executor(executor, self._store.tidy, *self._history)
            except Exception:
                logger.exception("old computations could not be removed")
            # Once for many computations that end together.
            await asyncio.sleep(_TIDY_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TIDY_S):
                    await self._has_more.wait()


def _room_for_connections() -> int:
    """Raise the limit of file descriptors, and return the maximum number of connections of each server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _DESCRIPTORS:
        soft = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # Two servers share the descriptors with files.
    return max(_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, _DESCRIPTORS), 16) // 4


def _history() -> tuple[float | None, int | None]:
    """Return the longest age and the largest size of the history, in seconds and bytes."""
    age, size = config.get("web.history.age"), config.get("web.history.bytes")
    age_s = None if age is None else float(parse_timedelta(age))
    return age_s, None if size is None else config.parse_size(size, "dask-mars.web.history.bytes")
