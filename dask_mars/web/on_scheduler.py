"""The API and the page on the web server of Dask's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dask_mars import config
from dask_mars.web.api_handlers import api_rules
from dask_mars.web.handling import Handler, Rule, Site
from dask_mars.web.monitor import Monitor
from dask_mars.web.page_handlers import page_rules
from dask_mars.web.security import Access, Security


class _Slash(Handler):
    """The page without the slash that addresses relative to it need."""

    is_public = True

    def get(self) -> None:
        """Lead there, token and all."""
        query = self.request.query
        self.redirect(self.request.path.rpartition("/")[2] + "/" + (f"?{query}" if query else ""))


class _Figures(Handler):
    """Figures that a function returns."""

    def initialize(self, site: Site, figures: Callable[[], Any] = dict) -> None:
        """Take the function."""
        super().initialize(site)
        self._figures = figures

    def get(self) -> None:
        """Answer with them."""
        self.send_json(self._figures())


def rules(monitor: Monitor, prefix: str, figures: Iterable[tuple[str, Callable[[], Any]]] = ()) -> list[Rule]:
    """Return handlers for Dask's server.

    Where ``dask-mars.web.token`` is set, nothing is shown without it or ``view-token``. Else everybody may look,
    and nobody may cancel. Names of hosts are not checked: Dask's server has any, and a cookie goes only to that
    which has set it.

    Parameters
    ----------
    monitor : Monitor
        What is shown. It is asked in the event loop of the scheduler, where that lives.
    prefix : str
        What stands before all paths, without a slash at the end.
    figures : iterable of pair, optional
        More paths below the prefix, and functions that return what is to be found there.
    """
    token, view_token = config.get("web.token"), config.get("web.view-token")
    is_open = token is None and view_token is None
    # A name that a proxy has changed is no reason to refuse our own page: scripts of others get no cookie.
    security = Security(
        token, view_token, anyone=Access.VIEW if is_open else Access.NONE, hosts=None, checks_origin=False
    )
    site = Site(monitor, security)
    shared: dict[str, Any] = {"site": site}
    more: list[Rule] = [(f"{prefix}/{path}", _Figures, {**shared, "figures": told}) for path, told in figures]
    return [(prefix, _Slash, shared), *more, *api_rules(site, prefix), *page_rules(site, prefix)]
