"""The API's routes as handlers of tornado."""

from __future__ import annotations

from typing import Any

from dask_mars.web import api
from dask_mars.web.api import Problem
from dask_mars.web.handling import ComputationHandler, Handler, Rule, Site, unknown
from dask_mars.web.security import Access


class StateHandler(Handler):
    """``state``."""

    async def get(self) -> None:
        """Answer at once, or when there is news."""
        poll = api.long_poll(self.query("after", "wait"))
        state = await self.unless_gone(self.site.snapshots.poll(poll, "state"))
        # Without buttons for tokens that only read.
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
        """Cancel a computation."""
        self.query()
        known = api.computation_id(id)
        try:
            found = await self.call(self.site.monitor.cancel, known)
        except KeyError as error:
            raise unknown(error) from None
        except OSError as error:
            raise Problem(503, str(error), {"Retry-After": "60"}) from None
        self.site.snapshots.forget()
        if not found:
            raise Problem(409, "the computation is over already")
        self.set_status(202)
        self.send_json({"id": known})


class FacetHandler(ComputationHandler):
    """Further data of a computation: ``computations/{id}/error`` and others."""

    def initialize(self, site: Site, name: str = "", parameter: str | None = None) -> None:
        """Set the name of the monitor's method, and of its further argument."""
        super().initialize(site)
        self._name = name
        self._parameter = parameter

    async def get(self, id: str) -> None:
        """Answer with the data."""
        if self._parameter is None:
            self.query()
            arguments: tuple[Any, ...] = ()
        else:
            arguments = (api.name_in(self.query(self._parameter), self._parameter),)
        self.send_json(await self.ask(self._name, id, *arguments))


class ProfileHandler(ComputationHandler):
    """``computations/{id}/profile``: the layers of a computation in other words."""

    async def get(self, id: str) -> None:
        """Answer with the cost of each layer that has begun."""
        self.query()
        self.send_json(api.profile_of(await self.ask("computation", id)))


class ExplainHandler(Handler):
    """``explain``, for all computations."""

    async def get(self) -> None:
        """Answer with the explanation."""
        key = api.name_in(self.query("key"), "key")
        try:
            self.send_json(await self.site.snapshots.ask("explain", None, key))
        except KeyError as error:
            raise unknown(error) from None


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


def api_rules(site: Site, prefix: str = "") -> list[Rule]:
    """Return the handlers of the API, with tornado's patterns."""
    shared = {"site": site}
    of_routes: dict[str, tuple[type[Handler], dict[str, Any]]] = {
        "state": (StateHandler, {}),
        "computations": (ListHandler, {}),
        "computations/{id}": (OneHandler, {}),
        "computations/{id}/cancel": (CancelHandler, {}),
        "computations/{id}/profile": (ProfileHandler, {}),
        "explain": (ExplainHandler, {}),
        "openapi.json": (OpenApiHandler, {}),
    }
    rules: list[Rule] = []
    for route in api.ROUTES:
        facet = {"name": route.path.rpartition("/")[2], "parameter": next(iter(route.query), None)}
        handler, more = of_routes.get(route.path, (FacetHandler, facet))
        rules.append((f"{prefix}/{api.ROOT}/{route.pattern}", handler, shared | more))
    return rules


__all__ = ["HealthHandler", "OneHandler", "api_rules"]
