"""Listening sockets: a unix socket in a private directory, or a port; and the connection file."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

from tornado.netutil import bind_sockets, bind_unix_socket

from dask_mars.files import replace_file
from dask_mars.web.security import Security

_BACKLOG = 1024
#: The interface of ports. A listener on the network would read the token, so others need a proxy here.
ADDRESS = "127.0.0.1"
#: Longest path of a unix socket in the kernel, in bytes, without the terminating zero.
_LONGEST_PATH = 103


def private_directory(path: Path) -> Path:
    """Return a directory that only this user may enter, creating it if necessary."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"{path} cannot be made: {error.strerror}; a directory that can be written is needed"
        ) from error
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{path} has to be a directory of your own with mode 0700")
    return path


def bind_unix(path: Path) -> socket.socket:
    """Return a socket that listens in a private directory."""
    private_directory(path.parent)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise OSError(
            f"{path} is longer than the {_LONGEST_PATH} bytes that a unix socket's path may have: "
            "choose a shorter path"
        )
    if path.is_socket() and _answers(path):
        raise OSError(f"another server listens at {path}")
    # This replaces the socket of a server that was killed.
    bound: socket.socket = bind_unix_socket(str(path), 0o600, _BACKLOG)
    return bound


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A server that is too busy to accept exists.
            return True
        return True


def bind_tcp(port: int) -> socket.socket:
    """Return a socket that listens at a port of this machine alone."""
    if type(port) is not int or not 0 <= port < 1 << 16:
        raise ValueError(f"a port is a whole number from 0 (any that is free) to 65535, and not {port!r}")
    try:
        bound: socket.socket = bind_sockets(port, ADDRESS, backlog=_BACKLOG)[0]
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: port {port} of {ADDRESS}") from error
    return bound


def write_connection_file(path: Path, url: str, security: Security) -> None:
    """Write address and tokens to a file that only this user can read."""
    facts = {"url": url, "token": security.token, "view_token": security.view_token, "pid": os.getpid()}
    replace_file(path, json.dumps(facts).encode(), 0o600)
