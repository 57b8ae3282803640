"""Loads the page again and again, in a process of its own, as browsers do that share nothing.

It reads the address, the token, how many load at a time and how often from the command line. After each part of
the loads it writes a line with their number, and waits for one.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.viewer import OF_COMPUTATION

#: What a script of the page loads besides itself.
_IMPORT = re.compile(rb'from "\./([^"]+)"')


def load(url: str, token: str, _: int = 0) -> None:
    """Load the page and all that it asks for at first, over a connection of its own.

    Parameters
    ----------
    url
        Of the server.
    token
        That it wants.
    """
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    headers: dict[str, str] = {}

    def ask(path: str) -> bytes:
        connection.request("GET", f"/{path}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        if cookie := answer.headers.get("Set-Cookie"):
            headers["Cookie"] = cookie.partition(";")[0]
        return body

    try:
        ask(f"?token={token}")
        wanted, known = ["index.html", "style.css", "icon.svg", "app.js"], set()
        while wanted:
            name = wanted.pop()
            known.add(name)
            found = [text.decode() for text in _IMPORT.findall(ask(name))]
            wanted += [other for other in found if other not in known and other not in wanted]
        ask("api/v1/state")
        listed = json.loads(ask("api/v1/computations?limit=50"))["computations"]
        for path in OF_COMPUTATION.values() if listed else ():
            if "{" not in path:
                ask(f"api/v1/computations/{listed[0]['id']}{path}")
    finally:
        connection.close()


def main(url: str, token: str, at_a_time: int, loads: int, parts: int) -> None:
    """Load it so often, and stop after each part of that.

    Parameters
    ----------
    url
        Of the server.
    token
        That it wants.
    at_a_time
        How many load at once.
    loads
        How often.
    parts
        In how many parts.
    """
    with ThreadPoolExecutor(at_a_time) as pool:
        for part in range(parts):
            list(pool.map(partial(load, url, token), range(loads // parts)))
            print((part + 1) * (loads // parts), flush=True)
            sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
