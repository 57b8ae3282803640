"""Serves scenes below ``/<scene>/``, in a process of its own: prints its port, and ends with its standard input.

As a service does it, with its headers: `make_application` has the handlers, of which each scene gets a set.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from dask_mars.web.api_handlers import api_rules
from dask_mars.web.handling import Site
from dask_mars.web.page_handlers import page_rules
from dask_mars.web.security import Access, Security

from .scenes import Scene

TOKEN = "t" * 43


class Records(RequestHandler):
    """What has been asked of a scene, and what it is to do."""

    def initialize(self, scene: Scene) -> None:
        self.scene = scene

    def get(self) -> None:
        asked = {name: self.scene.asked.count(name) for name in set(self.scene.asked)}
        self.finish(json.dumps({"cancelled": self.scene.cancelled, "asked": asked}))

    def post(self) -> None:
        self.scene.moves = self.get_query_argument("moves") == "1"


def rules() -> list:
    """Return the handlers of all scenes."""
    found = []
    scenes = {name: Scene(name) for name in ("empty", "busy", "failed", "finished", "large")}
    scenes["proxy/8899"] = Scene("busy")
    scenes["looking"] = Scene("busy", can=())
    # One that nobody else has looked at, for each test that changes something.
    scenes |= {f"fresh{number}": Scene("busy") for number in range(4)}
    for prefix, scene in scenes.items():
        site = Site(scene, Security(anyone=Access.FULL))
        found.append((f"/records/{prefix}", Records, {"scene": scene}))
        found += [*api_rules(site, f"/{prefix}"), *page_rules(site, f"/{prefix}")]
    locked = Site(Scene("busy"), Security(token=TOKEN))
    seen = Site(locked.monitor, Security(anyone=Access.FULL))
    # The page as a browser has it still when its cookie holds no longer.
    found += [*api_rules(locked, "/locked"), *page_rules(seen, "/locked")]
    site = Site(Scene("busy"), Security(anyone=Access.FULL))
    return [*found, *api_rules(site), *page_rules(site)]


async def main() -> None:
    """Serve until whoever started this is gone."""
    server = HTTPServer(Application(rules(), log_function=lambda handler: None))
    server.listen(int(sys.argv[1]) if len(sys.argv) > 1 else 0, "127.0.0.1")
    ports = {socket.getsockname()[1] for socket in server._sockets.values()}
    print(*ports, flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
