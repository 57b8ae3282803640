"""What is left when processes of a service die, and how it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.array as da
import pytest

from dask_mars.errors import ServiceError
from dask_mars.web.client import Service, connect
from tests.conftest import eventually, marked_processes
from tests.web.services import RunningService, raw, running, submission

pytest.importorskip("tornado")

COMMAND = "from dask_mars.commands import web; web()"


@pytest.fixture(scope="module")
def served(private_tmp: Path) -> Iterator[RunningService]:
    with running(private_tmp / "deaths") as service:
        yield service


@pytest.fixture
def service(served: RunningService) -> Iterator[Service]:
    with served.connect() as service:
        yield service


def test_a_front_that_is_killed_leaves_nothing_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with running(tmp_path / "d") as served:
        with served.connect() as service:
            kept = service.submit(da.arange(5, chunks=2))
            assert kept.wait(100)
            slow = service.submit(dask.delayed(time.sleep)(60))
            assert eventually(lambda: slow.state == "running", 20)
        # Whose unpickling holds the runner up does not see that the front has gone.
        os.kill(served.runner().pid, signal.SIGSTOP)
        served.kill()
        assert eventually(lambda: not marked_processes(str(served.directory)), 10)
        assert (served.directory / "socket").exists()
        served.start()
        with served.connect() as service:
            assert service.computation(kept.id).result().tolist() == [0, 1, 2, 3, 4]
            again = service.computation(slow.id)
            assert eventually(lambda: again.state == "running", 20)
            assert again.summary()["attempt"] == 2
            assert again.cancel()
            assert again.wait(100)
            assert {computation.id for computation in service.computations()} == {kept.id, slow.id}
            service.computation(kept.id).delete()
            assert [computation.id for computation in service.computations()] == [slow.id]
        served.stop()
        assert os.listdir(served.directory / "incoming") == []
        assert not (served.directory / "socket").exists()


def test_ctrl_c_ends_it_all(tmp_path: Path, scripts) -> None:
    with scripts.start("-c", COMMAND, "--directory", str(tmp_path / "d"), "--port", "0") as front:
        assert front.stdout.readline().startswith("dask_mars listens at http://127.0.0.1:")
        front.send_signal(signal.SIGINT)
        assert front.wait(100) == 0
        assert front.stderr.read() == ""
    assert not {"socket", "connection.json"} & set(os.listdir(tmp_path / "d"))


def test_a_runner_that_is_killed_is_replaced_and_computes_again(served, service) -> None:
    slow = service.submit(dask.delayed(time.sleep)(1))
    assert eventually(lambda: slow.state == "running", 20)
    runner = served.runner()
    runner.kill()
    # The front answers meanwhile.
    assert service.state()["counts"]["failed"] == 0
    assert slow.result(100) is None
    assert slow.summary()["attempt"] == 2
    assert served.runner().pid != runner.pid


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


def test_a_runner_that_cannot_start_ends_the_service(tmp_path: Path, scripts) -> None:
    """So that whoever looks after it hears of it."""
    scripts.write("numpy.py", "raise ImportError('no numbers here')\n")
    shortened = "import dask_mars.web.service.supervisor as s; s._LONGEST_PAUSE_S = 0.1; " + COMMAND
    env = {"PYTHONPATH": os.pathsep.join([str(scripts.directory), str(Path(__file__).parents[2])])}
    done = scripts.run("-c", shortened, "--directory", str(tmp_path / "d"), env=env, timeout_s=60)
    assert done.returncode == 1
    assert "ended with exit code 1 before it was ready, 5 times" in done.stderr
    assert not (tmp_path / "d" / "socket").exists()


def test_modules_are_not_found_where_it_was_started(tmp_path: Path, scripts) -> None:
    """Which may be a directory that others write to."""
    scripts.write("cloudpickle.py", "raise SystemExit('trapped')\n")
    script = "import sys; sys.path.remove(''); " + COMMAND
    with scripts.start("-c", script, "--directory", str(tmp_path / "d")) as front:
        assert front.stdout.readline()
        with connect(tmp_path / "d") as service:
            assert service.submit(dask.delayed(abs)(-1)).result(100) == 1
        front.send_signal(signal.SIGTERM)
        assert front.wait(100) == 0


def test_records_that_cannot_be_written_end_the_service(tmp_path: Path, scripts) -> None:
    with scripts.start("-c", COMMAND, "--directory", str(tmp_path / "d")) as front:
        assert front.stdout.readline()
        with connect(tmp_path / "d") as service:
            slow = service.submit(dask.delayed(time.sleep)(2))
            assert eventually(lambda: slow.state == "running", 20)
            with sqlite3.connect(tmp_path / "d" / "history.sqlite3") as database:
                database.execute("DROP TABLE computations")
            database.close()
        assert front.wait(100) == 1
        assert "no such table: computations" in front.stderr.read()


@contextlib.contextmanager
def a_full_disk(served: RunningService) -> Iterator[None]:
    """Have the front write nothing: to its process every disk is full."""
    hard = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk_is_said_to_be_so_and_nothing_is_lost(served, service) -> None:
    over = service.submit(da.arange(4, chunks=2))
    assert over.wait(100)
    # There is one worker, which the first has.
    slow = service.submit(dask.delayed(time.sleep)(1.5))
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
        # The runner, whose disk has room, says that it is done, which is not true before it is recorded.
        assert eventually(lambda: set((served.directory / "results").iterdir()) > results, 20)
        for _ in range(3):
            assert slow.state == "running"
            assert service.state()["workers"]
            time.sleep(0.5)
        assert over.result().tolist() == [0, 1, 2, 3]
    assert slow.result(timeout=100) is None
    assert slow.summary()["attempt"] == 1
    assert endless.cancel()
    assert endless.wait(100)
    assert service.submit(da.arange(4, chunks=2).sum()).result(timeout=100) == 6


def test_records_of_others_are_refused(tmp_path: Path, scripts) -> None:
    directory = tmp_path / "d"
    directory.mkdir(mode=0o700)
    (directory / "history.sqlite3").write_text("these are no records, and more than a hundred bytes of it " * 10)
    done = scripts.run("-c", COMMAND, "--directory", str(directory))
    assert (done.returncode, "not a database" in done.stderr) == (1, True)
    (directory / "history.sqlite3").unlink()
    with sqlite3.connect(directory / "history.sqlite3") as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    done = scripts.run("-c", COMMAND, "--directory", str(directory))
    assert (done.returncode, "by another version of dask_mars" in done.stderr) == (1, True)


def test_a_runner_that_holds_still_holds_up_nobody(served, service) -> None:
    runner = served.runner()
    slow = service.submit(dask.delayed(time.sleep)(0.5))
    assert eventually(lambda: slow.state == "running", 20)
    runner.suspend()
    try:
        assert raw(served, "GET", f"computations/{slow.id}/explain?key=x")[0] == 404
        assert service.state()["workers"] == []
        assert len(list(service.computations())) > 0
        more = service.submit(da.arange(3, chunks=3))
        assert more.state in ("queued", "preparing")
    finally:
        runner.resume()
    assert more.result(100).tolist() == [0, 1, 2]
    assert slow.result(100) is None
