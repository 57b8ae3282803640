"""What is left when processes of a service die, and how it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.array as da
import pytest

from dask_mars.errors import ServiceError
from dask_mars.web.client import connect
from tests.conftest import eventually, marked_processes
from tests.web.services import RunningService, listening, raw, running, submission

pytest.importorskip("tornado")

COMMAND = "from dask_mars.commands import web; web()"


def when_let(path: Path) -> dask.delayed:
    """Return a task that ends once a file is there, with its function by value."""

    def wait() -> None:
        while not path.exists():
            time.sleep(0.01)

    return dask.delayed(wait)()


@pytest.mark.slow
def test_a_front_that_is_killed_leaves_nothing_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with running(tmp_path / "d") as served, served.connect() as service:
        # By default no port is open.
        assert listening(served) == []
        assert not (served.directory / "connection.json").exists()
        assert (served.directory / "socket").stat().st_mode & 0o777 == 0o600
        assert served.directory.stat().st_mode & 0o777 == 0o700
        kept = service.submit(da.arange(5, chunks=2))
        assert kept.wait(100)
        slow = service.submit(when_let(tmp_path / "go"))
        found: list[object] = []
        waiting = threading.Thread(target=lambda: found.append(slow.result(100)))
        waiting.start()
        assert eventually(lambda: slow.state == "running", 20)
        # A runner that is held up by unpickling does not see that the front has gone.
        os.kill(served.runner().pid, signal.SIGSTOP)
        served.kill()
        assert eventually(lambda: not marked_processes(str(served.directory)), 10)
        assert (served.directory / "socket").exists()
        served.start()
        assert kept.result().tolist() == [0, 1, 2, 3, 4]
        assert eventually(lambda: slow.state == "running", 20)
        (tmp_path / "go").touch()
        waiting.join(100)
        # Its client has waited for the next service.
        assert found == [None]
        assert slow.summary()["attempt"] == 2
        assert {computation.id for computation in service.computations()} == {kept.id, slow.id}
        kept.delete()
        assert [computation.id for computation in service.computations()] == [slow.id]
        # Records that cannot be written any more end the service.
        last = service.submit(when_let(tmp_path / "last"))
        assert eventually(lambda: last.state == "running", 20)
        with contextlib.closing(sqlite3.connect(served.directory / "history.sqlite3")) as database:
            database.execute("DROP TABLE computations")
        (tmp_path / "last").touch()
        printed, _ = served.process.communicate(timeout=100)
        assert served.process.returncode == 1
        assert "no such table: computations" in printed
        assert os.listdir(served.directory / "incoming") == []
        assert not (served.directory / "socket").exists()


def test_a_task_that_breaks_its_process_harms_no_runner(served, service) -> None:
    runner = served.runner().pid
    broken = service.submit(dask.delayed(lambda: os.kill(os.getpid(), signal.SIGSEGV))())
    with pytest.raises(Exception, match="SIGSEGV"):
        broken.result(60)
    assert served.runner().pid == runner
    assert broken.summary()["attempt"] == 1


class Stubborn:
    """Does not end while it is unpickled, whatever happens."""

    def __reduce__(self):
        return eval, ("exec('import time\\nwhile True:\\n    time.sleep(0.1)')",)


@pytest.mark.slow
def test_what_does_not_end_takes_the_runner_along_and_nobody_else(tmp_path: Path, scripts) -> None:
    shortened = "import dask_mars.web.service.supervisor as s; s._CANCEL_S = 1.0; " + COMMAND
    with scripts.start("-c", shortened, "--directory", str(tmp_path / "d"), "--num-workers", "1") as front:
        assert front.stdout.readline()
        with connect(tmp_path / "d") as service:
            stubborn = service.submit(Stubborn())
            other = service.submit(dask.delayed(time.sleep)(3))
            assert eventually(lambda: other.state == "running", 20)
            assert stubborn.state == "preparing"
            assert stubborn.cancel()
            assert stubborn.wait(100)
            assert stubborn.state == "cancelled"
            assert other.result(100) is None
            # It begins anew, through no fault of its own.
            assert other.summary()["attempt"] == 2
        front.send_signal(signal.SIGTERM)
        assert front.wait(100) == 0


@contextlib.contextmanager
def a_full_disk(served: RunningService) -> Iterator[None]:
    """Have the front write nothing: to its process every disk is full."""
    hard = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk_is_said_to_be_so_and_nothing_is_lost(served, service, tmp_path: Path) -> None:
    over = service.submit(da.arange(4, chunks=2))
    assert over.wait(100)
    # There is one worker, which the first has.
    slow = service.submit(when_let(tmp_path / "go"))
    assert eventually(lambda: slow.state == "running", 20)
    endless = service.submit(dask.delayed(time.sleep)(60))
    results = set((served.directory / "results").iterdir())
    with a_full_disk(served):
        for method, path, body in [
            ("POST", f"computations/{endless.id}/cancel", None),
            ("DELETE", f"computations/{over.id}", None),
            ("PUT", f"computations/{uuid.uuid4()}", submission(1)),
        ]:
            status, headers, text = raw(served, method, path, body)
            assert (status, headers["Retry-After"]) == (503, "60")
            assert "the service cannot write" in json.loads(text)["detail"]
        with (
            connect(served.directory) as hasty,
            dask.config.set({"dask-mars.web.patience": 0}),
            pytest.raises(ServiceError, match="the service cannot write"),
        ):
            hasty.submit(1)
        (tmp_path / "go").touch()
        # The runner, whose disk has room, says that it is done, which is not true before it is recorded.
        assert eventually(lambda: set((served.directory / "results").iterdir()) > results, 20)
        for _ in range(3):
            assert slow.state == "running"
            assert service.state()["workers"]
            time.sleep(0.1)
        assert over.result().tolist() == [0, 1, 2, 3]
    assert slow.result(timeout=100) is None
    assert slow.summary()["attempt"] == 1
    assert endless.cancel()
    assert endless.wait(100)
    assert service.submit(da.arange(4, chunks=2).sum()).result(timeout=100) == 6


def test_a_runner_that_holds_still_holds_up_nobody(served, service, tmp_path: Path) -> None:
    runner = served.runner()
    slow = service.submit(when_let(tmp_path / "go"))
    assert eventually(lambda: slow.state == "running", 20)
    runner.suspend()
    try:
        assert service.state()["workers"] == []
        assert len(list(service.computations())) > 0
    finally:
        runner.resume()
        (tmp_path / "go").touch()
    assert slow.result(100) is None
