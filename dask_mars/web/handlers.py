"""The API as handlers of tornado: for a server of our own, for Dask's, and as a base for a service's handlers."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, ClassVar

from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from dask_mars.web import api, pages
from dask_mars.web.api import Problem
from dask_mars.web.monitor import Json, Monitor
from dask_mars.web.security import CONTENT_SECURITY_POLICY, Access, Refused, Security
from dask_mars.web.snapshots import Snapshots

logger = logging.getLogger("dask_mars")

#: What headers of a request may take, in bytes. tornado closes connections that send much more.
LARGEST_HEADERS = 16 << 10
#: What the body of a request may take that nobody reads.
_LARGEST_BODY = 64 << 10

Rule = tuple[str, type[RequestHandler], dict[str, Any]]


class Site:
    """What all handlers of a place share.

    Parameters
    ----------
    monitor : Monitor
        What is shown.
    security : Security
        To whom.
    executor : Executor, optional
        Where the monitor is asked. By default in the event loop.
    more_openapi : sequence of Path, optional
        Descriptions of further routes, whose ``paths`` and ``components`` are added to those of `api.ROUTES`.
    """

    def __init__(
        self,
        monitor: Monitor,
        security: Security,
        executor: Executor | None = None,
        more_openapi: Sequence[Path] = (),
    ) -> None:
        self.monitor = monitor
        self.security = security
        self.snapshots = Snapshots(monitor, executor)
        self.openapi = described([pages.OPENAPI, *more_openapi])


# -- bases ----------------------------------------------------------------------------------------------------


@stream_request_body
class Handler(RequestHandler):  # type: ignore[misc]
    """Checks who asks before anything else, and words errors as ``application/problem+json``.

    Bodies are not read into memory: a handler that wants one takes it by `data_received`, and says by
    `largest_body` how long it may be.
    """

    site: Site
    #: What the request may do, once it is prepared.
    access: Access = Access.NONE
    #: Whether ``?token=`` in the address is taken.
    takes_query_token: ClassVar[bool] = False
    #: Whether everybody may ask.
    is_public: ClassVar[bool] = False
    #: The most bytes of a body.
    largest_body: ClassVar[int] = _LARGEST_BODY

    def initialize(self, site: Site) -> None:
        """Take what all handlers share."""
        self.site = site
        self._task: asyncio.Task[Any] | None = None

    def set_default_headers(self) -> None:
        """Say what browsers may do with any answer."""
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        # The address may have a token in it.
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        """Refuse who may not ask, and what is too large.

        Raises
        ------
        Problem
            401, 403, 413, 431.
        """
        request = self.request
        if not self.is_public:
            token = self.get_query_argument("token", None) if self.takes_query_token else None
            try:
                self.access = self.site.security.check(
                    request.method,
                    request.headers,
                    {name: morsel.value for name, morsel in self.cookies.items()},
                    query_token=token,
                    from_own_user=is_from_own_user(self),
                )
            except Refused as refused:
                headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
                raise Problem(refused.status, refused.detail, headers) from None
        if sum(len(name) + len(value) for name, value in request.headers.get_all()) > LARGEST_HEADERS:
            raise Problem(431, f"the headers take more than {LARGEST_HEADERS} bytes")
        if len(request.uri) > LARGEST_HEADERS:
            raise Problem(414, f"the address takes more than {LARGEST_HEADERS} bytes")
        length = request.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > self.largest_body:
            raise Problem(413, f"the body is longer than {self.largest_body} bytes")
        request.connection.set_max_body_size(self.largest_body)

    def data_received(self, chunk: bytes) -> None:
        """Take a part of the body; here nobody wants it."""

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may block: beside the event loop, if the monitor lives there."""
        return await self.site.snapshots.call(function, *arguments)

    def query(self, *known: str) -> dict[str, str]:
        """Return the parameters in the address, refusing unknown ones."""
        arguments = self.request.query_arguments
        api.check_names(arguments, known)
        return {name: self.get_query_argument(name) for name in arguments}

    def send_json(self, body: Any, kind: str = "application/json") -> None:
        """Answer with JSON."""
        self.set_header("Content-Type", kind)
        self.finish(json.dumps(body, allow_nan=False, separators=(",", ":")))

    async def unless_gone(self, waiting: Awaitable[Any]) -> Any:
        """Return what comes of it, or stop as soon as the client hangs up."""
        self._task = asyncio.ensure_future(waiting)
        try:
            return await self._task
        except asyncio.CancelledError:
            raise StreamClosedError from None
        finally:
            self._task = None

    def on_connection_close(self) -> None:
        """Nobody waits for the answer any more."""
        super().on_connection_close()
        if self._task is not None:
            self._task.cancel()

    def write_error(self, status_code: int, **details: Any) -> None:
        """Say what is wrong: to programs as JSON, to browsers as a page."""
        error = details.get("exc_info", (None, None))[1]
        if isinstance(error, Problem):
            detail = error.detail
            for name, value in error.headers.items():
                self.set_header(name, value)
        elif isinstance(error, HTTPError):
            detail = error.log_message or error.reason or api.problem(status_code, "")["title"]
        else:
            detail = "this is a bug in dask_mars, please report it; its log says more"
        body = api.problem(status_code, detail)
        if "text/html" in self.request.headers.get("Accept", ""):
            self.finish(pages.error_page(body))
        else:
            self.send_json(body, "application/problem+json")

    def _handle_request_exception(self, error: BaseException) -> None:
        """Answer with what went wrong. `Problem` knows no tornado, which would take it for a bug."""
        if isinstance(error, StreamClosedError):
            return
        if isinstance(error, Problem) and not self._finished:
            self.send_error(error.status, exc_info=(type(error), error, error.__traceback__))
        else:
            super()._handle_request_exception(error)

    def log_exception(self, kind: Any, error: Any, traceback: Any) -> None:
        """Log bugs, and nothing that clients do."""
        if not isinstance(error, HTTPError | Problem):
            logger.error("%s %s failed", self.request.method, self.request.path, exc_info=(kind, error, traceback))


