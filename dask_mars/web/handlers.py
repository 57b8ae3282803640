"""The API and the page as handlers of tornado: for our own server, for Dask's, and for a service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from tornado.web import Application

from dask_mars.web import api, pages
from dask_mars.web.api import Problem
from dask_mars.web.handling import Handler, Rule, Site
from dask_mars.web.monitor import Monitor
from dask_mars.web.security import Access, Security


class StateHandler(Handler):
    """``state``."""

    async def get(self) -> None:
        """Answer at once, or when there is news."""
        poll = api.long_poll(self.query("after", "wait"))
        state = await self.unless_gone(self.site.snapshots.poll(*poll, "state"))
        # Without buttons for tokens that only read.
        self.send_json(state if self.access is Access.FULL else {**state, "can": []})


class ListHandler(Handler):
    """``computations``."""

    async def get(self) -> None:
        """Answer with a part of the list."""
        asked = api.listing(self.query("state", "before", "limit"))
        try:
            found = await self.site.snapshots.ask("computations", *asked)
        except ValueError:
            raise Problem(400, "'before' is the 'next' of an answer") from None
        self.send_json(found)


class OneHandler(Handler):
    """``computations/{id}``."""

    async def get(self, id: str) -> None:
        """Answer at once, or when there is news."""
        poll = api.long_poll(self.query("after", "wait"))
        asked = self.site.snapshots.poll(*poll, "computation", api.computation_id(id))
        self.send_json(await self.unless_gone(self.answer(asked)))


class CancelHandler(Handler):
    """``computations/{id}/cancel``."""

    async def post(self, id: str) -> None:
        """Cancel a computation."""
        self.query()
        known = api.computation_id(id)
        found = await self.answer(self.call(self.site.monitor.cancel, known))
        self.site.snapshots.forget()
        if not found:
            raise Problem(409, "the computation is over already")
        self.set_status(202)
        self.send_json({"id": known})


class FacetHandler(Handler):
    """Further data of a computation, ``computations/{id}/error`` and others, or of all: ``explain``."""

    def initialize(self, site: Site, name: str = "", parameter: str | None = None) -> None:
        """Set the name of the monitor's method, and of its further argument."""
        super().initialize(site)
        self._name = name
        self._parameter = parameter

    async def get(self, id: str | None = None) -> None:
        """Answer with the data."""
        query = self.query(*filter(None, [self._parameter]))
        more = [] if self._parameter is None else [api.name_in(query, self._parameter)]
        known = None if id is None else api.computation_id(id)
        self.send_json(await self.answer(self.site.snapshots.ask(self._name, known, *more)))


class OpenApiHandler(Handler):
    """``openapi.json``."""

    async def get(self) -> None:
        """Answer with the description of the API."""
        self.query()
        self.send_json(self.site.openapi)


class HealthHandler(Handler):
    """``/healthz``, for health checks of the server."""

    is_public = True

    def get(self) -> None:
        """Answer that the server works."""
        self.send_json({"status": "ok"})


class PageHandler(Handler):
    """The files of the page for browsers."""

    takes_query_token = True

    def get(self, name: str = "") -> None:
        """Answer with a file of the page. A token in the address moves into a cookie."""
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

    def _keep(self, token: str) -> None:
        """Store a token in a cookie, and redirect to the address without it."""
        if self.site.security.access_by(token) is not Access.NONE:
            # Without a path the browser sends it to all pages below this one, wherever a proxy has put them.
            # Cookies are shared by all ports of a host, so its name is unique.
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
    """``view/<name>``: links to parts of the page that stay valid when ``?token=`` is appended."""

    takes_query_token = True

    def get(self, name: str) -> None:
        """Redirect to the page."""
        if name not in pages.VIEWS:
            raise Problem(404, f"there is no view {name[:200]!r}")
        token = self.get_query_argument("token", None)
        self.redirect(pages.with_query("../", [] if token is None else [("token", token)]) + f"#{name}")


class PlotsHandler(Handler):
    """``individual-plots.json``, for dask-labextension, which sends its token in the address, as pages do."""

    takes_query_token = True

    def get(self) -> None:
        """Answer with names and paths."""
        self.send_json({f"Individual {title}": f"/view/{name}" for name, title in pages.VIEWS.items()})


class MissingHandler(Handler):
    """Unknown paths."""

    def prepare(self) -> None:
        """Answer 404, after the authentication."""
        super().prepare()
        raise Problem(404, "there is nothing here")


def rules(site: Site, prefix: str = "") -> list[Rule]:
    """Return the handlers of the API, of the page, and of unknown paths, with tornado's patterns."""
    shared: dict[str, Any] = {"site": site}
    of_routes: dict[str, type[Handler]] = {
        "state": StateHandler,
        "computations": ListHandler,
        "computations/{id}": OneHandler,
        "computations/{id}/cancel": CancelHandler,
        "openapi.json": OpenApiHandler,
    }
    found: list[Rule] = []
    for route in api.ROUTES:
        handler, options = of_routes.get(route.path), shared
        if handler is None:
            facet = {"name": route.path.rpartition("/")[2], "parameter": next(iter(route.query), None)}
            handler, options = FacetHandler, shared | facet
        found.append((f"{prefix}/{api.ROOT}/{route.pattern}", handler, options))
    return [
        *found,
        (f"{prefix}/healthz", HealthHandler, shared),
        (f"{prefix}/individual-plots.json", PlotsHandler, shared),
        (f"{prefix}/view/([^/]+)", ViewHandler, shared),
        (f"{prefix}/{api.ROOT}(?:/.*)?", MissingHandler, shared),
        (f"{prefix}/(.*)", PageHandler, shared),
    ]


def make_application(
    monitor: Monitor,
    security: Security,
    extra_rules: Callable[[Site], Sequence[Rule]] = lambda site: (),
    executor: Executor | None = None,
    more_routes: Sequence[api.Route] = (),
) -> Application:
    """Return an application of tornado with the API and the page."""
    site = Site(monitor, security, executor, more_routes)
    return Application(
        [*extra_rules(site), *rules(site)],
        default_handler_class=MissingHandler,
        default_handler_args={"site": site},
        log_function=lambda handler: None,
    )
