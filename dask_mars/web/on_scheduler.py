"""The API and the page on the web server of Dask's scheduler."""

from __future__ import annotations

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


def rules(monitor: Monitor, prefix: str) -> list[Rule]:
    """Return handlers for Dask's server; without a token all may view, and cancelling is disabled."""
    token, view_token = config.get("web.token"), config.get("web.view-token")
    is_open = token is None and view_token is None
    # Dask's server accepts any host name, and browsers send a cookie only to the host that has set it.
    security = Security(
        token, view_token, anyone=Access.VIEW if is_open else Access.NONE, hosts=None, checks_origin=False
    )
    site = Site(monitor, security)
    return [(prefix, _Slash, {"site": site}), *handlers.rules(site, prefix)]
