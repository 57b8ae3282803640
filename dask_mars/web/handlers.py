"""The API and the page as an application of tornado: for our own server, for Dask's, and for a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any

from tornado.web import Application

from dask_mars.web.api_handlers import api_rules
from dask_mars.web.handling import Rule, Site
from dask_mars.web.monitor import Monitor
from dask_mars.web.page_handlers import MissingHandler, page_rules
from dask_mars.web.security import Security


def make_application(
    monitor: Monitor,
    security: Security,
    extra_handlers: Callable[[Site], Sequence[Rule]] | Iterable[Rule] = (),
    *,
    executor: Executor | None = None,
    **options: Any,
) -> Application:
    """Return an application of tornado with the API and the page."""
    site = Site(monitor, security, executor, **options)
    extra = extra_handlers(site) if callable(extra_handlers) else extra_handlers
    return Application(
        [*extra, *api_rules(site), *page_rules(site)],
        default_handler_class=MissingHandler,
        default_handler_args={"site": site},
        log_function=lambda handler: None,
    )
