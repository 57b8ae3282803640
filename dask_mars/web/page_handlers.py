"""Handlers of tornado for the page for browsers, and links to it."""

from __future__ import annotations

from dask_mars.web import api, pages
from dask_mars.web.api import Problem
from dask_mars.web.api_handlers import HealthHandler
from dask_mars.web.handling import Handler, Rule, Site
from dask_mars.web.security import Access


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


def page_rules(site: Site, prefix: str = "") -> list[Rule]:
    """Return the handlers of the page, of `HealthHandler`, and of unknown paths."""
    shared = {"site": site}
    return [
        (f"{prefix}/healthz", HealthHandler, shared),
        (f"{prefix}/individual-plots.json", PlotsHandler, shared),
        (f"{prefix}/view/([^/]+)", ViewHandler, shared),
        (f"{prefix}/{api.ROOT}(?:/.*)?", MissingHandler, shared),
        (f"{prefix}/(.*)", PageHandler, shared),
    ]
