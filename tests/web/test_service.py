"""A service in processes of its own, as its users meet it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.web.client import Service
from tests.web.services import RunningService, running, submission

pytest.importorskip("tornado")


@pytest.fixture(scope="module")
def served(private_tmp: Path) -> Iterator[RunningService]:
    with running(private_tmp / "service") as service:
        yield service


@pytest.fixture
def service(served: RunningService) -> Iterator[Service]:
    with served.connect() as service:
        yield service


def test_a_collection_is_computed_as_by_any_scheduler(service: Service) -> None:
    x = da.arange(100_000, chunks=10_000)
    found = x.compute(scheduler=service.get)
    assert np.array_equal(found, np.arange(100_000))
    assert found.flags.writeable
    assert x.sum().compute(scheduler=service.get) == 4_999_950_000
    assert dask.compute(x[:3], [x[3]], scheduler=service.get)[1] == [3]


SUBMIT = """
import dask.array as da, dask_mars, sys, time

x = da.random.default_rng(7).random((1000, 1000), chunks=500)
print(dask_mars.connect(sys.argv[1]).submit(x, name="noise").id, flush=True)
time.sleep(60)
"""


def test_who_submits_may_be_killed_and_another_process_gets_the_same_bits(served, service, scripts) -> None:
    script = scripts.write("submit.py", SUBMIT)
    with scripts.start(str(script), str(served.directory)) as client:
        id = client.stdout.readline().strip()
        client.send_signal(signal.SIGKILL)
    computation = service.computation(id)
    expected = da.random.default_rng(7).random((1000, 1000), chunks=500).compute(scheduler="sync")
    assert computation.result(timeout=100).tobytes() == expected.tobytes()
    assert (computation.name, computation.state) == ("noise", "finished")


PUT = """
import sys
from pathlib import Path
from dask_mars.web.connection import _UnixConnection

socket, id, body = sys.argv[1:]
line = _UnixConnection(socket)
line.connect()
print("ready", flush=True)
sys.stdin.readline()
line.request("PUT", f"/api/v1/computations/{id}", Path(body).read_bytes())
print(line.getresponse().status)
"""


def test_one_submission_by_ten_processes_is_one_computation(served, service, scripts) -> None:
    before = len(list(service.computations()))
    x = da.random.default_rng(7).random((1000, 1000), chunks=500)
    body = scripts.directory / "body"
    body.write_bytes(submission(x))
    id = str(uuid.uuid4())
    script = str(scripts.write("put.py", PUT))
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                scripts.start(script, str(served.directory / "socket"), id, str(body), stdin=subprocess.PIPE)
            )
            for _ in range(10)
        ]
        for client in clients:
            assert client.stdout.readline() == "ready\n"
        for client in clients:
            client.stdin.write("\n")
            client.stdin.flush()
        told = sorted(client.stdout.readline() for client in clients)
    assert told == ["200\n"] * 9 + ["201\n"]
    computation = service.computation(id)
    assert computation.result(timeout=100).tobytes() == x.compute(scheduler="sync").tobytes()
    assert computation.summary()["attempt"] == 1
    assert len(list(service.computations())) == before + 1
