"""Services in processes of their own, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from dask_mars.web import wire
from dask_mars.web.client import Service, connect
from dask_mars.web.connection import _UnixConnection
from dask_mars.web.pickles import pack

# Not `tests.conftest`, which would be another module than the one that pytest has loaded.
from tests.conftest import environment_for_scripts, eventually, shared_hosts

#: Limits of the shared service, in bytes: of a submission, and of all results but the newest.
BODY_LIMIT_BYTES, HISTORY_BYTES = 4 << 20, 3 << 20

#: On a busy machine the runner takes a while to refuse a submission.
COMMAND = [
    "-c",
    "from dask_mars.commands import web; from dask_mars.web.service import submissions; "
    "submissions._TAKE_S = 30.0; web()",
]


class RunningService:
    """A service, and a client of it.

    Parameters
    ----------
    directory : Path
        Of the service.
    *arguments : str
        More, for the command line.
    """

    def __init__(self, directory: Path, *arguments: str, **env: str) -> None:
        self.directory = directory
        self._arguments = arguments
        self._env = environment_for_scripts(str(directory), **env)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *COMMAND, "--directory", str(self.directory), "--num-workers", "1", *self._arguments],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.where = self.process.stdout.readline()
        assert self.where.startswith("dask_mars listens at "), self.where + self.process.stdout.read()
        # So that no test meets a process that is just starting others.
        with self.connect() as service:
            assert eventually(lambda: service.state()["memory"]["limit_bytes"], 20)

    def connect(self) -> Service:
        return connect(self.directory)

    def pids(self) -> set[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            front = psutil.Process(self.process.pid)
            return {front.pid, *[child.pid for child in front.children(recursive=True)]}
        return set()

    def runner(self) -> psutil.Process:
        """Return the process that computes, waiting for it if need be."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if "dask_mars.web.service.runner" in child.cmdline():
                        return child
            time.sleep(0.01)
        raise AssertionError("there is no runner")

    def stop(self) -> str:
        """End it as a service manager would; return what it has printed."""
        self.process.terminate()
        printed, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, printed
        return printed

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def running(directory: Path, *arguments: str, **env: str) -> Iterator[RunningService]:
    """Run a service that several tests share."""
    service = RunningService(directory, *arguments, **env)
    shared_hosts.append(service)
    try:
        yield service
    finally:
        pids = service.pids()
        if service.process.poll() is None:
            service.stop()
        shared_hosts.remove(service)
        deadline = time.monotonic() + 10
        while (left := {pid for pid in pids if _lives(pid)}) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left


def listening(service: RunningService) -> list[Any]:
    """Return the addresses at which processes of a service listen."""
    front = psutil.Process(service.process.pid)
    lines = [line for one in (front, *front.children(recursive=True)) for line in one.net_connections("inet")]
    return [line.laddr for line in lines if line.status == psutil.CONN_LISTEN]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def raw(
    service: RunningService, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any, bytes]:
    """Make one request without our client; return status, headers and body."""
    line = _UnixConnection(os.fspath(service.directory / "socket"))
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        # The answer may come before all is sent.
        with contextlib.suppress(BrokenPipeError):
            line.request(method, f"/api/v1/{path}", body, named)
        response = line.getresponse()
        return response.status, response.headers, response.read()
    finally:
        line.close()


def submission(value: Any, kind: str = "collection", **changes: Any) -> bytes:
    """Return the body that submits a value; `changes` are made to its header, by sneaking past all checks."""
    frames = pack(value)
    header = {
        "kind": kind,
        "frames": [frame.nbytes for frame in frames],
        "versions": wire.versions(),
        "name": "",
        "options": {},
        **changes,
    }
    return b"".join([wire.encode_header(header), *frames])


def add(store: Any, id: str | None = None) -> int:
    """Record a submission in a store, and return its number."""
    path = store.incoming(uuid.uuid4().hex)
    path.write_bytes(b"graph")
    return int(store.add(id or str(uuid.uuid4()), "d", "name", path)[0]["number"])


def put(service: RunningService, body: bytes, id: str | None = None, **headers: str) -> tuple[int, str]:
    """Submit a body; return the status, and what the answer says of it."""
    status, answered, text = raw(service, "PUT", f"computations/{id or uuid.uuid4()}", body, **headers)
    told = json.loads(text)
    if status >= 400:
        assert answered["Content-Type"] == "application/problem+json"
        assert told["status"] == status
    return status, told.get("detail") or told["state"]
