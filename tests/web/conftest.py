"""Servers of a fake monitor, and a client that says what came."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.web.fakes import FakeMonitor


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
        if parts.scheme == "https":
            unchecked = ssl._create_unverified_context()
            connection: HTTPConnection = HTTPSConnection(parts.hostname, parts.port, timeout=20, context=unchecked)
        else:
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
def nobody(server: Any) -> Asker:
    """Ask without a token."""
    return Asker(server.url, {})
