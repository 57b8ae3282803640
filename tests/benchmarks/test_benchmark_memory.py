"""The benchmarks of memory: cases give the values they are checked against, and figures come out as they were."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import dask
import pytest
from click.testing import CliRunner

import benchmarks.memory
from benchmarks.__main__ import main
from benchmarks.control_groups import NotPossibleError, control_group
from benchmarks.jobs import LimitedJob, Measurement
from benchmarks.memory import memory_kind, peak_memory, tree_bytes
from benchmarks.memory_cases import CASES
from benchmarks.memory_command import outcome, row
from tests.conftest import eventually

pytestmark = pytest.mark.slow

MIB = 1 << 20
#: One and twice as much, which no power of two divides into chunks.
LIMITS = 1_100_000, 2_200_000
#: Cases of thousands of tasks at any limit.
LONG = {"merge", "shuffle", "convolve", "concurrent", "centre-10"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in CASES]
)
def test_right_answers_are_within_their_bounds_and_sizes_follow_the_limit(name):
    case = CASES[name]
    asked: list[int] = []

    def count(dsk: object, keys: object, **options: object) -> object:
        asked.append(len(dict(dsk)) if isinstance(dsk, dict) else 0)
        return dask.get(dsk, keys)

    for limit in LIMITS:
        low, high = case.bounds(limit)
        value = case.run(count, limit, 3)
        assert low <= value <= high
        assert not low <= 0.9 * value <= high
        assert not low <= 1.1 * value <= high
    # As many tasks for twice the limit, each of twice the bytes.
    half = len(asked) // 2
    assert asked[:half] == asked[half:]


@pytest.mark.nightly
def test_a_case_is_run_beside_its_limit_and_reported(tmp_path):
    arguments = ["-c", "centre", "-p", "mars", "--limit", "256 MiB", "--rounds", "1", "--directory", str(tmp_path)]
    files = ["--markdown", str(tmp_path / "table.md"), "--json", str(tmp_path / "figures.json")]
    result = CliRunner().invoke(main, ["memory", *arguments, *files])
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("| centre ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["centre", "256", "mars", "ok"]
    assert float(cells[4]) > 0
    # Three times the limit cannot stay in memory.
    assert float(cells[9]) > 64
    assert line in (tmp_path / "table.md").read_text().splitlines()
    # What was spilled went to where it was to go, and is gone.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures.json", "table.md"]


def test_a_control_group_limits_those_who_enter_it_and_is_removed():
    try:
        with control_group(256 * MIB) as group:
            program = f"""
from pathlib import Path
from benchmarks.control_groups import enter
from dask_mars.limits import memory_available
enter(Path({str(group)!r}))
print(memory_available())
"""
            answer = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    except NotPossibleError as reason:
        pytest.skip(str(reason))
    assert int(answer.stdout) == 256 * MIB
    assert not group.exists()


def measurement(peer: str = "mars", value: float = 1.0, **fields: object) -> Measurement:
    job = LimitedJob(peer, "tree", 0, 1, 2, 1.0, 60, 100 * MIB, "/tmp")
    return Measurement(job, **{"seconds": [2.0], "values": [[value]], **fields})


@pytest.mark.parametrize(
    ("status", "detail", "expected"),
    [
        ("ok", "", "ok"),
        ("timeout", "over 60 s", "timeout"),
        ("failed", "KilledWorker: again and again", "killed worker"),
        ("failed", "MemoryError: Unable to allocate", "MemoryError"),
        ("failed", "exit status -9: nothing on standard error", "killed"),
        ("failed", "ArithmeticError: tree gave nan", "WRONG"),
    ],
)
def test_outcomes_are_named(status, detail, expected):
    assert outcome(measurement(status=status, detail=detail)) == expected


def test_rounds_are_drawn_together():
    rounds = [
        measurement(peak_memory_bytes=50 * MIB, spilled_bytes=7 * MIB),
        measurement(seconds=[4.0], peak_memory_bytes=120 * MIB, spilled_bytes=5 * MIB, lost_workers=2),
        measurement(seconds=[], values=[], status="failed", detail="KilledWorker: x", seconds_to_error=1.5),
    ]
    cells = row(rounds, rounds)
    assert cells[:6] == ["tree", "100", "mars", "killed worker", "3.00", "2.00-4.00"]
    assert cells[6:10] == ["1.50", "120", "**1.20**", "7"]
    assert cells[10] == "2 of 3: ok; 1 of 3: killed worker; 2 workers ended over memory"


def test_peers_that_disagree_are_marked():
    threads, mars = measurement("threads", 1.0), measurement(value=1.001)
    assert "WRONG: differs from threads" in row([mars], [threads, mars])[-1]
    assert row([threads], [threads, mars])[-1] == ""


@pytest.mark.skipif(memory_kind() != "PSS", reason="only Linux tells")
def test_shared_memory_that_nobody_maps_is_counted():
    ctypes.CDLL(None).malloc_trim(0)
    before = tree_bytes(os.getpid(), "PSS")
    descriptor = os.memfd_create("unmapped")
    try:
        os.posix_fallocate(descriptor, 0, 64 * MIB)
        assert tree_bytes(os.getpid(), "PSS") > before + 48 * MIB
    finally:
        os.close(descriptor)


@pytest.mark.skipif(memory_kind() != "PSS", reason="only Linux tells")
def test_a_peak_between_two_samples_is_seen(monkeypatch):
    # Samples by the clock alone would not come again.
    monkeypatch.setattr(benchmarks.memory, "SHORTEST_PAUSE_S", 3600.0)
    with peak_memory(os.getpid()) as peak:
        assert eventually(lambda: peak.bytes)
        before = peak.bytes
        held = b"x" * (256 * MIB)
        assert eventually(lambda: peak.bytes > before + 240 * MIB)
        del held
