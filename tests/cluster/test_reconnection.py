"""Computations whose scheduler is lost: those that wait for it, and those that do not."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import Mock

import dask
import dask.array as da
import pytest
from dask.callbacks import Callback
from distributed import Client
from distributed.client import FutureCancelledError

import dask_mars
from dask_mars.cluster import backend
from dask_mars.cluster.reconnection import _Successor
from dask_mars.errors import BegunBefore, Cancelled, FuturesLost, SchedulerLost
from tests.cluster.conftest import Place
from tests.conftest import eventually
from tests.tasks import call_after, linger, note_name, noted, notes

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
#: Long enough for what comes back, and short enough for what does not.
LONG, SHORT = "60 s", "0.3 s"


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    with Client(place.address) as client:
        yield client
    backend.close()


@contextlib.contextmanager
def in_background(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(function, *args, **kwargs)


def gated(folder: Path, name: str = "x") -> Any:
    """Return a sum over chunks that note that they have begun, and wait for a file."""
    x = da.arange(8, chunks=2)
    begun, gate = folder / f"{name}-begun", folder / f"{name}-gate"
    return x.map_blocks(passing, begun, gate, name, meta=x._meta).sum()


def passing(block: Any, begun: Path, gate: Path, name: str) -> Any:
    return linger(begun, gate, block)


def has_begun(folder: Path, name: str = "x") -> bool:
    return bool(notes(folder / f"{name}-begun"))


def running() -> int:
    return dask_mars.runtime().records.counts()["running"]


def waiting_for(timeout: str | None) -> Any:
    return dask.config.set({"dask-mars.cluster.reconnect-timeout": timeout})


class Told(Callback):
    """Notes what it is told of."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        super().__init__(
            pretask=lambda key, *_: self.begun.append(key), posttask=lambda key, *_: self.ended.append(key)
        )


def test_it_waits_for_the_scheduler_and_ends_right(place, client, tmp_path, caplog):
    told = Told()
    with caplog.at_level(logging.WARNING, "dask_mars"), waiting_for(LONG):
        computation = dask_mars.submit(gated(tmp_path), name="a sum", callbacks=[told._callback])
        assert eventually(lambda: has_begun(tmp_path), PATIENCE_S)
        started = dask_mars.runtime().computations()[0]["started"]
        place.stop()
        assert eventually(lambda: "was lost" in computation.explain(), PATIENCE_S)
        assert f"the scheduler at {place.address} was lost" in computation.explain()
        assert computation.state == "running"
        assert computation.progress.total == computation.progress.waiting > 0
        assert not computation.done()
        (tmp_path / "x-gate").touch()
        place.start(2)
        assert computation.result(PATIENCE_S) == sum(range(8))
    assert dask_mars.runtime().computations()[0]["started"] == started
    lost, back = [record.getMessage() for record in caplog.records if record.name.startswith("dask_mars")]
    assert f"the scheduler at {place.address} is lost: waiting for it for 1 min 0 s at most" in lost
    assert f"the scheduler at {place.address} is back" in back
    assert len(told.ended) == len(set(told.ended)) > 4
    assert sorted(map(str, told.begun)) == sorted(map(str, told.ended))
    # All of the second attempt, and what had begun of the first.
    assert len(notes(tmp_path / "x-begun")) >= 5


@pytest.mark.nightly
def test_those_that_do_not_wait_and_those_that_wait_in_vain(place, client, tmp_path):
    persisted = da.ones(4, chunks=2).persist(scheduler=dask_mars.get)
    assert (persisted + 1).sum().compute(scheduler=dask_mars.get) == 8
    with waiting_for(LONG):
        cancelled = dask_mars.submit(gated(tmp_path, "cancelled"))
        assert eventually(lambda: has_begun(tmp_path, "cancelled"), PATIENCE_S)
    with in_background(gated(tmp_path, "plain").compute, scheduler=dask_mars.get) as plain:
        assert eventually(lambda: running() == 2, PATIENCE_S)
        place.stop()
        (tmp_path / "cancelled-gate").touch()
        with pytest.raises(FutureCancelledError) as caught:
            plain.result(PATIENCE_S)
    assert "dask-mars.cluster.reconnect-timeout" in "".join(caught.value.__notes__)
    assert eventually(lambda: "was lost" in cancelled.explain(), PATIENCE_S)
    assert cancelled.cancel()
    with pytest.raises(Cancelled):
        cancelled.result(PATIENCE_S)
    assert cancelled.state == "cancelled"

    # Also what begins while there is none.
    with waiting_for(SHORT), pytest.raises(SchedulerLost, match=r"none came back at tcp.* within 0\.30 s") as lost:
        da.ones(4, chunks=2).sum().compute(scheduler=dask_mars.get)
    assert isinstance(lost.value, CancelledError)
    assert (lost.value.address, lost.value.losses) == (place.address, 1)
    place.start(agents=0)
    assert eventually(lambda: client.status == "running", PATIENCE_S)
    with waiting_for(SHORT), pytest.raises(SchedulerLost, match="no worker of it was one of dask_mars within"):
        da.ones(4, chunks=2).sum().compute(scheduler=dask_mars.get)
    place.cluster.scale(1)
    with waiting_for(LONG):
        # Before there is one.
        assert da.ones(4, chunks=2).sum().compute(scheduler=dask_mars.get) == 4
        with pytest.raises(FuturesLost, match="persist the original collection again"):
            (persisted + 1).sum().compute(scheduler=dask_mars.get)


