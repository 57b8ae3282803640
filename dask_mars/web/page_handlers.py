"""The page for browsers as handlers of tornado, and what leads to it."""

from __future__ import annotations

from dask_mars.web import api, pages
from dask_mars.web.api import Problem
from dask_mars.web.api_handlers import HealthHandler
from dask_mars.web.handling import Handler, Rule, Site
from dask_mars.web.security import Access


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


__all__ = ["MissingHandler", "page_rules"]
