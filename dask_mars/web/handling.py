"""The common part of all tornado handlers: authentication, size limits, error messages, ends of connections."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import Any, ClassVar

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler, stream_request_body

from dask_mars.web import api, pages
from dask_mars.web.api import Problem
from dask_mars.web.monitor import Json, Monitor
from dask_mars.web.security import CONTENT_SECURITY_POLICY, Access, Security
from dask_mars.web.snapshots import Snapshots

logger = logging.getLogger("dask_mars")

#: Largest headers of a request, in bytes. tornado closes connections that send much more.
LARGEST_HEADERS = 16 << 10
#: Largest body of a request that is ignored, in bytes.
_LARGEST_BODY = 64 << 10

Rule = tuple[str, type[RequestHandler], dict[str, Any]]


class Site:
    """The objects that all handlers of a server share."""

    def __init__(
        self,
        monitor: Monitor,
        security: Security,
        executor: Executor | None = None,
        more_routes: Sequence[api.Route] = (),
    ) -> None:
        self.monitor = monitor
        self.security = security
        self.snapshots = Snapshots(monitor, executor)
        self._more_routes = more_routes

    @cached_property
    def openapi(self) -> Json:
        """The description of the API."""
        # Imported for those only who ask for it.
        from dask_mars.web import openapi

        return openapi.document([*api.ROUTES, *self._more_routes])


@stream_request_body
class Handler(RequestHandler):  # type: ignore[misc]
    """Authenticates each request first, and answers errors as ``application/problem+json``."""

    site: Site
    #: Access rights of the request; set by `prepare`.
    access: Access = Access.NONE
    #: Whether ``?token=`` in the address is accepted.
    takes_query_token: ClassVar[bool] = False
    #: Whether requests need no token.
    is_public: ClassVar[bool] = False
    #: Largest body, in bytes; bodies are ignored by handlers without a `data_received` of their own.
    largest_body: ClassVar[int] = _LARGEST_BODY

    def initialize(self, site: Site) -> None:
        """Set the shared objects."""
        self.site = site
        self._task: asyncio.Task[Any] | None = None

    def set_default_headers(self) -> None:
        """Set the security headers of all answers."""
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        # The address may contain a token.
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        """Refuse unauthorized and oversized requests."""
        request = self.request
        if not self.is_public:
            token = self.get_query_argument("token", None) if self.takes_query_token else None
            self.access = self.site.security.check(
                request.method,
                request.headers,
                {name: morsel.value for name, morsel in self.cookies.items()},
                query_token=token,
                # Only the server's own user can connect to a unix socket.
                from_own_user=getattr(request.connection.context, "address_family", None) == socket.AF_UNIX,
            )
        if sum(len(name) + len(value) for name, value in request.headers.get_all()) > LARGEST_HEADERS:
            raise Problem(431, f"the headers take more than {LARGEST_HEADERS} bytes")
        if len(request.uri) > LARGEST_HEADERS:
            raise Problem(414, f"the address takes more than {LARGEST_HEADERS} bytes")
        length = request.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > self.largest_body:
            raise Problem(413, f"the body is longer than {self.largest_body} bytes")
        request.connection.set_max_body_size(self.largest_body)

    def head(self, *arguments: str) -> Any:
        """Answer as to GET; tornado omits the body."""
        return self.get(*arguments)

    def data_received(self, chunk: bytes) -> None:
        """Ignore a part of the body."""

    async def answer(self, waiting: Awaitable[Any]) -> Any:
        """Return what the monitor or the store answers; what is unknown is 404, and a full disk 503."""
        try:
            return await waiting
        except KeyError as error:
            text = f"there is no {str(error.args[0])[:200]!r}" if error.args else "there is no such thing"
            raise Problem(404, text) from None
        except OSError as error:
            raise Problem(503, str(error), {"Retry-After": "60"}) from None

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may block, outside the event loop if the monitor has an executor."""
        return await self.site.snapshots.call(function, *arguments)

    def query(self, *known: str) -> dict[str, str]:
        """Return the parameters in the address, refusing unknown ones."""
        arguments = self.request.query_arguments
        api.check_names(arguments, known)
        return {name: self.get_query_argument(name) for name in arguments}

    def send_json(self, body: Any, kind: str = api.JSON) -> None:
        """Answer with JSON."""
        self.set_header("Content-Type", kind)
        self.finish(json.dumps(body, allow_nan=False, separators=(",", ":")))

    async def unless_gone(self, waiting: Awaitable[Any]) -> Any:
        """Return the result of an awaitable, or stop as soon as the client disconnects."""
        self._task = asyncio.ensure_future(waiting)
        try:
            return await self._task
        except asyncio.CancelledError:
            raise StreamClosedError from None
        finally:
            self._task = None

    def on_connection_close(self) -> None:
        """Cancel the work for a disconnected client."""
        super().on_connection_close()
        if self._task is not None:
            self._task.cancel()

    def write_error(self, status_code: int, **details: Any) -> None:
        """Answer with an error: to programs as JSON, to browsers as a page."""
        error = details.get("exc_info", (None, None))[1]
        if isinstance(error, Problem):
            detail = error.detail
            for name, value in error.headers.items():
                self.set_header(name, value)
        elif isinstance(error, HTTPError):
            detail = error.log_message or error.reason or api.problem(status_code, "")["title"]
            if status_code == 405:
                self.set_header("Allow", ", ".join(self._allowed()))
        else:
            detail = "this is a bug in dask_mars, please report it; its log says more"
        body = api.problem(status_code, detail)
        if "text/html" in self.request.headers.get("Accept", ""):
            self.finish(pages.error_page(body))
        else:
            self.send_json(body, api.PROBLEM)

    def _allowed(self) -> list[str]:
        """Return the methods of this route."""
        base, kind = vars(RequestHandler), type(self)
        own = [
            name
            for name in self.SUPPORTED_METHODS
            if getattr(kind, name.lower(), None) is not base.get(name.lower())
        ]
        return sorted({*own, "HEAD"} if "GET" in own else {*own} - {"HEAD"})

    def _handle_request_exception(self, error: BaseException) -> None:
        """Answer with an error. tornado does not know `Problem`, and would treat it as a bug."""
        if isinstance(error, StreamClosedError):
            return
        if isinstance(error, Problem) and not self._finished:
            self.send_error(error.status, exc_info=(type(error), error, error.__traceback__))
        else:
            super()._handle_request_exception(error)

    def log_exception(self, kind: Any, error: Any, traceback: Any) -> None:
        """Log bugs, but no errors of clients."""
        if not isinstance(error, HTTPError | Problem):
            logger.error("%s %s failed", self.request.method, self.request.path, exc_info=(kind, error, traceback))
