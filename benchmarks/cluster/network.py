"""The network between hosts: addresses of this machine's loopback device, or Linux network namespaces.

In namespaces each host has two devices, one for what it exchanges with the scheduler and the client and one for
the other hosts, so that the latter's counter says what hosts send each other, as it is on the wire.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: The two halves of the range that is set apart for benchmarks of networks.
_CENTRAL, _BETWEEN = "198.18", "198.19"
#: The scheduler's and the client's number in the network with it.
_CENTRE = 254


@dataclass(frozen=True, slots=True)
class Network:
    """Where each host's processes run, and what they are called by.

    Attributes
    ----------
    name
        What names of namespaces and devices begin with; empty where all hosts share the machine's own network.
    """

    name: str

    @property
    def scheduler_address(self) -> str:
        """What the scheduler listens at."""
        return self._at(_CENTRAL, _CENTRE) if self.name else "127.0.0.1"

    def address(self, host: int) -> str:
        """Return what a host's processes listen at, hosts being counted from 0."""
        return self._at(_BETWEEN, host + 1) if self.name else f"127.0.0.{host + 2}"

    def command(self, host: int) -> list[str]:
        """Return the beginning of a command that is to run on a host."""
        return ["ip", "netns", "exec", self._namespace(host)] if self.name else []

    def sent_bytes(self, hosts: int) -> int | None:
        """Return what that many hosts have sent to others until now; None where no counter says."""
        if not self.name:
            return None
        # What goes into this end has come out of the other, which is the host's.
        counters = [f"/sys/class/net/{self._device(host, 'b')}/statistics/rx_bytes" for host in range(hosts)]
        return sum(int(Path(counter).read_text(encoding="ascii")) for counter in counters)

    def _at(self, half: str, number: int) -> str:
        # Others may be at it on the same machine.
        return f"{half}.{int(self.name.removeprefix('mars')) % 256}.{number}"

    def _namespace(self, host: int) -> str:
        return f"{self.name}-{host}"

    def _device(self, host: int, net: str) -> str:
        return f"{self.name}{net}{host}"

    def _make(self, hosts: int) -> None:
        for net in "ab":
            _ip("link", "add", self._bridge(net), "type", "bridge")
            # Without chatter of its own.
            _write(f"/proc/sys/net/ipv6/conf/{self._bridge(net)}/disable_ipv6", "1")
            _ip("link", "set", self._bridge(net), "up")
        _ip("address", "add", f"{self.scheduler_address}/24", "dev", self._bridge("a"))
        for host in range(hosts):
            namespace = self._namespace(host)
            _ip("netns", "add", namespace)
            inside = ["-n", namespace]
            _ip(*inside, "link", "set", "lo", "up")
            for net, half in (("a", _CENTRAL), ("b", _BETWEEN)):
                outer, inner = self._device(host, net), f"host{net}"
                _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", namespace)
                _ip("link", "set", outer, "master", self._bridge(net))
                _ip("link", "set", outer, "up")
                _ip(*inside, "address", "add", f"{self._at(half, host + 1)}/24", "dev", inner)
                _ip(*inside, "link", "set", inner, "up")
            # A host has one address for all, and only other hosts reach it by the device for them.
            _ip("route", "add", f"{self.address(host)}/32", "via", self._at(_CENTRAL, host + 1))

    def _remove(self, hosts: int) -> None:
        for host in range(hosts):
            _ip("netns", "delete", self._namespace(host), check=False)
            for net in "ab":
                _ip("link", "delete", self._device(host, net), check=False)
        for net in "ab":
            _ip("link", "delete", self._bridge(net), check=False)

    def _bridge(self, net: str) -> str:
        return f"{self.name}{net}"


def can_make_namespaces() -> bool:
    """Say whether this process may make network namespaces."""
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("ip") is not None


@contextmanager
def namespaces(hosts: int) -> Iterator[Network]:
    """Make a network namespace for each host, and remove them in the end.

    Parameters
    ----------
    hosts
        How many.

    Yields
    ------
    Network
        Of these.
    """
    network = Network(f"mars{os.getpid()}")
    try:
        network._make(hosts)
        yield network
    finally:
        network._remove(hosts)


def _write(path: str, text: str) -> None:
    # A kernel without IPv6 has nothing to be told.
    if Path(path).exists():
        Path(path).write_text(text, encoding="ascii")


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
