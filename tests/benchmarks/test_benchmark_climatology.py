"""The benchmark of climatologies: stores are as large as asked for, and figures come out as they were."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.climatology import CHUNK_DAYS, Difference, days_of
from benchmarks.climatology_command import table_of
from benchmarks.jobs import ClimatologyJob, Measurement
from benchmarks.report import plain_console

pytestmark = pytest.mark.slow

MIB = 1 << 20


def test_stores_have_whole_chunks_and_are_as_large_as_asked_for():
    assert days_of(0.001) == CHUNK_DAYS
    assert days_of(0.01, (100, 1000)) == CHUNK_DAYS
    assert days_of(4.0) * 360 * 720 * 4 >= 4e9
    assert (days_of(4.0) - CHUNK_DAYS) * 360 * 720 * 4 < 4e9


@pytest.mark.nightly
def test_peers_are_run_and_compared(tmp_path, zarr):
    pytest.importorskip("xarray")
    arguments = ["--gigabytes=0.001", "--rounds=1", "--nworkers=1", "--directory", str(tmp_path)]
    result = CliRunner().invoke(main, ["climatology", "-p", "threads", "-p", "mars", *arguments])
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.output.splitlines() if line.startswith("| mars ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert float(cells[1]) > 0
    assert float(cells[5].replace(",", "")) > 50
    assert cells[7].startswith("identical")
    assert cells[8] == ""
    # The stores are gone.
    assert not list(tmp_path.iterdir())


def measurement(peer: str, seconds: float) -> Measurement:
    job = ClimatologyJob(peer, "climatology", 0, 1, 2, 1.0, 60, 2, 100 * MIB, "", "source", "target", "month")
    return Measurement(job, seconds=[seconds], moved_bytes=[3 * MIB], peak_memory_bytes=7 * MIB)


@pytest.mark.parametrize(
    ("difference", "said", "note"),
    [
        (Difference(9), "identical, 9 chunks", ""),
        (Difference(9, 1, 1e-6), "1 of 9 chunks differ by up to 1e-06", ""),
        (Difference(9, 1, 1.0), "1 of 9 chunks differ by up to 1", "WRONG: differs from threads"),
        (Difference(1, 1, float("nan")), "1 of 1 chunks differ by up to nan", "WRONG: differs from threads"),
    ],
)
def test_differences_are_said(difference, said, note):
    table = table_of([(measurement("threads", 2.0), None), (measurement("mars-cluster", 1.0), difference)], "PSS")
    console = plain_console(1_000)
    with console.capture() as capture:
        console.print(table)
    (row,) = [line for line in capture.get().splitlines() if line.startswith("| mars-cluster ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["mars-cluster", "1.00", "1.00-1.00", "1", "0.50", "7", "3.00", said, note]
