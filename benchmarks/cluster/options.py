"""Options that say which hosts a cluster has."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import click
import psutil

from benchmarks.cluster.network import Network, can_make_namespaces, namespaces
from benchmarks.options import byte_size, together


@dataclass(frozen=True, slots=True)
class Layout:
    """The hosts that were asked for.

    Attributes
    ----------
    hosts
        How many.
    n_workers
        Worker processes of each.
    limit_bytes
        What those of a host may use together; None for an equal part of this machine's memory.
    in_namespaces
        Whether each is to have a network namespace of its own.
    """

    hosts: int
    n_workers: int
    limit_bytes: int | None
    in_namespaces: bool

    @property
    def memory_bytes(self) -> int:
        """What the processes of a host may use together."""
        return self.limit_bytes or psutil.virtual_memory().total // self.hosts

    def __str__(self) -> str:
        return f"{self.hosts} hosts of {self.n_workers} worker processes and {self.memory_bytes / 2**20:,.0f} MiB"

    def network(self) -> contextlib.AbstractContextManager[Network]:
        """Return the network between hosts, to be entered."""
        if not self.in_namespaces:
            return contextlib.nullcontext(Network(""))
        if not can_make_namespaces():
            raise click.ClickException("network namespaces need Linux, the `ip` program and the rights of root")
        return namespaces(self.hosts)


layout = together(
    "layout",
    Layout,
    click.option("--hosts", default=2, type=click.IntRange(min=2, max=200), help="Hosts of a cluster."),
    click.option("--nworkers", "n_workers", default=2, type=click.IntRange(min=1), help="Of each host."),
    click.option(
        "--memory-limit",
        "limit_bytes",
        callback=byte_size,
        metavar="SIZE",
        help="Of each host's processes together.  [default: this machine's memory divided among the hosts]",
    ),
    click.option(
        "--namespaces",
        "in_namespaces",
        is_flag=True,
        help="Give each host a network namespace, and count what goes over its network. Needs the rights of root.",
    ),
)
