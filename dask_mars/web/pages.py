"""The files of the page, read once, and small generated pages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from dask_mars.html import render
from dask_mars.web.monitor import Json

_PAGE = Path(__file__).with_name("page")

#: Media types by suffix. Systems' tables differ, and browsers run no script of the wrong type.
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

#: Parts of the page by the name after ``#``, with their titles.
VIEWS = {
    "computations": "Computations",
    "layers": "Layers",
    "waiting": "Waiting",
    "timeline": "Timeline",
    "graph": "Graph",
    "log": "Log",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page: content, media type, and an entity tag."""

    content: bytes
    kind: str
    tag: str


@lru_cache(maxsize=1)
def files() -> dict[str, PageFile]:
    """Return the files of the page by path."""
    found = {}
    for path in sorted(_PAGE.rglob("*")):
        kind = _KINDS.get(path.suffix)
        if kind is not None and path.is_file():
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.relative_to(_PAGE).as_posix()] = PageFile(content, kind, tag)
    return found


def error_page(problem: Json) -> str:
    """Return an error page."""
    title, status = f"{problem['status']} {problem['title']}", problem["status"]
    return render("error.html.j2", title=title, detail=problem["detail"], asks_for_token=status == 401)


def with_query(path: str, query: Sequence[tuple[str, str | bytes]]) -> str:
    """Return a relative address with parameters."""
    return f"{path}?{urlencode(query)}" if query else path