class ComputationHandler(Handler):
    """Of routes of one computation: unknown ones are 404."""

    async def ask(self, name: str, id: str, *arguments: Any) -> Any:
        """Return what the monitor says of a computation.

        Raises
        ------
        Problem
            404 if it is unknown.
        """
        known = api.computation_id(id)
        try:
            return await self.site.snapshots.ask(name, known, *arguments)
        except KeyError as error:
            raise unknown(error) from None


def unknown(error: KeyError) -> Problem:
    """Return how to say that there is no such computation, layer or key."""
    return Problem(404, f"there is no {str(error.args[0])[:200]!r}" if error.args else "there is no such thing")


def is_from_own_user(handler: RequestHandler) -> bool:
    """Say whether a request came by a unix socket, which the server lets nobody but its own user connect to."""
    return getattr(handler.request.connection.context, "address_family", None) == socket.AF_UNIX


# -- the API --------------------------------------------------------------------------------------------------


class StateHandler(Handler):
    """``state``."""

    async def get(self) -> None:
        """Answer at once, or when there is news."""
        poll = api.long_poll(self.query("after", "wait"))
        state = await self.unless_gone(self.site.snapshots.poll(poll, "state"))
        # Who may only look is shown no buttons.
        self.send_json(state if self.access is Access.FULL else {**state, "can": []})


class ListHandler(Handler):
    """``computations``."""

    async def get(self) -> None:
        """Answer with a part of the list."""
        asked = api.listing(self.query("state", "before", "limit"))
        try:
            found = await self.site.snapshots.ask("computations", asked.state, asked.before, asked.limit)
        except ValueError:
            raise Problem(400, "'before' is the 'next' of an answer") from None
        self.send_json(found)


