"""A reverse proxy below ``/proxy/8899/``, as Jupyter's server has one: it takes the prefix away, and buffers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

PREFIX = "/proxy/8899"
#: Headers that are about one connection, and not about what is said.
_OWN = {"connection", "content-length", "content-encoding", "transfer-encoding", "keep-alive", "accept-encoding"}


class _Forward(RequestHandler):
    def initialize(self, target: str) -> None:
        self.target = target

    async def forward(self, path: str) -> None:
        query = f"?{self.request.query}" if self.request.query else ""
        kept = {name: value for name, value in self.request.headers.get_all() if name.lower() not in _OWN}
        request = HTTPRequest(
            f"{self.target}{path}{query}",
            self.request.method,
            headers=kept,
            body=self.request.body if self.request.method == "POST" else None,
            follow_redirects=False,
            request_timeout=40,
        )
        answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        if answer.code == 599:
            self.send_error(502)
            return
        self.set_status(answer.code, answer.reason)
        self.clear_header("Content-Type")
        for name, value in answer.headers.get_all():
            if name.lower() not in _OWN:
                (self.add_header if name.lower() == "set-cookie" else self.set_header)(name, value)
        if answer.body:
            self.write(answer.body)

    get = post = forward


@contextlib.contextmanager
def proxying(target: str) -> Iterator[str]:
    """Run the proxy of a server in a thread; yield its address, to which the prefix is added."""
    ready = threading.Event()
    told: dict[str, Any] = {}

    async def serve() -> None:
        rules = [(rf"{PREFIX}/(.*)", _Forward, {"target": target})]
        server = HTTPServer(Application(rules, log_function=lambda handler: None))
        server.listen(0, "127.0.0.1")
        (bound,) = server._sockets.values()
        told.update(port=bound.getsockname()[1], loop=asyncio.get_running_loop(), end=asyncio.Event())
        ready.set()
        await told["end"].wait()
        server.stop()
        await server.close_all_connections()
        AsyncHTTPClient().close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(100)
    try:
        yield f"http://127.0.0.1:{told['port']}/"
    finally:
        told["loop"].call_soon_threadsafe(told["end"].set)
        thread.join(100)
