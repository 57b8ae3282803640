"""Viewers of what a runtime does, in a process of their own: they ask for all that the page can show.

It reads the address, the token and their number from the command line, goes on until its standard input ends, and
then writes how long answers took as JSON: by view a list of seconds.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
import urllib.parse
from collections import defaultdict
from typing import Any

#: How long a viewer waits before it asks for all views again, as the page does.
PAUSE_S = 1.0
#: Views by name, below a computation's address.
OF_COMPUTATION = {
    "detail": "",
    "graph": "/graph",
    "blocks": "/graph?layer={layer}",
    "timeline": "/timeline",
    "waiting": "/explain",
}
VIEWS = ("state", "list", *OF_COMPUTATION)


class Viewer:
    """One of them.

    Parameters
    ----------
    url
        Of the server.
    token
        That it wants.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"}
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def look(self) -> None:
        """Ask for everything once."""
        self._ask("state", "state")
        found = self._ask("list", "computations?limit=20")["computations"]
        if not found:
            return
        base = f"computations/{found[0]['id']}"
        layers = []
        for view, path in OF_COMPUTATION.items():
            if view == "blocks":
                if not layers:
                    continue
                largest = max(layers, key=lambda layer: layer["total"])["name"]
                path = path.format(layer=urllib.parse.quote(largest, safe=""))
            answer = self._ask(view, base + path)
            if view == "detail":
                layers = answer["layers"]

    def _ask(self, view: str, path: str) -> Any:
        start_s = time.perf_counter()
        self._connection.request("GET", f"/api/v1/{path}", headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        self.seconds[view].append(time.perf_counter() - start_s)
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        return json.loads(body)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def main(url: str, token: str, count: int) -> None:
    """Look until standard input ends, and write how long it took.

    Parameters
    ----------
    url
        Of the server.
    token
        That it wants.
    count
        How many look.
    """
    over = threading.Event()
    viewers = [Viewer(url, token) for _ in range(count)]
    errors: list[str] = []

    def watch(place: int) -> None:
        # Nobody looks at the same moment as others, or only by chance.
        over.wait(PAUSE_S * place / count)
        try:
            while not over.is_set():
                viewers[place].look()
                over.wait(PAUSE_S)
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=watch, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    seconds: dict[str, list[float]] = {view: [] for view in VIEWS}
    for thread, viewer in zip(threads, viewers, strict=True):
        thread.join()
        viewer.close()
        for view, measured in viewer.seconds.items():
            seconds[view] += measured
    print(json.dumps({"seconds": seconds, "errors": errors}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
