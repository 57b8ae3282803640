"""The address of a service: its default directory, and the meaning of a user's address."""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from dask_mars import config

#: Files in a service's directory: its unix socket, and address and token if it listens on a port.
SOCKET, CONNECTION_FILE = "socket", "connection.json"
#: Rather a URL without its scheme than the name of a file.
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+")


@dataclass(frozen=True)
class Endpoint:
    """The destination of requests."""

    #: Path of a unix socket; empty for a port.
    path: str = ""
    scheme: str = "http"
    host: str = "localhost"
    port: int = 0
    #: Prefix of ``api/v1`` in URLs, without a slash at its end.
    prefix: str = ""
    token: str | None = None

    def __str__(self) -> str:
        return self.path or f"{self.scheme}://{self.host}:{self.port}{self.prefix}"


def directory() -> Path:
    """Return the default directory for a service's records."""
    chosen = config.get("web.directory")
    if chosen is not None:
        return Path(chosen).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "dask-mars"


def find(address: str | os.PathLike[str] | None = None, token: str | None = None) -> Endpoint:
    """Return the endpoint of a service."""
    if address is None:
        address = config.get("web.address") or directory()
    if token is None:
        token = config.get("web.token")
    try:
        text = os.fspath(address)
    except TypeError:
        raise TypeError(f"expected the URL or the path of a service, not {address!r}") from None
    scheme = urllib.parse.urlsplit(text).scheme
    if scheme in ("http", "https"):
        return _port(text, token)
    if scheme not in ("", "unix") or _HOST_AND_PORT.fullmatch(text):
        raise ValueError(f"expected a URL of http, https or unix, or a path, not {text!r}")
    path = Path(urllib.parse.urlsplit(text).path if scheme else text).expanduser()
    if path.is_dir():
        path = path / SOCKET
    if path.suffix == ".json":
        known = json.loads(path.read_text(encoding="utf-8"))
        return _port(known["url"], token or known.get("token"))
    return Endpoint(path=str(path.absolute()), token=token)


def _port(url: str, token: str | None) -> Endpoint:
    parts = urllib.parse.urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if token is None:
        token = (urllib.parse.parse_qs(parts.query).get("token") or [None])[0]  # type: ignore[list-item]
    return Endpoint("", parts.scheme, parts.hostname or "localhost", port, parts.path.rstrip("/"), token)
