"""The child process that computes a climatology under one scheduler."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.child import Clock
from benchmarks.climatology import compute
from benchmarks.cluster.hosts import Cluster, Hosts, hosts_of, mars, stock
from benchmarks.events import Events, main
from benchmarks.jobs import ClimatologyJob
from benchmarks.peers import PEERS


@contextmanager
def _on_one_machine(peer: str, hosts: Hosts) -> Iterator[Cluster]:
    """Run one of the schedulers of one machine, with as many threads or processes as all hosts have."""
    PEERS[peer].load()
    with PEERS[peer].open(hosts.count * hosts.n_workers) as get:
        yield Cluster(get, [], lambda: 0)


#: How each peer is opened. The first is the one that the others' results are compared with.
SCHEDULERS: dict[str, Callable[[Hosts], AbstractContextManager[Cluster]]] = {
    "threads": partial(_on_one_machine, "threads"),
    "mars": partial(_on_one_machine, "mars"),
    "stock-cluster": stock,
    "mars-cluster": mars,
}


def run(job: ClimatologyJob, events: Events) -> None:
    """Make a run in which the parent samples memory, and then the timed ones."""
    clock = Clock(job.timeout_s)
    source, target = Path(job.source), Path(job.target)
    with SCHEDULERS[job.peer](hosts_of(job)) as cluster:
        run_once = partial(compute, cluster.get, source, target, job.by)
        events.send("memory_run_began", roots=[os.getpid()])
        clock.time(run_once)
        events.send("memory_run_ended")
        for _ in range(job.repeat):
            if not clock.fits():
                break
            shutil.rmtree(target)
            gc.collect()
            moved_before = cluster.moved_bytes()
            _, duration_s = clock.time(run_once)
            moved = cluster.moved_bytes() - moved_before
            events.send("timed", seconds=duration_s, value=[], moved_bytes=[moved])


if __name__ == "__main__":
    main(ClimatologyJob, run)
