"""A server in a thread of the user's process, for viewing and cancelling a runtime's computations."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import html
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_mars import config
from dask_mars.locking import Lock
from dask_mars.web.connections import BoundedServer
from dask_mars.web.handlers import make_application
from dask_mars.web.monitor import Monitor
from dask_mars.web.security import LOCAL_NAMES, TOKEN_BYTES, Security
from dask_mars.web.sockets import ADDRESS, bind_tcp, bind_unix, write_connection_file

if TYPE_CHECKING:
    from dask_mars.runtimes import Runtime

#: Threads for calls of the monitor.
_ASKING = 2
#: Longest wait for the thread's start and end, in seconds.
_PATIENCE_S = 10.0
_servers: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """Serves the API and the page for this process's computations.

    It has a thread of its own until it is closed, at the latest with the interpreter. `serve` creates one.

    Attributes
    ----------
    url : str
        Its address, without a token.
    token, view_token : str or None
        Tokens for full access, and for reading; None for a unix socket, which needs none.
    """

    def __init__(
        self,
        monitor: Monitor,
        sockets: Iterable[socket.socket],
        security: Security,
        url: str,
        *,
        behind_proxy: bool = False,
        files: Iterable[Path] = (),
        on_close: Callable[[], Any] = lambda: None,
    ) -> None:
        self.url = url
        self.token = security.token
        self.view_token = security.view_token
        self._monitor = monitor
        self._sockets = list(sockets)
        self._security = security
        self._options = {"xheaders": behind_proxy}
        self._files = list(files)
        self._on_close = on_close
        self._lock = Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._server: BoundedServer | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="dask-mars-web", daemon=True)
        self._thread.start()
        _servers.add(self)
        atexit.register(self.close)
        try:
            started.result(_PATIENCE_S)
        except BaseException:
            self.close()
            raise

    @property
    def link(self) -> str:
        """An address for a browser, with the token, which the browser then keeps in a cookie."""
        return self.url if self.token is None else f"{self.url}?token={self.token}"

    def close(self) -> None:
        """Close all connections, and end the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        _servers.discard(self)
        loop, ending = self._loop, self._ending
        if loop is not None and ending is not None:
            # The loop may have ended by itself.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ending.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE_S)
        for file in self._files:
            file.unlink(missing_ok=True)
        self._on_close()

    def _run(self, started: Future[None]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            for one in self._sockets:
                one.close()

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        executor = ThreadPoolExecutor(_ASKING, thread_name_prefix="dask-mars-web-ask")
        application = make_application(self._monitor, self._security, executor=executor)
        self._server = BoundedServer(application, **self._options)
        try:
            self._server.add_sockets(self._sockets)
            started.set_result(None)
            await self._ending.wait()
        finally:
            self._server.end()
            executor.shutdown(wait=True, cancel_futures=True)

    def _abandon(self) -> None:
        """Close the parent's sockets in a forked process."""
        self._closed = True
        self._lock = Lock()
        atexit.unregister(self.close)
        server = self._server
        for descriptor in [] if server is None else server.descriptors():
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __repr__(self) -> str:
        # Without the token: representations end up in logs.
        return f"<Server at {self.url}{' (closed)' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        if self._closed:
            return "<p>dask_mars: this server is closed</p>"
        if self.url.startswith("http+unix"):
            return f"<p>dask_mars listens at <code>{html.escape(self.url)}</code></p>"
        link, url = html.escape(self.link, quote=True), html.escape(self.url)
        return f'<p>dask_mars: <a href="{link}" target="_blank" rel="noopener noreferrer">{url}</a></p>'


def serve(
    monitor: Monitor,
    port: int = 0,
    *,
    socket_path: str | os.PathLike[str] | None = None,
    token: str | None = None,
    view_token: str | None = None,
    behind_proxy: bool = False,
    connection_file: str | os.PathLike[str] | None = None,
    on_close: Callable[[], Any] = lambda: None,
) -> Server:
    """Serve the data of a monitor until the server is closed."""
    if socket_path is not None:
        path = Path(socket_path).absolute()
        security = Security(hosts=None, checks_origin=False)
        bound = bind_unix(path)
        url, files = f"http+unix://{path}", [path]
    else:
        security = port_security(behind_proxy, token, view_token)
        bound = bind_tcp(port)
        url, files = url_of(bound), []
    try:
        if connection_file is not None:
            write_connection_file(Path(connection_file).absolute(), url, security)
            files.append(Path(connection_file).absolute())
        return Server(monitor, [bound], security, url, behind_proxy=behind_proxy, files=files, on_close=on_close)
    except BaseException:
        bound.close()
        for file in files:
            file.unlink(missing_ok=True)
        raise


def port_security(behind_proxy: bool, token: str | None = None, view_token: str | None = None) -> Security:
    """Return the access rules of a port: the given tokens, those of the settings, or new ones."""
    return Security(
        token or config.get("web.token") or secrets.token_urlsafe(TOKEN_BYTES),
        view_token or config.get("web.view-token") or secrets.token_urlsafe(TOKEN_BYTES),
        hosts=None if behind_proxy else LOCAL_NAMES,
        checks_origin=not behind_proxy,
    )


def url_of(bound: socket.socket) -> str:
    """Return the URL of a bound port."""
    return f"http://{ADDRESS}:{bound.getsockname()[1]}/"


def serve_runtime(runtime: Runtime, **options: Any) -> Server:
    """Serve the data of a runtime; `Runtime.serve` calls this."""
    from dask_mars.web.runtime_monitor import RuntimeMonitor

    monitor = RuntimeMonitor(runtime)
    # Then it need not record events any longer.
    return serve(monitor, on_close=monitor.close, **options)


def _after_fork() -> None:
    for server in list(_servers):
        server._abandon()
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)
