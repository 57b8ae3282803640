"""The API's routes as handlers of tornado."""

from __future__ import annotations

from typing import Any

from dask_mars.web import api
from dask_mars.web.api import Problem
from dask_mars.web.handling import Handler, Rule, Site
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


class OneHandler(Handler):
    """``computations/{id}``."""

    async def get(self, id: str) -> None:
        """Answer at once, or when there is news."""
        poll = api.long_poll(self.query("after", "wait"))
        asked = self.site.snapshots.poll(poll, "computation", api.computation_id(id))
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


class ProfileHandler(Handler):
    """``computations/{id}/profile``: the layers of a computation in other words."""

    async def get(self, id: str) -> None:
        """Answer with the cost of each layer that has begun."""
        self.query()
        asked = self.site.snapshots.ask("computation", api.computation_id(id))
        self.send_json(api.profile_of(await self.answer(asked)))


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
        "openapi.json": (OpenApiHandler, {}),
    }
    rules: list[Rule] = []
    for route in api.ROUTES:
        facet = {"name": route.path.rpartition("/")[2], "parameter": next(iter(route.query), None)}
        handler, more = of_routes.get(route.path, (FacetHandler, facet))
        rules.append((f"{prefix}/{api.ROOT}/{route.pattern}", handler, shared | more))
    return rules
