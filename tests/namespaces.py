"""Hosts on a network of their own, on this machine: network namespaces with a switch between them.

None of it has a name outside of the process that made it. A namespace lives as long as a process in it or an open
descriptor does, and what runs on a host is killed when the test's process ends, in whatever way. So nothing is to
be removed after a run that was killed, and runs do not get into each other's way.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
SUBNET = "10.11.12"
#: What a host's own end of its cable is called.
CARD = "net0"
#: Ends with whoever has started it, and then is the program that is to run.
LEASH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
#: In what the kernel tells of sockets: who listens for TCP, and who waits for datagrams.
STATES = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07", "raw": "07", "raw6": "07"}


def why_not() -> str:
    """Return why there can be no namespaces here; nothing if there can."""
    if not os.path.exists(OWN):
        return "needs Linux's network namespaces"
    if shutil.which("ip") is None:
        return "needs iproute2"
    try:
        with Network() as network:
            network.host("one")
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or error
        return f"may not make network namespaces: {detail}"
    return ""


def _system_call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _enter(namespace: int) -> None:
    """Have this thread, and what it starts, use a network namespace."""
    _system_call("setns", namespace, CLONE_NEWNET)


@contextlib.contextmanager
def _coming_back() -> Iterator[None]:
    """Return to where this thread was."""
    before = os.open(OWN, os.O_RDONLY)
    try:
        yield
    finally:
        _enter(before)
        os.close(before)


def _new_namespace() -> int:
    with _coming_back():
        _system_call("unshare", CLONE_NEWNET)
        return os.open(OWN, os.O_RDONLY)


class Host:
    """A namespace with one network card, which a cable joins to the switch.

    Attributes
    ----------
    name, address : str
        As others know it.
    """

    def __init__(self, name: str, address: str, network: Network) -> None:
        self.name = name
        self.address = address
        self._network = network
        self._namespace = _new_namespace()
        self._inode = os.fstat(self._namespace).st_ino

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be on this host: this thread, and the threads and processes that it starts meanwhile."""
        with _coming_back():
            _enter(self._namespace)
            yield

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on this host."""
        with self.entered():
            return subprocess.Popen([sys.executable, "-I", "-S", "-c", LEASH, *command], **options)

    def run(self, *command: str) -> str:
        """Run a program on this host, and return what it writes."""
        with self.entered():
            return _run(*command)

    def cut(self) -> None:
        """Unplug the cable. Nobody is told: packets do not arrive any more."""
        self._network.plug(self, "down")

    def join(self) -> None:
        """Plug it in again."""
        self._network.plug(self, "up")

    def kill(self, timeout_s: float = 10.0) -> None:
        """Kill all processes of this host, and wait until they are gone.

        Those that track semaphores for others are spared: they end with these, and remove what would stay behind
        in the memory that all hosts here share.
        """
        deadline = time.monotonic() + timeout_s
        while pids := self.pids():
            for pid in pids:
                if not _is_tracker(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{pids} of {self.name} do not end")
            time.sleep(0.01)

    def pids(self) -> set[int]:
        """Return the processes that are on this host, however they came there."""
        return {int(name) for name in os.listdir("/proc") if name.isdecimal() and self.has(int(name))}

    def has(self, pid: int) -> bool:
        """Tell whether a living process is on this host."""
        try:
            return os.stat(f"/proc/{pid}/ns/net").st_ino == self._inode
        except OSError:
            return False

    def semaphores(self) -> set[str]:
        """Return the files of the named semaphores that processes of this host use."""
        found = set()
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    path = line.split(maxsplit=5)[-1]
                    if path.startswith("/dev/shm/sem.") and os.path.exists(path):
                        found.add(path)
        return found

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that came in and went out through the card."""
        with self.entered():
            (line,) = [line for line in Path("/proc/thread-self/net/dev").read_text().splitlines() if CARD in line]
        numbers = line.partition(":")[2].split()
        return int(numbers[0]), int(numbers[8])

    def listening(self) -> list[Listening]:
        """Return who can be reached from the network, by whatever protocol."""
        found = []
        owners = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for entry in os.scandir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        owners.setdefault(os.readlink(entry), set()).add(pid)
        with self.entered():
            tables = {kind: Path(f"/proc/thread-self/net/{kind}").read_text() for kind in STATES}
        for kind, table in tables.items():
            for line in table.splitlines()[1:]:
                fields = line.split()
                if fields[3] == STATES[kind]:
                    port = int(fields[1].rpartition(":")[2], 16)
                    found.append(Listening(kind, port, frozenset(owners.get(f"socket:[{fields[9]}]", ()))))
        return found

    def close(self) -> None:
        """Kill what runs here, and let go of the namespace."""
        self.kill()
        os.close(self._namespace)


@dataclass(frozen=True)
class Listening:
    """A socket that others may connect to, or send to, and the processes that have it."""

    kind: str
    port: int
    pids: frozenset[int]


class Network:
    """A switch, and the hosts that are plugged into it."""

    def __init__(self) -> None:
        self._hosts: list[Host] = []
        self._numbers = itertools.count(1)
        self._namespace = _new_namespace()
        try:
            self._on_switch("link", "add", "switch", "type", "bridge")
            self._on_switch("link", "set", "switch", "up")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def host(self, name: str) -> Host:
        """Add a host."""
        host = Host(name, f"{SUBNET}.{next(self._numbers)}", self)
        self._hosts.append(host)
        port = _port(host)
        target = f"/proc/{os.getpid()}/fd/{host._namespace}"
        self._on_switch("link", "add", port, "type", "veth", "peer", "name", CARD, "netns", target)
        self._on_switch("link", "set", port, "master", "switch", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", CARD)
        host.run("ip", "link", "set", CARD, "up")
        host.run("ip", "link", "set", "lo", "up")
        return host

    def remove(self, host: Host) -> None:
        """Kill what runs on a host, and do without it."""
        host.close()
        self._hosts.remove(host)

    def plug(self, host: Host, state: str) -> None:
        """Change the state of the switch's end of a cable."""
        self._on_switch("link", "set", _port(host), state)

    def close(self) -> None:
        """Kill what runs on the hosts, and let go of all."""
        for host in list(self._hosts):
            self.remove(host)
        os.close(self._namespace)

    def _on_switch(self, *arguments: str) -> None:
        with _coming_back():
            _enter(self._namespace)
            _run("ip", *arguments)


def _is_tracker(pid: int) -> bool:
    """Say whether a process is what multiprocessing starts to clean up behind others."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _port(host: Host) -> str:
    return f"port-{host.address.rpartition('.')[2]}"


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
