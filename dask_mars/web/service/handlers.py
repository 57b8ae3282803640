"""Routes that a service adds to the API: submit, delete, fetch the result."""

from __future__ import annotations

from pathlib import Path

from dask_mars.web import api
from dask_mars.web.handling import Rule, Site
from dask_mars.web.service.context import Service
from dask_mars.web.service.downloads import ResultHandler
from dask_mars.web.service.submissions import SubmissionHandler

#: The description of these routes, in addition to that of the others.
OPENAPI = Path(__file__).with_name("openapi.json")


def rules(site: Site, service: Service) -> list[Rule]:
    """Return the handlers of what a service can besides being looked at."""
    shared = {"site": site, "service": service}
    return [
        (rf"/{api.ROOT}/computations/([^/]+)", SubmissionHandler, shared),
        (rf"/{api.ROOT}/computations/([^/]+)/result", ResultHandler, shared),
    ]


__all__ = ["OPENAPI", "rules"]
