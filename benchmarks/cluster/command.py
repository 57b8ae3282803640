"""The command line: ``python -m benchmarks cluster``."""

from __future__ import annotations

from benchmarks import options
from benchmarks.cluster.child import CLUSTERS
from benchmarks.cluster.figures import goals, summarise, table_of, table_of_goals
from benchmarks.cluster.options import Layout, layout
from benchmarks.cluster.workloads import CLUSTER_GROUPS, CLUSTER_WORKLOADS
from benchmarks.jobs import ClusterJob, Measurement
from benchmarks.machine import machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.report import Files, conclude, plain_console, print_round


@options.command("cluster")
@options.peers(CLUSTERS)
@options.workloads(CLUSTER_WORKLOADS, CLUSTER_GROUPS)
@options.rounds
@options.repeat(3, "Timed runs per cluster.")
@layout
@options.timeout
@options.scale
@options.files
def cluster(
    peers: list[str],
    workloads: list[str],
    rounds: int,
    repeat: int,
    layout: Layout,
    timeout_s: float,
    scale: float,
    files: Files,
) -> None:
    """Compare dask_mars on an ordinary Dask cluster with stock workers.

    Both have the same hosts, with as many worker processes of one thread each, started by their command lines.
    Every figure comes from fresh clusters, and the peers take turns. A cluster makes a run that warms it up, the
    timed runs, in which the bytes that hosts send each other are counted, and one more in which each host's memory
    is sampled. Without --namespaces, bytes between hosts are what Dask's workers say that they have received.
    """
    console = plain_console()
    facts = machine_facts()
    measurements: list[Measurement] = []
    with layout.network() as network:
        for round_index, workload, peer in interleave(peers, workloads, rounds):
            job = ClusterJob(
                peer, workload, round_index, repeat, layout.n_workers, scale, timeout_s,
                layout.hosts, layout.memory_bytes, network.name,
            )  # fmt: skip
            measurements.append(run_job(job, "benchmarks.cluster.child"))
            print_round(console, measurements[-1])
    counted = "counters of network namespaces" if layout.in_namespaces else "Dask's log of transfers"
    setting = f"{layout}, one BLAS thread each; bytes between hosts by {counted}."
    figures = summarise(measurements)
    tables = [table_of(figures, facts["memory_figure"])]
    if found := goals(figures):
        tables.append(table_of_goals(found))
    conclude(console, tables, setting, measurements, facts, files)