class OneHandler(ComputationHandler):
    """``computations/{id}``."""

    async def get(self, id: str) -> None:
        """Answer at once, or when there is news."""
        poll = api.long_poll(self.query("after", "wait"))
        known = api.computation_id(id)
        try:
            self.send_json(await self.unless_gone(self.site.snapshots.poll(poll, "computation", known)))
        except KeyError as error:
            raise unknown(error) from None


class CancelHandler(ComputationHandler):
    """``computations/{id}/cancel``."""

    async def post(self, id: str) -> None:
        """Have a computation end."""
        self.query()
        known = api.computation_id(id)
        try:
            found = await self.call(self.site.monitor.cancel, known)
        except KeyError as error:
            raise unknown(error) from None
        self.site.snapshots.forget()
        if not found:
            raise Problem(409, "the computation is over already")
        self.set_status(202)
        self.send_json({"id": known})


class FacetHandler(ComputationHandler):
    """What else there is to know of a computation: ``computations/{id}/error`` and its like."""

    def initialize(self, site: Site, name: str = "", parameter: str | None = None) -> None:
        """Take the name of the monitor's method, and of its further argument."""
        super().initialize(site)
        self._name = name
        self._parameter = parameter

    async def get(self, id: str) -> None:
        """Answer with it."""
        if self._parameter is None:
            self.query()
            arguments: tuple[Any, ...] = ()
        else:
            arguments = (api.name_in(self.query(self._parameter), self._parameter),)
        self.send_json(await self.ask(self._name, id, *arguments))


class ExplainHandler(Handler):
    """``explain``: of all computations."""

    async def get(self) -> None:
        """Answer with it."""
        key = api.name_in(self.query("key"), "key")
        try:
            self.send_json(await self.site.snapshots.ask("explain", None, key))
        except KeyError as error:
            raise unknown(error) from None


class OpenApiHandler(Handler):
    """``openapi.json``."""

    async def get(self) -> None:
        """Answer with it."""
        self.query()
        self.send_json(self.site.openapi)


def described(paths: Sequence[Path]) -> Json:
    """Return the description of an API that is in several files: the first, with what the others add."""
    first, *others = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    whole: Json = first
    for other in others:
        for path, methods in other.get("paths", {}).items():
            whole["paths"].setdefault(path, {}).update(methods)
        for kind, components in other.get("components", {}).items():
            whole["components"].setdefault(kind, {}).update(components)
    return whole


class HealthHandler(Handler):
    """``/healthz``: that the server answers, for whoever restarts it otherwise."""

    is_public = True

    def get(self) -> None:
        """Answer."""
        self.send_json({"status": "ok"})


# -- pages ----------------------------------------------------------------------------------------------------


class PageHandler(Handler):
    """The page for browsers, and what it is made of."""

    takes_query_token = True

    def get(self, name: str = "") -> None:
        """Answer with a file of the page. A token goes from the address into a cookie."""
        token = self.get_query_argument("token", None)
        if token is not None:
            self._keep(token)
            return
        found = pages.files().get(name or "index.html")
        if found is None:
            raise Problem(404, f"there is no page {name[:200]!r}")
        self.set_header("Content-Type", found.kind)
        self.set_header("Cache-Control", "no-cache")
        self.set_header("ETag", found.tag)
        if self.check_etag_header():
            self.set_status(304)
            self.finish()
        else:
            self.finish(found.content)

    head = get

    def _keep(self, token: str) -> None:
        """Have the browser keep a token, and forget the address with it."""
        if self.site.security.access_by(token) is not Access.NONE:
            # Without a path it is sent back to what is below the page, wherever a proxy has put that. Names of
            # cookies that are the same for all ports of a host would be a nuisance.
            self.set_cookie(
                self.site.security.cookie,
                token,
                path="",
                httponly=True,
                samesite="Strict",
                secure=self.request.protocol == "https",
            )
        rest = [
            (name, value)
            for name, values in self.request.query_arguments.items()
            for value in values
            if name != "token"
        ]
        self.redirect(pages.with_query(".", rest))


