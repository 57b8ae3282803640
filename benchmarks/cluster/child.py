"""The child process that starts a cluster and runs one workload on it."""

from __future__ import annotations

from benchmarks.child import Clock, run_workload
from benchmarks.cluster.hosts import hosts_of, mars, stock
from benchmarks.cluster.workloads import CLUSTER_WORKLOADS
from benchmarks.events import Events, main
from benchmarks.jobs import ClusterJob

#: The clusters that are compared. The first is the one that ratios refer to.
CLUSTERS = {"stock": stock, "mars": mars}


def run(job: ClusterJob, events: Events) -> None:
    """Start a cluster and make a workload's runs on it."""
    clock = Clock(job.timeout_s)
    with CLUSTERS[job.peer](hosts_of(job)) as cluster:
        run_workload(
            CLUSTER_WORKLOADS[job.workload],
            cluster.get,
            job,
            events,
            clock,
            roots=cluster.pids,
            moved_bytes=cluster.moved_bytes,
        )


if __name__ == "__main__":
    main(ClusterJob, run)
