"""Comparisons of schedulers: processes are run as said, and figures come out as they were."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.comparison import geometric_means, summarise
from benchmarks.jobs import Job, Measurement


def measured(peer: str, workload: str, *seconds: float, process: float | None = None) -> Measurement:
    job = Job(peer, workload, 0, len(seconds), 2, 1.0, 60.0)
    values = [[1.0]] * len(seconds)
    processes = [] if process is None else [process]
    return Measurement(job, seconds=list(seconds), values=values, process_seconds=processes)


def test_means_are_by_group_and_name_the_worst():
    measurements = [
        measured("threads", "matmul", 1.0),
        measured("mars", "matmul", 0.5),
        measured("threads", "svd", 1.0),
        measured("mars", "svd", 2.0),
        measured("threads", "svd:zarr", 1.0),
        measured("mars", "svd:zarr", 0.25),
        # A mean over what takes no time to compute says nothing.
        measured("threads", "noop-2000", 1.0),
        measured("mars", "noop-2000", 0.01),
    ]
    means = [mean for mean in geometric_means(summarise(measurements)) if mean.peer == "mars"]
    array, from_zarr = means
    assert (array.of, array.mean, array.count, array.worst, array.worst_workload) == ("array", 1.0, 2, 2.0, "svd")
    assert (from_zarr.of, from_zarr.mean, from_zarr.count) == ("zarr", 0.25, 1)


def test_cold_processes_are_compared_by_their_runs_and_as_a_whole():
    measurements = [
        measured("threads", "rechunk:cold", 1.0, process=2.0),
        measured("mars", "rechunk:cold", 1.5, process=2.2),
        # One that was sampled and not timed.
        measured("mars", "rechunk:cold"),
    ]
    figures = {row.peer: row for row in summarise(measurements)}
    assert figures["mars"].ratio == 1.5
    assert figures["mars"].process_ratio == pytest.approx(1.1)
    means = {mean.of: mean.mean for mean in geometric_means(summarise(measurements)) if mean.peer == "mars"}
    assert means == {"cold": pytest.approx(1.5), "cold, whole process": pytest.approx(1.1)}


def test_a_wrong_answer_is_said_and_not_compared():
    wrong = measured("mars", "matmul", 0.5)
    wrong.values = [[1.001]]
    _, mars = summarise([measured("threads", "matmul", 1.0), wrong])
    assert mars.ratio is None
    assert mars.notes == ("WRONG: differs from threads",)


def cells_of(output: str, workload: str) -> list[list[str]]:
    lines = [line for line in output.splitlines() if line.startswith(f"| {workload} ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.nightly
def test_warm_and_cold_processes_are_run_and_reported(tmp_path, zarr):
    tables = tmp_path / "tables.md"
    arguments = [
        "-p",
        "threads",
        "-p",
        "mars",
        "--rounds=1",
        "--repeat=1",
        "--scale=0.02",
        "--directory",
        str(tmp_path),
    ]
    workloads = ["-w", "products:zarr", "-w", "svd:persisted", "-w", "random-sum:cold"]
    result = CliRunner().invoke(main, [*arguments, *workloads, "--markdown", str(tables)])
    assert result.exit_code == 0, result.output
    text = tables.read_text()
    for name in ("products:zarr", "svd:persisted", "random-sum:cold"):
        rows = cells_of(text, name)
        assert [row[1] for row in rows] == ["threads", "mars"]
        assert all(float(row[2]) > 0 for row in rows)
        # A process that is over in no time is seen once, when it has begun.
        assert all(float(row[-1].replace(",", "")) > 0 for row in rows)
    # A whole process takes longer than what it does.
    assert all(float(row[6]) > float(row[2]) for row in cells_of(text, "random-sum:cold"))
    assert "random-sum:cold)" in text
    # The data are gone.
    assert list(tmp_path.iterdir()) == [tables]