class ViewHandler(Handler):
    """``view/<name>``: links to parts of the page that stay whole when ``?token=`` is put behind them."""

    takes_query_token = True

    def get(self, name: str) -> None:
        """Lead to the page."""
        if name not in pages.VIEWS:
            raise Problem(404, f"there is no view {name[:200]!r}")
        token = self.get_query_argument("token", None)
        self.redirect(pages.with_query("../", [] if token is None else [("token", token)]) + f"#{name}")


class PlotsHandler(Handler):
    """``individual-plots.json``: what dask-labextension lists. It shows its token in the address, as pages do."""

    takes_query_token = True

    def get(self) -> None:
        """Answer with names and paths."""
        self.send_json({f"Individual {title}": f"/view/{name}" for name, title in pages.VIEWS.items()})


class MissingHandler(Handler):
    """Whatever there is not."""

    def prepare(self) -> None:
        """Say so, to whoever may ask."""
        super().prepare()
        raise Problem(404, "there is nothing here")


# -- all of it ------------------------------------------------------------------------------------------------


def api_rules(site: Site, prefix: str = "") -> list[Rule]:
    """Return the handlers of the API, with patterns as tornado takes them.

    Parameters
    ----------
    site : Site
        What they show.
    prefix : str, optional
        What stands before all paths.
    """
    shared = {"site": site}
    of_routes: dict[str, tuple[type[Handler], dict[str, Any]]] = {
        "state": (StateHandler, {}),
        "computations": (ListHandler, {}),
        "computations/{id}": (OneHandler, {}),
        "computations/{id}/cancel": (CancelHandler, {}),
        "explain": (ExplainHandler, {}),
        "openapi.json": (OpenApiHandler, {}),
    }
    rules: list[Rule] = []
    for route in api.ROUTES:
        facet = {"name": route.path.rpartition("/")[2], "parameter": next(iter(route.query), None)}
        handler, more = of_routes.get(route.path, (FacetHandler, facet))
        rules.append((f"{prefix}/{api.ROOT}/{route.pattern}", handler, shared | more))
    return rules


def page_rules(site: Site, prefix: str = "") -> list[Rule]:
    """Return the handlers of the page, of `HealthHandler`, and of whatever there is not."""
    shared = {"site": site}
    return [
        (f"{prefix}/healthz", HealthHandler, shared),
        (f"{prefix}/individual-plots.json", PlotsHandler, shared),
        (f"{prefix}/view/([^/]+)", ViewHandler, shared),
        (f"{prefix}/{api.ROOT}(?:/.*)?", MissingHandler, shared),
        (f"{prefix}/(.*)", PageHandler, shared),
    ]


def make_application(
    monitor: Monitor,
    security: Security,
    extra_handlers: Callable[[Site], Sequence[Rule]] | Iterable[Rule] = (),
    *,
    executor: Executor | None = None,
    **options: Any,
) -> Application:
    """Return an application of tornado with the API and the page.

    Parameters
    ----------
    monitor : Monitor
        What it shows.
    security : Security
        To whom.
    extra_handlers : sequence of rules, or function, optional
        What comes before our own: triples of a pattern, a class and its arguments. A function gets the `Site`.
    executor : Executor, optional
        Where the monitor is asked. By default in the event loop.
    **options
        As for `Site`.
    """
    site = Site(monitor, security, executor, **options)
    extra = extra_handlers(site) if callable(extra_handlers) else extra_handlers
    return Application(
        [*extra, *api_rules(site), *page_rules(site)],
        default_handler_class=MissingHandler,
        default_handler_args={"site": site},
        log_function=lambda handler: None,
    )


__all__ = [
    "LARGEST_HEADERS",
    "ComputationHandler",
    "Handler",
    "Rule",
    "Site",
    "api_rules",
    "make_application",
    "page_rules",
    "unknown",
]
