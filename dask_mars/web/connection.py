"""Requests to a service with the standard library: broken connections are replaced, and downloads resumed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from dask.utils import parse_timedelta

from dask_mars import config, units
from dask_mars.errors import ServiceError, ServiceUnreachable
from dask_mars.locking import Lock
from dask_mars.web.address import Endpoint
from dask_mars.web.monitor import Json

#: Timeout of a connection in seconds: longer than the longest wait of a request.
_TIMEOUT_S = 60.0
#: Time before the user learns of a service that cannot answer, in seconds.
_SILENT_S = 2.0
#: Pauses before a new attempt: the first and the longest, in seconds.
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
#: Statuses of a service, or of a proxy in front of it, that cannot answer now.
_NOT_NOW = frozenset({502, 503, 504})
_Answer = TypeVar("_Answer")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.close()
            raise


class _NotNow(Exception):
    """The service requests a later attempt."""

    def __init__(self, refusal: ServiceError, after_s: float) -> None:
        super().__init__(refusal, after_s)
        self.refusal = refusal
        self.after_s = after_s


class Connection:
    """Connections to a service, kept for later requests. It is thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = Lock()
        self._pid = os.getpid()

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def _line(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._pid != os.getpid():
                # The parent continues to use its connections.
                self._pid, self._idle = os.getpid(), []
            if self._idle:
                return self._idle.pop()
        endpoint = self.endpoint
        if endpoint.path:
            return _UnixConnection(endpoint.path)
        if endpoint.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=_TIMEOUT_S, context=context)
        return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=_TIMEOUT_S)

    @contextlib.contextmanager
    def _response(
        self, method: str, path: str, headers: Mapping[str, str], body: Sequence[Any]
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request; yield the response, and keep its connection if it is read to its end."""
        endpoint = self.endpoint
        sent = {
            "X-Dask-Mars": "1",
            "Content-Length": str(sum(memoryview(part).nbytes for part in body)),
            **headers,
        }
        if endpoint.token is not None:
            sent["Authorization"] = f"Bearer {endpoint.token}"
        line = self._line()
        try:
            # A service that refuses the body answers before it has read it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                line.request(method, f"{endpoint.prefix}/api/v1/{path}", iter(body) if body else None, sent)
            response = line.getresponse()
            yield response
            if response.isclosed() and not response.will_close:
                with self._lock:
                    self._idle.append(line)
                    return
        except BaseException:
            line.close()
            raise
        line.close()

    def _patiently(self, attempt: Callable[[], _Answer], patience_s: float | None = None) -> _Answer:
        """Repeat an attempt until it works; raise `ServiceUnreachable` after too long."""
        if patience_s is None:
            # Read each time, as the user may have changed it since.
            patience_s = float(parse_timedelta(config.get("web.patience")))
        began, pause_s, is_told = time.monotonic(), _PAUSE_S, False
        deadline, tell_at = began + patience_s, began + _SILENT_S
        stale = len(self._idle)
        while True:
            try:
                return attempt()
            except _NotNow as told:
                reason: Exception = told.refusal
                pause_s = max(pause_s, min(told.after_s, _LONGEST_PAUSE_S))
                if time.monotonic() + pause_s > deadline:
                    raise told.refusal from None
            except ssl.SSLCertVerificationError:
                raise
            except (OSError, http.client.HTTPException) as error:
                reason = error
                if stale:
                    # The service closes connections that were idle for a while.
                    stale -= 1
                    continue
            if time.monotonic() + pause_s > deadline:
                raise ServiceUnreachable(str(self.endpoint), f"{type(reason).__name__}: {reason}") from reason
            time.sleep(pause_s if is_told else min(pause_s, max(tell_at - time.monotonic(), 0.0)))
            if not is_told and tell_at <= time.monotonic() < deadline:
                is_told = True
                self._tell(reason, deadline - time.monotonic())
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _tell(self, reason: Exception, left_s: float) -> None:
        """Print the reason for the wait on the terminal."""
        why = reason.detail if isinstance(reason, ServiceError) else f"{type(reason).__name__}: {reason}"
        print(
            f"dask_mars: the service at {self.endpoint} cannot answer now: {why}; trying again for up to "
            f"{units.duration(left_s)} (dask-mars.web.patience), Ctrl-C ends it",
            file=sys.stderr,
        )

    def ask(
        self,
        method: str,
        path: str,
        body: Sequence[Any] = (),
        headers: Mapping[str, str] | None = None,
        patience_s: float | None = None,
    ) -> Json:
        """Make a request with an answer in JSON."""

        def attempt() -> Json:
            with self._response(method, path, headers or {}, body) as response:
                text = response.read()
                if response.status >= 400:
                    raise _refusal(response, text)
                return json.loads(text) if text else {}

        return self._patiently(attempt, patience_s)


def _refusal(response: http.client.HTTPResponse, text: bytes) -> Exception:
    try:
        problem = json.loads(text)
        detail = problem.get("detail") or problem.get("title") or response.reason
    except (ValueError, AttributeError):
        problem, detail = {}, text[:500].decode(errors="replace") or response.reason
    refusal = ServiceError(response.status, str(detail), problem)
    if response.status in _NOT_NOW:
        given = response.headers.get("Retry-After", "")
        return _NotNow(refusal, float(given) if given.isdecimal() else 0.0)
    return refusal


class Download:
    """Reads an answer into given memory, over as many connections as necessary."""

    def __init__(self, connection: Connection, path: str, accept: str) -> None:
        self._connection = connection
        self._path = path
        self._accept = accept
        self._at = 0
        self._open = contextlib.ExitStack()
        self._response: http.client.HTTPResponse | None = None

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def readinto(self, target: Any) -> None:
        """Fill memory with the next bytes."""
        left = memoryview(target).cast("B")
        while left:
            # The time limit starts anew after each success.
            count = self._connection._patiently(partial(self._some, left))
            left = left[count:]

    def _some(self, target: memoryview) -> int:
        try:
            if self._response is None:
                self._response = self._ask()
            count = self._response.readinto(target)
            if not count:
                raise http.client.IncompleteRead(b"", len(target))
        except BaseException:
            self._response = None
            # The first error counts.
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._open.close()
            raise
        self._at += count
        return count

    def _ask(self) -> http.client.HTTPResponse:
        headers = {"Accept": self._accept}
        if self._at:
            headers["Range"] = f"bytes={self._at}-"
        response = self._open.enter_context(self._connection._response("GET", self._path, headers, ()))
        if response.status >= 400:
            raise _refusal(response, response.read())
        if self._at and response.status != 206:
            raise ServiceError(response.status, "the service does not go on where a download was cut off", {})
        return response