def test_ctrl_c_ends_the_wait_at_once(place, client, tmp_path):
    def interrupt() -> None:
        assert eventually(lambda: has_begun(tmp_path), PATIENCE_S)
        place.stop()
        (tmp_path / "x-gate").touch()
        (record,) = dask_mars.runtime().records.live()
        assert eventually(lambda: "was lost" in record.explain(), PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    with waiting_for(LONG), in_background(interrupt) as interrupted, pytest.raises(KeyboardInterrupt):
        gated(tmp_path).compute(scheduler=dask_mars.get)
    interrupted.result()


def test_what_appends_is_not_begun_again_and_a_computation_may_lose_its_scheduler_so_often(
    place, client, tmp_path, monkeypatch
):
    monkeypatch.setattr("dask_mars.optimize.known.APPENDING", frozenset({"tests.tasks.linger"}))
    appending = dask.delayed(linger)(tmp_path / "x-begun", tmp_path / "x-gate", 1)
    with waiting_for(LONG):
        appended = dask_mars.submit(appending)
        assert eventually(lambda: has_begun(tmp_path), PATIENCE_S)
        monkeypatch.undo()
        with mock.patch.object(backend, "_ALLOWED_LOSSES", 0):
            lost = dask_mars.submit(gated(tmp_path, "y"))
            assert eventually(lambda: running() == 2, PATIENCE_S)
            place.stop()
            (tmp_path / "x-gate").touch()
            with pytest.raises(BegunBefore):
                appended.result(PATIENCE_S)
            with pytest.raises(SchedulerLost, match="may be what ends it"):
                lost.result(PATIENCE_S)
    assert len(notes(tmp_path / "x-begun")) == 1


def test_what_is_saved_is_not_computed_again_by_others(place, client, tmp_path, monkeypatch):
    monkeypatch.setattr("dask_mars.optimize.known.APPENDING", frozenset({"tests.tasks.note_name"}))
    path, table = tmp_path / "notes", tmp_path / "table"
    row = dask.delayed(note_name)(table, "row")
    # All of them come after it.
    parts = [dask.delayed(call_after)(0.05, noted, path, (number, row)) for number in range(24)]
    saving = {"dask-mars.checkpoint.directory": str(tmp_path / "saved")}
    with waiting_for(LONG), dask.config.set(saving):
        computation = dask_mars.submit(parts)
        assert eventually(lambda: len(notes(path)) >= 14, PATIENCE_S)
        # With all of its agents.
        place.stop()
        before = len(notes(path))
        place.start(2)
        assert computation.result(PATIENCE_S) == [(number, "row") for number in range(24)]
    assert len(notes(path)) <= 24 + before // 2
    assert notes(table) == ["row"]
    assert not list((tmp_path / "saved").iterdir())


def test_a_directory_that_not_all_hosts_have(place, client, tmp_path, monkeypatch):
    monkeypatch.setattr("dask_mars.cluster.saving.os.path.exists", lambda path: False)
    saving = {"dask-mars.checkpoint.directory": str(tmp_path / "saved")}
    with dask.config.set(saving), pytest.warns(RuntimeWarning, match="saved is not there on 0: a checkpoint"):
        assert da.ones(4, chunks=2).sum().compute(scheduler=dask_mars.get) == 4
    assert not list((tmp_path / "saved").iterdir())


def test_what_comes_back_and_is_no_scheduler_for_this_client(place, tmp_path, monkeypatch):
    threads = threading.active_count()
    with pytest.raises(OSError, match="Timed out"):
        _Successor("tcp://127.0.0.1:1", timeout=0.1)
    assert threading.active_count() == threads
    with Client(place.address, timeout=0.2) as client:
        with waiting_for("4 s"):
            computation = dask_mars.submit(gated(tmp_path))
            assert eventually(lambda: has_begun(tmp_path), PATIENCE_S)
        refuse = Mock(side_effect=ImportError("another version"))
        monkeypatch.setattr("dask_mars.cluster.reconnection._Successor", refuse)
        place.stop()
        (tmp_path / "x-gate").touch()
        with pytest.raises(SchedulerLost, match=r"did not take this client within 4.*another version"):
            computation.result(PATIENCE_S)
    client._loop_runner.stop()


@pytest.mark.parametrize("moves", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_another_client_takes_the_place_of_one_that_has_given_up(place, tmp_path, moves):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": place.address}))
    other = Place() if moves else place
    with Client(scheduler_file=str(file), timeout=30 if moves else 0.2) as client, waiting_for(LONG):
        computation = dask_mars.submit(gated(tmp_path))
        assert eventually(lambda: has_begun(tmp_path), PATIENCE_S)
        place.stop()
        if moves:
            file.write_text("half wri")
            assert eventually(lambda: "was lost" in computation.explain(), PATIENCE_S)
            file.write_text(json.dumps({"address": other.address}))
        else:
            assert eventually(lambda: client.status == "closed", PATIENCE_S)
        (tmp_path / "x-gate").touch()
        other.start()
        assert computation.result(PATIENCE_S) == sum(range(8))
        # Computations go on there.
        for options in ({}, {"client": client}):
            assert da.ones(4, chunks=2).sum().compute(scheduler=dask_mars.get, **options) == 4
            assert dask_mars.runtime().records.counts()["finished"]
        assert other.address in repr(dask_mars.runtime())
    backend.close()
    other.stop()
    # One that has given up leaves this to the end of the process.
    client._loop_runner.stop()
