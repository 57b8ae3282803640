"""A client whose service cannot answer now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import dask
import pytest

from dask_mars.errors import ServiceError, ServiceUnreachable
from dask_mars.web import connection
from dask_mars.web.address import Endpoint
from dask_mars.web.client import Service
from dask_mars.web.connection import Connection


class FullDisk(HTTPServer):
    """A service whose disk is full for a number of requests, which it counts."""

    refusals = 0


class _Refuses(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FullDisk

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        is_full = self.server.refusals > 0
        self.server.refusals -= is_full
        text = b'{"detail": "the disk is full"}' if is_full else b"{}"
        self.send_response(503 if is_full else 200)
        self.send_header("Retry-After", "60")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[FullDisk]:
    with FullDisk(("127.0.0.1", 0), _Refuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def service(server: FullDisk) -> Iterator[Service]:
    with Service(Connection(Endpoint(port=server.server_port, host="127.0.0.1"))) as service:
        yield service


def test_the_terminal_says_once_what_a_submission_waits_for(server, service, monkeypatch, capsys) -> None:
    monkeypatch.setattr(connection, "_SILENT_S", 3600.0)
    monkeypatch.setattr(connection, "_LONGEST_PAUSE_S", 0.01)
    server.refusals = 2
    service.submit(1)
    # What is over soon is not told.
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(connection, "_SILENT_S", 0.0)
    server.refusals = 3
    service.submit(1)
    assert server.refusals == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert f"the service at http://127.0.0.1:{server.server_port} cannot answer now: the disk is full" in line
    assert "(dask-mars.web.patience)" in line


def test_patience_that_is_set_after_connecting_holds(server, service) -> None:
    server.refusals = 1_000_000
    with dask.config.set({"dask-mars.web.patience": "1 ms"}):
        with pytest.raises(ServiceError, match="the disk is full"):
            service.submit(1)
        server.server_close()
        with pytest.raises(ServiceUnreachable):
            service.state()
