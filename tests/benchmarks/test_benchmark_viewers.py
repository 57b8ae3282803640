from __future__ import annotations

import pytest

from benchmarks.jobs import Measurement, ViewersJob
from benchmarks.measure import run_job
from benchmarks.viewer import VIEWS
from benchmarks.viewers_child import ALONE, WATCHED
from benchmarks.viewers_command import tables_of


def job_of(peer: str, scale: float = 1.0) -> ViewersJob:
    return ViewersJob(peer, "viewers", 0, 1, 1, scale, 60.0, 2)


def test_tables_have_what_was_measured():
    alone = Measurement(job_of(ALONE), seconds=[2.0], values=[[]])
    watched = Measurement(job_of(WATCHED), seconds=[2.5], values=[[0.001, 0.01] * len(VIEWS)])
    throughput, answers = tables_of([alone, watched], 100)
    assert [list(column.cells) for column in throughput.columns][-1] == ["1.000", "0.800"]
    assert list(answers.columns[0].cells) == list(VIEWS)
    assert set(answers.columns[2].cells) == {"10.0"}


@pytest.mark.nightly
def test_a_run():
    pytest.importorskip("tornado")
    measurement = run_job(job_of(WATCHED, 0.02), "benchmarks.viewers_child")
    assert (measurement.status, measurement.trouble) == ("ok", "")
    assert len(measurement.seconds) == 1
    assert len(measurement.values[0]) == 2 * len(VIEWS)
    assert measurement.stray_processes == 0
