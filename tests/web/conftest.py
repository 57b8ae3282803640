"""Servers of a fake monitor, a client that says what came, and somebody who looks at pages."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from dask_mars.web.client import Service
from tests.conftest import eventually, shared_hosts
from tests.web.browser import Viewer, browsing, look
from tests.web.fakes import FakeMonitor
from tests.web.services import BODY_LIMIT_BYTES, HISTORY_BYTES, RunningService, running


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """What is wrong, in an answer that says so."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == self.status
        text: str = self.json["detail"]
        return text


@dataclass
class Asker:
    """Asks a server over one connection for each request."""

    url: str
    headers: dict[str, str]

    def __call__(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Ask; names of headers have `_` for `-`, and a value of "" leaves one out."""
        parts = urlsplit(self.url)
        connection = HTTPConnection(parts.hostname, parts.port, timeout=20)
        wanted = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, {name: value for name, value in wanted.items() if value})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def api(self, path: str, method: str = "GET", **headers: str) -> Answer:
        return self(f"/api/v1/{path}", method, **headers)


@pytest.fixture
def monitor() -> FakeMonitor:
    return FakeMonitor()


@pytest.fixture
def server(monitor: FakeMonitor) -> Iterator[Any]:
    served = pytest.importorskip("dask_mars.web.server")
    with served.serve(monitor) as server:
        yield server


@pytest.fixture
def ask(server: Any) -> Asker:
    """Ask with the token for everything."""
    return Asker(server.url, {"Authorization": f"Bearer {server.token}"})


@pytest.fixture
def view(server: Any) -> Asker:
    """Ask with the token for looking."""
    return Asker(server.url, {"Authorization": f"Bearer {server.view_token}"})


@pytest.fixture
def without_token(server: Any) -> Asker:
    """Ask without a token."""
    return Asker(server.url, {})


# -- services -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def served(private_tmp: Path) -> Iterator[RunningService]:
    """Run a service at a socket and a port, for all tests that leave one running."""
    settings = {"BODY_LIMIT": str(BODY_LIMIT_BYTES), "HISTORY__BYTES": str(HISTORY_BYTES)}
    env = {f"DASK_DASK_MARS__WEB__{name}": value for name, value in settings.items()}
    with running(private_tmp / "service", "--port", "0", **env) as service:
        yield service


@pytest.fixture
def service(served: RunningService) -> Iterator[Service]:
    """Connect to the shared service, in which a test may leave computations that are over."""
    with served.connect() as service:
        yield service
        # The service drops a refused body just after the answer.
        assert eventually(lambda: not os.listdir(served.directory / "incoming"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """The records of a service without processes."""
    stores = pytest.importorskip("dask_mars.web.service.store")
    with contextlib.closing(stores.ServiceStore(tmp_path / "d")) as store:
        yield store


# -- browsers -----------------------------------------------------------------------------------------------


class Browser:
    """The browser's processes, which are there from test to test."""

    def __init__(self, driver: Any) -> None:
        self._pid = driver.service.process.pid

    def pids(self) -> set[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return {self._pid, *[child.pid for child in psutil.Process(self._pid).children(recursive=True)]}
        return set()


@pytest.fixture(scope="module")
def driver(private_tmp: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(tmp_path_factory.mktemp("browser")) as driver:
        host = Browser(driver)
        shared_hosts.append(host)
        try:
            yield driver
        finally:
            shared_hosts.remove(host)


@pytest.fixture
def viewer(driver: Any) -> Iterator[Viewer]:
    """Somebody who looks; at the end the console must be empty, and no other host have been asked."""
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    look(driver)
    viewer = Viewer(driver)
    viewer.complaints()
    yield viewer
    viewer.leave()
    complaints = viewer.complaints()
    assert not complaints
