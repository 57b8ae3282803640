"""Processes of a private service, and what all scripts check of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import psutil
from distributed import Client

import dask_mars
from dask_mars.cluster.marks import MARK

#: Maximum seconds of a step.
PATIENCE_S = 90.0


def reach(what: str, condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait for a condition, print how long it took, and return its value; raise if it does not hold in time."""
    begun_s = time.monotonic()
    while not (found := condition()):
        if time.monotonic() - begun_s > timeout_s:
            raise TimeoutError(what)
        time.sleep(0.1)
    print(f"{what}: {time.monotonic() - begun_s:.1f} s", flush=True)
    return found


@contextlib.contextmanager
def service(command: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service in the foreground until the end of the block."""
    with log.open("ab") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def agents(client: Client) -> dict[str, Any]:
    """Return the agents of a cluster, by name."""
    told = client.scheduler_info(n_workers=-1)["workers"].values()
    return {str(worker["name"]): worker for worker in told if MARK in worker}


def compute(client: Client) -> None:
    """Compute something that agents exchange."""
    x = da.arange(1_000_000, chunks=100_000)
    assert int((x + x[::-1]).sum().compute(scheduler=dask_mars.get, client=client)) == 999_999_000_000
    print(f"computed on {sorted(agents(client))}", flush=True)


def keep(client: Client) -> tuple[list[Any], list[int]]:
    """Persist 256 MB of random bytes, which would be others if they were computed again; return checksums too."""
    parts = [dask.delayed(os.urandom)(1 << 23, pure=False) for _ in range(32)]
    kept = list(dask.persist(*parts, scheduler="mars", client=client))
    return kept, checksums(client, kept)


def checksums(client: Client, kept: list[Any]) -> list[int]:
    """Return the checksums of what was persisted, or computed again."""
    return list(dask.compute(*map(dask.delayed(zlib.crc32), kept), scheduler="mars", client=client))


def kill_agent(client: Client) -> None:
    """Kill an agent with SIGKILL, and wait until its nanny has started another."""
    before = client.run(os.getpid)
    os.kill(min(before.values()), signal.SIGKILL)

    def is_back() -> bool:
        with contextlib.suppress(OSError):
            now = set(client.run(os.getpid).values())
            return len(now) == len(before) and now != set(before.values())
        return False

    reach("an agent is back after SIGKILL", is_back)


def left(marker: str) -> list[str]:
    """Return the processes with some text in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and marker in process.environ().values():
                found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
    return found
