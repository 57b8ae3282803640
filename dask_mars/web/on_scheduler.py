"""The API and the page on the web server of Dask's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dask_mars import config
from dask_mars.web import handlers
from dask_mars.web.handling import Handler, Rule, Site
from dask_mars.web.monitor import Monitor
from dask_mars.web.security import Access, Security


class _Slash(Handler):
    """The page without the final slash, which relative addresses need."""

    is_public = True

    def get(self) -> None:
        """Redirect with the slash, and with the token."""
        query = self.request.query
        self.redirect(self.request.path.rpartition("/")[2] + "/" + (f"?{query}" if query else ""))


class _Figures(Handler):
    """The result of a function as JSON."""

    def initialize(self, site: Site, figures: Callable[[], Any] = dict) -> None:
        """Set the function."""
        super().initialize(site)
        self._figures = figures

    def get(self) -> None:
        """Answer with its result."""
        self.send_json(self._figures())


def rules(monitor: Monitor, prefix: str, figures: Iterable[tuple[str, Callable[[], Any]]] = ()) -> list[Rule]:
    """Return handlers for Dask's server; without a token all may view, and cancelling is disabled."""
    token, view_token = config.get("web.token"), config.get("web.view-token")
    is_open = token is None and view_token is None
    # Dask's server accepts any host name, and browsers send a cookie only to the host that has set it.
    security = Security(
        token, view_token, anyone=Access.VIEW if is_open else Access.NONE, hosts=None, checks_origin=False
    )
    site = Site(monitor, security)
    shared: dict[str, Any] = {"site": site}
    more: list[Rule] = [(f"{prefix}/{path}", _Figures, {**shared, "figures": told}) for path, told in figures]
    return [(prefix, _Slash, shared), *more, *handlers.rules(site, prefix)]
