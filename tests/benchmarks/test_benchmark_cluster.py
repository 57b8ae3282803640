"""The benchmarks of clusters: hosts are what they are said to be, and figures come out as they were."""

from __future__ import annotations

import dask
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.cluster.figures import goals, summarise
from benchmarks.cluster.network import Network, can_make_namespaces, namespaces
from benchmarks.cluster.workloads import CLUSTER_GROUPS, CLUSTER_WORKLOADS
from benchmarks.jobs import ClusterJob, Measurement
from benchmarks.workload import Setting

pytestmark = pytest.mark.slow

MIB = 1 << 20


def cells_of(output: str, first: str) -> list[list[str]]:
    lines = [line for line in output.splitlines() if line.startswith(f"| {first} ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("name", CLUSTER_GROUPS["shared"])
def test_right_answers_are_within_their_bounds_and_others_are_not(name):
    workload = CLUSTER_WORKLOADS[name]
    scale = 1e-2 if name == "gram" else 1e-4
    low, high = workload.bounds(scale)
    largest = workload.digest(workload.prepare(Setting(scale, 3, dask.get))()).max()
    assert low <= largest <= high
    assert not low <= 0.5 * largest <= high
    assert not low <= 2 * largest <= high


@pytest.mark.nightly
def test_a_cluster_is_started_and_reported(tmp_path):
    options = ["--rounds=1", "--repeat=1", "--nworkers=1", "--memory-limit=1 GiB", "--scale=0.01"]
    files = ["--markdown", str(tmp_path / "tables.md"), "--json", str(tmp_path / "figures.json")]
    result = CliRunner().invoke(main, ["cluster", "-p", "mars", "-w", "matmul", *options, *files])
    assert result.exit_code == 0, result.output
    ((name, found, seconds, _, runs, *_, moved, peak, _, notes),) = cells_of(result.output, "matmul")
    assert (name, found, runs, notes) == ("matmul", "mars", "1", "")
    assert float(seconds) > 0
    # Each of the hosts needs what the other has.
    assert float(moved) > 0
    assert float(peak.replace(",", "")) > 50
    assert "2 hosts of 1 worker processes and 1,024 MiB" in (tmp_path / "tables.md").read_text()


@pytest.mark.skipif(not can_make_namespaces(), reason="needs the rights of root")
def test_namespaces_are_counted_and_removed():
    try:
        with namespaces(2) as network:
            assert network.sent_bytes(2) is not None
            assert network.address(0) != network.address(1)
            assert network.command(1)[:3] == ["ip", "netns", "exec"]
            name = network.name
    except OSError as error:
        pytest.skip(f"namespaces cannot be made here: {error}")
    with pytest.raises(FileNotFoundError):
        Network(name).sent_bytes(2)


def measurement(peer: str, workload: str, seconds: float, moved: int, peak: int, **fields: object) -> Measurement:
    job = ClusterJob(peer, workload, 0, 1, 2, 1.0, 60, 2, 100 * MIB, "")
    values = {"seconds": [seconds], "values": [[1.0]], "moved_bytes": [moved], "peak_memory_bytes": peak}
    return Measurement(job, **{**values, **fields})


def test_figures_are_held_against_what_is_wanted():
    measurements = [
        measurement("stock", "tree", 10.0, 0, 10 * MIB),
        measurement("mars", "tree", 0.5, 100, 20 * MIB),
        measurement("stock", "matmul", 4.0, 100 * MIB, 10 * MIB),
        measurement("mars", "matmul", 1.0, 200 * MIB, 10 * MIB),
        measurement("stock", "svd", 1.0, 100 * MIB, 10 * MIB),
        measurement("mars", "svd", 1.0, 100 * MIB, 10 * MIB),
        measurement("stock", "table", 1.0, 300 * MIB, 100 * MIB),
        measurement("mars", "table", 1.0, 0, 60 * MIB),
    ]
    found = {goal.what: (round(goal.found, 2), goal.met) for goal in goals(summarise(measurements))}
    assert found == {
        "operands/s, tree": (20.0, True),
        "time, geometric mean of 2 array workloads": (0.5, True),
        "bytes between hosts, tree": (1.0, True),
        "bytes between hosts, matmul": (1.99, False),
        "bytes between hosts, svd": (1.0, True),
        "bytes between hosts, table": (0.0, True),
        "peak memory of a host, table": (0.6, True),
    }


def test_what_went_wrong_is_said():
    measurements = [
        measurement("stock", "matmul", 4.0, 100, 10 * MIB),
        measurement("mars", "matmul", 1.0, 100, 10 * MIB, values=[[2.0]], stray_processes=2),
        measurement("mars", "matmul", 1.0, 100, 10 * MIB, status="failed", detail="ValueError: x"),
    ]
    _, ours = summarise(measurements)
    assert ours.notes == ("failed: ValueError: x", "left 2 processes behind", "WRONG: differs from stock")
    assert goals(summarise(measurements[1:])) == []
